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
    """The files that the paths name, each once: a file itself, a folder's .txt and .txt.gz files in order of their names.

    Hidden files are passed over.

    Raises:
        UserError: a path does not exist or is no regular file, or a folder cannot be read or holds no such file.
    """
    files: dict[Path, Path] = {}
    for path in (Path(path).expanduser() for path in paths):
        try:
            found = _texts_in(path) if path.is_dir() else [path]
            missing = not path.exists()
            irregular = not missing and not path.is_dir() and not path.is_file()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
        if missing:
            raise UserError(f"There is no text file {path}, nor a folder of that name; check the path.")
        if irregular:
            raise UserError(f"{path} is no regular file; write the text to a file first.")
        if not found:
            raise UserError(f"The folder {path} holds no .txt or .txt.gz file that can be read; name the files themselves.")
        files.update({file.resolve(): file for file in found if file.resolve() not in files})
    return list(files.values())


def _texts_in(folder: Path) -> list[Path]:
    named = (file for file in folder.rglob("*") if file.name.endswith((".txt", ".txt.gz")) and not file.name.startswith("."))
    return sorted(file for file in named if file.is_file() or file.is_symlink())


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

    The text alone decides, so that repeated lines fall on the same side, whatever the seed. Where a unit was taken out,
    a new document begins, so that no one takes what now stands side by side for running text.

    Raises:
        UserError: one side would be empty.
    """
    sides: tuple[list[Unit], list[Unit]] = ([], [])
    last, document = (False, -1), -1
    for unit in units:
        held = int.from_bytes(blake2b(unit.text.encode(), digest_size=8).digest(), "big") < share * 2**64
        document += (held, unit.document) != last
        last = (held, unit.document)
        sides[held].append(Unit(unit.text, document))
    if not all(sides):
        raise UserError(f"The corpus is too small to hold out a share of {share}; name a file of its own instead.")
    return sides
