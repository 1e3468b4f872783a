"""What a task asks for, and its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from limbeck.errors import UserError
from limbeck.tasks.examples import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["classification", "multi-label", "regression"]


@dataclass(frozen=True)
class Task:
    """What is to be predicted, and what tells how well."""

    name: str
    kind: Kind
    """One class an example, any number of labels, or a real number."""
    metrics: tuple[str, ...]
    """Names in `limbeck.tasks.metrics.METRICS`; the first one selects among models, and the highest value wins."""
    labels: tuple[str, ...] = ()
    """The names of the classes or labels, in the order of their numbers; none for regression."""
    written: tuple[str, ...] = ()
    """How the task's own files spell the labels where that differs, in the same order."""
    range: tuple[float, float] | None = None
    """The lowest and the highest number that regression predicts."""
    dev: str = "dev"
    """The split that selects."""


@dataclass(frozen=True)
class TaskData:
    """A task with its splits."""

    task: Task
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()
    """What the user should be told: how columns were understood, and which rows were left out."""

    def split(self, name: str) -> Split:
        """The split of that name.

        Raises:
            UserError: there is none.
        """
        if name not in self.splits:
            raise UserError(f"{self.task.name} has no split named {name} here; there are {', '.join(self.splits)}.")
        return self.splits[name]

    def targets(self, name: str) -> NDArray[Any]:
        """The labels of a split as metrics take them.

        Returns:
            Class numbers (examples,), numbers to predict (examples,) in float64, or for several labels (examples, labels)
            with 1 where a label applies.

        Raises:
            UserError: there is no such split, or it is not labelled.
        """
        split = self.split(name)
        if not split.labelled:
            raise UserError(f"{split.path} tells no labels, so nothing can be scored on it; name a labelled split.")
        labels = [example.label for example in split.examples]
        if self.task.kind == "multi-label":
            indicators = np.zeros((len(labels), len(self.task.labels)), np.int64)
            for row, applying in zip(indicators, labels, strict=True):
                row[list(applying)] = 1  # type: ignore[arg-type]
            return indicators
        return np.array(labels, np.float64 if self.task.kind == "regression" else np.int64)


def task_data(task: Task, splits: Mapping[str, Split], *notes: str) -> TaskData:
    """A task's data with notes on it and on the rows that were left out."""
    return TaskData(task, splits, (*notes, *(report for split in splits.values() if (report := split.report))))
