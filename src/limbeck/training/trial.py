"""How long a short forward and backward pass takes, by which decisions are made."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from limbeck.training.memory import undisturbed
from limbeck.training.stage import PROBE_SEQUENCES, Stage

TRIALS = 3


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that some work takes on a device."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def trial_seconds(stage: Stage, sequences: int = PROBE_SEQUENCES, *, bf16: bool) -> float:
    """Seconds of the student's forward and backward pass over a few real sequences, the median of some after a first one.

    Args:
        stage: its teacher is asked before, once; weights, gradients, mode and random state are as before afterwards.
        sequences: how many are tried.
        bf16: whether the student's matrix products are in bf16.
    """
    batch = stage.probe_batch(sequences)
    device = batch["input_ids"].device
    targets, times = stage.targets(batch), []

    def both_ways() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = stage.loss(batch, targets)
        loss.backward()

    with undisturbed(stage.module) as table:
        for _ in range(TRIALS + 1):
            times.append(timed(both_ways, device))
            table.clear()
            stage.module.zero_grad(set_to_none=True)
    return median(times[1:])
