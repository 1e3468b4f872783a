"""Batches as a pure function of (seed, position): nothing random is remembered, so any run can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from limbeck.data.packing import Packed, pack
from limbeck.data.tokens import Tokens
from limbeck.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, Tensor]
"""Inputs of a model: input_ids (batch, n), and attention_mask (batch, n) where something is padded."""


class Source(Protocol):
    """Where a training stage's examples come from."""

    def __len__(self) -> int:
        """Examples in an epoch."""

    def examples(self, position: int, count: int) -> list[int]:
        """The numbers of the examples that stand at `position` (examples since the run's start) and after it."""

    def collate(self, examples: list[int]) -> Batch:
        """Put these examples into one batch."""


@dataclass(frozen=True)
class Special:
    """The tokens that frame a block."""

    begin: int
    end: int
    pad: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Special:
        """[CLS], [SEP] and [PAD] of a tokenizer.

        Raises:
            UserError: the tokenizer lacks one of them.
        """
        begin, end, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        if begin is None or end is None or pad is None:
            raise UserError("The tokenizer has no [CLS], [SEP] or padding token; an encoder's tokenizer has all three.")
        return cls(begin, end, pad)


class PackedSource:
    """Blocks of a packed corpus, in another order each epoch."""

    def __init__(self, tokens: Tokens, special: Special, max_length: int, seed: int) -> None:
        self.empty_units = tokens.empty
        """Units of the corpus that became no token and were dropped."""
        self._ids = tokens.ids
        self._special = special
        self._max_length = max_length
        self._seed = seed
        self._packed: Packed = pack(tokens, max_length - 2)
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._packed)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the blocks' content, wherever the text lies."""
        packed, digest = self._packed, blake2b(f"{self._special} {self._max_length}".encode(), digest_size=16)
        for array in (self._ids, packed.blocks, packed.starts, packed.lengths, packed.separated):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @property
    def tokens(self) -> int:
        """Real tokens in an epoch, special ones included."""
        return int(self._packed.lengths.sum() + self._packed.separated.sum()) + 2 * len(self)

    def examples(self, position: int, count: int) -> list[int]:
        """The blocks at `position` and after it; each comes once an epoch, and epochs follow without a gap."""
        return [int(self._epoch_order(place // len(self))[place % len(self)]) for place in range(position, position + count)]

    def collate(self, examples: list[int]) -> Batch:
        """[CLS] block [SEP], padded on the right to the longest; input_ids (batch, n) int64."""
        rows = [self._block(example) for example in examples]
        length = max(map(len, rows))
        input_ids = np.full((len(rows), length), self._special.pad, dtype=np.int64)
        mask = np.zeros((len(rows), length), dtype=np.bool_)
        for place, row in enumerate(rows):
            input_ids[place, : len(row)] = row
            mask[place, : len(row)] = True
        batch = {"input_ids": torch.from_numpy(input_ids)}
        return batch if mask.all() else batch | {"attention_mask": torch.from_numpy(mask)}

    def in_order(self, size: int) -> Iterator[Batch]:
        """Every block once, in the corpus's order, for evaluation."""
        for first in range(0, len(self), size):
            yield self.collate(list(range(first, min(first + size, len(self)))))

    def _block(self, number: int) -> NDArray[np.int64]:
        special = self._special
        parts: list[NDArray[np.int64] | list[int]] = [[special.begin]]
        for piece in range(self._packed.blocks[number], self._packed.blocks[number + 1]):
            if self._packed.separated[piece]:
                parts.append([special.end])
            start = self._packed.starts[piece]
            parts.append(self._ids[start : start + self._packed.lengths[piece]].astype(np.int64))
        return np.concatenate([*parts, [special.end]])

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self))
            self._epoch = epoch
        return self._order


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on another device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def valid_tokens(batch: Batch) -> Tensor:
    """(batch, n) bool: true where a token is no padding."""
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
