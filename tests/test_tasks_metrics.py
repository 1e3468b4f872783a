"""Metrics against values computed by hand and by scikit-learn and scipy, and labels matched by name."""

import math

import numpy as np
import pytest
import torch

from limbeck.errors import CheckFailed
from limbeck.tasks import metrics
from limbeck.tasks.labels import permutation
from limbeck.tasks.metrics import METRICS, chance, correct, decided, score
from limbeck.tasks.task import Task
from limbeck.training.best import Best

NLI = ("entailment", "neutral", "contradiction")
BINARY = Task("t", "classification", ("accuracy", "f1", "matthews"), ("no", "yes"))


def test_metrics_equal_values_computed_by_hand():
    predictions, labels = [1, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 0]  # two true, one false positive; two true, one false negative
    assert metrics.accuracy(predictions, labels) == pytest.approx(4 / 6)
    assert metrics.f1(predictions, labels) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metrics.matthews(predictions, labels) == pytest.approx((2 * 2 - 1 * 1) / 9)
    assert correct(predictions, labels).tolist() == [True, False, True, False, True, True]
    assert metrics.pearson([1, 2, 3], [1, 2, 4]) == pytest.approx(3 / math.sqrt(2 * 14 / 3))
    assert metrics.spearman([1, 2, 2, 9], [0.1, 0.3, 0.2, 0.4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_several_labels_are_counted_decision_by_decision():
    predictions, labels = np.array([[1, 0, 1], [0, 0, 0]]), np.array([[1, 1, 0], [0, 0, 0]])
    assert metrics.accuracy(predictions, labels) == 0.5
    assert correct(predictions, labels).tolist() == [False, True]
    assert metrics.micro_f1(predictions, labels) == pytest.approx(2 / 4)
    assert metrics.macro_f1(predictions, labels) == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(4))
def test_metrics_agree_with_scikit_learn_and_scipy(seed):
    reference = pytest.importorskip("sklearn.metrics", reason="pip install scikit-learn")
    stats = pytest.importorskip("scipy.stats", reason="pip install scipy")
    drawn = np.random.default_rng(seed)
    true, guess = drawn.integers(0, 4, (2, 50))
    assert metrics.macro_f1(guess, true) == pytest.approx(reference.f1_score(true, guess, average="macro"))
    assert metrics.micro_f1(guess, true) == pytest.approx(reference.f1_score(true, guess, average="micro"))
    assert metrics.micro_f1(guess, true) == pytest.approx(metrics.accuracy(guess, true))
    assert metrics.matthews(guess, true) == pytest.approx(reference.matthews_corrcoef(true, guess))
    true, guess = drawn.integers(0, 2, (2, 50))
    assert metrics.f1(guess, true) == pytest.approx(reference.f1_score(true, guess))
    true, guess = drawn.integers(0, 2, (2, 50, 3))
    for average in ("macro", "micro"):
        expected = reference.f1_score(true, guess, average=average)
        assert METRICS[f"{average}_f1"](guess, true) == pytest.approx(expected)
    true, guess = drawn.integers(0, 9, 50) / 2, drawn.normal(size=50).round(1)
    assert metrics.pearson(guess, true) == pytest.approx(stats.pearsonr(guess, true).statistic)
    assert metrics.spearman(guess, true) == pytest.approx(stats.spearmanr(guess, true).statistic)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("predictions", "labels"), [([1, 1, 1], [0, 1, 0]), ([0, 1, 0], [1, 1, 1]), ([0, 0], [0, 0]), ([1], [0])]
)
def test_a_constant_answer_scores_a_finite_number(name, predictions, labels):
    value = METRICS[name](predictions, labels)
    assert isinstance(value, float)
    assert math.isfinite(value)


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
@pytest.mark.parametrize("constant", [0, 1, 0.1])
def test_a_correlation_with_a_constant_is_zero_and_wins_over_nothing_better(name, constant):
    worthless = METRICS[name]([int(constant) if name == "matthews" else constant] * 7, [0, 1, 1, 0, 1, 0, 0])
    assert worthless == 0.0
    best = Best("highest").after(0.2, step=1)
    assert best.after(worthless, step=2) is best


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_correlations_do_not_depend_on_the_scale(name, scale):
    labels = np.array([0.5, 3.0, 1.0, 4.0])
    predictions = np.array([0.1, 0.2, 0.3, 0.4])
    assert METRICS[name](predictions * scale, labels) == pytest.approx(METRICS[name](predictions, labels))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_are_no_numbers_are_never_scored(value):
    with pytest.raises(CheckFailed, match="finite"):
        metrics.spearman([value, 1.0], [0.0, 1.0])
    for kind in ("classification", "multi-label", "regression"):
        with pytest.raises(CheckFailed, match="finite"):
            decided(kind, [[value], [1.0]])


def test_lists_of_other_lengths_are_not_compared():
    with pytest.raises(ValueError, match="shape"):
        metrics.accuracy([1], [1, 0])
    with pytest.raises(ValueError, match="shape"):
        metrics.accuracy([], [])


def test_outputs_become_predictions():
    logits = torch.tensor([[2.0, -1.0, 3.0], [-2.0, -0.5, -1.0]])
    assert decided("classification", logits).tolist() == [2, 1]
    assert decided("multi-label", logits).tolist() == [[1, 0, 1], [0, 0, 0]]
    assert decided("regression", [[0.5], [1.5]]).tolist() == [0.5, 1.5]
    with pytest.raises(ValueError, match="one output"):
        decided("regression", logits)


def test_chance_is_the_best_constant_answer():
    assert chance(BINARY, [1, 1, 1, 0]) == {"accuracy": 0.75, "f1": pytest.approx(6 / 7), "matthews": 0.0}
    assert chance(BINARY, [1, 0, 0, 0]) == {"accuracy": 0.75, "f1": 0.0, "matthews": 0.0}
    several = Task("t", "multi-label", ("accuracy",), ("a", "b"))
    assert chance(several, [[1, 0], [1, 0], [0, 1]]) == {"accuracy": pytest.approx(2 / 3)}
    number = Task("t", "regression", ("spearman", "pearson"), range=(0.0, 5.0))
    assert chance(number, [1.0, 2.0]) == {"spearman": 0.0, "pearson": 0.0}


def test_every_metric_can_be_computed_again_from_stored_predictions():
    drawn = np.random.default_rng(0)
    predictions, labels = drawn.integers(0, 2, (2, 40))
    sample = drawn.integers(0, 40, 40)
    again = score(BINARY, predictions[sample], labels[sample])
    assert again["accuracy"] == pytest.approx(correct(predictions, labels)[sample].mean())
    assert list(again) == list(BINARY.metrics)


@pytest.mark.parametrize(
    "outputs",
    [
        {0: "CONTRADICTION", 1: "Neutral", 2: "entailment"},
        {"0": "contradictory", "2": "entailment", "1": "neutral"},
        ["contradiction", "neutral", "ENTAILMENT"],
    ],
)
def test_outputs_are_matched_to_labels_by_name(outputs):
    order = permutation(outputs, NLI)
    assert order == (2, 1, 0)
    logits = np.array([[0.0, 1.0, 2.0]])
    assert NLI[logits[:, order].argmax()] == "entailment"


def test_not_entailment_and_digits_are_found():
    labels = ("entailment", "not_entailment")
    assert permutation(["Not-Entailment", "entailment"], labels) == (1, 0)
    assert permutation(["1", "0"], ("negative", "positive"), written=("0", "1")) == (1, 0)
    assert permutation(["NEG", "POS"], ("negative", "positive"), written=("0", "1")) == (0, 1)


def test_names_that_differ_only_in_case_are_told_apart():
    assert permutation(["us", "US"], ("US", "us")) == (1, 0)


def test_nameless_outputs_need_a_map(refused):
    with refused("LABEL_0, LABEL_1", "negative, positive", "LABEL_0=negative,LABEL_1=positive"):
        permutation({0: "LABEL_0", 1: "LABEL_1"}, ("negative", "positive"))
    meanings = {"LABEL_0": "positive", "LABEL_1": "negative"}
    assert permutation({0: "LABEL_0", 1: "LABEL_1"}, ("negative", "positive"), meanings=meanings) == (1, 0)
    assert permutation(["LABEL_0", "LABEL_1"], ("no", "yes"), meanings={"0": "yes", "1": "no"}) == (1, 0)


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [
        (["entailment", "neutral", "contradiction"], ("entailment", "not_entailment")),
        (["0", "1"], ("entailment", "not_entailment")),
        (["yes", "YES"], ("yes", "no")),
        (["Us", "uS"], ("US", "us")),
        (["good"], ("good", "bad")),
    ],
)
def test_what_does_not_match_is_refused_naming_both_sides(outputs, labels, refused):
    with refused(*outputs, *labels):
        permutation(outputs, labels)


@pytest.mark.parametrize(
    ("meanings", "problem"),
    [
        ({"LABEL_0": "good", "LABEL_1": "good"}, "(good, good) do not match the data's labels (good, bad)"),
        ({"LABEL_0": "good"}, "(good, LABEL_1) do not match the data's labels (good, bad)"),
        ({"LABEL_2": "good"}, "no output called LABEL_2; its outputs are LABEL_0, LABEL_1"),
        ({"2": "good"}, "no output called 2"),
        ({"LABEL_0": "fine"}, "no label fine; its labels are good, bad"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(meanings, problem, refused):
    with refused(problem):
        permutation(["LABEL_0", "LABEL_1"], ("good", "bad"), meanings=meanings)
