"""Text as token ids: stretches of a corpus as flat arrays, in memory or mapped from files, and the units in them."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from limbeck.data.text import Unit
from limbeck.errors import UserError
from limbeck.text import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

Ids: TypeAlias = "NDArray[np.unsignedinteger[Any]]"

BATCH_CHARACTERS = 1 << 18
"""About how much text is given to the tokenizer at a time, which spreads it over the processors."""
SAMPLE = ["A Café, über ﬁne Ünïcode TEXT\u00a0– 東京 it's", "  two  spaces\tand 1,234.5 don't_e-mail@x.org"]
"""Text in which tokenizers of the same vocabulary but other rules show themselves."""
BLOCK = 1 << 20
"""Bytes that are hashed at a time."""
MARKED = 1 << 20
"""Ids that are looked at together where those that occur are counted."""
FORMAT = "limbeck-tokens-1"
"""The name of the shard format, which changes when its meaning does."""
ARRAYS = ("ids", "lengths", "documents", "counts")
"""The arrays of a shard's file; counts are the dropped units and the unknown tokens."""


@contextmanager
def _encoding() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the package tokenizers raises nothing more special
        raise UserError(
            f"The tokenizer cannot take this text ({one_line(error)}); a token for unknown characters (unk_token) may be missing."
        ) from error


class PlainTokenizer:
    """A tokenizer's fast core, which leaves texts whole, adds nothing, and takes special tokens in them for text.

    Raises:
        UserError: the tokenizer is not a fast one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; save the model with a tokenizer.json.")
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # "[SEP]" in a text is text
        self._vocabulary: dict[str, int] = self._backend.get_vocab()
        self._special = tokenizer.special_tokens_map
        self.dtype: type[np.unsignedinteger[Any]] = np.uint16 if max(self._vocabulary.values()) < 1 << 16 else np.uint32
        """16 bits wide only where every id of the vocabulary fits."""
        self.unknown: int | None = tokenizer.unk_token_id
        """The id that stands for text the tokenizer does not know, if it has one."""

    def __call__(self, texts: list[str]) -> list[Ids]:
        """The ids of each text."""
        with _encoding():
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]

    def with_offsets(self, texts: list[str]) -> list[tuple[Ids, NDArray[np.int64]]]:
        """The ids of each text, and (tokens, 2) where each begins and ends in it, in characters.

        Whether the blank before a word is in its token differs between tokenizers.
        """
        with _encoding():
            encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        return [
            (np.array(each.ids, dtype=self.dtype), np.array(each.offsets, dtype=np.int64).reshape(-1, 2)) for each in encodings
        ]

    @cached_property
    def fingerprint(self) -> str:
        """A hash that two tokenizers share only if text becomes the same ids in both, as far as a sample can tell."""
        content = [sorted(self._vocabulary.items()), sorted(self._special.items()), [ids.tolist() for ids in self(SAMPLE)]]
        return blake2b(json.dumps(content, default=str).encode(), digest_size=16).hexdigest()


class BrokenShard(Exception):
    """A shard's file is missing, damaged or of another format."""


@dataclass(frozen=True)
class Shard:
    """The tokens of some consecutive units, without special tokens."""

    ids: Ids
    """(tokens,) 16 bits wide only where every id of the vocabulary fits."""
    lengths: NDArray[np.uint32]
    """(units,) tokens of each unit, at least 1."""
    documents: NDArray[np.uint32]
    """(units,) the document each stands in, numbered over the whole corpus."""
    empty: int
    """Units that were dropped because no token came of them."""
    unknown: int
    """Tokens that stand for text the tokenizer does not know."""
    digest: str
    """A hash of all that."""

    @classmethod
    def of(cls, units: Sequence[Unit], tokenizer: PlainTokenizer) -> Shard:
        """Tokenise units in parallel."""
        pieces: list[Ids] = []
        documents: list[int] = []
        for batch in _batches(units):
            for unit, piece in zip(batch, tokenizer([unit.text for unit in batch]), strict=True):
                if len(piece):
                    pieces.append(piece)
                    documents.append(unit.document)
        ids = np.concatenate([np.empty(0, tokenizer.dtype), *pieces])
        lengths = np.array([len(piece) for piece in pieces], dtype=np.uint32)
        numbers = np.array(documents, dtype=np.uint32)
        unknown = int((ids == tokenizer.unknown).sum()) if tokenizer.unknown is not None else 0
        empty = len(units) - len(pieces)
        return cls(ids, lengths, numbers, empty, unknown, _digest(ids, lengths, numbers, _counts(empty, unknown)))

    def save(self, path: Path, **notes: str) -> None:
        """Write the shard as a safetensors file, whole or not at all; notes go into its header.

        The same shard gives the same bytes; to that end the header has one entry, since safetensors shuffles entries.
        """
        arrays = [self.ids, self.lengths, self.documents, _counts(self.empty, self.unknown)]
        header = {"format": FORMAT, "digest": self.digest, **notes}
        temporary = path.with_name(f".tmp-{path.name}")
        try:
            save_file(dict(zip(ARRAYS, arrays, strict=True)), temporary, metadata={"shard": json.dumps(header)})
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path, **notes: str) -> Shard:
        """Map a shard into memory and check that it is what was written.

        Raises:
            BrokenShard: the file is missing or damaged, or its header has other notes than these.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads((file.metadata() or {})["shard"])
            sections = [_section(path, name) for name in ARRAYS]
            ids, lengths, documents, counts = _mapped(path, sections)
            shard = cls(ids, lengths, documents, int(counts[0]), int(counts[1]), header["digest"])
            digest = _file_digest(path, sections)
        except (OSError, SafetensorError, LookupError, ValueError, TypeError) as error:
            raise BrokenShard(f"{path} is missing or damaged ({' '.join(str(error).split())})") from error
        if header.get("format") != FORMAT or any(header.get(name) != note for name, note in notes.items()):
            raise BrokenShard(f"{path} belongs to other text or another version")
        if digest != shard.digest:
            raise BrokenShard(f"{path} was altered")
        return shard


def _counts(empty: int, unknown: int) -> NDArray[np.uint32]:
    return np.array([empty, unknown], dtype=np.uint32)


@dataclass(frozen=True)
class _Section:
    """Where an array stands in a file."""

    dtype: np.dtype[np.unsignedinteger[Any]]
    start: int
    end: int


def _section(path: Path, name: str) -> _Section:
    """Find an array in a safetensors file: 8 bytes with the header's length, the header in JSON, then the arrays."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
    start, end = entry["data_offsets"]
    return _Section(np.dtype({"U16": np.uint16, "U32": np.uint32}[entry["dtype"]]), 8 + length + start, 8 + length + end)


def _mapped(path: Path, sections: Iterable[_Section]) -> list[NDArray[Any]]:
    """Arrays of a file, read from disk only where they are used; torch's mapping, unlike numpy's, keeps no file open."""
    content = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8).numpy()
    return [content[section.start : section.end].view(section.dtype) for section in sections]


def _digest(*arrays: NDArray[Any]) -> str:
    hashed = blake2b(digest_size=16)
    for array in arrays:
        hashed.update(f"{array.dtype.str}{array.nbytes}".encode())
        hashed.update(array.tobytes())
    return hashed.hexdigest()


def _file_digest(path: Path, sections: Iterable[_Section]) -> str:
    """The `_digest` of arrays in a file, which is read without filling the process's memory."""
    hashed = blake2b(digest_size=16)
    with path.open("rb") as file:
        for section in sections:
            hashed.update(f"{section.dtype.str}{section.end - section.start}".encode())
            file.seek(section.start)
            for place in range(section.start, section.end, BLOCK):
                hashed.update(file.read(min(BLOCK, section.end - place)))
    return hashed.hexdigest()


@dataclass(frozen=True)
class Tokens:
    """The units of a corpus, or some of them, in order."""

    shards: tuple[Shard, ...]
    """Where their tokens stand."""
    offsets: NDArray[np.int64]
    """(units,) the place of each unit's first token, counted through all shards."""
    lengths: NDArray[np.int64]
    """(units,) tokens of each unit, at least 1."""
    documents: NDArray[np.int64]
    """(units,) the document each unit stands in."""

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> Tokens:
        """All units of some shards."""
        shards = tuple(shards)
        lengths = np.concatenate([np.empty(0, np.int64), *(shard.lengths for shard in shards)]).astype(np.int64)
        documents = np.concatenate([np.empty(0, np.int64), *(shard.documents for shard in shards)]).astype(np.int64)
        return cls(shards, np.cumsum(lengths) - lengths, lengths, documents)

    @classmethod
    def joined(cls, parts: Sequence[Tokens]) -> Tokens:
        """Several corpora one after the other."""
        places = np.cumsum([0, *(sum(len(shard.ids) for shard in part.shards) for part in parts)])
        numbers = np.cumsum([0, *(int(part.documents.max(initial=-1)) + 1 for part in parts)])
        return cls(
            tuple(shard for part in parts for shard in part.shards),
            np.concatenate([part.offsets + place for part, place in zip(parts, places, strict=False)]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.documents + number for part, number in zip(parts, numbers, strict=False)]),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def _ends(self) -> list[int]:
        """Where each shard ends, counted through all of them."""
        return list(accumulate(len(shard.ids) for shard in self.shards))

    def read(self, start: int, length: int) -> NDArray[np.int64]:
        """(length,) the token ids from a place on; they lie in one unit."""
        number = bisect_right(self._ends, start)
        shard = self.shards[number].ids
        start -= self._ends[number] - len(shard)
        return shard[start : start + length].astype(np.int64)

    def mark(self, starts: NDArray[np.int64], ends: NDArray[np.int64], seen: NDArray[np.bool_]) -> None:
        """Set `seen` at every id that stands in some stretches.

        Args:
            starts: (stretches,) where each begins, counted through all shards; no two overlap, but they may touch.
            ends: (stretches,) where each ends.
            seen: (vocabulary,) changed in place.
        """
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
        apart = starts[1:] != ends[:-1]
        begins, stops = starts[np.append([True], apart)[: len(starts)]], ends[np.append(apart, [True])[: len(ends)]]
        for start, end in zip(begins.tolist(), stops.tolist(), strict=True):
            while start < end:
                number = bisect_right(self._ends, start)
                stop = min(end, self._ends[number], start + MARKED)
                first = self._ends[number] - len(self.shards[number].ids)
                seen[self.shards[number].ids[start - first : stop - first]] = True
                start = stop

    def chosen(self, units: NDArray[np.bool_]) -> Tokens:
        """Some of the units.

        Where a unit is left out a new document begins, so that no one takes what now stands side by side for running
        text.
        """
        begins = np.diff(self.documents, prepend=-1) != 0
        begins[1:] |= units[1:] != units[:-1]
        return Tokens(self.shards, self.offsets[units], self.lengths[units], np.cumsum(begins)[units] - 1)

    @property
    def fingerprint(self) -> str:
        """A hash of the units' content."""
        shards = "".join(shard.digest for shard in self.shards)
        return blake2b((shards + _digest(self.offsets, self.documents)).encode(), digest_size=16).hexdigest()


def tokenize(units: Iterable[Unit], tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Tokenise units in memory: limits on length or padding that a tokenizer file asks for do not apply.

    Raises:
        UserError: not one token comes of the text, or the tokenizer is not a fast one.
    """
    return checked(Tokens.of([Shard.of(list(units), PlainTokenizer(tokenizer))]))


def checked(tokens: Tokens) -> Tokens:
    """The tokens themselves.

    Raises:
        UserError: there are none, or they are all unknown to the tokenizer.
    """
    if not len(tokens):
        raise UserError("The corpus holds no text: every line is empty or becomes no token; check the files.")
    if sum(shard.unknown for shard in tokens.shards) == sum(len(shard.ids) for shard in tokens.shards):
        raise UserError("The tokenizer knows nothing of the corpus: every token is unknown to it; check language and files.")
    return tokens


def hold_out(tokens: Tokens, share: float) -> tuple[Tokens, Tokens]:
    """Split units into those to train on and about a share that is kept out.

    A unit's tokens alone decide, so that repeated lines fall on the same side, whatever the seed.

    Raises:
        UserError: one side would be empty.
    """
    held = positions(tokens) < share
    if held.all() or not held.any():
        raise UserError(f"The corpus is too small to hold out a share of {share}; name a file of its own instead.")
    return tokens.chosen(~held), tokens.chosen(held)


def leave_out(tokens: Tokens, held: Tokens) -> Tokens:
    """The units that are not among those held out, which their tokens tell, wherever they come from.

    Raises:
        UserError: none is left.
    """
    kept = ~np.isin(positions(tokens), positions(held))
    if not kept.any():
        raise UserError("The held-out text is all the text there is; name other text to train on.")
    return tokens if kept.all() else tokens.chosen(kept)


def positions(tokens: Tokens) -> NDArray[np.float64]:
    """(units,) the `position` of each unit's token ids."""
    contents = (
        tokens.read(start, length).tobytes()
        for start, length in zip(tokens.offsets.tolist(), tokens.lengths.tolist(), strict=True)
    )
    return np.fromiter(map(position, contents), np.float64, len(tokens))


def position(content: bytes) -> float:
    """A number in [0, 1), one of 2^48, that the content alone decides; what lies below a share is held out."""
    return int.from_bytes(blake2b(content, digest_size=6).digest(), "big") / 2**48


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    iterator = iter(units)
    while batch := list(_up_to(BATCH_CHARACTERS, iterator)):
        yield batch


def _up_to(characters: int, units: Iterator[Unit]) -> Iterator[Unit]:
    for unit in units:
        yield unit
        characters -= len(unit.text)
        if characters <= 0:
            return
