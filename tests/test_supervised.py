"""Training from labels: each loss is torch's own, rows are grouped by length, and a run may end early."""

from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    RobertaForSequenceClassification,
)

import limbeck
from limbeck.data.batches import LabelledSource, Row
from limbeck.encoders.shape import EncoderShape
from limbeck.objectives.supervised import ENDS, LABELS, STARTS, AnswerSpan, Classification, MultiLabel, Regression
from limbeck.tasks.finetune import finetune, read_predictions
from limbeck.training.loop import Loop
from limbeck.training.stage import Stage, Tuner, build_stage, mean_loss
from limbeck.training.table import TableGradient
from runs import equal, log_of, weights

LENGTHS = [9, 4, 12, 7, 4, 10, 5]
DRAW = torch.Generator().manual_seed(0)
CLASSES = torch.tensor([2, 0, 1, 1, 0, 2, 1])
APPLYING = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 1]]).float()
NUMBERS = torch.tensor([31.0, 55.5, 48.0, 62.25, 40.0, 51.0, 44.5])
SPANS = {STARTS: torch.tensor([3, 0, 8, 2, 1, 0, 4]), ENDS: torch.tensor([5, 0, 11, 2, 3, 0, 4])}


def source_of(lengths, targets, seed=0):
    """Rows of random tokens."""
    draw = np.random.default_rng(0)
    rows = [Row(draw.integers(5, 100, length), length) for length in lengths]
    return LabelledSource(rows, targets, pad=0, segments=False, seed=seed)


def weighted_cross_entropy(logits, labels):
    return functional.cross_entropy(logits, labels, logits.new_tensor([0.2, 1.5, 0.7]))


OBJECTIVES = {
    "classes": (Classification(), {LABELS: CLASSES}, functional.cross_entropy),
    "weighted classes": (Classification((0.2, 1.5, 0.7)), {LABELS: CLASSES}, weighted_cross_entropy),
    "several labels": (
        MultiLabel(),
        {LABELS: APPLYING},
        lambda logits, labels: functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype)),
    ),
    "weighted labels": (
        MultiLabel((3.0, 0.5, 1.0)),
        {LABELS: APPLYING},
        lambda logits, labels: functional.binary_cross_entropy_with_logits(
            logits, labels.to(logits.dtype), pos_weight=logits.new_tensor([3.0, 0.5, 1.0])
        ),
    ),
    "numbers": (
        Regression(mean=48.0, deviation=9.0),
        {LABELS: NUMBERS},
        lambda logits, labels: functional.mse_loss(logits[:, 0], (labels - 48.0) / 9.0),
    ),
}
every_objective = pytest.mark.parametrize(("objective", "targets", "reference"), OBJECTIVES.values(), ids=OBJECTIVES)


@pytest.fixture
def tuned(tiny_bert):
    """Build the stage of an objective, with a tiny model in float64 whose dropout is off."""

    def make(objective, targets, lengths=LENGTHS):
        if isinstance(objective, AnswerSpan):
            model = tiny_bert(BertForQuestionAnswering)
        else:
            model = tiny_bert(BertForSequenceClassification, num_labels=1 if isinstance(objective, Regression) else 3)
        return Stage(Tuner(model.double(), objective), source_of(lengths, targets))

    return make


def gradients(stage):
    """The gradients that there are, which are taken away."""
    found = {name: each.grad for name, each in stage.module.named_parameters() if each.grad is not None}
    stage.module.zero_grad()
    return found


# ---------------------------------------------------------------- losses


@every_objective
def test_each_loss_is_that_of_torch(tuned, objective, targets, reference):
    stage = tuned(objective, targets)
    batch = stage.source.collate(list(range(len(LENGTHS))))
    logits = stage.module.student(batch["input_ids"], batch["attention_mask"]).logits
    torch.testing.assert_close(stage.loss(batch, None), reference(logits, batch[LABELS]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["classes", "several labels", "numbers"])
def test_each_loss_is_that_of_transformers(tuned, name):
    objective, targets, _ = OBJECTIVES[name]
    stage = tuned(objective, targets)
    batch = stage.source.collate(list(range(len(LENGTHS))))
    labels = (batch[LABELS] - objective.mean) / objective.deviation if name == "numbers" else batch[LABELS]
    kinds = {"classes": "single_label_classification", "several labels": "multi_label_classification", "numbers": "regression"}
    model = stage.module.student
    model.config.problem_type = kinds[name]
    theirs = model(batch["input_ids"], batch["attention_mask"], labels=labels.double() if name != "classes" else labels).loss
    torch.testing.assert_close(stage.loss(batch, None), theirs, rtol=1e-10, atol=0)


def test_an_answers_loss_is_that_of_transformers_without_padding_and_the_same_with_it(tuned):
    stage = tuned(AnswerSpan(), SPANS)
    batch = stage.source.collate(list(range(len(LENGTHS))))
    assert not batch["attention_mask"].all()
    stage.loss(batch, None).backward()
    padded = gradients(stage)
    alone = []
    for example, (first, last) in enumerate(zip(SPANS[STARTS], SPANS[ENDS], strict=True)):
        row = stage.source.collate([example])["input_ids"]
        alone.append(stage.module.student(row, start_positions=first[None], end_positions=last[None]).loss)
    torch.testing.assert_close(stage.loss(batch, None), torch.stack(alone).mean(), rtol=1e-10, atol=0)
    torch.stack(alone).mean().backward()
    torch.testing.assert_close(padded, gradients(stage), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("objective", "targets"), [*(case[:2] for case in OBJECTIVES.values()), (AnswerSpan(), SPANS)])
def test_micro_batches_of_any_size_add_up_to_one_batch(tuned, objective, targets):
    stage = tuned(objective, targets)
    whole = stage.source.collate(list(range(len(LENGTHS))))
    stage.loss(whole, None).backward()
    expected = gradients(stage)
    parts = [stage.source.collate(examples) for examples in ([0, 1], [2], [3, 4, 5], [6])]
    local = [stage.module.counts(part) for part in parts]
    counts = {term: torch.stack([count[term] for count in local]).sum() for term in stage.weights}
    for part in parts:
        mean_loss(stage.module(part, None), counts, stage.weights).backward()
    torch.testing.assert_close(gradients(stage), expected, rtol=1e-8, atol=1e-12)


def test_weights_that_sum_to_less_than_one_divide_as_they_are(tuned):
    stage = tuned(Classification((0.2, 1.5, 0.7)), {LABELS: CLASSES})
    batch = stage.source.collate([1])  # of the class that counts a fifth
    logits = stage.module.student(batch["input_ids"]).logits
    torch.testing.assert_close(stage.loss(batch, None), functional.cross_entropy(logits, batch[LABELS]), rtol=1e-6, atol=0)


@every_objective
def test_a_loss_is_computed_in_float32_at_least(objective, targets, reference):
    outputs = 1 if isinstance(objective, Regression) else 3
    rough = torch.randn(len(LENGTHS), outputs, generator=DRAW, dtype=torch.bfloat16)
    ((term, loss),) = objective.sums(SimpleNamespace(logits=rough), targets).items()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss / objective.counts(targets)[term], reference(rough.float(), targets[LABELS]))


# ---------------------------------------------------------------- finishing


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_finished_model_predicts_in_the_labels_own_units(tiny_bert, tiny_fairseq, bpe_tokenizer, family):
    if family == "bert":
        model = tiny_bert(BertForSequenceClassification, num_labels=1).double()
    else:
        model = tiny_fairseq(RobertaForSequenceClassification, bpe_tokenizer, num_labels=1).double()
    ids = torch.randint(5, 100, (6, 11), generator=DRAW)
    before, others = model(ids).logits, model.base_model(ids).last_hidden_state
    Tuner(model, Regression(mean=-48.0, deviation=9.0)).finish(model)
    torch.testing.assert_close(model(ids).logits, 9.0 * before - 48.0, rtol=1e-10, atol=1e-10)
    assert torch.equal(model.base_model(ids).last_hidden_state, others)


@pytest.mark.parametrize("objective", [Classification((0.2, 1.5, 0.7)), MultiLabel()])
def test_finishing_leaves_a_classifier_as_it_is(tiny_bert, objective):
    model = tiny_bert(BertForSequenceClassification, num_labels=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Tuner(model, objective).finish(model)
    assert equal(model.state_dict(), before)


def test_finishing_leaves_the_student_of_a_distillation_as_it_is(tiny_bert):
    teacher, student = tiny_bert(seed=1), tiny_bert(num_hidden_layers=2)
    objective = limbeck.MiniLMv2().resolve(EncoderShape.of(teacher.config), EncoderShape.of(student.config))
    stage = build_stage(student, teacher, objective, source_of(LENGTHS, {}))
    before = {name: value.clone() for name, value in student.state_dict().items()}
    stage.module.finish(student)
    assert equal(student.state_dict(), before)


# ---------------------------------------------------------------- rows


def padding(lengths, order, size=32):
    """The share of padding in batches that follow each other over all epochs."""
    taken = lengths[order]
    return 1 - taken.sum() / sum(batch.max() * len(batch) for batch in np.split(taken, range(size, len(taken), size)))


@pytest.mark.parametrize(("count", "mean", "deviation", "most"), [(8551, 11, 4, 0.05), (3668, 53, 13, 0.05), (1000, 30, 20, 0.1)])
@pytest.mark.parametrize("size", [16, 32, 64])
def test_every_epoch_draws_each_example_once_with_little_padding(count, mean, deviation, most, size):
    lengths = np.random.default_rng(0).normal(mean, deviation, count).round().clip(4, 128).astype(int)
    source = source_of(lengths, {})
    epochs = [source.examples(epoch * count, count) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert all(one != other for one, other in pairwise(epochs))
    order = np.concatenate(epochs)
    mixed = np.random.default_rng(1).permutation(order)
    assert padding(lengths, order, size) < min(most, padding(lengths, mixed, size) / 4)


def test_a_batch_holds_what_belongs_to_its_rows():
    source = source_of(LENGTHS, {LABELS: CLASSES, **SPANS})
    batch = source.collate([4, 0, 6])
    assert batch[LABELS].tolist() == [0, 2, 1]
    assert batch[STARTS].tolist() == [1, 3, 4]
    for row, example in zip(batch["input_ids"], [4, 0, 6], strict=True):
        assert row[: LENGTHS[example]].tolist() == source.collate([example])["input_ids"][0].tolist()


def test_the_fingerprint_tells_labels_rows_and_their_order():
    rows = [Row(np.array([2, 7, 8, 3]), 4), Row(np.array([2, 9, 3, 6, 3]), 3), Row(np.array([2, 5, 3]), 3)]

    def fingerprint(rows=rows, **targets):
        targets = {LABELS: torch.tensor([0, 1, 1]), **targets}
        return LabelledSource(rows, targets, pad=0, segments=True, seed=0).fingerprint

    assert fingerprint() == fingerprint()
    changed = [
        fingerprint(labels=torch.tensor([0, 1, 0])),
        fingerprint(labels=torch.tensor([0.0, 1.0, 1.0])),
        fingerprint(starts=torch.tensor([0, 0, 0])),
        fingerprint([Row(np.array([2, 7, 9, 3]), 4), *rows[1:]]),
        fingerprint([rows[0], Row(rows[1].ids, 4), rows[2]]),
        fingerprint([rows[1], rows[0], rows[2]], labels=torch.tensor([1, 0, 1])),
        fingerprint([Row(np.array([2, 7, 8]), 3), Row(np.array([3, 2, 9, 3, 6, 3]), 3), rows[2]]),
    ]
    assert len({fingerprint(), *changed}) == 1 + len(changed)


# ---------------------------------------------------------------- runs

TUNING = {
    **{"steps": 12, "batch_size": 8, "max_length": 16, "precision": "float32", "learning_rate": 1e-3, "dropout": 0.1},
    **{"eval_every": 1, "log_every": 1, "quiet": True, "text": ["text"], "label": "label"},
}


@pytest.fixture
def tune(teacher, tiny_tokenizer, tmp_path):
    """Fine-tune the tiny teacher on 80 texts; keyword arguments change the settings, `label` names what is learned."""
    words = sorted(word for word in tiny_tokenizer.get_vocab() if word.isalpha() and len(word) > 2)
    draw = np.random.default_rng(0)
    lines = ["text,label,number"]
    for _ in range(80):
        text = draw.choice(words, size=draw.integers(2, 12))
        lines.append(f"{' '.join(text)},{'yes' if min(text) < 'c' else 'no'},{40 + 3.5 * len(text)}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines))

    def run(output="run", **changes):
        return finetune(teacher, data=[table], output=tmp_path / output, **{**TUNING, **changes})

    return run


@pytest.fixture
def scripted(monkeypatch):
    """The evaluations of a run, whatever the model."""

    def use(*values, metric="accuracy"):
        script = iter(values)

        def turns(*_):
            yield from ()
            return {metric: next(script)}

        monkeypatch.setattr("limbeck.tasks.predict.TaskEvaluation.turns", turns)

    return use


@contextmanager
def killed(place, when=lambda _: True):
    """What is at `place` does not come back."""
    with pytest.MonkeyPatch.context() as patch:
        owner, name = place
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *given: 1 // 0 if when(given[0]) else original(*given))
        with pytest.raises(ZeroDivisionError):
            yield


def test_micro_batches_make_the_same_run_as_one_batch(tune):
    settings = {"dropout": 0.0, "class_weights": "balanced", "eval_every": "end", "steps": 5}
    whole, parts = tune("whole", **settings), tune("parts", micro_batch_size=3, **settings)
    losses = [[record["loss"] for record in log_of(run) if "loss" in record] for run in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_run_ends_when_nothing_gets_better(tune, scripted):
    scripted(0.1, 0.4, 0.2, 0.4, 0.3)  # an equal one is no better
    run = tune(patience=3, checkpoint_every=1, keep_checkpoints=9)
    assert run.summary["training"]["steps"] == 5
    assert run.summary["best"] == {"step": 2, "accuracy": 0.4}
    assert [record["dev_accuracy"] for record in log_of(run) if "dev_accuracy" in record] == [0.1, 0.4, 0.2, 0.4, 0.3]
    assert equal(weights(run), load_file(run.path / "checkpoints" / "step-00000005" / "student" / "model.safetensors"))


def test_patience_counts_evaluations_and_not_steps(tune):
    run = tune(patience=2, eval_every=3, learning_rate=1e-12)  # always the same accuracy
    assert run.summary["training"]["steps"] == 9
    assert run.summary["best"]["step"] == 3


def test_a_run_without_patience_takes_all_of_its_steps(tune, scripted):
    scripted(*[0.4] * 12)
    assert tune().summary["training"]["steps"] == 12


@pytest.mark.parametrize("step", [2, 4, 5])
def test_a_killed_run_ends_at_the_same_step_with_the_same_weights(tune, scripted, step):
    settings = {"patience": 3, "checkpoint_every": 1}
    values = (0.1, 0.4, 0.2, 0.4, 0.3)
    scripted(*values)
    alone = tune("alone", **settings)
    scripted(*values)
    with killed((Loop, "_step"), lambda loop: loop.progress.step == step - 1):
        tune("killed", **settings)
    scripted(*values[step - 1 :])
    resumed = tune("killed", resume="auto", **settings)
    assert resumed.summary["training"]["steps"] == alone.summary["training"]["steps"] == 5
    assert resumed.summary["best"] == alone.summary["best"]
    assert equal(weights(resumed), weights(alone))


def test_a_run_that_was_over_when_killed_trains_no_further(tune, scripted):
    settings = {"patience": 3, "checkpoint_every": 1}
    scripted(0.1, 0.4, 0.2, 0.4, 0.3)
    with killed((Loop, "_out_of_patience"), lambda loop: loop.progress.step == 5):
        tune(**settings)
    scripted()
    resumed = tune(resume="auto", **settings)
    assert resumed.summary["training"]["steps"] == 5
    assert equal(weights(resumed), load_file(resumed.path / "checkpoints" / "step-00000005" / "student" / "model.safetensors"))


def test_the_highest_metric_is_the_best_and_both_models_predict_in_the_labels_units(tune, scripted):
    scripted(-0.5, -0.2, -0.4, metric="spearman")
    run = tune(label="number", keep_best=True, steps=3, checkpoint_every=1, learning_rate=1e-2)
    assert run.summary["best"] == {"step": 2, "spearman": -0.2}
    objective = run.summary["task"]["objective"]
    assert 45 < objective["mean"] < 80
    state = {}
    for folder, step in ((run.student, 3), (run.path / "best", 2)):
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        state[step] = model.classifier.weight
        trained = load_file(run.path / "checkpoints" / f"step-0000000{step}" / "student" / "model.safetensors")
        torch.testing.assert_close(model.classifier.weight, objective["deviation"] * trained["classifier.weight"])
        bias = objective["deviation"] * trained["classifier.bias"] + objective["mean"]
        torch.testing.assert_close(model.classifier.bias, bias)
    assert not torch.equal(state[2], state[3])


def test_predictions_are_those_of_the_model_that_is_given_away(tune, tmp_path):
    run = tune(label="number", steps=6, eval_every="end", learning_rate=1e-2)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(run.student), AutoTokenizer.from_pretrained(run.student)
    texts = [line.split(",")[0] for line in (tmp_path / "table.csv").read_text().splitlines()]
    predictions = read_predictions(run.path, "dev")
    assert predictions
    for entry in predictions:
        inputs = tokenizer(texts[entry["line"] - 1], truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            assert model(**inputs).logits.item() == pytest.approx(entry["prediction"], rel=1e-3)


# ---------------------------------------------------------------- the table's gradient


@pytest.fixture
def tables():
    """Two equal tables in float64, the first kept in place, the other left to autograd."""
    pair = [torch.nn.Embedding(50, 8, padding_idx=0).double() for _ in range(2)]
    pair[1].load_state_dict(pair[0].state_dict())
    with TableGradient(pair[0], in_place=True) as kept, TableGradient(pair[1], in_place=False) as usual:
        yield list(zip(pair, (kept, usual), strict=True))


def looked_up(weight, looked):
    return functional.linear(looked, looked.new_ones(3, 8).cumsum(0)).square().sum()


def read_as_a_matrix(weight, looked):
    return (looked.detach() @ weight.T).square().sum()


def tied(weight, looked):
    return torch.logsumexp(looked @ weight.T, dim=-1).sum()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["float64", "bf16"])
@pytest.mark.parametrize(
    "micro_batches",
    [[looked_up], [looked_up, looked_up], [tied, tied], [looked_up, read_as_a_matrix], [read_as_a_matrix, looked_up, looked_up]],
    ids=["one", "two", "tied", "sparse, then dense", "dense, then sparse"],
)
def test_a_table_filled_in_place_has_the_gradient_that_autograd_gives(tables, micro_batches, dtype, tolerance):
    for _ in range(3):
        batches = [torch.randint(0, 20, (4, 9), generator=DRAW) for _ in micro_batches]
        for table, gradient in tables:
            table.to(dtype)
            for loss, ids in zip(micro_batches, batches, strict=True):
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
                    value = loss(table.weight, table(ids))
                value.backward()
            gradient.fill()
        kept, usual = (table.weight.grad for table, _ in tables)
        assert kept.layout == torch.strided
        torch.testing.assert_close(kept, usual, rtol=tolerance, atol=tolerance * float(usual.abs().max()))
        assert usual.any()
        for table, gradient in tables:
            torch.nn.utils.clip_grad_norm_(table.parameters(), 1e-3)
            gradient.clear()
            table.zero_grad()


def test_the_padding_tokens_row_has_no_gradient(tables):
    for table, gradient in tables:
        table(torch.tensor([[3, 4, 0, 0]])).sum().backward()
        gradient.fill()
        assert table.weight.grad.sum(dim=1).nonzero().flatten().tolist() == [3, 4]


def test_where_the_whole_table_has_a_gradient_nothing_is_kept(tables):
    (table, gradient), _ = tables
    tied(table.weight, table(torch.tensor([[1, 2, 2]]))).backward()
    assert table.weight.grad.layout == torch.strided
    assert gradient.kept_bytes == 0


def test_a_frozen_table_is_left_alone():
    table = torch.nn.Embedding(20, 8).requires_grad_(False)
    factors = torch.ones(8, requires_grad=True)
    with TableGradient(table, in_place=True) as gradient:
        (table(torch.tensor([[1, 2, 2]])) * factors).sum().backward()
        gradient.fill()
        assert table.weight.grad is None
        gradient.clear()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_table_is_afterwards_as_it_was(sparse):
    table = torch.nn.Embedding(20, 8, sparse=sparse)
    gradient = TableGradient(table, in_place=True)

    def fail():
        with gradient:
            table(torch.tensor([1, 2])).sum().backward()
            assert gradient.kept_bytes == table.weight.nbytes
            assert table.weight.grad is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert table.sparse == sparse
    assert gradient.kept_bytes == 0
    table(torch.tensor([1, 2])).sum().backward()
    assert table.weight.grad.is_sparse == sparse


@pytest.mark.parametrize(("processes", "device", "kept"), [(1, "cpu", True), (2, "cpu", False), (1, "cuda", False)])
def test_one_process_alone_keeps_the_gradient_on_a_processor(tiny_bert, processes, device, kept):
    model = tiny_bert()
    with TableGradient.of(model, SimpleNamespace(num_processes=processes, device=torch.device(device))):
        model(torch.tensor([[5, 6, 7]])).pooler_output.sum().backward()
        assert (model.get_input_embeddings().weight.grad is None) == kept


@pytest.mark.parametrize("micro_batch_size", [8, 3])
@pytest.mark.parametrize("kind", ["tune", "distil"])
def test_a_run_does_the_same_whoever_keeps_the_tables_gradient(kind, micro_batch_size, request, monkeypatch):
    run, students = request.getfixturevalue(kind), []
    settings = {"steps": 4, "dropout": 0.0, "micro_batch_size": micro_batch_size}

    def trained(loop):
        students.append(loop.student)
        return train(loop)

    train = Loop.train
    monkeypatch.setattr(Loop, "train", trained)
    kept = run("kept", **settings)
    left = TableGradient.__init__
    monkeypatch.setattr(TableGradient, "__init__", lambda self, table, *, in_place: left(self, table, in_place=False))
    usual = run("usual", **settings)
    for name, value in weights(usual).items():
        torch.testing.assert_close(weights(kept)[name], value, atol=2e-5, rtol=1e-4)
    for student in students:
        assert not student.get_input_embeddings().sparse
        assert not any(parameter._post_accumulate_grad_hooks for parameter in student.parameters())
