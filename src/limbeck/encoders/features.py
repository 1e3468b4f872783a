"""Features that were captured of one encoder, and what objectives compare of them.

Projections are captured before rotary positions, and before keys and values are repeated for the heads of queries that they
serve, which is what relations slice. The scores of a model's own attention are rebuilt from them here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from limbeck.encoders.shape import EncoderShape


@dataclass(frozen=True)
class Attention:
    """What the attention distributions of one layer come of: softmax(q k^T / sqrt(d_head) + bias) over the allowed pairs."""

    q: Tensor
    """(batch, n, heads x d_head), rotary positions applied."""
    k: Tensor
    """Likewise, each head repeated for the queries' heads that it serves."""
    bias: Tensor | None
    """(batch, heads, n, n), added to the scaled scores."""
    pair_mask: Tensor | None
    """(1, 1, n, n) bool, true where a token may attend; None where each may to all."""


@dataclass(frozen=True)
class Features:
    """What was read of one encoder in one forward pass."""

    shape: EncoderShape
    """The encoder's sizes."""
    tensors: dict[str, dict[int, Any]] = field(default_factory=dict)
    """feature -> layer -> (batch, n, width); of "positions" what the layer's attention was given."""

    def only(self, feature: str) -> Any:
        """The feature of the one layer it was read from, (batch, n, width)."""
        (tensor,) = self.tensors[feature].values()
        return tensor

    def pair(self, relation: str) -> tuple[Tensor, Tensor]:
        """The two features of a relation such as "qk", from the one layer that was captured.

        In a relation of two features, keys and values that serve several of the queries' heads are repeated for them.
        """
        if relation[0] == relation[1]:
            return self.only(relation[0]), self.only(relation[0])
        a, b = (self.only(feature) if feature == "q" else self._repeated(feature) for feature in relation)
        return a, b

    def attention(self) -> Attention:
        """What the attention distributions of the one captured layer come of, for the kernels.

        What `EncoderShape.attention_features` names was captured, of an encoder whose scores can be rebuilt.
        """
        q, k = self.only("q"), self._repeated("k")
        (layer,) = self.tensors["q"]
        bias = None
        if self.shape.scores == "rotary":
            cosines, sines = self.only("positions")
            q, k = (_turned(each, cosines, sines, self.shape.head_width) for each in (q, k))
        elif self.shape.scores == "biased":
            bias = self.only("positions")
        return Attention(q, k, bias, _window(self.shape.windows[layer - 1], q))

    def split(self, sizes: Sequence[int]) -> list[Features]:
        """The features of each of several batches, of so many sequences, that were read as one."""
        parts = [Features(self.shape) for _ in sizes]
        for feature, layers in self.tensors.items():
            for layer, whole in layers.items():
                for part, piece in zip(parts, _pieces(whole, sizes), strict=True):
                    part.tensors.setdefault(feature, {})[layer] = piece
        return parts

    def _repeated(self, feature: str) -> Tensor:
        """Keys or values, each head as often as there are heads of queries that it serves."""
        tensor: Tensor = self.only(feature)
        heads, stored = self.shape.heads, self.shape.key_value_heads
        if heads == stored:
            return tensor
        split = tensor.view(*tensor.shape[:2], stored, -1)
        return split.repeat_interleave(heads // stored, dim=2).flatten(2)


def _pieces(whole: Any, sizes: Sequence[int]) -> list[Any]:
    """A feature of each batch; positions may be several tensors, and the same for all sequences."""
    if isinstance(whole, tuple):
        return list(zip(*(_pieces(each, sizes) for each in whole), strict=True))
    return list(whole.split(list(sizes))) if len(whole) == sum(sizes) else [whole] * len(sizes)


def _turned(feature: Tensor, cosines: Tensor, sines: Tensor, head_width: int) -> Tensor:
    """Rotary positions: (batch, n, heads x d) with each head turned by (1 or batch, n, d), in float32 at least."""
    wide = torch.promote_types(feature.dtype, torch.float32)
    heads = feature.to(wide).view(*feature.shape[:2], -1, head_width)
    first, second = heads.chunk(2, dim=-1)
    turned = heads * cosines[:, :, None] + torch.cat((-second, first), dim=-1) * sines[:, :, None]
    return turned.to(feature.dtype).flatten(2)


def _window(reach: int | None, feature: Tensor) -> Tensor | None:
    if reach is None:
        return None
    places = torch.arange(feature.shape[1], device=feature.device)
    return ((places[:, None] - places).abs() <= reach)[None, None]
