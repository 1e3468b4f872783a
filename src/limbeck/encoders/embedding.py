"""An encoder as a sentence embedder: the mean of its last hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from limbeck.encoders.capture import accepted_inputs
from limbeck.encoders.loading import Encoder

BATCH = 32
MAX_LENGTH = 128


def embed(encoder: Encoder, sentences: Sequence[str], max_length: int = MAX_LENGTH) -> Tensor:
    """Mean-pooled last hidden states in float32, scaled to length one.

    Args:
        encoder: in evaluation mode; it runs in its own precision.
        sentences: any length.
        max_length: tokens that a sentence is truncated to, or as many as the encoder has positions for.

    Returns:
        (sentences, width), on the CPU.
    """
    embeddings = torch.empty(len(sentences), encoder.shape.width)
    if not len(sentences):
        return embeddings
    longest = min(max_length, encoder.shape.positions)
    tokenised = encoder.tokenizer(list(sentences), truncation=True, max_length=longest, return_attention_mask=True)
    accepted = accepted_inputs(encoder.model, encoder.shape)
    columns = {name: values for name, values in tokenised.items() if name in accepted}
    # By tokens and not by characters: batches then hold the least padding.
    order = sorted(range(len(sentences)), key=lambda place: len(columns["input_ids"][place]))
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        batch = {name: [values[place] for place in places] for name, values in columns.items()}
        embeddings[places] = _mean_pooled(encoder, encoder.tokenizer.pad(batch, return_tensors="pt"))
    return embeddings


def _mean_pooled(encoder: Encoder, batch: Mapping[str, Tensor]) -> Tensor:
    inputs = {name: tensor.to(encoder.model.device) for name, tensor in batch.items()}
    with torch.no_grad():
        hidden = encoder.model(**inputs).last_hidden_state.float()
    mask = inputs["attention_mask"][..., None]
    pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(pooled, dim=-1).cpu()
