"""Several students of one teacher's pass: each becomes what it would by itself, whatever happens on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import limbeck
from limbeck.cli import main
from limbeck.encoders.loading import load_encoder
from limbeck.errors import CheckFailed, Interrupted
from limbeck.progress import Chorus
from limbeck.recipe import Recipe
from limbeck.studies.entrants import list_entrants
from limbeck.training import memory, siblings
from limbeck.training.distill import forecasts
from limbeck.training.folder import RunFolder
from limbeck.training.loop import Loop
from limbeck.training.stage import Teacher
from runs import SETTINGS, content, equal, finish, log_of, records, start, weights

STUDENTS = ["2x32", "1x16", "3x32:48"]
NAMES = ["2x32", "1x16", "3x32-48"]
LEARNING = {"init": "random", "dropout": 0.1, "micro_batch_size": 3, "holdout": "0.1", "eval_every": 2}
"""Of everything that could set students of one pass apart from lonely ones a little."""


@contextmanager
def failing(owner, name, when):
    """A function fails the first time that `when` holds of its arguments."""
    real = getattr(owner, name)

    def watched(*given, **named):
        if when(*given):
            raise ZeroDivisionError
        return real(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, watched)
        with pytest.raises(ZeroDivisionError):
            yield


@pytest.fixture
def passes(monkeypatch):
    """The batches that a teacher ran over once training had begun."""
    seen, begun = [], []
    take, capture = Loop._step, Teacher.__call__

    def step(self, size):
        begun.append(True)
        return take(self, size)

    def watched(self, batch):
        if begun:
            seen.append(batch["input_ids"])
        return capture(self, batch)

    monkeypatch.setattr(Loop, "_step", step)
    monkeypatch.setattr(Teacher, "__call__", watched)

    def of(run):
        run()
        found = list(seen)
        seen.clear()
        begun.clear()
        return found

    return of


# ---------------------------------------------------------------- what it gives


def test_each_student_becomes_what_it_would_by_itself_to_the_bit(distil):
    together = distil("together", student=STUDENTS, checkpoint_every=2, **LEARNING)
    assert list(together.runs) == NAMES
    for shape, name in zip(STUDENTS, NAMES, strict=True):
        lonely = distil(f"alone-{name}", student=shape, checkpoint_every=2, **LEARNING)
        run = together.runs[name]
        assert equal(weights(run), weights(lonely))
        assert log_of(run) == log_of(lonely)
        assert (run.path / "recipe.yaml").read_text() == (lonely.path / "recipe.yaml").read_text()
        assert {key: run.summary[key] for key in ("student", "objective", "holdout", "untrained", "fingerprints")} == {
            key: lonely.summary[key] for key in ("student", "objective", "holdout", "untrained", "fingerprints")
        }


def test_the_teacher_runs_once_over_each_batch_of_training_and_of_evaluation(distil, passes):
    alone = passes(lambda: distil("one", student="2x32", **LEARNING))
    together = passes(lambda: distil("three", student=STUDENTS, **LEARNING))
    assert len(alone) > SETTINGS["steps"] * 3
    assert [len(ids) for ids in together] == [len(ids) for ids in alone]
    assert all(map(torch.equal, together, alone))


def test_two_processes_make_the_same_students_as_one(distil, teacher, corpus, tmp_path):
    settings = {"init": "random", "steps": 5, "holdout": "0.1"}
    alone = distil("alone", student=["2x32/8", "1x16"], **settings)
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "limbeck", "distill"),
            *("--teacher", str(teacher), "--corpus", str(corpus), "--student", "2x32/8", "1x16", *flags, "--batch-size", "8"),
            *("--max-length", "16", "--dropout", "0", "--precision", "float32", "--log-every", "1"),
            *("-o", str(tmp_path / "together")),
        ],
        check=True,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    for name, run in alone.runs.items():
        together = load_file(tmp_path / "together" / "students" / name / "model.safetensors")
        for key, value in weights(run).items():
            torch.testing.assert_close(together[key], value, atol=1e-5, rtol=1e-4)
        for one, other in zip(log_of(run), records(tmp_path / "together" / "runs" / name), strict=True):
            assert one == pytest.approx(other, rel=1e-4)


def test_a_run_of_several_holds_each_student_and_all_logs(distil, tmp_path):
    run = distil(student=STUDENTS, **LEARNING)
    assert run.path == tmp_path / "run"
    assert sorted(path.name for path in run.student.iterdir()) == sorted(NAMES)
    for name, each in run.runs.items():
        assert AutoModel.from_pretrained(run.student / name).config.num_hidden_layers == int(name[0])
        assert [line for line in records(run.path) if line["student"] == name] == [
            {"student": name, **line} for line in log_of(each)
        ]
    assert [line["step"] for line in records(run.path)] == sorted(line["step"] for line in records(run.path))
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary == run.summary
    assert list(summary["students"]) == NAMES
    recipe = limbeck.recipe.read_recipe(run.path / "recipe.yaml")
    assert recipe["student"] == STUDENTS
    assert recipe["precision"] == "float32"


def test_the_command_names_them_one_after_another(teacher, corpus, tmp_path, capsys):
    output = tmp_path / "run"
    command = ["distill", "--teacher", teacher, "--corpus", corpus, "--student", "2x32", "1x16", "--steps", 2, "--batch-size", 4]
    assert main([*map(str, command), "--max-length", "16", "--json", "-o", str(output)]) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)["students"]) == ["2x32", "1x16"]
    assert len([line for line in err.splitlines() if line.startswith("teacher")]) == 1
    assert [word for word in ("2x32:", "1x16:") if word not in err] == []
    assert any("loss 2x32 " in line and ", 1x16 " in line for line in err.splitlines())


def test_each_is_evaluated_beside_its_own_twin(distil, tmp_path, refused):
    run = distil(student=STUDENTS[:2], init="random")
    rows = [(row.model.role, row.model.name) for row in list_entrants([f"mine={run.path}"], tmp_path / "twins")]
    assert rows[1:] == [
        ("twin", "mine-1x16 (twin)"),
        ("distilled", "mine-1x16"),
        ("twin", "mine-2x32 (twin)"),
        ("distilled", "mine-2x32"),
    ]
    with refused("several students", "1x16, 2x32", run.student / "1x16"):
        load_encoder(str(run.path))


# ---------------------------------------------------------------- interrupted and resumed


def test_killed_anywhere_and_resumed_equals_left_alone_to_the_bit(distil, tmp_path):
    settings = {"student": STUDENTS, "steps": 6, "checkpoint_every": 2, **LEARNING}
    alone = distil("alone", **settings)
    run = tmp_path / "run"

    def at(name, step):
        return lambda self, *_: (self.run.path.name, self.progress.step) == (name, step)

    points = [
        (Loop, "_step", at("1x16", 1)),
        (Loop, "_step", at("3x32-48", 3)),
        (Loop, "_save", at("1x16", 4)),  # the first student is ahead now
        (RunFolder, "write_summary", lambda self, _: self.path.name == "1x16"),
        (siblings, "link_directory", lambda *_: True),
        (RunFolder, "write_summary", lambda self, _: self.path == run),
    ]
    for owner, name, when in points:
        with failing(owner, name, when):
            distil(resume="auto", **settings)
        assert not (run / "summary.json").exists()
    resumed = distil(resume="auto", **settings)
    for name in NAMES:
        assert equal(weights(resumed.runs[name]), weights(alone.runs[name]))
    told = [line for line in records(run) if "resumed" not in line]
    assert sorted(map(str, told)) == sorted(map(str, records(alone.path)))
    assert (run / "recipe.yaml").read_text() == (alone.path / "recipe.yaml").read_text()
    before = content(run)
    again = distil(resume="auto", **settings)
    assert again.summary == resumed.summary
    assert {place: each for place, each in content(run).items() if place.suffix == ".safetensors"} == {
        place: each for place, each in before.items() if place.suffix == ".safetensors"
    }


def test_a_student_whose_run_was_removed_is_trained_again_by_itself(distil):
    settings = {"student": STUDENTS[:2], **LEARNING}
    run = distil(**settings)
    before = weights(run.runs["1x16"])
    shutil.rmtree(run.runs["1x16"].path)
    (run.path / "summary.json").unlink()
    again = distil(resume="auto", **settings)
    assert equal(weights(again.runs["1x16"]), before)


def test_an_end_that_is_asked_for_saves_all_at_the_same_step(distil, monkeypatch, tmp_path):
    take = Loop._step

    def step(self, size):
        if self.progress.step == 2 and self.run.path.name == "1x16":
            signal.raise_signal(signal.SIGTERM)
        return (yield from take(self, size))

    settings = {"student": STUDENTS, "checkpoint_every": 100, **LEARNING}
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", step)
        with pytest.raises(Interrupted, match=r"2x32, 1x16, 3x32-48 stopped after step . of 4.*--resume auto"):
            distil(**settings)
    saved = [[path.name for path in tmp_path.glob(f"run/runs/{name}/checkpoints/*")] for name in NAMES]
    assert saved[0]
    assert saved == [saved[0]] * 3
    resumed, alone = distil(resume="auto", **settings), distil("alone", **settings)
    for name in NAMES:
        assert equal(weights(resumed.runs[name]), weights(alone.runs[name]))


def test_a_killed_process_goes_on_from_the_command_line(teacher, corpus, tmp_path):
    output = tmp_path / "run"
    command = [
        "distill",
        "--teacher",
        teacher,
        "--corpus",
        corpus,
        "--student",
        "2x32",
        "1x16",
        "--steps",
        60,
        "--batch-size",
        4,
    ]
    command += ["--max-length", 16, "--checkpoint-every", 5, "--quiet", "--resume", "auto", "-o", output]
    process = start(command)
    deadline = time.monotonic() + 100
    while not list(output.glob("runs/1x16/checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    assert finish(process) == -signal.SIGKILL
    assert not (output / "students").exists()
    process = start(command)
    assert finish(process) == 0
    assert sorted(path.name for path in (output / "students").iterdir()) == ["1x16", "2x32"]


# ---------------------------------------------------------------- what goes wrong


def test_a_loss_that_is_not_finite_stops_its_own_student_only(distil, monkeypatch, tmp_path):
    take = Loop._step

    def step(self, size):
        if self.progress.step == 2 and self.run.path.name == "1x16":
            with torch.no_grad():
                self.student.embeddings.word_embeddings.weight.fill_(float("nan"))
        return (yield from take(self, size))

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", step)
        with pytest.raises(CheckFailed, match=r"^1x16: .*not finite at step 3.*finished"):
            distil(student=STUDENTS, **LEARNING)
    run = tmp_path / "run"
    assert sorted(path.name for path in (run / "students").iterdir()) == ["2x32", "3x32-48"]
    assert not (run / "summary.json").exists()
    lonely = distil("alone", student="2x32", **LEARNING)
    assert equal(weights(lonely), load_file(run / "students" / "2x32" / "model.safetensors"))
    again = distil(resume="auto", student=STUDENTS, **LEARNING)
    assert list(again.runs) == NAMES


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"assistant": "auto"}, ["an assistant teaches one student"]),
        ({"student": ["2x32", "2x32"]}, ["2x32 stands there twice"]),
        ({"student": ["2x32", "2x3y"]}, ["'2x3y' is no student shape"]),
        ({"student": ["2x32:64", "2x32-64"]}, ["no student shape"]),
        ({"student": ["2x32", "1x16"], "init": "layers"}, ["Student 1x16:", "width"]),
        ({"student": ["2x32", "1x36"], "objective": limbeck.MiniLMv2(relation_heads=8)}, ["Student 1x36:", "choose one of"]),
        ({"trackers": ["trackio"]}, ["trackio"]),
        ({"resume": "maybe"}, ["never or auto"]),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(distil, refused, tmp_path, changes, named):
    with refused(*named):
        distil(**{"student": ["2x32", "1x16"], "init": "random", **changes})
    assert not (tmp_path / "run").exists()


def test_a_stage_has_one_student(teacher, corpus, tmp_path, refused):
    stages = [{"name": "first", "student": ["2x32", "1x16"]}]
    with refused("a stage has one student", "2x32 and 1x16"):
        limbeck.run({"teacher": str(teacher), "corpus": [str(corpus)], "stages": stages}, output=tmp_path / "run")


def test_a_run_goes_on_with_its_own_students(distil, refused, tmp_path):
    distil(student=["2x32", "1x16"], init="random")
    before = content(tmp_path / "run")
    for student in ("2x32", ["1x16", "2x32"], ["2x32", "1x16", "1x32"]):
        with refused(tmp_path / "run", "2x32"):
            distil(student=student, init="random", resume="auto")
    distil("lonely", student="2x32", init="random")
    with refused("a run of 2x32", "not of 2x32 and 1x16"):
        distil("lonely", student=["2x32", "1x16"], init="random", resume="auto")
    with refused("Student 2x32:", "learning_rate"):
        distil(student=["2x32", "1x16"], init="random", learning_rate=0.1, resume="auto")
    assert content(tmp_path / "run") == before
    distil(student=["1x32", "1x16"], init="random", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "run" / "runs").iterdir()) == ["1x16", "1x32"]


def test_memory_must_suffice_for_all_of_them(distil, monkeypatch, refused, tmp_path):
    whole, alone = [], []
    check = siblings.check_memory
    monkeypatch.setattr(siblings, "check_memory", lambda given, *how, **named: whole.append(given) or check(given, *how, **named))
    distil(student=STUDENTS, init="random")
    (whole,) = whole
    monkeypatch.setattr("limbeck.training.run.check_memory", lambda given, wanted, *_, **__: alone.append(given) or wanted)
    for name, student in zip(NAMES, STUDENTS, strict=True):
        distil(f"alone-{name}", student=student, init="random")
    assert whole.moments == sum(each.moments for each in alone)
    assert whole.table == sum(each.table for each in alone)
    assert whole.step(8, accumulates=False) == pytest.approx(max(each.step(8, accumulates=False) for each in alone), rel=0.1)
    gathered = memory.together(alone, accumulates=True)
    assert gathered.table == whole.table + sum(each.gradients for each in alone) - gathered.gradients
    monkeypatch.setattr(memory, "available_memory", lambda _: 1000)
    with refused("needs", "of memory"):
        distil("none", student=STUDENTS, init="random")
    assert not (tmp_path / "none").exists()


def test_the_dry_run_tells_of_each_and_of_all(teacher, corpus, tmp_path, capsys):
    settings = {name: value for name, value in SETTINGS.items() if name != "quiet"}
    recipe = Recipe(teacher=str(teacher), corpus=[str(corpus)], student=STUDENTS, **settings)
    told = forecasts(recipe, tmp_path / "run", quiet=True)
    assert list(told) == NAMES
    lonely = {
        name: forecasts(Recipe(**{**vars(recipe), "student": shape}), tmp_path / "one", quiet=True)[""]
        for name, shape in zip(NAMES, STUDENTS, strict=True)
    }
    first, *others = NAMES
    assert told[first].flops_a_step == lonely[first].flops_a_step
    for name in others:
        assert told[name].trained == lonely[name].trained
        assert told[name].flops_a_step < lonely[name].flops_a_step
    command = ["distill", "--teacher", teacher, "--corpus", corpus, "--student", *STUDENTS, "--steps", 4, "--max-length", 16]
    assert main([*map(str, command), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert [line for line in ("student 1x16", "student 3x32-48", "all students", "teacher's pass") if line not in out] == []
    assert main([*map(str, command), "--dry-run", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["students"]) == NAMES


def test_a_step_is_told_of_once_all_have_come_to_it(capsys):
    chorus = Chorus(["a", "b"])
    voices = [chorus.voice(name) for name in ("a", "b")]
    with chorus.training(4, 0):
        for voice in voices:
            voice.fact("teacher", "the same")
            voice.logged({"step": 1, "loss": 0.5, "tokens_per_second": 10})
        voices[0].logged({"step": 2, "loss": 0.25, "tokens_per_second": 10})
        chorus.names.remove("b")  # which has ended
        voices[0].logged({"step": 4, "loss": 0.125, "tokens_per_second": 10})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].split() == ["teacher", "the", "same"]
    assert [line.split("  ")[1] for line in lines[1:]] == ["loss a 0.5000, b 0.5000", "loss a 0.1250"]
