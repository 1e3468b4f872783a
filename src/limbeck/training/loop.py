"""The training loop, which serves every stage: a student, an objective and a source of batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from limbeck.data.batches import Batch, PackedSource, on_device, valid_tokens
from limbeck.errors import CheckFailed, UserError
from limbeck.training.checkpoint import Progress, list_checkpoints, restore, save_checkpoint
from limbeck.training.folder import RunFolder
from limbeck.training.progress import Reporter
from limbeck.training.stage import Plan, Stage, mean_loss

CLIP = 1.0
"""Largest norm of the gradient."""
EPSILON = 1e-6
"""AdamW's epsilon, as in BERT's own training."""


class TrainingStopped(CheckFailed):
    """Training cannot go on; the message names step and examples."""


@dataclass
class Tally:
    """Losses since the last line of the log, kept on the device until it is written."""

    terms: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def add(self, terms: dict[str, Tensor]) -> None:
        """Add one step's terms."""
        self.terms = {term: value + self.terms.get(term, 0) for term, value in terms.items()}
        self.steps += 1

    def means(self) -> dict[str, float]:
        """Each term's mean over the steps; the tally starts anew."""
        means = {term: float(value) / self.steps for term, value in self.terms.items()}
        self.terms, self.steps = {}, 0
        return means


class Loop:
    """One stage's training, from a checkpoint or from the start.

    Batch k depends on (seed, k) alone and the learning rate on the step alone, so a checkpoint needs to hold only
    weights, optimiser and random numbers.
    """

    def __init__(self, stage: Stage, plan: Plan, run: RunFolder, tokenizer: PreTrainedTokenizerBase, reporter: Reporter) -> None:
        self.stage, self.plan, self.run, self.tokenizer, self.reporter = stage, plan, run, tokenizer, reporter
        self.accelerator = make_accelerator(plan.precision)
        self.student = stage.module.student
        optimizer = torch.optim.AdamW(
            parameter_groups(stage.module, plan.weight_decay), lr=plan.learning_rate, eps=EPSILON, fused=True
        )
        self.module, self.optimizer = self.accelerator.prepare(stage.module, optimizer)
        self.progress = Progress(0, 0, 0.0)

    def resume(self) -> None:
        """Go on from the newest checkpoint that is whole, if there is any.

        Raises:
            UserError: there are checkpoints, but every one is damaged.
        """
        damaged: list[str] = []
        for checkpoint in reversed(list_checkpoints(self.run.checkpoints)):
            try:
                self.progress = restore(checkpoint, self.student, self.optimizer.optimizer)
                self.reporter.fact("resumed", f"from {checkpoint}")
                break
            except UserError as error:
                damaged.append(str(error))
                self.reporter.say(f"{error} The one before is tried.")
        else:
            if damaged:
                raise UserError(f"{damaged[0]} No checkpoint is whole; begin anew with --overwrite.")
        if self.accelerator.is_main_process:
            self.run.cut_log(self.progress.step)

    def train(self) -> Progress:
        """Take the remaining steps; return where training ended.

        Raises:
            TrainingStopped: a loss or gradient was not finite.
        """
        plan, tally = self.plan, Tally()
        self.module.train()
        started = time.perf_counter() - self.progress.seconds
        with self.reporter.training(plan.steps, self.progress.step):
            for step in range(self.progress.step, plan.steps):
                terms, tokens = self._step(step)
                tally.add(terms)
                done = Progress(step + 1, self.progress.tokens + tokens, time.perf_counter() - started)
                self.progress = done
                saves = plan.checkpoint_every is not None and done.step % plan.checkpoint_every == 0
                if done.step in (1, plan.steps) or done.step % plan.log_every == 0 or saves:
                    self._log(tally)
                if done.step == plan.steps or (plan.eval_every is not None and done.step % plan.eval_every == 0):
                    self._evaluate()
                if saves:
                    self._save()
        self._check_weights()
        return self.progress

    def _check_weights(self) -> None:
        """The last step's gradient was finite, but its weights need not be."""
        broken = [name for name, parameter in self.student.named_parameters() if not torch.isfinite(parameter).all()]
        if broken:
            raise TrainingStopped(f"The weights {', '.join(broken[:3])} are not finite; lower the learning rate.")

    def _evaluate(self) -> None:
        """Write loss and terms on the held-out text to the log, if there is such text."""
        if self.stage.holdout is None:
            return
        means = held_out_means(self.stage, self.stage.holdout, self.module, self.accelerator, self.plan.micro_batch_size)
        record = {"step": self.progress.step, **{f"holdout_{name}": value for name, value in means.items()}}
        if self.accelerator.is_main_process:
            self.run.append_log(record)
            self.reporter.evaluated(record)

    def _step(self, step: int) -> tuple[dict[str, Tensor], int]:
        """One optimiser step; returns the terms' means over the whole batch and the number of its real tokens."""
        examples = self._examples(step)
        weights = self.stage.objective.weights()
        micro_batches = list(self._micro_batches(examples))
        local = [self.stage.counts(batch) for batch in micro_batches]
        counts = {term: self._total([count[term] for count in local]) for term in weights}
        sums: dict[str, Tensor] = {}
        for place, batch in enumerate(micro_batches):
            targets = self.stage.teacher(batch)
            # Gradients are exchanged between processes once a step, at its last micro-batch.
            with nullcontext() if place == len(micro_batches) - 1 else self.accelerator.no_sync(self.module):
                part = self.module(batch, targets)
                # Processes average their gradients, but each divides by the count of all.
                self.accelerator.backward(mean_loss(part, counts, weights) * self.accelerator.num_processes)
            sums = {term: value.detach() + sums.get(term, 0) for term, value in part.items()}
        norm = self.accelerator.clip_grad_norm_(self.module.parameters(), CLIP)
        if not torch.isfinite(norm):
            raise TrainingStopped(self._not_finite(step, examples, sums))
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate_at(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        means = {term: self._total([value]) / counts[term].clamp(min=1) for term, value in sums.items()}
        tokens = self._total([valid_tokens(batch).sum() for batch in micro_batches])
        return means, int(tokens)

    def _examples(self, step: int) -> list[int]:
        """This process's share of the step's examples."""
        examples = self.stage.source.examples(step * self.plan.batch_size, self.plan.batch_size)
        return examples[self.accelerator.process_index :: self.accelerator.num_processes]

    def _micro_batches(self, examples: list[int]) -> Iterator[Batch]:
        for first in range(0, len(examples), self.plan.micro_batch_size):
            batch = self.stage.source.collate(examples[first : first + self.plan.micro_batch_size])
            yield on_device(batch, self.accelerator.device)

    def _total(self, values: list[Tensor]) -> Tensor:
        """The sum over micro-batches and processes."""
        total: Tensor = self.accelerator.reduce(torch.stack(values).sum(), "sum")
        return total

    def _not_finite(self, step: int, examples: list[int], sums: dict[str, Tensor]) -> str:
        broken = [term for term, value in sums.items() if not torch.isfinite(value)]
        what = f"The loss term {', '.join(broken)}" if broken else "The gradient"
        shown = ", ".join(map(str, examples[:8])) + (", ..." if len(examples) > 8 else "")
        return (
            f"{what} is not finite at step {step + 1} (examples {shown}); training stopped before the weights were "
            "changed. Lower the learning rate, lengthen the warm-up, or use --precision float32."
        )

    def _log(self, tally: Tally) -> None:
        terms = tally.means()
        weights = self.stage.objective.weights()
        record = {
            "step": self.progress.step,
            "loss": sum(weights[term] * value for term, value in terms.items()),
            **terms,
            "learning_rate": self.plan.learning_rate_at(self.progress.step - 1),
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 3),
            "tokens_per_second": round(self.progress.tokens / self.progress.seconds),
        }
        if self.accelerator.is_main_process:
            self.run.append_log(record)
            self.reporter.logged(record)

    def _save(self) -> None:
        if self.accelerator.is_main_process:
            save_checkpoint(self.run.checkpoints, self.progress, self.student, self.tokenizer, self.optimizer.optimizer)
        self.accelerator.wait_for_everyone()


def held_out_means(
    stage: Stage, holdout: PackedSource, module: nn.Module, accelerator: Accelerator, batch_size: int
) -> dict[str, float]:
    """The objective's terms over held-out text, and their weighted sum as "loss"; the module's mode stays as it was."""
    training = module.training
    module.eval()
    weights = stage.objective.weights()
    device = accelerator.device
    sums = {term: torch.zeros((), device=device) for term in weights}
    counts = {term: torch.zeros((), device=device) for term in weights}
    for number, batch in enumerate(holdout.in_order(batch_size)):
        if number % accelerator.num_processes != accelerator.process_index:
            continue
        batch = on_device(batch, device)
        count = stage.counts(batch)
        with torch.no_grad():
            terms = module(batch, stage.teacher(batch))
        sums = {term: total + terms[term] for term, total in sums.items()}
        counts = {term: total + count[term] for term, total in counts.items()}
    module.train(training)
    means = {
        term: float(accelerator.reduce(sums[term], "sum") / accelerator.reduce(counts[term], "sum").clamp(min=1))
        for term in weights
    }
    return {"loss": sum(weights[term] * mean for term, mean in means.items()), **means}


def this_process() -> PartialState:
    """This process among all that share the run, with its device."""
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))


def make_accelerator(precision: str) -> Accelerator:
    """A new accelerator; the process may have had one with another precision before, in an earlier run."""
    AcceleratorState._reset_state()
    return Accelerator(mixed_precision="bf16" if precision == "bf16" else "no")


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """The trained parameters, in two groups: weight decay is not for biases and norms, which are vectors."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
