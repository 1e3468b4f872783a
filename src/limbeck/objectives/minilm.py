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
from limbeck.kernels.heads import check_relation_heads
from limbeck.objectives.base import Mimicry, check_teacher_layer

if TYPE_CHECKING:
    from torch import Tensor

    from limbeck.encoders.capture import Wants
    from limbeck.encoders.features import Features
    from limbeck.encoders.shape import EncoderShape


TERMS = ("attention", "value_relation")


@settings
class MiniLM(Mimicry):
    """The student's last layer mimics attention distributions and value relations of one teacher layer.

    L = L_AT + L_VR (section 3), with A = softmax(Q K^T / sqrt(d_k)) and VR = softmax(V V^T / sqrt(d_k)) of the model's
    own attention heads, the former with all that the model itself does to its scores (rotary positions, a bias of positions,
    a sliding window) but dropout:

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
            UserError: different numbers of attention heads, a layer that the teacher does not have, attention scores that
                cannot be rebuilt, or layers that attend to different pairs of tokens.
        """
        for role, encoder in (("teacher", teacher), ("student", student)):
            if encoder.scores is None:
                raise UserError(
                    f"MiniLM compares attention distributions, but those of a {role} of type {encoder.model_type!r} cannot be "
                    "rebuilt from its queries and keys; use --objective minilmv2, whose relations work for it."
                )
        if teacher.heads != student.heads:
            raise UserError(
                f"MiniLM compares attention heads one by one, but the teacher has {teacher.heads} and the student "
                f"{student.heads}: give the student {teacher.heads} heads (its width must be a multiple of that), "
                "or use minilmv2, which needs no equal heads."
            )
        layer = teacher.layers if self.teacher_layer == "auto" else self.teacher_layer
        check_teacher_layer(layer, teacher)
        _check_windows(layer, teacher, student)
        for encoder in (teacher, student):
            check_relation_heads(encoder.heads, encoder.relation_width("vv"))
        return replace(self, teacher_layer=layer)

    def wants(self, teacher: EncoderShape, student: EncoderShape) -> tuple[Wants, Wants]:
        """Queries, keys and values, and what attention knows of positions, of the teacher's layer and the student's last."""
        assert isinstance(self.teacher_layer, int)
        return (
            dict.fromkeys((*teacher.attention_features, "v"), (self.teacher_layer,)),
            dict.fromkeys((*student.attention_features, "v"), (student.layers,)),
        )

    def weights(self) -> Mapping[str, float]:
        """Both terms count once."""
        return dict.fromkeys(TERMS, 1.0)

    def counts(self, mask: Tensor) -> dict[str, Tensor]:
        """The sequences with a valid token, for both terms."""
        return dict.fromkeys(TERMS, mask.any(dim=1).sum())

    def sums(self, teacher: Features, student: Features, mask: Tensor | None) -> dict[str, Tensor]:
        """L_AT and L_VR, summed over sequences."""
        heads, ours, theirs = student.shape.heads, teacher.attention(), student.attention()
        attention = kernels.relation_kl(
            teacher=(ours.q, ours.k),
            student=(theirs.q, theirs.k),
            relation_heads=heads,
            mask=mask,
            pair_mask=theirs.pair_mask,
            bias=(ours.bias, theirs.bias),
            reduction="none",
        )
        values = kernels.relation_kl(
            teacher=teacher.pair("vv"), student=student.pair("vv"), relation_heads=heads, mask=mask, reduction="none"
        )
        return {"attention": attention.sum(), "value_relation": values.sum()}


def _check_windows(layer: int, teacher: EncoderShape, student: EncoderShape) -> None:
    """Refuse layers that attend to different pairs of tokens, whose distributions cannot be compared."""
    ours, theirs = teacher.windows[layer - 1], student.windows[-1]
    if ours == theirs:
        return
    alike = [str(place) for place, window in enumerate(teacher.windows, start=1) if window == theirs]
    raise UserError(
        f"Layer {layer} of the teacher attends {_reach(ours)} and the student's last layer {_reach(theirs)}, so that their "
        "attention cannot be compared; "
        + (f"choose --teacher-layer among {', '.join(alike)}, or use" if alike else "use")
        + " --objective minilmv2."
    )


def _reach(window: int | None) -> str:
    return "to all tokens" if window is None else f"{window} tokens far"
