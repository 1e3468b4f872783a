"""Tables that people keep their own data in: CSV, TSV, JSON lines and Parquet, as rows of the wanted cells.

CSV has quotes, and line breaks within them; its columns are separated by commas, semicolons or tabs. TSV has no quotes at all.
Text is UTF-8, a byte order mark is passed over, and all but Parquet may be compressed by gzip or zstd.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from limbeck.data.files import PACKED
from limbeck.data.text import ROWS, arrow_errors, text_lines
from limbeck.errors import UserError
from limbeck.tasks.rows import Columns, Unfit, place, tsv_rows
from limbeck.text import listed

Cells: TypeAlias = "list[Any]"
Rows: TypeAlias = "Iterator[tuple[int, Any]]"
DELIMITERS = (",", ";", "\t")
"""What may separate the columns of a CSV file; the first one whose header names the wanted columns does."""


@dataclass(frozen=True)
class Table:
    """The rows of a file."""

    unit: str
    """What its rows are counted in: "line" or "row"."""
    rows: Rows
    """Each with its number, as far as it can be read without knowing whether it fits."""
    cells: Callable[[Any], Cells]
    """The wanted cells of a row; raises `Unfit`."""


def open_table(path: Path, columns: Sequence[str], header: bool = True) -> Table:
    """A file's rows, as its name tells to read them.

    Args:
        path: ends in .csv, .tsv, .jsonl, .ndjson or .parquet, which .gz or .zst may follow.
        columns: the wanted ones by name, or by number from 1 where no column has that name; JSON lines know only names.
        header: whether the first line of a CSV or TSV file names the columns; without it they go by number.

    Raises:
        UserError: the file cannot be read or is of no such kind, or there is no such column, listing those there are.
    """
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    suffix = Path(name).suffix
    if suffix not in OPENERS:
        raise UserError(f"{path} is of no kind that can be read as a table; its name must end in {', '.join(OPENERS)}.")
    return OPENERS[suffix](path, columns, header)


def csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each record that is not blank, with the number of the line on which it begins.

    Raises:
        UserError: the file cannot be read, or its quotes do not fit together; names the line.
    """
    reader = csv.reader((line for _, line in text_lines(path)), delimiter=delimiter, strict=True)
    start = 1
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{path}, line {start}: quotes that do not fit together ({error}); a quote within a quoted field is doubled."
            ) from error
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield start, row
        start = reader.line_num + 1


def _open_csv(path: Path, columns: Sequence[str], header: bool) -> Table:
    problems: list[UserError] = []
    for delimiter in DELIMITERS if header else DELIMITERS[:1]:
        try:
            return _delimited(path, csv_rows(path, delimiter), columns, header)
        except UserError as problem:
            problems.append(problem)
    raise problems[0]


def _open_tsv(path: Path, columns: Sequence[str], header: bool) -> Table:
    return _delimited(path, tsv_rows(path), columns, header)


def _delimited(path: Path, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], header: bool) -> Table:
    if (first := next(rows, None)) is None:
        raise UserError(f"{path} holds no row; check the file.")
    width = len(first[1])
    names = [name.strip() for name in first[1]] if header else []
    places = tuple(_place(path, names, width, column) for column in columns)
    return Table("line", rows if header else chain([first], rows), Columns(places, (width, width)).of)


def _place(path: Path, names: list[str], width: int, column: str) -> int:
    """Where a column stands, counted from 0; without names it goes by number."""
    if column not in names and column.isdecimal() and 1 <= int(column) <= width:
        return int(column) - 1
    if not names:
        raise UserError(f"{path}: there is no column {column!r}; without a header the columns are numbered 1 to {width}.")
    return place(path, names, column)


def _open_jsonl(path: Path, columns: Sequence[str], _: bool) -> Table:
    return Table("line", ((number, line) for number, line in text_lines(path) if line.strip()), partial(_json_cells, columns))


def _json_cells(columns: Sequence[str], line: str) -> Cells:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise Unfit(f"no object but {listed([line])}")
    if missing := [column for column in columns if column not in row]:
        raise Unfit(f"there is no {missing[0]!r}; the columns are {listed(list(row))}")
    return [row[column] for column in columns]


def _open_parquet(path: Path, columns: Sequence[str], _: bool) -> Table:
    with arrow_errors(path):
        import pyarrow.parquet

        names = pyarrow.parquet.read_schema(path).names
    wanted = [names[_place(path, names, len(names), column)] for column in columns]
    return Table("row", enumerate(_parquet_rows(path, wanted), start=1), _parquet_cells)


def _parquet_rows(path: Path, names: list[str]) -> Iterator[tuple[Any, ...]]:
    with arrow_errors(path):
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=names):
                yield from zip(*(batch.column(name) for name in names), strict=True)


def _parquet_cells(row: tuple[Any, ...]) -> Cells:
    try:
        return [scalar.as_py() for scalar in row]
    except UnicodeDecodeError as error:
        raise Unfit(f"not UTF-8 text ({error.reason})") from error


OPENERS: dict[str, Callable[[Path, Sequence[str], bool], Table]] = {
    ".csv": _open_csv,
    ".tsv": _open_tsv,
    ".jsonl": _open_jsonl,
    ".ndjson": _open_jsonl,
    ".parquet": _open_parquet,
}
"""How a file is read, by the end of its name."""
