"""Finding a task's files below the folder that the user names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from limbeck.data.files import PACKED
from limbeck.errors import UserError


def squeezed(name: str) -> str:
    """A name in lower case without separators, so that SST-2, sst_2 and sst2 are the same."""
    return "".join(character for character in name.lower() if character.isalnum())


def folders(data: Path, name: str, others: Iterable[str] = ()) -> list[Path]:
    """Where a task's files may lie: in a folder of its name in the given one or in its glue folder, or right there.

    Args:
        data: the folder that the user named.
        name: the task's name, in any spelling.
        others: tasks whose own folder is never taken for this one's.

    Raises:
        UserError: there is no such folder, or it cannot be read.
    """
    try:
        if not data.is_dir():
            raise UserError(f"There is no folder {data} with a task's files; check the path.")
        inner = sorted(entry for entry in data.iterdir() if entry.is_dir())
        collections = [entry for entry in inner if squeezed(entry.name) == "glue"]
        nested = [entry for folder in collections for entry in sorted(folder.iterdir()) if entry.is_dir()]
    except OSError as error:
        raise UserError(f"{data} cannot be read: {error.strerror or error}.") from error
    found = [entry for entry in (*inner, *nested) if squeezed(entry.name) == squeezed(name)]
    taken = {squeezed(other) for other in others} - {squeezed(name)}
    return found if squeezed(data.resolve().name) in taken else [*found, data]


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first file of these names, in upper or lower case, plain or compressed; None if there is none."""
    files = {entry.name.lower(): entry for entry in sorted(folder.iterdir()) if entry.is_file()}
    wanted = (f"{name}{packed}".lower() for name in names for packed in ("", *PACKED))
    return next((files[name] for name in wanted if name in files), None)
