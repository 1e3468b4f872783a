"""Metrics of classification and regression: functions of (predictions, labels) that return a float, higher is better.

Predictions and labels are arrays in the same form: class numbers (examples,), real numbers (examples,), or for several labels
(examples, labels) with 1 where one applies. A metric that is undefined, since all predictions or all labels are the same, is
0.0, which is what knowing nothing scores; never nan, and never an exception. Values are fractions, not per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from limbeck.errors import CheckFailed
from limbeck.tasks import weighted
from limbeck.tasks.task import Kind, Task

Array: TypeAlias = NDArray[Any]
Metric = Callable[[ArrayLike, ArrayLike], float]


def correct(predictions: ArrayLike, labels: ArrayLike) -> NDArray[np.bool_]:
    """(examples,) whether each is right; with several labels, whether all of them are."""
    predicted, true = _pair(predictions, labels)
    right: NDArray[np.bool_] = (predicted == true).reshape(len(true), -1).all(axis=1)
    return right


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """The share of examples that are right."""
    return float(correct(predictions, labels).mean())


def f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """F1 of class 1 among two classes, as GLUE has it for paraphrases and duplicates."""
    return _once(weighted.f1, predictions, labels)


def macro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """The mean of the classes' F1, over those that occur in predictions or labels; with several labels, over all of these."""
    return _mean_f1(*_indicators(predictions, labels))


def micro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """F1 over all decisions on a class or label; equal to accuracy where an example has just one class."""
    predicted, true = _indicators(predictions, labels)
    return _mean_f1(predicted.reshape(-1, 1), true.reshape(-1, 1))


def matthews(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Matthews' correlation of classes, in [-1, 1]; for more than two classes, Gorodkin's generalisation."""
    return _once(weighted.matthews, predictions, labels)


def pearson(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Pearson's correlation, in [-1, 1]."""
    return _once(weighted.pearson, predictions, labels)


def spearman(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Spearman's rank correlation, in [-1, 1]; equal values share the mean of their ranks."""
    return _once(weighted.spearman, predictions, labels)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
"""Every metric by its name."""


def score(task: Task, predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """A task's metrics; the first one selects.

    Raises:
        CheckFailed: a prediction is not finite.
    """
    return {name: METRICS[name](predictions, labels) for name in task.metrics}


def chance(task: Task, labels: ArrayLike) -> dict[str, float]:
    """What the best constant answer scores: the most frequent class, or each label if it applies to more than half.

    Correlations are 0 by definition.
    """
    true = np.asarray(labels)
    if task.kind == "classification":
        constant = np.bincount(true, minlength=len(task.labels)).argmax()
    else:
        constant = (true.mean(axis=0) > 0.5).astype(true.dtype)
    return score(task, np.broadcast_to(constant, true.shape), true)


def decided(kind: Kind, outputs: ArrayLike) -> Array:
    """The predictions that a model's outputs (examples, outputs) come to.

    Returns:
        The class of the highest output (examples,), 1 for each output above zero, where its probability is above a half
        (examples, labels), or the one output itself (examples,).

    Raises:
        CheckFailed: an output is not finite.
    """
    scores = _finite(np.asarray(outputs))
    if kind == "classification":
        best: Array = scores.argmax(axis=1)
        return best
    if kind == "multi-label":
        return (scores > 0).astype(np.int64)
    if scores.ndim == 2 and scores.shape[1] != 1:
        raise ValueError(f"regression has one output, not {scores.shape[1]}")
    return scores.reshape(len(scores)).astype(np.float64)


def _once(metric: weighted.Metric, predictions: ArrayLike, labels: ArrayLike) -> float:
    """A metric of one model's predictions, each example counted once."""
    predicted, true = _pair(predictions, labels)
    return float(metric(predicted[None], true, np.ones((1, len(true))))[0, 0])


def _pair(predictions: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    predicted, true = np.asarray(predictions), np.asarray(labels)
    if predicted.shape != true.shape or not len(true):
        raise ValueError(f"predictions of shape {predicted.shape} cannot be compared with labels of shape {true.shape}")
    return _finite(predicted), true


def _finite(values: Array) -> Array:
    if not np.isfinite(values).all():
        raise CheckFailed("The model's outputs are not all finite numbers, so it cannot be scored; its training diverged.")
    return values


def _indicators(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(examples, classes) which class or which labels apply, on both sides."""
    predicted, true = _pair(predictions, labels)
    if true.ndim == 2:
        return predicted == 1, true == 1
    classes = np.union1d(predicted, true)
    return predicted[:, None] == classes, true[:, None] == classes


def _mean_f1(predicted: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """The mean over columns of F1 = 2 hits / (predicted + true); 0 for a column with neither."""
    hits, decisions = (predicted & true).sum(axis=0), predicted.sum(axis=0) + true.sum(axis=0)
    return float((2 * hits / np.maximum(decisions, 1)).mean())
