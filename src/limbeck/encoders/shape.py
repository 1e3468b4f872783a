"""The sizes of an encoder, and how a student's shape is written: LAYERSxWIDTH[:FEED_FORWARD][/HEADS]."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limbeck.encoders.families import family_of
from limbeck.errors import UserError
from limbeck.kernels.heads import common_divisors

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PAPERS_HEADS = 12
"""MiniLM (section 4.1) and MiniLMv2 (section 4.1) give every student 12 attention heads."""
TASK_SETTINGS = ("architectures", "id2label", "label2id", "problem_type", "classifier_dropout")
"""What a configuration says of a task head."""


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

    @classmethod
    def of(cls, config: PretrainedConfig) -> EncoderShape:
        """Read the sizes from a model's configuration.

        Raises:
            UserError: an unsupported family.
        """
        return cls(
            model_type=config.model_type,
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            feed_forward=config.intermediate_size,
            vocabulary=config.vocab_size,
            positions=family_of(config).positions(config),
            segments=config.type_vocab_size,
        )

    def __str__(self) -> str:
        return f"{self.layers}x{self.width}:{self.feed_forward}/{self.heads}"


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

    def config(self, teacher: PretrainedConfig, *, teacher_heads: bool = False) -> PretrainedConfig:
        """The student's configuration: that of the teacher's encoder, with this shape.

        Args:
            teacher: it is copied, never changed.
            teacher_heads: whether the objective compares attention heads one by one, so that the student needs as
                many as the teacher.

        Raises:
            UserError: the heads do not divide the width.
        """
        config = copy.deepcopy(teacher)
        forget_task(config)
        config.num_hidden_layers = self.layers
        config.hidden_size = self.width
        config.num_attention_heads = self._heads(teacher.num_attention_heads, teacher_heads)
        ratio = teacher.intermediate_size / teacher.hidden_size
        config.intermediate_size = self.feed_forward or round(self.width * ratio)
        return config

    def _heads(self, teacher: int, same: bool) -> int:
        wanted = [self.heads] if self.heads else [teacher] if same else [PAPERS_HEADS, teacher]
        for heads in wanted:
            if self.width % heads == 0:
                return heads
        if same:
            raise UserError(
                f"A width of {self.width} cannot be split into {wanted[0]} attention heads, but the student needs {teacher}, as "
                f"many as the teacher has; choose a width that is a multiple of {teacher}, or use --objective minilmv2 and "
                "--init random, which need no equal heads."
            )
        raise UserError(
            f"A width of {self.width} cannot be split into {wanted[0]} attention heads; "
            f"write {self.layers}x{self.width}/HEADS with one of {', '.join(map(str, common_divisors(self.width)))}."
        )


def forget_task(config: PretrainedConfig) -> None:
    """Take out of a configuration what an encoder by itself does not have: its task, and settings of foreign code."""
    blank = type(config)()
    for name in vars(config).keys() - vars(blank).keys():
        if not name.startswith("_"):
            delattr(config, name)
    for name in TASK_SETTINGS:
        setattr(config, name, getattr(blank, name, None))
