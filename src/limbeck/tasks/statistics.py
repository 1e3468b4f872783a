"""Is one model better than another? Several seeds, one set of examples, an interval and what it says in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from limbeck.errors import CheckFailed, UserError
from limbeck.tasks.weighted import Floats, Metric

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRAWS = 10_000
LEVEL = 0.05
"""How often, at most, a difference is claimed where there is none; intervals are of 1 - LEVEL."""
POWER = 0.8
"""How often the smallest detectable difference would be shown if it were the true one."""
CELLS = 1 << 20
"""Counts of draws and examples that are held at a time."""


@dataclass(frozen=True)
class Mean:
    """The mean over seeds."""

    mean: float
    deviation: float | None
    """The standard deviation of the seeds (divisor seeds - 1); None for one seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Summarise the seeds' values, one at least."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def text(self, scale: float = 100) -> str:
        """83.1 ± 0.4, or 83.1 for one seed; in percent unless `scale` says otherwise."""
        spread = "" if self.deviation is None else f" ± {scale * self.deviation:.1f}"
        return f"{_signless_zero(scale * self.mean)}{spread}"


@dataclass(frozen=True)
class Comparison:
    """How much better the first model is than the second, in the metric's unit."""

    first: Mean
    second: Mean
    difference: float
    low: float
    """The interval's ends; it covers the true difference about 19 times out of 20."""
    high: float
    p_value: float
    """Two-sided, of a difference at least as large where there is none."""
    detectable: float
    """The smallest detectable difference: a true one of this size would be shown in four of five such comparisons."""
    seeds: tuple[int, int]
    """Of each model. A model with one seed counts as if training always gave just this model."""
    examples: int

    def text(self, p_value: float | None = None, scale: float = 100) -> str:
        """What the interval says: "better by", "worse by" its ends, or "no difference shown" between them.

        Args:
            p_value: after `holm`'s correction, where several tasks were compared; the interval is that of this task alone.
            scale: 100 for percentage points.
        """
        low, high = (_signless_zero(scale * end) for end in (self.low, self.high))
        if (self.p_value if p_value is None else p_value) >= LEVEL or self.low <= 0 <= self.high:
            return f"no difference shown ({low} to {high})"
        if self.difference > 0:
            return f"better by {low}–{high}"
        return f"worse by {high.removeprefix('−')}–{low.removeprefix('−')}"


def compare(
    first: NDArray[Any], second: NDArray[Any], labels: NDArray[Any], metric: Metric, *, draws: int = DRAWS, seed: int = 0
) -> Comparison:
    """Compare two models on one task by a hierarchical bootstrap over seeds and examples.

    Every draw takes as many examples as there are, with replacement and the same for both models, and as many seeds of each
    model. It differs from the observed difference by what the examples make of it and by what the seeds make of it, and the
    interval holds the middle 95 % of the draws. Three things keep it honest with the few seeds there are:

    - what a seed scores on these examples also reflects chance on single examples, which the drawn examples account for
      already; only what the seeds vary beyond that is drawn with the seeds (a residual bootstrap: Carpenter, Goldstein and
      Rasbash 2003);
    - drawing from S seeds varies (S - 1)/S as much as new seeds would: the seeds' part is stretched to make up for it;
    - a spread that is estimated from few seeds is uncertain itself: draws are scaled at random so that they follow
      Student's t instead of the normal distribution, with Welch and Satterthwaite's degrees of freedom.

    Swapping the models turns every sign; a model compared with itself differs by exactly 0, with the p-value 1.

    Args:
        first: (seeds, examples) the model's predictions, or its scores of each example for `mean_score`.
        second: (seeds, examples) those of the other model on the same examples in the same order; its seeds may be fewer.
        labels: (examples,)
        metric: one of `limbeck.tasks.weighted`, or any function by its `each_draw`.
        draws: how many.
        seed: of the draws.

    Raises:
        UserError: the models were not evaluated on the same examples, or there are none.
        CheckFailed: the metric has no value on some draw.
    """
    sizes = {first.shape[1], second.shape[1], len(labels)}
    if len(sizes) > 1 or 0 in sizes or 0 in (len(first), len(second)):
        raise UserError(
            f"Two models are compared on the same examples: the first was evaluated on {first.shape[1]}, the second on "
            f"{second.shape[1]}, and there are {len(labels)} labels; evaluate both again on one file."
        )
    runs, [places, other_places] = _distinct_runs(first, second)
    random = np.random.default_rng(seed)
    observed = metric(runs, labels, np.ones((1, len(labels))))[0]
    drawn = _redrawn(runs, labels, metric, draws, random)
    ours, theirs = (_Seeds.of(observed, drawn, where, runs, seed) for where in (places, other_places))
    difference = float(ours.mean - theirs.mean)
    of_examples = drawn[:, places].mean(axis=1) - drawn[:, other_places].mean(axis=1) - difference
    deviations = of_examples + (ours.deviations - theirs.deviations)
    parts = [(float(of_examples.var()), len(labels)), (ours.variance, len(places)), (theirs.variance, len(other_places))]
    deviations *= _students_factors(_degrees_of_freedom(parts), draws, random)
    differences = difference + deviations
    low, high = np.quantile(differences, [LEVEL / 2, 1 - LEVEL / 2])
    one_sided = (1 + min((differences <= 0).sum(), (differences >= 0).sum())) / (1 + draws)
    margin, reserve = np.quantile(np.abs(deviations - np.median(deviations)), [1 - LEVEL, 2 * POWER - 1])
    return Comparison(
        first=Mean.of(observed[places]),
        second=Mean.of(observed[other_places]),
        difference=difference,
        low=float(low),
        high=float(high),
        p_value=float(min(1.0, 2 * one_sided)),
        detectable=float(margin + reserve),
        seeds=(len(first), len(second)),
        examples=len(labels),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for there being several, one a task: claims at 0.05 are then all right 19 times out of 20."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


@dataclass(frozen=True)
class _Seeds:
    """What the choice of seeds makes of a model's mean."""

    mean: float
    variance: float
    """Of the mean over this many seeds, beyond what chance on single examples explains."""
    deviations: Floats
    """(draws,) of the mean, with that variance."""

    @classmethod
    def of(cls, observed: Floats, drawn: Floats, places: NDArray[np.int64], runs: NDArray[Any], seed: int) -> _Seeds:
        values, draws, seeds = observed[places], len(drawn), len(places)
        mean = float(values.mean())
        if seeds == 1 or not values.var():
            return cls(mean, 0.0, np.zeros(draws))
        total = values.var(ddof=1) / seeds
        variance = max(0.0, total - _noise_of_examples(drawn[:, places]) / seeds)
        # keyed by what was predicted, so that neither the models' order nor the seeds' matters
        key = int.from_bytes(blake2b(np.ascontiguousarray(runs[places]).tobytes(), digest_size=16).digest(), "little")
        chosen = np.random.default_rng([seed, key]).integers(seeds, size=(draws, seeds))
        deviations = values[chosen].mean(axis=1) - mean
        return cls(mean, float(variance), deviations * np.sqrt(variance / (values.var() / seeds)))


def _distinct_runs(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """The different rows of both, in an order of their own, and where each model's seeds are among them."""
    kind = np.result_type(first, second)
    keys = [[np.ascontiguousarray(row, dtype=kind).tobytes() for row in model] for model in (first, second)]
    rows = dict(zip(keys[0] + keys[1], [*first, *second], strict=True))
    order = {key: place for place, key in enumerate(sorted(rows))}
    return np.stack([rows[key] for key in order]), [np.array(sorted(order[key] for key in side)) for side in keys]


def _redrawn(runs: NDArray[Any], labels: NDArray[Any], metric: Metric, draws: int, random: np.random.Generator) -> Floats:
    """(draws, runs) the metric on examples drawn with replacement."""
    examples = len(labels)
    at_once = max(1, CELLS // examples)
    parts = []
    for start in range(0, draws, at_once):
        rows = min(at_once, draws - start)
        # example i of draw d is cell d * examples + i
        cells = random.integers(examples, size=(rows, examples)) + np.arange(rows)[:, None] * examples
        counts = np.bincount(cells.ravel(), minlength=rows * examples).reshape(rows, examples)
        parts.append(metric(runs, labels, counts.astype(np.float64)))
    drawn = np.concatenate(parts)
    if not np.isfinite(drawn).all():
        raise CheckFailed("The metric has no value on some of the drawn examples; give it one for every set of examples.")
    return drawn


def _noise_of_examples(drawn: Floats) -> float:
    """How much of a seed's variance over drawn examples it does not share with the other seeds."""
    covariance = np.cov(drawn, rowvar=False)
    seeds = len(covariance)
    own = np.trace(covariance) / seeds
    return float(own - (covariance.sum() - np.trace(covariance)) / (seeds * (seeds - 1)))


def _degrees_of_freedom(parts: Sequence[tuple[float, int]]) -> float:
    """Welch and Satterthwaite's, of a sum of variances each estimated from so many values; infinite where all are 0."""
    uncertainty = sum(variance**2 / (size - 1) for variance, size in parts if variance > 0 and size > 1)
    return sum(variance for variance, _ in parts) ** 2 / uncertainty if uncertainty else np.inf


def _students_factors(freedom: float, draws: int, random: np.random.Generator) -> Floats:
    """(draws,) what makes Student's t of normally distributed draws."""
    return np.sqrt(freedom / random.chisquare(freedom, draws)) if np.isfinite(freedom) else np.ones(draws)


def _signless_zero(value: float) -> str:
    """One decimal with a proper minus, and none before 0.0."""
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")
