"""From a recipe to the parts of a run: teacher, student, objective, text, and every "auto" decided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from accelerate.utils import broadcast_object_list

from limbeck.data.batches import PackedSource, Special
from limbeck.data.text import Unit, hold_out, read_units, text_files
from limbeck.data.tokens import tokenize
from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.encoders.students import build_student, chosen_layers
from limbeck.errors import UserError
from limbeck.objectives import AnyObjective
from limbeck.recipe import Recipe, holdout_share
from limbeck.text import count
from limbeck.training.loop import this_process
from limbeck.training.precision import faster_precision
from limbeck.training.progress import Reporter
from limbeck.training.resume import fingerprint, is_folder
from limbeck.training.stage import Stage, build_stage, set_dropout


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    recipe: Recipe
    """Resolved: nothing is left to decide."""
    teacher: Encoder
    student: Encoder
    stage: Stage
    fingerprints: Mapping[str, str]
    """input -> digest of its content."""


def assemble(recipe: Recipe, begun: Recipe | None, reporter: Reporter) -> Parts:
    """Load, read and check all that a recipe names; nothing is written.

    Args:
        recipe: what to do.
        begun: the resolved recipe of the run that is resumed, whose length and probed decisions are taken over.
        reporter: hears what the text amounts to.

    Raises:
        UserError: something in the recipe or the input is wrong.
    """
    teacher = load_encoder(recipe.teacher)
    student, objective = _student_and_objective(recipe, teacher)
    source, holdout = _sources(recipe, teacher, reporter)
    stage = build_stage(student.model, teacher.model, objective, source, holdout).to(this_process().device)
    set_dropout(student.model, recipe.dropout)
    resolved = _resolve(recipe, objective, stage, teacher, student, begun)
    return Parts(resolved, teacher, student, stage, _fingerprints(recipe, stage))


def _fingerprints(recipe: Recipe, stage: Stage) -> dict[str, str]:
    return {
        "teacher": fingerprint(stage.teacher.model),
        "corpus": stage.source.fingerprint,
        **({"init": fingerprint(stage.module.student)} if is_folder(recipe.init) else {}),
        **({} if stage.holdout is None else {"holdout": stage.holdout.fingerprint}),
    }


def _student_and_objective(recipe: Recipe, teacher: Encoder) -> tuple[Encoder, AnyObjective]:
    student = build_student(teacher, recipe.shape, recipe.init, recipe.seed, teacher_heads=recipe.objective.equal_heads)
    positions = min(teacher.shape.positions, student.shape.positions)
    if recipe.max_length > positions:
        raise UserError(f"A length of {recipe.max_length} was asked for, but the model has only {positions} positions.")
    return student, recipe.objective.resolve(teacher.shape, student.shape)


def _sources(recipe: Recipe, teacher: Encoder, reporter: Reporter) -> tuple[PackedSource, PackedSource | None]:
    """The training text and the held-out text, packed into blocks."""
    files = text_files(recipe.corpus)
    share = None if recipe.holdout is None else holdout_share(recipe.holdout)
    held_files = [] if recipe.holdout is None or share is not None else text_files([recipe.holdout])
    files = [file for file in files if file.resolve() not in {held.resolve() for held in held_files}]
    if not files:
        raise UserError("The held-out text is all the text there is; name other text to train on.")
    units, held = hold_out(read_units(files), share) if share is not None else (read_units(files), read_units(held_files))
    source = _pack(units, recipe, teacher)
    holdout = None if recipe.holdout is None else _pack(held, recipe, teacher)
    reporter.fact(
        "text",
        f"{count(source.tokens)} tokens in {count(len(source))} blocks of {recipe.max_length}"
        f" ({source.tokens / (len(source) * recipe.max_length):.1%} real)"
        + ("" if holdout is None else f", {count(holdout.tokens)} tokens held out")
        + ("" if not source.empty_units else f"; {source.empty_units} lines without a token were dropped"),
    )
    return source, holdout


def _pack(units: Iterable[Unit], recipe: Recipe, teacher: Encoder) -> PackedSource:
    tokens = tokenize(units, teacher.tokenizer)
    return PackedSource(tokens, Special.of(teacher.tokenizer), recipe.max_length, recipe.seed)


def _resolve(
    recipe: Recipe, objective: AnyObjective, stage: Stage, teacher: Encoder, student: Encoder, begun: Recipe | None
) -> Recipe:
    """The recipe with every decision made; probed ones are taken from the run's beginning, and so is its length."""
    processes = this_process().num_processes
    if recipe.batch_size < processes:
        raise UserError(f"A batch of {recipe.batch_size} sequences cannot be split over {processes} processes.")
    batch_size = begun.batch_size if begun else recipe.batch_size
    per_step = batch_size * stage.source.tokens / len(stage.source)
    if recipe.tokens is not None:
        steps = math.ceil(recipe.tokens / per_step)
    else:
        steps = recipe.steps or math.ceil((recipe.epochs or 1) * len(stage.source) / batch_size)
    precision, micro_batch_size = recipe.precision, recipe.micro_batch_size
    if precision == "auto":
        # All processes go by the first one's clock.
        precision = begun.precision if begun else broadcast_object_list([faster_precision(stage)])[0]
    if micro_batch_size == "auto":
        micro_batch_size = begun.micro_batch_size if begun else math.ceil(recipe.batch_size / processes)
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
