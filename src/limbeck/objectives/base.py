"""What an objective is: it sums its terms over a batch, and says what their means are taken over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from typing_extensions import Self

from limbeck.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from limbeck.encoders.capture import Wants
    from limbeck.encoders.features import Features
    from limbeck.encoders.shape import EncoderShape


class Objective(ABC):
    """A loss of one or several terms; a frozen record of settings."""

    name: str

    def __str__(self) -> str:
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}  # type: ignore[arg-type]
        return ", ".join([self.name, *(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in settings.items())])

    @abstractmethod
    def weights(self) -> Mapping[str, float]:
        """The weight of each term in the loss."""


class Mimicry(Objective):
    """What of a teacher is mimicked, and the loss.

    `resolve` decides what was left to "auto" and refuses what cannot be; the other methods are called on the resolved
    objective only.
    """

    equal_heads: bool = False
    """Whether it compares attention heads one by one, so that teacher and student need as many."""

    @abstractmethod
    def resolve(self, teacher: EncoderShape, student: EncoderShape) -> Self:
        """Decide every "auto" for this pair of encoders.

        Raises:
            UserError: the objective cannot be applied to them.
        """

    @abstractmethod
    def wants(self, teacher: EncoderShape, student: EncoderShape) -> tuple[Wants, Wants]:
        """The features read of the teacher and of the student."""

    @abstractmethod
    def counts(self, mask: Tensor) -> dict[str, Tensor]:
        """For each term how many things a batch holds that its loss is averaged over.

        They depend on the batch alone, so that the loop knows the divisor of a whole optimiser step before it runs the
        step's first micro-batch.

        Args:
            mask: (batch, n) bool, true where a token is valid.
        """

    @abstractmethod
    def sums(self, teacher: Features, student: Features, mask: Tensor | None) -> dict[str, Tensor]:
        """For each term the loss summed over what `counts` counts.

        Args:
            teacher: the features that `wants` names, each (batch, n, width).
            student: likewise, differentiable.
            mask: (batch, n) bool, true where a token is valid; None when all are.
        """


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " + ".join(f"{weight:g} {name}" for name, weight in value.items())
    return " + ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_teacher_layer(layer: int, teacher: EncoderShape) -> None:
    """Refuse a layer that the teacher does not have.

    Raises:
        UserError: naming the layers it has.
    """
    if layer > teacher.layers:
        raise UserError(f"The teacher has no layer {layer}; its layers go from 1 to {teacher.layers}.")
