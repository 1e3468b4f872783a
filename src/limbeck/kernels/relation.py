"""The KL divergence between the self-attention relations of teacher and student, in blocks that fit the cache.

A relation is the row-wise softmax of a scaled dot-product between two features of one layer (MiniLM, section 3.2;
MiniLMv2, section 3). Written plainly it costs several (batch, heads, n, n) tensors that autograd keeps until the
backward pass. Here scores, softmax, loss and gradient of one block are formed in a single sweep and thrown away: with
p the teacher's and q the student's row, d KL(p || q) / d score = q - p, so nothing of size n x n outlives its block,
and memory grows with n.

What takes the time on a processor are the two exponentials a score, then passes over the block: those are made in place. The
products have only d_r columns; features lie as (d_r, n) for them, since many libraries are slow at narrow outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from limbeck.errors import UserError
from limbeck.kernels.heads import check_relation_heads

BLOCK_ELEMENTS = 256 * 1024
"""Scores in one block (1 MiB in float32)."""

Pair = tuple[Tensor, Tensor]


def relation_kl(
    *,
    teacher: Pair,
    student: Pair,
    relation_heads: int,
    mask: Tensor | None = None,
    pair_mask: Tensor | None = None,
    bias: tuple[Tensor | None, Tensor | None] = (None, None),
    scale: tuple[float | None, float | None] = (None, None),
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """KL(teacher || student) of the relation between two features, averaged over heads, tokens and sequences.

    For each relation head a, R_a = softmax(A_a B_a^T / sqrt(d_r)) over the valid tokens only, and per sequence
    L = 1 / (A_r |x|) sum_a sum_t KL(R^T_{a,t} || R^S_{a,t}) (MiniLM, sections 3.1 and 3.2; MiniLMv2, section 3).
    All of it runs in float32 at least whatever the autocast (float64 features stay float64).

    Args:
        teacher: the two features (A, B), each (batch, n, w_T), concatenated over the heads. No gradient flows to them.
        student: likewise (batch, n, w_S); differentiable once. The same tensor twice gives a relation such as Q-Q.
        relation_heads: A_r, the number of slices that each width is split into; it must divide w_T and w_S.
        mask: (batch, n) bool, true where a token is valid. Padding may stand anywhere. None: every token is valid.
        pair_mask: (1 or batch, 1 or A_r, n, n) bool, true where query row t may attend to key column j. It narrows
            the relation further; a row without any allowed key contributes nothing.
        bias: for teacher and student what is added to the scores before the softmax, each broadcastable to
            (batch, A_r, n, n) and finite (exclude pairs by pair_mask); the student's is differentiable.
        scale: the factors on the dot-products of teacher and student; None means 1 / sqrt(d_r), d_r = w / A_r.
        reduction: "mean" over the sequences that have a valid token, or "none" for one value a sequence.

    Returns:
        A scalar, or (batch,) with reduction "none". A sequence without valid tokens counts zero; if the whole batch
        has none the loss is zero and still carries a (zero) gradient.

    Raises:
        UserError: A_r does not divide a width (the counts that do are listed), or the shapes do not fit together.
    """
    _check_shapes(teacher, student, mask)
    _check_truth("mask", mask)
    _check_truth("pair_mask", pair_mask)
    check_relation_heads(relation_heads, teacher[0].shape[-1], student[0].shape[-1])
    scales = [
        1 / (pair[0].shape[-1] / relation_heads) ** 0.5 if given is None else given
        for given, pair in zip(scale, (teacher, student), strict=True)
    ]
    places = (*student[0].shape[:2], relation_heads)
    pairs = _expand("pair_mask", None if pair_mask is None else pair_mask.bool(), *places)
    bias_t, bias_s = (_expand("bias", each, *places) for each in bias)
    settings = _Settings(relation_heads, mask, pairs, bias_t, scales[0], scales[1], student[0] is student[1])
    with torch.autocast(student[0].device.type, enabled=False):
        per_sequence: Tensor = _RelationKL.apply(settings, *teacher, *student, bias_s)
    if reduction == "none":
        return per_sequence
    if reduction != "mean":
        raise UserError(f'relation_kl: there is no reduction {reduction!r}; choose "mean" or "none".')
    present = max(1, per_sequence.shape[0]) if mask is None else mask.bool().any(dim=1).sum().clamp(min=1)
    return per_sequence.sum() / present


def _check_shapes(teacher: Pair, student: Pair, mask: Tensor | None) -> None:
    for role, features in (("teacher", teacher), ("student", student)):
        if len(features) != 2:
            raise UserError(f"relation_kl: the {role}'s features must be a pair, such as (q, q) or (q, k).")
    places = student[0].shape[:2]
    for role, (a, b) in (("teacher", teacher), ("student", student)):
        if a.dim() != 3 or a.shape != b.shape or a.shape[:2] != places:
            raise UserError(
                f"relation_kl: the {role}'s features have shapes {tuple(a.shape)} and {tuple(b.shape)}; both must be "
                f"(batch, n, width) with batch and n as in the student's first, {tuple(places)}."
            )
    if mask is not None and mask.shape != places:
        raise UserError(f"relation_kl: the mask has shape {tuple(mask.shape)}; it must be {tuple(places)}.")


def _check_truth(name: str, mask: Tensor | None) -> None:
    if mask is not None and mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise UserError(f"relation_kl: the {name} must be bool, or hold 0 and 1 alone; it is no additive mask.")


def _expand(name: str, table: Tensor | None, batch: int, length: int, heads: int) -> Tensor | None:
    """Broadcast a pair mask or a bias to (batch, A_r, n, n) without copying it."""
    if table is None:
        return None
    try:
        return table.expand(batch, heads, length, length)
    except RuntimeError:
        raise UserError(
            f"relation_kl: the {name} has shape {tuple(table.shape)}, which does not broadcast to (batch, A_r, n, n) = "
            f"{(batch, heads, length, length)}."
        ) from None


@dataclass(frozen=True)
class _Settings:
    """What the loss reads beside the features and the student's bias."""

    heads: int
    mask: Tensor | None
    pair_mask: Tensor | None
    teacher_bias: Tensor | None
    teacher_scale: float
    student_scale: float
    symmetric: bool

    @property
    def has_tables(self) -> bool:
        return self.pair_mask is not None or self.teacher_bias is not None


class _RelationKL(torch.autograd.Function):
    """Loss and gradient in one sweep; the backward pass only multiplies by what comes from above."""

    @staticmethod
    def forward(
        ctx: Any, settings: _Settings, a_t: Tensor, b_t: Tensor, a_s: Tensor, b_s: Tensor, bias_s: Tensor | None
    ) -> Tensor:
        work = torch.promote_types(torch.promote_types(a_t.dtype, a_s.dtype), torch.float32)
        losses = torch.zeros(a_s.shape[0], dtype=work, device=a_s.device)
        gradients = _Gradients.like(a_s, b_s, bias_s, settings.symmetric, work) if any(ctx.needs_input_grad) else None
        for group in _groups(a_s, settings.mask, settings.heads):
            teacher, student = group.take(a_t, b_t, work), group.take(a_s, b_s, work)
            slopes = None if gradients is None else gradients.slopes(student[0])
            kl = losses.new_zeros(len(student[0]))
            largest = min(len(kl) * group.length**2, max(BLOCK_ELEMENTS, group.length))
            scratch = [kl.new_empty(largest) for _ in range(4)]
            for block in _blocks(len(kl), group.length):
                index = group.index(block) if settings.has_tables or bias_s is not None else ()
                allowed = None if settings.pair_mask is None else settings.pair_mask[index]
                t, s, p, q = (block.view(each, group.length) for each in scratch)
                _scores(teacher, block, settings.teacher_scale, settings.teacher_bias, index, t)
                _scores(student, block, settings.student_scale, bias_s, index, s)
                block_loss, slope = _kl_and_slope(t, s, p, q, allowed)
                kl[block.matrices] += block_loss
                if gradients is not None and slopes is not None:
                    _add_products(slope, student, block, slopes)
                    if gradients.bias is not None:
                        gradients.bias[index] = slope * group.mean
            losses[group.rows] = kl.view(-1, settings.heads).sum(dim=1) * group.mean
            if gradients is not None and slopes is not None:
                gradients.store(slopes, group, settings.student_scale * group.mean)
        if gradients is not None:
            ctx.save_for_backward(gradients.a, gradients.b, gradients.bias)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        a, b, bias = (
            None if gradient is None else gradient * weight.to(gradient.dtype).view(-1, *[1] * (gradient.dim() - 1))
            for gradient in ctx.saved_tensors
        )
        return None, None, None, a, b, bias


@dataclass(frozen=True)
class _Block:
    """A piece of the scores: some of the group's matrices, some of their rows, all columns."""

    matrices: slice
    rows: slice

    def view(self, scratch: Tensor, length: int) -> Tensor:
        """(matrices, rows, length) in the beginning of a buffer."""
        shape = self.matrices.stop - self.matrices.start, self.rows.stop - self.rows.start, length
        return scratch[: math.prod(shape)].view(shape)


def _blocks(matrices: int, length: int) -> Iterator[_Block]:
    """Whole matrices while several fit into a block, else bands of one matrix's rows."""
    rows = max(1, min(length, BLOCK_ELEMENTS // length))
    step = max(1, BLOCK_ELEMENTS // length**2)
    for first in range(0, matrices, step):
        for row in range(0, length, rows):
            yield _Block(slice(first, min(first + step, matrices)), slice(row, min(row + rows, length)))


@dataclass(frozen=True)
class _Group:
    """Sequences with equally many valid tokens: rectangular blocks without any padding."""

    rows: Tensor
    """(g,) which sequences of the batch."""
    tokens: Tensor | None
    """(g, length) the positions of their valid tokens; None when every token of the batch is valid."""
    length: int
    heads: int

    @property
    def mean(self) -> float:
        """1 / (A_r |x|)."""
        return 1 / (self.heads * self.length)

    def take(self, a: Tensor, b: Tensor, dtype: torch.dtype) -> Pair:
        """Of both (batch, n, w) the valid tokens head by head, (g * heads, w / heads, length); one if they are one."""
        first = self._take(a, dtype)
        return first, first if b is a else self._take(b, dtype)

    def _take(self, feature: Tensor, dtype: torch.dtype) -> Tensor:
        if self.tokens is not None:
            feature = feature[self.rows[:, None], self.tokens]
        turned = feature.transpose(1, 2).contiguous().to(dtype)
        return turned.view(len(self.rows) * self.heads, -1, self.length)

    def put(self, slopes: Tensor, gradient: Tensor) -> None:
        """The inverse of `take`: (g * heads, d, length) into its places in (batch, n, w)."""
        joined = slopes.view(len(self.rows), -1, self.length).transpose(1, 2).to(gradient.dtype)
        if self.tokens is None:
            gradient.copy_(joined)
        else:
            gradient[self.rows[:, None], self.tokens] = joined

    def index(self, block: _Block) -> tuple[Tensor, ...]:
        """Where the block's scores stand in a (batch, A_r, n, n) table."""
        matrix = torch.arange(block.matrices.start, block.matrices.stop, device=self.rows.device)[:, None, None]
        member = matrix // self.heads
        tokens = torch.arange(self.length, device=self.rows.device).expand(len(self.rows), -1)
        tokens = tokens if self.tokens is None else self.tokens
        return (
            self.rows[member],
            matrix % self.heads,
            tokens[member[:, 0, 0]][:, block.rows, None],
            tokens[member[:, 0, 0]][:, None, :],
        )


def _groups(feature: Tensor, mask: Tensor | None, heads: int) -> Iterator[_Group]:
    """The sequences of a batch by their number of valid tokens, so that padding costs nothing."""
    batch, length = feature.shape[:2]
    if mask is None or bool(mask.all()):
        if batch and length:
            yield _Group(torch.arange(batch, device=feature.device), None, length, heads)
        return
    counts = mask.bool().sum(dim=1)
    for count in sorted(set(counts.tolist()) - {0}):
        rows = (counts == count).nonzero().flatten()
        tokens = mask[rows].nonzero()[:, 1].view(len(rows), count)
        yield _Group(rows, tokens, count, heads)


def _scores(pair: Pair, block: _Block, scale: float, bias: Tensor | None, index: tuple[Tensor, ...], out: Tensor) -> None:
    """Write one block's scaled dot-products plus the bias, (matrices, rows, length)."""
    a, b = pair
    rows = a[block.matrices, :, block.rows].transpose(1, 2)
    torch.baddbmm(out, rows, b[block.matrices], beta=0, alpha=scale, out=out)
    if bias is not None:
        out.add_(bias[index])


def _kl_and_slope(t: Tensor, s: Tensor, p: Tensor, q: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """KL(softmax t || softmax s) summed for each matrix, and its derivative q - p by the student's scores.

    All four are overwritten; p and q are room for the probabilities, and q holds the derivative in the end.
    """
    if allowed is not None:
        for scores in (t, s):
            scores.masked_fill_(~allowed, float("-inf"))
    torch.softmax(t, dim=-1, out=p)
    torch.softmax(s, dim=-1, out=q)
    normaliser = _normaliser(t, p) - _normaliser(s, q)
    difference = t.sub_(s)
    if allowed is not None:  # -inf - (-inf), and rows without any allowed key
        for each in (p, q, difference):
            each.masked_fill_(~allowed, 0)
        normaliser.masked_fill_(~allowed.any(dim=-1), 0)
    slope = q.sub_(p)
    return difference.mul_(p).sum(dim=(1, 2)) - normaliser.sum(dim=-1), slope


def _normaliser(scores: Tensor, probabilities: Tensor) -> Tensor:
    """The logarithm of each row's sum of exponentials without another one: a row's largest probability is 1 / z."""
    return scores.amax(dim=-1) - probabilities.amax(dim=-1).log()


def _add_products(slope: Tensor, student: Pair, block: _Block, slopes: Pair) -> None:
    """Carry d loss / d scores of one block over to the features: G B to the rows of A, G^T A to B."""
    a, b = student
    slopes[0][block.matrices, :, block.rows] += torch.bmm(b[block.matrices], slope.transpose(1, 2))
    slopes[1][block.matrices].baddbmm_(a[block.matrices, :, block.rows], slope)


@dataclass(frozen=True)
class _Gradients:
    """The gradients by the student's tensors, for a weight of one on every sequence's loss."""

    a: Tensor
    b: Tensor | None
    """None for a symmetric relation, where `a` holds the sum for the one tensor that was passed twice."""
    bias: Tensor | None

    @classmethod
    def like(cls, a: Tensor, b: Tensor, bias: Tensor | None, symmetric: bool, dtype: torch.dtype) -> _Gradients:
        """Zeros for the gradients that are wanted."""
        return cls(
            torch.zeros_like(a),
            None if symmetric else torch.zeros_like(b),
            torch.zeros(bias.shape, dtype=dtype, device=bias.device) if bias is not None and bias.requires_grad else None,
        )

    def slopes(self, feature: Tensor) -> Pair:
        """Sums in the working precision for one group's features; one and the same for a symmetric relation."""
        a = torch.zeros_like(feature)
        return a, a if self.b is None else torch.zeros_like(a)

    def store(self, slopes: Pair, group: _Group, factor: float) -> None:
        """Put one group's finished sums into place."""
        group.put(slopes[0].mul_(factor), self.a)
        if self.b is not None:
            group.put(slopes[1].mul_(factor), self.b)
