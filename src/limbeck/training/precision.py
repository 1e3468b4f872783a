"""Choosing the number format of the matrix products by trying it."""

from __future__ import annotations

from statistics import median
from typing import Literal

import torch

from limbeck.training.stage import PROBE_SEQUENCES, Stage
from limbeck.training.trial import TRIALS, timed, trial_seconds

HOPELESS = 2.0
"""How many times as long as in float32 a product may take in bf16; beyond that bf16 is neither tried nor taken in silence."""


def faster_precision(stage: Stage, sequences: int = PROBE_SEQUENCES) -> Literal["float32", "bf16"]:
    """Return "bf16" where a short forward and backward pass of the student is faster with it, else "float32".

    The pass is tried only where matrix products themselves are not far slower: on a processor that has no instructions for
    bf16 it would take many times as long.

    Args:
        stage: weights, gradients, mode and random state are as before afterwards.
        sequences: how many are tried.
    """
    if bf16_slowdown(next(stage.module.parameters()).device) > HOPELESS:
        return "float32"
    seconds = {bf16: trial_seconds(stage, sequences, bf16=bf16) for bf16 in (False, True)}
    return "bf16" if seconds[True] < seconds[False] else "float32"


def bf16_slowdown(device: torch.device) -> float:
    """How many times as long as in float32 a matrix product takes in bf16."""
    return _product_seconds(torch.bfloat16, device) / _product_seconds(torch.float32, device)


def _product_seconds(dtype: torch.dtype, device: torch.device) -> float:
    """How long a matrix product of the size of a small encoder's takes."""
    a, b = (torch.ones(512, 512, dtype=dtype, device=device) for _ in range(2))
    return median(timed(lambda: a @ b, device) for _ in range(TRIALS + 1))
