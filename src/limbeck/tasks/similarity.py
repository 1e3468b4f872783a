"""How an encoder's sentence embeddings rank pairs of sentences."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from limbeck.encoders.embedding import embed
from limbeck.encoders.loading import Encoder
from limbeck.errors import UserError

SentencePair = tuple[str, str]


def cosines(encoder: Encoder, pairs: Sequence[SentencePair]) -> Tensor:
    """Cosine similarity of each pair, (pairs,)."""
    sentences = sorted({sentence for pair in pairs for sentence in pair})
    place = {sentence: number for number, sentence in enumerate(sentences)}
    embeddings = embed(encoder, sentences)
    first, second = (embeddings[[place[pair[side]] for pair in pairs]] for side in (0, 1))
    return (first * second).sum(dim=1)


def spearman(first: Tensor, second: Tensor) -> float:
    """Spearman's rank correlation of two lists of numbers."""
    try:
        from scipy.stats import spearmanr
    except ImportError as error:
        raise UserError("Rank correlations need scipy: pip install 'limbeck[quickstart]'.") from error
    return float(spearmanr(first.numpy(), second.numpy()).statistic)


def read_sts(path: Path) -> tuple[list[SentencePair], Tensor]:
    """Sentence pairs and their scores (0 to 5) from STS-B in GLUE's format (train.tsv, dev.tsv).

    Raises:
        UserError: the file cannot be read, a line does not fit (naming it), or nothing can be ranked by the scores.
    """
    rows: list[list[str]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows.extend(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read after line {len(rows)}: no tab-separated UTF-8 text ({error}).") from error
    columns = ("sentence1", "sentence2", "score")
    if not rows or not set(columns) <= set(rows[0]):
        raise UserError(f"{path} is not STS-B in GLUE's format: its first line must name {', '.join(columns)}.")
    first, second, score = (rows[0].index(column) for column in columns)
    pairs, scores = [], []
    for number, row in enumerate(rows[1:], start=2):
        try:
            pairs.append((row[first], row[second]))
            scores.append(float(row[score]))
        except (IndexError, ValueError) as error:
            raise UserError(f"{path}, line {number}: no sentence pair with a score.") from error
        if not math.isfinite(scores[-1]):
            raise UserError(f"{path}, line {number}: the score {row[score]} is no finite number.")
    if len(set(scores)) < 2:
        raise UserError(f"{path} has no two pairs with different scores, which a rank correlation needs.")
    return pairs, torch.tensor(scores)
