"""Dropout whose random numbers are cheap on a processor, where torch's own take longer than the matrix products beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LANES = 4
"""Decisions that are made by one random number of 64 bits, on 16 of them each."""
STEPS = 1 << 16


def dropout(x: Tensor, share: float) -> Tensor:
    """Zero each element with this probability, and scale the others so that the mean stays.

    Random numbers come of torch's generator of the processor. The probability is rounded to a multiple of 1 / 65536, and the
    scale belongs to what it is rounded to.

    Args:
        x: any shape, on a processor; differentiable.
        share: in [0, 1).
    """
    if not round(share * STEPS):
        return x
    return (x * draw_kept(torch.empty(x.shape, dtype=torch.uint8), share)).mul_(scale_of(share))


def draw_kept(room: Tensor, share: float) -> Tensor:
    """Write 0 with this probability and else 1 into each element of a contiguous uint8 tensor; returns the tensor itself.

    Torch multiplies by bytes as fast as by its own type, but not by truth values.
    """
    words = torch.empty(-(-room.numel() // LANES), dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: room.numel()].view(room.shape)
    return torch.ge(numbers, round(share * STEPS) - STEPS // 2, out=room)


def scale_of(share: float) -> float:
    """What the kept elements are multiplied with."""
    return STEPS / (STEPS - round(share * STEPS))


class Dropout(nn.Dropout):
    """`dropout` as a module, which on other devices, and in what torch compiles, is torch's own."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop during training."""
        if not self.training or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        return dropout(input, self.p)
