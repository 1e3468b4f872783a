"""Packing units into sequences: blocks of one length that are nearly all real tokens, or one unit a sequence."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limbeck.data.tokens import Tokens

Packing = Literal["full", "pairs", "single"]

LOOKAHEAD = 2048
"""How many units ahead are searched for one that fills a gap at a block's end."""
TOLERATED = 50
"""A gap of up to one fiftieth of a block stays empty where no unit fits it uncut."""


class Piece(NamedTuple):
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

    Units follow one another in the corpus's order. A unit longer than a block is cut: it fills the block up and goes on
    in the next. A shorter one that no longer fits begins the next block, and the gap it leaves is filled out of turn: by
    the longest units ahead that fit, then by the beginning of the next one that is longer than a block. Where nothing
    does and the gap is more than a fiftieth of a block, the shorter unit is cut as well. Where a piece does not continue
    the text before it, one separator stands between them.

    Args:
        lengths: (units,) tokens of each unit, at least 1.
        documents: (units,) the document each stands in.
        body: tokens in a block, special tokens at its ends not counted; at least 1.
    """
    ahead = _Ahead(lengths.tolist(), body)
    numbers = documents.tolist()
    waiting: list[_Rest] = []  # what was begun or pushed aside, the next one last
    block: Block = []
    room = body
    while rest := waiting.pop() if waiting else ahead.next():
        length = ahead.lengths[rest.unit]
        left = length - rest.start
        separator = int(bool(block) and not _continues(block[-1], rest, numbers))
        fits = left + separator <= room
        if not fits and length <= body and (filler := ahead.draw(room - 1)):
            waiting += [rest, filler]
            continue
        taken = min(left, room - separator)
        if taken > 0 and (fits or length > body or room > body // TOLERATED):
            block.append(Piece(rest.unit, rest.start, taken, bool(separator)))
            room -= separator + taken
            if taken < left:
                waiting.append(_Rest(rest.unit, rest.start + taken))
        else:
            waiting.append(rest)
            room = 0
        if room == 0:
            yield block
            block, room = [], body
    if block:
        yield block


def pack_single(lengths: NDArray[np.int64], body: int) -> Iterator[Block]:
    """One unit a block; a longer one gives several, each as full as can be.

    Args:
        lengths: (units,) tokens of each unit, at least 1.
        body: tokens in a block, special tokens at its ends not counted; at least 1.
    """
    for unit, length in enumerate(lengths.tolist()):
        for start in range(0, length, body):
            yield [Piece(unit, start, min(body, length - start), separated=False)]


class _Rest(NamedTuple):
    """A unit that is still to be placed, from its token `start` on."""

    unit: int
    start: int


def _continues(piece: Piece, rest: _Rest, documents: list[int]) -> bool:
    return rest == (piece.unit + 1, 0) and documents[rest.unit] == documents[piece.unit]


class _Ahead:
    """The units to come: in order, or drawn out of turn to fill a gap."""

    def __init__(self, lengths: list[int], body: int) -> None:
        self.lengths = lengths
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
        return _Rest(self._turn - 1, 0) if self._turn <= len(self.lengths) else None

    def draw(self, room: int) -> _Rest | None:
        """The longest uncut unit of at most `room` tokens within LOOKAHEAD units, or else one that may be cut."""
        self._look_ahead()
        place = bisect_right(self._short, (room, len(self.lengths))) - 1
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
        for unit in range(self._seen, min(self._turn + LOOKAHEAD, len(self.lengths))):
            if self.lengths[unit] <= self._body:
                insort(self._short, (self.lengths[unit], unit))
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

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(blocks,) tokens of each block, separators included."""
        return np.add.reduceat(self.lengths + self.separated, self.blocks[:-1])

    def places(self, blocks: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the pieces of some blocks begin and end in the corpus's ids, (pieces,) each.

        Args:
            blocks: (blocks,) which.
        """
        pieces = np.repeat(blocks, np.diff(self.blocks))
        starts = self.starts[pieces]
        return starts, starts + self.lengths[pieces]


def pack(tokens: Tokens, packing: Packing, body: int) -> Packed:
    """Pack a corpus: "pairs" are blocks of `pack_full` too, which are split when they are put into a batch.

    Args:
        tokens: the corpus.
        packing: "full", "pairs" or "single".
        body: tokens in a block, special tokens at its ends not counted; at least 1.
    """
    blocks = pack_single(tokens.lengths, body) if packing == "single" else pack_full(tokens.lengths, tokens.documents, body)
    ends, units, starts, lengths, separated = array("q", [0]), array("q"), array("q"), array("q"), bytearray()
    for block in blocks:
        for piece in block:
            units.append(piece.unit)
            starts.append(piece.start)
            lengths.append(piece.length)
            separated.append(piece.separated)
        ends.append(len(units))
    return Packed(
        blocks=np.frombuffer(ends, np.int64),
        starts=tokens.offsets[np.frombuffer(units, np.int64)] + np.frombuffer(starts, np.int64),
        lengths=np.frombuffer(lengths, np.int64),
        separated=np.frombuffer(separated, np.bool_),
    )
