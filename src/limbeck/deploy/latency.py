"""How long an encoder takes for a sentence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from limbeck.encoders.embedding import embed
from limbeck.encoders.loading import Encoder


def milliseconds_a_sentence(encoders: Sequence[Encoder], sentences: Sequence[str], rounds: int = 3) -> list[float]:
    """Time to embed a sentence, tokenisation included, in batches of similar length.

    The encoders take turns, so that a machine whose speed drifts treats all alike.

    Args:
        encoders: on the device that is to be measured.
        sentences: what they embed.
        rounds: how often; the median counts.

    Returns:
        Milliseconds a sentence for each encoder.
    """
    seconds: list[list[float]] = [[] for _ in encoders]
    for _ in range(rounds + 1):
        for encoder, times in zip(encoders, seconds, strict=True):
            start = time.perf_counter()
            embed(encoder, sentences)
            times.append(time.perf_counter() - start)
    return [1000 * median(times[1:]) / len(sentences) for times in seconds]
