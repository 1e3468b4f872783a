"""A run that was stopped, however often and however hard, goes on as if it never had been; or says why it cannot."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import chain

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import limbeck
from limbeck.errors import CheckFailed
from limbeck.training.best import Best
from limbeck.training.folder import RunFolder, write_file
from limbeck.training.interrupt import SAME_REQUEST, stop_request
from limbeck.training.loop import Loop
from runs import PROCESSES, content, equal, finish, hold, log_of, records, start, weights


@pytest.fixture
def command(teacher, corpus):
    """The arguments of a run that resumes itself."""

    def make(output, **changes):
        settings = {
            **{"teacher": teacher, "corpus": corpus, "student": "2x32", "init": "layers", "steps": 60, "batch_size": 8},
            **{"max_length": 16, "dropout": 0.1, "precision": "float32", "log_every": 1, "output": output, "resume": "auto"},
            **changes,
        }
        switches = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is True]
        flags = [part for name, value in settings.items() if value is not True for part in (f"--{name.replace('_', '-')}", value)]
        return ["distill", *flags, *switches, "--quiet"]

    return make


def killed(process, when, pause=0.0):
    """Kill a process without warning some seconds after `when` holds; its exit code."""
    while process.is_alive() and not when():
        time.sleep(0.005)
    time.sleep(pause)
    process.kill()
    return finish(process)


def flat(lists):
    return list(chain.from_iterable(lists))


def lines(folder):
    log = folder / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def student(folder):
    return (folder / "student" / "model.safetensors").read_bytes()


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@contextmanager
def broken(name, replacement):
    """A method of the loop fails, as `replacement` does, during the run inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, name, replacement)
        with pytest.raises(ZeroDivisionError):
            yield


# ---------------------------------------------------------------- to the bit


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_killed_twice_and_resumed_equals_left_alone_to_the_bit(command, tmp_path, precision):
    settings = {"precision": precision, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 7}
    alone, stopped = tmp_path / "alone", tmp_path / "stopped"
    assert finish(start(command(alone, **settings))) == 0
    drawn = random.Random(precision)
    for step in (drawn.randint(2, 25), drawn.randint(26, 50)):
        process = start(command(stopped, **settings))
        assert killed(process, lambda step=step: lines(stopped) >= step) == -signal.SIGKILL
        assert not (stopped / "summary.json").exists()
    assert finish(start(command(stopped, **settings))) == 0
    assert student(alone) == student(stopped)
    assert records(alone) == records(stopped)


def test_killed_twenty_times_equals_left_alone_to_the_bit(command, tmp_path):
    settings = {"steps": 240, "log_every": 3, "checkpoint_every": 2, "holdout": "0.1", "eval_every": 5, "keep_best": True}
    alone, stopped = tmp_path / "alone", tmp_path / "stopped"
    assert finish(start(command(alone, **settings))) == 0
    drawn = random.Random(0)
    for _ in range(20):
        process, goal = start(command(stopped, **settings)), lines(stopped) + drawn.randint(0, 3)
        pause = drawn.uniform(0, 0.05)  # also in the middle of writing a checkpoint or an evaluation's line
        assert killed(process, lambda goal=goal: lines(stopped) > goal, pause) == -signal.SIGKILL
    assert finish(start(command(stopped, **settings))) == 0
    for part in ("student/model.safetensors", "best/model.safetensors"):
        assert (alone / part).read_bytes() == (stopped / part).read_bytes()
    assert records(alone) == records(stopped)
    assert not [name for name in names(stopped) if name.startswith(".")]


@pytest.mark.parametrize("checkpoint_every", [None, 4])
def test_sigterm_saves_leaves_with_130_and_resumes_to_the_bit(command, tmp_path, checkpoint_every):
    settings = {"log_every": 3} | ({} if checkpoint_every is None else {"checkpoint_every": checkpoint_every})
    alone, stopped, said = tmp_path / "alone", tmp_path / "stopped", tmp_path / "said"
    assert finish(start(command(alone, **settings))) == 0
    for goal in (3, 9):
        process = start(command(stopped, **settings), said)
        while lines(stopped) < goal:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGTERM)
        assert finish(process) == 130
        assert "--resume auto" in said.read_text()
        assert "Traceback" not in said.read_text()
    assert finish(start(command(stopped, **settings))) == 0
    assert student(alone) == student(stopped)
    assert records(alone) == records(stopped)


def test_ctrl_c_does_the_same_and_what_may_change_silently_does(distil, stopping):
    alone = distil("alone", steps=9, dropout=0.2)
    with stopping(4, signal.SIGINT):
        distil(steps=9, dropout=0.2, log_every=5)
    run = distil(steps=9, dropout=0.2, log_every=1, checkpoint_every=3, keep_checkpoints=1, resume="auto")
    assert equal(weights(alone), weights(run))
    assert run.summary["training"]["resumed"] == []
    assert not [record for record in log_of(run) if "resumed" in record]


def test_signals_go_back_to_whom_they_belong_and_the_second_one_ends_at_once():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_request() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # of the same press
        assert stop
        stop.since -= 2 * SAME_REQUEST
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_runs_outside_the_main_thread_leave_signals_alone():
    seen = []

    def work():
        with stop_request():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


# ---------------------------------------------------------------- another layout


RECORDER = """
import json, os, signal, sys
from pathlib import Path
from limbeck.cli import main
from limbeck.training.loop import Loop

take, out, stop = Loop._step, Path(sys.argv[1]), int(sys.argv[2])

def watched(self, work):
    with (out / str(self.accelerator.process_index)).open("a") as file:
        file.write(json.dumps([self.progress.examples, work.examples]) + "\\n")
    if self.progress.step + 1 == stop and self.accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return take(self, work)

Loop._step = watched
sys.exit(main(sys.argv[3:]))
"""


def test_each_example_of_the_epoch_is_seen_once_whatever_the_batch_size_and_the_number_of_processes(
    distil, command, stopping, monkeypatch, tmp_path
):
    seen = []
    take = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda self, work: seen.append(work.examples) or take(self, work))
    settings = {"steps": None, "epochs": 1, "max_length": 32, "micro_batch_size": 8}
    alone = distil("alone", **settings)
    whole = flat(seen)
    assert set(whole) == set(range(max(whole) + 1))
    seen.clear()

    with stopping(3):
        distil(**settings)
    assert len(flat(seen)) == 24
    with stopping(8):
        distil(**settings | {"batch_size": 4}, resume="auto")
    with stopping(10):
        distil(**settings | {"batch_size": 16}, resume="auto")
    assert [len(examples) for examples in seen] == 3 * [8] + 5 * [4] + 2 * [16]
    assert flat(seen) == whole[: 24 + 20 + 32]

    (tmp_path / "seen").mkdir()
    (tmp_path / "recorder.py").write_text(RECORDER)
    flags = {"steps": len(whole) // 8, "max_length": 32, "micro_batch_size": 8, "batch_size": 5, "dropout": 0}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "recorder.py")),
            *(str(tmp_path / "seen"), "14", *map(str, command(tmp_path / "run", **flags))),
        ],
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    assert done.returncode != 0  # the second process alone was told to stop, and both did
    shares = [[json.loads(line) for line in (tmp_path / "seen" / rank).read_text().splitlines()] for rank in "01"]
    assert [place for place, _ in shares[0]] == [place for place, _ in shares[1]] == [76, 81, 86, 91]
    assert [len(examples) for _, examples in shares[0] + shares[1]] == 4 * [3] + 4 * [2]
    seen.extend(examples for share in shares for _, examples in share)

    run = distil(**settings, resume="auto")
    assert Counter(flat(seen)) == Counter(whole)
    layouts = [(line["step"], line["batch_size"]) for line in run.summary["training"]["resumed"]]
    assert layouts == [(3, [8, 4]), (8, [4, 16]), (10, [16, 5]), (14, [5, 8])]
    processes = [line.get("processes") for line in run.summary["training"]["resumed"]]
    assert processes == [None, None, [1, 2], [2, 1]]
    assert len(weights(run)) == len(weights(alone))


def test_what_is_not_as_it_was_is_said_in_one_line_and_logged(distil, stopping, capsys):
    with stopping(2):
        distil(steps=6, micro_batch_size=8)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run = distil(steps=6, precision="bf16", batch_size=16, micro_batch_size=4, resume="auto", quiet=False)
    finally:
        torch.set_num_threads(threads)
    warning = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning") and " then, " in line]
    changed = {
        **{"batch_size": [8, 16], "micro_batch_size": [8, 4], "precision": ["float32", "bf16"]},
        **{"threads": [threads, threads + 1]},
    }
    assert len(warning) == 1
    assert all(f"{name} {then} then, {now} now" in warning[0] for name, (then, now) in changed.items())
    assert [record for record in log_of(run) if "resumed" in record] == [{"step": 2, "resumed": changed}]
    assert run.summary["training"]["resumed"] == [{"step": 2, **changed}]
    assert run.summary["training"]["steps"] == 2 + 2
    assert "batch_size: 8" in (run.path / "recipe.yaml").read_text()


def test_a_layout_change_is_logged_once_though_the_process_is_killed_before_it_saves(distil, stopping, monkeypatch):
    with stopping(2):
        distil(steps=6)
    with broken("_step", lambda self, size: 1 // 0):
        distil(steps=6, batch_size=4, resume="auto")
    run = distil(steps=6, batch_size=4, resume="auto")
    assert [record["step"] for record in log_of(run) if "resumed" in record] == [2]


def test_auto_takes_the_runs_own_decisions(distil, stopping, monkeypatch):
    monkeypatch.setattr("limbeck.training.assemble.faster_precision", lambda stage: "bf16")
    with stopping(2):
        distil(precision="auto")
    monkeypatch.setattr("limbeck.training.assemble.faster_precision", lambda stage: pytest.fail("probed again"))
    run = distil(precision="auto", batch_size=16, resume="auto")
    assert [line.keys() for line in run.summary["training"]["resumed"]] == [{"step", "batch_size"}]
    assert run.summary["training"]["precision"] == "bf16"


# ---------------------------------------------------------------- the same recipe and inputs


def test_a_run_of_another_recipe_is_refused_naming_the_fields(distil):
    distil(checkpoint_every=2)
    with pytest.raises(limbeck.UserError, match=r"learning_rate \(0\.0006 then, 0\.001 now\)"):
        distil(checkpoint_every=2, resume="auto", learning_rate=1e-3)
    with pytest.raises(limbeck.UserError, match=r"steps \(4 then, 8 now\)"):
        distil(checkpoint_every=2, resume="auto", steps=8, batch_size=4)
    with pytest.raises(limbeck.UserError, match=r"holdout \(None then, 0\.1 now\)"):
        distil(checkpoint_every=2, resume="auto", holdout="0.1")


@pytest.fixture
def stopped(distil, stopping, teacher, corpus, tmp_path, monkeypatch, save_bert):
    """A run stopped half-way, whose inputs all are files; returns a function that goes on with it."""
    held = tmp_path / "held.txt"
    held.write_text("the still\n" * 20 + "the vessel of copper\n" * 20)
    first = save_bert(
        tmp_path / "first", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64, seed=5
    )
    settings = {"init": str(first), "holdout": str(held), "corpus": [str(corpus)]}
    with stopping(2):
        distil(**settings)

    def resume(**changes):
        inputs = {"teacher": teacher, **settings, **changes}
        recipe = {"student": "2x32", "steps": 4, "batch_size": 8, "max_length": 16, "dropout": 0.0, "precision": "float32"}
        return limbeck.distill(**inputs, **recipe, output=tmp_path / "run", log_every=1, quiet=True, resume="auto")

    return resume


@pytest.mark.parametrize("kind", ["teacher", "init", "corpus", "holdout"])
def test_inputs_of_another_content_are_refused_and_moved_ones_are_not(stopped, kind, tmp_path, corpus, monkeypatch):
    place = {"teacher": tmp_path / "teacher", "init": tmp_path / "first", "corpus": corpus, "holdout": tmp_path / "held.txt"}[
        kind
    ]
    moved = place.rename(tmp_path / f"moved{place.suffix}")
    file = moved / "model.safetensors" if moved.is_dir() else moved
    before = file.read_bytes()
    file.write_bytes(before[:-3] + bytes([before[-3] ^ 1]) + before[-2:])
    given = [moved] if kind == "corpus" else str(moved)
    with pytest.raises(limbeck.UserError, match=f"The {kind} has changed since the run in .*run began"):
        stopped(**{kind: given})
    file.write_bytes(before)
    monkeypatch.chdir(tmp_path)
    relative = [moved.name] if kind == "corpus" else moved.name
    assert stopped(**{kind: relative}).summary["training"]["resumed"] == []
    assert stopped(**{kind: given}).summary["training"]["steps"] == 4  # a finished run likewise


def test_without_a_checkpoint_the_paths_decide(distil, stopping, corpus, tmp_path, monkeypatch):
    with broken("_step", lambda self, size: 1 // 0):
        distil()
    monkeypatch.chdir(tmp_path)
    distil(corpus=[corpus.name], resume="auto")
    with broken("_step", lambda self, size: 1 // 0):
        distil(overwrite=True)
    other = tmp_path / "other.txt"
    other.write_text(corpus.read_text())
    with pytest.raises(limbeck.UserError, match="corpus"):
        distil(corpus=[other], resume="auto")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("recipe.yaml", "teacher: ["),
        ("recipe.yaml", "steps: 4\n"),
        ("recipe.yaml", None),
        ("summary.json", "{"),
        ("summary.json", "[]"),
        ("summary.json", '{"fingerprints": 3}'),
    ],
)
def test_a_runs_own_files_are_named_when_they_are_garbled(distil, stopping, file, text, tmp_path):
    if file == "summary.json":
        distil()
    else:
        with stopping(2):
            distil()
    path = tmp_path / "run" / file
    # A changed batch size would otherwise change how long the run is to be.
    path.write_text(path.read_text().replace("batch_size: 8", "batch_size: 4") if text is None else text)
    with pytest.raises(limbeck.UserError, match=file.replace(".", r"\.")) as refusal:
        distil(resume="auto")
    assert "\n" not in str(refusal.value)


# ---------------------------------------------------------------- damage


def alter(file, folder):
    path = folder / file
    before = bytearray(path.read_bytes())
    before[len(before) // 2] ^= 4
    path.write_bytes(before)


DAMAGES = {
    **{
        f"altered {name}": (name, partial(alter, name))
        for name in (
            *("student/model.safetensors", "student/config.json", "student/tokenizer.json"),
            *("optimizer.safetensors", "progress.json", "files.json"),
        )
    },
    "truncated weights": ("model.safetensors", lambda folder: os.truncate(folder / "student/model.safetensors", 5000)),
    "missing optimiser": ("optimizer.safetensors", lambda folder: (folder / "optimizer.safetensors").unlink()),
    "garbled progress": ("progress.json", lambda folder: (folder / "progress.json").write_text("{")),
    "no list of files": ("files.json", lambda folder: (folder / "files.json").write_text("{}")),
}


def test_of_a_damaged_checkpoint_the_one_before_is_used(distil, tmp_path, capsys):
    settings = {"dropout": 0.2, "checkpoint_every": 2, "steps": 7}
    alone = distil("alone", **settings)
    run = distil(**settings)
    for name, (file, damage) in DAMAGES.items():
        (run.path / "summary.json").unlink()
        damage(run.path / "checkpoints" / "step-00000006")
        again = distil(resume="auto", **settings | {"quiet": False})
        said = " ".join(capsys.readouterr().err.split())
        assert "step-00000006 is damaged" in said, name
        assert file in said, name
        assert "step-00000004" in said, name
        assert equal(weights(alone), weights(again)), name
        assert log_of(alone) == log_of(run), name
    (run.path / "summary.json").unlink()
    for folder in (run.path / "checkpoints").iterdir():
        alter("optimizer.safetensors", folder)
    before = content(run.path)
    with pytest.raises(limbeck.UserError, match=r"damaged.*begin anew"):
        distil(resume="auto", **settings)
    assert content(run.path) == before


def test_as_many_checkpoints_are_kept_as_asked_for(distil):
    run = distil(steps=9, checkpoint_every=2, keep_checkpoints=3)
    assert names(run.path / "checkpoints") == ["step-00000004", "step-00000006", "step-00000008"]
    run = distil(steps=9, checkpoint_every=2, keep_checkpoints=1, overwrite=True)
    assert names(run.path / "checkpoints") == ["step-00000008"]


@pytest.mark.parametrize("poisoned", ["before", "after"])
def test_nothing_that_is_not_finite_is_written_over_a_good_checkpoint(distil, monkeypatch, poisoned, tmp_path):
    take = Loop._step

    def poison(self):
        with torch.no_grad():
            self.student.embeddings.word_embeddings.weight.fill_(float("nan"))

    def step(self, size):
        last = self.progress.step + 1 == 6
        if last and poisoned == "before":
            poison(self)
        done = yield from take(self, size)
        if last:
            poison(self)
        return done

    monkeypatch.setattr(Loop, "_step", step)
    with pytest.raises(CheckFailed, match=r"step 6"):
        distil(steps=8, checkpoint_every=2)
    saved = tmp_path / "run" / "checkpoints"
    assert names(saved) == ["step-00000002", "step-00000004"]
    for folder in saved.iterdir():
        assert all(value.isfinite().all() for value in load_file(folder / "student" / "model.safetensors").values())


def test_a_full_disk_leaves_everything_that_was_complete(command, tmp_path):
    settings = {"steps": 12, "checkpoint_every": 3, "log_every": 2, "dropout": 0.2}
    alone, run, said = tmp_path / "alone", tmp_path / "run", tmp_path / "said"
    assert finish(start(command(alone, **settings))) == 0
    process = start(command(run, **settings))
    killed(process, (run / "checkpoints" / "step-00000003").exists)
    before = content(run / "checkpoints" / "step-00000003")
    assert finish(start(command(run, **settings), said, largest_file=30_000)) == 1
    message = said.read_text().strip().splitlines()
    assert len(message) == 1
    assert "could not be written" in message[0]
    assert "make room" in message[0]
    assert content(run / "checkpoints" / "step-00000003") == before
    assert not list(run.rglob(".*"))
    assert finish(start(command(run, **settings))) == 0
    assert student(alone) == student(run)
    assert records(alone) == records(run)


def test_a_student_that_finds_no_room_leaves_no_half_of_it(command, tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    assert finish(start(command(run, steps=2), said, largest_file=30_000)) == 1
    assert "student could not be written" in said.read_text()
    assert names(run) == ["log.jsonl", "recipe.yaml"]


def test_a_line_or_file_that_finds_no_room_leaves_nothing_of_itself(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_log({"step": 1})
    write_file(tmp_path / "summary.json", "{}")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, limits[1]))
    try:
        for write in (
            lambda: folder.append_log({"step": 2, "text": 30 * "long"}),
            lambda: write_file(tmp_path / "summary.json", 30 * "long"),
        ):
            with pytest.raises(CheckFailed, match="make room"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(tmp_path) == {(tmp_path / "log.jsonl").relative_to(tmp_path): b'{"step": 1}\n'} | {
        (tmp_path / "summary.json").relative_to(tmp_path): b"{}"
    }


# ---------------------------------------------------------------- one process at a time


def test_a_second_process_in_the_same_directory_is_refused_until_the_first_is_gone(distil, tmp_path):
    held = PROCESSES.Event()
    process = PROCESSES.Process(target=hold, args=(tmp_path / "run", held))
    process.start()
    assert held.wait(60)
    try:
        with pytest.raises(limbeck.UserError, match=rf"Another process \({process.pid}\) is working in"):
            distil()
        for changes in ({"resume": "auto"}, {"overwrite": True}):
            with pytest.raises(limbeck.UserError, match="is working in"):
                distil(**changes)
    finally:
        process.kill()
        finish(process)
    assert names(tmp_path / "run") == [".lock"]
    assert ".lock" not in names(distil().path)


def test_the_home_directory_may_be_written_short(distil, monkeypatch, tmp_path, teacher, corpus):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = {"student": "2x32", "steps": 1, "batch_size": 2, "max_length": 16, "precision": "float32", "quiet": True}
    run = limbeck.distill(teacher, corpus=[corpus], output="~/x", **settings)
    assert run.student.is_relative_to(tmp_path / "home" / "x")
    assert run.student.is_dir()


# ---------------------------------------------------------------- the best student


def test_the_best_is_right_for_negative_values_and_the_first():
    matthews = [Best("highest")]
    for step, value in enumerate([float("nan"), -0.2, -0.1, -0.3, float("nan"), -0.1, float("inf")], start=1):
        matthews.append(matthews[-1].after(value, step))
    assert [(best.value, best.step) for best in matthews] == [(None, None), (None, None), (-0.2, 2)] + 5 * [(-0.1, 3)]
    losses = Best().after(0.5, 1).after(0.0, 2).after(-0.1, 3).after(0.2, 4)
    assert (losses.value, losses.step) == (-0.1, 3)


@pytest.fixture
def scripted(monkeypatch):
    """Held-out losses by step, whatever the student."""

    def use(losses):
        values = iter(losses)

        def turns(*_):
            yield from ()
            return {"loss": next(values)}

        monkeypatch.setattr("limbeck.training.evaluation.HeldOut.turns", turns)

    return use


KEEPING = {"steps": 6, "holdout": "0.1", "eval_every": 1, "keep_best": True, "checkpoint_every": 1, "keep_checkpoints": 9}


def test_the_best_student_is_kept_beside_the_last(distil, scripted):
    scripted([float("nan"), 0.2, -0.2, -0.1, -0.2, 0.1])
    run = distil(**KEEPING)
    assert run.summary["best"] == {"step": 3, "loss": -0.2}
    kept = load_file(run.path / "best" / "model.safetensors")
    assert equal(kept, load_file(run.path / "checkpoints" / "step-00000003" / "student" / "model.safetensors"))
    assert not equal(kept, weights(run))
    _, info = AutoModel.from_pretrained(run.path / "best", output_loading_info=True)
    assert not any(info.values())
    assert "step 3" in (run.path / "best" / "README.md").read_text()


def test_keeping_the_best_disturbs_nothing(distil):
    plain = distil("plain", dropout=0.2, **KEEPING | {"keep_best": False})
    kept = distil("kept", dropout=0.2, **KEEPING)
    assert equal(weights(plain), weights(kept))
    assert log_of(plain) == log_of(kept)
    assert plain.summary["best"] == {}


def test_a_resumed_run_remembers_its_best(distil, scripted, stopping):
    scripted([-0.1, -0.3, -0.2])
    with stopping(3):
        distil(**KEEPING)
    scripted([-0.2, -0.25, -0.1])
    run = distil(**KEEPING, resume="auto")
    assert run.summary["best"] == {"step": 2, "loss": -0.3}
    kept = load_file(run.path / "best" / "model.safetensors")
    assert equal(kept, load_file(run.path / "checkpoints" / "step-00000002" / "student" / "model.safetensors"))


def test_a_best_student_is_not_lost_between_checkpoint_and_writing(distil, scripted, monkeypatch):
    scripted([-0.1, -0.3])
    with broken("_write_best", lambda self: None if self.progress.step == 1 else 1 // 0):
        distil(**KEEPING)
    scripted([0.0, 0.0, 0.0, 0.0])
    run = distil(**KEEPING, resume="auto")
    kept = load_file(run.path / "best" / "model.safetensors")
    assert equal(kept, load_file(run.path / "checkpoints" / "step-00000002" / "student" / "model.safetensors"))


def test_keeping_the_best_needs_evaluations(distil, refused):
    for missing in ("holdout", "eval_every"):
        with refused("holdout", "eval_every"):
            distil(**KEEPING | {missing: None})
