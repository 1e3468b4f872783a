"""all-mpnet-base-v2 (12x768) into 6x384 from random weights and into 6x768 from its own layers: scores, speed and memory.

    python benchmarks/mpnet.py TEACHER --corpus TEXT... --sts dev.tsv --work WORK --output benchmarks/results/mpnet

Writes OUTPUT.json and OUTPUT.md, after each student. STS-B (GLUE's dev.tsv) is scored without training, by cosines of mean-pooled
embeddings, also of the students as they were before distillation. Each distillation is a process of its own, whose peak memory is
its alone, and goes on where an earlier call in WORK was ended.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

STUDENTS: dict[str, dict[str, Any]] = {
    "6x384": {"init": "random", "tail": "hidden"},
    "6x768": {"init": "layers"},
}
"""A student from random weights can be used at once only if its tail is trained as well."""
RECIPE: dict[str, Any] = {
    "max_length": 128,
    "batch_size": 16,
    "learning_rate": 6e-4,
    "warmup": 0.05,
    "holdout": "0.01",
    "checkpoint_every": 100,
    "keep_checkpoints": 1,
}
SPAWN = multiprocessing.get_context("spawn")


def distil(arguments: argparse.Namespace, student: str, pipe: Connection) -> None:
    """One student, scored before and after."""
    import limbeck
    from limbeck.encoders.loading import Encoder, load_encoder
    from limbeck.encoders.shape import StudentShape
    from limbeck.encoders.students import build_student
    from limbeck.tasks.metrics import spearman
    from limbeck.tasks.similarity import cosines, read_sts

    pairs, gold = read_sts(arguments.sts)

    def scored(encoder: Encoder) -> float:
        return round(spearman(cosines(encoder, pairs), gold), 4)

    run = limbeck.distill(
        arguments.teacher,
        student=student,
        corpus=arguments.corpus,
        tokens=arguments.tokens,
        output=arguments.work / student,
        resume="auto",
        **RECIPE,
        **STUDENTS[student],
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    teacher, training = load_encoder(arguments.teacher), run.summary["training"]
    began = build_student(teacher, StudentShape.parse(student), STUDENTS[student]["init"], seed=0)
    pipe.send(
        {
            "teacher_stsb": scored(teacher),
            "undistilled_stsb": scored(began),
            "stsb": scored(load_encoder(run.student)),
            "tokens": training["tokens"],
            "tokens_per_second": training["tokens_per_second"],
            "precision": training["precision"],
            "holdout_loss": round(run.summary["holdout"]["loss"], 4),
            "peak_mb": round(peak / 1e6),
        }
    )


def as_markdown(results: dict[str, dict[str, Any]]) -> str:
    """A row a student."""
    lines = [
        f"all-mpnet-base-v2 by MiniLMv2 (`python benchmarks/mpnet.py`), torch {version('torch')}, "
        f"{multiprocessing.cpu_count()} cores. STS-B: Spearman on dev, without training, times 100.",
        "",
        "| student | begins with | tokens | STS-B teacher | before | student | held-out loss | tokens/s | peak memory |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for student, each in results.items():
        begins = ", ".join(f"{name} {value}" for name, value in STUDENTS[student].items())
        scores = " | ".join(f"{100 * each[name]:.1f}" for name in ("teacher_stsb", "undistilled_stsb", "stsb"))
        lines.append(
            f"| {student} | {begins} | {each['tokens']:,} | {scores} | {each['holdout_loss']:.3f} | "
            f"{each['tokens_per_second']:,.0f} ({each['precision']}) | {each['peak_mb']:,} MB |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run student after student; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", help="folder of all-mpnet-base-v2")
    parser.add_argument("--corpus", nargs="+", required=True, help="text to distil on")
    parser.add_argument("--sts", type=Path, required=True, help="STS-B's dev.tsv")
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--tokens", type=int, default=3_000_000)
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for student in STUDENTS:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=distil, args=(arguments, student, theirs))
        process.start()
        theirs.close()  # so that a process that fails is not waited for
        results[student] = ours.recv()
        process.join()
        arguments.output.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        arguments.output.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")
        print(as_markdown(results), flush=True)


if __name__ == "__main__":
    main()
