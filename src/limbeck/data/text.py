"""Reading a corpus's files, whatever their format, as units of text in documents.

In plain text a line is a unit, and blank lines separate documents, as does the end of a file. In JSON lines, Parquet and
Arrow files a row is a document, and each line of its text a unit.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from limbeck.data.files import CorpusFile, Kind
from limbeck.errors import UserError
from limbeck.text import encodable

if TYPE_CHECKING:
    from typing_extensions import Buffer

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPED = b"\x2a\x4d\x18"
"""What follows the first byte, 0x50 to 0x5f, of a frame without content; pzstd begins its files with one."""
ZSTD_WINDOW = 1 << 31
"""The largest window of zstd, 2 GiB, which files made with --long=31 have."""
ROWS = 256
"""Rows of a table that are read at a time."""

Line: TypeAlias = "tuple[str, bool]"
"""A unit's text, and whether a document begins with it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A line of text and the number of the document it stands in."""

    text: str
    document: int


class BrokenFile(Exception):
    """A compressed file that ends too early or is damaged."""


def read_units(files: Iterable[CorpusFile], column: str = "text", read: Callable[[int], None] = lambda _: None) -> Iterator[Unit]:
    """The files' units, with documents numbered from 0 over all files.

    Args:
        files: read one after the other.
        column: where the text stands in files that are tables.
        read: hears, now and then, how many more bytes of the files were read.

    Raises:
        UserError: a file cannot be read or is broken, text is not UTF-8, or a row has no text; naming file and line.
    """
    document = -1
    for file in files:
        for text, begins in READERS[file.kind](file.path, column, read):
            document += begins
            yield Unit(text, document)


def _read_text(path: Path, _: str, read: Callable[[int], None]) -> Iterator[Line]:
    begins = True
    for _number, line in text_lines(path, read):
        if text := line.strip():
            yield text, begins
        begins = not text


def _read_jsonl(path: Path, column: str, read: Callable[[int], None]) -> Iterator[Line]:
    for number, line in text_lines(path, read):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}); a line must hold one object.") from error
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {number}: no object but {line.strip()[:40]}; write lines such as {{"text": ...}}.')
        if column not in row:
            raise UserError(f"{path}, line {number}: {_no_column(column, list(row))}")
        yield from _row(row[column], f"{path}, line {number}", column)


def _read_parquet(path: Path, column: str, read: Callable[[int], None]) -> Iterator[Line]:
    with arrow_errors(path):
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path) as file:
            _check_column(path, column, file.schema_arrow.names)
            row_bytes = path.stat().st_size / max(1, file.metadata.num_rows)
            batches = file.iter_batches(batch_size=ROWS, columns=[column])
            yield from _rows(path, column, ((batch, row_bytes * batch.num_rows) for batch in batches), read)


def _read_arrow(path: Path, column: str, read: Callable[[int], None]) -> Iterator[Line]:
    with arrow_errors(path):
        import pyarrow

        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            _check_column(path, column, stream.schema.names)
            yield from _rows(path, column, ((batch.select([column]), batch.nbytes) for batch in stream), read)


def _rows(path: Path, column: str, batches: Iterable[tuple[Any, float]], read: Callable[[int], None]) -> Iterator[Line]:
    """The units of batches of one column, which come with the bytes of the file that they took."""
    number = 0
    for batch, size in batches:
        for scalar in batch.column(0):
            number += 1
            place = f"{path}, row {number}"
            try:
                value = scalar.as_py()
            except UnicodeDecodeError as error:
                raise UserError(f"{place}: not UTF-8 text ({error.reason}); convert the file to UTF-8.") from error
            yield from _row(value, place, column)
        read(round(size))


READERS: dict[Kind, Callable[[Path, str, Callable[[int], None]], Iterator[Line]]] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}


def _row(value: object, place: str, column: str) -> Iterator[Line]:
    """The units of one row's text; a row without any gives one empty unit, which is dropped and counted later."""
    if value is not None and not isinstance(value, str):
        raise UserError(f"{place}: {column!r} holds {str(value)[:40]!r}, which is no text; name the text with --text-column.")
    if value and not encodable(value):
        raise UserError(f"{place}: {column!r} holds half of a surrogate pair, which is no character; mend or drop the row.")
    lines = [text for line in (value or "").split("\n") if (text := line.strip())] or [""]
    yield from ((text, place == 0) for place, text in enumerate(lines))


def _check_column(path: Path, column: str, columns: list[str]) -> None:
    if column not in columns:
        raise UserError(f"{path}: {_no_column(column, columns)}")


def _no_column(column: str, columns: list[str]) -> str:
    return f"there is no {column!r}; name the text with --text-column, one of {', '.join(map(str, columns[:20])) or 'nothing'}."


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong while pyarrow reads a file, or because it is missing, into a `UserError`."""
    try:
        import pyarrow
    except ImportError as error:
        raise UserError(f"{path} needs a package that is missing: pip install 'limbeck[data]'.") from error
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is broken or cannot be read ({' '.join(str(error).split())}); fetch it again.") from error


def text_lines(path: Path, read: Callable[[int], None] = lambda _: None) -> Iterator[tuple[int, str]]:
    """A text file's lines with their ends, numbered from 1; the file may be compressed.

    Raises:
        UserError: the file cannot be read, is broken, or is not UTF-8; naming file and line.
    """
    number, place = 0, 0
    try:
        with path.open("rb") as raw, _unpacked(raw, path) as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                if raw.tell() != place:
                    read(raw.tell() - place)
                    place = raw.tell()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not UTF-8 text ({error.reason}); convert the file to UTF-8.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error, BrokenFile) as error:
        raise UserError(f"{path}, after line {number}: broken compressed file ({error}); fetch it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _unpacked(raw: BufferedReader, path: Path) -> IO[bytes]:
    """The content of a file that may be compressed, which its first bytes tell."""
    magic = raw.peek(4)[:4]
    if magic[:2] == GZIP_MAGIC:
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if magic == ZSTD_MAGIC or (magic[1:] == ZSTD_SKIPPED and magic[0] >> 4 == 5):
        return BufferedReader(_Zstd(raw, path))
    return raw


class _Zstd(RawIOBase):
    """Decompresses frames one after the other; unlike zstandard's own reader it notices a missing end."""

    def __init__(self, raw: BufferedReader, path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise UserError(f"{path} needs a package that is missing: pip install 'limbeck[data]'.") from error
        self._raw, self._zstandard = raw, zstandard
        self._frame = self._next_frame()
        self._inside = False
        self._packed, self._plain = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        while not self._plain:
            packed = self._packed or self._raw.read1(1 << 16)
            self._packed = b""
            if not packed:
                if self._inside:
                    raise BrokenFile("it ends within a frame")
                return 0
            self._decompress(packed)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._plain))
        target[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def _decompress(self, packed: bytes) -> None:
        try:
            self._plain = memoryview(self._frame.decompress(packed))
        except self._zstandard.ZstdError as error:
            raise BrokenFile(str(error)) from error
        self._inside = not self._frame.eof
        if self._frame.eof:
            self._packed = self._frame.unused_data
            self._frame = self._next_frame()

    def _next_frame(self) -> Any:
        return self._zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
