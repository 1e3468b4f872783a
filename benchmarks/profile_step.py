"""Where the time of Limbeck's step goes, BERT-base into 6x384: torch's profiler, operations grouped by kind.

    python benchmarks/profile_step.py --output benchmarks/results/profile

Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench_step import CASES, RELATION_HEADS, STUDENT, limbeck_run, limbeck_step, write_teacher
from machine import about, described, write_report

KINDS = {
    "products with weights": ("addmm", "mm"),
    "products of features: attention in the student, relations": ("bmm", "baddbmm"),
    "attention of the teacher": ("_scaled_dot_product_flash_attention_for_cpu",),
    "exponentials": ("exp", "_softmax", "log_softmax"),
    "GELU": ("gelu", "gelu_backward"),
    "layer norm": ("native_layer_norm", "native_layer_norm_backward"),
    "random numbers": ("random_", "ge"),
    "AdamW and clipping": ("_fused_adamw_", "linalg_vector_norm", "_foreach_norm", "_foreach_mul_"),
    "multiplying, adding, copying, bias": ("mul", "mul_", "add", "add_", "sub", "sub_", "copy_", "sum", "div", "div_"),
}
"""Names of torch's operations; what stands nowhere is "other"."""


def profile(teacher: Path, name: str, precision: str, steps: int) -> dict[str, float]:
    """Shares of the time of some steps after two, by kind."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    from limbeck.training.isolation import isolated
    from limbeck.training.loop import this_process

    with isolated(this_process().device), limbeck_run(teacher, CASES[name], precision) as run:
        take = limbeck_step(run)
        take()
        take()
        with profiled(activities=[ProfilerActivity.CPU]) as watched:
            for _ in range(steps):
                take()
    kind_of = {f"aten::{operation}": kind for kind, operations in KINDS.items() for operation in operations}
    times: Counter[str] = Counter()
    for event in watched.key_averages():
        times[kind_of.get(event.key, "other")] += event.self_cpu_time_total
    total = sum(times.values())
    return {kind: times[kind] / total for kind in (*KINDS, "other")}


def as_markdown(report: dict[str, Any]) -> str:
    """A row a kind."""
    cases = report["cases"]
    lines = [
        f"Where a step of MiniLMv2 spends its time, BERT-base into {STUDENT}, {RELATION_HEADS} relation heads, dropout 0.1, "
        f"AdamW, {report['precision']}.",
        "",
        f"| operations | {' | '.join(str(CASES[name]) for name in cases)} |",
        f"| --- |{' ---: |' * len(cases)}",
        *(f"| {kind} | {' | '.join(f'{shares[kind]:.1%}' for shares in cases.values())} |" for kind in (*KINDS, "other")),
    ]
    return "\n".join([*lines, "", described(report["machine"])]) + "\n"


def main() -> None:
    """Profile case after case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["128x16", "512x4"])
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--steps", type=int, default=3, help="steps that are watched (default 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_teacher(Path(folder, "teacher"))
        shares = {name: profile(Path(folder, "teacher"), name, arguments.precision, arguments.steps) for name in arguments.cases}
    report = {"precision": arguments.precision, "cases": shares, "machine": about()}
    write_report(arguments.output, report, as_markdown(report))


if __name__ == "__main__":
    main()
