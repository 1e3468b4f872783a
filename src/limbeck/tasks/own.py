"""The user's own task: a table with one text or two a row, and a label, several labels or a number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

from limbeck.data.files import HUB
from limbeck.errors import UserError
from limbeck.tasks.examples import BadRow, Example, Label, Split
from limbeck.tasks.holdout import hold_out
from limbeck.tasks.rows import TOLERATED, Unfit, check_rows, checked, make_example, sift
from limbeck.tasks.tables import Cells, Source, data_set_sources, text_cell
from limbeck.tasks.task import Kind, Task, TaskData, task_data
from limbeck.text import count, listed

NUMBERED_CLASSES = 20
"""Up to so many different whole numbers are taken for classes, as stars are; more are numbers to predict."""
LARGEST = 1e36
"""Far enough below what 32 bits hold for a model that predicts more; what is larger may not be finite in training."""
NARROW = 1e-5
"""What numbers must at least differ by, as a share of the largest: 32 bits have about seven decimal digits."""
HELD_OUT = 0.1
"""The share of the examples that are held out where the user names none."""
METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "matthews"),
    "multi-label": ("micro_f1", "macro_f1", "accuracy"),
    "regression": ("spearman", "pearson"),
}
"""What such tasks are scored by; the first one selects."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row with texts and a label that is not yet understood."""

    texts: tuple[str, ...]
    label: Any
    number: int


@dataclass(frozen=True)
class _Raw:
    """A file's rows before the kind of task is known."""

    path: Path
    unit: str
    rows: list[_Row]
    bad: list[BadRow]


def read_own(
    data: str | Path,
    text: Sequence[str],
    label: str,
    *,
    dev: str | Path | float | None = None,
    kind: Kind | Literal["auto"] = "auto",
    separator: str | None = None,
    header: bool = True,
) -> TaskData:
    """A task from a file or data set of examples, with the splits "train" and "dev".

    Whether it is classification or regression is decided from the labels and said in the notes: lists, or cells that a
    separator divides, are several labels; real numbers, and more than `NUMBERED_CLASSES` different whole ones, are numbers
    to predict; anything else is a class.

    Args:
        data: a file as `limbeck.tasks.tables.open_table` reads it, or a data set as
            `limbeck.data.files.data_set_splits` finds it, of which the split "train" is read.
        text: the column of the text, or of both texts, by name or number.
        label: the column of the label.
        dev: a file or data set of the same columns that is evaluated on, or the share of the examples to hold out for that.
            By default it is the data set's validation split, or a tenth where there is none.
        kind: what the task is, if the user decides.
        separator: what stands between several labels in one cell.
        header: whether a CSV or TSV file names its columns in its first line.

    Raises:
        UserError: a file or its columns cannot be read, too many rows do not fit, or the labels make no task; names file and
            line, or the columns there are.
    """
    if len(text) not in (1, 2):
        raise UserError(f"A task has one column of text, or two for pairs, not {len(text)}: {', '.join(text)}.")
    columns = (*text, label)
    read = partial(_read, columns, separator, header)
    sources = _sources(data)
    raw = read(_wanted(data, sources, "train"))
    check_rows(raw.path, len(raw.rows), raw.bad)
    labels = [row.label for row in raw.rows]
    decided, reason = _kind(raw.path, labels, label, separator) if kind == "auto" else (kind, "as asked for")
    task = _task(raw.path, decided, labels, label)
    train = _split("train", raw, task)
    notes = [_said(task, label, reason)]
    if isinstance(dev, str | Path) or (dev is None and "dev" in sources):
        source = _wanted(dev, _sources(dev), "dev") if isinstance(dev, str | Path) else sources["dev"]
        held = _split("dev", read(source), task)
        notes += [note] if (note := _overlap(train, held)) else []
    else:
        train, held = hold_out(train, HELD_OUT if dev is None else dev)
        notes.append(f"{count(len(held))} of {count(len(train) + len(held))} examples are held out to evaluate on.")
    return task_data(task, {"train": train, "dev": held}, *notes)


def _sources(data: str | Path) -> dict[str, Source]:
    """The splits of a data set, or a file as a split of no name."""
    if not str(data).startswith(HUB) and not Path(data).is_dir():
        return {"": Source(Path(data), (Path(data),))}
    if not (sources := data_set_sources(data)):
        raise UserError(f"{data} holds no data set, saved by datasets or as Parquet such as train.parquet; name the file.")
    return sources


def _wanted(data: str | Path, sources: Mapping[str, Source], split: str) -> Source:
    """The split of that name, or the only one."""
    if split not in sources and len(sources) > 1:
        raise UserError(f"{data} has no split to take for {split}; name one of its splits: {', '.join(sources)}.")
    return sources.get(split, next(iter(sources.values())))


def _read(columns: Sequence[str], separator: str | None, header: bool, source: Source) -> _Raw:
    table = source.open(columns, header)
    rows, bad = sift(table.rows, partial(_row, table.cells, columns, separator), table.unit)
    return _Raw(source.path, table.unit, rows, bad)


def _row(cells: Callable[[Any], Cells], columns: Sequence[str], separator: str | None, number: int, row: Any) -> _Row:
    *cells_of_text, label = cells(row)
    texts = tuple(text_cell(column, cell) for column, cell in zip(columns, cells_of_text, strict=False))
    if separator is not None and isinstance(label, str):
        label = [part.strip() for part in label.split(separator) if part.strip()]
    if isinstance(label, Decimal):
        label = float(label)
    if label is None or (isinstance(label, str) and not label.strip()) or (isinstance(label, float) and math.isnan(label)):
        raise Unfit(f"{columns[-1]!r} holds no label")
    if isinstance(label, float) and math.isinf(label):
        raise Unfit(f"{columns[-1]!r} holds infinity, which is no label")
    for part in label if isinstance(label, list) else [label]:
        if isinstance(part, str):
            text_cell(columns[-1], part)  # for its refusal of what cannot be encoded
    return _Row(texts, label, number)


def _kind(path: Path, labels: Sequence[Any], column: str, separator: str | None) -> tuple[Kind, str]:
    """What kind of task the labels make, and what tells it.

    Raises:
        UserError: most are numbers, but too many are not.
    """
    if separator is not None or any(isinstance(label, list) for label in labels):
        return "multi-label", "a row may have several"
    commas = [label for label in labels if isinstance(label, str) and re.fullmatch(r"\s*-?\d+,\d+\s*", label)]
    if len(commas) > len(labels) / 2:
        raise UserError(
            f"{path}: {column!r} holds numbers with a decimal comma, such as {_shown(commas[0])}; write them with a point, or "
            "give the kind classification if they are names of classes."
        )
    numbers = [number for label in labels if (number := _number(label)) is not None]
    if not numbers or len(numbers) < (1 - TOLERATED) * len(labels):
        if len(numbers) > len(labels) / 2 and len({*numbers}) > NUMBERED_CLASSES:
            others = [label for label in labels if _number(label) is None]
            raise UserError(
                f"{path}: {column!r} holds numbers, but in {len(others)} of {len(labels)} rows none, as {_shown(others[0])}; "
                "remove those rows, or give the kind classification if all are names of classes."
            )
        return "classification", "they are names"
    if not all(number.is_integer() for number in numbers):
        return "regression", "they are real numbers"
    different = len(set(numbers))
    if different > NUMBERED_CLASSES:
        return "regression", f"they are {different} different whole numbers, more than {NUMBERED_CLASSES}"
    return "classification", "they are few whole numbers; the kind regression predicts the number instead"


def _task(path: Path, kind: Kind, labels: Sequence[Any], column: str) -> Task:
    """The task that the training labels make; its name is the label's column."""
    if kind == "regression":
        numbers = [number for label in labels if (number := _number(label)) is not None]
        if not numbers:
            raise UserError(f"{path}: {column!r} holds no numbers but such as {_shown(labels[0])}; regression needs them.")
        lowest, highest = min(numbers), max(numbers)
        if lowest == highest:
            raise UserError(f"{path}: {column!r} holds only the number {lowest:g}; a task needs two or more.")
        if highest - lowest < NARROW * max(abs(lowest), abs(highest)):
            raise UserError(
                f"{path}: {column!r} holds numbers from {lowest!r} to {highest!r}, which a model's outputs of 32 bits hardly "
                f"tell apart; subtract {lowest:g} from all."
            )
        return Task(column, kind, METRICS[kind], range=(lowest, highest))
    if kind == "multi-label" and not any(isinstance(label, list) for label in labels):
        raise UserError(f"{path}: {column!r} holds no lists; say what separates the labels in a cell, such as a semicolon.")
    names = {name for label in labels for name in _names(label, kind)}
    if not names and (odd := next((label for label in labels if not isinstance(label, list)), None)) is not None:
        raise UserError(f"{path}: {column!r} holds such as {_shown(odd)}, neither names nor numbers; write the labels as text.")
    if len(names) < (2 if kind == "classification" else 1):
        raise UserError(f"{path}: {column!r} holds only the label {listed(sorted(names)) or 'none'}; a task needs two or more.")
    if kind == "classification" and len(names) == len(labels) > NUMBERED_CLASSES:
        raise UserError(f"{path}: {column!r} holds another label in each of {len(names)} rows; is it the right column?")
    return Task(column, kind, METRICS[kind], tuple(sorted(names, key=_order)))


def _names(label: Any, kind: Kind) -> list[str]:
    """The names of a row's classes or labels; none if it holds something else."""
    if kind == "multi-label" and isinstance(label, list):
        return [_name(part) for part in label if _named(part)]
    return [_name(label)] if _named(label) else []


def _named(label: Any) -> bool:
    return isinstance(label, bool | int | float) or (isinstance(label, str) and bool(label.strip()))


def _name(label: str | bool | float) -> str:
    """What a class is called: JSON's true and a table's 4.0 are "true" and "4"."""
    if isinstance(label, bool):
        return str(label).lower()
    name = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label).strip()
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", name)


def _order(name: str) -> tuple[bool, float, str]:
    """Sorts numbers by their value, before names."""
    number = _number(name)
    return number is None, number or 0.0, name


def _number(label: Any) -> float | None:
    """The finite number that a label is, or that it spells; None if it is something else."""
    if isinstance(label, bool) or not isinstance(label, str | int | float) or "_" in str(label):
        return None
    try:
        number = float(label)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _split(name: str, raw: _Raw, task: Task) -> Split:
    places = {label: number for number, label in enumerate(task.labels)}
    examples, bad = sift(((row.number, row) for row in raw.rows), partial(_example, task.kind, places), raw.unit)
    return checked(Split(name, raw.path, tuple(examples), (*raw.bad, *bad)))


def _example(kind: Kind, places: dict[str, int], number: int, row: _Row) -> Example:
    return make_example(row.texts, _label(kind, places, row.label), number)


def _label(kind: Kind, places: dict[str, int], label: Any) -> Label:
    if kind == "regression":
        if (value := _number(label)) is None:
            raise Unfit(f"the label {_shown(label)} is no number")
        if abs(value) > LARGEST:
            raise Unfit(f"the number {value:g} is too large for a model's outputs; use a larger unit")
        return value
    if odd := [part for part in (label if kind == "multi-label" and isinstance(label, list) else [label]) if not _named(part)]:
        raise Unfit(f"the label {_shown(odd[0])} is neither a name nor a number")
    names = _names(label, kind)
    if unknown := [name for name in names if name not in places]:
        raise Unfit(f"the label {_shown(unknown[0])} does not occur in the training data")
    if kind == "multi-label":
        return tuple(sorted({places[name] for name in names}))
    return places[names[0]]


def _shown(label: Any) -> str:
    """The beginning of a label, as messages quote it."""
    return repr(str(label)[:40])


def _overlap(train: Split, dev: Split) -> str | None:
    """What is to be said where examples are trained on and evaluated on alike; None if there are none."""
    known = {(example.text, example.second) for example in train.examples}
    if not (both := sum((example.text, example.second) in known for example in dev.examples)):
        return None
    return f"{count(both)} of {count(len(dev))} examples to evaluate on are trained on, too, so scores on them flatter."


def _said(task: Task, column: str, reason: str) -> str:
    if task.range is not None:
        return f"{column}: numbers from {task.range[0]:g} to {task.range[1]:g} to predict (regression; {reason})."
    shown = ", ".join(task.labels[:10]) + (", ..." if len(task.labels) > 10 else "")
    return (
        f"{column}: {len(task.labels)} {'labels' if task.kind == 'multi-label' else 'classes'}: {shown} ({task.kind}; {reason})."
    )
