"""Embeddings of frozen encoders and what is read from them: linear probes and cosines."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from limbeck.encoders.embedding import embed
from limbeck.encoders.loading import load_encoder
from limbeck.tasks.examples import Example, Split
from limbeck.tasks.glue import GLUE, read_glue, read_split
from limbeck.tasks.holdout import drawn
from limbeck.tasks.probes import probe, similarity_probe
from limbeck.tasks.task import Task, TaskData

METALS, THINGS = ["copper", "stone", "water"], ["house", "river", "music", "paper", "light", "north", "island", "school"]
CLASSES = Task("metals", "classification", ("accuracy", "macro_f1"), tuple(METALS))


@pytest.fixture
def encoder(save_bert, tmp_path):
    return load_encoder(save_bert(tmp_path / "bert"))


@pytest.fixture
def roberta(save_roberta, tmp_path):
    return load_encoder(save_roberta(tmp_path / "roberta"))


@pytest.fixture
def sklearn():
    return pytest.importorskip("sklearn", reason="pip install 'limbeck[tasks]'")


def invented(seed, number, make):
    """Examples of what `make` makes of a random generator: texts and a label."""
    random = np.random.default_rng(seed)
    made = [make(random) for _ in range(number)]
    return tuple(Example(*texts, label, line) for line, (texts, label) in enumerate(made, start=1))


def task_of(task, make, train=150, dev=60):
    splits = {"train": invented(0, train, make), "dev": invented(1, dev, make)}
    return TaskData(task, {name: Split(name, Path(f"{name}.tsv"), examples) for name, examples in splits.items()})


def words(random, *given):
    return " ".join(random.permutation([*given, *random.choice(THINGS, 3)]))


def metal(random):
    label = int(random.integers(3))
    return (words(random, METALS[label]), None), label


def metals(random):
    labels = tuple(np.flatnonzero(random.integers(2, size=3)).tolist())
    return (words(random, *(METALS[label] for label in labels)), None), labels


def amount(random):
    times = int(random.integers(6))
    return (words(random, *["copper"] * times), None), float(times)


def same_metal(random):
    first, other = random.permutation(3)[:2]
    label, rest = int(random.integers(2)), words(random)
    return (f"{METALS[first]} {rest}", f"{METALS[first if label else other]} {rest}"), label


# Embeddings


@pytest.mark.parametrize("family", ["encoder", "roberta"])
def test_an_embedding_is_the_mean_of_the_last_states_whatever_else_is_embedded(family, request):
    encoder = request.getfixturevalue(family)
    sentences = ["copper", "the still was small and cold", "", "water " * 100, "copper"]
    embeddings = embed(encoder, sentences)
    assert torch.equal(embeddings[0], embeddings[4])
    for sentence, embedding in zip(sentences, embeddings, strict=True):
        ids = encoder.tokenizer(sentence, truncation=True, max_length=64, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            mean = encoder.model(input_ids=ids).last_hidden_state[0].mean(dim=0)
        torch.testing.assert_close(embedding, mean / mean.norm(), atol=1e-6, rtol=1e-5)
    assert torch.equal(embed(encoder, ["water " * 100], max_length=5), embed(encoder, ["water " * 50], max_length=5))
    assert embed(encoder, []).shape == (0, 32)


@pytest.mark.parametrize(("family", "segments"), [("encoder", True), ("roberta", False)])
def test_segments_go_only_to_an_encoder_that_has_them(family, segments, request):
    encoder = request.getfixturevalue(family)
    encoder.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert "token_type_ids" in encoder.tokenizer("copper")
    given = []
    encoder.model.register_forward_pre_hook(lambda _, __, inputs: given.extend(inputs), with_kwargs=True)
    embed(encoder, ["copper"])
    assert ("token_type_ids" in given) == segments


# Probes


@pytest.mark.parametrize(
    ("task", "make"),
    [
        (CLASSES, metal),
        (Task("all", "multi-label", ("micro_f1", "accuracy"), tuple(METALS)), metals),
        (Task("how much", "regression", ("pearson", "spearman"), range=(0.0, 5.0)), amount),
        (Task("same", "classification", ("accuracy", "f1"), ("other", "same")), same_metal),
    ],
)
def test_what_the_words_tell_is_read_from_their_embeddings(sklearn, encoder, task, make):
    data = task_of(task, make, 300)
    found = probe(encoder, data)
    assert list(found.scores) == list(task.metrics)
    assert found.scores[task.metrics[0]] > 0.9
    assert found.predictions.shape == found.labels.shape == data.targets("dev").shape
    assert (found.labels == data.targets("dev")).all()
    assert found.outputs.shape == (60, 1 if task.kind == "regression" else len(task.labels))
    assert found.strength > 0


def test_outputs_are_logits(sklearn, encoder):
    """Those of two classes too: the intercept is not regularised, so the mean probability is the share of each class."""
    for task, make in ((CLASSES, metal), (Task("same", "classification", ("accuracy",), ("other", "same")), same_metal)):
        data = task_of(task, make)
        data = replace(data, splits={**data.splits, "dev": data.split("train")})
        found = probe(encoder, data)
        probabilities = np.exp(found.outputs) / np.exp(found.outputs).sum(axis=1, keepdims=True)
        shares = np.bincount(found.labels) / len(found.labels)
        np.testing.assert_allclose(probabilities.mean(axis=0), shares, atol=2e-3)
        assert (found.predictions == probabilities.argmax(axis=1)).all()


def test_the_scored_split_decides_nothing(sklearn, encoder):
    data = task_of(CLASSES, metal)
    found = probe(encoder, data)
    turned = tuple(replace(example, label=2 - example.label) for example in data.split("dev").examples)
    other = probe(encoder, replace(data, splits={**data.splits, "dev": replace(data.split("dev"), examples=turned)}))
    assert (other.outputs == found.outputs).all()
    assert other.strength == found.strength
    assert other.scores != found.scores


def test_seed_and_texts_decide_and_not_the_order_of_the_file(sklearn, encoder):
    data = task_of(CLASSES, metal)
    turned = replace(data.split("train"), examples=data.split("train").examples[::-1])
    first = probe(encoder, data, limit=40, seed=1)
    again = probe(encoder, replace(data, splits={**data.splits, "train": turned}), limit=40, seed=1)
    assert again.strength == first.strength
    np.testing.assert_allclose(again.outputs, first.outputs, rtol=1e-3, atol=1e-3)
    assert not np.allclose(probe(encoder, data, limit=40, seed=2).outputs, first.outputs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("limit", [9, 50, 101])
def test_a_sample_has_each_class_in_its_share(limit):
    labels = [0] * 300 + [1] * 90 + [2] * 30
    split = Split("train", Path("a"), tuple(Example(f"text {line}", None, label, line) for line, label in enumerate(labels)))
    sample = drawn(split, limit, 0)
    assert len(set(sample)) == limit
    assert [example.line for example in sample] == sorted(example.line for example in sample)
    counts = Counter(example.label for example in sample)
    assert all(abs(counts[label] - limit * labels.count(label) / len(labels)) < 1 for label in range(3))
    turned = replace(split, examples=split.examples[::-1])
    assert {*drawn(turned, limit, 0)} == {*drawn(split, limit, 0)} == {*sample}
    assert drawn(split, limit, 1) != sample
    assert drawn(split, 420, 0) == split.examples


def test_a_class_that_no_training_example_has_is_never_predicted(sklearn, encoder):
    data = task_of(replace(CLASSES, labels=("gold", *METALS)), lambda random: (metal(random)[0], int(random.integers(1, 3))))
    found = probe(encoder, data)
    assert set(found.predictions) == {1, 2}
    assert np.isfinite(found.outputs).all()


def test_labels_that_none_or_all_training_examples_have(sklearn, encoder):
    task = Task("all", "multi-label", ("micro_f1",), ("always", "never", *METALS))
    data = task_of(task, lambda random: ((made := metals(random))[0], (0, *(label + 2 for label in made[1]))))
    found = probe(encoder, data)
    assert (found.predictions[:, 0] == 1).all()
    assert (found.predictions[:, 1] == 0).all()
    assert found.scores["micro_f1"] > 0.9


def test_cosines_rank_pairs_without_training(encoder):
    task = GLUE["stsb"].task
    data = task_of(task, lambda random: ((words(random), words(random, "copper")), float(random.random())))
    found = similarity_probe(encoder, data)
    first, second = (embed(encoder, [pair[side] for pair in pairs(data)]).numpy() for side in (0, 1))
    np.testing.assert_allclose(found.predictions, (first * second).sum(axis=1), atol=1e-6)
    order = np.argsort(np.argsort(found.predictions)), np.argsort(np.argsort(data.targets("dev")))
    assert found.scores["spearman"] == pytest.approx(np.corrcoef(*order)[0, 1])
    assert found.scores["pearson"] == pytest.approx(np.corrcoef(found.predictions, found.labels)[0, 1])
    assert found.strength is None


def pairs(data):
    return [(example.text, example.second) for example in data.split("dev").examples]


def test_what_cannot_be_probed_is_refused(sklearn, encoder, monkeypatch, refused):
    data = task_of(CLASSES, metal)
    with refused("no split named test"):
        probe(encoder, data, split="test")
    unlabelled = tuple(replace(example, label=None) for example in data.split("dev").examples)
    with refused("no labels"):
        probe(encoder, replace(data, splits={**data.splits, "dev": replace(data.split("dev"), examples=unlabelled)}))
    for limit in (0, 1, 2):
        with refused("train.tsv", f"{limit} examples are too few"):
            probe(encoder, data, limit=limit)
    with refused("metals", "pairs of texts a number"):
        similarity_probe(encoder, data)
    with refused("how much", "pairs"):
        similarity_probe(encoder, task_of(Task("how much", "regression", ("pearson",), range=(0.0, 5.0)), amount))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with refused("pip install 'limbeck[tasks]'"):
        probe(encoder, data)


def test_a_real_encoder_ranks_real_pairs(minilm, real_data):
    split = read_split(GLUE["stsb"], real_data / "glue" / "STS-B" / "dev.tsv", "dev")
    found = similarity_probe(load_encoder(minilm), TaskData(GLUE["stsb"].task, {"dev": split}))
    assert found.scores["spearman"] == pytest.approx(0.867, abs=0.001)


def test_a_probe_reads_sentiment_from_a_real_encoder(sklearn, minilm, real_data):
    data = read_glue("sst2", real_data / "glue")
    dev = data.split("dev")
    data = replace(data, splits={"train": data.split("train"), "dev": replace(dev, examples=drawn(dev, 200, 0))})
    assert probe(load_encoder(minilm), data, limit=800).scores["accuracy"] > 0.7
