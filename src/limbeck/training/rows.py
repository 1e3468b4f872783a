"""Rows of a student's embedding tables that no training reached: tokens, positions and segments that its text does not have.

Their gradient is zero in every step. AdamW's decoupled weight decay shrinks them all the same, by a factor that depends on
learning rate and steps alone; a row that was only shrunk counts as never trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from limbeck.data.batches import PackedSource
from limbeck.encoders.loading import Encoder
from limbeck.text import count, several


@dataclass(frozen=True)
class Rows:
    """Of one table."""

    untrained: int
    total: int
    """Zero where the student has no such table. Rows that no sequence can read, as RoBERTa has two, are not counted."""


def untrained_rows(source: PackedSource, student: Encoder, examples: int) -> dict[str, Rows]:
    """Count the rows that were never trained.

    Args:
        source: what was trained on.
        student: its frozen tables have no trained row.
        examples: how many were trained on, over the whole run.

    Returns:
        For "vocabulary", "positions" and "segments" the rows of that table.
    """
    embeddings, shape = student.model.get_submodule(student.family.embeddings[0]), student.shape
    words = student.model.get_input_embeddings()
    seen = source.seen(examples, shape.vocabulary)
    return {
        "vocabulary": _rows(words, shape.vocabulary, int(seen.ids.sum())),
        "positions": _rows(getattr(embeddings, "position_embeddings", None), shape.positions, seen.longest),
        "segments": _rows(getattr(embeddings, "token_type_embeddings", None), shape.segments, seen.segments),
    }


def described_rows(rows: dict[str, Rows]) -> str:
    """In words: 23,123 of 30,522 vocabulary rows, 480 of 512 positions, 1 of 2 segments."""
    nouns = {"vocabulary": "vocabulary row", "positions": "position", "segments": "segment"}
    return ", ".join(
        f"{count(each.untrained)} of {several(each.total, nouns[table])}" for table, each in rows.items() if each.total
    )


def _rows(table: object, total: int, trained: int) -> Rows:
    if not isinstance(table, nn.Embedding):
        return Rows(0, 0)
    return Rows(total - min(trained, total) if table.weight.requires_grad else total, total)
