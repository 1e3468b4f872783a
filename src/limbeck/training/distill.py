"""Distillation from a recipe to a finished student."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import broadcast_object_list

from limbeck.data.batches import PackedSource, Special
from limbeck.data.text import Unit, hold_out, read_units, text_files
from limbeck.data.tokens import tokenize
from limbeck.encoders.cost import count_parameters
from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.encoders.students import build_student, chosen_layers
from limbeck.errors import UserError
from limbeck.objectives import AnyObjective
from limbeck.recipe import Recipe, holdout_share, plain, read_recipe, validate, write_recipe
from limbeck.text import count, millions
from limbeck.training.card import model_card
from limbeck.training.export import export_student
from limbeck.training.folder import RunFolder
from limbeck.training.loop import Loop, this_process
from limbeck.training.precision import faster_precision
from limbeck.training.progress import Reporter
from limbeck.training.reach import freeze_unreachable
from limbeck.training.stage import Plan, Stage, build_stage, set_dropout
from limbeck.training.summary import summarise


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
    folder.check_free(resume=resume == "auto", overwrite=overwrite)
    earlier = read_recipe(folder.recipe) if resume == "auto" and folder.recipe.exists() else None
    teacher = load_encoder(recipe.teacher)
    student, objective = _student_and_objective(recipe, teacher)
    source, holdout = _sources(recipe, teacher, reporter)
    stage = build_stage(student.model, teacher.model, objective, source, holdout).to(here.device)
    set_dropout(student.model, recipe.dropout)
    resolved = _resolve(recipe, objective, stage, teacher, student, earlier)
    if earlier is not None:
        _check_same_recipe(earlier, resolved, folder)
        if folder.finished:
            reporter.say(f"{folder.path} is finished already.")
            return Run(folder.path, folder.student, folder.read_summary())
    elif here.is_main_process:
        folder.clear()
        folder.write_recipe(write_recipe(resolved))
    if here.is_main_process:
        folder.remove_leftovers()
    here.wait_for_everyone()
    return _train(resolved, stage, teacher, student, folder, reporter)


def _student_and_objective(recipe: Recipe, teacher: Encoder) -> tuple[Encoder, AnyObjective]:
    student = build_student(teacher, recipe.shape, recipe.init, recipe.seed, teacher_heads=recipe.objective.equal_heads)
    positions = min(teacher.shape.positions, student.shape.positions)
    if recipe.max_length > positions:
        raise UserError(f"A length of {recipe.max_length} was asked for, but the model has only {positions} positions.")
    return student, recipe.objective.resolve(teacher.shape, student.shape)


def _sources(recipe: Recipe, teacher: Encoder, reporter: Reporter) -> tuple[PackedSource, PackedSource | None]:
    """The training text and the held-out text, packed into blocks."""
    units: Iterable[Unit] = read_units(text_files(recipe.corpus))
    held: Iterable[Unit] = []
    share = None if recipe.holdout is None else holdout_share(recipe.holdout)
    if share is not None:
        units, held = hold_out(units, share)
    elif recipe.holdout is not None:
        held = read_units(text_files([recipe.holdout]))
    source = _pack(units, recipe, teacher)
    holdout = None if recipe.holdout is None else _pack(held, recipe, teacher)
    reporter.say(
        f"{count(source.tokens)} tokens of text in {count(len(source))} blocks of {recipe.max_length}"
        f" ({source.tokens / (len(source) * recipe.max_length):.1%} real)"
        + ("" if holdout is None else f", {count(holdout.tokens)} tokens held out")
        + ("" if not source.empty_units else f"; {source.empty_units} lines without a token were dropped")
    )
    return source, holdout


def _pack(units: Iterable[Unit], recipe: Recipe, teacher: Encoder) -> PackedSource:
    tokens = tokenize(units, teacher.tokenizer)
    return PackedSource(tokens, Special.of(teacher.tokenizer), recipe.max_length, recipe.seed)


def _resolve(
    recipe: Recipe, objective: AnyObjective, stage: Stage, teacher: Encoder, student: Encoder, earlier: Mapping[str, Any] | None
) -> Recipe:
    """The recipe with every decision made; probed ones are taken from an earlier part of the same run."""
    processes = this_process().num_processes
    per_step = recipe.batch_size * stage.source.tokens / len(stage.source)
    if recipe.tokens is not None:
        steps = math.ceil(recipe.tokens / per_step)
    else:
        steps = recipe.steps or math.ceil((recipe.epochs or 1) * len(stage.source) / recipe.batch_size)
    decided = None if earlier is None else validate(Recipe, earlier)
    precision, micro_batch_size = recipe.precision, recipe.micro_batch_size
    if precision == "auto":
        # All processes go by the first one's clock.
        precision = decided.precision if decided else broadcast_object_list([faster_precision(stage)])[0]
    if micro_batch_size == "auto":
        micro_batch_size = decided.micro_batch_size if decided else max(1, recipe.batch_size // processes)
    init = recipe.init
    if init == "layers":
        init = "layers:" + ",".join(map(str, chosen_layers(init, teacher.shape.layers, student.shape.layers)))
    return replace(
        recipe,
        student=str(student.shape),
        objective=objective,
        init=init,
        steps=steps,
        tokens=None,
        epochs=None,
        precision=precision,
        micro_batch_size=micro_batch_size,
    )


def _check_same_recipe(earlier: Mapping[str, Any], resolved: Recipe, folder: RunFolder) -> None:
    now = plain(resolved)
    then = plain(validate(Recipe, earlier))
    changed = [f"{name} ({then[name]} then, {now[name]} now)" for name in now if now[name] != then[name]]
    if changed:
        raise UserError(
            f"{folder.path} holds a run with another recipe: {'; '.join(changed)}. Resume it with the recipe it began "
            "with, or name another directory."
        )


def _train(recipe: Recipe, stage: Stage, teacher: Encoder, student: Encoder, folder: RunFolder, reporter: Reporter) -> Run:
    unreached = freeze_unreachable(stage)
    _announce(recipe, teacher, student, unreached, reporter)
    if recipe.precision == "bf16":
        teacher.model.bfloat16()
    torch.manual_seed(recipe.seed)
    loop = Loop(stage, Plan.of(recipe), folder, teacher.tokenizer, reporter)
    loop.resume()
    progress = loop.train()
    summary = summarise(recipe, teacher, student, unreached, progress, folder, str(loop.accelerator.device))
    if loop.accelerator.is_main_process:
        export_student(folder.student, student.model, teacher.tokenizer, model_card(summary, write_recipe(recipe)))
        folder.write_summary(summary)
    reporter.say(f"student written to {folder.student}")
    return Run(folder.path, folder.student, summary)


def _announce(recipe: Recipe, teacher: Encoder, student: Encoder, unreached: list[str], reporter: Reporter) -> None:
    for role, encoder in (("teacher", teacher), ("student", student)):
        size = millions(count_parameters(encoder.model).total)
        reporter.say(f"{role}: {encoder.shape}, {size} parameters, {encoder.source}")
    reporter.say(f"objective: {recipe.objective}")
    reporter.say(
        f"training: {count(recipe.steps or 0)} steps of {recipe.batch_size} x {recipe.max_length} tokens in "
        f"{recipe.micro_batch_size} x {recipe.max_length}, {recipe.precision}"
    )
    modules = dict.fromkeys(name.rpartition(".")[0] for name in unreached)
    reporter.say(
        f"beyond the objective's reach, so {len(unreached)} tensors keep their first weights: {', '.join(modules) or 'none'}"
    )
