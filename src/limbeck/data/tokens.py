"""Text as token ids: one flat array, with the places where units begin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from tokenizers import Tokenizer

from limbeck.data.text import Unit
from limbeck.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

Ids: TypeAlias = "NDArray[np.unsignedinteger[Any]]"

BATCH_UNITS = 4096
"""Units that are given to the tokenizer at a time, which spreads them over the processors."""


@dataclass(frozen=True)
class Tokens:
    """Tokenised units, without special tokens."""

    ids: Ids
    """(tokens,) 16 bits wide only where every id of the vocabulary fits."""
    offsets: NDArray[np.int64]
    """(units + 1,) where each unit begins, and the end."""
    documents: NDArray[np.int64]
    """(units,) the document each unit stands in."""
    empty: int
    """Units that were dropped because no token came of them."""

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(units,) tokens of each unit, at least 1."""
        return np.diff(self.offsets)


def tokenize(units: Iterable[Unit], tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Tokenise units in parallel, whole: limits on length or padding that a tokenizer file asks for do not apply.

    Raises:
        UserError: not one token comes of the text, or the tokenizer is not a fast one.
    """
    backend = _backend(tokenizer)
    dtype: type[np.unsignedinteger[Any]] = np.uint16 if max(backend.get_vocab().values()) < 1 << 16 else np.uint32
    pieces: list[Ids] = []
    documents: list[int] = []
    empty = 0
    for batch in _batches(units):
        encodings = backend.encode_batch_fast([unit.text for unit in batch], add_special_tokens=False)
        for unit, encoding in zip(batch, encodings, strict=True):
            if encoding.ids:
                pieces.append(np.array(encoding.ids, dtype=dtype))
                documents.append(unit.document)
            else:
                empty += 1
    if not pieces:
        raise UserError("The corpus holds no text: every line is empty or becomes no token; check the files.")
    offsets = np.cumsum([0] + [len(piece) for piece in pieces], dtype=np.int64)
    return Tokens(np.concatenate(pieces), offsets, np.array(documents, dtype=np.int64), empty)


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    iterator = iter(units)
    while batch := list(islice(iterator, BATCH_UNITS)):
        yield batch


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    if not tokenizer.is_fast:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; save the model with a tokenizer.json.")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # "[SEP]" in a text is text
    return backend
