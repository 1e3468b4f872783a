"""Attention with dropout in blocks that fit the cache, for training on a processor.

torch's own either has no dropout or keeps three (batch, heads, n, n) tensors until the backward pass. Here a block's scores
and softmax are formed, used and thrown away, and formed once more in the backward pass; what dropout keeps is remembered, in a
byte each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from limbeck.kernels.dropout import draw_kept, scale_of

BLOCK_ELEMENTS = 256 * 1024
"""Scores in one block (1 MiB in float32), at least one matrix."""


@torch.compiler.disable  # type: ignore[untyped-decorator]  # blocks of the cache's size are not to be unrolled
def attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, added: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """softmax(Q K^T scale + added) V, with dropout on the softmax; in float32 at least.

    Args:
        query: (batch, heads, n, d), on a processor; differentiable once, as are the other two.
        key: (batch, heads, m, d).
        value: likewise.
        scale: the factor on the dot products.
        added: added to the scores, broadcastable to (batch, heads, n, m); finite, such as the least number of its type where a
            token may not attend.
        dropout: the share of the softmax that is dropped; random numbers come of torch's generator of the processor.

    Returns:
        (batch, heads, n, d), of the query's type.
    """
    if added is not None:
        added = added.expand(*query.shape[:3], key.shape[2])
    result: Tensor = _Attention.apply(query, key, value, scale, added, dropout)
    return result


class _Attention(torch.autograd.Function):
    """Forms the attention maps twice, and keeps none."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, added: Tensor | None, dropout: float
    ) -> Tensor:
        maps = _Maps(query, key, scale, added)
        values = _matrices(value, maps.dtype)
        kept = torch.empty(maps.shape, dtype=torch.uint8) if dropout else None
        if dropout:
            values = values * scale_of(dropout)
        out = torch.empty_like(maps.queries)
        for block, weights in maps:
            if kept is not None:
                weights.mul_(draw_kept(kept[block], dropout))
            torch.bmm(weights, values[block], out=out[block])
        result = out.view(query.shape).to(query.dtype)
        ctx.save_for_backward(query, key, value, added, kept, result)
        ctx.scale, ctx.dropout = scale, dropout
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, added, kept, result = ctx.saved_tensors
        maps = _Maps(query, key, ctx.scale, added)
        values, above = _matrices(value, maps.dtype), _matrices(gradient, maps.dtype)
        # What the softmax's backward pass subtracts: sum_j P_ij dP_ij = <out_i, d out_i>.
        shift = torch.linalg.vecdot(_matrices(result, maps.dtype), above)[..., None]
        above = above * scale_of(ctx.dropout)
        by_query, by_key, by_value = torch.empty_like(maps.queries), torch.empty_like(maps.keys), torch.empty_like(values)
        slopes = maps.room()
        for block, weights in maps:
            slope = torch.bmm(above[block], values[block].transpose(1, 2), out=slopes[: len(weights)])
            if kept is not None:
                slope.mul_(kept[block])
            slope.sub_(shift[block]).mul_(weights)
            if kept is not None:
                weights.mul_(kept[block])
            torch.bmm(weights.transpose(1, 2), above[block], out=by_value[block])
            torch.bmm(slope, maps.keys[block], out=by_query[block])
            torch.bmm(slope.transpose(1, 2), maps.queries[block], out=by_key[block])
        return (
            by_query.mul_(ctx.scale).view(query.shape).to(query.dtype),
            by_key.mul_(ctx.scale).view(key.shape).to(key.dtype),
            by_value.view(value.shape).to(value.dtype),
            None,
            None,
            None,
        )


def _matrices(feature: Tensor, dtype: torch.dtype) -> Tensor:
    """(batch, heads, n, d) -> (batch * heads, n, d), contiguous in the working precision."""
    return feature.contiguous().flatten(0, 1).to(dtype)


class _Maps:
    """The attention maps without dropout, block by block."""

    def __init__(self, query: Tensor, key: Tensor, scale: float, added: Tensor | None) -> None:
        self.dtype = torch.promote_types(query.dtype, torch.float32)
        self.queries, self.keys = _matrices(query, self.dtype), _matrices(key, self.dtype)
        self.shape = (len(self.queries), self.queries.shape[1], self.keys.shape[1])
        self._scale, self._added, self._heads = scale, added, query.shape[1]
        self._step = max(1, min(self.shape[0], BLOCK_ELEMENTS // (self.shape[1] * self.shape[2])))

    def room(self) -> Tensor:
        """A block's size."""
        return self.queries.new_empty(self._step, *self.shape[1:])

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Some of the matrices, and their softmax, which may be written over."""
        all_scores, all_weights = self.room(), self.room()
        for first in range(0, self.shape[0], self._step):
            block = slice(first, min(first + self._step, self.shape[0]))
            scores, weights = (each[: block.stop - first] for each in (all_scores, all_weights))
            keys = self.keys[block].transpose(1, 2)
            torch.baddbmm(scores, self.queries[block], keys, beta=0, alpha=self._scale, out=scores)
            if self._added is not None:
                matrix = torch.arange(first, block.stop)
                scores.add_(self._added[matrix // self._heads, matrix % self._heads])
            torch.softmax(scores, dim=-1, out=weights)
            yield block, weights
