"""Distillation from a recipe to a finished student."""

from __future__ import annotations

import inspect
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
from limbeck.training.checkpoint import list_checkpoints
from limbeck.training.export import export_student
from limbeck.training.folder import RunFolder
from limbeck.training.forecast import Forecast, make_forecast, modules_of
from limbeck.training.loop import Loop, this_process
from limbeck.training.memory import Memory, check_memory, measure_memory
from limbeck.training.progress import Reporter
from limbeck.training.reach import freeze_unreachable
from limbeck.training.stage import Plan
from limbeck.training.summary import public_name, summarise


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
    parts, resumes = _check(recipe, folder, reporter, resume=resume, overwrite=overwrite)
    if resumes and folder.finished:
        reporter.say(f"{folder.path} is finished already.")
        return Run(folder.path, folder.student, folder.read_summary())
    unreached, _ = _make_ready(parts)
    if here.is_main_process:
        if not resumes:
            folder.clear()
            folder.write_recipe(write_recipe(parts.recipe))
        folder.remove_leftovers()
    here.wait_for_everyone()
    return _train(parts, unreached, folder, reporter)


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
    folder, reporter = RunFolder(output), Reporter(quiet=quiet or not this_process().is_main_process)
    parts, resumes = _check(recipe, folder, reporter, resume=resume, overwrite=overwrite)
    unreached, memory = _make_ready(parts)
    return make_forecast(parts, unreached, memory, done=_steps_done(folder, parts.recipe) if resumes else 0)


def _steps_done(folder: RunFolder, resolved: Recipe) -> int:
    """The step that a resumed run begins after."""
    if folder.finished:
        return resolved.steps or 0
    return max((int(checkpoint.name.removeprefix("step-")) for checkpoint in list_checkpoints(folder.checkpoints)), default=0)


def _check(recipe: Recipe, folder: RunFolder, reporter: Reporter, *, resume: str, overwrite: bool) -> tuple[Parts, bool]:
    """The parts of a run that may begin, and whether it goes on with an earlier one."""
    if resume not in ("never", "auto"):
        raise UserError(f"resume must be never or auto, not {resume!r}.")
    folder.check_free(resume=resume == "auto", overwrite=overwrite)
    folder.check_holds_none([recipe.teacher, recipe.init, *recipe.corpus, *([recipe.holdout] if recipe.holdout else [])])
    earlier = read_recipe(folder.recipe) if resume == "auto" and folder.recipe.exists() else None
    parts = assemble(recipe, earlier, reporter)
    if earlier is not None:
        check_same_recipe(earlier, parts.recipe, folder)
    return parts, earlier is not None


def _make_ready(parts: Parts) -> tuple[list[str], Memory]:
    """Freeze what is out of reach, bring the teacher into the run's precision, and check that memory suffices."""
    recipe, stage = parts.recipe, parts.stage
    unreached = freeze_unreachable(stage)
    if recipe.precision == "bf16":
        parts.teacher.model.bfloat16()
    plan = Plan.of(recipe)
    memory = measure_memory(stage, recipe.max_length, plan.precision)
    share = plan.batch_size // this_process().num_processes
    check_memory(memory, min(plan.micro_batch_size, share), share)
    return unreached, memory


def _train(parts: Parts, unreached: list[str], folder: RunFolder, reporter: Reporter) -> Run:
    recipe, stage, teacher, student = parts.recipe, parts.stage, parts.teacher, parts.student
    _announce(parts, unreached, reporter)
    torch.manual_seed(recipe.seed)
    loop = Loop(stage, Plan.of(recipe), folder, teacher.tokenizer, reporter)
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
    modules = ", ".join(modules_of(unreached)) or "none"
    reporter.fact("untrained", f"{len(unreached)} tensors, which this objective cannot reach: {modules}")
