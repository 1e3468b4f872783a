"""Choosing the number format of the matrix products by trying it."""

from __future__ import annotations

import time
from statistics import median
from typing import Literal

import torch

from limbeck.training.memory import undisturbed
from limbeck.training.stage import PROBE_SEQUENCES, Stage

TRIALS = 3


def faster_precision(stage: Stage, sequences: int = PROBE_SEQUENCES) -> Literal["float32", "bf16"]:
    """Return "bf16" where a short forward and backward pass of the student is faster with it, else "float32".

    Args:
        stage: weights, gradients, mode and random state are as before afterwards.
        sequences: how many are tried.
    """
    seconds = {bf16: _seconds(stage, sequences, bf16=bf16) for bf16 in (False, True)}
    return "bf16" if seconds[True] < seconds[False] else "float32"


def _seconds(stage: Stage, sequences: int, *, bf16: bool) -> float:
    batch = stage.probe_batch(sequences)
    device = batch["input_ids"].device
    targets, times = stage.targets(batch), []
    with undisturbed(stage.module) as table:
        for _ in range(TRIALS + 1):
            start = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss = stage.loss(batch, targets)
            loss.backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
            table.clear()
            stage.module.zero_grad(set_to_none=True)
    return median(times[1:])
