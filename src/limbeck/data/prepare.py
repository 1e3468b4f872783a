"""Preparing a corpus: tokenising it once, in parallel and with bounded memory, into shards that runs map into memory.

A prepared folder holds shards (`limbeck.data.tokens.Shard`) and an index, which is written last. Shards are cut by the
text alone, so that work that was interrupted goes on with the shards that are there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from filelock import FileLock

from limbeck.data.files import PACKED, CorpusFile
from limbeck.data.text import Unit, read_units
from limbeck.data.tokens import FORMAT, BrokenShard, PlainTokenizer, Shard, Tokens, checked
from limbeck.errors import UserError
from limbeck.text import size

INDEX = "index.json"
SHARDS = "shard-[0-9][0-9][0-9][0-9][0-9][0-9].safetensors"
LOCK = ".lock"
SHARD_CHARACTERS = 1 << 23
"""About how much text goes into a shard."""
UNIT_CHARACTERS = 64
"""How many characters a unit counts for beside its text, so that many short ones take no more memory than few long ones."""
BYTES_A_CHARACTER = 0.6
"""About how much room the tokens of a byte of text take, in 16 bits; twice that in 32."""
UNPACKED = 4
"""About how much larger text is than its compressed file."""


@dataclass(frozen=True)
class Corpus:
    """Files of text that are to be tokenised."""

    files: tuple[CorpusFile, ...]
    tokenizer: PlainTokenizer
    column: str
    """Where the text stands in files that are tables."""

    @cached_property
    def key(self) -> str:
        """What the shards depend on: the files' content in order, the tokenizer, and the format."""
        parts = [FORMAT, self.tokenizer.fingerprint, self.column, *(digest for _, digest in self._read)]
        return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def check_unchanged(self) -> None:
        """Refuse files whose content changed since the key was made, since what was read of them may not be what it says.

        Raises:
            UserError: naming the first that did.
        """
        for file, (state, digest) in zip(self.files, self._read, strict=True):
            if file.state() != state and file.digest() != digest:
                raise UserError(f"{file.path} changed while it was read; begin again when it is complete.")

    @cached_property
    def _read(self) -> list[tuple[tuple[int, int], str]]:
        """The state of each file, and after that the digest of its content."""
        return [(file.state(), file.digest()) for file in self.files]

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(file.path.stat().st_size for file in self.files)

    def expected_bytes(self) -> int:
        """About how much room the shards will take."""
        text = sum(file.path.stat().st_size * (UNPACKED if file.path.suffix in PACKED else 1) for file in self.files)
        return round(text * BYTES_A_CHARACTER * np.dtype(self.tokenizer.dtype).itemsize / 2)


Watch: TypeAlias = "Callable[[int], AbstractContextManager[Callable[[int], None]]]"
"""Is told how many bytes of files are to be read, and gives what then hears how many more of them were."""


def unwatched(_: int) -> AbstractContextManager[Callable[[int], None]]:
    """A `Watch` that tells nobody."""
    return nullcontext(lambda _: None)


def prepare_shards(corpus: Corpus, folder: Path, watch: Watch = unwatched) -> Tokens:
    """Tokenise a corpus into a folder, or open it if that was done before; interrupted work goes on.

    A folder prepared from other text, or with another tokenizer, is prepared anew. Several processes may prepare the same
    folder; one does the work and the others wait.

    Args:
        corpus: what to tokenise.
        folder: made if it is missing. It holds nothing else.
        watch: follows the work, if there is any to do.

    Raises:
        UserError: text cannot be read, nothing comes of it, or too little room is left on the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):
        try:
            return open_prepared(folder, corpus.tokenizer, corpus.key)
        except BrokenShard:
            pass
        _check_room(corpus, folder)
        with watch(corpus.bytes) as read:
            shards = list(_shards(corpus, folder, read))
        corpus.check_unchanged()
        tokens = checked(Tokens.of(shards))
        _remove_others(folder, len(shards))
        _write_index(folder, corpus, shards)
    return tokens


def open_prepared(folder: Path, tokenizer: PlainTokenizer, key: str | None = None) -> Tokens:
    """The tokens of a prepared folder, mapped into memory, after checking all of them.

    Args:
        folder: as `prepare` wrote it.
        tokenizer: the teacher's.
        key: what the corpus must be, if that is to be checked.

    Raises:
        BrokenShard: the folder is incomplete or damaged, or holds another corpus than the key's.
        UserError: it was prepared with another tokenizer.
    """
    index = read_index(folder)
    if key is not None and index["key"] != key:
        raise BrokenShard(f"{folder} holds another corpus")
    if index["tokenizer"] != tokenizer.fingerprint:
        raise UserError(f"{folder} was prepared with another tokenizer than the teacher's; prepare the text again.")
    shards = []
    for number, digest in enumerate(index["shards"]):
        shards.append(Shard.open(folder / _name(number)))
        if shards[-1].digest != digest:
            raise BrokenShard(f"{folder / _name(number)} does not belong to {INDEX}")
    return Tokens.of(shards)


def read_index(folder: Path) -> dict[str, Any]:
    """What a prepared folder says of itself.

    Raises:
        BrokenShard: there is no index that can be read.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index["format"] == FORMAT and {"key", "tokenizer", "shards"} <= index.keys():
            return dict(index)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise BrokenShard(f"{folder / INDEX} is missing or damaged")


def is_prepared(path: str | Path) -> bool:
    """Whether a path is a folder that `prepare` wrote, whole or not."""
    folder = Path(path).expanduser()
    try:
        read_index(folder)
    except BrokenShard:
        return any(folder.glob(SHARDS))
    return True


def is_foreign(folder: Path) -> bool:
    """Whether a folder without an index holds anything but what an interrupted `prepare` leaves, or hidden files."""
    names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} if folder.is_dir() else set()
    shards = {shard.name for shard in folder.glob(SHARDS)}
    return not names <= (shards | {INDEX} if shards else set())


def _shards(corpus: Corpus, folder: Path, read: Callable[[int], None]) -> Iterator[Shard]:
    """The corpus's shards in order; a few are worked on at a time, so that memory does not grow with the corpus."""
    waiting: deque[Future[Shard]] = deque()
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for number, units in enumerate(_stretches(read_units(corpus.files, corpus.column, read))):
                waiting.append(pool.submit(_shard, units, folder / _name(number), corpus.tokenizer))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _stretches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    stretch: list[Unit] = []
    characters = 0
    for unit in units:
        stretch.append(unit)
        characters += len(unit.text) + UNIT_CHARACTERS
        if characters >= SHARD_CHARACTERS:
            yield stretch
            stretch, characters = [], 0
    if stretch:
        yield stretch


def _shard(units: list[Unit], path: Path, tokenizer: PlainTokenizer) -> Shard:
    """The shard of a stretch of text: the one that lies there, if it was made of this text, or else a new one."""
    hashed = blake2b(digest_size=16)
    for unit in units:
        hashed.update(f"{unit.document} {unit.text}\n".encode())
    notes = {"text": hashed.hexdigest(), "tokenizer": tokenizer.fingerprint}
    try:
        return Shard.open(path, **notes)
    except BrokenShard:
        Shard.of(units, tokenizer).save(path, **notes)
        return Shard.open(path, **notes)


def _name(number: int) -> str:
    return f"shard-{number:06d}.safetensors"


def _remove_others(folder: Path, count: int) -> None:
    """Remove shards of a longer corpus that was begun here before, and what a killed process left half-written."""
    kept = {_name(number) for number in range(count)}
    for shard in folder.glob(f"*{SHARDS}"):
        if shard.name not in kept:
            shard.unlink()


def _write_index(folder: Path, corpus: Corpus, shards: list[Shard]) -> None:
    index = {
        "format": FORMAT,
        "key": corpus.key,
        "tokenizer": corpus.tokenizer.fingerprint,
        "files": [os.fsencode(file.path.name).decode(errors="replace") for file in corpus.files],  # need not be UTF-8
        "tokens": sum(len(shard.ids) for shard in shards),
        "units": sum(len(shard.lengths) for shard in shards),
        "empty": sum(shard.empty for shard in shards),
        "unknown": sum(shard.unknown for shard in shards),
        "shards": [shard.digest for shard in shards],
    }
    temporary = folder / f".tmp-{INDEX}"
    temporary.write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(folder / INDEX)


def _check_room(corpus: Corpus, folder: Path) -> None:
    there = sum(shard.stat().st_size for shard in folder.glob(SHARDS))
    needed, free = corpus.expected_bytes() - there, shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"The tokens of the corpus need about {size(needed)}, but {folder} has {size(free)} left; prepare "
            "the text elsewhere (limbeck prepare ... -o FOLDER) or let LIMBECK_CACHE name a folder on a larger disk."
        )
