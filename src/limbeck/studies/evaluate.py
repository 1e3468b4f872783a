"""Comparing models on tasks: teacher, twin, distilled student and others, frozen or fine-tuned."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from limbeck.encoders.cost import count_parameters
from limbeck.encoders.loading import load_encoder
from limbeck.encoders.students import build_student
from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, read_recipe, validate
from limbeck.report import Measured, Model, Results, plain, show, write_results
from limbeck.studies.frozen import measure_frozen
from limbeck.studies.tuning import Tuning, carry_out, file_name
from limbeck.tasks.finetune import read_predictions
from limbeck.tasks.reading import assignment_of, selecting_splits
from limbeck.tasks.recipe import FineTuning
from limbeck.training.export import export_student
from limbeck.training.folder import RECIPE, RunFolder
from limbeck.training.run import Resume
from limbeck.training.summary import public_name

RUNS, TWINS = "runs", "twins"
PARTS = ("results.json", "results.md", "results.png", RUNS, TWINS)
"""Everything an evaluation writes."""
CARD = "The student as it was before its distillation.\n"


@dataclass(frozen=True)
class Entrant:
    """A model that is evaluated."""

    model: Model
    """Its row."""
    source: str
    """What it is loaded from."""


def evaluate(
    models: Sequence[str],
    *,
    tasks: Sequence[str],
    data: Sequence[str],
    output: str | Path,
    dev: str | None = None,
    finetune: bool = False,
    protocol: str = "small",
    seeds: int = 1,
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
        protocol: the settings of fine-tuning by task and width.
        seeds: how often each is fine-tuned.
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
    names = [part for each in tasks for part in each.split(",") if part]
    given = {"data": list(data), "dev": dev}

    def recipe_of(model: str, task: str) -> FineTuning:
        splits = [] if test else selecting_splits(task)
        return validate(FineTuning, {"model": model, "task": task, "splits": splits, **given})

    for task in names:
        recipe_of(models[0], task)
    _check_free(folder, resume=resume, overwrite=overwrite)
    with RunFolder(folder).locked():
        entrants = list_entrants(models, folder / TWINS)
        cells = [(entrant.model.name, recipe_of(entrant.source, task)) for task in names for entrant in entrants]
        measured = [
            measure_frozen(name, recipe, label_map, reporter) for name, recipe in cells if not finetune or recipe.task == "stsb"
        ]
        if finetune:
            tunings = [Tuning.of(name, recipe, protocol, folder / RUNS, seeds) for name, recipe in cells]
            carry_out(tunings, jobs, reporter, keep_models=keep_models)
            measured += [_measured(tuning) for tuning in tunings]
        settings = {"protocol": protocol if finetune else None, **given}
        results = Results(tuple(entrant.model for entrant in entrants), tuple(measured), settings)
        write_results(results, folder, reporter.say)
    if not quiet:
        show(results, Console(highlight=False))
    return plain(results)


def list_entrants(models: Sequence[str], twins: Path) -> list[Entrant]:
    """The rows that the named models make, the twins and teachers of distilled students among them.

    Args:
        models: each a model or NAME=MODEL.
        twins: where students as they were before distillation are written.

    Raises:
        UserError: a model cannot be loaded, or two have the same name.
    """
    named = [_named(text) for text in models]
    if repeated := sorted({name for name, _ in named if [other for other, _ in named].count(name) > 1}):
        raise UserError(f"Two models are called {', '.join(repeated)}; tell them apart as NAME=MODEL.")
    distilled = {name: recipe for name, source in named if (recipe := _distillation(source)) is not None}
    teachers = {_place(recipe.teacher): public_name(recipe.teacher) for recipe in distilled.values()}
    teachers |= {_place(source): name for name, source in named if _place(source) in teachers}
    entrants = [_entrant(name, "teacher", place) for place, name in teachers.items()]
    for name, source in named:
        if name in distilled:
            recipe = distilled[name]
            twin = f"{name} (twin)"
            place = _twin(recipe, twins / file_name(name))
            entrants.append(_entrant(twin, "twin", str(place), twin_of=name))
            entrants.append(_entrant(name, "distilled", source, taught_by=teachers[_place(recipe.teacher)]))
        elif _place(source) not in teachers:
            entrants.append(_entrant(name, "comparator", source))
    return entrants


def _named(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    return (name, source) if equals and name and source and "/" not in name else (public_name(text), text)


def _distillation(source: str) -> Recipe | None:
    """The recipe of a distillation's run; None if it is none."""
    file = Path(source).expanduser() / RECIPE
    if not file.is_file():
        return None
    fields = read_recipe(file)
    return validate(Recipe, fields) if "teacher" in fields else None


def _place(source: str) -> str:
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def _entrant(name: str, role: Any, source: str, **relations: str) -> Entrant:
    encoder = load_encoder(source)
    parameters = count_parameters(encoder.model)
    size = parameters.embedding + parameters.transformer
    return Entrant(Model(name, role, f"{encoder.shape.layers}x{encoder.shape.width}", size, **relations), source)


def _twin(recipe: Recipe, folder: Path) -> Path:
    """The student of a run as it was before distillation, written to a folder."""
    if not folder.is_dir():
        teacher = load_encoder(recipe.teacher)
        heads = recipe.objective.equal_heads
        twin = build_student(teacher, recipe.shape, recipe.init, recipe.seed, teacher_heads=heads)
        export_student(folder, twin.model, twin.tokenizer, CARD)
    return folder


def _measured(tuning: Tuning) -> Measured:
    """What the runs of all seeds came to, on the split that selects."""
    recipe, places = tuning.recipe, tuning.places
    assignment = assignment_of(recipe, load_encoder(recipe.model).tokenizer)
    split = assignment.selecting
    compared = [assignment.compared(split, read_predictions(place, split)) for place in places]
    first = compared[0]
    if first is None:
        raise UserError(f"{recipe.task} has no labels on {split}, so nothing can be compared; name a labelled dev.")
    return Measured(
        model=tuning.name,
        task=assignment.name,
        metric=first.metric,
        scores=tuple(RunFolder(place).read_summary()["scores"][split] for place in places),
        seeds=tuple(range(len(places))),
        predictions=np.stack([each.predictions for each in compared if each is not None]),
        labels=first.labels,
        weighted=first.weighted,
    )


def _check_free(folder: Path, *, resume: str, overwrite: bool) -> None:
    """Refuse a directory whose content is not to be touched; of one to overwrite, what an evaluation wrote is removed.

    Raises:
        UserError: it holds anything and is neither to be resumed nor overwritten, or something else than results.
    """
    RunFolder(folder).check_usable()
    found = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".")) if folder.is_dir() else []
    if resume == "auto" and overwrite:
        raise UserError("--resume auto goes on with an evaluation and --overwrite begins it anew; give one of them.")
    if found and not (resume == "auto" or overwrite):
        raise UserError(f"{folder} is not empty; name another directory, or add --resume auto or --overwrite.")
    if strange := [name for name in found if name not in PARTS]:
        raise UserError(f"{folder} holds {', '.join(strange[:3])}, which no evaluation writes; name another directory.")
    if overwrite:
        for name in found:
            shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
