"""Tables that people keep their own data in: CSV, TSV, JSON lines, Parquet and Arrow, as rows of the wanted cells.

CSV has quotes, and line breaks within them; its columns are separated by commas, semicolons or tabs. TSV has no quotes at all.
Text is UTF-8, a byte order mark is passed over, and these and JSON lines may be compressed by gzip or zstd. Where `datasets`
wrote a Parquet or Arrow file and noted the names of classes, cells hold the names and not the numbers.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from limbeck.data.files import PACKED, data_set_splits
from limbeck.data.text import ROWS, arrow_errors, text_lines
from limbeck.errors import UserError
from limbeck.tasks.rows import Columns, Unfit, place, tsv_rows
from limbeck.text import encodable, listed

Cells: TypeAlias = "list[Any]"
Rows: TypeAlias = "Iterator[tuple[int, Any]]"
Batches: TypeAlias = "Callable[[Path, list[str]], Iterator[list[Any]]]"
"""Gives the columns of some rows of a file at a time."""
LONE_CR = "a line ends in a carriage return alone, as on old Macs; convert the file's line ends to those of today."
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
        path: ends in .csv, .tsv, .jsonl, .ndjson, .parquet or .arrow, which .gz or .zst may follow.
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


@dataclass(frozen=True)
class Source:
    """Files that hold the rows of one split."""

    path: Path
    """What people know them by: the file, or data set and split."""
    files: tuple[Path, ...]

    def open(self, columns: Sequence[str], header: bool = True) -> Table:
        """The rows of all files, numbered through if they are several; arguments and errors are those of `open_table`."""
        tables = [open_table(file, columns, header) for file in self.files]
        if len(tables) == 1:
            return tables[0]
        placed = ((table, row) for table in tables for _, row in table.rows)
        return Table("row", enumerate(placed, start=1), lambda place: place[0].cells(place[1]))


def data_set_sources(name: str | Path) -> dict[str, Source]:
    """The splits of a data set as `limbeck.data.files.data_set_splits` finds them; what they call validation is "dev" here."""
    return {
        split.replace("validation", "dev"): Source(Path(name) / split, tuple(file.path for file in files))
        for split, files in data_set_splits(name).items()
    }


def text_cell(column: str, cell: Any) -> str:
    """The text in a cell; an empty one if it holds nothing.

    Raises:
        Unfit: it holds something else, or text that cannot be encoded.
    """
    if cell is not None and not isinstance(cell, str):
        raise Unfit(f"{column!r} holds {str(cell)[:40]!r}, which is no text")
    if cell and not encodable(cell):
        raise Unfit(f"{column!r} holds half of a surrogate pair, which is no character")
    return cell or ""


def csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each record that is not blank, with the number of the line on which it begins.

    Raises:
        UserError: the file cannot be read, or its quotes do not fit together; names the line.
    """
    reader = csv.reader((line for _, line in text_lines(path)), delimiter=delimiter, strict=True)
    start = 1
    while True:
        try:
            with _long_fields():
                row = next(reader, None)
        except csv.Error as error:
            if "new-line" in str(error):
                raise UserError(f"{path}, line {start}: {LONE_CR}") from error
            raise UserError(
                f"{path}, line {start}: quotes that do not fit together ({error}); a quote within a quoted field is doubled."
            ) from error
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield start, row
        start = reader.line_num + 1


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let a field be as long as a text may be; the limit is the process's, so it is put back after each record."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


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
    if any("\r" in name for name in first[1]) and path.name.lower().partition(".")[2].startswith("tsv"):
        raise UserError(f"{path}, line {first[0]}: {LONE_CR}")
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

        schema = pyarrow.parquet.read_schema(path)
    return _arrow_table(path, schema, columns, _parquet_batches)


def _open_arrow(path: Path, columns: Sequence[str], _: bool) -> Table:
    with arrow_errors(path):
        import pyarrow

        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            schema = stream.schema
    return _arrow_table(path, schema, columns, _arrow_batches)


def _arrow_table(path: Path, schema: Any, columns: Sequence[str], batches: Batches) -> Table:
    names = schema.names
    wanted = [names[_place(path, names, len(names), column)] for column in columns]
    classes = _class_names(schema)
    rows = enumerate(_arrow_rows(path, batches(path, wanted)), start=1)
    return Table("row", rows, partial(_arrow_cells, [classes.get(name) for name in wanted]))


def _arrow_rows(path: Path, columns: Iterator[list[Any]]) -> Iterator[tuple[Any, ...]]:
    with arrow_errors(path):
        for batch in columns:
            yield from zip(*batch, strict=True)


def _parquet_batches(path: Path, names: list[str]) -> Iterator[list[Any]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS, columns=names):
            yield [batch.column(name) for name in names]


def _arrow_batches(path: Path, names: list[str]) -> Iterator[list[Any]]:
    import pyarrow

    with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
        for batch in stream:
            yield [batch.column(name) for name in names]


def _class_names(schema: Any) -> dict[str, list[str]]:
    """The names of the classes, in order, in the columns for which `datasets` noted them."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {column: names for column, feature in features.items() if (names := _names_of(feature))}
    except (TypeError, LookupError, ValueError, AttributeError):  # nothing was noted, or by something else
        return {}


def _names_of(feature: Any) -> list[str] | None:
    """A column's names of classes, whether a cell holds one class or a list of them."""
    inner = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
    return list(inner["names"]) if inner.get("_type") == "ClassLabel" else None


def _arrow_cells(classes: Sequence[list[str] | None], row: tuple[Any, ...]) -> Cells:
    try:
        cells = [scalar.as_py() for scalar in row]
    except UnicodeDecodeError as error:
        raise Unfit(f"not UTF-8 text ({error.reason})") from error
    return [cell if names is None else _named(cell, names) for cell, names in zip(cells, classes, strict=True)]


def _named(cell: Any, names: list[str]) -> Any:
    """What a cell's class is called, or each of its classes; None for -1, which stands for an unknown one."""
    if isinstance(cell, list):
        return [_named(each, names) for each in cell]
    if cell is None or cell == -1:
        return None
    if not 0 <= cell < len(names):
        raise Unfit(f"there is no class {cell}; they go from 0 to {len(names) - 1}")
    return names[cell]


OPENERS: dict[str, Callable[[Path, Sequence[str], bool], Table]] = {
    ".csv": _open_csv,
    ".tsv": _open_tsv,
    ".jsonl": _open_jsonl,
    ".ndjson": _open_jsonl,
    ".parquet": _open_parquet,
    ".arrow": _open_arrow,
}
"""How a file is read, by the end of its name."""
