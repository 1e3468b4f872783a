"""The recipes that ship with Limbeck say what the papers say, and each can be carried out."""

import ast
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from transformers import RobertaModel, XLMRobertaModel

from limbeck import recipes
from limbeck._settings import described_settings
from limbeck.cli import main
from limbeck.objectives import METHODS, MiniLM, MiniLMv2
from limbeck.recipe import Recipe, read_recipe
from limbeck.stages import StagedRecipe, StageRecipe, override, recipe_of
from limbeck.training.distill import forecasts
from limbeck.training.stage import Plan

SOURCE = Path(recipes.__file__).parents[1]
TEXT = {"corpus": ["text/"]}


def recipe(name):
    return recipe_of({**recipes.shipped(name), **TEXT})


def settings(each):
    return each.batch_size, each.learning_rate, each.steps, round(each.warmup * each.steps), each.adam_beta2


@pytest.mark.parametrize(
    ("name", "student", "expected"),
    [
        # MiniLM, section 4.1: batch size, peak learning rate, steps, warm-up, Adam's second beta
        ("minilm-6x768", "6x768/12", (1024, 5e-4, 400_000, 4000, 0.999)),
        ("minilm-6x384", "6x384/12", (256, 3e-4, 400_000, 4000, 0.999)),
        ("minilm-4x384", "4x384/12", (256, 3e-4, 400_000, 4000, 0.999)),
        ("minilm-3x384", "3x384/12", (256, 3e-4, 400_000, 4000, 0.999)),
        ("minilm-12x384-strong", "12x384/12", (2048, 6e-4, 400_000, 4000, 0.98)),
        ("minilm-multilingual-12x384", "12x384/12", (256, 3e-4, 1_000_000, 4000, 0.999)),
        # MiniLMv2, section 4
        ("minilmv2-6x384-bert-base", "6x384/12", (256, 6e-4, 400_000, 4000, 0.999)),
        ("minilmv2-6x768-bert-large", "6x768/12", (256, 6e-4, 400_000, 4000, 0.999)),
        ("minilmv2-12x768-roberta-large", "12x768/12", (256, 6e-4, 400_000, 4000, 0.98)),
        ("minilmv2-12x384-xlm-r-large", "12x384/12", (256, 6e-4, 1_000_000, 4000, 0.999)),
    ],
)
def test_the_papers_numbers(name, student, expected):
    read = recipe(name)
    assert settings(read) == expected
    assert read.student == student
    assert (read.max_length, read.dropout, read.weight_decay, read.init) == (512, 0.1, 0.01, "random")


@pytest.mark.parametrize(
    ("name", "assistant", "student"),
    [
        ("minilm-6x384-strong", (2048, 6e-4, 400_000, 4000, 0.98), (512, 4e-4, 400_000, 4000, 0.999)),
        ("minilm-multilingual-6x384", (256, 3e-4, 1_000_000, 4000, 0.999), (512, 6e-4, 400_000, 4000, 0.999)),
    ],
)
def test_the_papers_numbers_of_students_of_students(name, assistant, student):
    stages = recipe(name).stages
    assert [stage.student for stage in stages] == ["12x384/12", "6x384/12"]
    assert [settings(stage) for stage in stages] == [assistant, student]
    assert {stage.objective for stage in stages} == {MiniLM()}


def test_the_papers_relations_and_layers():
    for name in recipes.names():
        read = recipe(name)
        if name.startswith("minilmv2-"):
            heads, layer = (48, 12) if "bert-base" in name or "all" in name else (64, 21) if "-bert-" in name else (64, 19)
            relations = ("qq", "kk", "vv", "qk", "kq", "qv", "vq", "kv", "vk") if "all" in name else ("qq", "kk", "vv")
            assert read.objective == MiniLMv2(relation_heads=heads, relations=relations, teacher_layer=layer), name
    assert recipe("minilm-12x384-bert-large-wwm").objective == MiniLM(teacher_layer=21)
    assert [recipe(f"minilm-{layers}x384-assistant").assistant for layers in (6, 4, 3)] == ["12x384/12"] * 3


# ---------------------------------------------------------------- they can be carried out

DEPTHS = {"base": (12, 12), "large": (24, 16), "L6": (6, 12)}
"""Layers and attention heads of the teachers, by what their names hold."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("water stone paper glass copper spirit vapour still flask fire drop\n" * 40)
    return file


@pytest.fixture
def stand_in(save_bert, tmp_path, tiny_fairseq, bpe_tokenizer, unigram_tokenizer):
    """A tiny random teacher of a named one's family, depth, heads and positions, as wide as its relation heads."""

    def make(name):
        layers, heads = next(sizes for part, sizes in DEPTHS.items() if part in name)
        sizes = {
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_size": 192 if heads == 16 else 48,
            "intermediate_size": 16,
            "max_position_embeddings": 514,
        }
        if "roberta" in name:
            kind, tokenizer = (XLMRobertaModel, unigram_tokenizer) if "xlm" in name else (RobertaModel, bpe_tokenizer)
            return save_bert(tmp_path / "teacher", tiny_fairseq(kind, tokenizer, **sizes), tokenizer), sizes
        return save_bert(tmp_path / "teacher", **sizes), sizes

    return make


def narrow(shape, width):
    return re.sub(r"x\d+", f"x{width}", shape)


@pytest.mark.parametrize("name", recipes.names())
def test_each_recipe_can_be_carried_out_with_a_small_teacher_and_student(name, stand_in, text, tmp_path):
    """All settings are the recipe's, but for widths, and the length of what is tried."""
    shipped = recipes.shipped(name)
    teacher, sizes = stand_in(shipped["teacher"])
    width = sizes["hidden_size"]
    changes = {"teacher": str(teacher), "corpus": [str(text)], "precision": "float32", "max_length": 8, "micro_batch_size": 1}
    for field in ("student", "assistant"):
        changes |= {field: narrow(shipped[field], width)} if field in shipped else {}
    for stage in shipped.get("stages", []):
        changes[f"stages.{stage['name']}.student"] = narrow(stage["student"], width)
    told = forecasts(recipe_of(override(shipped, changes)), tmp_path / "run", quiet=True)
    assert list(told) == (["assistant", "student"] if "stages" in shipped or "assistant" in shipped else [""])
    wanted = shipped["objective"].get("teacher_layer", sizes["num_hidden_layers"])
    assert next(iter(told.values())).teacher.features["v"] == [wanted]
    for stage, each in told.items():
        assert each.steps > 0
        asked = next((own["student"] for own in shipped.get("stages", []) if own["name"] == stage), shipped.get("student", ""))
        if stage != "assistant" or "stages" in shipped:
            assert each.student.shape.split("x")[0] == asked.split("x")[0]
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- what is said of them


@pytest.mark.parametrize("name", recipes.names())
def test_what_is_printed_is_the_whole_recipe_as_a_file(name, tmp_path, capsys):
    assert main(["recipe", name]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "mine.yaml"
    file.write_text(printed)
    assert read_recipe(file) == recipes.shipped(name) == recipes.find(file)
    comments = " ".join(line.removeprefix("#").strip() for line in printed.splitlines() if line.startswith("#"))
    about = recipes.about(name)
    for said in (name, about.description, about.paper, *about.notes, "corpus"):
        assert said in comments
    assert max(map(len, printed.splitlines())) <= 128
    assert about.paper or name.startswith("quick-")
    assert ("Not stated" in comments) == bool(about.paper)
    assert "corpus" not in about.fields


def test_the_list_names_every_recipe_with_paper_and_teacher(capsys, monkeypatch):
    assert main(["recipes"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert main(["recipes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told] == [name for name, *_ in lines] == recipes.names()
    for each, (_, description, source) in zip(told, lines, strict=True):
        assert each["description"] == description
        assert source == "; ".join([*([each["paper"]] if each["paper"] else []), f"teacher {each['fields']['teacher']}"])
    for name, value in {"TTY_COMPATIBLE": "1", "NO_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    assert main(["recipes"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert all(each["name"] in shown for each in told)


def test_no_recipe_repeats_what_its_base_says():
    for file in recipes.FOLDER.glob("*.yaml"):
        own = yaml.safe_load(file.read_text())
        if "base" in own:
            shared = yaml.safe_load((recipes.FOLDER / "shared" / f"{own['base']}.yaml").read_text())
            assert [key for key in own.keys() & shared.keys() if own[key] == shared[key]] == [], file


@pytest.mark.parametrize("name", ["minilm-6x38", "shared/minilm", "../recipes/minilm-6x384", "", "~nobody-of-that-name/x.yaml"])
def test_what_is_no_recipe_is_refused(name, capsys, tmp_path):
    assert main(["run", name, "-o", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---------------------------------------------------------------- the fields


def read_attributes():
    """The names of all attributes that the package reads, the class of the recipe itself left out."""
    found = {field.name for field in fields(Plan)}
    for file in SOURCE.rglob("*.py"):
        found |= {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
    return found


@pytest.mark.parametrize("kind", [Recipe, StageRecipe, StagedRecipe, *METHODS])
def test_every_field_is_read(kind):
    read = read_attributes()
    for setting in described_settings(kind):
        assert setting.name in read, f"nothing reads {kind.__name__}.{setting.name}"
