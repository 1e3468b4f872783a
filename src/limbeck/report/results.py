"""What models scored on tasks, and what follows from it: averages, shares of the teacher, comparisons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from limbeck.tasks import weighted
from limbeck.tasks.statistics import DRAWS, LEVEL, Comparison, Mean, compare, holm

if TYPE_CHECKING:
    from numpy.typing import NDArray

Role = Literal["teacher", "twin", "distilled", "comparator"]


@dataclass(frozen=True)
class Model:
    """A row of the table."""

    name: str
    role: Role
    shape: str
    parameters: int
    """Of the encoder."""
    twin_of: str | None = None
    """A twin's: the distilled model whose initialisation it is, without distillation."""
    taught_by: str | None = None
    """A distilled model's: its teacher, if that is a row."""


@dataclass(frozen=True)
class Measured:
    """One model on one task."""

    model: str
    task: str
    metric: str
    """The one that the table shows, a fraction in [-1, 1]."""
    scores: tuple[Mapping[str, float], ...]
    """Every metric as a fraction, a mapping a seed."""
    seeds: tuple[int, ...]
    predictions: NDArray[Any]
    """(seeds, examples) class numbers, real numbers, or scores of each example, such as an answer's F1."""
    labels: NDArray[Any]
    """(examples,)"""
    weighted: weighted.Metric
    """The metric of drawn examples, by which models are compared."""
    fixed: bool = False
    """Nothing was trained (zero-shot): one "seed", and no spread."""
    precisions: tuple[str, ...] = ()
    """The number format of each seed's training, "float32" or "bf16"."""

    def __post_init__(self) -> None:
        sizes = (len(self.seeds), len(self.labels))
        if len(self.scores) != len(self.seeds) or self.predictions.shape != sizes:
            raise ValueError(
                f"{self.model} on {self.task}: {sizes[0]} seeds and {sizes[1]} labels, but {len(self.scores)} mappings of scores "
                f"and predictions of shape {self.predictions.shape}"
            )

    @property
    def values(self) -> list[float]:
        """The seeds' scores by the metric that the table shows."""
        return [scores[self.metric] for scores in self.scores]

    @property
    def mean(self) -> Mean:
        """Of these, over the seeds."""
        return Mean.of(self.values)

    @cached_property
    def compared_as_shown(self) -> bool:
        """Whether models are compared by the metric that the table shows.

        Several labels are not: their examples count as right or wrong, while the table shows an F1.
        """
        drawn = self.weighted(self.predictions, self.labels, np.ones((1, len(self.labels))))
        return np.allclose(drawn[0], self.values, atol=1e-6)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Of the mean, as `compare` has it for differences; None where the metric shown is not the one compared by."""
        if not self.compared_as_shown:
            return None
        nothing = np.full((1, len(self.labels)), np.nan)
        score = compare(self.predictions.astype(np.float64), nothing, self.labels, _nothing_scores_0(self.weighted))
        return max(-1.0, score.low), min(1.0, score.high)


@dataclass(frozen=True)
class Pair:
    """Two models on one task."""

    first: str
    """A distilled model."""
    second: str
    """Its twin, its teacher or a comparator."""
    task: str
    comparison: Comparison
    corrected: float
    """The p-value after Holm's correction over the tasks of these two models."""
    tasks: int
    """How many these are."""

    @property
    def words(self) -> str:
        """What the comparison says, in points (hundredths)."""
        verdict, detectable = self.comparison.text(self.corrected), self.comparison.detectable
        if verdict != self.comparison.text():
            return f"{verdict} after correction for {self.tasks} tasks"
        if not verdict.startswith("no difference") or not detectable:
            return verdict
        return f"{verdict}; a difference of {100 * detectable:.1f} would have been shown in four of five such comparisons"


@dataclass(frozen=True)
class Results:
    """Models and what was measured of them; not every model need be measured on every task."""

    models: tuple[Model, ...]
    measured: tuple[Measured, ...]
    settings: Mapping[str, Any]
    """How it was measured, as the user gave it."""

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        relatives = {name for model in self.models for name in (model.twin_of, model.taught_by) if name is not None}
        unknown = (relatives | {one.model for one in self.measured}) - set(names)
        cells = [f"{one.model} on {one.task}" for one in self.measured]
        repeated = [name for name, times in Counter(names + cells).items() if times > 1]
        unlike = [one.task for one in self.measured if not _alike(one, self.of_task(one.task)[0])]
        distilled = {model.name for model in self.models if model.role == "distilled"}
        childless = [model.name for model in self.models if model.role == "twin" and model.twin_of not in distilled]
        for fault, found in {
            "named but no row": unknown,
            "there twice": repeated,
            "measured by several metrics or on several sets of examples": unlike,
            "a twin of no distilled model": childless,
        }.items():
            if found:
                raise ValueError(f"{fault}: {', '.join(found)}")

    @property
    def rows(self) -> list[Model]:
        """The models in the table's order: teachers, distilled models with their twins above them, comparators."""
        distilled = [model.name for model in self.models if model.role == "distilled"]

        def place(model: Model) -> tuple[int, int, bool]:
            if model.role in ("teacher", "comparator"):
                return (0 if model.role == "teacher" else 2, 0, False)
            return (1, distilled.index(model.twin_of or model.name), model.role == "distilled")

        return sorted(self.models, key=place)

    @property
    def tasks(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(one.task for one in self.measured))

    def of_task(self, task: str) -> list[Measured]:
        """What was measured on a task."""
        return [one for one in self.measured if one.task == task]

    def cell(self, model: str, task: str) -> Measured | None:
        """What was measured of a model on a task, if anything."""
        return next((one for one in self.of_task(task) if one.model == model), None)

    @property
    def shared_tasks(self) -> list[str]:
        """Those on which every model was measured; where anything was trained, only those that were."""
        trained = any(not one.fixed for one in self.measured)
        shared = [task for task in self.tasks if len(self.of_task(task)) == len(self.models)]
        return [task for task in shared if not (trained and all(one.fixed for one in self.of_task(task)))]

    def average(self, model: str) -> float | None:
        """The mean of a model's means over the tasks that every model has; None if there are none."""
        means = [one.mean.mean for one in self.measured if one.model == model and one.task in self.shared_tasks]
        return float(np.mean(means)) if means else None

    def teacher_of(self, model: Model) -> str | None:
        """Whose scores a model's are a share of: its own teacher, or of comparators the only one there is."""
        teachers = [other.name for other in self.models if other.role == "teacher"]
        if model.role == "teacher":
            return model.name
        if model.role == "comparator":
            return teachers[0] if len(teachers) == 1 else None
        return next(other.taught_by for other in self.models if other.name == (model.twin_of or model.name))

    def kept(self, model: Model) -> float | None:
        """A model's average as a share of its teacher's."""
        teacher = self.teacher_of(model)
        return None if teacher is None else _share(self.average(model.name), self.average(teacher))

    def kept_on(self, model: Model, task: str) -> float | None:
        """A model's mean on one task as a share of its teacher's."""
        teacher = self.teacher_of(model)
        ours, theirs = self.cell(model.name, task), None if teacher is None else self.cell(teacher, task)
        return None if ours is None or theirs is None else _share(ours.mean.mean, theirs.mean.mean)

    def opponents(self, model: Model) -> list[str]:
        """Whom a distilled model is compared with: its twins, its teacher, every comparator."""
        twins = [other.name for other in self.models if other.twin_of == model.name]
        teacher = [] if model.taught_by is None else [model.taught_by]
        comparators = [other.name for other in self.models if other.role == "comparator"]
        return list(dict.fromkeys([*twins, *teacher, *comparators]))

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """What `comparisons` gives; it takes seconds, and table, file and words all need it."""
        compared = [
            (model.name, opponent, task, compare(ours.predictions, theirs.predictions, ours.labels, ours.weighted))
            for model in self.rows
            if model.role == "distilled"
            for opponent in self.opponents(model)
            for task in self.tasks
            if (ours := self.cell(model.name, task)) and (theirs := self.cell(opponent, task))
        ]
        pairs = []
        for _, group in groupby(compared, key=lambda row: row[:2]):
            rows = list(group)
            corrected = holm([comparison.p_value for *_, comparison in rows])
            pairs += [Pair(*row, p_value, len(rows)) for row, p_value in zip(rows, corrected, strict=True)]
        return tuple(pairs)


def comparisons(results: Results) -> list[Pair]:
    """Every distilled model against its twin, its teacher and each comparator, on each task that both have.

    P-values are corrected by Holm over the tasks of one pair of models.
    """
    return list(results.pairs)


def plain(results: Results) -> dict[str, Any]:
    """The results as JSON has them. Scores, differences and shares are fractions; null is what there is not.

    Returns:
        - models: in the table's order, each with name, role, shape, parameters, twin_of, taught_by, average (over
          `averaged_over`) and kept (that average as a share of its teacher's; null unless the teacher's is above zero).
        - tasks: name and the metric that the table shows.
        - averaged_over: the tasks that every model has.
        - cells: a model on a task, with metric, mean, deviation (standard deviation of the seeds; null for one), interval
          (its two ends; null if models are compared by another metric than that shown), examples, seeds, scores (a mapping
          of every metric a seed), precisions (of each seed's training), fixed (nothing was trained) and kept (the mean as a
          share of the teacher's on this task).
        - comparisons: first, second, task, difference (of the means, above zero if the first is better), interval, p_value,
          corrected_p_value (Holm over the tasks of these two models), detectable (the smallest detectable difference of
          this task alone), seeds (of each), examples and words.
        - statistics: level (intervals are of 1 - level; differences are claimed below it) and draws of the bootstrap.
        - settings: as given.
    """
    return {
        "models": [
            asdict(model) | {"average": results.average(model.name), "kept": results.kept(model)} for model in results.rows
        ],
        "tasks": [{"name": task, "metric": results.of_task(task)[0].metric} for task in results.tasks],
        "averaged_over": results.shared_tasks,
        "cells": [
            _plain_cell(cell, results.kept_on(model, task))
            for model in results.rows
            for task in results.tasks
            if (cell := results.cell(model.name, task))
        ],
        "comparisons": [_plain_pair(pair) for pair in comparisons(results)],
        "statistics": {"level": LEVEL, "draws": DRAWS},
        "settings": json.loads(json.dumps(dict(results.settings), default=str)),
    }


def _plain_cell(cell: Measured, kept: float | None) -> dict[str, Any]:
    return {
        "model": cell.model,
        "task": cell.task,
        "metric": cell.metric,
        "mean": cell.mean.mean,
        "deviation": cell.mean.deviation,
        "interval": None if cell.interval is None else list(cell.interval),
        "examples": len(cell.labels),
        "seeds": list(map(int, cell.seeds)),
        "scores": [{name: float(value) for name, value in scores.items()} for scores in cell.scores],
        "precisions": list(cell.precisions),
        "fixed": cell.fixed,
        "kept": kept,
    }


def _plain_pair(pair: Pair) -> dict[str, Any]:
    comparison = pair.comparison
    return {
        "first": pair.first,
        "second": pair.second,
        "task": pair.task,
        "difference": comparison.difference,
        "interval": [comparison.low, comparison.high],
        "p_value": comparison.p_value,
        "corrected_p_value": pair.corrected,
        "detectable": comparison.detectable,
        "seeds": list(comparison.seeds),
        "examples": comparison.examples,
        "words": pair.words,
    }


def _alike(one: Measured, other: Measured) -> bool:
    return one.metric == other.metric and np.array_equal(one.labels, other.labels)


def _share(part: float | None, whole: float | None) -> float | None:
    """A share of what is not above zero, such as a correlation, says nothing."""
    return None if part is None or whole is None or whole <= 0 else part / whole


def _nothing_scores_0(metric: weighted.Metric) -> weighted.Metric:
    """The metric, and 0 for a model that predicts nothing (nan)."""

    def counted(predictions: NDArray[Any], labels: NDArray[Any], counts: weighted.Floats) -> weighted.Floats:
        values = np.zeros((len(counts), len(predictions)))
        there = ~np.isnan(predictions).any(axis=1)
        values[:, there] = metric(predictions[there], labels, counts)
        return values

    return counted
