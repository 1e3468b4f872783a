"""A training stage: a student with its objective, a teacher, and where the examples come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from limbeck.data.batches import Batch, PackedSource, on_device, valid_tokens
from limbeck.encoders.capture import Capture, Features, Wants
from limbeck.encoders.shape import EncoderShape
from limbeck.objectives.base import Objective
from limbeck.recipe import Recipe

PROBE_SEQUENCES = 8


class Teacher:
    """A frozen encoder that is only read: evaluation mode, no gradient, never in a checkpoint."""

    def __init__(self, model: PreTrainedModel, wants: Wants) -> None:
        self.model = model.eval().requires_grad_(False)
        self._capture = Capture(model, wants)

    def __call__(self, batch: Batch) -> Features:
        """The teacher's features of a batch."""
        with torch.no_grad():
            return self._capture(**batch)


class Distiller(nn.Module):
    """Student and objective in one module, which is what gets wrapped for mixed precision and several processes."""

    def __init__(self, student: PreTrainedModel, objective: Objective, wants: Wants) -> None:
        super().__init__()
        self.student = student
        self._objective = objective
        self._capture = Capture(student, wants)
        self.train(student.training)

    def forward(self, batch: Batch, teacher: Features) -> dict[str, Tensor]:
        """The objective's terms, summed over the batch."""
        mask = valid_tokens(batch) if "attention_mask" in batch else None
        return self._objective.sums(teacher, self._capture(**batch), mask)


@dataclass(frozen=True)
class Stage:
    """What the loop trains, on what."""

    module: Distiller
    teacher: Teacher
    objective: Objective
    source: PackedSource
    holdout: PackedSource | None

    def to(self, device: torch.device) -> Stage:
        """Move both models; returns the stage itself."""
        self.module.to(device)
        self.teacher.model.to(device)
        return self

    def loss(self, batch: Batch, targets: Features) -> Tensor:
        """The loss of one batch by itself."""
        return mean_loss(self.module(batch, targets), self.counts(batch), self.objective.weights())

    def probe_batch(self) -> Batch:
        """A few real examples, for trying something out without training on them."""
        examples = self.source.examples(0, min(PROBE_SEQUENCES, len(self.source)))
        return on_device(self.source.collate(examples), next(self.module.parameters()).device)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """What each term of a batch is averaged over."""
        return self.objective.counts(valid_tokens(batch))


@dataclass(frozen=True)
class Plan:
    """How a stage is trained, every decision made."""

    begun_batch_size: int
    """What it was when the run began, which settles with `steps` how many examples are trained on."""
    steps: int
    """Of that batch size."""
    warmup: float
    batch_size: int
    micro_batch_size: int
    learning_rate: float
    weight_decay: float
    precision: str
    seed: int
    log_every: int
    eval_every: int | None
    checkpoint_every: int | None
    keep_checkpoints: int
    keep_best: bool

    @classmethod
    def of(cls, resolved: Recipe, begun: Recipe) -> Plan:
        """The plan of a resolved recipe, in a run that began with this one."""
        same = {field.name: getattr(resolved, field.name) for field in fields(cls) if field.name != "begun_batch_size"}
        return cls(begun_batch_size=begun.batch_size, **same)

    @property
    def examples(self) -> int:
        """Examples to train on, over the whole run."""
        return self.steps * self.begun_batch_size

    @property
    def rising(self) -> int:
        """Examples over which the learning rate rises."""
        return max(1, round(self.warmup * self.steps)) * self.begun_batch_size

    def step_size(self, done: int, processes: int) -> int:
        """Examples of the step that begins after `done` of them: a batch, or what is left at the end.

        The few that would not give each process one of the last step join the step before.
        """
        left = self.examples - done
        return left if left < self.batch_size + processes else self.batch_size

    def steps_left(self, done: int, processes: int) -> int:
        """Steps that the run still takes after `done` examples."""
        return math.ceil((self.examples - done - processes + 1) / self.batch_size)

    def learning_rate_at(self, done: int, size: int) -> float:
        """The learning rate of a step: linear warm-up, then linear decay to zero.

        Args:
            done: examples trained on before the step.
            size: examples of the step.
        """
        if done < self.rising:
            return self.learning_rate * min(done + size, self.rising) / self.rising
        return self.learning_rate * (self.examples - done) / (self.examples - self.rising)


def build_stage(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    objective: Objective,
    source: PackedSource,
    holdout: PackedSource | None,
) -> Stage:
    """Put a distillation stage together from its parts; the objective is resolved."""
    teacher_wants, student_wants = objective.wants(EncoderShape.of(teacher.config), EncoderShape.of(student.config))
    return Stage(Distiller(student, objective, student_wants), Teacher(teacher, teacher_wants), objective, source, holdout)


def mean_loss(sums: Mapping[str, Tensor], counts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The weighted sum of the terms' means; a term without anything to average over counts zero."""
    terms = [weight * sums[term] / counts[term].clamp(min=1) for term, weight in weights.items()]
    return torch.stack(terms).sum()


def set_dropout(model: nn.Module, share: float) -> None:
    """Set every dropout of a model, without touching the configuration that it is saved with."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
