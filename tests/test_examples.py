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
