"""What becomes of a student's tail, which its objective does not reach, before training begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from limbeck.encoders.loading import Encoder
from limbeck.encoders.origin import matrices
from limbeck.encoders.shape import EncoderShape
from limbeck.errors import UserError
from limbeck.objectives.base import Mimicry
from limbeck.objectives.tail import HIDDEN_WEIGHT, HiddenTail, mimicked_layer
from limbeck.training.reach import unread_parameters


@dataclass(frozen=True)
class Tail:
    """What was done."""

    option: str
    """As in `Recipe.tail`."""
    copied: int = 0
    """Tensors that were copied from the teacher."""
    not_copied: int = 0
    """Tensors that have no counterpart of their shape there, and stay as they began."""
    layer: int = 0
    """The teacher layer that is mimicked."""

    def __str__(self) -> str:
        return {
            "keep": "stays as it began",
            "teacher": f"{self.copied} tensors copied from the teacher's layer {self.layer} and what stands behind its layers, "
            f"{self.not_copied} could not be",
            "identity": "the last layer's output projections are zero, so that it passes its input on",
            "hidden": f"trained by a relation of hidden states with weight {HIDDEN_WEIGHT:g}",
        }[self.option]


def apply_tail(option: str, teacher: Encoder, student: Encoder, objective: Mimicry) -> tuple[Encoder, Tail]:
    """Give a student's tail the weights that training begins with.

    Args:
        option: as in `Recipe.tail`; of "hidden" the weights stay, since `tail_objective` trains them.
        teacher: read, never changed.
        student: in evaluation mode; its weights are changed in place. Random numbers are not touched.
        objective: resolved.

    Raises:
        UserError: the objective leaves the student no such tail, or the option does not fit these encoders.
    """
    if option == "keep":
        return student, Tail(option)
    layer = mimicked_layer(objective, teacher.shape, student.shape)
    if layer is None:
        raise UserError(
            f"--tail {option} is for objectives that read queries, keys and values of the student's last layer alone, and "
            f"{objective.name} reads something else; leave --tail keep."
        )
    unread = unread_parameters(student.model, objective.wants(teacher.shape, student.shape)[1])
    if option == "teacher":
        return _copied(teacher, student, layer, unread)
    if option == "identity":
        student = _pass_on(student, unread)
    return student, Tail(option, layer=layer)


def tail_objective(option: str, objective: Mimicry, teacher: EncoderShape, student: EncoderShape) -> Mimicry:
    """The objective itself, resolved, or with the term that trains the tail."""
    return HiddenTail(objective).resolve(teacher, student) if option == "hidden" else objective


@torch.no_grad()
def _copied(teacher: Encoder, student: Encoder, layer: int, unread: Sequence[str]) -> tuple[Encoder, Tail]:
    """Copy what is not read: the last layer's of the mimicked one, what stands behind the layers of its like."""
    if teacher.shape.width != student.shape.width:
        raise UserError(
            f"The tail of a {teacher.shape} teacher does not fit a {student.shape} student, whose width is another; use --tail "
            f"hidden, which works at any width, or a student of width {teacher.shape.width}."
        )
    ours, theirs = dict(student.model.named_parameters()), dict(teacher.model.named_parameters())
    last, mimicked = f"{student.family.layer_name(student.shape.layers)}.", f"{teacher.family.layer_name(layer)}."
    pooler = f"{student.family.pooler}."
    wanted = [name for name in unread if teacher.pooler_trained or not name.startswith(pooler)]  # a random one is no gain
    sources = {name: mimicked + name.removeprefix(last) if name.startswith(last) else name for name in wanted}
    fitting = {name: source for name, source in sources.items() if source in theirs and theirs[source].shape == ours[name].shape}
    if not fitting:
        raise UserError(
            f"--tail teacher: a teacher of type {teacher.shape.model_type} has nothing that fits behind what is read of a "
            f"student of type {student.shape.model_type}; use --tail hidden, which works for any two families."
        )
    origin = student.origin.copied(fitting, teacher.origin)
    other = {name for name, source in fitting.items() if ours[name].dim() > 1 and not torch.equal(ours[name], theirs[source])}
    for name, source in fitting.items():
        ours[name].copy_(theirs[source])
    origin = origin.replaced({name for name in other - origin.random if not name.startswith(pooler)})
    return replace(student, origin=origin), Tail("teacher", len(fitting), len(unread) - len(fitting), layer)


@torch.no_grad()
def _pass_on(student: Encoder, unread: Sequence[str]) -> Encoder:
    """Let the last layer add nothing to what it is given; norms behind the sum, as BERT has them, remain."""
    last = student.family.layer_name(student.shape.layers)
    parameters = {
        name: parameter
        for output in student.family.outputs
        for name, parameter in student.model.get_submodule(f"{last}.{output}").named_parameters(f"{last}.{output}")
    }
    if not parameters or not parameters.keys() <= {*unread}:
        raise UserError(
            f"--tail identity does not fit a {student.shape.model_type} student, whose last layer has no output projections of "
            "its own that are known; use --tail hidden or keep."
        )
    for parameter in parameters.values():
        parameter.zero_()
    # Whatever stands in front of a projection that is zero is of no effect.
    idle = {name for name in matrices(student.model).intersection(unread) if name.startswith(f"{last}.")}
    return replace(student, origin=student.origin.replaced(idle))
