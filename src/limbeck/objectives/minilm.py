"""MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression (Wang et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from typing_extensions import Self

from limbeck import kernels
from limbeck._settings import WholeNumber, settings
from limbeck.errors import UserError
from limbeck.objectives.base import Mimicry, check_teacher_layer, pair

if TYPE_CHECKING:
    from torch import Tensor

    from limbeck.encoders.capture import Features, Wants
    from limbeck.encoders.shape import EncoderShape


FEATURES: tuple[Literal["q", "k", "v"], ...] = ("q", "k", "v")
PAIRS = {"attention": "qk", "value_relation": "vv"}
"""Each term and the pair of features it compares."""


@settings
class MiniLM(Mimicry):
    """The student's last layer mimics attention distributions and value relations of one teacher layer.

    L = L_AT + L_VR (section 3), with A = softmax(Q K^T / sqrt(d_k)) and VR = softmax(V V^T / sqrt(d_k)) of the model's
    own attention heads:

        L_AT = 1 / (A_h |x|) sum_a sum_t KL(A^T_L,a,t || A^S_M,a,t)        (section 3.1)
        L_VR = 1 / (A_h |x|) sum_a sum_t KL(VR^T_L,a,t || VR^S_M,a,t)      (section 3.2)

    Terms: ``attention`` and ``value_relation``, averaged over sequences.
    """

    name: Literal["minilm"] = "minilm"
    equal_heads = True
    teacher_layer: Annotated[WholeNumber, Field(ge=1)] | Literal["auto"] = "auto"
    """teacher layer that is mimicked; auto: the last (MiniLMv2's Table 4 takes an upper middle one of large teachers)"""

    def resolve(self, teacher: EncoderShape, student: EncoderShape) -> Self:
        """Decide the teacher layer, and check that the heads can be compared one by one.

        Raises:
            UserError: different numbers of attention heads, or a layer that the teacher does not have.
        """
        if teacher.heads != student.heads:
            raise UserError(
                f"MiniLM compares attention heads one by one, but the teacher has {teacher.heads} and the student "
                f"{student.heads}: give the student {teacher.heads} heads (its width must be a multiple of that), "
                "or use minilmv2, which needs no equal heads."
            )
        layer = teacher.layers if self.teacher_layer == "auto" else self.teacher_layer
        check_teacher_layer(layer, teacher)
        return replace(self, teacher_layer=layer)

    def wants(self, teacher: EncoderShape, student: EncoderShape) -> tuple[Wants, Wants]:
        """Queries, keys and values of the teacher's layer and the student's last."""
        assert isinstance(self.teacher_layer, int)
        return dict.fromkeys(FEATURES, (self.teacher_layer,)), dict.fromkeys(FEATURES, (student.layers,))

    def weights(self) -> Mapping[str, float]:
        """Both terms count once."""
        return dict.fromkeys(PAIRS, 1.0)

    def counts(self, mask: Tensor) -> dict[str, Tensor]:
        """The sequences with a valid token, for both terms."""
        return dict.fromkeys(PAIRS, mask.any(dim=1).sum())

    def sums(self, teacher: Features, student: Features, mask: Tensor | None) -> dict[str, Tensor]:
        """L_AT and L_VR, summed over sequences."""
        return {
            term: kernels.relation_kl(
                teacher=pair(teacher, relation),
                student=pair(student, relation),
                relation_heads=student.shape.heads,
                mask=mask,
                reduction="none",
            ).sum()
            for term, relation in PAIRS.items()
        }
