"""Batches as a pure function of (seed, position): nothing random is remembered, so any run can be taken up anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.data.packing import Packed, Packing, pack
from limbeck.data.tokens import Shard, Tokens
from limbeck.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, Tensor]
"""Inputs of a model: input_ids (batch, n); attention_mask where something is padded; token_type_ids for pairs. Examples with
labels have these beside them."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What of a batch a model is given; anything else is what it is trained towards."""
WINDOW = 4096
"""Examples of an epoch's random order within which those of a length are brought together, where lengths differ."""
RUN = 64
"""How many of about one length follow each other."""


class Row(NamedTuple):
    """The tokens of an example."""

    ids: NDArray[np.int64]
    """(n,) special tokens included."""
    second: int
    """Where its second text begins; n if there is none."""


class Seen(NamedTuple):
    """What the first examples of a run hold."""

    ids: NDArray[np.bool_]
    """(vocabulary,) which ids, those of the frame included; padding is nothing that is seen."""
    longest: int
    """Tokens of the longest."""
    segments: int


@dataclass(frozen=True)
class Frame:
    """The tokens that frame a sequence: begin A end, or begin A end B end."""

    begin: int
    end: int
    pad: int
    between: int = 1
    """How many end tokens stand between the two texts of a pair; RoBERTa has two."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Frame:
        """[CLS], [SEP] and [PAD] of a tokenizer, and how it joins a pair; some, as EuroBERT's, begin and end with others.

        Raises:
            UserError: the tokenizer lacks one of them.
        """
        begin = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
        end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
        pad = tokenizer.pad_token_id
        if begin is None or end is None or pad is None:
            raise UserError(
                "The tokenizer has no token to begin with ([CLS]), to end with ([SEP]) or to pad with; an encoder's has "
                "all three."
            )
        pair = tokenizer("a", "a")["input_ids"]  # two empty texts would count as one
        return cls(begin, end, pad, max(1, pair.count(end) - 1))

    def width(self, packing: Packing) -> int:
        """How many tokens of a sequence frame its text."""
        return 2 + self.between if packing == "pairs" else 2


@dataclass(frozen=True)
class Portion:
    """Text packed to one length."""

    tokens: Tokens
    packed: Packed
    max_length: int
    """Tokens in a sequence, special ones included."""
    share: float = 1.0
    """How often an epoch draws each of its sequences, on average."""

    @classmethod
    def of(cls, tokens: Tokens, frame: Frame, packing: Packing, max_length: int, share: float = 1.0) -> Portion:
        """Pack text."""
        return cls(tokens, pack(tokens, packing, max_length - frame.width(packing)), max_length, share)

    @property
    def draws(self) -> int:
        """Sequences that an epoch draws from it."""
        return max(1, round(len(self.packed) * self.share))


class Source(ABC):
    """Where a training stage's examples come from: rows of tokens, in another order each epoch.

    Where rows differ in length, those of about one length follow each other, so that a batch holds little padding.

    Args:
        lengths: (examples,) tokens of each row, special ones included.
        pad: the id that fills shorter rows.
        segments: whether a batch tells a row's second text from its first.
        mixed: whether rows of about one length are to be brought together.
        seed: decides the order of the examples.
    """

    def __init__(self, lengths: NDArray[np.int64], *, pad: int, segments: bool, mixed: bool, seed: int) -> None:
        self._lengths, self._pad, self._segments, self._mixed, self._seed = lengths, pad, segments, mixed, seed
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @abstractmethod
    def __len__(self) -> int:
        """Examples in an epoch."""

    @property
    @abstractmethod
    def max_length(self) -> int:
        """The usual length, which a micro-batch is measured by."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """About how many real tokens an epoch has, special ones included."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the examples: what a run must find again to go on."""

    @abstractmethod
    def _row(self, example: int) -> Row:
        """The tokens of an example."""

    @abstractmethod
    def _drawn(self, epoch: int) -> NDArray[np.int64]:
        """The examples of an epoch, in no particular order."""

    @property
    def longest(self) -> int:
        """The length of the longest row there is."""
        return int(self._lengths.max())

    def examples(self, position: int, count: int) -> list[int]:
        """The numbers of the examples at `position` (examples since the run's start) and after it.

        Epochs follow each other without a gap.
        """
        epochs = (divmod(place, len(self)) for place in range(position, position + count))
        return [int(self._epoch_order(epoch)[place]) for epoch, place in epochs]

    def split(self, examples: list[int], size: int) -> Iterator[list[int]]:
        """Split examples into micro-batches of at most `size` of the usual length, or as many tokens of longer ones."""
        part: list[int] = []
        longest = self.max_length
        for example in examples:
            longest = max(longest, int(self._lengths[example]))
            if part and longest * (len(part) + 1) > size * self.max_length:
                yield part
                part, longest = [], max(self.max_length, int(self._lengths[example]))
            part.append(example)
        if part:
            yield part

    def collate(self, examples: list[int]) -> Batch:
        """The rows, padded on the right to the longest; each tensor (batch, n)."""
        rows = [self._row(example) for example in examples]
        length = max(len(row.ids) for row in rows)
        input_ids = np.full((len(rows), length), self._pad, dtype=np.int64)
        mask = np.zeros((len(rows), length), dtype=np.bool_)
        segments = np.zeros((len(rows), length), dtype=np.int64)
        for place, (ids, second) in enumerate(rows):
            input_ids[place, : len(ids)] = ids
            mask[place, : len(ids)] = True
            segments[place, second : len(ids)] = 1
        batch = {"input_ids": torch.from_numpy(input_ids)}
        if not mask.all():
            batch["attention_mask"] = torch.from_numpy(mask)
        if self._segments:
            batch["token_type_ids"] = torch.from_numpy(segments)
        return batch

    def in_order(self, size: int) -> Iterator[list[int]]:
        """Every example once, the short ones first, in micro-batches as `split` makes them: for evaluation."""
        return self.split(np.argsort(self._lengths, kind="stable").tolist(), size)

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            draw = np.random.default_rng([self._seed, epoch])
            order = self._drawn(epoch)
            order = order[draw.permutation(len(order))]
            self._order = _by_length(order, self._lengths, epoch, draw) if self._mixed else order
            self._epoch = epoch
        return self._order


class LabelledSource(Source):
    """Rows of tokens that are there already, with what is to be said of each.

    Args:
        rows: at least one.
        targets: name -> (examples, ...); a batch holds their rows beside the model's inputs.
        pad: the id that fills shorter rows.
        segments: whether any row has a second text.
        seed: decides the order of the examples.
    """

    def __init__(self, rows: Sequence[Row], targets: Mapping[str, Tensor], *, pad: int, segments: bool, seed: int) -> None:
        lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
        super().__init__(lengths, pad=pad, segments=segments, mixed=True, seed=seed)
        self._rows, self._targets = tuple(rows), dict(targets)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def max_length(self) -> int:
        """That of the longest row."""
        return self.longest

    @property
    def tokens(self) -> int:
        """The real tokens of an epoch, special ones included."""
        return int(self._lengths.sum())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of rows and targets."""
        digest = blake2b(digest_size=16)
        for row in self._rows:
            digest.update(f"{len(row.ids)} {row.second}".encode())
            digest.update(np.ascontiguousarray(row.ids, dtype=np.int64).data)
        for name, values in sorted(self._targets.items()):
            digest.update(f"{name} {tuple(values.shape)} {values.dtype}".encode())
            digest.update(values.contiguous().numpy().data)
        return digest.hexdigest()

    def collate(self, examples: list[int]) -> Batch:
        """The rows as `Source.collate` has them, and their targets."""
        return super().collate(examples) | {name: values[examples] for name, values in self._targets.items()}

    def _row(self, example: int) -> Row:
        return self._rows[example]

    def _drawn(self, epoch: int) -> NDArray[np.int64]:
        return np.arange(len(self))


class PackedSource(Source):
    """Sequences of packed text.

    Args:
        portions: what the text was packed to.
        frame: the tokens that frame a sequence.
        packing: how the text was packed; "pairs" are split in two where they are put into a batch.
        seed: decides the order of the examples and where pairs are split.
    """

    def __init__(self, portions: Sequence[Portion], frame: Frame, packing: Packing, seed: int) -> None:
        lengths = np.concatenate([portion.packed.sizes for portion in portions]) + frame.width(packing)
        mixed = packing == "single" or len({portion.max_length for portion in portions}) > 1
        super().__init__(lengths, pad=frame.pad, segments=packing == "pairs", mixed=mixed, seed=seed)
        self._portions = tuple(portions)
        self._frame = frame
        self._packing = packing
        self._firsts = list(accumulate((len(portion.packed) for portion in portions[:-1]), initial=0))

    def __len__(self) -> int:
        return sum(portion.draws for portion in self._portions)

    @property
    def max_length(self) -> int:
        """The usual length, which most sequences do not exceed."""
        return min(portion.max_length for portion in self._portions)

    @property
    def tokens(self) -> int:
        """About how many real tokens an epoch has, special ones included."""
        sizes = np.split(self._lengths, self._firsts[1:])
        return round(sum(float(size.mean()) * part.draws for size, part in zip(sizes, self._portions, strict=True)))

    @property
    def real_share(self) -> float:
        """The share of positions that are real tokens, if each sequence were padded to its portion's length."""
        return self.tokens / sum(portion.draws * portion.max_length for portion in self._portions)

    @property
    def empty_units(self) -> int:
        """Units of the text that became no token and were dropped."""
        return sum(shard.empty for shard in self._shards)

    @property
    def unknown_share(self) -> float:
        """The share of the text's tokens that the tokenizer does not know."""
        return sum(shard.unknown for shard in self._shards) / sum(len(shard.ids) for shard in self._shards)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the text and of how it was packed: what a run must find again to go on."""
        parts = [
            f"{portion.tokens.fingerprint} {len(portion.packed)} {portion.max_length} {portion.draws}"
            for portion in self._portions
        ]
        return blake2b("\n".join([self._packing, *parts]).encode(), digest_size=16).hexdigest()

    def seen(self, examples: int, vocabulary: int) -> Seen:
        """What the first `examples` of a run hold, at least one, read from the stored tokens.

        Args:
            examples: over all epochs.
            vocabulary: ids that there are.
        """
        drawn = self._drawn_by(examples)
        ids = np.zeros(vocabulary, dtype=np.bool_)
        ids[[self._frame.begin, self._frame.end]] = True
        for first, portion in zip(self._firsts, self._portions, strict=True):
            portion.tokens.mark(*portion.packed.places(drawn[first : first + len(portion.packed)]), ids)
        text = int(self._lengths[drawn].max()) - self._frame.width(self._packing)
        return Seen(ids, self._longest_of(drawn), 2 if self._packing == "pairs" and text > 1 else 1)

    def _longest_of(self, drawn: NDArray[np.bool_]) -> int:
        """Tokens of the longest sequence among some: a pair has one fewer than reckoned where a separator was its cut."""
        longest, examples = 0, np.flatnonzero(drawn)
        for example in examples[np.argsort(-self._lengths[examples], kind="stable")].tolist():
            if longest >= self._lengths[example]:
                break
            longest = max(longest, len(self._row(example).ids))
        return longest

    def _drawn_by(self, examples: int) -> NDArray[np.bool_]:
        """(sequences,) which of all sequences are among the first examples of a run."""
        drawn = np.zeros(len(self._lengths), dtype=np.bool_)
        for epoch in range(-(-examples // len(self))):
            drawn[self._epoch_order(epoch)[: examples - epoch * len(self)]] = True
            if drawn.all():
                break
        return drawn

    @property
    def _shards(self) -> list[Shard]:
        return list({id(shard): shard for portion in self._portions for shard in portion.tokens.shards}.values())

    def _row(self, example: int) -> Row:
        """A sequence in its frame."""
        frame = self._frame
        texts = self._texts(example)
        if self._packing == "pairs" and (cut := self._cut(example, texts)):
            first, second = cut
            between = [frame.end] * frame.between
            row = np.concatenate([[frame.begin], first, between, second, [frame.end]])
            return Row(row, len(row) - len(second) - 1)
        row = np.concatenate([[frame.begin], *texts, [frame.end]])
        return Row(row, len(row))

    def _texts(self, example: int) -> list[NDArray[np.int64]]:
        """The pieces of a sequence, each with the separator that stands in front of it."""
        number = bisect_right(self._firsts, example) - 1
        portion = self._portions[number]
        packed, block = portion.packed, example - self._firsts[number]
        texts = []
        for piece in range(packed.blocks[block], packed.blocks[block + 1]):
            ids = portion.tokens.read(int(packed.starts[piece]), int(packed.lengths[piece]))
            texts.append(np.concatenate([[self._frame.end], ids]) if packed.separated[piece] else ids)
        return texts

    def _cut(self, example: int, texts: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Split a sequence in two: between two of its pieces, or else somewhere in its middle half."""
        draw = np.random.default_rng([self._seed, example])
        if len(texts) > 1:
            place = int(draw.integers(1, len(texts)))
            second = np.concatenate(texts[place:])
            return np.concatenate(texts[:place]), second[1:] if second[0] == self._frame.end else second
        (text,) = texts
        if len(text) < 2:
            return None
        place = int(draw.integers(len(text) // 4, len(text) - len(text) // 4)) or 1
        return text[:place], text[place:]

    def _drawn(self, epoch: int) -> NDArray[np.int64]:
        return np.concatenate([self._drawn_of(number, epoch) for number in range(len(self._portions))])

    def _drawn_of(self, number: int, epoch: int) -> NDArray[np.int64]:
        """The sequences of a portion that an epoch draws: they go on in a random order where the last epoch ended."""
        portion, first = self._portions[number], self._firsts[number]
        size, start = len(portion.packed), epoch * portion.draws
        if portion.draws == size:
            return np.arange(first, first + size)
        end = start + portion.draws
        rounds = range(start // size, (end - 1) // size + 1)
        orders = [np.random.default_rng([self._seed, number, each]).permutation(size) for each in rounds]
        offset = start - rounds[0] * size
        drawn: NDArray[np.int64] = first + np.concatenate(orders)[offset : offset + portion.draws]
        return drawn


def _by_length(order: NDArray[np.int64], lengths: NDArray[np.int64], epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Bring examples of about one length together: sort each window of an epoch's random order, then shuffle its runs.

    Both are counted from the first epoch's beginning, so that batches whose size divides a run's lie within one in every
    epoch. The parts of a run at an epoch's ends stay there, and epochs are sorted this way and that way in turn, so that
    these parts fit each other.
    """
    start = epoch * len(order)
    places = start + np.arange(len(order))
    windows, runs = places // WINDOW, places // RUN - start // RUN
    order = order[np.lexsort((-lengths[order] if epoch % 2 else lengths[order], windows))]
    keys = draw.random(runs[-1] + 1)
    if start % RUN:
        keys[0] = -1.0
    if (start + len(order)) % RUN:
        keys[-1] = 1.0
    return order[np.lexsort((places, keys[runs], windows))]


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on another device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def model_inputs(batch: Batch) -> Batch:
    """What of a batch a model is given; its mask as numbers, with which some families calculate."""
    return {name: tensor.long() for name, tensor in batch.items() if name in INPUTS}


def valid_tokens(batch: Batch) -> Tensor:
    """(batch, n) bool: true where a token is no padding."""
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
