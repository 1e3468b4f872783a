"""The sizes of an encoder, and how a student's shape is written: LAYERSxWIDTH[:FEED_FORWARD][/HEADS]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from limbeck.encoders.families import Scores, family_of
from limbeck.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HEAD_WIDTHS = ("head_dim", "attention_head_size")
"""What configurations call the width of an attention head, if they name it."""


@dataclass(frozen=True)
class EncoderShape:
    """What objectives and cost formulas need to know of an encoder."""

    model_type: str
    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    """The most tokens that a sequence may have, which may be fewer than the rows of the table."""
    segments: int
    key_value_heads: int
    """Heads of keys and values, each of which may serve several of the queries' heads."""
    head_width: int
    gated: bool
    """Whether the feed-forward part has a third matrix."""
    scores: Scores | None
    """How attention scores come of q and k, if it is known."""
    windows: tuple[int | None, ...]
    """For each layer how many places to either side a token attends to; None where it attends to all."""

    @classmethod
    def of(cls, config: PretrainedConfig) -> EncoderShape:
        """Read the sizes from a model's configuration.

        Raises:
            UserError: an unsupported family.
        """
        family, heads = family_of(config), config.num_attention_heads
        return cls(
            model_type=config.model_type,
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=heads,
            feed_forward=getattr(config, family.feed_forward),
            vocabulary=config.vocab_size,
            positions=family.positions(config),
            segments=max(1, getattr(config, "type_vocab_size", None) or 1),
            key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_width=_head_width(config),
            gated=family.gated,
            scores=family.scores,
            windows=_windows(config),
        )

    def feature_width(self, feature: str) -> int:
        """The width of "q", "k", "v" or "hidden" as it is captured."""
        if feature == "hidden":
            return self.width
        return self.head_width * (self.heads if feature == "q" else self.key_value_heads)

    @property
    def attention_features(self) -> tuple[Literal["q", "k", "positions"], ...]:
        """What is captured of a layer to rebuild its attention scores."""
        return ("q", "k") if self.scores == "plain" else ("q", "k", "positions")

    def relation_width(self, relation: str) -> int:
        """The width that a relation such as "qk" splits into heads: mixed pairs repeat keys and values for the queries' heads."""
        return self.feature_width("q" if relation[0] != relation[1] else relation[0])

    def __str__(self) -> str:
        return f"{self.layers}x{self.width}:{self.feed_forward}/{self.heads}"


def _head_width(config: PretrainedConfig) -> int:
    for name in HEAD_WIDTHS:
        if width := getattr(config, name, None):
            return int(width)
    return int(config.hidden_size // config.num_attention_heads)


def _windows(config: PretrainedConfig) -> tuple[int | None, ...]:
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)


@dataclass(frozen=True)
class StudentShape:
    """A student's size as the user asks for it; what is left open follows from the teacher."""

    layers: int
    width: int
    feed_forward: int | None = None
    heads: int | None = None

    @classmethod
    def parse(cls, text: str) -> StudentShape:
        """Read "6x384", "4x312:1200" or "6x384:1536/12".

        Raises:
            UserError: the text is no shape.
        """
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?::([1-9]\d*))?(?:/([1-9]\d*))?", text.strip())
        if match is None:
            raise UserError(
                f"{text!r} is no student shape; write LAYERSxWIDTH[:FEED_FORWARD][/HEADS], such as 6x384 or 4x312:1200/12."
            )
        layers, width, feed_forward, heads = (None if part is None else int(part) for part in match.groups())
        assert layers is not None
        assert width is not None
        return cls(layers, width, feed_forward, heads)
