"""Comparing models on tasks: teacher, twin, distilled student and others, frozen or fine-tuned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from limbeck._settings import flag, no_duplicates
from limbeck.encoders.folders import read_json
from limbeck.encoders.loading import load_encoder
from limbeck.errors import UserError
from limbeck.progress import Reporter, printer
from limbeck.recipe import validate
from limbeck.report import Measured, Results, plain, show, write_results
from limbeck.report.write import JSON, PLOT, TABLE
from limbeck.studies.entrants import Entrant, list_entrants, named_source, write_twin
from limbeck.studies.frozen import measure_frozen, measure_zero_shot
from limbeck.studies.tuning import Tuning, finetune_all
from limbeck.tasks.finetune import read_predictions
from limbeck.tasks.folders import squeezed
from limbeck.tasks.probes import check_scikit_learn
from limbeck.tasks.protocols import settings
from limbeck.tasks.reading import asks_questions, assignment_of, read_data, read_questions_to_evaluate, selecting_splits
from limbeck.tasks.recipe import FineTuning
from limbeck.tasks.squad import QUESTIONS
from limbeck.tasks.task import TaskData
from limbeck.text import listed
from limbeck.training.folder import RunFolder
from limbeck.training.run import Resume
from limbeck.training.summary import public_name

RUNS, TWINS = "runs", "twins"
PARTS = (JSON, TABLE, PLOT, RUNS, TWINS)
"""Everything an evaluation writes."""
UNPROBED = ("stsb", *QUESTIONS)
"""Tasks that an encoder without a head is measured on without a probe, or not at all."""
PROTOCOL = "small"
"""By which models are fine-tuned if none is named."""


def evaluate(
    models: str | Path | Sequence[str | Path],
    *,
    tasks: str | Sequence[str],
    data: str | Path | Sequence[str | Path],
    output: str | Path,
    dev: str | float | None = None,
    finetune: bool = False,
    protocol: str | Path | None = None,
    seeds: int = 1,
    examples: int | None = None,
    test: bool = False,
    jobs: int = 1,
    keep_models: bool = False,
    label_map: Mapping[str, str] | None = None,
    resume: Resume = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Compare models on tasks, and write what came of it to results.json, results.md and results.png.

    Of a distillation's run its student is evaluated, and beside it its teacher and its twin: the student as it was before
    distillation. Any other model is a comparator.

    Args:
        models: runs, folders or hub names, each also as NAME=MODEL.
        tasks: names as for `limbeck.finetune`.
        data: the folder of their files.
        output: the directory of the results; the runs of fine-tuning are in it, too.
        dev: as in `FineTuning`.
        finetune: fine-tune every model on every task; otherwise frozen embeddings are probed.
        protocol: the settings of fine-tuning by task and width; "small" if none is named.
        seeds: how often each is fine-tuned.
        examples: training examples at most, of probes as of fine-tuning, as in `FineTuning`.
        test: also predict the tasks' test files, in their leaderboard's format where there is one.
        jobs: runs of fine-tuning at a time, which share the processor's cores; on a processor one core a run is used best.
        keep_models: keep the fine-tuned weights, too.
        label_map: which label each output of a model stands for that was fine-tuned elsewhere, where its names do not tell.
        resume: "auto" goes on where an earlier call ended.
        overwrite: start anew although the directory holds earlier results.
        quiet: print nothing.

    Returns:
        What results.json holds.

    Raises:
        UserError: a model or a task's data cannot be read, or the directory is not free.
    """
    reporter, folder = Reporter(quiet=quiet), Path(output)
    models, tasks, data = ([str(each) for each in _several(values)] for values in (models, tasks, data))
    names = _task_names(tasks)
    only_tuned = {"protocol": protocol is not None, "seeds": seeds > 1, "test": test, "keep_models": keep_models}
    _check_settings(models, finetune=finetune, label_map=label_map, counts={"seeds": seeds, "jobs": jobs}, only_tuned=only_tuned)
    protocol = PROTOCOL if protocol is None else protocol
    given = {"data": data, "dev": dev, "examples": examples}

    def recipe_of(model: str, task: str) -> FineTuning:
        splits = [] if test else selecting_splits(task)
        return validate(FineTuning, {"model": model, "task": task, "splits": splits, **given})

    _check_free(folder, resume=resume, overwrite=overwrite)
    RunFolder(folder).check_holds_none([*(named_source(model)[1] for model in models), *data])
    for task in names:
        _check_task(recipe_of(models[0], task), protocol, finetune=finetune)
    entrants = list_entrants(models, folder / TWINS)
    if resume == "auto":
        _check_nothing_lost(folder, [entrant.model.name for entrant in entrants], names, protocol if finetune else None)
    if label_map:
        _check_label_map(label_map, entrants)
    if not finetune and not all(entrant.outputs for entrant in entrants) and any(task not in UNPROBED for task in names):
        check_scikit_learn()
    with RunFolder(folder).locked():
        if overwrite:
            _clear(folder)
        for entrant in entrants:
            if entrant.distilled_by is not None:
                write_twin(entrant.distilled_by, Path(entrant.source))
        cells = [(entrant.model.name, recipe_of(entrant.source, task)) for task in names for entrant in entrants]
        if finetune:
            measured = [measure_zero_shot(name, recipe) for name, recipe in cells if recipe.task == "stsb"]
            tunings = [Tuning.of(name, recipe, protocol, folder / RUNS, seeds) for name, recipe in cells]
            finetune_all(tunings, jobs, reporter, keep_models=keep_models)
            measured += [measured_of(tuning) for tuning in tunings]
        else:
            measured, outputs = [], {entrant.model.name: entrant.outputs for entrant in entrants}
            for number, (name, recipe) in enumerate(cells, start=1):
                reporter.say(f"measuring {number} of {len(cells)}: {name} on {recipe.task}")
                with _about(name, recipe.task):
                    measured.append(measure_frozen(name, recipe, label_map or {}, reporter, asked=bool(outputs[name])))
        said = {
            "protocol": public_name(str(protocol)) if finetune else None,
            "data": [public_name(place) for place in data],
            "dev": public_name(dev) if isinstance(dev, str) else dev,
            "examples": examples,
            "tasks": names,
        }
        results = Results(tuple(entrant.model for entrant in entrants), tuple(measured), said)
        write_results(results, folder, reporter.say)
    if not quiet:
        show(results, printer())
    return plain(results)


def _several(given: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [given] if isinstance(given, str | Path) else given


def _task_names(tasks: Sequence[str]) -> list[str]:
    """The tasks, each in its one spelling."""
    names = [squeezed(part) or part for each in tasks for part in each.split(",") if part.strip()]
    if not names:
        raise UserError("No task was named; give tasks such as cola,sst2,mrpc,rte,stsb.")
    try:
        return no_duplicates(names)
    except ValueError as error:
        raise UserError(f"tasks: {error}.") from None


def _check_settings(
    models: Sequence[str],
    *,
    finetune: bool,
    label_map: Mapping[str, str] | None,
    counts: Mapping[str, int],
    only_tuned: Mapping[str, bool],
) -> None:
    """Refuse settings that make no sense, or none together."""
    if not models:
        raise UserError("No model was named; give runs, folders or hub names.")
    for name, number in counts.items():
        if type(number) is not int or number < 1:
            raise UserError(f"{name} is how many, a whole number from 1 on, not {number!r}.")
    if not finetune and (idle := [name for name, is_given in only_tuned.items() if is_given]):
        raise UserError(f"{', '.join(map(flag, idle))}: only fine-tuning has that; add --finetune, or leave it out.")
    if finetune and label_map:
        raise UserError("A label map is for models that are asked as they are, not for --finetune; leave one of the two out.")


def _check_task(recipe: FineTuning, protocol: str | Path, *, finetune: bool) -> None:
    """Read a task's data and see that models can be compared on it, before anything is computed or removed."""
    if finetune:
        settings(protocol, recipe.task, width=1)
    elif asks_questions(recipe):
        read_questions_to_evaluate(recipe)
        return
    data = read_data(recipe, to_train=finetune)
    if isinstance(data, TaskData):
        if finetune:
            data.split("train")
        data.targets(data.task.dev)


def _check_label_map(label_map: Mapping[str, str], entrants: Sequence[Entrant]) -> None:
    headed = [entrant.outputs for entrant in entrants if entrant.outputs]
    if not any(label_map.keys() <= {*outputs} for outputs in headed):
        there = "; ".join(listed(outputs) for outputs in headed) or "none, as no model has a head"
        raise UserError(f"No model has outputs called {listed([*label_map])}, which the label map names; there are {there}.")


def measured_of(tuning: Tuning) -> Measured:
    """What the runs of all seeds came to, on the split that selects."""
    recipe, places = tuning.recipe, tuning.places
    assignment = assignment_of(recipe, load_encoder(recipe.model).tokenizer)
    split = assignment.selecting
    compared = [assignment.compared(split, read_predictions(place, split)) for place in places]
    first, summaries = compared[0], [RunFolder(place).read_summary() for place in places]
    if first is None:
        raise UserError(f"{recipe.task} has no labels on {split}, so nothing can be compared; name a labelled dev.")
    return Measured(
        model=tuning.name,
        task=assignment.name,
        metric=first.metric,
        scores=tuple(summary["scores"][split] for summary in summaries),
        seeds=tuple(range(len(places))),
        predictions=np.stack([each.predictions for each in compared if each is not None]),
        labels=first.labels,
        weighted=first.weighted,
        precisions=tuple(summary["training"]["precision"] for summary in summaries),
    )


def _check_free(folder: Path, *, resume: str, overwrite: bool) -> None:
    """Refuse a directory whose content is not to be touched.

    Raises:
        UserError: it holds anything and is neither to be resumed nor overwritten, or something else than results.
    """
    if resume not in ("never", "auto"):
        raise UserError(f"resume must be never or auto, not {resume!r}.")
    RunFolder(folder).check_usable()
    found = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".")) if folder.is_dir() else []
    if resume == "auto" and overwrite:
        raise UserError("--resume auto goes on with an evaluation and --overwrite begins it anew; give one of them.")
    if found and not (resume == "auto" or overwrite):
        raise UserError(f"{folder} is not empty; name another directory, or add --resume auto or --overwrite.")
    if strange := [name for name in found if name not in PARTS]:
        raise UserError(f"{folder} holds {', '.join(strange[:3])}, which no evaluation writes; name another directory.")


def _check_nothing_lost(folder: Path, models: Sequence[str], tasks: Sequence[str], protocol: str | Path | None) -> None:
    """Refuse to go on where the table would no longer hold what it holds.

    Raises:
        UserError: naming the models or tasks that would be missing, or the other way of measuring.
    """
    if not (folder / JSON).is_file():
        return
    results = read_json(folder / JSON)
    try:
        said = results["settings"]
        before, measured = [model["name"] for model in results["models"]], said.get("tasks", [])
        how = said["protocol"]
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"{folder / JSON} is not what an evaluation wrote; remove it, or name another directory.") from None
    missing = [*(name for name in before if name not in models), *(task for task in measured if task not in tasks)]
    if missing:
        raise UserError(
            f"{folder} holds results of {listed(missing)}, which this evaluation leaves out; name them as well, or another "
            "directory."
        )
    now = None if protocol is None else public_name(str(protocol))
    if how != now:
        ways = [f"fine-tuned by {way}" if way else "measured frozen" for way in (how, now)]
        raise UserError(f"{folder} holds models {ways[0]}, not {ways[1]}; name another directory.")


@contextmanager
def _about(model: str, task: str | None) -> Iterator[None]:
    """Say of which row and task something is wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{model} on {task}: {error}") from error


def _clear(folder: Path) -> None:
    """Remove what an evaluation wrote."""
    for part in PARTS:
        place = folder / part
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
