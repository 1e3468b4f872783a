"""Metrics of examples that count several times: what a bootstrap computes thousands of times at once.

Each takes predictions (seeds, examples), labels (examples,) and counts (draws, examples), how often a draw holds each
example, every row of the same sum; and gives (draws, seeds). The plain metric is the case of one draw of all ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Metric: TypeAlias = "Callable[[NDArray[Any], NDArray[Any], Floats], Floats]"


def mean_score(predictions: NDArray[Any], _: NDArray[Any], counts: Floats) -> Floats:
    """The mean of examples that are scored already, such as the exact match or F1 of answers; labels are not read."""
    sums: Floats = counts @ predictions.T.astype(np.float64)
    return sums / _total(counts)


def accuracy(predictions: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    """The share of predictions that equal their labels."""
    return mean_score(predictions == labels, labels, counts)


def f1(predictions: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    """F1 of the class 1; 0 where it is neither predicted nor there."""
    predicted, true = predictions == 1, labels == 1
    hits = counts @ (predicted & true).T.astype(np.float64)
    both = counts @ (predicted.astype(np.float64) + true).T
    return _ratio(2 * hits, both)


def matthews(predictions: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    """Matthews' correlation of any number of classes; 0 where only one is predicted, or only one is there."""
    total = _total(counts)
    classes = np.unique(np.concatenate([np.ravel(predictions), labels]))
    true = counts @ (labels[:, None] == classes).astype(np.float64)  # (draws, classes)
    hits = counts @ (predictions == labels).T.astype(np.float64)
    predicted = np.stack([counts @ (predictions == one).T.astype(np.float64) for one in classes], axis=2)
    covariance = hits * total - (predicted * true[:, None]).sum(axis=2)
    spread = (total**2 - (predicted**2).sum(axis=2)) * (total**2 - (true**2).sum(axis=1, keepdims=True))
    return _ratio(covariance, np.sqrt(np.maximum(spread, 0)))


def pearson(predictions: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    """Pearson's correlation; 0 where one side does not vary."""
    total = _total(counts)
    x, y = (_standardised(np.asarray(values, dtype=np.float64)) for values in (predictions, labels))
    mean_x, mean_y = counts @ x.T / total, (counts @ y / total[:, 0])[:, None]
    covariance = counts @ (x * y).T / total - mean_x * mean_y
    spread_x, spread_y = counts @ (x**2).T / total - mean_x**2, (counts @ y**2 / total[:, 0])[:, None] - mean_y**2
    return _correlation(covariance, spread_x, spread_y)


def spearman(predictions: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    """Spearman's rank correlation, equal values at the mean of their ranks; 0 where one side does not vary."""
    total = _total(counts)
    label_ranks = _Ranks(labels, counts)
    weighted = counts * label_ranks.of_examples()
    result = np.empty((len(counts), len(predictions)))
    for seed, values in enumerate(predictions):
        ranks = _Ranks(values, counts)
        covariance = np.einsum("dg,dg->d", ranks.centred, ranks.summed(weighted))
        result[:, seed] = _correlation(covariance / total[:, 0], ranks.variance / total[:, 0], label_ranks.variance / total[:, 0])
    return result


METRICS: dict[str, Metric] = {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}
"""Those of classes and numbers by their names."""


def each_draw(metric: Callable[[NDArray[Any], NDArray[Any]], float]) -> Metric:
    """Make any metric of (predictions, labels) one of counted examples, by calling it for every draw and seed."""

    def counted(predictions: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
        drawn = [np.repeat(np.arange(len(labels)), row.astype(np.int64)) for row in counts]
        return np.array([[metric(values[places], labels[places]) for values in predictions] for places in drawn])

    return counted


class _Ranks:
    """The ranks of some values in each draw, less their mean, which is that of 1 ... total."""

    def __init__(self, values: NDArray[Any], counts: Floats) -> None:
        distinct, self._group = np.unique(values, return_inverse=True)
        self._order = np.argsort(self._group, kind="stable")
        self._starts = np.searchsorted(self._group[self._order], np.arange(len(distinct)))
        drawn = self.summed(counts)
        self.centred = np.cumsum(drawn, axis=1) - drawn / 2 - _total(counts) / 2
        """(draws, distinct values) in rising order."""
        self.variance = np.einsum("dg,dg,dg->d", drawn, self.centred, self.centred)
        """(draws,) the sum of squares over the examples."""

    def summed(self, values: Floats) -> Floats:
        """(draws, examples) summed to (draws, distinct values)."""
        ordered = values[:, self._order]
        return ordered if len(self._starts) == len(self._order) else np.add.reduceat(ordered, self._starts, axis=1)

    def of_examples(self) -> Floats:
        """(draws, examples)."""
        return np.take(self.centred, self._group, axis=1)


def _total(counts: Floats) -> Floats:
    total: Floats = counts.sum(axis=1, keepdims=True)
    return total


def _standardised(values: Floats) -> Floats:
    """Values near 0 and 1, so that sums of squares lose no digits."""
    centred: Floats = values - values.mean(axis=-1, keepdims=True)
    largest: Floats = np.abs(centred).max(axis=-1, keepdims=True)
    return centred / np.where(largest > 0, largest, 1)


def _correlation(covariance: Floats, *spreads: Floats) -> Floats:
    floored = [np.where(spread > 1e-12, spread, 0) for spread in spreads]  # what rounding leaves of a constant
    return _ratio(covariance, np.sqrt(floored[0] * floored[1]))


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    ratio: Floats = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
    return ratio
