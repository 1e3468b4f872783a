"""Making a student from its teacher: random weights, some of the teacher's layers, or an earlier student."""

from __future__ import annotations

from dataclasses import replace

from limbeck.encoders.loading import Encoder, check_same_tokenizer, load_encoder, new_encoder
from limbeck.encoders.shape import StudentShape, forget_task
from limbeck.errors import UserError


def build_student(
    teacher: Encoder, shape: StudentShape, init: str | Encoder, seed: int, *, teacher_heads: bool = False
) -> Encoder:
    """A student of the given shape with the teacher's tokenizer and vocabulary.

    Args:
        teacher: read, never changed.
        shape: the student's size; what it leaves open follows from the teacher, or is as in the earlier student.
        init: "random"; "layers" (layers chosen by `default_cut`) or "layers:1,3,6" copies the teacher's embeddings, these
            layers and its pooler; anything else is the folder of an earlier student, or that student itself.
        seed: decides random weights.
        teacher_heads: whether the objective needs as many attention heads as the teacher has; copied layers do anyway.

    Raises:
        UserError: the shape is impossible, or the start does not fit it.
    """
    if not isinstance(init, str):
        return _earlier_student(teacher, shape, init)
    copied = init == "layers" or init.startswith("layers:")
    if not copied and init != "random":
        return _earlier_student(teacher, shape, load_encoder(init))
    config = shape.config(teacher.model.config, teacher_heads=teacher_heads or copied)
    if copied:
        student = new_encoder(config, teacher.tokenizer, seed)
        return _copy_layers(teacher, student, chosen_layers(init, teacher.shape.layers, shape.layers))
    return new_encoder(config, teacher.tokenizer, seed)


def default_cut(teacher_layers: int, student_layers: int) -> list[int]:
    """The teacher layers a student starts with: the first, the last, and the others spread evenly between them.

    6 of 12 gives 1, 3, 5, 8, 10, 12 as in DistilBERT, 3 of 6 gives 1, 4, 6; docs/quickstart.md compares cuts.
    """
    if student_layers == 1:
        return [teacher_layers]
    step = (teacher_layers - 1) / (student_layers - 1)
    return [int(1.5 + place * step) for place in range(student_layers)]


def chosen_layers(init: str, teacher_layers: int, student_layers: int) -> list[int]:
    """The teacher layers that "layers" or "layers:1,3,6" stands for, numbered from 1.

    Raises:
        UserError: not as many layers as the student has, out of order, or beyond the teacher's.
    """
    if student_layers > teacher_layers:
        raise UserError(
            f"A student of {student_layers} layers cannot be cut from a teacher of {teacher_layers}; use --init random."
        )
    if init == "layers":
        return default_cut(teacher_layers, student_layers)
    try:
        layers = [int(part) for part in init.removeprefix("layers:").split(",")]
    except ValueError:
        raise UserError(f"--init {init} is not understood; write layers:1,3,6 with the teacher's layers.") from None
    if len(layers) != student_layers or layers != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= teacher_layers:
        raise UserError(
            f"--init {init} does not fit: name {student_layers} of the teacher's layers 1 to {teacher_layers} in ascending order."
        )
    return layers


def _earlier_student(teacher: Encoder, shape: StudentShape, student: Encoder) -> Encoder:
    check_same_tokenizer(teacher.tokenizer, student.tokenizer)
    own = student.shape
    asked = replace(
        own,
        layers=shape.layers,
        width=shape.width,
        feed_forward=shape.feed_forward or own.feed_forward,
        heads=shape.heads or own.heads,
    )
    if asked != own:
        raise UserError(f"The start {student.source} is a {own}, not the {asked} asked for; ask for a student of its shape.")
    forget_task(student.model.config)
    return student


def _copy_layers(teacher: Encoder, student: Encoder, layers: list[int]) -> Encoder:
    """Copy the teacher's embeddings, the chosen layers and what stands behind the layers."""
    ours, theirs = teacher.shape, student.shape
    if (ours.width, ours.heads, ours.feed_forward) != (theirs.width, theirs.heads, theirs.feed_forward):
        raise UserError(
            f"Layers of a {ours} teacher do not fit a {theirs} student: width, feed-forward and heads must be equal. "
            "Use --init random, or a student of the teacher's width."
        )
    sources, targets = teacher.family.layer_list(teacher.model), student.family.layer_list(student.model)
    weights = {k: v for k, v in teacher.model.state_dict().items() if not k.startswith(f"{teacher.family.layers}.")}
    student.model.load_state_dict(weights, strict=False)
    for target, layer in zip(targets, layers, strict=True):
        target.load_state_dict(sources[layer - 1].state_dict())
    cut = f"layers {', '.join(map(str, layers))} of the teacher"
    return replace(student, source=cut, pooler_trained=teacher.pooler_trained)
