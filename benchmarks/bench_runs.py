"""What whole runs gain: several students from one pass of the teacher, what the teacher said before, and compiled layers.

Each figure comes of `limbeck.distill` as a user calls it, in processes of their own that take turns; times are those of the runs'
own logs, from the first step to the last.

- students: BERT-base (random weights) into four students, in one run and in four
- cache: two epochs of BERT-base into 6x384, with and without --teacher-cache; the second epochs are compared
- compile: BERT-base into 6x384, with and without --compile

    python benchmarks/bench_runs.py $LIMBECK_DATA/text/en/wikipedia_passages.txt.gz --output benchmarks/results/runs

Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from bench_step import write_teacher
from machine import about, described, write_report

# torch and what needs it are imported by the measured processes only.

STUDENTS = ["12x384", "6x384", "4x384", "3x384"]
SPAWN = multiprocessing.get_context("spawn")
SETTINGS: dict[str, Any] = {"max_length": 128, "batch_size": 16, "log_every": 1, "quiet": True}
CHOICES = ("students", "cache", "compile")
LINES = 20_000
"""Of the text; more than any of the runs reaches."""
LITTLE = 100
"""Of the text that is gone over twice."""


def log_of(path: Path) -> list[dict[str, Any]]:
    """The lines of training in a run's log."""
    lines = (json.loads(line) for line in (path / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "learning_rate" in line]


def distil(folder: str, settings: dict[str, Any], pipe: Connection) -> None:
    """Carry a run out and tell how long its training took, after the first step, which warms up."""
    import limbeck

    output = Path(folder, "run")
    run = limbeck.distill(output=output, **settings)
    lines = log_of(next(iter(run.runs.values())).path if run.runs else output)
    pipe.send({name: [line[name] for line in lines] for name in ("seconds", "tokens", "waiting")})


def measured(how: Callable[..., None], settings: dict[str, Any]) -> dict[str, list[float]]:
    """One run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=how, args=(folder, settings, theirs))
        process.start()
        theirs.close()
        told: dict[str, list[float]] = ours.recv()
        process.join()
    return told


def steady(told: dict[str, list[float]]) -> float:
    """Seconds of a step after the first."""
    return (told["seconds"][-1] - told["seconds"][0]) / (len(told["seconds"]) - 1)


def compare_students(settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Four runs against one."""
    found: dict[str, list[float]] = {name: [] for name in [*STUDENTS, "one pass"]}
    for _ in range(repeats):
        for student in STUDENTS:
            found[student].append(steady(measured(distil, {**settings, "student": student})))
        found["one pass"].append(steady(measured(distil, {**settings, "student": STUDENTS})))
    apart, together = sum(median(found[student]) for student in STUDENTS), median(found["one pass"])
    return {"seconds": found, "four runs": apart, "one pass": together, "ratio": apart / together}


def compare_cache(settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Second epochs."""
    settings = {**settings, "student": "6x384", "packing": "full"}
    found: dict[str, list[float]] = {"never": [], "always": []}
    for _ in range(repeats):
        for choice, seconds in found.items():
            with tempfile.TemporaryDirectory() as cache:
                os.environ["LIMBECK_CACHE"] = cache
                told = measured(distil, {**settings, "teacher_cache": choice, "epochs": 2})["seconds"]
                del os.environ["LIMBECK_CACHE"]
            half = len(told) // 2
            seconds.append((told[-1] - told[half]) / (len(told) - 1 - half))
    return {"seconds": found, "ratio": median(found["never"]) / median(found["always"])}


def compare_compiled(settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """A step in the middle: some of the first ones still wait for code."""
    found: dict[str, list[float]] = {"never": [], "always": []}
    for _ in range(repeats):
        for choice, seconds in found.items():
            told = measured(distil, {**settings, "student": "6x384", "packing": "full", "compile": choice})["seconds"]
            seconds.append(median(after - before for before, after in pairwise(told)))
    return {"seconds": found, "ratio": median(found["never"]) / median(found["always"])}


def excerpt(texts: Sequence[Path], lines: int, output: Path) -> Path:
    """The first lines of the text that are not empty."""
    chosen: list[str] = []
    for path in texts:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            chosen += islice((line for line in file if line.strip()), lines - len(chosen))
    output.write_text("".join(chosen), encoding="utf-8")
    return output


def as_markdown(report: dict[str, Any]) -> str:
    """A row for each comparison."""
    lines = [f"Runs of `limbeck distill`, {report['precision']}; medians of {report['repeats']}, in turns.", ""]
    lines += ["| what | before | after | faster |", "| --- | ---: | ---: | ---: |"]
    if found := report.get("students"):
        lines.append(
            f"| four students ({', '.join(STUDENTS)}) of BERT-base: a step of four runs, of one pass | "
            f"{found['four runs']:.2f} s | {found['one pass']:.2f} s | {found['ratio']:.2f} |"
        )
    if found := report.get("cache"):
        never, always = (median(found["seconds"][choice]) for choice in ("never", "always"))
        lines.append(
            f"| second epoch of BERT-base into 6x384: a step with the teacher, from the cache | {never:.2f} s | {always:.2f} s | "
            f"{found['ratio']:.2f} |"
        )
    if found := report.get("compile"):
        never, always = (median(found["seconds"][choice]) for choice in ("never", "always"))
        lines.append(
            f"| BERT-base into 6x384: a step as it is, with compiled layers | {never:.2f} s | {always:.2f} s | "
            f"{found['ratio']:.2f} |"
        )
    return "\n".join([*lines, "", f"{report['remark']}{described(report['machine'])}"]) + "\n"


def main() -> None:
    """Compare; results are written after each comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="+", help="gzipped text, a unit a line")
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="steps of a run (default 6)")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=CHOICES)
    parser.add_argument("--add", action="store_true", help="keep what was written there before of other comparisons")
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    arguments = parser.parse_args()
    remark = f"{arguments.remark.rstrip('. ')}. " if arguments.remark else ""
    report: dict[str, Any] = {"precision": arguments.precision, "repeats": arguments.repeats, "remark": remark}
    if arguments.add:
        report |= json.loads(arguments.output.with_suffix(".json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder, "teacher")
        writing = SPAWN.Process(target=write_teacher, args=(teacher,))  # a child's peak begins with what its parent held
        writing.start()
        writing.join()
        text, little = (excerpt(arguments.text, lines, Path(folder, f"{lines}.txt")) for lines in (LINES, LITTLE))
        settings = {**SETTINGS, "precision": arguments.precision}
        longer = {**settings, "teacher": teacher, "corpus": [text], "steps": arguments.steps}
        works: dict[str, Callable[[], dict[str, Any]]] = {
            "students": lambda: compare_students(longer, arguments.repeats),
            "cache": lambda: compare_cache({**settings, "teacher": teacher, "corpus": [little]}, arguments.repeats),
            "compile": lambda: compare_compiled(longer, arguments.repeats),
        }
        for name in arguments.only:
            report |= {name: works[name](), "machine": about()}
            write_report(arguments.output, report, as_markdown(report))


if __name__ == "__main__":
    main()
