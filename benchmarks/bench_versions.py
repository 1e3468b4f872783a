"""Tokens a second of `limbeck distill` as it was and as it is, in processes that take turns.

    git worktree add BEFORE 93848b0
    python benchmarks/bench_versions.py BEFORE --case NAME TEACHER STUDENT --text TEXT... --output benchmarks/results/versions

Times are those of the runs' own logs, from the first step to the last. Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench_runs import LINES, excerpt, log_of
from machine import about, described, write_report

HERE = Path(__file__).parents[1]
FLAGS = ("--max-length", "128", "--batch-size", "32", "--log-every", "1", "--packing", "full", "--quiet")


def tokens_per_second(checkout: Path, teacher: str, student: str, text: Path, steps: int, precision: str) -> float:
    """Of one run by the version in a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        given = {"teacher": teacher, "student": student, "corpus": text, "steps": steps, "precision": precision}
        flags = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "limbeck", "distill", *flags, *FLAGS, "-o", str(run)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(checkout / "src")})
        first, *_, last = log_of(run)
    return float(last["tokens"] - first["tokens"]) / float(last["seconds"] - first["seconds"])


def as_markdown(report: dict[str, Any]) -> str:
    """A row for each teacher and student."""
    lines = [
        f"Tokens a second of `limbeck distill`, {report['precision']}, sequences of 128, batches of 32, dropout 0.1; medians of "
        f"{report['repeats']}, in turns. Before: commit {report['before']}.",
        "",
        "| teacher | student | before | now | faster |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for case in report["cases"]:
        before, now = (median(case[when]) for when in ("before", "now"))
        lines.append(f"| {case['teacher']} | {case['student']} | {before:,.0f} | {now:,.0f} | {now / before:.2f} |")
    return "\n".join([*lines, "", f"{report['remark']}{described(report['machine'])}"]) + "\n"


def commit_of(checkout: Path) -> str:
    """The commit that a checkout is at."""
    command: Sequence[str] = ("git", "-C", str(checkout), "rev-parse", "--short", "HEAD")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measure case after case; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="checkout of the earlier version")
    parser.add_argument("--case", nargs=3, action="append", required=True, metavar=("NAME", "TEACHER", "STUDENT"))
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="gzipped text, a unit a line")
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of a run (default 8)")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    arguments = parser.parse_args()
    remark = f"{arguments.remark.rstrip('. ')}. " if arguments.remark else ""
    report: dict[str, Any] = {
        "precision": arguments.precision,
        "repeats": arguments.repeats,
        "before": commit_of(arguments.before),
        "remark": remark,
        "cases": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        text = excerpt(arguments.text, LINES, Path(folder, "text.txt"))
        for name, teacher, student in arguments.case:
            case: dict[str, Any] = {"teacher": name, "student": student, "before": [], "now": []}
            for _ in range(arguments.repeats):
                for when, checkout in (("before", arguments.before), ("now", HERE)):
                    speed = tokens_per_second(checkout, teacher, student, text, arguments.steps, arguments.precision)
                    case[when].append(speed)
            report["cases"].append(case)
            report["machine"] = about()
            write_report(arguments.output, report, as_markdown(report))


if __name__ == "__main__":
    main()
