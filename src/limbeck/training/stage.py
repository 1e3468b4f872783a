"""A training stage: a student with its objective, a teacher or labels, and where the examples come from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from limbeck.data.batches import Batch, Source, model_inputs, on_device, valid_tokens
from limbeck.encoders.capture import Capture, Wants
from limbeck.encoders.features import Features
from limbeck.encoders.shape import EncoderShape
from limbeck.errors import UserError
from limbeck.kernels.dropout import Dropout
from limbeck.objectives.base import Mimicry, Objective
from limbeck.objectives.supervised import Supervised
from limbeck.training.best import Direction

if TYPE_CHECKING:
    from accelerate import Accelerator

PROBE_SEQUENCES = 8
PASS_TOKENS = 2048
"""Tokens that a teacher looks at together where the student's micro-batches are smaller: more would be no faster
(docs/speed.md)."""


class Teacher:
    """A frozen encoder that is only read: evaluation mode, no gradient, never in a checkpoint."""

    def __init__(self, model: PreTrainedModel, wants: Wants) -> None:
        self.model, self.wants = model.eval().requires_grad_(False), wants
        self.capture = Capture(model, wants)

    def remembering(self) -> AbstractContextManager[None]:
        """While training goes on; a teacher that remembers what it says does so within it."""
        return nullcontext()

    def anew(self) -> Teacher:
        """The same once layers of the model were replaced."""
        return Teacher(self.model, self.wants)

    def close(self) -> None:
        """Let go of the model."""
        self.capture.close()

    def hold_in_bf16(self) -> None:
        """Round the weights to bf16; what is no weight, such as the frequencies of rotary positions, stays exact."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.bfloat16()

    def __call__(self, batch: Batch) -> Features:
        """The teacher's features of a batch."""
        with torch.no_grad():
            return self.capture(**model_inputs(batch))

    def of_each(self, batches: Sequence[Batch]) -> Iterator[Features]:
        """Its features of one batch after another; small ones that follow each other are looked at together."""
        for group in _passes(batches):
            if len(group) == 1:
                yield self(group[0])
            else:
                yield from self(_joined(group)).split([len(batch["input_ids"]) for batch in group])


class SharedTeacher(Teacher):
    """One teacher of several students: it is asked once about a batch that they ask about one after another."""

    def __init__(self, teacher: Teacher) -> None:
        self.asked = teacher
        self.model, self.wants, self.capture = teacher.model, teacher.wants, teacher.capture
        self._latest: tuple[Batch, Features] | None = None

    def remembering(self) -> AbstractContextManager[None]:
        """While training goes on."""
        return self.asked.remembering()

    def __call__(self, batch: Batch) -> Features:
        """The teacher's features of a batch."""
        if self._latest is None or not _same_inputs(self._latest[0], batch):
            self._latest = None  # before others are made
            self._latest = batch, self.asked(batch)
        return self._latest[1]


def _passes(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Neighbours of one length in groups of at most `PASS_TOKENS`."""
    group: list[Batch] = []
    for batch in batches:
        tokens = sum(each["input_ids"].numel() for each in (*group, batch))
        if group and (tokens > PASS_TOKENS or _form(batch) != _form(group[0])):
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def _form(batch: Batch) -> tuple[int, set[str]]:
    return batch["input_ids"].shape[1], set(model_inputs(batch))


def _joined(batches: Sequence[Batch]) -> Batch:
    return {name: torch.cat([batch[name] for batch in batches]) for name in model_inputs(batches[0])}


def _same_inputs(batch: Batch, other: Batch) -> bool:
    ours, theirs = model_inputs(batch), model_inputs(other)
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


class Trained(nn.Module, ABC):
    """A student with its objective in one module, which is what gets wrapped for mixed precision and several processes."""

    def __init__(self, student: PreTrainedModel, objective: Objective) -> None:
        super().__init__()
        self.student = student
        self.objective = objective
        self.train(student.training)

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """What each term of a batch is averaged over."""

    @abstractmethod
    def forward(self, batch: Batch, teacher: Features | None) -> dict[str, Tensor]:
        """The objective's terms, summed over the batch."""

    def finish(self, student: PreTrainedModel) -> None:
        """Make of a trained student, in place, what is given away."""


class Distiller(Trained):
    """A student that mimics a teacher's features."""

    objective: Mimicry

    def __init__(self, student: PreTrainedModel, objective: Mimicry, wants: Wants) -> None:
        super().__init__(student, objective)
        self._capture = Capture(student, wants)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """What each term of a batch is averaged over."""
        return self.objective.counts(valid_tokens(batch))

    def forward(self, batch: Batch, teacher: Features | None) -> dict[str, Tensor]:
        """The objective's terms, summed over the batch."""
        assert teacher is not None
        mask = valid_tokens(batch) if "attention_mask" in batch else None
        return self.objective.sums(teacher, self._capture(**model_inputs(batch)), mask)


class Tuner(Trained):
    """A student with a task's head that learns from labels."""

    objective: Supervised

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """What each term of a batch is averaged over."""
        return self.objective.counts(batch)

    def forward(self, batch: Batch, teacher: Features | None) -> dict[str, Tensor]:
        """The objective's terms, summed over the batch."""
        return self.objective.sums(outputs_of(self.student, batch), batch)

    def finish(self, student: PreTrainedModel) -> None:
        """Let the head give its outputs in the labels' own units."""
        self.objective.finish(student)


def outputs_of(model: PreTrainedModel, batch: Batch) -> Any:
    """What a model with a task's head makes of a batch's inputs; segments go only to models that were made with several."""
    inputs = model_inputs(batch)
    if EncoderShape.of(model.config).segments < 2:
        inputs.pop("token_type_ids", None)
    return model(**inputs)


class Evaluation(ABC):
    """How good a student is on examples that it is not trained on."""

    prefix: str
    """What the names of its figures begin with in the log."""
    metric: str
    """The figure that decides which weights are the best."""
    direction: Direction
    """Whether the lowest or the highest is the best."""
    said: str
    """What the metric is called in a message."""

    @abstractmethod
    def __len__(self) -> int:
        """Examples that it runs through."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the examples."""

    @abstractmethod
    def turns(
        self, stage: Stage, module: nn.Module, accelerator: Accelerator, batch_size: int
    ) -> Generator[None, None, dict[str, float]]:
        """Evaluate the student as it is; yields whenever the teacher is to be asked, and returns the figures.

        Args:
            stage: whose student it is.
            module: the stage's module, wrapped for training or not; its mode stays as it was.
            accelerator: shares the examples out to the processes; all get the figures.
            batch_size: examples in a forward pass.
        """

    def __call__(self, stage: Stage, module: nn.Module, accelerator: Accelerator, batch_size: int) -> dict[str, float]:
        """Evaluate in one go; the arguments are those of `turns`."""
        turns = self.turns(stage, module, accelerator, batch_size)
        while True:
            try:
                next(turns)
            except StopIteration as end:
                return dict(end.value)


@dataclass(frozen=True)
class Stage:
    """What the loop trains, on what."""

    module: Trained
    source: Source
    teacher: Teacher | None = None
    """None where labels take its place."""
    evaluation: Evaluation | None = None

    def to(self, device: torch.device) -> Stage:
        """Move both models; returns the stage itself."""
        self.module.to(device)
        if self.teacher is not None:
            self.teacher.model.to(device)
        return self

    def targets(self, batch: Batch) -> Features | None:
        """What the teacher makes of a batch."""
        return None if self.teacher is None else self.teacher(batch)

    def targets_of_each(self, batches: Sequence[Batch]) -> Iterator[Features | None]:
        """What the teacher makes of a step's micro-batches."""
        return repeat(None, len(batches)) if self.teacher is None else self.teacher.of_each(batches)

    def loss(self, batch: Batch, targets: Features | None) -> Tensor:
        """The loss of one batch by itself."""
        return mean_loss(self.module(batch, targets), self.module.counts(batch), self.weights)

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each of the objective's terms."""
        return self.module.objective.weights()

    def probe_batch(self, sequences: int = PROBE_SEQUENCES) -> Batch:
        """A few real examples, for trying something out without training on them."""
        examples = self.source.examples(0, min(sequences, len(self.source)))
        return on_device(self.source.collate(examples), next(self.module.parameters()).device)


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
    adam_beta2: float = 0.999
    patience: int | None = None
    """Evaluations without a better one after which training ends."""

    @classmethod
    def of(cls, resolved: Any, begun: Any) -> Plan:
        """The plan of a resolved recipe, in a run that began with this one."""
        given = {field.name: getattr(resolved, field.name) for field in fields(cls) if hasattr(resolved, field.name)}
        every = given["eval_every"]
        return cls(**given | {"begun_batch_size": begun.batch_size, "eval_every": every if isinstance(every, int) else None})

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
    objective: Mimicry,
    source: Source,
    evaluation: Evaluation | None = None,
) -> Stage:
    """Put a distillation stage together from its parts; the objective is resolved."""
    teacher_wants, student_wants = objective.wants(EncoderShape.of(teacher.config), EncoderShape.of(student.config))
    return Stage(Distiller(student, objective, student_wants), source, Teacher(teacher, teacher_wants), evaluation)


def mean_loss(sums: Mapping[str, Tensor], counts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The weighted sum of the terms' means; a term without anything to average over counts zero."""
    return torch.stack([weight * mean(sums[term], counts[term]) for term, weight in weights.items()]).sum()


def mean(total: Tensor, count: Tensor) -> Tensor:
    """A sum divided by a count; zero where there is nothing to average over."""
    return total / torch.where(count > 0, count, 1)


def set_dropout(model: nn.Module, share: float) -> None:
    """Set every dropout of a model, and make it a cheap one, without touching the configuration that it is saved with."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout  # in its place, so that its name and hooks stay
        if isinstance(module, nn.Dropout):
            module.p = share
        elif isinstance(getattr(module, "attention_dropout", None), float | int):  # families without a module for it
            module.attention_dropout = share  # type: ignore[assignment]


def keep_no_activations(model: PreTrainedModel) -> None:
    """Let a model compute its layers once more in the backward pass, instead of keeping what they computed.

    Raises:
        UserError: its family cannot.
    """
    if not model.supports_gradient_checkpointing:
        raise UserError(f"Students of type {model.config.model_type!r} know no gradient checkpointing; leave it out.")
    # transformers renamed it after 5.0.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
