"""Comparing models: metrics of resampled examples, intervals that cover, and what they say."""

from functools import partial

import numpy as np
import pytest

from limbeck.errors import CheckFailed
from limbeck.tasks import weighted
from limbeck.tasks.statistics import Comparison, Mean, compare, holm

METRICS = ["accuracy", "f1", "matthews", "pearson", "spearman", "mean_score"]


def data(metric, seeds=3, examples=60, seed=0):
    """Predictions of that many seeds and labels, of the kind that a metric reads, with many equal values."""
    drawn = np.random.default_rng(seed)
    if metric in ("pearson", "spearman", "mean_score"):
        labels = drawn.integers(0, 6, examples) / 2
        return (labels + drawn.normal(size=(seeds, examples))).round(1), labels
    labels = drawn.integers(0, 3 if metric == "matthews" else 2, examples)
    return np.where(drawn.random((seeds, examples)) < 0.6, labels, drawn.integers(0, 2, (seeds, examples))), labels


def plain(metric):
    """The metric of one seed as others compute it."""
    stats, scores = pytest.importorskip("scipy.stats"), pytest.importorskip("sklearn.metrics")
    return {
        "accuracy": lambda predictions, labels: scores.accuracy_score(labels, predictions),
        "f1": lambda predictions, labels: scores.f1_score(labels, predictions),
        "matthews": lambda predictions, labels: scores.matthews_corrcoef(labels, predictions),
        "pearson": lambda predictions, labels: stats.pearsonr(predictions, labels).statistic,
        "spearman": lambda predictions, labels: stats.spearmanr(predictions, labels).statistic,
        "mean_score": lambda predictions, labels: predictions.mean(),
    }[metric]


# Metrics of counted examples


@pytest.mark.parametrize("metric", METRICS)
def test_counted_examples_are_repeated_examples(metric):
    predictions, labels = data(metric)
    drawn = np.random.default_rng(1).integers(0, 60, (5, 60))
    counts = np.stack([np.bincount(places, minlength=60) for places in drawn]).astype(float)
    expected = [[plain(metric)(values[places], labels[places]) for values in predictions] for places in drawn]
    np.testing.assert_allclose(getattr(weighted, metric)(predictions, labels, counts), expected, rtol=1e-9)
    np.testing.assert_allclose(weighted.each_draw(plain(metric))(predictions, labels, counts), expected, rtol=1e-9)


@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman", "f1"])
def test_what_does_not_vary_scores_nothing(metric):
    labels = np.array([0.0, 1.0, 1.0])
    score = partial(getattr(weighted, metric), np.zeros((1, 3)), labels)
    assert score(np.ones((1, 3))).item() == 0
    assert score(np.array([[3.0, 0, 0]])).item() == 0


def test_one_example_drawn_again_and_again_does_not_vary():
    drawn = np.random.default_rng(0)
    for metric in (weighted.pearson, weighted.spearman):
        assert not metric(drawn.normal(size=(1, 50)), drawn.normal(size=50), 7 * np.eye(50)).any()


def test_correlations_do_not_depend_on_unit_and_origin():
    predictions, labels = data("pearson")
    counts = np.random.default_rng(0).multinomial(60, [1 / 60] * 60, 4).astype(float)
    for metric in (weighted.pearson, weighted.spearman):
        expected = metric(predictions, labels, counts)
        np.testing.assert_allclose(metric(1e6 + 1e-3 * predictions, 1e3 * labels, counts), expected, rtol=1e-6)


# Comparing


@pytest.mark.parametrize("metric", METRICS)
def test_a_model_does_not_differ_from_itself(metric):
    predictions, labels = data(metric)
    result = compare(predictions, predictions[[2, 0, 1]], labels, getattr(weighted, metric), draws=200)
    assert (result.difference, result.low, result.high, result.p_value, result.detectable) == (0, 0, 0, 1, 0)
    assert result.text() == "no difference shown (0.0 to 0.0)"


@pytest.mark.parametrize("metric", METRICS)
def test_swapping_the_models_turns_every_sign(metric):
    first, labels = data(metric, seeds=3)
    second, _ = data(metric, seeds=2, seed=5)
    there = compare(first, second, labels, getattr(weighted, metric), draws=500)
    back = compare(second, first, labels, getattr(weighted, metric), draws=500)
    assert (back.difference, back.low, back.high) == pytest.approx((-there.difference, -there.high, -there.low))
    assert (back.first, back.second, back.seeds) == (there.second, there.first, there.seeds[::-1])
    assert (back.p_value, back.detectable) == pytest.approx((there.p_value, there.detectable))


def test_neither_the_order_of_seeds_nor_the_names_of_classes_matter():
    predictions, labels = data("matthews", seeds=4)
    expected = compare(predictions[:2], predictions[2:], labels, weighted.matthews, draws=300)
    turned = compare(predictions[[1, 0]], predictions[[3, 2]], labels, weighted.matthews, draws=300)
    assert turned.low == pytest.approx(expected.low)
    named = compare(5 - predictions[:2], 5 - predictions[2:], 5 - labels, weighted.matthews, draws=300)
    assert named.difference == pytest.approx(expected.difference)


def test_the_same_draws_each_time_and_others_with_another_seed():
    predictions, labels = data("accuracy", seeds=6)
    run = partial(compare, predictions[:3], predictions[3:], labels, weighted.accuracy, draws=300)
    assert run() == run()
    assert run().low != run(seed=1).low


def test_any_metric_will_do():
    predictions, labels = data("accuracy", seeds=4)
    counted = weighted.each_draw(lambda predictions, labels: float((predictions == labels).mean()))
    ours = compare(predictions[:2], predictions[2:], labels, counted, draws=300)
    assert ours == pytest.approx(compare(predictions[:2], predictions[2:], labels, weighted.accuracy, draws=300))


def test_memory_is_bounded_without_changing_the_draws(monkeypatch):
    predictions, labels = data("accuracy", seeds=4)
    run = partial(compare, predictions[:2], predictions[2:], labels, weighted.accuracy, draws=300)
    expected = run()
    monkeypatch.setattr("limbeck.tasks.statistics.CELLS", 600)
    assert run() == expected


def simulated(drawn, *, seeds, examples=100, spread=0.0, hardness=1.0, noise=1.0):
    """Scores (seeds, examples) of two models that are equally good; examples are hard or easy for both."""
    hard = drawn.normal(0, hardness, examples)
    shapes = [(count, examples) for count in np.broadcast_to(seeds, 2)]
    return [hard + drawn.normal(0, spread, (shape[0], 1)) + drawn.normal(0, noise, shape) for shape in shapes]


@pytest.mark.parametrize(
    "design",
    [
        {"seeds": 1},
        {"seeds": 3, "noise": 0.3},
        {"seeds": 5, "spread": 0.3, "noise": 0.3},
        {"seeds": (3, 5), "spread": 0.1},
        {"seeds": (1, 4), "hardness": 3, "noise": 0.5},
        {"seeds": 3, "spread": 1, "noise": 0},
    ],
)
def test_intervals_cover_and_p_values_are_no_smaller_than_chance_has_them(design):
    drawn = np.random.default_rng(0)
    labels = np.zeros(100)
    results = [compare(*simulated(drawn, **design), labels, weighted.mean_score, draws=300, seed=run) for run in range(400)]
    covered = np.mean([result.low <= 0 <= result.high for result in results])
    assert 0.915 <= covered <= 0.985  # 0.95 give or take three standard errors
    p_values = np.array([result.p_value for result in results])
    for level in (0.05, 0.2, 0.5, 0.8):
        assert -0.15 <= np.mean(p_values < level) - level <= 0.06  # seeds' spread is never taken for less than nothing


def test_p_values_of_examples_alone_are_uniform():
    drawn = np.random.default_rng(0)
    labels = np.zeros(100)
    p_values = [compare(*simulated(drawn, seeds=1), labels, weighted.mean_score, draws=300).p_value for _ in range(500)]
    assert np.histogram(p_values, np.linspace(0, 1, 6))[0] == pytest.approx([100] * 5, abs=30)


def test_true_differences_are_covered_as_well():
    drawn = np.random.default_rng(0)
    covered = []
    for run in range(300):
        labels = drawn.integers(0, 2, 150)
        first, second = (np.where(drawn.random((3, 150)) < share, labels, 1 - labels) for share in (0.9, 0.8))
        result = compare(first, second, labels, weighted.accuracy, draws=300, seed=run)
        covered.append(result.low <= 0.1 <= result.high)
    assert 0.915 <= np.mean(covered) <= 0.985


def test_the_smallest_detectable_difference_is_shown_four_times_in_five():
    drawn = np.random.default_rng(0)
    labels = np.zeros(100)
    detectable = np.mean(
        [compare(*simulated(drawn, seeds=3), labels, weighted.mean_score, draws=300).detectable for _ in range(50)]
    )
    shown = 0
    for run in range(200):
        first, second = simulated(drawn, seeds=3)
        shown += compare(first + detectable, second, labels, weighted.mean_score, draws=300, seed=run).low > 0
    assert shown / 200 == pytest.approx(0.8, abs=0.1)


def test_seeds_that_differ_make_a_difference_uncertain():
    drawn = np.random.default_rng(0)
    scores = drawn.normal(size=200)
    even = compare(scores + np.full((3, 1), 0.1), scores[None], np.zeros(200), weighted.mean_score)
    uneven = compare(scores + np.array([[0], [0.1], [0.2]]), scores[None], np.zeros(200), weighted.mean_score)
    assert even.difference == pytest.approx(uneven.difference)
    assert even.text() == "better by 10.0–10.0"
    assert uneven.text().startswith("no difference shown")


def test_examples_must_be_the_same(refused):
    with refused("10", "9", "same examples"):
        compare(np.zeros((2, 10)), np.zeros((2, 9)), np.zeros(10), weighted.accuracy)


def test_a_metric_without_a_value_stops_it():
    broken = weighted.each_draw(lambda predictions, labels: np.nan)
    with pytest.raises(CheckFailed, match="no value"):
        compare(np.zeros((1, 4)), np.ones((1, 4)), np.zeros(4), broken, draws=10)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.001, 0.9]) == pytest.approx([1, 0.003, 1])
    assert holm([]) == []


# In words


def comparison(low, high, p_value=0.01):
    middle = (low + high) / 2
    return Comparison(Mean(0.8, None), Mean(0.8 - middle, None), middle, low, high, p_value, 0.02, (3, 3), 100)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.012, 0.034, "better by 1.2–3.4"),
        (-0.034, -0.012, "worse by 1.2–3.4"),
        (-0.004, 0.011, "no difference shown (−0.4 to 1.1)"),
        (-0.0001, 0.011, "no difference shown (0.0 to 1.1)"),
    ],
)
def test_an_interval_in_words(low, high, expected):
    assert comparison(low, high).text() == expected


def test_nothing_is_claimed_beyond_the_corrected_p_value():
    assert comparison(0.012, 0.034).text(p_value=0.06) == "no difference shown (1.2 to 3.4)"


def test_mean_and_deviation_of_seeds():
    assert Mean.of([0.8, 0.9]) == Mean(pytest.approx(0.85), pytest.approx(0.0707107))
    assert Mean.of([0.8, 0.9]).text() == "85.0 ± 7.1"
    assert Mean.of([0.831]).text() == "83.1"
    assert Mean.of([1, 3]).text(scale=1) == "2.0 ± 1.4"
