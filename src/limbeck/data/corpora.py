"""From the names in a recipe to text that batches are made of: files or prepared folders, held out, weighted, packed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from limbeck.data.batches import Frame, PackedSource, Portion
from limbeck.data.files import CorpusFile, corpus_files
from limbeck.data.packing import Packing
from limbeck.data.prepare import Corpus, is_prepared, open_prepared, prepare
from limbeck.data.tokens import BrokenShard, PlainTokenizer, Tokens
from limbeck.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG_STRETCH = 8
"""How many of the longest sequences a stretch of long text holds, where a share of the text is packed to full length."""


@dataclass(frozen=True)
class Reading:
    """How text becomes tokens."""

    tokenizer: PlainTokenizer
    column: str
    """Where the text stands in files that are tables."""
    read: Callable[[int], None] | None = None
    """Hears how many more bytes of the files were read, and tokenised."""


@dataclass(frozen=True)
class Layout:
    """How tokens become sequences."""

    frame: Frame
    packing: Packing
    max_length: int
    seed: int
    long_length: int = 0
    """The length that `long_share` of the tokens is packed to."""
    long_share: float = 0.0

    def portions(self, tokens: Tokens, share: float = 1.0) -> list[Portion]:
        """Pack text: all of it to the usual length, or a share of it to the long one."""
        sides = [(tokens, self.max_length)]
        if self.long_share > 0 and self.long_length > self.max_length:
            long = _long_units(tokens, self.long_share, self.long_length)
            sides = [(tokens.chosen(~long), self.max_length), (tokens.chosen(long), self.long_length)]
        return [Portion.of(side, self.frame, self.packing, length, share) for side, length in sides if len(side)]

    def source(self, tokens: Sequence[Tokens], weights: Sequence[float] | None = None) -> PackedSource:
        """Pack several corpora, each of which makes up a share of the tokens in proportion to its weight."""
        sizes = np.array([part.lengths.sum() for part in tokens], dtype=np.float64)
        wanted = sizes if weights is None else np.array(weights, dtype=np.float64)
        shares = (wanted / wanted.sum()) / (sizes / sizes.sum())
        portions = [each for part, share in zip(tokens, shares, strict=True) for each in self.portions(part, float(share))]
        return PackedSource(portions, self.frame, self.packing, self.seed)


def _long_units(tokens: Tokens, share: float, length: int) -> NDArray[np.bool_]:
    """(units,) which units lie in the stretches of text that are packed to the long length."""
    before = np.cumsum(tokens.lengths) - tokens.lengths
    period = min(LONG_STRETCH * length / share, tokens.lengths.sum())
    long: NDArray[np.bool_] = before % period >= (1 - share) * period
    return long


def open_tokens(paths: Sequence[str], reading: Reading, without: Sequence[str] = ()) -> Tokens:
    """The tokens of all text that the paths name, tokenised before if it was.

    Args:
        paths: files, folders, data sets (see `limbeck.data.files.corpus_files`), or folders that `prepare` wrote.
        reading: how text becomes tokens.
        without: paths whose text is left out, although a folder may hold it.

    Raises:
        UserError: a path is wrong, text cannot be read, or nothing comes of it.
    """
    left_out = {realpath(path) for path in _places(without)}
    prepared = [folder for path in paths if is_prepared(path) and realpath(folder := Path(path).expanduser()) not in left_out]
    files = [file for file in corpus_files(p for p in paths if not is_prepared(p)) if realpath(file.path) not in left_out]
    parts = [_prepared(folder, reading.tokenizer) for folder in prepared]
    if files:
        parts.append(_cached(files, reading))
    if not parts:
        raise UserError("The held-out text is all the text there is; name other text to train on.")
    return parts[0] if len(parts) == 1 else Tokens.joined(parts)


def _places(paths: Sequence[str]) -> Iterator[Path]:
    """The prepared folders among the paths, and the files of the others."""
    yield from (Path(path).expanduser() for path in paths if is_prepared(path))
    yield from (file.path for file in corpus_files(path for path in paths if not is_prepared(path)))


def _prepared(folder: Path, tokenizer: PlainTokenizer) -> Tokens:
    try:
        return open_prepared(folder, tokenizer)
    except BrokenShard as error:
        raise UserError(f"{error}; run limbeck prepare again with the same text, which mends the folder.") from error


def _cached(files: Sequence[CorpusFile], reading: Reading) -> Tokens:
    corpus = Corpus(tuple(files), reading.tokenizer, reading.column)
    return prepare(corpus, cache_folder() / "tokens" / corpus.key, reading.read)


def cache_folder() -> Path:
    """Where prepared text is kept between runs: $LIMBECK_CACHE, or limbeck below $XDG_CACHE_HOME or ~/.cache.

    Raises:
        UserError: nothing can be written there.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = Path(os.environ.get("LIMBECK_CACHE") or caches / "limbeck").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The cache {folder} cannot be made ({error.strerror}); let LIMBECK_CACHE name a folder that can be written to."
        ) from error
    return folder
