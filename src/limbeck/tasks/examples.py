"""What a task is made of: examples, and the splits they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from limbeck.text import count, several

Label: TypeAlias = "int | float | tuple[int, ...]"
"""A class's number, a number to predict, or the numbers of all labels that apply."""
SHOWN = 5
"""Bad rows that a report names."""


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair of texts, and what is to be said of it."""

    text: str
    second: str | None
    """The second text of a pair."""
    label: Label | None
    """None where the file tells none, as in a leaderboard's test files."""
    line: int
    """The line of its file on which it begins, or its row in a file without lines; counted from 1."""
    group: str | None = None
    """Examples of one group stay together when a split is divided; without it, examples of the same text do."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row of a file that was left out."""

    place: str
    """Where it stands, such as "line 7"."""
    problem: str
    """Why it is no example."""


@dataclass(frozen=True)
class Split:
    """Some of a task's examples, in the order of their file."""

    name: str
    """What it is used for, such as "train" or "dev_matched"."""
    path: Path
    """The file they were read from."""
    examples: tuple[Example, ...]
    bad: tuple[BadRow, ...] = ()
    """Rows that were left out because they do not fit."""
    rows: int = 0
    """All rows of the file, where the split is only a part of it."""

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def labelled(self) -> bool:
        """Whether every example has a label."""
        return all(example.label is not None for example in self.examples)

    @property
    def report(self) -> str | None:
        """What was left out, in one line; None if nothing was."""
        if not self.bad:
            return None
        rows = f"{count(len(self.bad))} of {several(self.rows or len(self.examples) + len(self.bad), 'row')}"
        return f"{self.path}: {rows} left out: {first_of(self.bad)}."


def first_of(bad: Sequence[BadRow]) -> str:
    """The first few bad rows with their problems."""
    shown = "; ".join(f"{row.place}: {row.problem}" for row in bad[:SHOWN])
    return f"{shown}; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else shown
