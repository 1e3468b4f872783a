"""Protocols of fine-tuning: the papers' figures, what a file may say, and grids of runs that are resumed and compared."""

import csv
import json
import random
import shutil
import subprocess
import sys

import pytest

from limbeck.recipe import validate
from limbeck.studies.grid import finetune_grid
from limbeck.tasks import protocols
from limbeck.tasks.finetune import finetune
from limbeck.tasks.protocols import FIELDS, TASKS, names, read_protocol, settings
from limbeck.tasks.recipe import FineTuning
from runs import content

GLUE = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
OTHER = {
    "examples": 7,
    "max_length": 99,
    "overlap": 5,
    "class_weights": "balanced",
    "batch_size": 3,
    "epochs": 9.0,
    "steps": 11,
    "learning_rate": 7e-6,
    "warmup": 0.3,
    "weight_decay": 0.2,
    "dropout": 0.4,
    "precision": "float32",
    "eval_every": 13,
    "patience": 2,
}
"""A value for each field of a protocol that is none's default."""


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.yaml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def values(combinations, field):
    return sorted({combination[field] for combination in combinations})


# ---------------------------------------------------------------- what ships


@pytest.mark.parametrize("name", [name for name, _ in names()])
@pytest.mark.parametrize("width", [312, 384, 768, 1024])
def test_every_protocol_makes_recipes_of_each_of_its_tasks(name, width):
    protocol = read_protocol(protocols.SHIPPED / f"{name}.yaml")
    for task in protocol.named if protocol.named_tasks_only else [*TASKS, None]:
        combinations = settings(name, task, width)
        assert len({repr(combination) for combination in combinations}) == len(combinations) > 0
        own = {"task": task} if task else {"text": "a", "label": "b"}
        for combination in combinations:
            recipe = validate(FineTuning, {"model": "m", "data": "d", **own, **combination})
            assert {field: getattr(recipe, field) for field in combination} == combination
            assert {"max_length", "batch_size", "learning_rate"} <= combination.keys()
            assert combination.keys() & {"epochs", "steps"}


def test_what_ships_is_listed_with_one_line_each():
    listed = dict(names())
    assert list(listed) == ["bert", "minilm", "minilmv2", "small", "tinybert"]
    assert all(text and "\n" not in text for text in listed.values())


def test_minilm_as_in_its_appendix():
    glue = settings("minilm", "mnli", 384)
    assert len(glue) == 12
    assert values(glue, "learning_rate") == [2e-5, 3e-5, 4e-5, 5e-5]
    assert values(glue, "epochs") == [3, 4, 5]
    assert {(each["batch_size"], each["max_length"]) for each in glue} == {(32, 128)}
    assert values(settings("minilm", "CoLA", 384), "epochs") == [3, 4, 5, 10]
    (squad,) = settings("minilm", "squad", 384)
    assert (squad["max_length"], squad["batch_size"], squad["learning_rate"], squad["epochs"]) == (384, 32, 6e-5, 3)
    xnli, mlqa = settings("minilm", "xnli", 384), settings("minilm", "mlqa", 384)
    assert values(xnli, "learning_rate") == values(mlqa, "learning_rate") == [3e-5, 4e-5, 5e-5, 6e-5]
    assert (xnli[0]["batch_size"], xnli[0]["epochs"], xnli[0]["max_length"]) == (128, 5, 128)
    assert (mlqa[0]["batch_size"], mlqa[0]["epochs"], mlqa[0]["max_length"]) == (32, 3, 512)


def test_minilmv2_tinybert_and_bert_as_published():
    glue = settings("minilmv2", "rte", 384)
    assert values(glue, "learning_rate") == [1e-5, 1.5e-5, 2e-5, 3e-5, 5e-5]
    assert values(glue, "epochs") == [3, 5, 10]
    assert values(settings("minilmv2", "cola", 384), "epochs") == [25]
    assert values(settings("minilmv2", "squad", 384), "learning_rate") == [3e-5, 6e-5, 8e-5, 9e-5]
    (xnli, *_), (mlqa, *_) = (settings("minilmv2", task, 384) for task in ("xnli", "mlqa"))
    assert (xnli["max_length"], xnli["batch_size"], xnli["epochs"]) == (256, 64, 10)
    assert (mlqa["max_length"], mlqa["batch_size"], mlqa["epochs"]) == (512, 32, 4)
    single, pairs = settings("tinybert", "sst2", 312), settings("tinybert", "mrpc", 312)
    assert (single[0]["max_length"], pairs[0]["max_length"]) == (64, 128)
    assert (values(pairs, "batch_size"), values(pairs, "learning_rate")) == ([16, 32], [1e-5, 2e-5, 3e-5])
    assert values(settings("bert", "sst2", 768), "learning_rate") == [2e-5, 3e-5, 4e-5, 5e-5]


def test_small_has_one_setting_for_each_task():
    epochs = {task: settings("small", task, 384)[0]["epochs"] for task in (*TASKS, None)}
    assert all(len(settings("small", task, 384)) == 1 for task in epochs)
    assert [task for task, number in epochs.items() if number == 5] == ["cola", "mrpc", "stsb", "rte"]
    (sst,), (squad,) = settings("small", "SST-2", 384), settings("small", "squad", 384)
    assert (sst["examples"], sst["epochs"], sst["max_length"]) == (10_000, 2, 128)
    assert (squad["max_length"], squad["epochs"]) == (384, 2)
    assert not {"precision"} & {*sst, *squad}  # bf16 takes many times as long on processors without it
    assert {sst["eval_every"], squad["eval_every"]} == {"end"}


def test_no_torch_is_imported():
    code = "import sys, limbeck.tasks.protocols as p; p.settings('minilm', 'sst2', 384); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# ---------------------------------------------------------------- what a file may say


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_read(field, write):
    """Whatever a protocol may set reaches the recipe, from the file, from a task's entry and from the user."""
    rest = "description: d\nepochs: 1\n" if field != "epochs" else "description: d\n"
    line, value = f"{field}: {OTHER[field]}\n", OTHER[field]
    assert value != FineTuning.__dataclass_fields__[field].default
    common = rest.replace("epochs: 1\n", "") if field == "steps" else rest
    for (combination,) in (
        settings(write(common + line), "rte", 384),
        settings(write(rest + "tasks:\n  cola, rte:\n    " + line), "rte", 384),
        settings(write(rest), "rte", 384, {field: value}),
    ):
        assert combination[field] == value
        assert field != "steps" or "epochs" not in combination


def test_every_other_field_of_a_file_is_read(write, refused):
    file = write("description: Mine.\nnamed_tasks_only: yes\nlearning_rate_by_width: {4: 1e-3}\ntasks: {rte: {}}\n")
    read = read_protocol(file)
    assert (read.description, read.named_tasks_only, read.named) == ("Mine.", True, ["rte"])
    assert settings(file, "rte", 384) == [{"learning_rate": 1e-3}]
    for task in ("cola", None):
        with refused(file, "only for rte"):
            settings(file, task, 384)


def test_a_list_is_a_grid_and_the_first_field_changes_slowest(write):
    file = write("description: d\nlearning_rate: [2e-5, 3e-5]\nbatch_size: 8\nepochs: [3, 4]\n")
    assert [(each["learning_rate"], each["epochs"]) for each in settings(file, None, 1)] == [
        (2e-5, 3),
        (2e-5, 4),
        (3e-5, 3),
        (3e-5, 4),
    ]


@pytest.mark.parametrize(
    ("width", "rate"), [(32, 1e-4), (384, 1e-4), (512, 1e-4), (576, 5e-5), (600, 5e-5), (768, 5e-5), (1024, 2e-5), (4096, 2e-5)]
)
def test_the_rate_of_the_nearest_width_counts_and_of_two_the_wider_one(width, rate, write):
    file = write("description: d\nlearning_rate_by_width: {384: 1e-4, 768: 5e-5, 1024: 2e-5}\n")
    assert settings(file, "rte", width) == [{"learning_rate": rate}]


def test_later_entries_and_the_user_count_before_earlier_ones(write):
    file = write(
        "description: d\nlearning_rate_by_width: {384: [1e-4, 2e-4], 768: 5e-5}\nepochs: 1\ntasks:\n"
        "  glue: {epochs: 2, batch_size: 8}\n  rte,mrpc: {steps: 7}\n  MRPC: {learning_rate: 3e-5}\n"
    )
    assert settings(file, "xnli", 768) == [{"learning_rate": 5e-5, "epochs": 1}]
    assert settings(file, "sst2", 768) == [{"learning_rate": 5e-5, "epochs": 2, "batch_size": 8}]
    assert settings(file, "rte", 384) == [{"learning_rate": rate, "batch_size": 8, "steps": 7} for rate in (1e-4, 2e-4)]
    assert settings(file, "mrpc", 384) == [{"batch_size": 8, "steps": 7, "learning_rate": 3e-5}]
    given = {"epochs": [5, 6], "learning_rate": "4e-5"}
    assert settings(file, "rte", 384, given) == [{"batch_size": 8, "epochs": number, "learning_rate": 4e-5} for number in (5, 6)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs: 3\n", "a line 'description: ...' is missing"),
        ("description: ''\n", "description should be one line"),
        ("description: d\nepoch: 3\n", "epoch: no such setting; did you mean epochs?"),
        ("description: d\nseed: 3\n", "seed is said by the user"),
        ("description: d\nepochs: three\n", "epochs: should be a valid number, not 'three'"),
        ("description: d\nepochs: [3, 0]\n", "epochs: should be greater than 0, not 0"),
        ("description: d\nepochs: []\n", "epochs holds no choice"),
        ("description: d\nepochs: [3, 3.0]\n", "epochs: 3.0 stands there twice"),
        ("description: d\nepochs: 3\nsteps: 4\n", "epochs and steps were given"),
        ("description: d\nnamed_tasks_only: 1\n", "named_tasks_only should be true or false"),
        ("description: d\nprecision: fp8\n", "precision: should be 'auto', 'float32' or 'bf16', not 'fp8'"),
        ("description: d\ntasks: [rte]\n", "tasks should be a mapping"),
        ("description: d\ntasks: {rte: 3}\n", "tasks.rte should be a mapping"),
        ("description: d\ntasks: {rte2: {}}\n", "tasks.rte2: there is no task 'rte2'; did you mean rte?"),
        ("description: d\ntasks: {'rte, mrcp': {}}\n", "there is no task 'mrcp'; did you mean mrpc?"),
        ("description: d\ntasks: {rte: {epochs: -1}}\n", "tasks.rte.epochs: should be greater than 0"),
        ("description: d\ntasks: {rte: {description: x}}\n", "tasks.rte.description: no such setting"),
        ("description: d\ntasks: {glue: {eval_every: end}, rte: {patience: 2}}\n", "for rte, keep_best and patience need"),
        ("description: d\nlearning_rate_by_width: 1e-4\n", "learning_rate_by_width should be a mapping of widths"),
        ("description: d\nlearning_rate_by_width: {wide: 1e-4}\n", "learning_rate_by_width should be a mapping of widths"),
        ("description: d\nlearning_rate_by_width: {384: fast}\n", "learning_rate_by_width.384: should be a valid number"),
        ("description: d\nlearning_rate: 1e-4\nlearning_rate_by_width: {384: 1e-4}\n", "give one of them"),
    ],
)
def test_a_broken_file_is_refused_with_file_and_field(text, expected, write, refused):
    file = write(text)
    with refused(file, expected):
        settings(file, "cola", 384)


def test_what_is_no_protocol_and_what_the_user_gives_wrong_is_refused(tmp_path, refused):
    with refused("no protocol 'smal'; did you mean small?", "minilmv2", "a YAML file"):
        settings("smal", "rte", 384)
    with refused("no protocol"):
        settings(tmp_path / "nowhere.yaml", "rte", 384)
    with refused("no task 'sst3'; did you mean sst2?"):
        settings("small", "sst3", 384)
    with refused("minilm is not for tydiqa", "squad, mlqa"):
        settings("minilm", "tydiqa", 384)
    with refused("epochs: should be greater than 0"):
        settings("small", "rte", 384, {"epochs": 0})


# ---------------------------------------------------------------- grids of runs


@pytest.fixture
def reviews(tmp_path):
    """A table of texts whose first word tells the label."""
    drawn = random.Random(0)
    rows = [(label, f"{label} {drawn.choice(['river', 'stone', 'water'])} of the house") for label in ["cold", "warm"] * 20]
    file = tmp_path / "reviews.csv"
    with file.open("w", newline="") as target:
        csv.writer(target).writerows([("label", "text"), *rows])
    return file


PROTOCOL = """
description: Tiny.
max_length: 16
batch_size: 8
epochs: 4
precision: float32
dropout: 0
eval_every: end
learning_rate: [1e-9, 5e-3, 2e-9]
"""


@pytest.fixture
def grid(teacher, reviews, write, tmp_path):
    """Run a grid of three rates, of which the second one learns; keyword arguments change the settings."""
    file = write(PROTOCOL)

    def run(output="grid", protocol=file, **changes):
        fixed = {"data": reviews, "text": "text", "label": "label", "dev": 0.4, "quiet": True}
        return finetune_grid(changes.pop("model", teacher), protocol, output=tmp_path / output, **{**fixed, **changes})

    return run


def test_each_run_of_a_grid_is_announced_and_what_was_best(grid, capsys):
    grid(seeds=2, quiet=False)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("run ", "best: "))]
    places = [f"learning_rate-{rate}/seed-{seed}" for rate in RATES for seed in (0, 1)]
    assert said[:-1] == [f"run {number} of 6: {place}" for number, place in enumerate(places, start=1)]
    assert said[-1].startswith("best: learning_rate-0.005, accuracy 100.0")


@pytest.fixture
def trained(monkeypatch):
    """The learning rates and seeds that were really trained, not taken from an earlier run."""
    import limbeck.training.run as running

    begun, begin = [], running.begin

    def noted(parts, *rest):
        begun.append((parts.recipe.learning_rate, parts.recipe.seed))
        return begin(parts, *rest)

    monkeypatch.setattr(running, "begin", noted)
    return begun


RATES = [1e-9, 5e-3, 2e-9]


def test_the_best_combination_is_kept_and_it_is_not_the_first(grid, trained):
    found = grid(seeds=2)
    assert trained == [(rate, seed) for rate in RATES for seed in (0, 1)]
    best = found.path / "learning_rate-0.005" / "seed-0"
    assert found.student == best / "student"
    assert (found.student / "model.safetensors").is_file()
    assert json.loads((found.path / "grid.json").read_text()) == found.summary
    assert found.summary["best"]["settings"]["learning_rate"] == 5e-3
    assert found.summary["finished"] is True
    assert found.summary["split"] == "dev"
    assert "chosen by the mean on dev, the split that its score is of" in found.summary["selection"]
    means = [entry["mean"] for entry in found.summary["combinations"]]
    assert means[1] == 1.0
    assert max(means[0], means[2]) < 1.0
    for entry in found.summary["combinations"]:
        assert entry["mean"] == pytest.approx(sum(entry["values"]) / 2)
        for run, value in zip(entry["runs"], entry["values"], strict=True):
            summary = json.loads((found.path / run / "summary.json").read_text())
            assert summary["scores"]["dev"][found.summary["metric"]] == pytest.approx(value)
            assert (found.path / run / "predictions" / "dev.jsonl").is_file()
            assert (found.path / run / "student").is_dir() == ("0.005" in run)
    table = (found.path / "grid.md").read_text()
    assert "| **0.005** | **100.0 ± 0.0** |" in table
    assert found.summary["selection"] in table


def test_models_are_kept_if_asked_for(grid):
    found = grid(keep_models=True, learning_rate=[1e-9, 5e-3])
    assert all((found.path / run / "student").is_dir() for each in found.summary["combinations"] for run in each["runs"])


def test_a_grid_stopped_between_and_within_runs_goes_on(grid, trained, monkeypatch):
    whole = grid("whole")
    trained.clear()
    import limbeck.studies.grid as module

    with monkeypatch.context() as patch:
        calls, run = [], module.run_finetuning

        def killed(*arguments, **settings):
            calls.append(arguments)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return run(*arguments, **settings)

        patch.setattr(module, "run_finetuning", killed)
        with pytest.raises(KeyboardInterrupt):
            grid()
    assert trained == [(1e-9, 0), (5e-3, 0)]
    shutil.rmtree(whole.path.parent / "grid" / "learning_rate-0.005" / "seed-0" / "student")  # as if stopped in its last moment
    trained.clear()
    found = grid(resume="auto")
    assert trained == [(5e-3, 0), (2e-9, 0)]
    assert found.summary == whole.summary
    trained.clear()
    before = content(found.path)
    assert grid(resume="auto").summary == whole.summary
    assert (trained, content(found.path)) == ([], before)


def test_choices_and_seeds_may_be_added_even_if_a_loser_then_wins(grid, trained):
    grid(learning_rate=[5e-3, 6e-3])
    trained.clear()
    found = grid(learning_rate=[6e-3, 5e-3, 1e-9], seeds=2, resume="auto")
    assert found.student.parent.parent.name == "learning_rate-0.006"
    # The first of equals wins; its weights had been removed, so that run is done once more.
    assert trained == [(6e-3, 1), (5e-3, 1), (1e-9, 0), (1e-9, 1), (6e-3, 0)]
    assert all((found.path / run / "student" / "model.safetensors").is_file() for run in found.summary["best"]["runs"])
    assert found.summary["best"]["mean"] == 1.0


def test_a_single_combination_and_seed_is_the_run_itself(grid, tmp_path, teacher, reviews):
    found = grid("one", learning_rate=5e-3, epochs=1)
    own = {"data": reviews, "text": "text", "label": "label", "dev": 0.4, "quiet": True, "learning_rate": 5e-3, "epochs": 1}
    tiny = {"max_length": 16, "batch_size": 8, "precision": "float32", "dropout": 0.0, "eval_every": "end"}
    alone = finetune(teacher, output=tmp_path / "alone", **own, **tiny)
    assert {path.name for path in found.path.iterdir()} == {path.name for path in alone.path.iterdir()}
    assert found.summary["scores"] == alone.summary["scores"]
    assert (found.student / "model.safetensors").read_bytes() == (alone.student / "model.safetensors").read_bytes()


def test_several_seeds_of_one_combination_have_no_name_for_it(grid):
    found = grid(learning_rate=5e-3, seeds=2, seed=7)
    assert found.summary["combinations"][0]["runs"] == ["seed-7", "seed-8"]
    assert "none was chosen" in found.summary["selection"]
    assert found.summary["best"]["varied"] == {}
    assert all((found.path / run / "student").is_dir() for run in ("seed-7", "seed-8"))


def test_what_the_user_gives_counts_before_the_protocol(grid):
    found = grid(steps=2, learning_rate=[1e-3, 2e-3], batch_size=4)
    assert [entry["settings"]["steps"] for entry in found.summary["combinations"]] == [2, 2]
    assert "epochs" not in found.summary["best"]["settings"]
    summary = json.loads((found.path / found.summary["best"]["runs"][0] / "summary.json").read_text())
    assert summary["training"]["steps"] == 2


def test_a_directory_with_something_else_is_refused_and_stays(grid, refused):
    found = grid(epochs=1)
    before = content(found.path)
    with refused(found.path, "not empty", "--resume auto or --overwrite"):
        grid()
    with refused("--overwrite", "give one of them"):
        grid(resume="auto", overwrite=True)
    with refused("learning_rate-1e-09", "not of this grid"):
        grid(learning_rate=[5e-3, 1e-2], resume="auto")
    with refused("grid.json", "not a run"):
        grid(learning_rate=5e-3, resume="auto")
    with refused("another recipe", "weight_decay"):
        grid(epochs=1, weight_decay=0.3, resume="auto")
    with refused("seed-0", "lies in"):
        grid(model=found.path / found.summary["best"]["runs"][0], overwrite=True)
    for seeds in (0, True, "2"):
        with refused("seeds"):
            grid("none", seeds=seeds)
    assert content(found.path) == before
    again = grid(epochs=1, weight_decay=0.3, overwrite=True)
    assert again.summary["finished"] is True
    assert "weight_decay: 0.3" in (again.path / again.summary["best"]["runs"][0] / "recipe.yaml").read_text()
