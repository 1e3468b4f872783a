"""What an encoder costs: parameters, floating-point operations counted and in closed form, and bytes to train and store it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedModel

from limbeck.encoders.families import family_of
from limbeck.encoders.shape import EncoderShape

FLOAT32 = 4
"""Bytes of a weight, its gradient and each of AdamW's moments, whatever the precision of the matrix products."""


@dataclass(frozen=True)
class Parameters:
    """Parameter counts as MiniLM's Table 4 splits them."""

    embedding: int
    """Word, position and segment tables with their norm."""
    transformer: int
    """The Transformer layers, with what they share."""
    pooler: int
    """What stands behind the layers, which MiniLM's table leaves out."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.transformer + self.pooler


def count_parameters(model: PreTrainedModel) -> Parameters:
    """Count the encoder's parameters by part."""
    encoder, family = model.base_model, family_of(model.config)
    parts = dict(encoder.named_modules())
    embedding = sum(_size(parts[name]) for name in family.embeddings if name in parts)
    pooler = _size(parts[family.pooler]) if family.pooler in parts and family.pooler else 0
    return Parameters(embedding, _size(encoder) - embedding - pooler, pooler)


def _size(module: nn.Module) -> int:
    return sum((parameter.numel() for parameter in module.parameters()), start=0)


def layer_flops(shape: EncoderShape, batch: int, length: int) -> int:
    """Floating-point operations (two a multiply-add) of the matrix products in one Transformer layer, forward.

    The projections to queries, keys, values and back, two products of the attention, two of the feed-forward part or three where
    it is gated. What DeBERTa's attention computes of positions is not in it.
    """
    tokens, queries = batch * length, shape.feature_width("q")
    feed_forward = (3 if shape.gated else 2) * shape.width * shape.feed_forward
    projections = shape.width * (_projected(shape, ("q", "k", "v")) + queries)
    return 2 * tokens * (projections + feed_forward + 2 * length * queries)


def capture_flops(shape: EncoderShape, layer: int, features: Collection[str], batch: int, length: int) -> int:
    """Operations up to some of q, k and v of a layer (numbered from 1), forward."""
    return (layer - 1) * layer_flops(shape, batch, length) + 2 * batch * length * shape.width * _projected(shape, features)


def _projected(shape: EncoderShape, features: Collection[str]) -> int:
    return sum(shape.feature_width(feature) for feature in features)


def relation_flops(teacher_width: int, student_width: int, relations: int, batch: int, length: int) -> int:
    """Operations of relation losses: scores of both models and the two products of the student's gradient."""
    return relations * 2 * batch * length**2 * (teacher_width + 3 * student_width)


def distillation_flops(
    teacher: EncoderShape,
    teacher_layer: int,
    student: EncoderShape,
    relations: int,
    batch: int,
    length: int,
    *,
    hidden: bool = False,
) -> int:
    """Operations that one step of relation distillation needs.

    The teacher up to q, k and v of the layer read, three times (forward and backward) the student up to those of its
    last, and the relations. The first layer's input gradient, which leads to the embeddings, is needed as well.

    Args:
        teacher: its shape.
        teacher_layer: the layer read, numbered from 1.
        student: its shape.
        relations: how many, that of hidden states not counted.
        batch: sequences.
        length: tokens in each.
        hidden: whether a relation of hidden states is read as well, so that both layers run whole.
    """
    whole, features, relations = (1, "", relations + 1) if hidden else (0, "qkv", relations)
    return (
        capture_flops(teacher, teacher_layer + whole, features, batch, length)
        + 3 * capture_flops(student, student.layers + whole, features, batch, length)
        + relation_flops(teacher.width, student.width, relations, batch, length)
    )


def gradient_bytes(trained: int) -> int:
    """Bytes of the gradients of so many parameters."""
    return FLOAT32 * trained


def moment_bytes(trained: int) -> int:
    """Bytes of AdamW's two moments, which come with its first step and stay."""
    return 2 * FLOAT32 * trained


def weight_bytes(parameters: int) -> int:
    """Bytes of so many weights, in memory and in a file."""
    return FLOAT32 * parameters


def checkpoint_bytes(parameters: int, trained: int) -> int:
    """Bytes of a checkpoint: all weights, and the moments of those that are trained; a tokenizer comes on top."""
    return weight_bytes(parameters) + moment_bytes(trained)


def flop_counter() -> FlopCounterMode:
    """Torch's counter, taught the attention kernels of the CPU, which it counts as nothing."""
    aten = torch.ops.aten
    return FlopCounterMode(
        display=False,
        custom_mapping={
            aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
        },
    )


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward_flops(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))
