"""The examples run as they stand."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.usefixtures("minilm")
def test_sentence_student(tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / "sentence_student.py"))
    example["main"](tmp_path / "run", steps=1)
    assert "student: cosine with the first sentence" in capsys.readouterr().out


@pytest.mark.usefixtures("minilm")
def test_two_corpora(tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / "two_corpora.py"))
    for _ in range(2):  # the second time it finds everything done
        example["main"](tmp_path / "run", steps=1)
        assert "best held-out loss" in capsys.readouterr().out
