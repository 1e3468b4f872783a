"""A run neither depends on its caller's torch settings and random numbers nor changes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from hashlib import blake2b

import torch

from limbeck.errors import UserError

ALONE = threading.Lock()
"""Held by the one run of this process: torch's random numbers are the process's, not the thread's."""


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Give the caller's random state back; a surrounding `no_grad`, inference mode, autocast or default device does not apply.

    Raises:
        UserError: another thread is inside.
    """
    # The context of a default device watches every call, so it is entered only where it changes something.
    processor = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    with (
        _one_at_a_time(),
        processor,
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.inference_mode(mode=False),  # which turns gradients on as well
        # An outer autocast keeps the inner ones' cast weights beyond the step that changes the weights, so none are kept.
        torch.autocast("cpu", enabled=False, cache_enabled=False),
        torch.autocast(device.type, enabled=False, cache_enabled=False),
    ):
        yield


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    if not ALONE.acquire(blocking=False):
        raise UserError("Another run is at work in this process; wait for its end, or start this one in a process of its own.")
    try:
        yield
    finally:
        ALONE.release()


def seed_step(device: torch.device, seed: int, process: int, examples: int, micro_batch: int) -> None:
    """Make dropout a pure function of where in the run it is drawn, so that no checkpoint has to hold random states.

    Args:
        device: its random numbers are seeded, and the processor's.
        seed: the recipe's.
        process: the number of this process.
        examples: examples that the run has done before the step.
        micro_batch: the micro-batch's place in the step.
    """
    digest = blake2b(f"{seed}/{process}/{examples}/{micro_batch}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    torch.default_generator.manual_seed(number)  # torch.manual_seed would seed every GPU of the machine as well
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
