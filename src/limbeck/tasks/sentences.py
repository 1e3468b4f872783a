"""Tasks of one text or a pair: a class, several labels or a number for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from limbeck.data.batches import Frame, LabelledSource, Row
from limbeck.data.tokens import PlainTokenizer
from limbeck.encoders.loading import Encoder
from limbeck.errors import UserError
from limbeck.objectives.supervised import LABELS, Classification, MultiLabel, Regression, Supervised
from limbeck.tasks import weighted
from limbeck.tasks.assignment import Assignment, Compared, Judged
from limbeck.tasks.examples import Example
from limbeck.tasks.glue import glue_of
from limbeck.tasks.heads import sentence_head
from limbeck.tasks.holdout import drawn
from limbeck.tasks.metrics import correct, decided, score
from limbeck.tasks.submission import write_submission
from limbeck.tasks.task import Task, TaskData

if TYPE_CHECKING:
    from numpy.typing import NDArray

Weighting = Literal["none", "balanced"]


class SentenceAssignment(Assignment):
    """A task whose examples are texts or pairs.

    Args:
        data: the task with its splits.
        tokenizer: the model's.
        max_length: tokens of an example, special ones included; of a pair the longer text gives way.
        class_weights: "balanced" counts each class alike, however many examples it has.
        splits: those to judge on; all but the training split if empty.
        limit: training examples at most, drawn by the seed; the classes keep their shares.
        seed: decides the order of the training examples and which of them are drawn.

    Raises:
        UserError: a split is missing or not labelled, or there are no classes to weigh.
    """

    def __init__(
        self,
        data: TaskData,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        class_weights: Weighting = "none",
        splits: Sequence[str] = (),
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        self._data, self._max_length, self._seed = data, max_length, seed
        self._plain, self._frame = PlainTokenizer(tokenizer), Frame.of(tokenizer)
        self._splits = tuple(splits) or tuple(name for name in data.splits if name != "train")
        for split in self._splits:
            data.split(split)
        self._limit, self._weighting = limit, class_weights
        if class_weights != "none" and data.task.kind == "regression":
            raise UserError(f"{data.task.name} predicts numbers, which have no classes to weigh; leave class_weights out.")
        self._sources: dict[str, LabelledSource] = {}
        self.task: Task = data.task
        self.name, self.metric, self.selecting, self.notes = self.task.name, self.task.metrics[0], self.task.dev, data.notes

    @property
    def splits(self) -> Sequence[str]:
        """The splits that a trained model is asked about."""
        return self._splits

    @cached_property
    def objective(self) -> Supervised:  # type: ignore[override]
        """Cross-entropy, or the squared error."""
        if self.task.kind == "regression":
            labels = self._targets.double()
            constant = bool(labels.min() == labels.max())  # of which rounding makes a tiny deviation
            return Regression(float(labels.mean()), 1.0 if constant else float(labels.std(correction=0)))
        balanced = self._weighting == "balanced"
        if self.task.kind == "multi-label":
            return MultiLabel(self._label_weights() if balanced else None)
        return Classification(self._class_weights() if balanced else None)

    @cached_property
    def training(self) -> LabelledSource:  # type: ignore[override]
        """The training examples."""
        return self._source(self._drawn, {LABELS: self._targets})

    def head(self, encoder: Encoder, seed: int) -> Encoder:
        """The encoder under a new classification or regression head."""
        return sentence_head(encoder, self.task.kind, self.task.labels, seed)

    def source(self, split: str) -> LabelledSource:
        """A row an example."""
        if split not in self._sources:
            self._sources[split] = self._source(self._data.split(split).examples, {})
        return self._sources[split]

    def truth(self, split: str) -> str:
        """The labels' names, and each example's."""
        return repr((self.task.labels, [example.label for example in self._data.split(split).examples]))

    def scores(self, outputs: Any) -> Tensor:
        """The logits, (batch, outputs)."""
        logits: Tensor = outputs.logits
        return logits

    def judge(self, split: str, outputs: Sequence[NDArray[Any]]) -> Judged:
        """Classes, labels or numbers, and what they score if the split is labelled."""
        values = np.stack(outputs)
        if isinstance(self.objective, Regression):
            values = values * self.objective.deviation + self.objective.mean
        return judge(self._data, split, values)

    def compared(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> Compared | None:
        """Classes and numbers by the task's first metric, several labels by whether all of them are right."""
        if not self._data.split(split).labelled:
            return None
        labels, given = self._data.targets(split), [entry["prediction"] for entry in predictions]
        if self.task.kind == "regression":
            metric, values = self.metric, np.array(given, dtype=np.float64)
        elif self.task.kind == "classification":
            metric, values = self.metric, np.array([self.task.labels.index(name) for name in given])
        else:
            applying = np.array([[int(label in names) for label in self.task.labels] for names in given])
            right = correct(applying, labels).astype(np.float64)
            return Compared("accuracy", right, np.zeros(len(right)), weighted.mean_score)
        return Compared(metric, values, labels, weighted.METRICS[metric])

    def submit(self, folder: Path, split: str, judged: Judged) -> Path | None:
        """Predictions on GLUE's test splits, in its leaderboard's format."""
        glue = glue_of(self.task)
        if glue is None or not split.startswith("test") or self._data.split(split).bad:
            return None
        given = [entry["prediction"] for entry in judged.predictions]
        values = given if self.task.kind == "regression" else [self.task.labels.index(name) for name in given]
        return write_submission(folder, glue, self._data.split(split), values)

    @cached_property
    def _drawn(self) -> tuple[Example, ...]:
        train = self._data.split("train")
        if not train.labelled:
            raise UserError(f"{train.path} tells no labels, so nothing can be learned from it; name a labelled file.")
        return train.examples if self._limit is None else drawn(train, self._limit, self._seed)

    @cached_property
    def _targets(self) -> Tensor:
        labels = [example.label for example in self._drawn]
        if self.task.kind == "multi-label":
            applying = torch.zeros(len(labels), len(self.task.labels))
            for row, numbers in zip(applying, labels, strict=True):
                row[list(numbers)] = 1.0  # type: ignore[arg-type]
            return applying
        return torch.tensor(labels, dtype=torch.float32 if self.task.kind == "regression" else torch.int64)

    def _class_weights(self) -> tuple[float, ...]:
        """N / (k n_c), as scikit-learn balances; a class without an example never comes up."""
        counts = torch.bincount(self._targets, minlength=len(self.task.labels))
        present = int((counts > 0).sum())
        return tuple((counts.sum() / (present * counts.clamp(min=1))).tolist())

    def _label_weights(self) -> tuple[float, ...]:
        """Examples without a label to one with it."""
        applying = self._targets.sum(dim=0)
        return tuple(((len(self._targets) - applying) / applying.clamp(min=1)).clamp(min=1e-3).tolist())

    def _source(self, examples: Sequence[Example], targets: dict[str, Tensor]) -> LabelledSource:
        rows = rows_of(examples, self._plain, self._frame, self._max_length)
        paired = any(example.second is not None for example in examples)
        return LabelledSource(rows, targets, pad=self._frame.pad, segments=paired, seed=self._seed)


def rows_of(examples: Sequence[Example], tokenizer: PlainTokenizer, frame: Frame, max_length: int) -> list[Row]:
    """Examples in their frames, cut to a length."""
    texts = list(dict.fromkeys(chain.from_iterable((each.text, each.second) for each in examples)))
    known = [text for text in texts if text is not None]
    ids = {text: tokens.astype(np.int64) for text, tokens in zip(known, tokenizer(known), strict=True)}
    rows = []
    for example in examples:
        first = ids[example.text]
        if example.second is None:
            first = first[: max_length - frame.width("single")]
            row = np.concatenate([[frame.begin], first, [frame.end]])
            rows.append(Row(row, len(row)))
            continue
        first, second = shortened(first, ids[example.second], max_length - frame.width("pairs"))
        row = np.concatenate([[frame.begin], first, [frame.end] * frame.between, second, [frame.end]])
        rows.append(Row(row, len(row) - len(second) - 1))
    return rows


def shortened(first: NDArray[np.int64], second: NDArray[np.int64], room: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two texts cut to so many tokens together: first the longer one, down to the other's length, then both alike."""
    shorter = min(len(first), len(second), room // 2)
    if len(first) <= len(second):
        return first[:shorter], second[: room - shorter]
    return first[: room - shorter], second[:shorter]


def judge(data: TaskData, split: str, values: NDArray[Any]) -> Judged:
    """What outputs (examples, outputs) in the order and the units of the task's labels come to."""
    task, examples = data.task, data.split(split).examples
    predictions = decided(task.kind, values)
    lines = [
        {"line": example.line, "prediction": _named(task, predicted), "outputs": [round(float(each), 5) for each in row]}
        for example, predicted, row in zip(examples, predictions, values, strict=True)
    ]
    if not data.split(split).labelled:
        return Judged(lines, {})
    return Judged(lines, score(task, predictions, data.targets(split)))


def _named(task: Task, predicted: Any) -> str | float | list[str]:
    if task.kind == "classification":
        return task.labels[int(predicted)]
    if task.kind == "multi-label":
        return [label for label, applies in zip(task.labels, predicted, strict=True) if applies]
    return float(predicted)
