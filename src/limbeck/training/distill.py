"""Distillation from a recipe to a finished student."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

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
        UserError: something in the recipe or the input is wrong, or memory does not suffice; nothing was written.
        TrainingStopped: a loss or gradient was not finite; checkpoints and log stay.
        Interrupted: an end was asked for; a checkpoint was written.
    """
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
