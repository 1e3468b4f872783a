"""Distillation from a recipe to a finished student."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from limbeck import recipes
from limbeck._settings import spelled_signature
from limbeck.data.corpora import saved_datasets
from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, validate
from limbeck.stages import StagedRecipe, override, recipe_of
from limbeck.training.assemble import distillation_job
from limbeck.training.checkpoint import Progress
from limbeck.training.distillation import DistillationParts
from limbeck.training.folder import RunFolder
from limbeck.training.forecast import Forecast, make_forecast
from limbeck.training.isolation import isolated
from limbeck.training.loop import this_process
from limbeck.training.run import Run, carry_out, check, make_ready, may_shrink, opened, standing
from limbeck.training.siblings import Sibling, look_at_siblings, run_siblings
from limbeck.training.stage import Plan
from limbeck.training.staged import Look, look_at_stages, run_stages, with_assistants

ALONE = ""
"""What stands for the name of the one stage of a recipe without stages."""


def distill(
    teacher: str | Path,
    *,
    output: str | Path,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Distil a teacher into a smaller student, or into several that learn from one pass of the teacher.

    Args:
        teacher: folder (or hub name) of the encoder that is mimicked.
        output: the run directory; the student is written to its folder ``student``, several of them to ``students``.
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
    recipe = validate(Recipe, {"teacher": teacher, **_on_disk(settings)})
    return run_recipe(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)


distill.__signature__ = spelled_signature(distill, Recipe, "teacher")  # type: ignore[attr-defined]


def run(
    recipe: str | Path | Mapping[str, Any],
    *,
    output: str | Path,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Carry out any recipe, of one stage or several.

    Args:
        recipe: a recipe file, the name of a recipe that ships with Limbeck, or the fields of one.
        output: the run directory; of a recipe with stages each stage is a run in its folder ``stages``.
        resume: as in `distill`.
        overwrite: as in `distill`.
        quiet: print nothing.
        settings: fields that count instead of the recipe's, as in `limbeck.stages.override`.

    Raises:
        UserError: there is no such recipe; otherwise as `distill`.
        CheckFailed: as `distill`.
        Interrupted: as `distill`.

    Example:
        ``limbeck.run("minilm-6x384-assistant", corpus=["text/"], output="runs/a")``
    """
    values = _on_disk(recipe if isinstance(recipe, Mapping) else recipes.find(recipe))
    return run_recipe(recipe_of(override(values, _on_disk(settings))), output, resume=resume, overwrite=overwrite, quiet=quiet)


def _on_disk(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with data sets in memory replaced by the folders that they are saved to."""
    return {name: saved_datasets(value) if name in ("corpus", "holdout") else value for name, value in values.items()}


def run_recipe(
    recipe: Recipe | StagedRecipe,
    output: str | Path,
    *,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Carry a recipe out; the other arguments and the errors are those of `distill`."""
    recipe = _planned(recipe, output, quiet=quiet)
    if isinstance(recipe, StagedRecipe):
        return run_stages(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)
    if len(recipe.students) > 1:
        return run_siblings(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)
    return carry_out(distillation_job(recipe), output, resume=resume, overwrite=overwrite, quiet=quiet)


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
        UserError: as `run_recipe` would, or the recipe has several stages or students (`forecasts`).
    """
    told = forecasts(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)
    if list(told) != [ALONE]:
        raise UserError(f"The recipe has the parts {', '.join(told)}; use forecasts, which tells of each.")
    return told[ALONE]


def forecasts(
    recipe: Recipe | StagedRecipe,
    output: str | Path,
    *,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Forecast]:
    """Say of each stage or student what `run_recipe` with the same arguments would do and need; nothing is trained or written.

    Returns:
        Stage's name or student's shape -> its forecast; a recipe of one student without stages has one, under `ALONE`. Of
        several students the first one's includes the teacher's pass, and the others' do not.

    Raises:
        UserError: as `run_recipe` would.
    """
    recipe = _planned(recipe, output, quiet=quiet)
    if isinstance(recipe, StagedRecipe):
        return look_at_stages(recipe, output, _forecast, resume=resume, overwrite=overwrite, quiet=quiet)
    if len(recipe.students) > 1:
        return look_at_siblings(recipe, output, _forecast, resume=resume, overwrite=overwrite, quiet=quiet)
    job = distillation_job(recipe)
    folder, reporter = opened(job, output, quiet=quiet)
    with isolated(this_process().device):
        parts, begun = check(job, folder, reporter, resume=resume, overwrite=overwrite)
        assert isinstance(parts, DistillationParts)
        return {ALONE: _forecast(Look(job, parts, begun, folder, reporter))}


def _planned(recipe: Recipe | StagedRecipe, output: str | Path, *, quiet: bool) -> Recipe | StagedRecipe:
    """The recipe with its assistants as stages."""
    RunFolder(output).check_usable()
    reporter = Reporter(quiet=quiet or not this_process().is_main_process)
    return with_assistants(recipe, reporter) if isinstance(recipe, Recipe) else recipe


def _forecast(look: Look | Sibling) -> Forecast:
    look.reporter.say("trying a few steps")
    ready = make_ready(look.parts, look.folder, may_shrink=may_shrink(look.job, look.begun))
    parts = ready.parts
    assert isinstance(parts, DistillationParts)
    plan, done = Plan.of(parts.recipe, look.begun or parts.recipe), Progress()
    if look.begun is not None:
        stands = standing(look.job, parts, look.begun, look.folder, look.reporter)
        done = Progress(plan.steps, plan.examples) if stands.summary else stands.progress
    return make_forecast(parts, plan, ready.unreached, ready.memory, done)
