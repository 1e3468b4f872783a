"""Which files a corpus names, and what each of them holds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from os.path import realpath
from pathlib import Path
from typing import Any, Literal

from limbeck.encoders.folders import HUB_SECONDS, hub_remedy
from limbeck.errors import UserError
from limbeck.text import one_line

Kind = Literal["text", "jsonl", "parquet", "arrow"]

SUFFIXES: dict[str, Kind] = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""What a folder's files are taken for, by the end of their names; each may be followed by one of PACKED."""
PACKED = (".gz", ".zst")
HUB = "datasets:"
"""How the name of a data set on the hub is marked, so that a wrong path never reaches for the network."""
SPLIT_FILE = re.compile(r"(\w+)(?:-\d+-of-\d+)?\.parquet")
"""What the Parquet files of a data set's split are called."""


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus."""

    path: Path
    kind: Kind

    def state(self) -> tuple[int, int]:
        """Size and time of change, which tell that the file is being written to.

        Raises:
            UserError: the file is gone.
        """
        try:
            found = self.path.stat()
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}.") from error
        return found.st_size, found.st_mtime_ns

    def digest(self) -> str:
        """A hash of the content, which is what counts, wherever the file lies.

        Raises:
            UserError: the file cannot be read.
        """
        hashed = blake2b(self.kind.encode(), digest_size=16)
        try:
            with self.path.open("rb") as file:
                while block := file.read(1 << 20):
                    hashed.update(block)
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        return hashed.hexdigest()


def corpus_files(paths: Iterable[str | Path]) -> list[CorpusFile]:
    """The files that the paths name, each once and in the order given.

    A path is a file (text, unless its name says JSON lines or Parquet), a folder of such files, a folder that `datasets`
    saved, or ``datasets:NAME[:CONFIGURATION[:SPLIT]]`` for a data set on the hub. What is hidden in a folder is passed over.

    Raises:
        UserError: a path does not exist or is no regular file, or a folder cannot be read or holds no such file.
    """
    files: dict[str, CorpusFile] = {}
    for path in paths:
        for file in _found(path):
            files.setdefault(realpath(file.path), file)
    return list(files.values())


def data_set_splits(name: str | Path) -> dict[str, list[CorpusFile]]:
    """The files of a data set by split, under the names that the data set gives its splits.

    Args:
        name: ``datasets:NAME[:CONFIGURATION[:SPLIT]]`` for one on the hub, a folder that `datasets` saved, or a folder of
            Parquet files called by their splits, such as train-00000-of-00002.parquet, which may lie in data/.

    Returns:
        Nothing if a folder holds no data set, or there is no such folder. A data set saved without splits is "train".

    Raises:
        UserError: the hub does not give the data set, or a folder cannot be read.
    """
    if str(name).startswith(HUB):
        return _hub_splits(str(name).removeprefix(HUB))
    folder = Path(name).expanduser()
    try:
        if (folder / "state.json").is_file():
            return {"train": _saved(folder)}
        inner = sorted(folder.iterdir()) if folder.is_dir() else []
        if (folder / "dataset_dict.json").is_file():
            return {entry.name: _saved(entry) for entry in inner if (entry / "state.json").is_file()}
        splits: dict[str, list[CorpusFile]] = {}
        for file in (*inner, *sorted(folder.glob("data/*"))):
            if named := SPLIT_FILE.fullmatch(file.name):
                splits.setdefault(named[1], []).append(CorpusFile(file, "parquet"))
        return splits
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from error


def _found(path: str | Path) -> list[CorpusFile]:
    if isinstance(path, str) and path.startswith(HUB):
        return _hub_files(path.removeprefix(HUB))
    if not str(path):
        raise UserError("The name of the text is empty; name a file or folder.")
    path = Path(path).expanduser()
    try:
        if path.is_dir():
            return _in_folder(path)
        missing, irregular = not path.exists(), path.exists() and not path.is_file()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    if missing:
        raise UserError(f"There is no text file {path}, nor a folder of that name; check the path.")
    if irregular:
        raise UserError(f"{path} is no regular file; write the text to a file first.")
    return [CorpusFile(path, _kind(path) or "text")]


def _kind(path: Path) -> Kind | None:
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def _in_folder(folder: Path) -> list[CorpusFile]:
    if (folder / "dataset_dict.json").is_file():
        return _saved_splits(folder)
    if (folder / "state.json").is_file():
        return _saved(folder)
    named = sorted(file for file in _below(folder) if file.is_file() or (file.is_symlink() and not file.exists()))
    files = [CorpusFile(file, kind) for file in named if (kind := _kind(file))]
    if not files:
        kinds = ", ".join(SUFFIXES)
        raise UserError(
            f"The folder {folder} holds no file that can be read as text ({kinds}, plain or .gz or .zst); "
            "name the files themselves."
        )
    return files


def _below(folder: Path) -> Iterator[Path]:
    """What is not hidden below a folder, through links to other folders too, except those that lead back up."""
    been: set[str] = set()
    for place, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        here = realpath(place)
        been.add(here)
        places = {each: realpath(Path(place, each)) for each in folders if not _hidden(each)}
        folders[:] = [each for each, there in places.items() if there not in been and not Path(here).is_relative_to(there)]
        yield from (Path(place, each) for each in files if not _hidden(each))


def _refuse(error: OSError) -> None:
    raise error


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _saved_splits(folder: Path) -> list[CorpusFile]:
    if (folder / "train" / "state.json").is_file():
        return _saved(folder / "train")
    splits = ", ".join(sorted(entry.name for entry in folder.iterdir() if (entry / "state.json").is_file()))
    raise UserError(f"{folder} has no split named train; name one of its folders: {splits or 'it has none'}.")


def _saved(folder: Path) -> list[CorpusFile]:
    """The files of a data set that `datasets` saved to disk."""
    try:
        names = [entry["filename"] for entry in json.loads((folder / "state.json").read_text(encoding="utf-8"))["_data_files"]]
        if not names:
            raise ValueError("it has no file")
        return [CorpusFile(folder / name, "arrow") for name in names]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder / 'state.json'} does not describe a saved data set ({error}); save it again.") from error


def _hub_files(name: str) -> list[CorpusFile]:
    (files,) = _hub_splits(name, "train").values()
    return files


def _hub_splits(name: str, default: str | None = None) -> dict[str, list[CorpusFile]]:
    """The files of a data set on the hub by split, fetched into the cache of `datasets`.

    Args:
        name: NAME[:CONFIGURATION[:SPLIT]].
        default: the split that is meant where the name tells none; without it, all are.
    """
    try:
        import datasets
        from huggingface_hub import is_offline_mode
    except ImportError as error:
        raise UserError(f"{HUB}{name} needs a package that is missing: pip install 'limbeck[data]'.") from error
    path, _, rest = name.partition(":")
    configuration, _, split = rest.partition(":")
    if "[" in split:  # the cached files hold the whole split
        raise UserError(f"{HUB}{name} names a part of a split; save it with save_to_disk and name the folder.")
    forbidden = datasets.config.HF_HUB_OFFLINE and not is_offline_mode()  # by HF_DATASETS_OFFLINE, which the hub knows nothing of
    problem = None if forbidden or Path(path).is_dir() else _hub_problem(path)
    try:
        with _unasked(datasets.config, problem):
            loaded = datasets.load_dataset(path, configuration or None, split=split or default)
    except Exception as error:  # whatever datasets and the network make of a name that anyone may have typed
        reason = (
            hub_remedy(problem, "data set")
            if problem
            else f"{one_line(error)[:200]}; check its name ({HUB}NAME[:CONFIGURATION[:SPLIT]]), the network and your access."
        )
        raise UserError(f"The data set {name!r} cannot be had: {reason}") from error
    splits = loaded if isinstance(loaded, dict) else {split or default: loaded}
    return {
        str(each): [CorpusFile(Path(file["filename"]), "arrow") for file in data.cache_files] for each, data in splits.items()
    }


def _hub_problem(path: str) -> Exception | None:
    """Why the hub does not give a data set, which it is asked before `datasets`, who would try again for minutes."""
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(path, timeout=HUB_SECONDS)
    except Exception as error:  # whatever the hub, the network and the settings for both give rise to
        return error
    return None


@contextmanager
def _unasked(config: Any, problem: Exception | None) -> Iterator[None]:
    """Let `datasets` take what it has fetched before where the hub does not answer."""
    offline = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = offline or problem is not None
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = offline
