"""What a person meets at the command line: one line that says what to do, and the right exit code."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from limbeck.cli import _parser, main
from limbeck.errors import CheckFailed

ROOT = Path(__file__).parent.parent


@pytest.fixture
def arguments(save_bert, tmp_path):
    """A command that works, as a list to be changed."""
    teacher = save_bert(tmp_path / "teacher", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64)
    text = tmp_path / "text.txt"
    text.write_text("a b c d e\n" * 50)
    return [
        *("distill", "--teacher", str(teacher), "--corpus", str(text), "--student", "1x32/4", "--steps", "2"),
        *("--batch-size", "4", "--max-length", "16", "--precision", "float32", "-o", str(tmp_path / "run")),
    ]


def test_json_is_all_that_stands_on_standard_output(arguments, capsys, tmp_path):
    assert main([*arguments, "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "step 2/2" in output.err
    assert "\r" not in output.err  # no bar where there is no terminal


def test_quiet_says_nothing(arguments, capsys):
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["--teacher", "nowhere/at/all"], "no model folder"),
        (["--corpus", "nowhere.txt"], "no text file nowhere.txt"),
        (["--student", "big"], "LAYERSxWIDTH"),
        (["--student", "3x32", "--init", "layers"], "cannot be cut from a teacher of 2"),
        (["--student", "1x16", "--init", "layers"], "do not fit"),
        (["--init", "layers:3"], "layers 1 to 2"),
        (["--init", "layers:x"], "layers:1,3,6"),
        (["--relation-heads", "5"], "choose one of 1, 2, 4, 8, 16, 32"),
        (["--relation-heads", "many"], "--relation-heads: should be a valid integer or 'auto', not 'many'"),
        (["--objective", "minilm", "--relation-heads", "4"], "minilm has no setting relation_heads; it belongs to minilmv2"),
        (["--relations", "qq,qq"], "--relations: qq stands there twice"),
        (["--objective", "minilm", "--student", "1x32/8"], "minilmv2"),
        (["--teacher-layer", "3"], "layers go from 1 to 2"),
        (["--max-length", "4096"], "positions"),
        (["--steps", "0"], "--steps"),
        (["--tokens", "5"], "give one of steps, tokens and epochs"),
        (["--sepps", "5"], "--sepps: no such flag; did you mean --steps?"),
        (["--batch_size=5"], "--batch_size: no such flag; did you mean --batch-size?"),
        (["more"], "more: nothing was expected here"),
        (["--holdout", "nowhere.txt"], "no text file nowhere.txt"),
        (["--holdout", "0.001"], "too small to hold out"),
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--resume", "maybe"], "--resume"),
        (["--resume", "auto", "--overwrite"], "give one of them"),
        (["--over"], "--over: no such flag"),
        (["--steps", "2.5"], "--steps: should be a valid integer"),
        (["--trackers", "tensorbord"], "--trackers: should be 'tensorboard', 'wandb' or 'trackio', not 'tensorbord'"),
        (["--trackers", "wandb", "wandb"], "--trackers: wandb stands there twice"),
        (["--teacher", "~nobody-of-that-name/bert"], "there is no home directory ~nobody-of-that-name"),
        (["-o", "~nobody-of-that-name/run"], "there is no home directory ~nobody-of-that-name"),
        (["--corpus", ""], "--corpus"),
        (["--epochs", "inf"], "--epochs"),
    ],
)
def test_wrong_input_is_answered_in_one_line_and_leaves_nothing(arguments, changes, expected, capsys, tmp_path):
    assert main([*arguments, *changes]) == 2
    output = capsys.readouterr()
    message = [line for line in output.err.splitlines() if line.startswith("limbeck: ")]
    assert len(message) == 1
    assert expected in message[0]
    assert output.out == ""
    assert not (tmp_path / "run").exists()


def test_flags_override_a_recipe_file(arguments, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("steps: 1\nseed: 7\nobjective: {name: minilmv2, relations: [qk], relation_heads: 2}\n")
    assert main([*arguments, "--config", str(file), "--relation-heads", "8", "--quiet"]) == 0
    resolved = (tmp_path / "run" / "recipe.yaml").read_text()
    assert "seed: 7" in resolved
    assert "steps: 2" in resolved
    assert "relation_heads: 8" in resolved
    assert "- qk" in resolved


def test_a_flag_for_the_length_overrides_the_recipe_files(arguments, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("epochs: 3\n")
    assert main([*arguments, "--config", str(file), "--quiet"]) == 0
    assert "steps: 2" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_a_corpus_named_twice_is_read_whole(arguments, tmp_path):
    more = tmp_path / "more.txt"
    more.write_text("f g h\n")
    assert main([*arguments, "--corpus", str(more), "--quiet"]) == 0
    assert "more.txt" in (tmp_path / "run" / "recipe.yaml").read_text()
    assert "/text.txt" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_exit_codes(arguments, monkeypatch):
    def stop(error):
        def command(*_, **__):
            raise error

        monkeypatch.setattr("limbeck.training.distill.run_recipe", command)
        return main(arguments)

    assert stop(KeyboardInterrupt()) == 130
    assert stop(CheckFailed("diverged")) == 1
    assert stop(OSError(28, "No space left on device")) == 1


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "limbeck", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("limbeck ")


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "CHANGELOG.md"])
def test_commands_in_the_documentation_parse(page):
    """Every `limbeck ...` line in a code block is a command that exists, with flags that exist."""
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", (ROOT / page).read_text(), flags=re.M | re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines() if line.strip().startswith("limbeck ")]
    for line in lines:
        _parser().parse_args(shlex.split(line, comments=True)[1:])
    assert lines or page != "README.md"
