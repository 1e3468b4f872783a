"""A recipe of several stages gives what its distillations one after another give, whatever happens in between."""

import json
import shutil
import signal
import time
from contextlib import contextmanager

import pytest
import torch
import yaml

import limbeck
from limbeck.cli import main
from limbeck.encoders.loading import load_encoder
from limbeck.errors import Interrupted
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, read_recipe
from limbeck.stages import StagedRecipe, StageRecipe, override, plain_stages, recipe_of
from limbeck.studies.entrants import list_entrants, write_twin
from limbeck.training import folder as folders
from limbeck.training import memory
from limbeck.training import staged as orchestration
from limbeck.training.distill import forecasts
from limbeck.training.folder import RunFolder
from limbeck.training.loop import Loop
from limbeck.training.resume import fingerprint
from limbeck.training.staged import with_assistants
from runs import PROCESSES, SETTINGS, content, equal, finish, hold, log_of, records, start, weights

PLAIN = {name: value for name, value in SETTINGS.items() if name != "quiet"}
STAGES = [{"name": "assistant", "student": "3x16"}, {"name": "student", "student": "1x16", "steps": 5}]


@pytest.fixture
def staged(teacher, corpus):
    """A recipe of two stages as a file has it; keyword arguments change the shared fields."""

    def make(**changes):
        return {"teacher": str(teacher), "corpus": [str(corpus)], **PLAIN, "stages": STAGES, **changes}

    return make


@pytest.fixture
def carry_out(tmp_path):
    """Carry out a recipe in a directory."""

    def run(recipe, output="run", **how):
        return limbeck.run(recipe, output=tmp_path / output, quiet=True, **how)

    return run


def student_bytes(folder):
    return {place: data for place, data in content(folder / "student").items() if place.name != "README.md"}  # which has times


# ---------------------------------------------------------------- what it gives


def test_stages_are_the_distillations_one_after_another_to_the_bit(staged, carry_out, distil, teacher, tmp_path):
    run = carry_out(staged(dropout=0.1, seed=3))
    settings = {"init": "random", "dropout": 0.1, "seed": 3}
    assistant = distil("by-hand/assistant", student="3x16", **settings)
    student = limbeck.distill(
        assistant.student,
        **{**SETTINGS, **settings, "steps": 5, "student": "1x16", "corpus": [tmp_path / "text.txt"]},
        output=tmp_path / "by-hand/student",
    )
    first, last = (run.path / "stages" / name for name in ("assistant", "student"))
    assert student_bytes(first) == student_bytes(assistant.path)
    assert student_bytes(last) == student_bytes(student.path)
    assert records(first) == log_of(assistant)
    assert records(last) == log_of(student)
    # The next teacher is the very assistant.
    assert json.loads((last / "summary.json").read_text())["fingerprints"]["teacher"] == fingerprint(
        load_encoder(first / "student").model
    )
    assert content(run.student) == content(last / "student")
    assert (run.student / "model.safetensors").samefile(last / "student" / "model.safetensors")
    assert load_encoder(run.path).shape.layers == 1


def test_the_summary_is_the_last_stage_s_with_figures_of_all(staged, carry_out):
    run = carry_out(staged())
    last = json.loads((run.path / "stages" / "student" / "summary.json").read_text())
    assert run.summary == json.loads((run.path / "summary.json").read_text())
    assert {name: value for name, value in run.summary.items() if name != "stages"} == last
    told = run.summary["stages"]
    assert [(each["name"], each["steps"], each["student"]) for each in told] == [
        ("assistant", 4, "3x16:32/4"),
        ("student", 5, "1x16:32/4"),
    ]
    for each in told:
        training = json.loads((run.path / "stages" / each["name"] / "summary.json").read_text())["training"]
        assert {key: each[key] for key in ("tokens", "seconds", "last_loss")} == {
            key: training[key] for key in ("tokens", "seconds", "last_loss")
        }


def test_the_resolved_recipe_decides_everything_and_repeats_the_run(staged, carry_out):
    run = carry_out(
        staged(steps=None, tokens=300, precision="auto", stages=[STAGES[0], {**STAGES[1], "steps": None, "tokens": 500}])
    )
    resolved = read_recipe(run.path / "recipe.yaml")
    assert [stage["teacher"] for stage in resolved["stages"]][1] == "stage"
    for stage in resolved["stages"]:
        assert (stage["tokens"], stage["packing"]) == (None, "pairs")
        assert isinstance(stage["steps"], int)
        assert "auto" not in (stage["precision"], stage["micro_batch_size"], *stage["objective"].values())
    again = carry_out(run.path / "recipe.yaml", "again")
    assert student_bytes(again.path) == student_bytes(run.path)
    assert read_recipe(again.path / "recipe.yaml") == resolved


def test_a_stage_may_begin_with_the_weights_of_the_one_before(staged, carry_out, distil):
    stages = [{"student": "2x16"}, {"init": "stage", "objective": {"relations": "vv"}, "learning_rate": 1e-4}]
    run = carry_out(staged(stages=stages))
    first, last = (run.path / "stages" / name for name in ("stage-1", "stage-2"))
    changes = {"init": str(first / "student"), "objective": {"relations": "vv"}, "learning_rate": 1e-4}
    by_hand = distil("by-hand", student="2x16", **changes)
    assert student_bytes(last) == student_bytes(by_hand.path)
    assert read_recipe(last / "recipe.yaml")["teacher"] == read_recipe(first / "recipe.yaml")["teacher"]


# ---------------------------------------------------------------- assistants


def test_an_assistant_is_two_stages_that_could_be_written_out(staged, carry_out, distil):
    by_flag = distil("flag", student="1x16/2", init="random", assistant="auto")
    written = carry_out(
        staged(stages=[{"name": "assistant", "student": "3x16/2"}, {"name": "student", "student": "1x16/2"}]), "written"
    )
    assert student_bytes(by_flag.path) == student_bytes(written.path)
    assert read_recipe(by_flag.path / "recipe.yaml") == read_recipe(written.path / "recipe.yaml")
    assert [each["student"] for each in by_flag.summary["stages"]] == ["3x16:32/2", "1x16:32/2"]  # the student's heads


@pytest.mark.parametrize(
    ("student", "layers", "inserted"),
    [("2x16", 4, True), ("2x16", 3, False), ("2x20", 4, False), ("1x32", 4, False), ("3x16", 4, False), ("1x8", 4, True)],
)
def test_auto_takes_an_assistant_where_both_sizes_are_at_most_half(
    student, layers, inserted, save_bert, corpus, tmp_path, capsys
):
    teacher = save_bert(tmp_path / "deep", num_hidden_layers=layers)
    recipe = Recipe(teacher=teacher, corpus=[corpus], student=student, assistant="auto")
    made = with_assistants(recipe, Reporter())
    if inserted:
        assert [(stage.name, stage.student) for stage in made.stages] == [
            ("assistant", f"{layers}x{student.split('x')[1]}"),
            ("student", student),
        ]
    else:
        assert made == Recipe(teacher=teacher, corpus=[corpus], student=student)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("assistant  ")
    assert ("none, since" in said) != inserted


def test_without_an_assistant_auto_leaves_an_ordinary_run(distil):
    run = distil(student="2x32", assistant="auto")
    assert not (run.path / "stages").exists()
    assert read_recipe(run.path / "recipe.yaml")["assistant"] == "none"
    assert distil(student="2x32", assistant="auto", resume="auto").summary == run.summary


def test_what_the_teacher_s_layer_taught_is_mimicked_of_the_assistant_s_last(save_bert, corpus, tmp_path):
    teacher = save_bert(tmp_path / "deep", num_hidden_layers=14, hidden_size=16, num_attention_heads=2, intermediate_size=16)
    common = {**PLAIN, "corpus": [str(corpus)], "teacher": str(teacher), "student": "2x8", "assistant": "auto"}
    told = forecasts(recipe_of(common), tmp_path / "run", quiet=True)
    assert {name: each.teacher.features["q"] for name, each in told.items()} == {"assistant": [12], "student": [14]}
    assert not (tmp_path / "run").exists()
    explicit = with_assistants(recipe_of({**common, "objective": {"teacher_layer": 9}}), Reporter(quiet=True))
    assert [stage.objective.teacher_layer for stage in explicit.stages] == [9, "auto"]


def test_a_chain_of_assistants_and_layers_of_the_last_one(distil):
    run = distil(student="1x16", init="layers", assistant="3x16,2x16", objective="minilm")
    assert [each["name"] for each in run.summary["stages"]] == ["assistant-1", "assistant-2", "student"]
    assert run.summary["student"]["init"] == "layer 2 of the teacher"
    teachers = [read_recipe(run.path / "stages" / each["name"] / "recipe.yaml")["teacher"] for each in run.summary["stages"]]
    assert [teacher.split("/")[-2:] for teacher in teachers[1:]] == [["assistant-1", "student"], ["assistant-2", "student"]]
    inits = [read_recipe(run.path / "stages" / name / "recipe.yaml")["init"] for name in ("assistant-1", "assistant-2")]
    assert inits == ["random", "random"]


def test_an_evaluation_sets_a_staged_student_beside_its_first_teacher(staged, carry_out, tmp_path):
    run = carry_out(staged())
    rows = list_entrants([f"mine={run.path}"], tmp_path / "twins")
    assert [(row.model.role, row.model.name) for row in rows] == [
        ("teacher", "teacher"),
        ("twin", "mine (twin)"),
        ("distilled", "mine"),
    ]
    assert rows[1].distilled_by.student == "1x16:32/4"
    write_twin(rows[1].distilled_by, tmp_path / "before")
    run.path.rename(tmp_path / "moved")
    (twin,) = (row for row in list_entrants([str(tmp_path / "moved")], tmp_path / "twins") if row.model.role == "twin")
    write_twin(twin.distilled_by, tmp_path / "after")
    assert load_encoder(tmp_path / "before").shape == load_encoder(tmp_path / "after").shape


def test_a_run_that_has_no_student_yet_is_not_evaluated(staged, carry_out, monkeypatch, refused, tmp_path):
    with failing(monkeypatch, Loop, "_step", lambda self, _: self.run.path.name == "student"):
        carry_out(staged())
    with refused(tmp_path / "run", "no student yet", "resume it"):
        list_entrants([str(tmp_path / "run")], tmp_path / "twins")


# ---------------------------------------------------------------- interrupted and resumed


@contextmanager
def failing(monkeypatch, owner, name, when):
    """A function fails the first time that `when` holds of its arguments."""
    real = getattr(owner, name)

    def watched(*given, **named):
        if when(*given):
            raise ZeroDivisionError
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, watched)
        with pytest.raises(ZeroDivisionError):
            yield


def test_interrupted_anywhere_and_resumed_equals_left_alone_to_the_bit(staged, carry_out, monkeypatch, tmp_path):
    recipe = staged(checkpoint_every=2, dropout=0.1)
    alone = carry_out(recipe, "alone")
    run = tmp_path / "run"

    def in_stage(name, step):
        return lambda self, _: (self.run.path.name, self.progress.step) == (name, step)

    points = [
        (Loop, "_step", in_stage("assistant", 3)),
        (RunFolder, "write_summary", lambda self, _: self.path.name == "assistant"),
        (Loop, "_step", in_stage("student", 0)),
        (Loop, "_step", in_stage("student", 4)),
        (RunFolder, "write_recipe", lambda self, _: self.path == run and (run / "stages").exists()),
        (orchestration, "link_directory", lambda *_: True),
        (folders.os, "link", lambda *_: True),
        (RunFolder, "write_summary", lambda self, _: self.path == run),
    ]
    for owner, name, when in points:
        with failing(monkeypatch, owner, name, when):
            carry_out(recipe, resume="auto")
        assert not (run / "summary.json").exists()
    begun = (run / "stages" / "assistant" / "summary.json").stat().st_mtime_ns
    finished = carry_out(recipe, resume="auto")
    assert (run / "stages" / "assistant" / "summary.json").stat().st_mtime_ns == begun
    assert student_bytes(finished.path) == student_bytes(alone.path)
    assert (run / "recipe.yaml").read_text() == (alone.path / "recipe.yaml").read_text()
    for stage in ("assistant", "student"):
        assert records(run / "stages" / stage) == records(alone.path / "stages" / stage)
    assert sorted(entry.name for entry in run.iterdir()) == ["recipe.yaml", "stages", "student", "summary.json"]


def test_killed_and_resumed_equals_left_alone_to_the_bit(staged, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(staged(checkpoint_every=7, stages=[STAGES[0], {**STAGES[1], "steps": 40}])))
    command = ["run", file, "--resume", "auto", "--quiet", "-o"]
    assert finish(start([*command, tmp_path / "alone"])) == 0
    log = tmp_path / "run" / "stages" / "student" / "log.jsonl"
    process = start([*command, tmp_path / "run"])
    while process.is_alive() and not (log.exists() and log.read_bytes().count(b"\n") > 10):
        time.sleep(0.005)
    process.kill()
    assert finish(process) == -signal.SIGKILL
    assert finish(start([*command, tmp_path / "run"])) == 0
    assert student_bytes(tmp_path / "run") == student_bytes(tmp_path / "alone")


def test_an_end_that_is_asked_for_saves_the_stage(staged, carry_out, monkeypatch, tmp_path):
    take = Loop._step

    def watched(self, size):
        if self.run.path.name == "student" and self.progress.step == 2:
            signal.raise_signal(signal.SIGTERM)
        return take(self, size)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", watched)
        with pytest.raises(Interrupted, match=r"--resume auto"):
            carry_out(staged())
    assert [path.name for path in (tmp_path / "run" / "stages" / "student" / "checkpoints").iterdir()] == ["step-00000003"]
    assert carry_out(staged(), resume="auto").summary["stages"][1]["steps"] == 5


def test_a_finished_run_is_left_as_it_is_even_without_its_stages(staged, carry_out, tmp_path):
    run = carry_out(staged())
    before = content(run.path)
    assert carry_out(staged(), resume="auto").summary == run.summary
    assert content(run.path) == before
    folders._remove(run.path / "stages" / "assistant")
    left = content(run.path)
    assert carry_out(staged(), resume="auto").summary == run.summary
    assert content(run.path) == left


# ---------------------------------------------------------------- refusals


def test_a_stage_that_was_removed_from_a_finished_run_is_missed(staged, carry_out, refused, tmp_path):
    run = carry_out(staged())
    shutil.rmtree(run.path / "stages" / "student")
    (run.path / "summary.json").unlink()
    with refused("was finished, and student of its stages was removed", "--overwrite"):
        carry_out(staged(), resume="auto")
    carry_out(staged(), overwrite=True)
    summary = run.path / "stages" / "student" / "summary.json"
    summary.write_text('{"fingerprints": {}}')
    (run.path / "summary.json").unlink()
    with refused("summary.json of stage student", "remove it"):
        carry_out(staged(), resume="auto")
    summary.unlink()
    assert carry_out(staged(), resume="auto").summary["stages"][1]["steps"] == 5


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([{"student": "2x16"}, {"student": "2x8", "objective": {"relation_heads": 3}}], "relation heads"),
        ([{"student": "2x16"}, {"student": "3x16", "init": "layers"}], "cannot be cut from a teacher of 2"),
        ([{"student": "2x16"}, {"student": "1x8", "init": "layers"}], "do not fit"),
        ([{"student": "2x16"}, {"student": "1x18", "objective": "minilm"}], "split into 4 attention heads"),
        ([{"student": "2x16/2"}, {"student": "1x16/4", "objective": "minilm"}], "MiniLM compares attention heads"),
        ([{"student": "2x16"}, {"student": "1x16", "objective": {"teacher_layer": 3}}], "layers go from 1 to 2"),
        ([{"student": "2x16"}, {"student": "1x16", "holdout": "nowhere.txt"}], "no text file nowhere.txt"),
        ([{"student": "2x16"}, {"student": "1x16", "teacher": "nowhere/at/all"}], "no model folder"),
        ([{"student": "2x16"}, {"student": "1x16", "max_length": 500}], "positions"),
        ([{"student": "2x16"}, {"init": "stage", "student": "2x16:20"}], "ask for a student of its shape"),
    ],
)
def test_a_later_stage_is_checked_before_the_first_begins(staged, carry_out, refused, tmp_path, stages, expected):
    with refused("Stage stage-2: ", expected):
        carry_out(staged(stages=stages))
    assert not (tmp_path / "run").exists()


def test_memory_of_a_later_stage_is_checked_before_the_first_begins(staged, carry_out, refused, monkeypatch, tmp_path):
    there = memory._highest(torch.device("cpu")) + 20_000_000  # a process's earlier peak counts as needed
    monkeypatch.setattr(memory, "available_memory", lambda _: there)
    with refused("Stage student: ", "needs", "of memory", "--micro-batch-size"):
        carry_out(staged(stages=[STAGES[0], {**STAGES[1], "batch_size": 10**9, "micro_batch_size": 10**9}]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"stages": []}, ["stages must be a list"]),
        ({"stages": {"student": "1x16"}}, ["stages must be a list"]),
        ({"stages": [{"student": "1x16", "bach_size": 3}]}, ["Stage stage-1: bach_size", "did you mean batch_size?"]),
        ({"bach_size": 3}, ["Stage assistant: bach_size: no such setting"]),
        ({"stages": [{"name": "one", "student": "big"}]}, ["Stage one: student", "LAYERSxWIDTH"]),
        ({"stages": [STAGES[0], {**STAGES[1], "name": "Assistant"}]}, ["two stages are called"]),
        ({"stages": [{"name": "../out", "student": "1x16"}]}, ["is no name of a stage"]),
        ({"stages": [{"name": "1", "student": "1x16"}]}, ["is no name of a stage"]),
        ({"stages": [{"student": "1x16", "init": "stage"}]}, ["stage-1 is the first stage"]),
        ({"stages": [{"student": "1x16", "teacher": "stage"}]}, ["stage-1 is the first stage"]),
        ({"stages": [{"student": "1x16"}, {"student": "1x8", "init": "stage"}]}, ["it cannot be a 1x8"]),
        ({"stages": [{"student": "1x16"}, {"teacher": "stage", "init": "stage"}]}, ["Stage stage-2", "a teacher other than"]),
        ({"assistant": "auto"}, ["Stage assistant: assistant is for a recipe without stages"]),
        ({"objective": 3, "stages": [{"student": "1x16", "objective": {"relation_heads": 2}}]}, ["must be a name or a mapping"]),
    ],
)
def test_wrong_recipes_are_refused_in_one_line_that_names_the_stage(staged, refused, changes, expected):
    with refused(*expected):
        recipe_of(staged(**changes))


def test_a_recipe_can_be_resumed_only_as_it_was(staged, carry_out, monkeypatch, refused, tmp_path):
    with failing(monkeypatch, Loop, "_step", lambda self, _: self.run.path.name == "assistant" and self.progress.step == 2):
        carry_out(staged())
    first, last = STAGES
    for changes, expected in (
        ({"seed": 1}, "seed (0 then, 1 now)"),
        ({"stages": [{**first, "student": "2x16"}, last]}, "Stage assistant: "),
        ({"stages": [first, {**last, "steps": 6}]}, "Stage student: "),
        ({"stages": [first]}, "other stages: assistant, student then, assistant now"),
        ({"stages": [first, {**last, "name": "other"}]}, "other stages"),
    ):
        with refused(tmp_path / "run", expected):
            carry_out(staged(**changes), resume="auto")
    with refused("holds a run of several stages", "its own recipe"):
        carry_out({**{name: value for name, value in staged().items() if name != "stages"}, "student": "1x16"}, resume="auto")
    assert carry_out(staged(stages=[first, {**last, "log_every": 2}]), resume="auto").summary["stages"][0]["steps"] == 4


def test_directories_are_refused_and_overwritten_as_those_of_any_run(staged, carry_out, distil, refused, tmp_path):
    distil("run")
    before = content(tmp_path / "run")
    with refused("is not empty", "--resume auto or --overwrite"):
        carry_out(staged())
    with refused("holds a run without stages"):
        carry_out(staged(), resume="auto")
    with refused("give one of them"):
        carry_out(staged(), resume="auto", overwrite=True)
    with refused("lies in the run directory"):
        carry_out(staged(teacher=str(tmp_path / "run" / "student")), overwrite=True)
    with refused("Stage student"):
        carry_out(staged(stages=[STAGES[0], {**STAGES[1], "holdout": "nowhere.txt"}]), overwrite=True)
    assert content(tmp_path / "run") == before
    (tmp_path / "run" / "mine.txt").write_text("keep")
    with refused("mine.txt, which no run writes"):
        carry_out(staged(), overwrite=True)
    (tmp_path / "run" / "mine.txt").unlink()
    run = carry_out(staged(), overwrite=True)
    assert not (run.path / "log.jsonl").exists()
    second = carry_out(staged(stages=[STAGES[0]]), overwrite=True)
    assert [path.name for path in (second.path / "stages").iterdir()] == ["assistant"]


def test_a_directory_in_which_another_process_works_is_refused(staged, carry_out, refused, tmp_path):
    held = PROCESSES.Event()
    process = PROCESSES.Process(target=hold, args=(tmp_path / "run", held))
    process.start()
    assert held.wait(60)
    try:
        with refused("Another process", process.pid):
            carry_out(staged())
    finally:
        process.kill()
        process.join()


# ---------------------------------------------------------------- fields set anew, and the command line


def test_fields_are_set_for_all_stages_or_for_one():
    recipe = {
        "teacher": "t",
        "corpus": ["c"],
        "tokens": 9,
        "objective": "minilm",
        "stages": [{"name": "first", "student": "2x8", "epochs": 1}, {"student": "1x8", "objective": {"relation_heads": 4}}],
    }
    before = json.loads(json.dumps(recipe))
    changes = {
        "steps": 7,
        "objective.teacher_layer": 2,
        "stages.first.student": "3x8",
        "stages.2.objective.name": "minilm",
        "stages.stage-2.learning_rate": 1e-3,
    }
    first, second = recipe_of(override(recipe, changes)).stages
    assert (first.steps, first.tokens, first.epochs, second.steps, second.tokens) == (7, None, None, 7, None)
    assert (first.student, second.student) == ("3x8", "1x8")
    assert (first.objective, second.objective) == (limbeck.MiniLM(teacher_layer=2), limbeck.MiniLM())
    assert (first.learning_rate, second.learning_rate) == (6e-4, 1e-3)
    assert recipe == before


def test_a_stage_s_objective_takes_the_shared_one_s_place_or_changes_it(staged):
    stages = [
        {**STAGES[0], "objective": {"teacher_layer": 2}},
        {**STAGES[1], "objective": {"name": "minilmv2", "relations": "vv"}},
    ]
    first, second = recipe_of(staged(objective={"relation_heads": 4}, stages=stages)).stages
    assert first.objective == limbeck.MiniLMv2(relation_heads=4, teacher_layer=2)
    assert second.objective == limbeck.MiniLMv2(relations=("vv",))


def test_python_and_yaml_make_the_same_staged_recipe(staged):
    read = recipe_of(staged())
    common = {name: value for name, value in staged().items() if name != "stages"}
    stages = [StageRecipe(**common | STAGES[0]), StageRecipe(**common | STAGES[1] | {"teacher": "stage"})]
    assert StagedRecipe(stages=stages) == read
    assert recipe_of(yaml.safe_load(yaml.safe_dump(plain_stages(read)))) == read


def test_a_length_is_set_once(staged, refused):
    for changes in ({"steps": 1, "tokens": 2}, {"stages.1.steps": 1, "stages.1.epochs": 2}):
        with refused(" and ".join(changes), "give one of them"):
            override(staged(), changes)
    override(staged(), {"stages.assistant.steps": 1, "stages.student.tokens": 2})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("stages.4.steps", "no stage '4', its stages are assistant, student"),
        ("stages.asistant.steps", "did you mean assistant?"),
        ("corpus.x", "corpus.x: no such setting"),
        ("stages.1", "stages.1: no such setting"),
        ("objective.relations.qq", "no such setting"),
    ],
)
def test_what_cannot_be_set_is_refused(staged, key, expected, refused):
    with refused(expected):
        override(staged(), {key: 1})


def test_stages_that_hold_themselves_are_refused(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("teacher: t\ncorpus: c\nstages: &s [*s]\n")
    assert main(["run", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "run")]) == 2
    assert "stages must be a list with the fields of each stage" in capsys.readouterr().err


def test_the_command_line_carries_out_and_forecasts_stages(staged, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(staged()))
    command = ["run", str(file), "-o", str(tmp_path / "run"), "--json", "--quiet"]
    given = ["--set", "steps=2", "stages.1.student=2x16", "--set", "objective.relation_heads=8"]
    assert main([*command, *given, "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)["stages"]
    assert {name: (each["steps"], each["student"]["shape"]) for name, each in told.items()} == {
        "assistant": (2, "2x16:32/4"),
        "student": (2, "1x16:32/4"),
    }
    assert told["student"]["teacher"]["shape"] == told["assistant"]["student"]["shape"]
    assert not (tmp_path / "run").exists()
    assert main([*command, *given]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [each["steps"] for each in summary["stages"]] == [2, 2]
    assert summary["objective"]["relation_heads"] == 8
    assert main([*command, *given, "--resume", "auto", "--dry-run"]) == 0
    assert [each["steps"] for each in json.loads(capsys.readouterr().out)["stages"].values()] == [0, 0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["run", "{file}", "--set", "steps"], "write KEY=VALUE"),
        (["run", "{file}", "--set", "steps=1", "steps=2"], "--set was given a key twice"),
        (["run", "{file}", "--set", "steps=0"], "Stage assistant: --set steps: should be greater"),
        (["run", "{file}", "--set", "student=big"], "Stage assistant: --set student"),
        (["run", "{file}", "--set", "corpus=null"], "Stage assistant: --set corpus"),
        (["run", "{file}", "--set", "bach_size=3"], "--set bach_size: no such setting; did you mean batch_size?"),
        (["run", "nowhere.yaml"], "The recipe nowhere.yaml cannot be read"),
        (["run", "minilm-6x38"], "did you mean minilm-6x384?"),
        (["run", "minilm-6x384"], "corpus (--set corpus=...) is required"),
        (["distill", "--config", "{file}"], "has stages; carry it out with limbeck run"),
    ],
)
def test_wrong_commands_are_refused_in_one_line(staged, given, expected, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(staged()))
    assert main([*(part.format(file=file) for part in given), "-o", str(tmp_path / "run"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_recipe_without_stages_runs_as_its_distillation(staged, carry_out, distil, teacher, corpus):
    fields = {**{name: value for name, value in staged().items() if name != "stages"}, "student": "2x32"}
    assert equal(weights(carry_out(fields, "one", init="layers")), weights(distil("two", student="2x32")))
