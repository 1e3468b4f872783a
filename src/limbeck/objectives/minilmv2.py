"""MiniLMv2: Multi-Head Self-Attention Relation Distillation (Wang et al., 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Len
from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import Self

from limbeck import kernels
from limbeck._settings import Number, WholeNumber, no_duplicates, settings
from limbeck.kernels.heads import check_relation_heads, common_divisors
from limbeck.objectives.base import Mimicry, check_teacher_layer

if TYPE_CHECKING:
    from torch import Tensor

    from limbeck.encoders.capture import Wants
    from limbeck.encoders.features import Features
    from limbeck.encoders.shape import EncoderShape

FEATURES: tuple[Literal["q", "k", "v"], ...] = ("q", "k", "v")
Weight = Annotated[Number, Field(gt=0, allow_inf_nan=False)]
Relation = Literal["qq", "kk", "vv", "qk", "kq", "qv", "vq", "kv", "vk"]

BEST_LAYERS = {("bert", 24): 21, ("roberta", 24): 19, ("xlm-roberta", 24): 19}
"""Section 4.2 and Figure 2: the teacher layer that worked best for BERT-large and WWM, RoBERTa-large, XLM-R-large."""

RELATION_HEAD_WIDTH = 16
"""Section 5.1: 48 relation heads for width 768, 64 for width 1024."""


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


@settings
class MiniLMv2(Mimicry):
    """The student's last layer mimics relations between queries, keys and values of one teacher layer.

    L = sum_ij alpha_ij L_ij over pairs (A_i, A_j) of queries, keys and values, with

        L_ij = 1 / (A_r |x|) sum_a sum_t KL(R^T_ij,a,t || R^S_ij,a,t),   R_ij,a = softmax(A_i,a A_j,a^T / sqrt(d_r))

    (section 3.1). Queries, keys and values of all attention heads are concatenated and split into A_r relation heads,
    so that teacher and student may have other widths and other numbers of attention heads.

    Terms: one a relation, averaged over sequences.
    """

    name: Literal["minilmv2"] = "minilmv2"
    relation_heads: Annotated[WholeNumber, Field(ge=1)] | Literal["auto"] = "auto"
    """relation heads A_r; auto: teacher's width / 16, or the largest smaller number that divides every width read"""
    relations: Annotated[
        dict[Relation, Weight] | Annotated[tuple[Relation, ...], AfterValidator(no_duplicates)], BeforeValidator(_split), Len(1)
    ] = ("qq", "kk", "vv")
    """pairs of q, k and v, such as qq,kk,vv; in a recipe also with weights, such as {qq: 1, vv: 0.5}"""
    teacher_layer: Annotated[WholeNumber, Field(ge=1)] | Literal["auto"] = "auto"
    """teacher layer that is mimicked; auto: the last of up to 12; of 24 the 21st for BERT, the 19th for RoBERTa and XLM-R;
    of other depths five sixths up"""

    def resolve(self, teacher: EncoderShape, student: EncoderShape) -> Self:
        """Decide relation heads and teacher layer, and check them.

        Raises:
            UserError: relation heads that do not divide every width read, or a layer that the teacher does not have.
        """
        widths = dict.fromkeys(encoder.relation_width(relation) for encoder in (teacher, student) for relation in self.weights())
        heads = auto_relation_heads(teacher, *widths) if self.relation_heads == "auto" else self.relation_heads
        layer = best_teacher_layer(teacher) if self.teacher_layer == "auto" else self.teacher_layer
        check_relation_heads(heads, *widths)
        check_teacher_layer(layer, teacher)
        return replace(self, relation_heads=heads, teacher_layer=layer)

    def wants(self, teacher: EncoderShape, student: EncoderShape) -> tuple[Wants, Wants]:
        """The queries, keys and values that the relations read, of the teacher's layer and the student's last."""
        assert isinstance(self.teacher_layer, int)
        read = [feature for feature in FEATURES if any(feature in relation for relation in self.weights())]
        return dict.fromkeys(read, (self.teacher_layer,)), dict.fromkeys(read, (student.layers,))

    def weights(self) -> Mapping[str, float]:
        """alpha_ij for each relation."""
        if isinstance(self.relations, dict):
            return {str(relation): weight for relation, weight in self.relations.items()}
        return dict.fromkeys(self.relations, 1.0)

    def counts(self, mask: Tensor) -> dict[str, Tensor]:
        """The sequences with a valid token, for every relation."""
        return dict.fromkeys(self.weights(), mask.any(dim=1).sum())

    def sums(self, teacher: Features, student: Features, mask: Tensor | None) -> dict[str, Tensor]:
        """L_ij of each relation, summed over sequences."""
        assert isinstance(self.relation_heads, int)
        return {
            relation: kernels.relation_kl(
                teacher=teacher.pair(relation),
                student=student.pair(relation),
                relation_heads=self.relation_heads,
                mask=mask,
                reduction="none",
            ).sum()
            for relation in self.weights()
        }


def auto_relation_heads(teacher: EncoderShape, *widths: int) -> int:
    """The count that "auto" stands for: teacher's width / 16, or the largest smaller one that divides all widths read."""
    wanted = max(1, teacher.width // RELATION_HEAD_WIDTH)
    return max(count for count in common_divisors(*widths) if count <= wanted)


def best_teacher_layer(teacher: EncoderShape) -> int:
    """The layer that "auto" stands for: the last of up to 12, an upper middle one of deeper teachers (section 4.2)."""
    if teacher.layers <= 12:
        return teacher.layers
    return BEST_LAYERS.get((teacher.model_type, teacher.layers), round(5 * teacher.layers / 6))
