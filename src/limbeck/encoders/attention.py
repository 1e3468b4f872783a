"""Attention for training on a processor, where torch's own has no fast way with dropout.

It serves speed only: features are captured in front of it and the kernels rebuild scores by themselves, so that no loss depends
on it. Encoders whose attention does not go through transformers' interface keep their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from limbeck.kernels.attention import attention

NAME = "limbeck"


def use_own_attention(model: PreTrainedModel) -> None:
    """Let an encoder attend by Limbeck's kernel where that is faster than torch's scaled_dot_product_attention."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)  # without one of its own padding would be attended to
        model.set_attn_implementation(NAME)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention by the kernel where there is dropout on a processor; otherwise as transformers does it.

    Args:
        module: whose attention it is.
        query: (batch, heads, n, d).
        key: (batch, key and value heads, n, d).
        value: likewise.
        attention_mask: broadcastable to (batch, heads, n, n): bool, true where a token may attend, or what is added.
        dropout: the share of the attention that is dropped.
        scaling: the factor on the dot products; None means 1 / sqrt(d).
        more: what else a model hands on.

    Returns:
        (batch, n, heads, d), and nothing in place of the attention maps.
    """
    if not dropout or query.device.type != "cpu" or more.get("is_causal") or more.get("position_bias") is not None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **more)
        return output, None
    groups = query.shape[1] // key.shape[1]
    output = attention(
        query,
        repeat_kv(key, groups),
        repeat_kv(value, groups),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        added=None if attention_mask is None else _added(attention_mask, query.dtype),
        dropout=dropout,
    )
    return output.transpose(1, 2).contiguous(), None


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What a mask adds to the scores; finite, for rows of padding that may attend to nothing."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
