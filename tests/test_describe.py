"""`limbeck describe`: the facts of an encoder, and that what it offers can be had."""

import json
import re
from dataclasses import asdict

import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

import limbeck
from limbeck.cli import main
from limbeck.encoders.families import FAMILIES
from limbeck.encoders.loading import load_encoder
from limbeck.encoders.shape import StudentShape
from limbeck.encoders.students import build_student
from limbeck.objectives import METHODS
from limbeck.studies.describe import TokenizerFacts, _tokenizer_facts, describe


def test_the_facts_of_a_real_encoder(minilm):
    told = describe(minilm)
    assert str(told.shape) == "6x384:1536/12"
    assert (told.shape.vocabulary, told.shape.positions, told.shape.segments) == (30522, 512, 2)
    assert told.tokenizer == TokenizerFacts("WordPiece", 30522, lower_case=True)
    assert (told.parameters.total, told.parameters.transformer, told.parameters.pooler) == (22_713_216, 10_646_784, 147_840)
    assert told.megabytes == pytest.approx(90.85, abs=0.01)
    assert told.pooler_trained
    assert told.source == str(minilm)
    assert {24, 48, 384} <= set(told.relation_heads)
    assert not {5, 36} & set(told.relation_heads)
    assert told.equal_head_widths[:2] + told.equal_head_widths[-1:] == [12, 24, 384]
    assert [student.shape for student in told.students] == ["4x384", "3x384"]  # smaller than the teacher
    assert [student.parameters for student in told.students] == [19_164_288, 17_389_824]
    assert [student.flops_share for student in told.students] == pytest.approx([4 / 6, 3 / 6])
    assert [(m.objective, m.student, m.text) for m in told.matches[::2]] == [
        ("minilmv2", "4x384:1536/12", "relation heads 24, relations qq + kk + vv, teacher layer 6"),
        ("minilm", "4x384:1536/12", "teacher layer 6"),
    ]


def test_an_untrained_pooler_and_kept_case_are_said(save_bert, make_tokenizer, tmp_path, tiny_bert):
    model = tiny_bert()
    model.pooler = None
    folder = save_bert(tmp_path, model=model, tokenizer=make_tokenizer(do_lower_case=False))
    told = describe(folder)
    assert not told.pooler_trained
    assert not told.tokenizer.lower_case


def test_an_objective_that_cannot_be_applied_says_why(save_bert, tmp_path):
    """384 cannot be split into as many heads as this teacher has, which only one of the objectives needs."""
    shape = {"num_hidden_layers": 3, "hidden_size": 400, "num_attention_heads": 5, "intermediate_size": 400}
    told = describe(save_bert(tmp_path, **shape))
    assert told.equal_head_widths[-1] == 400
    minilmv2, minilm = told.matches
    assert minilmv2.student == "3x384:384/12"
    assert minilmv2.settings["relation_heads"] == 16  # of 400's 25, the largest that divides both
    assert minilm.settings is None
    assert "5 attention heads" in minilm.text


@pytest.mark.parametrize("method", METHODS)
def test_what_is_offered_can_be_had(save_bert, tmp_path, method):
    folder = save_bert(tmp_path / "teacher", num_hidden_layers=4)
    (match,) = [match for match in describe(folder).matches if match.objective == method.name]
    (tmp_path / "text.txt").write_text("a b c d e\n" * 50)
    settings = {"steps": 1, "batch_size": 4, "max_length": 16, "precision": "float32", "quiet": True}
    run = limbeck.distill(
        folder,
        student=match.student,
        objective=match.settings,
        corpus=[tmp_path / "text.txt"],
        output=tmp_path / "run",
        **settings,
    )
    assert run.summary["student"]["shape"] == match.student == "2x32:128/4"


def test_the_command_says_it_to_people_and_to_programs(minilm, capsys, monkeypatch):
    assert main(["describe", str(minilm)]) == 0
    text = capsys.readouterr().out
    assert "WordPiece, 30,522 tokens, lower-casing" in text
    assert f"source          {minilm} " in text  # in a pipe no line is broken
    for name, value in {"TTY_COMPATIBLE": "1", "NO_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    assert main(["describe", str(minilm)]) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert main(["describe", str(minilm), "--json"]) == 0
    assert capsys.readouterr().out == json.dumps(asdict(limbeck.describe(minilm))) + "\n"
    assert main(["describe", str(minilm), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_families_that_it_names_can_all_be_students(save_bert, tmp_path):
    folder = save_bert(tmp_path)
    teacher = load_encoder(folder)
    families = describe(folder).families
    for name in (name for family in FAMILIES for name in family.model_types):
        if name in families:
            assert build_student(teacher, StudentShape(1, 32), "random", 0, family=name).shape.model_type == name
        else:
            with pytest.raises(limbeck.UserError):
                build_student(teacher, StudentShape(1, 32), "random", 0, family=name)
    assert {"bert", "modernbert"} <= {*families}
    assert "mpnet" not in families  # which knows no other padding id than 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [(None, "no model folder"), ({"model_type": "gpt2"}, "supported: bert"), ({}, "config.json")],
)
def test_what_is_no_supported_encoder_is_refused(config, expected, tmp_path, capsys):
    folder = tmp_path / "model"
    if config is not None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    assert main(["describe", str(folder)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert expected in output.err


@pytest.mark.parametrize(
    ("model", "normalizer", "facts"),
    [
        (models.BPE({"a": 0, "b": 1}, []), None, TokenizerFacts("BPE", 2, lower_case=False)),
        (models.Unigram([("a", -1.0), ("b", -2.0)], 0), normalizers.Lowercase(), TokenizerFacts("Unigram", 2, lower_case=True)),
        (models.WordPiece({"a": 0, "[UNK]": 1}), normalizers.NFC(), TokenizerFacts("WordPiece", 2, lower_case=False)),
    ],
)
def test_tokenizers_of_every_kind(model, normalizer, facts):
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    assert _tokenizer_facts(PreTrainedTokenizerFast(tokenizer_object=tokenizer)) == facts
