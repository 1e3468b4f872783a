"""The tail of a student: what stands behind the last queries, keys and values, and a term of our own that trains it.

The papers' losses read nothing behind these, so the last layer's attention output, feed-forward part and norms keep the
weights they began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from typing_extensions import Self

from limbeck import kernels
from limbeck.kernels.heads import common_divisors
from limbeck.objectives.base import Mimicry
from limbeck.objectives.minilmv2 import auto_relation_heads

if TYPE_CHECKING:
    from torch import Tensor

    from limbeck.encoders.capture import Wants
    from limbeck.encoders.features import Features
    from limbeck.encoders.shape import EncoderShape

HIDDEN = "hidden"
"""The term's name in the log."""
HIDDEN_WEIGHT = 0.1
"""Of the term in the loss: ours, no paper's. It is to train the tail, not to outweigh what the method mimics."""
ATTENTION = {"q", "k", "v", "positions"}


@dataclass(frozen=True)
class HiddenTail(Mimicry):
    """A method, and beside it a relation of hidden states, which trains the student's last layer whole.

    L = L_method + 0.1 L_HH, with L_HH the relation (MiniLM, section 3.2) of H with itself, H what leaves the student's last
    layer and what leaves the teacher's mimicked one. The term and its weight are ours, not the papers': it is the smallest
    addition that reaches what their losses leave untrained, and a relation needs no equal widths. The pooler, which stands
    behind the layers, stays out of reach.

    Terms: the method's, and ``hidden``, averaged over sequences.
    """

    name = "hidden tail"
    method: Mimicry
    """Reads q, k and v of the student's last layer alone (`mimicked_layer`)."""
    relation_heads: int = 0
    """Of the hidden states; `resolve` decides them."""

    def __str__(self) -> str:
        return f"{self.method}; {HIDDEN_WEIGHT:g} x a relation of hidden states, relation heads {self.relation_heads}"

    def resolve(self, teacher: EncoderShape, student: EncoderShape) -> Self:
        """Decide the method's "auto", and the relation heads: the method's own number where it divides both widths.

        Raises:
            UserError: the method cannot be applied to these encoders.
        """
        method = self.method.resolve(teacher, student)
        own = getattr(method, "relation_heads", student.heads)  # MiniLM compares attention heads
        widths = teacher.width, student.width
        fits = own in common_divisors(*widths)
        return replace(self, method=method, relation_heads=own if fits else auto_relation_heads(teacher, *widths))

    def wants(self, teacher: EncoderShape, student: EncoderShape) -> tuple[Wants, Wants]:
        """What the method reads, and the hidden states of the layers it reads them of."""
        layer = mimicked_layer(self.method, teacher, student)
        assert layer is not None
        ours, theirs = self.method.wants(teacher, student)
        return {**ours, "hidden": (layer,)}, {**theirs, "hidden": (student.layers,)}

    def weights(self) -> Mapping[str, float]:
        """The method's, and that of the hidden states."""
        return {**self.method.weights(), HIDDEN: HIDDEN_WEIGHT}

    def counts(self, mask: Tensor) -> dict[str, Tensor]:
        """The method's, and the sequences with a valid token."""
        return {**self.method.counts(mask), HIDDEN: mask.any(dim=1).sum()}

    def sums(self, teacher: Features, student: Features, mask: Tensor | None) -> dict[str, Tensor]:
        """The method's, and the relation of the hidden states, summed over sequences."""
        theirs, ours = teacher.only("hidden"), student.only("hidden")
        relation = kernels.relation_kl(
            teacher=(theirs, theirs), student=(ours, ours), relation_heads=self.relation_heads, mask=mask, reduction="none"
        )
        return {**self.method.sums(teacher, student, mask), HIDDEN: relation.sum()}


def mimicked_layer(objective: Mimicry, teacher: EncoderShape, student: EncoderShape) -> int | None:
    """The teacher layer whose queries, keys or values the student's last layer mimics.

    None where the objective reads anything else, so that the student has no tail in this sense.
    """
    theirs, ours = objective.wants(teacher, student)
    layers = {layer for each in theirs.values() for layer in each}
    last = {layer for each in ours.values() for layer in each} == {student.layers}
    if len(layers) != 1 or not last or not {*theirs, *ours} <= ATTENTION:
        return None
    return layers.pop()
