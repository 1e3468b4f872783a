"""An encoder as a sentence embedder: the mean of its last hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limbeck.encoders.loading import Encoder

BATCH = 32
MAX_LENGTH = 128


def embed(encoder: Encoder, sentences: Sequence[str]) -> Tensor:
    """Mean-pooled last hidden states in float32, scaled to length one.

    Args:
        encoder: in evaluation mode; it runs in its own precision.
        sentences: any length; truncated to 128 tokens.

    Returns:
        (sentences, width), on the CPU.
    """
    order = sorted(range(len(sentences)), key=lambda place: len(sentences[place]))
    embeddings = torch.empty(len(sentences), encoder.shape.width)
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        embeddings[places] = _mean_pooled(encoder, [sentences[place] for place in places])
    return embeddings


def _mean_pooled(encoder: Encoder, sentences: list[str]) -> Tensor:
    inputs = encoder.tokenizer(sentences, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    inputs = inputs.to(encoder.model.device)
    with torch.no_grad():
        hidden = encoder.model(**inputs).last_hidden_state.float()
    mask = inputs["attention_mask"][..., None]
    pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(pooled, dim=-1).cpu()
