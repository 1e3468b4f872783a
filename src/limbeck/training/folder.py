"""The run directory: what a run writes, and that nothing of it is ever half-written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from limbeck.encoders.folders import RUN_RECIPE, RUN_REMOVED, RUN_STUDENT, RUN_STUDENTS, RUN_SUMMARY
from limbeck.errors import CheckFailed, UserError

STUDENT, STUDENTS, RECIPE, SUMMARY, REMOVED = RUN_STUDENT, RUN_STUDENTS, RUN_RECIPE, RUN_SUMMARY, RUN_REMOVED
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"
BEST = "best"
TRACKERS = "trackers"
LOCK = ".lock"
"""Held by the process that works in the directory; it holds that process's number."""
TEMPORARY = ".tmp-"
"""How names of what is being written begin, until it is whole and renamed."""
COMPARISON = "comparison.json"
PREDICTIONS = "predictions"
SUBMISSION = "submission"
STAGES = "stages"
RUNS = "runs"
PARTS = (
    SUMMARY,
    STUDENT,
    STUDENTS,
    BEST,
    LOG,
    TRACKERS,
    CHECKPOINTS,
    COMPARISON,
    PREDICTIONS,
    SUBMISSION,
    STAGES,
    RUNS,
    RECIPE,
)
"""Everything a run writes, in the order in which --overwrite removes it; it removes nothing else."""


class RunFolder:
    """A run's directory."""

    def __init__(self, path: str | Path) -> None:
        """Name a directory, which need not be there yet.

        Raises:
            UserError: no path, or the home of nobody.
        """
        try:
            self.path = Path(path).expanduser()
        except (TypeError, RuntimeError) as error:
            raise UserError(f"{path!r} cannot be the run's directory ({error}); name another.") from error

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
    def best(self) -> Path:
        """The student with the lowest held-out loss, likewise, if the recipe asks for it."""
        return self.path / BEST

    @property
    def trackers(self) -> Path:
        """Where the trackers write."""
        return self.path / TRACKERS

    def stage(self, name: str) -> RunFolder:
        """The directory of a stage, which is a run of its own."""
        return RunFolder(self.path / STAGES / name)

    def run(self, name: str) -> RunFolder:
        """The directory of one of several students, which is a run of its own."""
        return _OneOfSeveral(self, name)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: the summary is the last thing written, and the student is there or was removed."""
        there = (self.student / "config.json").is_file() and any(self.student.glob("*.safetensors"))
        return (self.path / SUMMARY).is_file() and (there or REMOVED in self.read_summary())

    def check_usable(self) -> None:
        """Refuse a path where no directory is or can be made that may be written to.

        Raises:
            UserError: saying why.
        """
        try:
            str(self.path).encode()
            standing = next(place for place in (self.path, *self.path.absolute().parents) if os.path.lexists(place))
            if self.path.is_dir():
                next(self.path.iterdir(), None)
        except (OSError, UnicodeEncodeError) as error:
            raise UserError(f"{str(self.path)!r} cannot be the run's directory ({error}); name another.") from error
        if not standing.is_dir():
            raise UserError(f"{standing} is no directory; name a directory for the run.")
        if not os.access(standing, os.W_OK):
            raise UserError(f"Nothing can be written to {standing}; name a directory for the run that you may write to.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out of the directory, which is made for that, and removed if nothing comes into it.

        The system gives the lock back should the process be killed.

        Raises:
            UserError: another process works there; naming it.
        """
        made = [place for place in (self.path, *self.path.parents) if not place.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path} cannot be made ({error.strerror}); name another directory for the run.") from error
        file = self.path / LOCK
        holder = file.read_text().strip() if file.exists() else ""  # before trying: some versions of filelock empty the file
        lock = FileLock(file, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise UserError(
                f"Another process ({holder or 'unknown'}) is working in {self.path}; wait for its end, or name another directory."
            ) from None
        try:
            file.write_text(f"{os.getpid()}\n")
            yield
        finally:
            file.unlink(missing_ok=True)
            lock.release()
            with suppress(OSError):  # the first that is not empty
                for place in made:
                    place.rmdir()

    def check_free(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse a directory whose content is not to be touched.

        Raises:
            UserError: it is not empty, and neither a run to resume nor one to overwrite.
        """
        if resume and overwrite:
            raise UserError("--resume auto goes on with a run and --overwrite begins it anew; give one of them.")
        entries = sorted(entry.name for entry in self.path.iterdir()) if self.path.is_dir() else []
        found = [name for name in entries if not name.startswith(".")]  # the lock, leftovers, and what systems put everywhere
        if found and not (resume or overwrite):
            raise UserError(f"{self.path} is not empty; name another directory, or add --resume auto or --overwrite.")
        shown = ", ".join([name for name in found if name not in PARTS][:3] or found[:3])
        if found and not self.recipe.is_file():
            raise UserError(f"{self.path} holds {shown}, but is not a run with a {RECIPE}; name another directory.")
        if not set(found) <= set(PARTS):
            raise UserError(f"{self.path} holds {shown}, which no run writes; move that elsewhere, or name another directory.")

    def check_holds_none(self, inputs: Iterable[str]) -> None:
        """Refuse inputs inside the run directory, which the run would overwrite.

        Raises:
            UserError: naming the first of them.
        """
        for given in inputs:
            path = Path(given).expanduser()
            with suppress(OSError):  # a name too long for any file
                if path.exists() and path.resolve().is_relative_to(self.path.resolve()):
                    raise UserError(
                        f"{given} lies in the run directory {self.path}, which is written to; name another directory."
                    )

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
        """The summary of a finished run.

        Raises:
            UserError: the file is not what was written there.
        """
        path = self.path / SUMMARY
        try:
            summary = json.loads(path.read_bytes())
        except ValueError as error:
            raise UserError(f"{path} cannot be read ({error}); remove it to have the run's end done again.") from error
        if not (isinstance(summary, dict) and isinstance(summary.get("fingerprints"), dict)):
            raise UserError(f"{path} holds no summary; remove it to have the run's end done again.")
        return summary

    def remove_weights(self, why: str) -> None:
        """Remove the weights of a finished run, which stays finished: summary, log and predictions are as they were."""
        self.write_summary({**self.read_summary(), REMOVED: why})  # first, so that a run without weights is never unexplained
        for part in (self.student, self.best, self.checkpoints):
            _remove(part)

    def append_log(self, record: Mapping[str, Any]) -> None:
        """Add one line to the log, or nothing of it.

        Raises:
            CheckFailed: there is no room for it.
        """
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
        with _writing(self.path / LOG), (self.path / LOG).open("ab", buffering=0) as log:
            before = log.tell()
            try:
                if log.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                log.truncate(before)
                raise

    def read_log(self) -> list[dict[str, Any]]:
        """The log's lines; one that a killed process left incomplete is passed over."""
        path = self.path / LOG
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [record for line in lines if line.endswith(b"\n") and (record := _record(line)) is not None]

    def cut_log(self, step: int) -> None:
        """Remove the lines of steps after this one, and that the run was resumed at it: a resumed run writes them again."""
        self.write_log(record for record in self.read_log() if record["step"] <= step - ("resumed" in record))

    def write_log(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Put these lines in the place of the log's."""
        write_file(self.path / LOG, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


class _OneOfSeveral(RunFolder):
    """The directory of one of several students, whose log goes into that of them all as well."""

    def __init__(self, whole: RunFolder, name: str) -> None:
        super().__init__(whole.path / RUNS / name)
        self._whole, self._name = whole, name

    def append_log(self, record: Mapping[str, Any]) -> None:
        """Add one line to both logs."""
        super().append_log(record)
        self._whole.append_log({"student": self._name, **record})


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_directory(path: Path) -> None:
    """Remove a directory so that nobody takes what a killed process left of it for the whole."""
    shutil.rmtree(_set_aside(path))


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{TEMPORARY}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return path.rename(aside)


def link_directory(path: Path, source: Path) -> None:
    """Put the files of a directory into another one, whole or not at all: as hard links, or copied where there are none.

    Args:
        path: the directory to be made; an earlier one of that name is replaced.
        source: where the files lie.

    Raises:
        CheckFailed: it cannot be written.
    """
    write_directory(path, lambda target: shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say what to do where something cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckFailed(
            f"{path} could not be written ({' '.join(str(error).split())}). What was complete before is still there; make "
            "room, and go on with --resume auto."
        ) from error


def write_file(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all.

    Raises:
        CheckFailed: it cannot be written, such as on a full disk; an earlier file of that name is as it was.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with _writing(path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_directory(path: Path, fill: Callable[[Path], Any]) -> None:
    """Write a directory so that it is there whole or not at all; an earlier one of that name is replaced.

    Args:
        path: the directory.
        fill: writes the files into the directory it is given.

    Raises:
        CheckFailed: it cannot be written, such as on a full disk; an earlier directory of that name is as it was.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent))
        try:
            temporary.chmod(0o755)
            fill(temporary)
            for file in temporary.rglob("*"):
                if file.is_file():
                    with file.open("rb") as written:
                        os.fsync(written.fileno())
            earlier = _set_aside(path) if path.exists() else None
            temporary.rename(path)
            if earlier is not None:
                shutil.rmtree(earlier)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
