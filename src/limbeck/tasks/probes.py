"""What an encoder's frozen sentence embeddings are worth: a cheap proxy for fine-tuning.

A linear model is trained on an embedding u of each text, or for a pair u, v on [u, v, |u - v|, u * v], as SentEval does
(https://arxiv.org/abs/1803.05449): logistic regression for classes, one for each label where several apply, ridge regression
for numbers. Without any training, pairs are ranked by the cosine of u and v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from limbeck.encoders.embedding import MAX_LENGTH
from limbeck.encoders.loading import Encoder
from limbeck.errors import CheckFailed, UserError
from limbeck.tasks.examples import Example, Split
from limbeck.tasks.holdout import drawn, hold_out
from limbeck.tasks.metrics import decided, score
from limbeck.tasks.similarity import cosines, embed_columns
from limbeck.tasks.task import Task, TaskData

if TYPE_CHECKING:
    from numpy.typing import NDArray

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
"""Factors of the squared weights in the summed loss, of which held-out training examples choose one."""
CHOOSING = 0.2
"""The share of the training examples that chooses among them."""
ITERATIONS = 10_000
"""More than logistic regression needs with any of them."""
IMPOSSIBLE = -1e9
"""The logit of a class that no training example has."""


@dataclass(frozen=True)
class Probed:
    """What an encoder's embeddings tell of the examples of a split."""

    scores: dict[str, float]
    """The task's metrics."""
    predictions: NDArray[Any]
    """Classes or numbers (examples,), or with several labels (examples, labels), in the form of `labels`."""
    outputs: NDArray[np.float64]
    """(examples, outputs) what they were decided from: a logit for each class or label, the one number, or the cosine."""
    labels: NDArray[Any]
    """The truth."""
    strength: float | None
    """The strength of the regularisation; None where nothing was trained."""


def probe(
    encoder: Encoder,
    data: TaskData,
    *,
    split: str = "dev",
    limit: int | None = None,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
) -> Probed:
    """Train a linear model on the embeddings of the split "train", and score it on another one.

    Features are standardised. A fifth of the training examples, divided by their texts, chooses how strongly the weights are
    regularised; then all of them train. The split that is scored decides nothing.

    Args:
        encoder: in evaluation mode; it stays as it is.
        data: a task of texts or pairs.
        split: what is scored.
        limit: how many training examples are used at most: a random sample in which each class has its share, which the seed
            and the texts decide.
        seed: of that sample.
        max_length: tokens that each text is truncated to.

    Raises:
        UserError: scikit-learn is missing, there is no such split or no label in it, or too few examples to train on.
        CheckFailed: the embeddings are not finite.
    """
    check_scikit_learn()
    scored = data.split(split)
    fitting, choosing = _divided(_limited(data.split("train"), limit, seed))
    parts = replace(data, splits={"fitting": fitting, "choosing": choosing, "scored": scored})
    labels = [parts.targets(name) for name in parts.splits]
    features = _features(encoder, [*fitting.examples, *choosing.examples, *scored.examples], max_length)
    known, asked = np.split(features, [len(features) - len(scored)])
    strength = _chosen(data.task, *np.split(known, [len(fitting)]), *labels[:2])
    outputs = _outputs(data.task, known, np.concatenate(labels[:2]), asked, strength)
    predictions = decided(data.task.kind, outputs)
    return Probed(score(data.task, predictions, labels[2]), predictions, outputs, labels[2], strength)


def check_scikit_learn() -> None:
    """Refuse to probe without the package that trains probes.

    Raises:
        UserError: scikit-learn is missing.
    """
    if find_spec("sklearn") is None:
        raise UserError("Probes need a package that is missing: pip install 'limbeck[tasks]'.")


def similarity_probe(encoder: Encoder, data: TaskData, split: str = "dev") -> Probed:
    """Rank a split's pairs by the cosine of their embeddings, without any training.

    Args:
        encoder: in evaluation mode.
        data: a task that gives pairs a number, such as STS-B.
        split: what is scored.

    Raises:
        UserError: the task is another one, or there is no such split or no label in it.
    """
    labels = data.targets(split)
    pairs = [(example.text, example.second) for example in data.split(split).examples if example.second is not None]
    if data.task.kind != "regression" or len(pairs) < len(labels):
        raise UserError(f"{data.task.name} does not give pairs of texts a number, which cosines are compared with; probe it.")
    similarities = cosines(encoder, pairs).double().numpy()
    return Probed(score(data.task, similarities, labels), similarities, similarities[:, None], labels, None)


def _limited(train: Split, limit: int | None, seed: int) -> Split:
    return train if limit is None else replace(train, examples=drawn(train, limit, seed))


def _divided(train: Split) -> tuple[Split, Split]:
    try:
        return hold_out(train, CHOOSING)
    except UserError as error:
        raise UserError(
            f"{train.path}: {len(train)} examples are too few to train a probe on; it takes three or more, and two of some class."
        ) from error


def _features(encoder: Encoder, examples: Sequence[Example], max_length: int) -> NDArray[np.float64]:
    """(examples, features)."""
    columns = [[example.text for example in examples]]
    if any(example.second is not None for example in examples):
        columns.append([example.second or "" for example in examples])
    sides = [side.double().numpy() for side in embed_columns(encoder, columns, max_length)]
    if len(sides) == 2:
        u, v = sides
        sides += [np.abs(u - v), u * v]
    features: NDArray[np.float64] = np.concatenate(sides, axis=1)
    if not np.isfinite(features).all():
        raise CheckFailed(f"The sentence embeddings of {encoder.source} are not all finite numbers, so nothing can be probed.")
    return features


def _chosen(
    task: Task, known: NDArray[np.float64], asked: NDArray[np.float64], targets: NDArray[Any], truth: NDArray[Any]
) -> float:
    """The strength that scores best on the features asked for; of several the greatest."""
    scores = {}
    for strength in STRENGTHS:
        predictions = decided(task.kind, _outputs(task, known, targets, asked, strength))
        scores[strength] = score(task, predictions, truth)[task.metrics[0]]
    return max(STRENGTHS, key=lambda strength: (scores[strength], strength))


def _outputs(
    task: Task, known: NDArray[np.float64], targets: NDArray[Any], asked: NDArray[np.float64], strength: float
) -> NDArray[np.float64]:
    """(examples, outputs) of a linear model trained on known features and their targets, for the features asked for."""
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(known)
    known, asked = scaler.transform(known), scaler.transform(asked)
    if task.kind == "regression":
        numbers: NDArray[np.float64] = Ridge(alpha=strength).fit(known, targets).predict(asked)
        return numbers[:, None]
    if task.kind == "multi-label":
        each = [_logits(known, applies, asked, strength, 2) for applies in targets.T]
        return np.stack([logits[:, 1] - logits[:, 0] for logits in each], axis=1)
    return _logits(known, targets, asked, strength, len(task.labels))


def _logits(
    known: NDArray[np.float64], classes: NDArray[Any], asked: NDArray[np.float64], strength: float, number: int
) -> NDArray[np.float64]:
    """(examples, number) of logistic regression."""
    from sklearn.linear_model import LogisticRegression

    seen = np.unique(classes)
    logits = np.full((len(asked), number), IMPOSSIBLE)
    logits[:, seen] = 0.0
    if len(seen) > 1:
        model = LogisticRegression(C=1 / strength, max_iter=ITERATIONS).fit(known, classes)
        scores = model.decision_function(asked)
        # Of two classes there is one score: by how much the second one's logit is above the first one's.
        logits[:, seen if scores.ndim > 1 else seen[1]] = scores
    return logits
