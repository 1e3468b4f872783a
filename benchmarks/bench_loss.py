"""The relation loss alone, forward and backward: Limbeck's kernel against what public implementations do (`reference.py`).

One relation between features of BERT-base and of a 6x384 student. Times are taken in turns in one process; memory in processes of
their own, as the most of resident memory in one pass beyond what was there before it.

    python benchmarks/bench_loss.py --output benchmarks/results/loss

Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from machine import Resident, about, described, middle, take_turns, write_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# torch and what needs it are imported late: a measured process begins with what its parent holds.

HEADS, TEACHER_WIDTH, STUDENT_WIDTH = 48, 768, 384
CASES = {"n=128, B=16": (128, 16), "n=512, B=4": (512, 4), "n=2048, B=1": (2048, 1), "n=128, B=64": (128, 64)}
WARM_UP = (8, 1)
MEMORY_REPEATS = 3
SPAWN = multiprocessing.get_context("spawn")


def limbeck_loss(teacher: Tensor, student: Tensor) -> Tensor:
    """The kernel."""
    from limbeck.kernels import relation_kl

    return relation_kl(teacher=(teacher, teacher), student=(student, student), relation_heads=HEADS)


def reference_loss(teacher: Tensor, student: Tensor) -> Tensor:
    """Relations of the whole batch, then a loop over its sequences."""
    import torch

    from reference import divergence, relation

    lengths = torch.full((len(student),), student.shape[1])
    with torch.no_grad():
        theirs = relation(teacher, HEADS)
    return divergence(theirs, relation(student, HEADS), lengths)


SIDES = {"reference": reference_loss, "limbeck": limbeck_loss}


def pass_of(side: str, length: int, batch: int) -> Callable[[], Any]:
    """A forward and backward pass over features that are made once."""
    import torch

    teacher = torch.randn(batch, length, TEACHER_WIDTH)
    student = torch.randn(batch, length, STUDENT_WIDTH, requires_grad=True)

    def run() -> None:
        student.grad = None
        SIDES[side](teacher, student).backward()

    return run


def added(side: str, case: str, pipe: Connection) -> None:
    """Bytes that a pass adds to this process."""
    pass_of(side, *WARM_UP)()
    run, resident = pass_of(side, *CASES[case]), Resident()
    resident.begin()
    run()
    pipe.send(resident.added())


def memory_of(side: str, case: str) -> int:
    """The median over a few fresh processes."""
    told = []
    for _ in range(MEMORY_REPEATS):
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=added, args=(side, case, theirs))
        process.start()
        theirs.close()
        told.append(ours.recv())
        process.join()
    return int(median(told))


def as_markdown(report: dict[str, Any]) -> str:
    """A row a case."""
    lines = [
        f"Relation loss, forward and backward, {HEADS} relation heads, widths {TEACHER_WIDTH} and {STUDENT_WIDTH}, float32; "
        f"medians of {report['repeats']}, in turns.",
        "",
        "| case | reference, ms | Limbeck, ms | faster | reference, MB | Limbeck, MB | less |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case, found in report["cases"].items():
        reference, limbeck = found["reference"], found["limbeck"]
        lines.append(
            f"| {case} | {1e3 * reference['seconds']:,.0f} (± {reference['spread']:.0%}) | {1e3 * limbeck['seconds']:,.0f} "
            f"(± {limbeck['spread']:.0%}) | {reference['seconds'] / limbeck['seconds']:.1f} | {reference['bytes'] / 1e6:,.0f} | "
            f"{limbeck['bytes'] / 1e6:,.0f} | {reference['bytes'] / limbeck['bytes']:.1f} |"
        )
    return "\n".join([*lines, "", f"{report['remark']}{described(report['machine'])}"]) + "\n"


def main() -> None:
    """Measure case after case; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    arguments = parser.parse_args()
    remark = f"{arguments.remark.rstrip('. ')}. " if arguments.remark else ""
    report: dict[str, Any] = {"repeats": arguments.repeats, "remark": remark, "cases": {}}
    for case, sizes in CASES.items():
        memory = {side: memory_of(side, case) for side in SIDES}
        times = take_turns({side: pass_of(side, *sizes) for side in SIDES}, arguments.repeats)
        report["cases"][case] = {side: {**middle(times[side]), "bytes": memory[side], "each": times[side]} for side in SIDES}
        report["machine"] = about()
        write_report(arguments.output, report, as_markdown(report))


if __name__ == "__main__":
    main()
