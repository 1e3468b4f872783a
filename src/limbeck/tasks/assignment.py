"""A task made ready for one model: what it is trained on, by which objective and with which head, and how it is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from limbeck.data.batches import LabelledSource
from limbeck.encoders.loading import Encoder
from limbeck.objectives.supervised import Supervised
from limbeck.tasks.weighted import Metric

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Compared:
    """What statistics need to compare two models on the same examples."""

    metric: str
    """One of the scores."""
    predictions: NDArray[Any]
    """(examples,) class numbers, real numbers, or each example's own score."""
    labels: NDArray[Any]
    """(examples,) what they are held against."""
    weighted: Metric
    """The metric of examples that count several times."""


@dataclass(frozen=True)
class Judged:
    """What a model's outputs on a split come to."""

    predictions: Sequence[Mapping[str, Any]]
    """An entry an example, as it is written to a file."""
    scores: Mapping[str, float]
    """Every metric, as a fraction; empty where the split tells no labels."""


class Assignment(ABC):
    """A task made ready for the tokenizer of one model."""

    name: str
    """The task's."""
    metric: str
    """Which score selects among models; the highest wins."""
    selecting: str
    """The split that it is taken on."""
    notes: Sequence[str]
    """What the user should be told of the data."""
    objective: Supervised
    training: LabelledSource

    @property
    @abstractmethod
    def splits(self) -> Sequence[str]:
        """The splits that a trained model is asked about."""

    @abstractmethod
    def head(self, encoder: Encoder, seed: int) -> Encoder:
        """The encoder's weights under a new head for this task, which the seed decides."""

    @abstractmethod
    def source(self, split: str) -> LabelledSource:
        """The rows that a model is run on to be judged on a split."""

    @abstractmethod
    def truth(self, split: str) -> str:
        """All that predictions on a split are held against, as text: the labels, and what they are called."""

    @abstractmethod
    def scores(self, outputs: Any) -> Tensor:
        """What of a model's outputs decides, (batch, ...)."""

    @abstractmethod
    def judge(self, split: str, outputs: Sequence[NDArray[Any]]) -> Judged:
        """What the outputs on a split come to.

        Args:
            split: one of `splits`.
            outputs: for each row of its source what `scores` made of it.
        """

    @abstractmethod
    def compared(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> Compared | None:
        """What statistics need of predictions as `judge` gave them; None for a split without labels."""

    def submit(self, folder: Path, split: str, judged: Judged) -> Path | None:
        """Write the predictions as the task's leaderboard wants them; None if it takes none for this split."""
        return None
