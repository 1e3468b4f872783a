"""Choosing the number format of the matrix products by trying it."""

from __future__ import annotations

import time
from statistics import median
from typing import Literal

import torch

from limbeck.training.stage import Stage

TRIALS = 3


def faster_precision(stage: Stage) -> Literal["float32", "bf16"]:
    """Return "bf16" where a short forward and backward pass of the student is faster with it, else "float32".

    Weights, gradients and random state are as before afterwards.
    """
    seconds = {False: _seconds(stage, bf16=False), True: _seconds(stage, bf16=True)}
    return "bf16" if seconds[True] < seconds[False] else "float32"


def _seconds(stage: Stage, *, bf16: bool) -> float:
    batch = stage.probe_batch()
    device = batch["input_ids"].device
    targets, times = stage.teacher(batch), []
    with torch.random.fork_rng():
        for _ in range(TRIALS + 1):
            start = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss = stage.loss(batch, targets)
            loss.backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
            stage.module.zero_grad(set_to_none=True)
    return median(times[1:])
