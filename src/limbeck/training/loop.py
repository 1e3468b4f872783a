"""The training loop, which serves every stage: a student, an objective and a source of batches."""

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn

from limbeck.data.batches import on_device, valid_tokens
from limbeck.encoders.loading import Encoder
from limbeck.errors import CheckFailed, Interrupted, UserError
from limbeck.progress import Reporter
from limbeck.training.best import Best
from limbeck.training.checkpoint import Checkpoint, Progress, Stamp, State, restore, save_checkpoint
from limbeck.training.export import export_student
from limbeck.training.folder import RunFolder
from limbeck.training.interrupt import StopRequest, stop_request
from limbeck.training.isolation import seed_step
from limbeck.training.prefetch import Work, prefetched
from limbeck.training.stage import Plan, Stage, mean, mean_loss
from limbeck.training.table import TableGradient
from limbeck.training.trackers import Trackers

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

    def plain(self) -> dict[str, float]:
        """The sums as numbers that lose nothing in a file."""
        return {term: float(value) for term, value in self.terms.items()}

    def means(self) -> dict[str, float]:
        """Each term's mean over the steps; the tally starts anew."""
        means = {term: float(value) / self.steps for term, value in self.terms.items()}
        self.terms, self.steps = {}, 0
        return means


class Loop:
    """One stage's training, from a checkpoint or from the start.

    Batch, learning rate and dropout of a step depend on the seed and on how many examples were done before, and on nothing
    else, so a checkpoint needs to hold only weights, optimiser and that number.
    """

    def __init__(
        self,
        stage: Stage,
        plan: Plan,
        run: RunFolder,
        encoder: Encoder,
        reporter: Reporter,
        trackers: Trackers,
        stamp: Stamp,
    ) -> None:
        self.stage, self.plan, self.run, self.encoder, self.reporter = stage, plan, run, encoder, reporter
        self.trackers, self.stamp = trackers, stamp
        self.accelerator = make_accelerator(plan.precision)
        self.student = stage.module.student
        groups, betas = parameter_groups(stage.module, plan.weight_decay), (0.9, plan.adam_beta2)
        optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=betas, eps=EPSILON, fused=True)
        self.module, self.optimizer = self.accelerator.prepare(stage.module, optimizer)
        self.table = TableGradient.of(self.student, this_process())
        self.progress, self.tally = Progress(), Tally()
        self.best = Best() if stage.evaluation is None else Best(stage.evaluation.direction)

    def resume(self, checkpoint: Checkpoint | None, changes: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, or begin without one.

        Args:
            checkpoint: holds all that the next step depends on.
            changes: condition -> [then, now], where something is not as it was; the log keeps it.

        Raises:
            UserError: fewer examples are left than there are processes by now.
        """
        if checkpoint is not None:
            restore(checkpoint, self.student, self.optimizer.optimizer)
            state, device = checkpoint.state, self.accelerator.device
            terms = {term: torch.tensor(value, device=device) for term, value in state.unlogged.items()}
            self.progress, self.tally, self.best = state.progress, Tally(terms, state.unlogged_steps), state.best
            self.reporter.fact("resumed", f"from {checkpoint.path}")
        left = self.plan.examples - self.progress.examples
        if 0 < left < self.accelerator.num_processes:
            raise UserError(f"Only {left} examples are left to train on; go on with no more than {left} processes.")
        if self.accelerator.is_main_process:
            self.run.cut_log(self.progress.step)
            if changes:
                self.run.append_log({"step": self.progress.step, "resumed": changes})
        if changes:
            listed = "; ".join(f"{name} {then} then, {now} now" for name, (then, now) in changes.items())
            self.reporter.say(f"warning: the student will not be bit for bit what it would have been: {listed}")
        if self.plan.keep_best and self.best.step == self.progress.step:
            self._write_best()  # the process may have been killed between the checkpoint and this

    def train(self) -> Progress:
        """Take the remaining steps; return where training ended.

        Raises:
            TrainingStopped: a loss, gradient or weight was not finite.
            Interrupted: an end was asked for, and a checkpoint written.
        """
        with self.reporter.training(self.steps, self.progress.step), stop_request() as stop:
            for _ in self.turns(stop):
                pass
        return self.progress

    @property
    def steps(self) -> int:
        """The step that training ends with, unless it ends early."""
        return self.progress.step + self.plan.steps_left(self.progress.examples, self.accelerator.num_processes)

    def turns(self, stop: StopRequest) -> Generator[None, None, None]:
        """Take the remaining steps; yields whenever the teacher is to be asked, so that several loops can share its passes.

        Args:
            stop: looked at after each step.

        Raises:
            TrainingStopped: as `train`.
            Interrupted: as `train`.
        """
        plan, here, steps = self.plan, self.accelerator, self.steps
        self.module.train()
        started = time.perf_counter() - self.progress.seconds
        remembering = nullcontext() if self.stage.teacher is None else self.stage.teacher.remembering()
        works = prefetched(self.stage.source, plan, self.progress.examples, here.process_index, here.num_processes)
        with self.trackers.running(self.progress.step), self.table, remembering, closing(works):
            while self.progress.step < steps and not self._out_of_patience():
                work, waited = next(works)
                terms, tokens = yield from self._step(work)
                self.tally.add(terms)
                self.progress = done = self.progress.after(work.size, tokens, time.perf_counter() - started, waited)
                self.reporter.stepped(done.step)
                if done.step in (1, steps) or done.step % plan.log_every == 0:
                    self._log()
                evaluates = done.step == steps or (plan.eval_every is not None and done.step % plan.eval_every == 0)
                improved = evaluates and (yield from self._evaluate())
                stopped = self._all_know(bool(stop))
                saves = plan.checkpoint_every is not None and done.step % plan.checkpoint_every == 0
                if saves or stopped or (improved and plan.keep_best):
                    self._save()
                if improved and plan.keep_best:
                    self._write_best()
                if stopped:
                    where = f"stopped after step {done.step} of {steps}, saved in {self.run.checkpoints}"
                    raise Interrupted(f"{where}; go on with --resume auto")
        if self.progress.step < steps:
            self.reporter.say(f"ended early after step {self.progress.step}: nothing was better than step {self.best.step}")
        self._check_weights()

    def best_remark(self) -> str:
        """What is to be said of the student in RUN/best."""
        assert self.stage.evaluation is not None
        return (
            f"These are the weights of step {self.best.step}, whose {self.stage.evaluation.said}, {self.best.value:.4f}, was the "
            f"{self.best.direction}."
        )

    def _out_of_patience(self) -> bool:
        """Whether so many evaluations in a row were no better that training is to end."""
        plan, step = self.plan, self.best.step
        if plan.patience is None or plan.eval_every is None or step is None:
            return False
        return self.progress.step - step >= plan.patience * plan.eval_every

    def _all_know(self, stop: bool) -> bool:
        """Whether any process was asked to stop, so that all of them do so at the same step."""
        if self.accelerator.num_processes == 1:
            return stop
        return bool(self._total([torch.tensor(int(stop), device=self.accelerator.device)]))

    def _check_weights(self) -> None:
        """The last step's gradient was finite, but its weights need not be."""
        broken = [name for name, parameter in self.student.named_parameters() if not torch.isfinite(parameter).all()]
        if broken:
            raise TrainingStopped(
                f"The weights {', '.join(broken[:3])} are not finite after step {self.progress.step}; lower the learning rate."
            )

    def _evaluate(self) -> Generator[None, None, bool]:
        """Write the evaluation's figures to the log, if there is one; say if these are the best weights so far."""
        evaluation = self.stage.evaluation
        if evaluation is None:
            return False
        figures = yield from evaluation.turns(self.stage, self.module, self.accelerator, self.plan.micro_batch_size)
        record = {"step": self.progress.step, **{f"{evaluation.prefix}_{name}": value for name, value in figures.items()}}
        if self.accelerator.is_main_process:
            self.run.append_log(record)
            self.trackers.log(record)
            self.reporter.evaluated(self.progress.step, evaluation.said, figures[evaluation.metric])
        earlier = self.best
        if self.plan.keep_best or self.plan.patience is not None:
            self.best = earlier.after(figures[evaluation.metric], self.progress.step)
        return self.best is not earlier

    def _step(self, work: Work) -> Generator[None, None, tuple[dict[str, Tensor], int]]:
        """One optimiser step; returns the terms' means over the whole batch and the number of its real tokens."""
        done, process, weights = self.progress.examples, self.accelerator.process_index, self.stage.weights
        micro_batches = [on_device(batch, self.accelerator.device) for batch in work.micro_batches]
        local = [self.stage.module.counts(batch) for batch in micro_batches]
        counts = {term: self._total([count[term] for count in local]) for term in weights}
        sums: dict[str, Tensor] = {}
        all_targets = self.stage.targets_of_each(micro_batches)
        for place, batch in enumerate(micro_batches):
            yield
            targets = next(all_targets)
            seed_step(self.accelerator.device, self.plan.seed, process, done, place)
            # Gradients are exchanged between processes once a step, at its last micro-batch.
            with nullcontext() if place == len(micro_batches) - 1 else self.accelerator.no_sync(self.module):
                part = self.module(batch, targets)
                # Processes average their gradients, but each divides by the count of all.
                self.accelerator.backward(mean_loss(part, counts, weights) * self.accelerator.num_processes)
            sums = {term: value.detach() + sums.get(term, 0) for term, value in part.items()}
        self.table.fill()
        norm = self.accelerator.clip_grad_norm_(self.module.parameters(), CLIP)
        if not torch.isfinite(norm):
            raise TrainingStopped(self._not_finite(work.examples, sums))
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate_at(done, work.size)
        self.optimizer.step()
        self.table.clear()
        self.optimizer.zero_grad()
        means = {term: mean(self._total([value]), counts[term]) for term, value in sums.items()}
        tokens = self._total([valid_tokens(batch).sum() for batch in micro_batches])
        return means, int(tokens)

    def _total(self, values: list[Tensor]) -> Tensor:
        """The sum over micro-batches and processes."""
        total: Tensor = self.accelerator.reduce(torch.stack(values).sum(), "sum")
        return total

    def _not_finite(self, examples: list[int], sums: dict[str, Tensor]) -> str:
        broken = [term for term, value in sums.items() if not torch.isfinite(value)]
        what = f"The loss term {', '.join(broken)}" if broken else "The gradient"
        shown = ", ".join(map(str, examples[:8])) + (", ..." if len(examples) > 8 else "")
        return (
            f"{what} is not finite at step {self.progress.step + 1} (examples {shown}); training stopped before the weights were "
            "changed. Lower the learning rate, lengthen the warm-up, or use --precision float32."
        )

    def _log(self) -> None:
        terms = self.tally.means()
        weights = self.stage.weights
        record = {
            "step": self.progress.step,
            "loss": sum(weights[term] * value for term, value in terms.items()),
            **terms,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 3),
            "tokens_per_second": round(self.progress.tokens / self.progress.seconds),
            "waiting": round(self.progress.waiting, 4),
        }
        if self.accelerator.is_main_process:
            self.run.append_log(record)
            self.trackers.log(record)
            self.reporter.logged(record)

    def _save(self) -> None:
        self._check_weights()
        if self.accelerator.is_main_process:
            state = State(self.progress, self.stamp, self.tally.plain(), self.tally.steps, self.best)
            optimizer, keep = self.optimizer.optimizer, self.plan.keep_checkpoints
            save_checkpoint(self.run.checkpoints, state, self.student, self.encoder.tokenizer, optimizer, keep)
        self.accelerator.wait_for_everyone()

    def _write_best(self) -> None:
        """Write the student as it is to RUN/best; a checkpoint of this step is there already, so that a kill loses nothing."""
        if self.accelerator.is_main_process:
            # Exporting moves a model to the processor and ends its training.
            student = copy.deepcopy(self.student)
            self.stage.module.finish(student)
            export_student(self.run.best, replace(self.encoder, model=student), self.best_remark() + "\n")
        self.accelerator.wait_for_everyone()


def this_process() -> PartialState:
    """This process among all that share the run, with its device.

    Raises:
        UserError: the environment says whether to use the processor, but neither yes nor no.
    """
    try:
        return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    except ValueError as error:
        raise UserError(f"The environment, such as ACCELERATE_USE_CPU, cannot be understood: {error}.") from error


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
