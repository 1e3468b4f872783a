"""Distillation from a recipe to a finished student."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from limbeck.encoders.cost import count_parameters
from limbeck.errors import UserError
from limbeck.recipe import Recipe, plain, read_recipe, validate, write_recipe, yaml_text
from limbeck.text import count, millions
from limbeck.training.assemble import Parts, assemble, check_same_recipe
from limbeck.training.card import model_card
from limbeck.training.export import export_student
from limbeck.training.folder import RunFolder
from limbeck.training.loop import Loop, this_process
from limbeck.training.progress import Reporter
from limbeck.training.reach import freeze_unreachable
from limbeck.training.stage import Plan
from limbeck.training.summary import public_name, summarise
from limbeck.training.trackers import Trackers, check_trackers


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    """The run directory."""
    student: Path
    """The student, a Hugging Face folder."""
    summary: dict[str, Any]
    """What RUN/summary.json holds."""


def distill(
    teacher: str | Path,
    *,
    output: str | Path,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Distil a teacher into a smaller student.

    Args:
        teacher: folder (or hub name) of the encoder that is mimicked.
        output: the run directory; the student is written to its folder ``student``.
        resume: "auto" goes on from the newest checkpoint in the run directory, or starts if there is none.
        overwrite: start anew although the directory holds an earlier run.
        quiet: print nothing.
        settings: the other fields of `Recipe`: corpus and student are needed, all others have defaults.

    Raises:
        UserError: a setting or the input is wrong; nothing was written.
        TrainingStopped: a loss or gradient was not finite; checkpoints and log stay.

    Example:
        ``limbeck.distill("teacher/", student="6x384", corpus=["text/"], output="runs/a", steps=1000)``
    """
    recipe = validate(Recipe, {"teacher": teacher, **settings})
    return run_recipe(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)


def _full_signature() -> inspect.Signature:
    """The signature of `distill` with the recipe's fields spelled out, for help() and editors."""
    own = dict(inspect.signature(distill).parameters)
    del own["settings"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = [p.replace(kind=keyword) for p in inspect.signature(Recipe).parameters.values() if p.name != "teacher"]
    return inspect.Signature([own.pop("teacher"), *fields, *own.values()], return_annotation="Run")


distill.__signature__ = _full_signature()  # type: ignore[attr-defined]


def run_recipe(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Carry a recipe out.

    Args:
        recipe: what to do.
        output: the run directory.
        resume: "auto" goes on from the newest checkpoint in the run directory, or starts if there is none; a run that
            is finished is returned as it is.
        overwrite: start anew although the directory holds an earlier run, which is removed once all input was checked.
        quiet: print nothing.

    Raises:
        UserError: something in the recipe or the input is wrong; nothing was written.
        TrainingStopped: a loss or gradient was not finite; checkpoints and log stay.
    """
    here = this_process()
    folder, reporter = RunFolder(output), Reporter(quiet=quiet or not here.is_main_process)
    if resume not in ("never", "auto"):
        raise UserError(f"resume must be never or auto, not {resume!r}.")
    check_trackers(recipe.trackers)
    folder.check_free(resume=resume == "auto", overwrite=overwrite)
    folder.check_holds_none([recipe.teacher, recipe.init, *recipe.corpus, *([recipe.holdout] if recipe.holdout else [])])
    earlier = read_recipe(folder.recipe) if resume == "auto" and folder.recipe.exists() else None
    parts = assemble(recipe, earlier, reporter)
    if earlier is not None:
        check_same_recipe(earlier, parts.recipe, folder)
        if folder.finished:
            reporter.say(f"{folder.path} is finished already.")
            return Run(folder.path, folder.student, folder.read_summary())
    elif here.is_main_process:
        folder.clear()
        folder.write_recipe(write_recipe(parts.recipe))
    if here.is_main_process:
        folder.remove_leftovers()
    here.wait_for_everyone()
    return _train(parts, folder, reporter)


def _train(parts: Parts, folder: RunFolder, reporter: Reporter) -> Run:
    recipe, stage, teacher, student = parts.recipe, parts.stage, parts.teacher, parts.student
    unreached = freeze_unreachable(stage)
    _announce(parts, unreached, reporter)
    if recipe.precision == "bf16":
        teacher.model.bfloat16()
    torch.manual_seed(recipe.seed)
    loop = Loop(stage, Plan.of(recipe), folder, teacher.tokenizer, reporter, Trackers(recipe, folder, reporter))
    loop.resume()
    progress = loop.train()
    summary = summarise(recipe, teacher, student, unreached, progress, folder, str(loop.accelerator.device))
    if loop.accelerator.is_main_process:
        card = model_card(summary, yaml_text(_without_folders(recipe)))
        export_student(folder.student, student.model, teacher.tokenizer, card)
        folder.write_summary(summary)
    reporter.say(f"student written to {folder.student}")
    return Run(folder.path, folder.student, summary)


def _without_folders(recipe: Recipe) -> dict[str, Any]:
    """The recipe as others may read it: files by their names alone, not where they lie on this machine."""
    fields = plain(recipe)
    for name in ("teacher", "init", "holdout"):
        if fields[name] is not None and Path(fields[name]).exists():
            fields[name] = public_name(fields[name])
    return {**fields, "corpus": [public_name(path) for path in recipe.corpus]}


def _announce(parts: Parts, unreached: list[str], reporter: Reporter) -> None:
    recipe = parts.recipe
    for role, encoder in (("teacher", parts.teacher), ("student", parts.student)):
        size = millions(count_parameters(encoder.model).total)
        reporter.fact(role, f"{encoder.shape}, {size} parameters, {encoder.source}")
    reporter.fact("objective", str(recipe.objective))
    size = f"{recipe.batch_size} x {recipe.max_length}"
    reporter.fact(
        "training",
        f"{count(recipe.steps or 0)} steps of {size} tokens, {recipe.micro_batch_size} sequences at a time, {recipe.precision}",
    )
    modules = dict.fromkeys(re.sub(r"(\.dense|\.LayerNorm)?\.(weight|bias)$", "", name) for name in unreached)
    reporter.fact("untrained", f"{len(unreached)} tensors, which this objective cannot reach: {', '.join(modules) or 'none'}")
