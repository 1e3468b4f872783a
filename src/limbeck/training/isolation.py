"""A run neither depends on its caller's torch settings and random numbers nor changes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Give the caller's random state back afterwards; `no_grad`, inference mode and autocast of his do not apply inside."""
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.inference_mode(mode=False),  # which turns gradients on as well
        # An outer autocast keeps the inner ones' cast weights beyond the step that changes the weights, so none are kept.
        torch.autocast("cpu", enabled=False, cache_enabled=False),
        torch.autocast(device.type, enabled=False, cache_enabled=False),
    ):
        yield


def seed_step(device: torch.device, seed: int, process: int, examples: int, stream: str = "student") -> None:
    """Make dropout a pure function of where in the run it is drawn, so that no checkpoint has to hold random states.

    Args:
        device: its random numbers are seeded, and the processor's.
        seed: the recipe's.
        process: the number of this process.
        examples: examples that the run has done before the step.
        stream: what draws; two streams are independent of each other.
    """
    digest = blake2b(f"{stream}/{seed}/{process}/{examples}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    torch.default_generator.manual_seed(number)  # torch.manual_seed would seed every GPU of the machine as well
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
