"""How an encoder's sentence embeddings rank pairs of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from limbeck.encoders.embedding import MAX_LENGTH, embed
from limbeck.encoders.loading import Encoder
from limbeck.errors import UserError
from limbeck.tasks.glue import GLUE, read_split

SentencePair = tuple[str, str]


def cosines(encoder: Encoder, pairs: Sequence[SentencePair]) -> Tensor:
    """Cosine similarity of each pair, (pairs,)."""
    first, second = embed_columns(encoder, list(zip(*pairs, strict=True)))
    return (first * second).sum(dim=1)


def embed_columns(encoder: Encoder, columns: Sequence[Sequence[str]], max_length: int = MAX_LENGTH) -> list[Tensor]:
    """Embeddings of each column's sentences as `embed` makes them, where a sentence that occurs again is embedded once.

    Returns:
        (sentences, width) for each column.
    """
    sentences = sorted({sentence for column in columns for sentence in column})
    place = {sentence: number for number, sentence in enumerate(sentences)}
    embeddings = embed(encoder, sentences, max_length)
    return [embeddings[[place[sentence] for sentence in column]] for column in columns]


def read_sts(path: Path) -> tuple[list[SentencePair], Tensor]:
    """Sentence pairs and their scores (0 to 5) from one of STS-B's files, as GLUE or the STS benchmark has them.

    Raises:
        UserError: the file cannot be read, a line does not fit (naming it), or nothing can be ranked by the scores.
    """
    split = read_split(GLUE["stsb"], path, "dev")
    if split.report:
        raise UserError(f"{split.report} Mend the file.")
    pairs = [(example.text, example.second or "") for example in split.examples]
    scores = torch.tensor([example.label for example in split.examples])
    if len(scores.unique()) < 2:
        raise UserError(f"{path} has no two pairs with different scores, which a rank correlation needs.")
    return pairs, scores
