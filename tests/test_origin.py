"""What a student remembers beside its weights: whose it is, and what of it nothing ever trained."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

import limbeck
from limbeck.encoders.loading import load_encoder
from limbeck.encoders.shape import StudentShape
from limbeck.encoders.students import build_student
from limbeck.studies.describe import describe
from runs import SETTINGS, equal, weights

LAST = "encoder.layer.1."
TAIL = {f"{LAST}{name}.weight" for name in ("attention.output.dense", "intermediate.dense", "output.dense")}
POOLER = "pooler.dense.weight"
BEWARE = "Fine-tune it before you use its output"


def card(run):
    return (run.student / "README.md").read_text()


@pytest.fixture
def learned_from(corpus, tmp_path):
    """Distil any teacher; keyword arguments change the settings."""

    def run(teacher, output, **changes):
        settings = {**SETTINGS, "student": "2x32", "init": "random", "corpus": [corpus], **changes}
        return limbeck.distill(teacher, output=tmp_path / output, **settings)

    return run


def test_what_is_random_is_what_training_left_as_it_began(distil, teacher):
    run = distil(init="random", learning_rate=1e-2)
    start = build_student(load_encoder(teacher), StudentShape(2, 32), "random", 0).model.state_dict()
    end = weights(run)
    matrices = {name for name in end if end[name].dim() > 1 and "embeddings" not in name}
    assert load_encoder(run.student).origin.random == {name for name in matrices if torch.equal(start[name], end[name])}
    assert load_encoder(run.student).origin.random == {*TAIL, POOLER} == {*run.summary["untrained"]["random"]}


def test_a_loaded_students_random_pooler_is_no_trained_one(distil, learned_from, capsys):
    first = distil(init="random")
    assert not load_encoder(first.student).pooler_trained
    assert not describe(first.student).pooler_trained
    second = learned_from(first.student, "second", tail="teacher", quiet=False)
    assert not second.summary["student"]["pooler_trained"]
    assert "are random: train it before use" in card(second)
    assert equal({POOLER: weights(second)[POOLER]}, {POOLER: start_of(first)[POOLER]})  # a random one is no gain
    assert load_encoder(second.student).origin.random == {*TAIL, POOLER}
    assert "Fine-tune the student before you use its output: encoder.layer.1.attention.output," in capsys.readouterr().err


def start_of(teacher):
    return build_student(load_encoder(teacher.student), StudentShape(2, 32), "random", 0).model.state_dict()


@pytest.mark.parametrize("layers", ["layers:1", "layers:2"])
def test_layers_of_an_untrained_last_one_are_known_for_it(distil, learned_from, layers):
    first = distil(init="random")
    second = learned_from(first.student, "second", student="1x32", init=layers)
    random = {name.replace(LAST, "encoder.layer.0.") for name in TAIL} if layers == "layers:2" else set()
    assert load_encoder(second.student).origin.random == {*random, POOLER}
    assert (BEWARE in card(second)) == (layers == "layers:2")


def test_weights_that_come_from_a_trained_model_are_none(distil):
    run = distil(init="layers")
    assert load_encoder(run.student).origin.random == set()
    assert "come from a trained model" in card(run)
    assert BEWARE not in card(run)


def test_a_start_keeps_what_it_was_and_says_it(distil, learned_from, teacher):
    first = distil(init="random")
    second = learned_from(teacher, "second", init=str(first.student))
    assert load_encoder(second.student).origin.random == {*TAIL, POOLER}
    assert BEWARE in card(second)
    assert str(first.path.parent) not in card(second)
    assert "(run/student, which learned from teacher)" in card(second)


def test_a_student_says_whose_it_is_in_the_first_place(distil, learned_from):
    first = distil("assistant", student="3x16", init="random")
    second = learned_from(first.student, "second", student="2x16")
    assert load_encoder(second.student).origin.teachers == ("teacher", "assistant/student")
    assert second.summary["student"]["teachers"] == ["teacher", "assistant/student"]
    text = card(second)
    assert "# 2x16 student of teacher\n" in text
    assert "distilled with Limbeck from teacher, by way of assistant/student, by minilmv2." in text
    assert "| | teacher (assistant/student) | student |" in text


@pytest.mark.parametrize("tail", ["teacher", "identity"])
def test_a_tail_that_was_not_trained_with_the_rest_is_told_of_ever_after(learned_from, teacher, tail):
    run = learned_from(teacher, "random", tail=tail)
    origin = load_encoder(run.student).origin
    assert (origin.foreign, origin.random) == (TAIL, {POOLER} if tail == "identity" else set())
    told = "copied or set to zero, and not trained with the rest"
    assert told in card(run)
    start = learned_from(teacher, "second", init=str(run.student))
    layers = learned_from(run.student, "third", init="layers")
    assert all(load_encoder(each.student).origin.foreign == TAIL and told in card(each) for each in (start, layers))
    # What was copied fits what it was copied with.
    assert BEWARE not in card(learned_from(teacher, "fourth", student="3x32", init="layers", tail="teacher"))


def test_all_that_is_out_of_reach_was_copied_or_was_not(distil, learned_from):
    first = distil("first", init="random")
    run = learned_from(first.student, "second", tail="teacher")
    assert run.summary["tail"] == {"option": "teacher", "copied": 10, "not_copied": 2}


def test_a_start_that_learned_from_another_teacher_is_named_with_it(distil, learned_from, save_bert, tmp_path):
    first = distil("first", init="random")
    second = learned_from(save_bert(tmp_path / "other", seed=7), "second", init=str(first.student))
    assert "(first/student, which learned from teacher)" in card(second)
    assert "# 2x32 student of other\n" in card(second)


def test_the_best_student_remembers_as_the_last_one_does(learned_from, teacher):
    run = learned_from(teacher, "run", holdout="0.1", eval_every=2, keep_best=True, checkpoint_every=2)
    assert load_encoder(run.path / "best").origin == load_encoder(run.student).origin


def test_whoever_saves_the_weights_anew_drops_it(distil, corpus, tmp_path):
    run = distil(init="random")
    model = AutoModel.from_pretrained(run.student)
    assert equal(model.state_dict(), weights(run))
    model.save_pretrained(tmp_path / "copy")
    AutoTokenizer.from_pretrained(run.student).save_pretrained(tmp_path / "copy")
    assert load_encoder(tmp_path / "copy").pooler_trained
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "".join(f"water {n}\tgood\nfire {n}\tbad\n" for n in range(10)))
    settings = {"text": "text", "label": "label", "epochs": 1, "precision": "float32", "quiet": True}
    tuned = limbeck.finetune(run.student, data=tmp_path / "rows.tsv", output=tmp_path / "tuned", **settings)
    with safe_open(tuned.student / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert load_encoder(tuned.student).origin.random == set()


WHOLE = {"teachers": [], "random": [], "foreign": []}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        json.dumps({"teachers": []}),
        json.dumps({**WHOLE, "teachers": None}),
        json.dumps({**WHOLE, "teachers": "abc"}),
        json.dumps({**WHOLE, "random": {"a": 1}}),
        json.dumps({**WHOLE, "teachers": ["\ud800"]}),
    ],
)
def test_a_header_that_cannot_be_understood_is_refused(distil, text, refused):
    file = distil().student / "model.safetensors"
    save_file(load_file(file), file.with_suffix(".new"), {"format": "pt", "limbeck": text})
    file.with_suffix(".new").replace(file)
    with refused("model.safetensors", "limbeck", "export the student again"):
        load_encoder(file.parent)
