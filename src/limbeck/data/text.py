"""Reading text files: a line is a unit, blank lines separate documents, and so does the end of a file."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from limbeck.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Unit:
    """A line of text and the number of the document it stands in."""

    text: str
    document: int


def text_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files that the paths name: a file itself, a folder's files in the order of their names.

    Raises:
        UserError: a path does not exist, or a folder holds no .txt or .txt.gz file.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(f for f in path.rglob("*") if f.name.endswith((".txt", ".txt.gz")) and not f.is_dir())
            if not found:
                raise UserError(f"The folder {path} holds no .txt or .txt.gz file; name the files themselves.")
            files.extend(found)
        elif path.is_file():
            files.append(path)
        else:
            raise UserError(f"There is no text file {path}; check the path.")
    return files


def read_units(files: Iterable[Path]) -> Iterator[Unit]:
    """The files' units, with documents numbered from 0 over all files.

    Raises:
        UserError: a file cannot be read, is a broken gzip file, or is not UTF-8 (naming the line).
    """
    document = -1
    for file in files:
        starts_document = True
        for line in _lines(file):
            if not line.strip():
                starts_document = True
                continue
            document += starts_document
            starts_document = False
            yield Unit(line.strip(), document)


def _lines(file: Path) -> Iterator[str]:
    number = 0
    try:
        with file.open("rb") as raw:
            zipped = raw.peek(2)[:2] == GZIP_MAGIC
            with gzip.GzipFile(fileobj=raw) if zipped else raw as stream:
                for number, line in enumerate(stream, start=1):
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, line {number}: not UTF-8 text ({error.reason}); convert the file to UTF-8.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file}, after line {number}: broken gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}.") from error


def hold_out(units: Iterable[Unit], share: float) -> tuple[list[Unit], list[Unit]]:
    """Split units into those to train on and about a share that is kept out.

    The text alone decides, so that repeated lines fall on the same side, whatever the seed.

    Raises:
        UserError: one side would be empty.
    """
    sides: tuple[list[Unit], list[Unit]] = ([], [])
    for unit in units:
        digest = blake2b(unit.text.encode(), digest_size=8).digest()
        sides[int.from_bytes(digest, "big") < share * 2**64].append(unit)
    if not all(sides):
        raise UserError(f"The corpus is too small to hold out a share of {share}; name a file of its own instead.")
    return sides
