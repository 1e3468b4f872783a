"""Packing units into blocks of one length, so that nearly every position of a batch is a real token."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limbeck.data.tokens import Tokens

LOOKAHEAD = 2048
"""How many units ahead are searched for one that fills a gap at a block's end."""


@dataclass(frozen=True)
class Piece:
    """A stretch of one unit in a block."""

    unit: int
    start: int
    """First token, counted from the unit's beginning."""
    length: int
    separated: bool
    """Whether a separator stands in front, because the text does not continue the piece before."""


Block = list[Piece]


def pack_full(lengths: NDArray[np.int64], documents: NDArray[np.int64], body: int) -> Iterator[Block]:
    """Pack units into blocks of at most `body` tokens, separators included.

    Units follow one another in the corpus's order. A unit is cut only when it is longer than a block; it then fills the
    block up and goes on in the next. A shorter one that no longer fits begins the next block, and the gap it leaves is
    filled out of turn: by the longest units ahead that fit, then by the beginning of the next one that may be cut.
    Where a piece does not continue the text before it, one separator stands between them.

    Args:
        lengths: (units,) tokens of each unit, at least 1.
        documents: (units,) the document each stands in.
        body: tokens in a block, special tokens at its ends not counted; at least 1.
    """
    ahead = _Ahead(lengths, body)
    waiting: list[_Rest] = []  # what was begun or pushed aside, the next one last
    block: Block = []
    room = body
    while rest := waiting.pop() if waiting else ahead.next():
        left = int(lengths[rest.unit]) - rest.start
        separator = int(bool(block) and not _continues(block[-1], rest, documents))
        if left + separator <= room or (lengths[rest.unit] > body and separator < room):
            taken = min(left, room - separator)
            block.append(Piece(rest.unit, rest.start, taken, bool(separator)))
            room -= separator + taken
            if taken < left:
                waiting.append(_Rest(rest.unit, rest.start + taken))
        else:
            waiting.append(rest)
            filler = ahead.draw(room - 1)
            if filler is None:
                room = 0
            else:
                waiting.append(filler)
        if room == 0:
            yield block
            block, room = [], body
    if block:
        yield block


@dataclass(frozen=True)
class _Rest:
    """A unit that is still to be placed, from its token `start` on."""

    unit: int
    start: int


def _continues(piece: Piece, rest: _Rest, documents: NDArray[np.int64]) -> bool:
    return rest == _Rest(piece.unit + 1, 0) and bool(documents[rest.unit] == documents[piece.unit])


class _Ahead:
    """The units to come: in order, or drawn out of turn to fill a gap."""

    def __init__(self, lengths: NDArray[np.int64], body: int) -> None:
        self._lengths = lengths
        self._body = body
        self._turn = 0
        self._seen = 0
        self._drawn: set[int] = set()
        self._short: list[tuple[int, int]] = []
        self._long: deque[int] = deque()

    def next(self) -> _Rest | None:
        """The unit whose turn it is."""
        while self._turn in self._drawn:
            self._drawn.remove(self._turn)
            self._turn += 1
        self._turn += 1
        return _Rest(self._turn - 1, 0) if self._turn <= len(self._lengths) else None

    def draw(self, room: int) -> _Rest | None:
        """The longest uncut unit of at most `room` tokens within LOOKAHEAD units, or else one that may be cut."""
        self._look_ahead()
        place = bisect_right(self._short, (room, len(self._lengths))) - 1
        while place >= 0:
            _, unit = self._short.pop(place)
            if unit >= self._turn:
                return self._draw(unit)
            place -= 1
        while self._long and self._long[0] < self._turn:
            self._long.popleft()
        return self._draw(self._long.popleft()) if self._long and room > 0 else None

    def _draw(self, unit: int) -> _Rest:
        self._drawn.add(unit)
        return _Rest(unit, 0)

    def _look_ahead(self) -> None:
        for unit in range(self._seen, min(self._turn + LOOKAHEAD, len(self._lengths))):
            if self._lengths[unit] <= self._body:
                insort(self._short, (int(self._lengths[unit]), unit))
            else:
                self._long.append(unit)
            self._seen = unit + 1


@dataclass(frozen=True)
class Packed:
    """Blocks as flat arrays."""

    blocks: NDArray[np.int64]
    """(blocks + 1,) where each block's pieces begin, and the end."""
    starts: NDArray[np.int64]
    """(pieces,) the place of each piece's first token in the corpus's ids."""
    lengths: NDArray[np.int64]
    """(pieces,) its tokens."""
    separated: NDArray[np.bool_]
    """(pieces,) whether a separator stands in front."""

    def __len__(self) -> int:
        return len(self.blocks) - 1


def pack(tokens: Tokens, body: int) -> Packed:
    """Pack a corpus with `pack_full`."""
    blocks = list(pack_full(tokens.lengths, tokens.documents, body))
    pieces = [piece for block in blocks for piece in block]
    units = np.array([piece.unit for piece in pieces], dtype=np.int64)
    return Packed(
        blocks=np.cumsum([0] + [len(block) for block in blocks], dtype=np.int64),
        starts=tokens.offsets[units] + np.array([piece.start for piece in pieces], dtype=np.int64),
        lengths=np.array([piece.length for piece in pieces], dtype=np.int64),
        separated=np.array([piece.separated for piece in pieces], dtype=np.bool_),
    )
