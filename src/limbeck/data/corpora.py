"""From the names in a recipe to text that batches are made of: files or prepared folders, held out, weighted, packed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from limbeck.data.batches import Frame, PackedSource, Portion
from limbeck.data.files import CorpusFile, corpus_files
from limbeck.data.packing import Packing
from limbeck.data.prepare import Corpus, Watch, is_foreign, is_prepared, open_prepared, prepare_shards, read_index, unwatched
from limbeck.data.tokens import BrokenShard, PlainTokenizer, Tokens
from limbeck.encoders.loading import load_tokenizer
from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.text import count

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
    watch: Watch = unwatched
    """Follows the work where text was not tokenised before."""


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


def open_tokens(paths: Sequence[str], reading: Reading) -> Tokens:
    """The tokens of all text that the paths name, tokenised before if it was.

    Args:
        paths: files, folders, data sets (see `limbeck.data.files.corpus_files`), or folders that `limbeck prepare` wrote,
            which come first; each counts once.
        reading: how text becomes tokens.

    Raises:
        UserError: a path is wrong, text cannot be read, or nothing comes of it.
    """
    prepared = {realpath(folder): folder for path in paths if is_prepared(path) and (folder := Path(path).expanduser())}
    files = corpus_files(path for path in paths if not is_prepared(path))
    parts = [_prepared(folder, reading.tokenizer) for folder in prepared.values()]
    if files:
        parts.append(_cached(files, reading))
    return parts[0] if len(parts) == 1 else Tokens.joined(parts)


def prepare(
    corpus: str | Path | Sequence[str | Path],
    *,
    tokenizer: str | Path,
    output: str | Path,
    text_column: str = "text",
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Tokenise text into a folder that runs take as their corpus; interrupted, it goes on when it is called again.

    Args:
        corpus: files, folders and data sets, see `limbeck.data.files.corpus_files`.
        tokenizer: the folder (or hub name) of the model or tokenizer.
        output: the folder.
        text_column: where the text stands in JSON lines, Parquet and data sets.
        overwrite: prepare anew although the folder was prepared from other text.
        quiet: print nothing.

    Returns:
        What the folder's index says: the numbers of tokens, units, empty units, unknown tokens, and the files.

    Raises:
        UserError: the text or the tokenizer cannot be read, or the folder holds something else.
    """
    reporter, folder = Reporter(quiet=quiet), Path(output).expanduser()
    plain = PlainTokenizer(load_tokenizer(tokenizer))
    named = [corpus] if isinstance(corpus, str | Path) else corpus
    wanted = Corpus(tuple(corpus_files(named)), plain, text_column)
    _check_free(folder, wanted, overwrite=overwrite)
    prepare_shards(wanted, folder, reporter.tokenizing)
    index = {name: value for name, value in read_index(folder).items() if name not in ("format", "shards")}
    unknown = index["unknown"] / index["tokens"]
    reporter.fact("text", f"{count(index['tokens'])} tokens in {count(index['units'])} units, {unknown:.1%} unknown")
    reporter.fact("dropped", f"{count(index['empty'])} units without a token")
    reporter.say(f"written to {folder}, for --corpus")
    return {"output": str(folder), **index}


def _check_free(folder: Path, corpus: Corpus, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything but shards, or those of other text that is not to be replaced."""
    inside = [file.path for file in corpus.files if Path(realpath(file.path)).is_relative_to(realpath(folder))]
    if inside:
        raise UserError(f"{inside[0]} lies in {folder}, which is written to; name another folder.")
    try:
        same = read_index(folder)["key"] == corpus.key
    except BrokenShard:
        if is_foreign(folder):
            raise UserError(f"{folder} holds something else than prepared text; name another folder.") from None
        same = True  # begun, or not yet there
    if not (same or overwrite):
        raise UserError(f"{folder} was prepared from other text or with another tokenizer; add --overwrite, or name another.")
    try:
        str(folder).encode()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, UnicodeEncodeError) as error:
        raise UserError(f"{str(folder)!r} cannot be a folder for the shards ({error}); name another.") from error


def saved_datasets(corpus: object) -> object:
    """The corpus with each `datasets.Dataset` in memory replaced by the folder in the cache that it is saved to.

    Of a dictionary of splits, the one named train is meant.

    Raises:
        UserError: the data set is streamed, or has no split named train.
    """
    if isinstance(corpus, list | tuple):
        return [saved_datasets(part) for part in corpus]
    if not type(corpus).__module__.startswith("datasets."):
        return corpus
    if isinstance(corpus, dict):
        if "train" not in corpus:
            raise UserError(f"The data set has no split named train; give one of its splits: {', '.join(corpus) or 'none'}.")
        return saved_datasets(corpus["train"])
    if not hasattr(corpus, "save_to_disk"):
        raise UserError(f"The {type(corpus).__name__} is streamed; give a Dataset, or write the text to a file first.")
    return str(_saved_once(corpus))


def _saved_once(dataset: Any) -> Path:
    """The folder in the cache that holds a data set, saved there if it is not whole."""
    folder: Path = cache_folder() / "datasets" / dataset._fingerprint
    with FileLock(cache_folder() / ".lock-datasets"):
        if not _is_whole(folder):
            temporary = folder.with_name(f".tmp-{folder.name}")
            for earlier in (temporary, folder):
                shutil.rmtree(earlier, ignore_errors=True)
            with _no_bars():
                dataset.save_to_disk(temporary)
            temporary.replace(folder)
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        return folder.is_dir() and all(file.path.is_file() for file in corpus_files([folder]))
    except UserError:
        return False


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep `datasets` from drawing progress bars, which are ours to draw."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hidden = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()


def _prepared(folder: Path, tokenizer: PlainTokenizer) -> Tokens:
    try:
        return open_prepared(folder, tokenizer)
    except BrokenShard as error:
        raise UserError(f"{error}; run limbeck prepare again with the same text, which mends the folder.") from error


def _cached(files: Sequence[CorpusFile], reading: Reading) -> Tokens:
    corpus = Corpus(tuple(files), reading.tokenizer, reading.column)
    return prepare_shards(corpus, cache_folder() / "tokens" / corpus.key, reading.watch)


def cache_folder() -> Path:
    """Where prepared text is kept between runs: $LIMBECK_CACHE, or limbeck below $XDG_CACHE_HOME or ~/.cache.

    Raises:
        UserError: nothing can be written there.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = Path(os.environ.get("LIMBECK_CACHE") or caches / "limbeck")
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the latter if nobody has such a home
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"The cache {folder} cannot be made ({reason}); let LIMBECK_CACHE name a folder that can be written to."
        ) from error
    return folder
