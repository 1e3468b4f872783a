"""The tail of a student, which the papers' losses do not reach: what each option makes of it, and of nothing else."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig

import limbeck
from limbeck import MiniLM, MiniLMv2, UserError
from limbeck.encoders.families import FAMILIES
from limbeck.encoders.features import Features
from limbeck.encoders.loading import load_encoder
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.encoders.students import build_student
from limbeck.objectives.tail import HIDDEN_WEIGHT, HiddenTail
from limbeck.recipe import Recipe, read_recipe, validate
from limbeck.studies.entrants import list_entrants, write_twin
from limbeck.training.reach import unread_parameters
from limbeck.training.tail import apply_tail
from reference import relation_losses
from runs import SETTINGS, equal, log_of, weights

TAILS = ["keep", "teacher", "identity", "hidden"]
LAST = "encoder.layer.1."
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0] * 5]).bool()


def untrained(run):
    return run.summary["untrained"]["out_of_reach"]


@pytest.fixture
def random_start(distil):
    """Distil into a student of random weights, with dropout."""
    return lambda output="run", **changes: distil(output, **{"init": "random", "dropout": 0.1, **changes})


# What the options do


@pytest.mark.parametrize("tail", ["teacher", "identity"])
def test_what_is_trained_does_not_depend_on_the_tail(random_start, tail):
    kept, other = random_start("kept"), random_start("other", tail=tail)
    assert untrained(kept) == untrained(other)
    ours, theirs = weights(kept), weights(other)
    assert equal(*({name: value for name, value in each.items() if name not in untrained(kept)} for each in (ours, theirs)))
    assert any(not torch.equal(ours[name], theirs[name]) for name in untrained(kept))
    assert log_of(kept) == log_of(other)


@pytest.mark.parametrize(("objective", "layer"), [(MiniLMv2(), 3), (MiniLMv2(teacher_layer=2), 2), (MiniLM(teacher_layer=1), 1)])
def test_the_teachers_tail_is_that_of_the_layer_that_is_mimicked(random_start, teacher, objective, layer):
    run = random_start(tail="teacher", objective=objective)
    theirs, ours = load_encoder(teacher).model.state_dict(), weights(run)
    for name in untrained(run):
        assert torch.equal(ours[name], theirs[name.replace(LAST, f"encoder.layer.{layer - 1}.")]), name
    assert run.summary["tail"] == {"option": "teacher", "copied": 12, "not_copied": 0}
    assert run.summary["student"]["pooler_trained"]
    assert "12 of them were copied from the teacher" in (run.student / "README.md").read_text()


def test_what_has_another_shape_stays_as_it_began_and_is_counted(random_start, teacher, capsys):
    run = random_start(tail="teacher", student="2x32:48", quiet=False)
    start = build_student(load_encoder(teacher), StudentShape(2, 32, 48), "random", 0).model.state_dict()
    stayed = {name for name in untrained(run) if torch.equal(weights(run)[name], start[name])}
    assert stayed == {f"{LAST}{name}" for name in ("intermediate.dense.weight", "intermediate.dense.bias", "output.dense.weight")}
    assert run.summary["tail"] == {"option": "teacher", "copied": 9, "not_copied": 3}
    assert (
        "9 tensors copied from the teacher's layer 3 and what stands behind its layers, 3 could not be" in capsys.readouterr().err
    )


@pytest.mark.parametrize("student", ["2x64/4", "2x64:64/4"])
def test_a_teachers_tail_does_not_fit_another_width_even_where_a_bias_would(distil, refused, tmp_path, student):
    with refused("2x64:", "3x32:", "--tail hidden", "width 32"):
        distil(student=student, init="random", tail="teacher")
    assert not (tmp_path / "run").exists()


def test_a_pooler_that_the_teacher_does_not_have_replaces_none(distil, teacher):
    file = teacher / "model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if name not in POOLER}, file, metadata={"format": "pt"})
    run = distil(init="random", tail="teacher")
    start = build_student(load_encoder(teacher), StudentShape(2, 32), "random", 0).model.state_dict()
    assert all(torch.equal(weights(run)[name], start[name]) for name in POOLER)
    assert run.summary["tail"] == {"option": "teacher", "copied": 10, "not_copied": 2}
    assert not run.summary["student"]["pooler_trained"]


@pytest.mark.parametrize("init", ["layers", "random"])
def test_an_identity_passes_the_last_layers_input_on_to_its_norms(distil, init):
    run = distil(tail="identity", init=init)
    model = load_encoder(run.student).model
    batch = {"input_ids": torch.arange(10, 30).view(2, 10)}
    with torch.no_grad():
        before, after = limbeck.capture(model, batch, {"hidden": [1, 2]})["hidden"].values()
        layer = model.encoder.layer[1]
        passed = layer.output.LayerNorm(layer.attention.output.LayerNorm(before))
    torch.testing.assert_close(after, passed)
    zero = {name for name, value in weights(run).items() if not value.any()}
    outputs = {f"{LAST}{name}.{part}" for name in ("attention.output.dense", "output.dense") for part in ("weight", "bias")}
    assert outputs <= zero
    assert not any(name.endswith("weight") for name in zero - outputs)


@pytest.mark.parametrize("objective", ["minilm", "minilmv2"])
def test_hidden_states_train_all_but_the_pooler_at_any_width(distil, teacher, objective):
    settings = {"student": "2x64/4", "init": "random", "tail": "hidden", "objective": objective}
    run = distil(**settings, steps=30, learning_rate=3e-3, holdout="0.1")
    assert set(untrained(run)) == POOLER
    start = build_student(load_encoder(teacher), StudentShape(2, 64, heads=4), "random", 0).model.state_dict()
    end = weights(run)
    assert {name for name in end if torch.equal(end[name], start[name])} == POOLER
    first, *_, last = (record for record in log_of(run) if "loss" in record)
    terms = last.keys() - {"step", "loss", "learning_rate", "tokens"}
    assert "hidden" in terms
    others = sum(last[term] for term in terms - {"hidden"})
    assert last["loss"] == pytest.approx(others + HIDDEN_WEIGHT * last["hidden"])
    assert last["hidden"] < first["hidden"]
    assert run.summary["holdout"]["hidden"] > 0
    assert "Fine-tune it" not in (run.student / "README.md").read_text()


@pytest.mark.parametrize("tail", TAILS)
def test_a_resumed_run_is_the_same_to_the_bit_and_another_tail_another_recipe(random_start, tail, refused):
    alone = random_start("alone", steps=6, tail=tail)
    run = random_start(steps=6, tail=tail, checkpoint_every=2)
    (run.path / "summary.json").unlink()
    shutil.rmtree(max((run.path / "checkpoints").iterdir()))
    other = "keep" if tail == "identity" else "identity"
    with refused("tail", f"{tail} then, {other} now"):
        random_start(steps=6, tail=other, checkpoint_every=2, resume="auto")
    resumed = random_start(steps=6, tail=tail, checkpoint_every=2, resume="auto")
    assert equal(weights(resumed), weights(alone))
    assert log_of(resumed) == log_of(alone)
    assert resumed.summary["tail"] == alone.summary["tail"]


@pytest.mark.parametrize("tail", ["teacher", "identity"])
def test_a_start_from_an_earlier_student_is_known_by_its_own_weights(distil, tail, save_bert, tmp_path):
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    first = save_bert(tmp_path / "first", seed=5, **shape)
    kept, other = distil("kept", init=first), distil("other", init=first, tail=tail)
    assert kept.summary["fingerprints"]["init"] == other.summary["fingerprints"]["init"]


def test_a_dry_run_tells_what_is_read_for_the_tail(teacher, corpus, tmp_path):
    settings = {name: value for name, value in SETTINGS.items() if name != "quiet"}
    given = {"teacher": teacher, "corpus": [corpus], "student": "2x64/4", "tail": "hidden", **settings}
    told = limbeck.forecast(validate(Recipe, given), tmp_path / "run", quiet=True)
    assert told.teacher.features == {"q": [3], "k": [3], "v": [3], "hidden": [3]}
    assert (told.teacher.layers_run, told.student.layers_run) == (3, 2)
    assert told.out_of_reach.tensors == len(POOLER)
    assert told.objective.endswith("0.1 x a relation of hidden states, relation heads 2")


@pytest.mark.parametrize("tail", ["teacher", "identity"])
def test_a_twin_begins_with_the_tail_that_its_student_began_with(random_start, tail, tmp_path):
    run = random_start(tail=tail)
    (twin,) = (each for each in list_entrants([str(run.path)], tmp_path / "twins") if each.model.role == "twin")
    write_twin(twin.distilled_by, Path(twin.source))
    start, end = load_file(f"{twin.source}/model.safetensors"), weights(run)
    assert {name for name in end if torch.equal(start[name], end[name])} == set(untrained(run))


# Which students have a tail


@pytest.mark.parametrize("relations", [("qq", "kk", "vv"), ("qq",), ("qk",)])
def test_what_no_feature_depends_on_is_what_no_gradient_reaches(distil, teacher, relations):
    objective = MiniLMv2(relations=relations)
    student = build_student(load_encoder(teacher), StudentShape(2, 32), "random", 0)
    wants = objective.resolve(student.shape, student.shape).wants(student.shape, student.shape)[1]
    before = torch.get_rng_state()
    unread = unread_parameters(student.model, wants)
    assert torch.equal(torch.get_rng_state(), before)
    assert unread == untrained(distil(objective=objective))


@pytest.mark.parametrize("tail", TAILS)
def test_only_an_objective_of_the_last_layers_projections_leaves_one(teacher, tail, refused):
    encoder = load_encoder(teacher)
    student = build_student(encoder, StudentShape(2, 32), "random", 0)
    before = {name: value.clone() for name, value in student.model.state_dict().items()}
    objective = HiddenTail(MiniLMv2()).resolve(encoder.shape, student.shape)
    if tail == "keep":
        apply_tail(tail, encoder, student, objective)
    else:
        with refused(f"--tail {tail}", "--tail keep", "hidden tail"):
            apply_tail(tail, encoder, student, objective)
    assert equal(student.model.state_dict(), before)


@pytest.mark.parametrize("outputs", [(), ("attention.self.query",)])
def test_an_identity_needs_projections_of_the_last_layers_own(teacher, monkeypatch, outputs, refused):
    encoder = load_encoder(teacher)
    student = build_student(encoder, StudentShape(2, 32), "random", 0)
    monkeypatch.setattr(type(student), "family", property(lambda self: replace(FAMILIES[0], outputs=outputs)))
    with refused("--tail identity", "bert", "--tail hidden"):
        apply_tail("identity", encoder, student, MiniLMv2().resolve(encoder.shape, student.shape))


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm_roberta"])
def test_a_familys_layer_adds_nothing_where_its_output_projections_are_zero(request, family, tmp_path):
    encoder = load_encoder(request.getfixturevalue(f"save_{family}")(tmp_path / family))
    layer = encoder.family.layer_list(encoder.model)[-1]
    for path in encoder.family.outputs:
        torch.nn.init.zeros_(layer.get_submodule(path).weight)
        torch.nn.init.zeros_(layer.get_submodule(path).bias)
    with torch.no_grad():
        for projection in encoder.family.projections.values():
            batch = {"input_ids": torch.arange(10, 20)[None]}
            before = limbeck.capture(encoder.model, batch, {"hidden": encoder.shape.layers})["hidden"]
            layer.get_submodule(projection).weight.normal_()
            assert torch.equal(limbeck.capture(encoder.model, batch, {"hidden": encoder.shape.layers})["hidden"], before)


def test_every_family_knows_its_output_projections():
    assert all(len(family.outputs) == 2 for family in FAMILIES)


# The term of hidden states


def shape(width, heads=4, layers=2):
    return EncoderShape.of(BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads))


@pytest.mark.parametrize("method", [MiniLMv2(relation_heads=2, relations=("qq", "kv"), teacher_layer=1), MiniLM()])
def test_the_terms_are_the_methods_and_a_relation_of_hidden_states(method):
    teacher, student = shape(16, layers=3), shape(8)
    objective = HiddenTail(method).resolve(teacher, student)
    method = objective.method
    generator = torch.Generator().manual_seed(0)
    theirs, ours = (
        Features(
            each,
            {
                name: {layer: torch.randn(*MASK.shape, each.width, generator=generator, dtype=torch.float64, requires_grad=True)}
                for name, (layer,) in wants.items()
            },
        )
        for each, wants in zip((teacher, student), objective.wants(teacher, student), strict=True)
    )
    (layer,), (last,) = (set(each.tensors["hidden"]) for each in (theirs, ours))
    assert (layer, last) == (method.teacher_layer, 2)
    assert theirs.tensors["q"].keys() == theirs.tensors["hidden"].keys()
    sums = objective.sums(theirs, ours, MASK)
    assert list(sums) == list(objective.weights()) == list(objective.counts(MASK)) == [*method.weights(), "hidden"]
    assert objective.weights()["hidden"] == HIDDEN_WEIGHT
    assert objective.counts(MASK)["hidden"] == 2
    heads = 2 if isinstance(method, MiniLMv2) else 4
    pairs = [[each.only("hidden")] * 2 for each in (theirs, ours)]
    expected = relation_losses(*pairs, heads, MASK).sum()
    torch.testing.assert_close(sums["hidden"], expected, rtol=1e-10, atol=0)
    hidden = ours.only("hidden")
    gradients = [torch.autograd.grad(loss, hidden)[0] for loss in (sums["hidden"], expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close({term: sums[term] for term in method.weights()}, method.sums(theirs, ours, MASK))


def test_its_relation_heads_are_the_methods_own_or_else_follow_from_the_widths():
    assert HiddenTail(MiniLMv2()).resolve(shape(768, 12), shape(384, 12)).relation_heads == 48
    assert HiddenTail(MiniLMv2(relation_heads=8)).resolve(shape(768, 12), shape(384, 12)).relation_heads == 8
    assert HiddenTail(MiniLM()).resolve(shape(768, 12), shape(384, 12)).relation_heads == 12
    assert HiddenTail(MiniLM()).resolve(shape(64, 12), shape(40, 12)).relation_heads == 4
    with pytest.raises(UserError, match="5 relation heads do not divide"):
        HiddenTail(MiniLMv2(relation_heads=5)).resolve(shape(64), shape(32))


# Rows never trained


def starts(run, teacher):
    """A random student's tables as they began."""
    recipe = validate(Recipe, read_recipe(run.path / "recipe.yaml"))
    return build_student(load_encoder(teacher), recipe.shape, "random", recipe.seed).model.state_dict()


def unchanged(run, teacher, table):
    """Rows of a table that are as they began."""
    name = f"embeddings.{table}.weight"
    return int((weights(run)[name] == starts(run, teacher)[name]).all(dim=1).sum())


TABLES = {"vocabulary": "word_embeddings", "positions": "position_embeddings", "segments": "token_type_embeddings"}


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 1, "batch_size": 2},
        {"steps": 1, "batch_size": 1, "max_length": 8, "packing": "single"},
        {"steps": 2, "batch_size": 3, "packing": "full", "long_fraction": 0.3, "max_length": 12},
        {"steps": None, "epochs": 2, "holdout": "0.4", "packing": "single"},
        {"steps": 2, "corpus_weights": [1, 4]},
    ],
)
def test_exactly_the_rows_that_training_left_alone_are_counted(distil, teacher, corpus, tmp_path, settings):
    short = tmp_path / "short.txt"
    short.write_text("water and fire\n" * 20)
    other = tmp_path / "other.txt"
    other.write_text("\n".join(corpus.read_text().splitlines()[:20]))
    settings = {"corpus": [other, short], "init": "random", "weight_decay": 0.0, "learning_rate": 1e-2, **settings}
    run = distil(**settings)
    rows = run.summary["untrained_rows"]
    assert {table: each["untrained"] for table, each in rows.items()} == {
        table: unchanged(run, teacher, name) for table, name in TABLES.items()
    }
    shape = load_encoder(teacher).shape
    assert [each["total"] for each in rows.values()] == [shape.vocabulary, shape.positions, shape.segments]
    assert 0 < rows["vocabulary"]["untrained"] < shape.vocabulary


def test_rows_that_only_shrank_were_not_trained(distil, teacher):
    shrunk, plain = distil("shrunk", init="random", weight_decay=0.1), distil("plain", init="random", weight_decay=0.0)
    assert shrunk.summary["untrained_rows"] == plain.summary["untrained_rows"]
    assert unchanged(shrunk, teacher, "position_embeddings") == 0
    assert unchanged(plain, teacher, "position_embeddings") == 64 - 16


def test_positions_that_no_sequence_can_have_are_not_counted(save_roberta, corpus, tmp_path):
    teacher = save_roberta(tmp_path / "roberta", num_hidden_layers=2)
    settings = {**SETTINGS, "student": "1x32", "weight_decay": 0.0, "packing": "single", "corpus": [corpus]}
    run = limbeck.distill(teacher, output=tmp_path / "run", **settings)
    rows = run.summary["untrained_rows"]
    assert (rows["positions"]["total"], rows["segments"]) == (64, {"untrained": 0, "total": 1})
    assert rows["positions"]["untrained"] == unchanged(run, teacher, "position_embeddings") - 2
    assert rows["vocabulary"]["untrained"] == unchanged(run, teacher, "word_embeddings")


def test_they_are_told_on_the_terminal_and_in_the_card(distil, capsys):
    run = distil(quiet=False, packing="full")
    vocabulary = run.summary["untrained_rows"]["vocabulary"]
    told = f"{vocabulary['untrained']} of {vocabulary['total']} vocabulary rows, 48 of 64 positions, 1 of 2 segments"
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("rows"))
    assert line.endswith(f"never trained: {told}")
    assert f"Never trained in this run were {told}" in (run.student / "README.md").read_text()
