"""The run directory: what a run writes, and that nothing of it is ever half-written."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from limbeck.errors import UserError

STUDENT = "student"
RECIPE = "recipe.yaml"
SUMMARY = "summary.json"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"
TRACKERS = "trackers"
TEMPORARY = ".tmp-"
"""How names of what is being written begin, until it is whole and renamed."""
COMPARISON = "comparison.json"
PARTS = (SUMMARY, STUDENT, LOG, TRACKERS, CHECKPOINTS, COMPARISON, RECIPE)
"""Everything a run writes, in the order in which --overwrite removes it; it removes nothing else."""


class RunFolder:
    """A run's directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    @property
    def student(self) -> Path:
        """The finished student, a Hugging Face folder."""
        return self.path / STUDENT

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / RECIPE

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.path / CHECKPOINTS

    @property
    def trackers(self) -> Path:
        """Where the trackers write."""
        return self.path / TRACKERS

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: the summary is the last thing written."""
        return (self.path / SUMMARY).is_file() and (self.student / "config.json").is_file()

    def check_free(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse a directory that cannot be written to, or whose content is not to be touched.

        Raises:
            UserError: the path is no directory or not writable; or it is not empty, and neither a run to resume nor one
                to overwrite.
        """
        if resume and overwrite:
            raise UserError("--resume auto goes on with a run and --overwrite begins it anew; give one of them.")
        try:
            str(self.path).encode()
            standing = next(place for place in (self.path, *self.path.absolute().parents) if os.path.lexists(place))
            entries = sorted(entry.name for entry in self.path.iterdir()) if self.path.is_dir() else []
        except (OSError, UnicodeEncodeError) as error:
            raise UserError(f"{str(self.path)!r} cannot be the run's directory ({error}); name another.") from error
        found = [name for name in entries if not name.startswith(TEMPORARY)]
        if not standing.is_dir():
            raise UserError(f"{standing} is no directory; name a directory for the run.")
        if not os.access(standing, os.W_OK):
            raise UserError(f"Nothing can be written to {standing}; name a directory for the run that you may write to.")
        if found and not (resume or overwrite):
            raise UserError(f"{self.path} is not empty; name another directory, or add --resume auto or --overwrite.")
        foreign = [name for name in found if name not in PARTS]
        if foreign or (found and not self.recipe.is_file()):
            shown = ", ".join((foreign or found)[:3])
            raise UserError(f"{self.path} holds {shown}, but is not a run with a {RECIPE}; name another directory.")

    def check_holds_none(self, inputs: Iterable[str]) -> None:
        """Refuse inputs inside the run directory, which the run would overwrite.

        Raises:
            UserError: naming the first of them.
        """
        for given in inputs:
            path = Path(given).expanduser()
            if path.exists() and path.resolve().is_relative_to(self.path.resolve()):
                raise UserError(f"{given} lies in the run directory {self.path}, which is written to; name another directory.")

    def clear(self) -> None:
        """Remove what an earlier run wrote, and make the directory."""
        for part in PARTS:
            _remove(self.path / part)
        self.path.mkdir(parents=True, exist_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what a killed process left half-written."""
        for folder in (self.path, self.checkpoints):
            for leftover in folder.glob(f"{TEMPORARY}*"):
                _remove(leftover)

    def write_recipe(self, text: str) -> None:
        """Write the resolved recipe."""
        write_file(self.recipe, text)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which marks the run as finished."""
        write_file(self.path / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")

    def read_summary(self) -> dict[str, Any]:
        """The summary of a finished run."""
        summary: dict[str, Any] = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        return summary

    def append_log(self, record: Mapping[str, Any]) -> None:
        """Add one line to the log."""
        with (self.path / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(record, ensure_ascii=False) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """The log's lines; one that a killed process left incomplete is passed over."""
        path = self.path / LOG
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [record for line in lines if line.endswith(b"\n") and (record := _record(line)) is not None]

    def cut_log(self, step: int) -> None:
        """Remove the lines of steps after this one, which a resumed run will write again."""
        kept = [record for record in self.read_log() if record["step"] <= step]
        write_file(self.path / LOG, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "step" in record else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_file(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Write a directory so that it is there whole or not at all; an earlier one of that name is replaced.

    Args:
        path: the directory.
        fill: writes the files into the directory it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent))
    try:
        temporary.chmod(0o755)
        fill(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
