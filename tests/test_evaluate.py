"""Comparing models on tasks: which rows there are, what is measured, and that nothing is done twice."""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertForSequenceClassification

import limbeck
from limbeck.cli import main
from limbeck.encoders.loading import load_encoder
from limbeck.encoders.shape import StudentShape
from limbeck.encoders.students import build_student
from limbeck.errors import CheckFailed, UserError
from limbeck.recipe import read_recipe
from limbeck.report import Model
from limbeck.studies import frozen, tuning
from limbeck.studies.evaluate import list_entrants, write_twin
from limbeck.tasks import probes
from limbeck.tasks.finetune import run_finetuning
from limbeck.training.folder import RunFolder
from runs import SETTINGS, content, equal, finish, start

WORDS = ["the", "of", "and", "water", "stone", "paper", "glass", "spirit", "vapour", "still", "flask", "fire", "drop", "slow"]


@pytest.fixture
def glue(tmp_path):
    """SST-2, which one word decides, and STS-B, whose scores go by shared words."""
    drawn, folder = random.Random(0), tmp_path / "glue"
    for name, number in (("train", 120), ("dev", 40)):
        (folder / "SST-2").mkdir(parents=True, exist_ok=True)
        (folder / "STS-B").mkdir(exist_ok=True)
        rows, pairs = [], []
        for row in range(number):
            words, label = drawn.choices(WORDS, k=6), drawn.randrange(2)
            rows.append(f"{' '.join([*words, 'warm' if label else 'cold'])}\t{label}\n")
            shared = drawn.randrange(6)
            second = words[:shared] + drawn.choices(WORDS, k=6 - shared)
            pairs.append(f"{row}\t{' '.join(words)}\t{' '.join(second)}\t{shared}.0\n")
        (folder / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
        (folder / "STS-B" / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tscore\n" + "".join(pairs))
    return folder


@pytest.fixture
def protocol(tmp_path):
    """A quick one, as a file of the user's own."""
    file = tmp_path / "quick.yaml"
    file.write_text("description: quick\nepochs: 1\nlearning_rate: 1.0e-3\nprecision: float32\neval_every: end\nbatch_size: 16\n")
    return file


@pytest.fixture
def student(distil):
    return distil("student").path


@pytest.fixture
def compare(student, glue, tmp_path):
    def run(*models, output="results", tasks=("sst2", "stsb"), **settings):
        given = {"data": [str(glue)], "quiet": True, **settings}
        return limbeck.evaluate([f"student={student}", *map(str, models)], tasks=tasks, output=tmp_path / output, **given)

    return run


def test_of_a_run_the_teacher_and_the_twin_are_rows_beside_the_student(student, teacher, save_bert, tmp_path):
    other = save_bert(tmp_path / "other", num_hidden_layers=1)
    entrants = list_entrants([f"mine={student}", f"the teacher={teacher}", str(other)], tmp_path / "twins")
    rows = {entrant.model.name: entrant.model for entrant in entrants}
    assert rows["the teacher"].role == "teacher"
    assert rows["mine"] == Model("mine", "distilled", "2x32", rows["mine"].parameters, taught_by="the teacher")
    assert (rows["mine (twin)"].role, rows["mine (twin)"].twin_of) == ("twin", "mine")
    assert rows["other"].role == "comparator"
    assert len(rows) == 4
    built = build_student(load_encoder(teacher), StudentShape(2, 32), "layers", 0)
    (twin,) = (entrant for entrant in entrants if entrant.model.role == "twin")
    write_twin(twin.distilled_by, Path(twin.source))
    assert equal(load_file(f"{twin.source}/model.safetensors"), built.model.state_dict())


def test_a_teacher_that_nobody_named_is_probed_like_its_student(compare, tiny_bert, save_bert, corpus, glue, tmp_path, refused):
    headed = save_bert(tmp_path / "headed", tiny_bert(BertForSequenceClassification, id2label={0: "bad", 1: "good"}))
    settings = {**SETTINGS, "student": "2x32", "corpus": [corpus]}
    run = limbeck.distill(headed, output=tmp_path / "own", **settings)
    results = limbeck.evaluate(str(run.path), tasks="sst2", data=glue, output=tmp_path / "frozen", quiet=True)
    assert {(cell["model"], cell["task"]) for cell in results["cells"]} == {
        (name, "SST-2 probe") for name in ("headed", "own", "own (twin)")
    }
    with refused("headed on sst2: ", "(bad, good)", "fine-tune"):
        limbeck.evaluate([str(run.path), str(headed)], tasks="sst2", data=glue, output=tmp_path / "asked", quiet=True)
    shutil.rmtree(headed)
    with refused("The teacher of a run's student cannot be loaded", str(headed)):
        limbeck.evaluate(str(run.path), tasks="sst2", data=glue, output=tmp_path / "gone", quiet=True)


def test_results_that_would_be_lost_are_not_replaced(compare, save_bert, protocol, tmp_path, refused):
    other = save_bert(tmp_path / "other", num_hidden_layers=1)
    compare(other, tasks=["stsb"])
    before = (tmp_path / "results" / "results.json").read_text()
    with refused("holds results of other,", "name them as well"):
        compare(tasks=["stsb"], resume="auto")
    with refused("holds results of stsb,"):
        compare(other, tasks=["sst2"], resume="auto")
    with refused("measured frozen, not fine-tuned by quick.yaml"):
        compare(other, tasks=["stsb"], finetune=True, protocol=protocol, resume="auto")
    assert (tmp_path / "results" / "results.json").read_text() == before
    assert len(compare(other, tasks=["stsb", "sst2"], resume="auto")["tasks"]) == 2
    (tmp_path / "results" / "results.json").write_text("[]")
    with refused("is not what an evaluation wrote"):
        compare(other, tasks=["stsb"], resume="auto")


def test_two_models_of_one_name_are_refused(student, teacher, save_bert, tmp_path, refused):
    first, second = save_bert(tmp_path / "a" / "bert"), save_bert(tmp_path / "b" / "bert")
    with refused("bert", "NAME=MODEL"):
        list_entrants([str(first), str(second)], tmp_path)


def test_fine_tuned_over_seeds_every_model_on_every_task(compare, protocol, tmp_path, refused):
    results = compare(finetune=True, protocol=protocol, seeds=2)
    cells = {(cell["model"], cell["task"]): cell for cell in results["cells"]}
    names = [model["name"] for model in results["models"]]
    assert names == ["teacher", "student (twin)", "student"]
    assert set(cells) == {(name, task) for name in names for task in ("SST-2", "STS-B", "STS-B zero-shot")}
    assert all(len(cell["scores"]) == (1 if cell["fixed"] else 2) for cell in cells.values())
    assert results["averaged_over"] == ["SST-2", "STS-B"]
    for cell in cells.values():
        if not cell["fixed"]:
            folder = tmp_path / "results" / "runs" / cell["model"].replace(" ", "-").replace("(", "").replace(")", "")
            summaries = [
                json.loads((folder / {"SST-2": "sst2", "STS-B": "stsb"}[cell["task"]] / f"seed-{seed}/summary.json").read_text())
                for seed in range(2)
            ]
            assert [summary["scores"]["dev"] for summary in summaries] == cell["scores"]
            assert [summary["training"]["precision"] for summary in summaries] == cell["precisions"]
    assert not list((tmp_path / "results").rglob("runs/**/model.safetensors"))
    with refused("student any more", "an evaluation keeps scores", "--overwrite"):
        load_encoder(tmp_path / "results" / "runs" / "teacher" / "sst2" / "seed-0")
    assert json.loads((tmp_path / "results" / "results.json").read_text()) == results


def test_what_is_finished_is_not_done_again_and_seeds_can_be_added(compare, protocol, tmp_path, monkeypatch, capsys):
    compare(finetune=True, protocol=protocol, tasks=["sst2"], seeds=1)
    before = content(tmp_path / "results" / "runs")
    begun = []

    def counted(recipe, output, **settings):
        begun.append((str(output), (output / "summary.json").exists()))
        return run_finetuning(recipe, output, **settings)

    monkeypatch.setattr(tuning, "run_finetuning", counted)
    compare(finetune=True, protocol=protocol, tasks=["sst2"], seeds=2, resume="auto", quiet=False)
    said = capsys.readouterr().err
    assert (said.count("finished before, "), said.count("fine-tuning ")) == (3, 3)
    assert sum(finished for _, finished in begun) == sum(not finished for _, finished in begun) == 3
    after = content(tmp_path / "results" / "runs")
    assert {name: after[name] for name in before} == before


def test_several_runs_at_a_time_give_the_same(compare, protocol, tmp_path):
    settings = {"finetune": True, "protocol": protocol, "tasks": ["sst2"], "seeds": 2}
    alone, together = compare(**settings), compare(**settings, jobs=2, output="together")
    assert str(tmp_path) not in (tmp_path / "together" / "results.json").read_text()
    assert [cell["scores"] for cell in together["cells"]] == [cell["scores"] for cell in alone["cells"]]


def test_of_a_grid_the_best_combination_is_taken_for_every_seed(compare, protocol, tmp_path):
    protocol.write_text(protocol.read_text().replace("learning_rate: 1.0e-3", "learning_rate: [1.0e-9, 3.0e-3]"))
    compare(finetune=True, protocol=protocol, tasks=["sst2"], seeds=2)
    for grid in (tmp_path / "results" / "runs").glob("*/sst2/grid/grid.json"):
        best = json.loads(grid.read_text())["best"]["settings"]["learning_rate"]
        recipes = [read_recipe(file) for file in grid.parent.parent.glob("seed-*/recipe.yaml")]
        assert [recipe["learning_rate"] for recipe in recipes] == [best, best]


@pytest.mark.parametrize("test", [False, True])
def test_test_files_are_predicted_only_if_that_is_asked(compare, protocol, glue, tmp_path, test):
    (glue / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tthe water\n1\tof stone\n")
    compare(finetune=True, protocol=protocol, tasks=["sst2"], test=test)
    submissions = list((tmp_path / "results" / "runs").glob("*/sst2/seed-0/submission/SST-2.tsv"))
    assert len(submissions) == (3 if test else 0)


def test_frozen_models_are_probed(compare, teacher):
    results = compare()
    assert {(cell["task"], cell["metric"]) for cell in results["cells"]} == {
        ("SST-2 probe", "accuracy"),
        ("STS-B zero-shot", "spearman"),
    }
    again = compare(teacher, output="again")  # named or found by the run, it is the same row
    assert again["cells"] == results["cells"]


def test_probes_train_on_as_many_examples_as_are_asked_for_and_say_how_far_they_are(compare, monkeypatch, capsys):
    trained = []

    def noted(encoder, data, **settings):
        trained.append(settings["limit"])
        return probes.probe(encoder, data, **settings)

    monkeypatch.setattr(frozen, "probe", noted)
    few, all_of_them = compare(tasks=["sst2"], examples=12, quiet=False), compare(tasks=["sst2"], output="all")
    assert trained == [12] * 3 + [None] * 3
    assert few["cells"] != all_of_them["cells"]
    assert "measuring 3 of 3: student on sst2" in capsys.readouterr().err


def test_examples_override_a_protocol(compare, protocol, tmp_path):
    protocol.write_text(protocol.read_text() + "examples: 100\n")
    compare(finetune=True, protocol=protocol, tasks=["sst2"], examples=32)
    run = RunFolder(tmp_path / "results" / "runs" / "student" / "sst2" / "seed-0")
    assert run.read_summary()["task"]["examples"] == 32


def test_a_missing_package_is_said_before_anything_is_written(compare, monkeypatch, tmp_path, refused):
    monkeypatch.setattr(probes, "find_spec", lambda name: None)
    with refused("pip install 'limbeck[tasks]'"):
        compare()
    assert not (tmp_path / "results").exists()
    compare(tasks=["stsb"])  # cosines need no package


def test_a_model_with_a_head_is_asked_as_it_is_whatever_the_order_of_its_labels(compare, tiny_bert, save_bert, glue, tmp_path):
    quick = {"epochs": 20, "learning_rate": 2e-3, "precision": "float32", "quiet": True, "dropout": 0.0}
    run = limbeck.finetune(save_bert(tmp_path / "start"), task="sst2", data=glue, output=tmp_path / "tuned", **quick)
    accuracy = run.summary["scores"]["dev"]["accuracy"]
    assert accuracy > 0.8
    model = BertForSequenceClassification.from_pretrained(run.student)
    with torch.no_grad():
        for weight in (model.classifier.weight, model.classifier.bias):
            weight.copy_(weight.flip(0))
    model.config.id2label = {0: "POS", 1: "NEG"}
    turned = save_bert(tmp_path / "turned", model)
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    nameless = save_bert(tmp_path / "nameless", model)
    meant = {"LABEL_0": "positive", "LABEL_1": "negative"}
    results = compare(f"tuned={run.student}", turned, nameless, tasks=["sst2"], label_map=meant)
    scores = {cell["model"]: cell["mean"] for cell in results["cells"] if cell["task"] == "SST-2"}
    assert scores == pytest.approx({"tuned": accuracy, "turned": accuracy, "nameless": accuracy})


def test_outputs_without_names_are_refused_without_a_map(compare, tiny_bert, save_bert, tmp_path, refused):
    nameless = save_bert(tmp_path / "nameless", tiny_bert(BertForSequenceClassification))
    with refused("LABEL_0", "negative", "positive"):
        compare(nameless, tasks=["sst2"])


def test_a_model_below_chance_is_warned_of(compare, tiny_bert, save_bert, tmp_path, capsys):
    model = tiny_bert(BertForSequenceClassification)
    model.config.id2label = {0: "negative", 1: "positive"}
    for sign in (1, -1):  # one of the two is at most at chance
        with torch.no_grad():
            model.classifier.bias.copy_(torch.tensor([100.0 * sign, 0.0]))
        compare(f"constant={save_bert(tmp_path / f'constant{sign}', model)}", tasks=["sst2"], quiet=False, output=f"r{sign}")
    shown = capsys.readouterr().err
    assert shown.count("warning: constant scores") == 1
    assert "constant answer" in shown


def test_a_model_that_answers_questions_is_asked_and_an_encoder_refused(compare, save_bert, tmp_path, refused):
    passage = "the water of stone"
    asked = [{"id": str(place), "question": "what", "answers": [{"text": "stone", "answer_start": 13}]} for place in range(4)]
    content = {"data": [{"title": "a", "paragraphs": [{"context": passage, "qas": asked}]}]}
    file = tmp_path / "squad.json"
    file.write_text(json.dumps(content))
    settings = {"steps": 30, "learning_rate": 3e-3, "max_length": 32, "overlap": 4, "precision": "float32", "quiet": True}
    run = limbeck.finetune(
        save_bert(tmp_path / "start"), task="squad", data=file, dev=file, output=tmp_path / "run", dropout=0.0, **settings
    )
    results = limbeck.evaluate([f"tuned={run.path}"], tasks=["squad"], data=[str(file)], output=tmp_path / "out", quiet=True)
    (cell,) = results["cells"]
    assert (cell["task"], cell["metric"], cell["scores"][0]["exact"]) == ("SQuAD", "f1", 1.0)
    with refused("no head for this task", "fine-tune it first"):
        compare(tasks=["squad"], data=[str(file)])


@pytest.mark.parametrize("leftover", ["notes.txt", "runs"])
def test_a_directory_that_holds_anything_is_left_alone(compare, tmp_path, refused, leftover):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / leftover).touch()
    with refused("results", "not empty"):
        compare(tasks=["sst2"])
    if leftover == "notes.txt":
        for way in ({"overwrite": True}, {"resume": "auto"}):
            with refused(leftover, "no evaluation writes"):
                compare(tasks=["sst2"], **way)
    assert [entry.name for entry in (tmp_path / "results").iterdir()] == [leftover]


def test_the_command_prints_the_table(student, glue, tmp_path, capsys):
    given = ["evaluate", f"mine={student}", "--tasks", "stsb", "--data", glue, "-o", tmp_path / "results"]
    assert main([str(part) for part in given]) == 0
    shown = capsys.readouterr()
    assert "mine (twin)" in shown.out
    assert "STS-B zero-shot" in shown.out
    assert main([*map(str, given), "--overwrite", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "results" / "results.json").read_text())


def test_a_twin_is_of_its_students_family(distil, tmp_path):
    run = distil(student="2x16/4", init="random", family="modernbert", steps=1)
    twin = next(entrant for entrant in list_entrants([str(run.path)], tmp_path / "twins") if entrant.model.role == "twin")
    write_twin(twin.distilled_by, Path(twin.source))
    assert load_encoder(twin.source).shape == load_encoder(run.student).shape
    assert load_encoder(twin.source).shape.model_type == "modernbert"


def test_a_twin_is_made_anew_of_the_run_as_it_is(compare, student, distil, tmp_path):
    first = compare(tasks=["sst2"])
    distil("student", init="random", overwrite=True)
    again = compare(tasks=["sst2"], resume="auto")
    assert again["cells"] == compare(tasks=["sst2"], output="fresh")["cells"]
    assert again["cells"] != first["cells"]


WRONG = {
    "no model": ([], {}, ["No model"]),
    "no task": (["teacher"], {"tasks": ","}, ["No task"]),
    "a task twice": (["teacher"], {"tasks": "sst2,SST-2"}, ["sst2 stands there twice"]),
    "no questions": (["teacher"], {"tasks": "squad"}, ["no JSON file of questions"]),
    "a model twice": (["teacher", "teacher"], {}, ["called teacher", "NAME=MODEL"]),
    "a model called as another one's twin": (["a=student", "a (twin)=teacher"], {}, ["a (twin)"]),
    "a student called as its teacher": (["teacher=student"], {}, ["called teacher"]),
    "models of one directory": (["a b=teacher", "a-b=student"], {}, ["a b and a-b"]),
    "too long a name": (["x" * 300 + "=teacher"], {}, ["xxx...", "shorter"]),
    "seeds": (["teacher"], {"finetune": True, "seeds": 0}, ["seeds"]),
    "jobs": (["teacher"], {"finetune": True, "jobs": 1.5}, ["jobs"]),
    "resume": (["teacher"], {"resume": "always"}, ["always"]),
    "seeds without training": (["teacher"], {"seeds": 3}, ["--seeds", "--finetune"]),
    "a protocol without training": (["teacher"], {"protocol": "small"}, ["--protocol", "--finetune"]),
    "no examples": (["teacher"], {"examples": 0}, ["examples"]),
    "a map of outputs that no model has": (
        ["teacher"],
        {"label_map": {"LABEL_0": "positive"}},
        ["LABEL_0", "no model has a head"],
    ),
    "a map while training": (["teacher"], {"finetune": True, "label_map": {"LABEL_0": "positive"}}, ["label map"]),
    "no such model": (["teacher", "nowhere"], {}, ["nowhere"]),
    "no such data": (["teacher"], {"finetune": True, "tasks": "sst2,cola"}, ["CoLA"]),
    "no such protocol": (["teacher"], {"finetune": True, "protocol": "tiny"}, ["tiny"]),
    "a model in the results": (["results/runs"], {}, ["results/runs", "lies in"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_is_done_or_removed(student, teacher, glue, tmp_path, monkeypatch, refused, case):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "runs").mkdir(parents=True)
    (tmp_path / "results" / "results.md").write_text("Earlier results.")
    models, settings, named = WRONG[case]
    given = {"tasks": "sst2", "data": "glue", "overwrite": settings.get("resume") is None, "quiet": True}
    before = content(tmp_path / "results")
    with refused(*named):
        limbeck.evaluate(models, output="results", **given | settings)
    assert content(tmp_path / "results") == before


def test_one_name_does_for_a_list_of_one_and_a_task_has_one_spelling(teacher, glue, protocol, tmp_path):
    for output, task in (("first", "STS-B"), ("second", "stsb")):
        settings = {"finetune": True, "protocol": protocol, "quiet": True}
        limbeck.evaluate(str(teacher), tasks=task, data=glue, output=tmp_path / output, **settings)
    assert {cell["task"] for cell in json.loads((tmp_path / "first/results.json").read_text())["cells"]} == {
        "STS-B",
        "STS-B zero-shot",
    }
    assert (tmp_path / "first" / "runs" / "teacher" / "stsb").is_dir()
    assert content(tmp_path / "first" / "runs").keys() == content(tmp_path / "second" / "runs").keys()


def test_a_head_for_classes_rates_no_pairs_but_its_encoder_does(compare, tiny_bert, save_bert, protocol, tmp_path, refused):
    headed = save_bert(tmp_path / "headed", tiny_bert(BertForSequenceClassification))
    with refused("2 outputs", "STS-B asks for one number"):
        compare(headed, tasks=["stsb"])
    results = compare(headed, tasks=["stsb"], finetune=True, protocol=protocol, output="tuned")
    assert [cell["task"] for cell in results["cells"] if cell["model"] == "headed"] == ["STS-B zero-shot", "STS-B"]


def test_a_model_with_few_positions_is_asked_about_what_it_can_take(compare, tiny_bert, save_bert, glue, tmp_path):
    model = tiny_bert(BertForSequenceClassification, max_position_embeddings=16, id2label={0: "negative", 1: "positive"})
    with (glue / "SST-2" / "dev.tsv").open("a") as file:
        file.write("the water " * 20 + "\t1\n")
    results = compare(save_bert(tmp_path / "short", model), tasks=["sst2"])
    assert [cell["model"] for cell in results["cells"] if cell["task"] == "SST-2"] == ["short"]


def test_other_labels_to_compare_with_are_noticed(compare, protocol, glue, refused):
    settings = {"finetune": True, "protocol": protocol, "tasks": ["sst2"]}
    compare(**settings)
    heading, *rows = (glue / "SST-2" / "dev.tsv").read_text().splitlines()
    turned = [f"{row[:-1]}{1 - int(row[-1])}" for row in rows]
    (glue / "SST-2" / "dev.tsv").write_text("\n".join([heading, *turned]) + "\n")
    with refused("teacher on sst2, seed 0", "has changed"):
        compare(**settings, resume="auto")


def test_a_run_that_fails_is_named_and_what_was_finished_stays(compare, protocol, tmp_path):
    protocol.write_text(protocol.read_text() + "tasks: {stsb: {learning_rate: 1.0e+30}}\n")
    for jobs in (1, 2):
        with pytest.raises(CheckFailed, match=r" on stsb, seed 0: .*not finite"):
            compare(finetune=True, protocol=protocol, jobs=jobs, resume="auto")
        assert (tmp_path / "results/runs/teacher/sst2/seed-0/summary.json").is_file()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_an_evaluation_that_is_ended(student, glue, protocol, tmp_path, ending):
    protocol.write_text(protocol.read_text().replace("epochs: 1", "steps: 100000"))
    given = ["evaluate", student, "--tasks", "sst2", "--data", glue, "--finetune", "--protocol", protocol, "--jobs", 2]
    process = start([*given, "-o", tmp_path / "results", "--quiet"])
    while len(list((tmp_path / "results").glob("runs/*/sst2/seed-0/log.jsonl"))) < 2 and process.is_alive():
        time.sleep(0.05)
    os.kill(process.pid, ending)
    assert finish(process) == (-ending if ending == signal.SIGKILL else 130)
    for folder in (tmp_path / "results" / "runs").glob("*/sst2/seed-0"):
        for _ in range(200):  # the system tells the others in its own time that a process was killed
            with suppress(UserError), RunFolder(folder).locked():
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"someone still works in {folder}")
    saved = list((tmp_path / "results").glob("runs/*/sst2/seed-0/checkpoints/step-*"))
    assert bool(saved) == (ending != signal.SIGKILL)
    assert not list((tmp_path / "results").glob("runs/*/sst2/seed-0/summary.json"))
