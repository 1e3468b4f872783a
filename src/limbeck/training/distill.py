"""Distillation from a recipe to a finished student."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from limbeck._settings import spelled_signature
from limbeck.data.corpora import saved_datasets
from limbeck.recipe import Recipe, validate
from limbeck.training.assemble import assemble, names_input
from limbeck.training.checkpoint import Progress
from limbeck.training.distillation import DistillationParts
from limbeck.training.forecast import Forecast, make_forecast
from limbeck.training.isolation import isolated
from limbeck.training.loop import this_process
from limbeck.training.run import Job, Run, carry_out, check, make_ready, opened, standing
from limbeck.training.stage import Plan


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
        CheckFailed: a loss or gradient was not finite, or the disk is full; checkpoints and log stay.
        Interrupted: Ctrl-C or SIGTERM came; the run was saved, and resume="auto" goes on with it.

    Example:
        ``limbeck.distill("teacher/", student="6x384", corpus=["text/"], output="runs/a", steps=1000)``
    """
    for name in {"corpus", "holdout"} & settings.keys():
        settings[name] = saved_datasets(settings[name])
    recipe = validate(Recipe, {"teacher": teacher, **settings})
    return run_recipe(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)


distill.__signature__ = spelled_signature(distill, Recipe, "teacher")  # type: ignore[attr-defined]


def run_recipe(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Carry a recipe out; the other arguments and the errors are those of `distill`."""
    return carry_out(_job(recipe), output, resume=resume, overwrite=overwrite, quiet=quiet)


def forecast(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> Forecast:
    """Say what `run_recipe` with the same arguments would do and need; nothing is trained or written.

    Raises:
        UserError: as `run_recipe` would.
    """
    job = _job(recipe)
    folder, reporter = opened(job, output, quiet=quiet)
    with isolated(this_process().device):
        parts, begun = check(job, folder, reporter, resume=resume, overwrite=overwrite)
        assert isinstance(parts, DistillationParts)
        unreached, memory = make_ready(parts, folder)
        plan, done = Plan.of(parts.recipe, begun or parts.recipe), Progress()
        if begun is not None:
            stands = standing(job, parts, begun, folder, reporter)
            done = Progress(plan.steps, plan.examples) if stands.summary else stands.progress
        return make_forecast(parts, plan, unreached, memory, done)


def _job(recipe: Recipe) -> Job[Recipe]:
    named = [recipe.teacher, recipe.init, *recipe.corpus, *([recipe.holdout] if recipe.holdout else [])]
    return Job(recipe, named, assemble, names_input)
