"""Peak memory of the relation loss, forward and backward: limbeck's kernel against plain autograd.

Every figure is what the loss adds to the peak resident memory of a fresh process, over that of another one which does
all but the loss: same imports, same features, and one tiny run of the loss so that libraries are loaded. The median of
a few such pairs is taken, since what the allocator keeps varies by some MiB.

    python benchmarks/loss_memory.py --output loss-memory.json
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# torch and limbeck are imported by the measured processes only: a child's peak begins with what its parent holds.

LENGTHS = (128, 512, 2048)
HEADS, TEACHER_WIDTH, STUDENT_WIDTH = 48, 768, 384
WARM_UP = 8


def plain_loss(teacher: Tensor, student: Tensor) -> Tensor:
    """The same relation by autograd, which keeps (heads, n, n) tensors until the backward pass."""
    from torch.nn.functional import kl_div, log_softmax

    log_p, log_q = (
        log_softmax(heads @ heads.transpose(1, 2) / heads.shape[-1] ** 0.5, dim=-1)
        for heads in (x[0].unflatten(-1, (HEADS, -1)).transpose(0, 1) for x in (teacher, student))
    )
    return kl_div(log_q, log_p, reduction="sum", log_target=True) / (HEADS * log_p.shape[1])


def limbeck_loss(teacher: Tensor, student: Tensor) -> Tensor:
    from limbeck.kernels import relation_kl

    return relation_kl(teacher=(teacher, teacher), student=(student, student), relation_heads=HEADS)


LOSSES = {"limbeck": limbeck_loss, "plain": plain_loss}


def run(loss: str, length: int, *, only_prepare: bool) -> int:
    """This process's peak resident memory in bytes once it has done so."""
    import torch

    for n in (WARM_UP, length):
        teacher, student = torch.randn(1, n, TEACHER_WIDTH), torch.randn(1, n, STUDENT_WIDTH, requires_grad=True)
        if n == WARM_UP or not only_prepare:
            LOSSES[loss](teacher, student).backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def measure(loss: str, length: int, repeats: int) -> int:
    """Bytes that the loss adds to the peak of a process."""

    def peak(how: str) -> int:
        command = [sys.executable, __file__, "--run", loss, str(length), how]
        return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    return int(median(peak("loss") - peak("prepare") for _ in range(repeats)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the figures as JSON to this file")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of processes for each figure (default 3)")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        loss, length, how = arguments.run
        print(run(loss, int(length), only_prepare=how == "prepare"))
        return

    cases = []
    print(f"{'n':>6}  {'limbeck':>10}  {'plain':>10}  {'one heads x n x n':>18}   (MiB)")
    for length in LENGTHS:
        case = {"n": length, **{f"{loss}_bytes": measure(loss, length, arguments.repeats) for loss in LOSSES}}
        case["one_tensor_bytes"] = 4 * HEADS * length**2
        cases.append(case)
        limbeck, plain, one = (case[key] / 2**20 for key in ("limbeck_bytes", "plain_bytes", "one_tensor_bytes"))
        print(f"{length:>6}  {limbeck:>10.1f}  {plain:>10.1f}  {one:>18.1f}")
    if arguments.output:
        setting = {
            "loss": "relation Q-Q, forward and backward",
            "batch": 1,
            "relation_heads": HEADS,
            "teacher_width": TEACHER_WIDTH,
            "student_width": STUDENT_WIDTH,
            "dtype": "float32",
            "repeats": arguments.repeats,
            "device": "cpu",
            "machine": platform.machine(),
            "torch": version("torch"),
        }
        arguments.output.write_text(json.dumps({"setting": setting, "cases": cases}, indent=2) + "\n")


if __name__ == "__main__":
    main()
