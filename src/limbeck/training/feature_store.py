"""What a teacher made of sequences, kept on the disk for later epochs and other runs.

A store is a folder of parts, each written by one process and read by all: PART.bin holds a row of bf16 numbers for each token,
and PART.idx says which sequences are there, by a digest of their tokens. Rows are on the disk before the index tells of them,
so that a process may be killed at any time, and nothing that is there is ever changed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES = 16
RECORD = np.dtype([("key", f"V{KEY_BYTES}"), ("first", "<i8"), ("tokens", "<i4")])
"""A sequence: the digest of its tokens, the row where it begins, and how many rows it has."""
FLUSH_BYTES = 1 << 24
"""So many bytes of rows are gathered in memory before they are written."""
BF16 = 2
"""Bytes of a number."""


@dataclass(frozen=True)
class _Place:
    """Where a sequence's rows are."""

    part: int
    first: int
    tokens: int


class FeatureStore:
    """Rows of numbers, one a token, by the tokens of their sequence.

    Args:
        folder: made if it is not there.
        width: numbers of a row.
        limit: bytes that all parts together may take; nothing more is put then.
    """

    def __init__(self, folder: Path, width: int, limit: int) -> None:
        self._folder, self.width, self.limit = folder, width, limit
        self._parts: list[NDArray[np.int16]] = []
        self._places: dict[bytes, _Place] = {}
        self._part: Path | None = None
        self._gathered: dict[bytes, Tensor] = {}
        for index in sorted(folder.glob("*.idx")):
            self._open(index)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return sum(file.stat().st_size for file in self._folder.glob("*.bin"))

    def begin(self) -> None:
        """From now on what is put is kept."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._part = self._folder / uuid.uuid4().hex
        self._room, self._written, self._waiting = self.limit - self.size, 0, 0

    def end(self) -> None:
        """Write what was put, and keep no more."""
        self._write()
        self._part = None

    def get(self, keys: Sequence[bytes]) -> list[Tensor] | None:
        """The rows of each sequence, (tokens, width) in bf16; None unless all are there."""
        found = [self._find(key) for key in keys]
        rows = [each for each in found if each is not None]
        return rows if len(rows) == len(keys) else None

    def put(self, key: bytes, rows: Tensor) -> None:
        """Keep a sequence's rows, (tokens, width) in bf16, unless they are there or there is no room."""
        size = rows.numel() * BF16
        if self._part is None or key in self._places or key in self._gathered or self._room < size:
            return
        self._gathered[key] = rows
        self._room -= size
        self._waiting += size
        if self._waiting >= FLUSH_BYTES:
            self._write()

    def _find(self, key: bytes) -> Tensor | None:
        if key in self._gathered:
            return self._gathered[key]
        place = self._places.get(key)
        if place is None:
            return None
        numbers = self._parts[place.part][place.first : place.first + place.tokens]
        return torch.from_numpy(np.array(numbers)).view(torch.bfloat16)

    def _write(self) -> None:
        """Bring the gathered rows to the disk, then the index of them."""
        if self._part is None or not self._gathered:
            return
        data, index = self._part.with_suffix(".bin"), self._part.with_suffix(".idx")
        rows = torch.cat([*self._gathered.values()]).view(torch.int16).numpy()
        lengths = [len(each) for each in self._gathered.values()]
        firsts = self._written + np.cumsum([0, *lengths[:-1]])
        records = np.array(list(zip(self._gathered, firsts, lengths, strict=True)), dtype=RECORD)
        try:
            for path, content in ((data, rows), (index, records)):
                with path.open("ab") as file:
                    file.write(content.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:  # a full disk ends the keeping, not the run; what was told of is still right
            self._room, self._gathered, self._waiting = 0, {}, 0
            return
        self._parts.append(self._mapped(data))
        for key, first, tokens in zip(self._gathered, firsts.tolist(), lengths, strict=True):
            self._places[key] = _Place(len(self._parts) - 1, first, tokens)
        self._written += len(rows)
        self._gathered, self._waiting = {}, 0

    def _open(self, index: Path) -> None:
        """Take in what another process, or an earlier one, has told of."""
        records = np.frombuffer(index.read_bytes()[: index.stat().st_size // RECORD.itemsize * RECORD.itemsize], dtype=RECORD)
        data = index.with_suffix(".bin")
        if not data.is_file() or not len(records):
            return
        rows = self._mapped(data)
        self._parts.append(rows)
        for record in records:
            first, tokens = int(record["first"]), int(record["tokens"])
            if 0 <= first <= first + tokens <= len(rows):
                self._places[record["key"].tobytes()] = _Place(len(self._parts) - 1, first, tokens)

    def _mapped(self, data: Path) -> NDArray[np.int16]:
        whole = data.stat().st_size // (self.width * BF16)
        return np.memmap(data, dtype=np.int16, mode="r", shape=(whole, self.width))


def key_of(ids: NDArray[np.int64], segments: NDArray[np.int64] | None) -> bytes:
    """A digest of a sequence's tokens and of which of its texts they belong to."""
    digest = blake2b(np.ascontiguousarray(ids).data, digest_size=KEY_BYTES)
    if segments is not None:
        digest.update(np.ascontiguousarray(segments).data)
    return digest.digest()
