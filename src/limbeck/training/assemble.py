"""From a recipe to the parts of a run: teacher, student, objective, text, and every "auto" decided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from accelerate.utils import broadcast_object_list

from limbeck.data.batches import Frame, PackedSource
from limbeck.data.corpora import Layout, Reading, open_tokens
from limbeck.data.packing import Packing
from limbeck.data.tokens import PlainTokenizer, Tokens, hold_out, leave_out
from limbeck.encoders.attention import use_own_attention
from limbeck.encoders.loading import Encoder, keep_layers, load_config, load_encoder
from limbeck.encoders.shape import EncoderShape
from limbeck.encoders.students import build_student, chosen_layers, copied_layers, is_folder, planned_shape
from limbeck.errors import UserError
from limbeck.objectives import AnyObjective
from limbeck.objectives.base import Mimicry
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, holdout_share
from limbeck.text import count
from limbeck.training.compiling import decide_compiling
from limbeck.training.distillation import DistillationParts
from limbeck.training.evaluation import HeldOut
from limbeck.training.loop import this_process
from limbeck.training.memory import check_size
from limbeck.training.precision import faster_precision
from limbeck.training.remembering import RememberingTeacher, can_be_kept, open_store, pays
from limbeck.training.resume import fingerprint
from limbeck.training.run import Job
from limbeck.training.stage import Stage, build_stage, keep_no_activations, set_dropout
from limbeck.training.tail import apply_tail, tail_objective

UNKNOWN = 0.2
"""A share of unknown tokens above which the text is probably not in the teacher's language."""


def distillation_job(recipe: Recipe, stand_ins: Mapping[str, Encoder] | None = None) -> Job[Recipe]:
    """A recipe as a run that can be carried out; the stand-ins are those of `assemble`."""
    named: dict[str, Sequence[Any]]
    named = {"teacher": [recipe.teacher], "init": [recipe.init], "corpus": recipe.corpus, "holdout": [recipe.holdout]}
    inputs = [str(place) for name, places in named.items() for place in places if names_input(name, place)]
    return Job(recipe, inputs, partial(assemble, stand_ins=stand_ins), names_input)


def assemble(
    recipe: Recipe, begun: Recipe | None, reporter: Reporter, stand_ins: Mapping[str, Encoder] | None = None
) -> DistillationParts:
    """Load, read and check all that a recipe names; nothing is written.

    Args:
        recipe: what to do.
        begun: the resolved recipe of the run that is resumed, whose length and probed decisions are taken over.
        reporter: hears what the text amounts to.
        stand_ins: folder -> an encoder that takes the place of what lies there, or will: one that others use as well, or that
            has only the sizes yet.

    Raises:
        UserError: something in the recipe or the input is wrong.
    """
    made = stand_ins or {}
    start = made.get(recipe.init, recipe.init)
    teacher = made.get(recipe.teacher) or load_encoder(recipe.teacher, needed_layers(recipe, start))
    student, objective = _student_and_objective(recipe, teacher, start)
    init = {"init": fingerprint(student.model)} if is_folder(recipe.init) else {}
    student, tail = apply_tail(recipe.tail, teacher, student, objective)
    trained = tail_objective(recipe.tail, objective, teacher.shape, student.shape)
    if recipe.teacher not in made:  # which others may need whole
        keep_layers(teacher.model, range(1, deepest_layer(trained, teacher.shape, student.shape) + 1))
    recipe = replace(recipe, packing=_packing(recipe, teacher))
    source, holdout = _sources(recipe, teacher, student, reporter)
    stage = build_stage(student.model, teacher.model, trained, source, None if holdout is None else HeldOut(holdout)).to(
        this_process().device
    )
    set_dropout(student.model, recipe.dropout)
    if recipe.gradient_checkpointing:
        keep_no_activations(student.model)
    use_own_attention(student.model)
    fingerprints = {**_fingerprints(teacher, stage), **init}
    resolved = _compiling(_resolve(recipe, objective, stage, teacher, student, begun), stage, begun, reporter)
    resolved, stage = _remembering(resolved, stage, teacher, fingerprints["teacher"], begun)
    return DistillationParts(resolved, student, stage, fingerprints, teacher=teacher, text=source, objective=trained, tail=tail)


def names_input(name: str, value: Any) -> bool:
    """Whether a field's value is a path or several, or a model's name on the hub."""
    if name == "holdout":
        return value is not None and holdout_share(value) is None
    return name in ("teacher", "corpus") or (name == "init" and is_folder(value))


def _fingerprints(teacher: Encoder, stage: Stage) -> dict[str, str]:
    return {
        "teacher": fingerprint(teacher.model),
        "corpus": stage.source.fingerprint,
        **({} if stage.evaluation is None else {"holdout": stage.evaluation.fingerprint}),
    }


def needed_layers(recipe: Recipe, start: str | Encoder) -> set[int]:
    """The layers of the teacher that run or are copied where a student has this start, an encoder or what `Recipe.init` says.

    Raises:
        UserError: as `assemble`.
    """
    config = load_config(recipe.teacher)
    ours = EncoderShape.of(config)
    check_size(recipe.shape, ours)
    heads = recipe.objective.equal_heads
    theirs = planned_shape(config, recipe.shape, start, family=recipe.named_family, teacher_heads=heads)
    trained = tail_objective(recipe.tail, recipe.objective.resolve(ours, theirs), ours, theirs)
    copied = copied_layers(recipe.init, ours.layers, theirs.layers) or []
    return {*range(1, deepest_layer(trained, ours, theirs) + 1), *copied}


def deepest_layer(objective: Mimicry, teacher: EncoderShape, student: EncoderShape) -> int:
    """The last of the teacher's layers that a resolved objective reads."""
    return max(layer for layers in objective.wants(teacher, student)[0].values() for layer in layers)


def _student_and_objective(recipe: Recipe, teacher: Encoder, start: str | Encoder) -> tuple[Encoder, AnyObjective]:
    check_size(recipe.shape, teacher.shape)
    student = build_student(
        teacher, recipe.shape, start, recipe.seed, family=recipe.named_family, teacher_heads=recipe.objective.equal_heads
    )
    positions = min(teacher.shape.positions, student.shape.positions)
    if recipe.max_length > positions:
        raise UserError(f"A length of {recipe.max_length} was asked for, but the model has only {positions} positions.")
    return student, recipe.objective.resolve(teacher.shape, student.shape)


def _packing(recipe: Recipe, teacher: Encoder) -> Packing:
    """BERT was trained on pairs; a model with one segment never was."""
    if recipe.packing != "auto":
        return recipe.packing
    return "pairs" if teacher.shape.segments > 1 else "full"


def _sources(recipe: Recipe, teacher: Encoder, student: Encoder, reporter: Reporter) -> tuple[PackedSource, PackedSource | None]:
    """The training text and the held-out text, packed into sequences."""
    layout = Layout(
        frame=Frame.of(teacher.tokenizer),
        packing=_packing(recipe, teacher),
        max_length=recipe.max_length,
        seed=recipe.seed,
        long_length=min(teacher.shape.positions, student.shape.positions),
        long_share=recipe.long_fraction,
    )
    reading = Reading(PlainTokenizer(teacher.tokenizer), recipe.text_column, reporter.tokenizing)
    share = None if recipe.holdout is None else holdout_share(recipe.holdout)
    held_paths = [recipe.holdout] if recipe.holdout is not None and share is None else []
    weighted = recipe.corpus_weights is not None or recipe.corpus_alpha is not None
    # One process tokenises, and the others find its work done.
    with this_process().local_main_process_first():
        held = [open_tokens([path], reading) for path in held_paths]
        groups = [[path] for path in recipe.corpus] if weighted else [recipe.corpus]
        parts = [open_tokens(paths, reading) for paths in groups]
    if share is not None:
        parts, held = map(list, zip(*(hold_out(part, share) for part in parts), strict=True))
    elif held:
        parts = [leave_out(part, held[0]) for part in parts]
    source = layout.source(parts, _weights(recipe, parts))
    holdout = replace(layout, long_share=0.0).source([Tokens.joined(held)]) if held else None
    _report_text(source, holdout, reporter)
    return source, holdout


def _weights(recipe: Recipe, parts: Sequence[Tokens]) -> Sequence[float] | None:
    if recipe.corpus_alpha is None:
        return recipe.corpus_weights
    return [float(part.lengths.sum()) ** recipe.corpus_alpha for part in parts]


def _report_text(source: PackedSource, holdout: PackedSource | None, reporter: Reporter) -> None:
    reporter.fact(
        "text",
        f"{count(source.tokens)} tokens in {count(len(source))} sequences of {source.max_length} ({source.real_share:.1%} real)"
        + ("" if holdout is None else f", {count(holdout.tokens)} tokens held out")
        + ("" if not source.empty_units else f"; {source.empty_units} lines without a token were dropped"),
    )
    if source.unknown_share > UNKNOWN:
        reporter.say(
            f"Beware: the tokenizer does not know {source.unknown_share:.0%} of the text; is it in the teacher's language?"
        )


def _compiling(resolved: Recipe, stage: Stage, begun: Recipe | None, reporter: Reporter) -> Recipe:
    """Decide whether layers are compiled; all processes go by the first one's clock."""
    asked = begun.compile if begun and resolved.compile == "auto" else resolved.compile
    examples, bf16 = (resolved.steps or 0) * resolved.batch_size, resolved.precision == "bf16"
    decided = broadcast_object_list([decide_compiling(asked, stage, examples, bf16=bf16, say=reporter.say)])[0]
    return replace(resolved, compile=decided)


def _remembering(resolved: Recipe, stage: Stage, teacher: Encoder, weights: str, begun: Recipe | None) -> tuple[Recipe, Stage]:
    """Decide whether the teacher is to remember what it says, and let it."""
    assert stage.teacher is not None
    asked, kept = resolved.teacher_cache, can_be_kept(stage.teacher)
    if asked == "always" and not kept:
        raise UserError(
            f"What {resolved.objective.name} reads of positions of a {teacher.shape.model_type} teacher cannot be kept; leave "
            "teacher_cache out, or use --objective minilmv2."
        )
    if asked == "auto" and begun is not None:
        asked = begun.teacher_cache
    if asked == "auto" and (resolved.precision == "float32" or not kept):  # float32 stays exact
        asked = "never"
    if asked == "never":
        return replace(resolved, teacher_cache=asked), stage
    store = open_store(stage.teacher, f"{weights} {resolved.precision}")
    passes = (resolved.steps or 0) * resolved.batch_size / len(stage.source)
    if asked == "auto":
        # All processes go by the first one's clock and disk.
        asked = "always" if broadcast_object_list([pays(stage, store, passes)])[0] else "never"
    if asked == "always":
        stage = replace(stage, teacher=RememberingTeacher(stage.teacher, store))
    return replace(resolved, teacher_cache=asked), stage


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
        family=student.shape.model_type,
        objective=objective,
        init=init,
        steps=steps,
        tokens=None,
        epochs=None,
        precision=precision,
        micro_batch_size=micro_batch_size,
    )
