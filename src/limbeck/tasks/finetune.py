"""Fine-tuning from a recipe to a finished task model with its predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from limbeck._settings import spelled_signature
from limbeck.encoders.attention import use_own_attention
from limbeck.encoders.cost import count_parameters
from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.recipe import plain, validate, yaml_text
from limbeck.tasks.assignment import Assignment
from limbeck.tasks.card import task_card
from limbeck.tasks.predict import TaskEvaluation, predict
from limbeck.tasks.reading import assignment_of
from limbeck.tasks.recipe import FineTuning, names_input
from limbeck.text import count, millions
from limbeck.training.folder import PREDICTIONS, SUBMISSION, RunFolder, write_file
from limbeck.training.loop import Loop, this_process
from limbeck.training.precision import faster_precision
from limbeck.training.resume import fingerprint, text_fingerprint
from limbeck.training.run import Job, Parts, Resume, Run, carry_out
from limbeck.training.stage import Stage, Tuner, set_dropout
from limbeck.training.summary import encoder_facts, public_name, training_facts, versions

MICRO_TOKENS = 4096
"""On a processor a micro-batch of 8 windows of 384 tokens takes a sixth less time than one of 32, and a quarter of the memory;
at 128 tokens 32 sequences at a time are best."""
EPOCHS = 3
"""Passes over the training examples where nothing is said: BERT's (Devlin et al., 2019, section 4.1)."""


def finetune(
    model: str | Path,
    *,
    output: str | Path,
    resume: Resume = "never",
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Fine-tune an encoder on a task, evaluate it, and write its predictions.

    Args:
        model: folder (or hub name) of the encoder, or the directory of a run, whose student is fine-tuned.
        output: the run directory; the fine-tuned model is written to its folder ``student``.
        resume: "auto" goes on from the newest checkpoint in the run directory, or starts if there is none.
        overwrite: start anew although the directory holds an earlier run.
        quiet: print nothing.
        settings: the other fields of `FineTuning`: data and task, or data, text and label are needed.

    Raises:
        UserError: a setting or the input is wrong; nothing was written.
        CheckFailed: a loss, gradient or output was not finite, or the disk is full; checkpoints and log stay.
        Interrupted: Ctrl-C or SIGTERM came; the run was saved, and resume="auto" goes on with it.

    Example:
        ``limbeck.finetune("student/", data="reviews.csv", text="review", label="stars", output="runs/stars")``
    """
    recipe = validate(FineTuning, {"model": model, **settings})
    return run_finetuning(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)


finetune.__signature__ = spelled_signature(finetune, FineTuning, "model")  # type: ignore[attr-defined]


def run_finetuning(
    recipe: FineTuning, output: str | Path, *, resume: Resume = "never", overwrite: bool = False, quiet: bool = False
) -> Run:
    """Carry a recipe out; the other arguments and the errors are those of `finetune`."""
    dev = [recipe.dev] if names_input("dev", recipe.dev) and recipe.dev else []
    job = Job(recipe, [recipe.model, *recipe.data, *dev], _assemble, names_input)
    return carry_out(job, output, resume=resume, overwrite=overwrite, quiet=quiet)


@dataclass(frozen=True)
class TaskParts(Parts[FineTuning]):
    """What a fine-tuning is made of."""

    encoder: Encoder
    """Where the model began."""
    assignment: Assignment

    @property
    def usual_length(self) -> int:
        """Tokens of the longest example."""
        return self.stage.source.longest

    def announce(self, unreached: list[str], reporter: Reporter) -> None:
        """Tell model, task and what is trained."""
        recipe, source = self.recipe, self.stage.source
        size = millions(count_parameters(self.student.model).total)
        reporter.fact("model", f"{self.encoder.shape}, {size} parameters, {self.encoder.source}")
        for note in self.assignment.notes:
            reporter.fact("data", note)
        selecting = self.assignment.source(self.assignment.selecting)
        reporter.fact("task", f"{self.assignment.name}, {count(len(source))} to train on, {count(len(selecting))} to evaluate on")
        reporter.fact(
            "training",
            f"{count(recipe.steps or 0)} steps of {recipe.batch_size}, learning rate {recipe.learning_rate:g}, "
            f"{recipe.micro_batch_size} at a time, {recipe.precision}",
        )

    def finish(self, loop: Loop, folder: RunFolder, unreached: list[str]) -> dict[str, Any]:
        """Predict every split, write the predictions, and sum up."""
        scores = {}
        batch_size, evaluation = loop.plan.micro_batch_size, self.stage.evaluation
        # The end is always evaluated, unless the run was resumed there.
        latest = evaluation.latest if isinstance(evaluation, TaskEvaluation) else {}
        for split in self.assignment.splits:
            judged = latest.get(split)
            if judged is None:
                loop.reporter.say(f"predicting {split}, {count(len(self.assignment.source(split)))} examples")
                judged = predict(self.assignment, split, self.student.model, loop.accelerator, batch_size)
            scores[split] = dict(judged.scores)
            if loop.accelerator.is_main_process:
                write_predictions(folder, split, judged.predictions)
                self.assignment.submit(folder.path / SUBMISSION, split, judged)
        best = {} if loop.best.step is None else {"step": loop.best.step, self.assignment.metric: loop.best.value}
        return {
            "model": {"name": public_name(self.encoder.source), **encoder_facts(self.encoder)},
            "task": {
                "name": self.assignment.name,
                "metric": self.assignment.metric,
                "split": self.assignment.selecting,
                "examples": len(self.stage.source),
                "objective": asdict(self.assignment.objective),  # type: ignore[call-overload]
                "notes": list(self.assignment.notes),
            },
            "training": training_facts(loop.progress, self.recipe.precision, str(loop.accelerator.device), folder.read_log()),
            "scores": scores,
            "best": best,
            "fingerprints": dict(self.fingerprints),
            "versions": versions(),
        }

    def card(self, summary: Mapping[str, Any], remark: str = "") -> str:
        """The model's README.md."""
        recipe = plain(self.recipe)
        named = {name: _public(name, value) for name, value in recipe.items() if value not in (None, [])}
        return task_card(summary, type(self.student.model).__name__, yaml_text(named), remark)


def write_predictions(folder: RunFolder, split: str, predictions: Any) -> None:
    """RUN/predictions/SPLIT.jsonl, a line an example in the file's order."""
    (folder.path / PREDICTIONS).mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in predictions)
    write_file(folder.path / PREDICTIONS / f"{split}.jsonl", lines)


def read_predictions(run: Path, split: str) -> list[dict[str, Any]]:
    """What `write_predictions` wrote.

    Raises:
        UserError: there are none of this split, or the file is broken.
    """
    path = run / PREDICTIONS / f"{split}.jsonl"
    try:
        # Not splitlines, which also divides at characters that a text may hold, such as U+2028.
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); fine-tune again with --overwrite.") from error


def _public(name: str, value: Any) -> Any:
    """A setting as others may read it: files by their names alone."""
    if not names_input(name, value):
        return value
    return [public_name(each) for each in value] if isinstance(value, list) else public_name(value)


def _assemble(recipe: FineTuning, begun: FineTuning | None, _: Reporter) -> TaskParts:
    encoder = load_encoder(recipe.model)
    assignment = assignment_of(recipe, encoder.tokenizer)
    source = assignment.training
    longest = max(source.longest, *(assignment.source(split).longest for split in assignment.splits))
    if longest > encoder.shape.positions:
        raise UserError(
            f"Examples of {longest} tokens were asked for, but the model has only {encoder.shape.positions} positions; "
            "lower --max-length (max_length in a protocol's file)."
        )
    student = assignment.head(encoder, recipe.seed)
    stage = Stage(Tuner(student.model, assignment.objective), source, evaluation=TaskEvaluation(assignment))
    stage.to(this_process().device)
    set_dropout(student.model, recipe.dropout)
    use_own_attention(student.model)
    resolved = _resolve(recipe, stage, begun)
    fingerprints = {
        "model": fingerprint(encoder.model),
        "training": source.fingerprint,
        "dev": assignment.source(assignment.selecting).fingerprint,
        "task": _judged(assignment),
    }
    return TaskParts(resolved, student, stage, fingerprints, encoder=encoder, assignment=assignment)


def _judged(assignment: Assignment) -> str:
    """A digest of what the model is asked, on all splits, and of what its answers are held against."""
    splits = dict.fromkeys((assignment.selecting, *assignment.splits))
    parts = (f"{split} {assignment.source(split).fingerprint} {assignment.truth(split)}" for split in splits)
    return text_fingerprint("\n".join(parts))


def _micro_batch(stage: Stage, share: int) -> int:
    """A process's share of the batch; on a processor no more tokens at a time than its caches bear."""
    return share if this_process().device.type != "cpu" else max(1, min(share, MICRO_TOKENS // stage.source.longest))


def _resolve(recipe: FineTuning, stage: Stage, begun: FineTuning | None) -> FineTuning:
    """The recipe with every decision made; probed ones are taken from the run's beginning, and so is its length."""
    processes = this_process().num_processes
    if recipe.batch_size < processes:
        raise UserError(f"A batch of {recipe.batch_size} examples cannot be split over {processes} processes.")
    an_epoch = math.ceil(len(stage.source) / (begun.batch_size if begun else recipe.batch_size))
    steps = recipe.steps or math.ceil((EPOCHS if recipe.epochs is None else recipe.epochs) * an_epoch)
    precision, micro_batch_size = recipe.precision, recipe.micro_batch_size
    if precision == "auto":
        precision = begun.precision if begun else broadcast_object_list([faster_precision(stage, recipe.batch_size)])[0]
    if micro_batch_size == "auto":
        micro_batch_size = begun.micro_batch_size if begun else _micro_batch(stage, math.ceil(recipe.batch_size / processes))
    return replace(
        recipe,
        steps=steps,
        epochs=None,
        precision=precision,
        micro_batch_size=micro_batch_size,
        eval_every=an_epoch if recipe.eval_every == "epoch" else recipe.eval_every,
    )
