"""Rows of tab-separated files: columns by name or place, and what does not fit set aside.

Such files know no quotes: a quotation mark is a character like any other. A row whose number of columns is wrong is never
shifted into place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from limbeck.data.text import text_lines
from limbeck.errors import UserError
from limbeck.tasks.examples import BadRow, Example, Label, Split, first_of
from limbeck.tasks.labels import canonical
from limbeck.tasks.task import Task
from limbeck.text import listed

TOLERATED = 0.02
"""The share of a file's rows that may be left out."""

UNLABELLED = ("-1", "")
"""What stands for the label in some test files that have none."""

Row = TypeVar("Row")
Made = TypeVar("Made")


class Unfit(Exception):
    """A row is no example; the message says why, and has no full stop."""


def sift(
    rows: Iterable[tuple[int, Row]], make: Callable[[int, Row], Made], unit: str = "line"
) -> tuple[list[Made], list[BadRow]]:
    """What can be made of numbered rows, and those of which nothing can.

    Args:
        rows: each with its number.
        make: takes the number and the row; raises `Unfit`.
        unit: what the number counts.
    """
    made: list[Made] = []
    bad: list[BadRow] = []
    for number, row in rows:
        try:
            made.append(make(number, row))
        except Unfit as problem:
            bad.append(BadRow(f"{unit} {number}", str(problem)))
    return made, bad


def checked(split: Split) -> Split:
    """The split itself.

    Raises:
        UserError: it has no example, or more rows were left out than are tolerated.
    """
    check_rows(split.path, len(split.examples), split.bad)
    return split


def check_rows(path: Path, made: int, bad: Sequence[BadRow]) -> None:
    """Refuse a file of which too little could be read.

    Raises:
        UserError: it has no row, or more rows were left out than are tolerated.
    """
    rows = made + len(bad)
    if not rows:
        raise UserError(f"{path} holds no example; check the file.")
    if len(bad) > TOLERATED * rows:
        raise UserError(
            f"{path}, {first_of(bad)}. {len(bad)} of {rows} rows do not fit, more than the {TOLERATED:.0%} that may be left "
            "out; mend the file."
        )


def tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is not blank, numbered from 1.

    Raises:
        UserError: as in `limbeck.data.text.text_lines`.
    """
    for number, line in text_lines(path):
        if line.strip():
            yield number, line.rstrip("\r\n").split("\t")


@dataclass(frozen=True)
class Columns:
    """Where the wanted cells stand in a row."""

    places: tuple[int | None, ...]
    """Counted from 0; None for a cell that the file does not have."""
    widths: tuple[int, int]
    """The least and the greatest number of columns that a row may have."""

    def of(self, row: Sequence[str]) -> list[str | None]:
        """The wanted cells.

        Raises:
            Unfit: the row has another number of columns.
        """
        least, greatest = self.widths
        if not least <= len(row) <= greatest:
            expected = str(least) if least == greatest else f"{least} to {greatest}"
            raise Unfit(f"{len(row)} columns instead of {expected}")
        return [None if place is None else row[place] for place in self.places]


def place(path: Path, header: Sequence[str], name: str) -> int:
    """Where the column of a name stands, counted from 0.

    Raises:
        UserError: there is none, or more than one; lists the columns there are.
    """
    if header.count(name) == 1:
        return header.index(name)
    number = "more than one" if name in header else "no"
    raise UserError(f"{path}: there is {number} column {name!r}; the columns are {listed(header)}.")


def named(path: Path, header: Sequence[str], names: Sequence[str], optional: Sequence[str] = ()) -> Columns:
    """Find columns by the names in a header.

    Raises:
        UserError: one that is not optional is missing, or a name stands there twice; lists the columns there are.
    """
    header = [name.strip() for name in header]
    missing = [name for name in optional if name not in header]
    return Columns(tuple(None if name in missing else place(path, header, name) for name in names), (len(header), len(header)))


def label_reader(task: Task, unlabelled: bool) -> Callable[[str], int | float | None]:
    """A function that reads a label as the task's files spell it.

    Args:
        task: classification or regression.
        unlabelled: whether a label may be missing, which gives None.
    """
    spellings = {canonical(label): number for number, label in enumerate(task.labels)}
    spellings |= {label: number for number, label in enumerate(task.written)}

    def read(text: str) -> int | float | None:
        text = text.strip()
        if unlabelled and text in UNLABELLED:
            return None
        if task.range is not None:
            return _number(text, *task.range)
        if (number := spellings.get(canonical(text))) is None:
            raise Unfit(f"the label {text[:40]!r} is none of {', '.join(task.written or task.labels)}")
        return number

    return read


def _number(text: str, lowest: float, highest: float) -> float:
    try:
        number = float(text)
    except ValueError:
        raise Unfit(f"the score {text[:40]!r} is no number") from None
    if not lowest <= number <= highest:
        raise Unfit(f"the score {text} is not between {lowest:g} and {highest:g}")
    return number


def make_example(texts: Sequence[str], label: Label | None, line: int, group: str | None = None) -> Example:
    """An example of one text or two.

    Raises:
        Unfit: there is no text.
    """
    if not any(text.strip() for text in texts):
        raise Unfit("there is no text")
    return Example(texts[0], texts[1] if len(texts) > 1 else None, label, line, group)
