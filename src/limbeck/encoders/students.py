"""Making a student from its teacher: random weights, some of the teacher's layers, or an earlier student."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from limbeck.encoders.capture import accepted_inputs
from limbeck.encoders.configuration import default_cut, forget_task, student_config
from limbeck.encoders.loading import Encoder, check_same_tokenizer, load_config, load_encoder, new_encoder
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

LAYER_SIZES = ("width", "heads", "key_value_heads", "feed_forward")
"""What must be equal for one encoder's layer to fit another."""


def build_student(
    teacher: Encoder,
    shape: StudentShape,
    init: str | Encoder,
    seed: int,
    *,
    family: str | None = None,
    teacher_heads: bool = False,
) -> Encoder:
    """A student of the given shape with the teacher's tokenizer and vocabulary.

    Args:
        teacher: read, never changed.
        shape: the student's size; what it leaves open follows from the teacher, or is as in the earlier student.
        init: "random"; "layers" (layers chosen by `default_cut`) or "layers:1,3,6" copies the teacher's embeddings, these
            layers and its pooler; anything else is the folder of an earlier student, or that student itself.
        seed: decides random weights.
        family: the student's, a value of ``config.model_type``; None: the teacher's, or that of the earlier student.
        teacher_heads: whether the objective needs as many attention heads as the teacher has; copied layers do anyway.

    Raises:
        UserError: the shape is impossible, or the start does not fit it.
    """
    if not isinstance(init, str):
        return _earlier_student(teacher, shape, init, family)
    if is_folder(init):
        return _earlier_student(teacher, shape, load_encoder(init), family)
    cut = copied_layers(init, teacher.shape.layers, shape.layers)
    config = student_config(
        shape,
        teacher.model.config,
        family=family,
        teacher_heads=teacher_heads or cut is not None,
        cut=cut,
        tokenizer=teacher.tokenizer,
    )
    student = new_encoder(config, teacher.tokenizer, seed)
    student = replace(student, tokenizer=_tokenizer_for(student))
    return student if cut is None else _copy_layers(teacher, student, cut)


def planned_shape(
    teacher: PretrainedConfig,
    shape: StudentShape,
    init: str | Encoder,
    *,
    family: str | None = None,
    teacher_heads: bool = False,
) -> EncoderShape:
    """The sizes of the student that `build_student` would make of the same arguments, before any weights are read.

    Raises:
        UserError: as there.
    """
    if not isinstance(init, str):
        return init.shape
    if is_folder(init):
        return EncoderShape.of(load_config(init))
    cut = copied_layers(init, teacher.num_hidden_layers, shape.layers)
    heads = teacher_heads or cut is not None
    return EncoderShape.of(student_config(shape, teacher, family=family, teacher_heads=heads, cut=cut))


def is_folder(init: str) -> bool:
    """Whether a student's first weights are those of an earlier student, not random or some of the teacher's."""
    return init != "random" and init.split(":")[0] != "layers"


def copied_layers(init: str, teacher_layers: int, student_layers: int) -> list[int] | None:
    """The teacher layers that a student begins with, as `chosen_layers`; None if it begins otherwise."""
    return None if init == "random" or is_folder(init) else chosen_layers(init, teacher_layers, student_layers)


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


def _earlier_student(teacher: Encoder, shape: StudentShape, student: Encoder, family: str | None) -> Encoder:
    if family not in (None, student.shape.model_type):
        raise UserError(
            f"The start {student.source} is of type {student.shape.model_type!r}, not {family!r}; leave the family out."
        )
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


def _tokenizer_for(student: Encoder) -> PreTrainedTokenizerBase:
    """The student's tokenizer, which by default makes what the student takes and no more; the teacher's own if that fits."""
    tokenizer, accepted = student.tokenizer, accepted_inputs(student.model, student.shape)
    names = [name for name in tokenizer.model_input_names if name in accepted or student.shape.segments > 1]
    length = min(tokenizer.model_max_length, student.shape.positions)
    if names == tokenizer.model_input_names and length == tokenizer.model_max_length:
        return tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_input_names, tokenizer.model_max_length = names, length
    return tokenizer


def _copy_layers(teacher: Encoder, student: Encoder, layers: list[int]) -> Encoder:
    """Copy the teacher's embeddings, the chosen layers and what stands behind the layers."""
    ours, theirs = teacher.shape, student.shape
    if ours.model_type != theirs.model_type:
        raise UserError(
            f"Layers of type {ours.model_type!r} do not fit a student of type {theirs.model_type!r}; use --init random."
        )
    if any(getattr(ours, size) != getattr(theirs, size) for size in LAYER_SIZES):
        raise UserError(
            f"Layers of a {ours} teacher do not fit a {theirs} student: width, feed-forward and heads must be equal. "
            "Use --init random, or a student of the teacher's width."
        )
    sources, targets = teacher.family.layer_list(teacher.model), student.family.layer_list(student.model)
    weights = {k: v for k, v in teacher.model.state_dict().items() if not k.startswith(f"{teacher.family.layers}.")}
    student.model.load_state_dict(weights, strict=False)
    copied = {name: name for name in weights}
    for place, (target, layer) in enumerate(zip(targets, layers, strict=True), start=1):
        source = sources[layer - 1].state_dict()
        if source.keys() != target.state_dict().keys():
            raise UserError(
                f"Layer {layer} of this teacher is built otherwise than layer {place} of a student; begin the cut with layer 1."
            )
        target.load_state_dict(source)
        there, here = teacher.family.layer_name(layer), student.family.layer_name(place)
        copied |= {f"{here}.{name}": f"{there}.{name}" for name in source}
    cut = f"{'layer' if len(layers) == 1 else 'layers'} {', '.join(map(str, layers))} of the teacher"
    return replace(student, source=cut, origin=student.origin.copied(copied, teacher.origin))
