"""The examples run as they stand."""

import gzip
import re
import runpy
from pathlib import Path

import pytest

from limbeck.samples import WIKIPEDIA_HELD_OUT

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def held_out(tmp_path):
    """A little of the text that is held out, to be quick."""
    file = tmp_path / "held-out.txt"
    file.write_bytes(b"\n".join(gzip.decompress(WIKIPEDIA_HELD_OUT.read_bytes()).splitlines()[:20]))
    return file


@pytest.mark.usefixtures("minilm")
def test_sentence_student(tmp_path, capsys, held_out):
    example = runpy.run_path(str(EXAMPLES / "sentence_student.py"))
    example["main"](tmp_path / "run", steps=1, held_out=held_out)
    assert "student: cosine with the first sentence" in capsys.readouterr().out


@pytest.mark.usefixtures("minilm")
def test_two_corpora(tmp_path, capsys, held_out):
    example = runpy.run_path(str(EXAMPLES / "two_corpora.py"))
    for _ in range(2):  # the second time it finds everything done
        example["main"](tmp_path / "run", steps=1, held_out=held_out)
        assert "best held-out loss" in capsys.readouterr().out


@pytest.mark.usefixtures("minilm")
def test_own_task(tmp_path, capsys, save_bert):
    example = runpy.run_path(str(EXAMPLES / "own_task.py"))
    model = save_bert(tmp_path / "model", max_position_embeddings=128)
    example["main"](tmp_path / "run", str(model), pairs=60)
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.usefixtures("minilm")
def test_assistant(tmp_path, capsys, held_out):
    example = runpy.run_path(str(EXAMPLES / "assistant.py"))
    for _ in range(2):  # the second time it finds everything done
        example["main"](tmp_path / "run", steps=1, held_out=held_out)
        assert re.findall(r"^(\w+) +(\S+) +1 steps", capsys.readouterr().out, re.MULTILINE) == [
            ("assistant", "6x192:768/12"),
            ("student", "3x192:768/12"),
        ]


@pytest.mark.usefixtures("minilm")
def test_several_students(tmp_path, capsys, held_out):
    example = runpy.run_path(str(EXAMPLES / "several_students.py"))
    for _ in range(2):  # the second time it finds everything done
        example["main"](tmp_path / "run", steps=1, held_out=held_out)
        assert re.findall(r"^(\S+) .* held-out loss \d", capsys.readouterr().out, re.MULTILINE) == ["3x384", "3x192"]
