"""One typed recipe stands behind flags, YAML and Python."""

import inspect

import pytest
import yaml

import limbeck
from limbeck._settings import described_settings, flag
from limbeck.cli import _parser
from limbeck.objectives import METHODS
from limbeck.recipe import Recipe, plain, read_recipe, validate, write_recipe
from limbeck.recipes import shipped

NEEDED = {"teacher": "teacher/", "corpus": ["a.txt", "b.txt"], "student": "6x384"}


def test_every_field_is_documented_and_has_a_flag():
    options = {
        option
        for action in _parser()._subparsers._group_actions[0].choices["distill"]._actions
        for option in action.option_strings
    }
    for kind in (Recipe, *METHODS):
        for setting in described_settings(kind):
            if setting.name != "name":
                assert setting.text, f"{kind.__name__}.{setting.name} has no docstring"
                assert flag(setting.name) in options


def test_the_signature_of_distill_is_the_recipe():
    fields = {setting.name for setting in described_settings(Recipe)}
    assert fields | {"output", "resume", "overwrite", "quiet"} == set(inspect.signature(limbeck.distill).parameters)


def test_text_is_understood_as_on_a_command_line():
    recipe = validate(
        Recipe,
        {**NEEDED, "steps": "7", "learning_rate": "1e-3", "objective": {"name": "minilmv2", "relation_heads": "48"}},
    )
    assert (recipe.steps, recipe.learning_rate) == (7, 1e-3)
    assert recipe.objective == limbeck.MiniLMv2(relation_heads=48)


def test_python_yaml_and_text_make_the_same_recipe(tmp_path):
    from_python = Recipe(**NEEDED, objective=limbeck.MiniLMv2(relations=("qk", "vv"), teacher_layer=10), steps=5)
    file = tmp_path / "recipe.yaml"
    file.write_text(write_recipe(from_python))
    assert validate(Recipe, read_recipe(file)) == from_python
    from_text = {**NEEDED, "objective": {"name": "minilmv2", "relations": "qk,vv", "teacher_layer": "10"}, "steps": "5"}
    assert validate(Recipe, from_text) == from_python


def test_an_objective_may_be_named_alone():
    assert validate(Recipe, {**NEEDED, "objective": "minilm"}).objective == limbeck.MiniLM()


def test_relations_may_be_weighted_in_a_recipe(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**NEEDED, "objective": {"name": "minilmv2", "relations": {"qq": 1, "vv": 0.5}}}))
    assert validate(Recipe, read_recipe(file)).objective.weights() == {"qq": 1.0, "vv": 0.5}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"student": "6by384"}, "no student shape"),
        ({"student": "0x384"}, "no student shape"),
        ({"steps": 0}, "--steps"),
        ({"steps": 5, "tokens": 9}, "give one of steps, tokens and epochs"),
        ({"learning_rate": "fast"}, "--learning-rate"),
        ({"learning_rate": float("nan")}, "--learning-rate"),
        ({"batch_sise": 3}, "--batch-sise: no such setting"),
        ({"precision": "fp8"}, "--precision"),
        ({"objective": "minilmv3"}, "minilmv2"),
        ({"objective": {"name": "minilm", "relation_heads": 4}}, "relation_heads"),
        ({"objective": {"name": "minilmv2", "relations": "qq,zz"}}, "relations"),
        ({"objective": {"name": "minilmv2", "relations": ""}}, "relations"),
        ({"holdout": "0.9"}, "held-out share"),
        ({"corpus": []}, "--corpus"),
    ],
)
def test_wrong_values_are_refused_in_one_line(changes, expected):
    with pytest.raises(limbeck.UserError) as refusal:
        validate(Recipe, {**NEEDED, **changes}, flag)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_missing_is_named():
    with pytest.raises(limbeck.UserError, match=r"--teacher is required.*--corpus is required"):
        validate(Recipe, {"student": "6x384"}, flag)


def test_shipped_recipes_are_valid():
    recipe = validate(Recipe, {**shipped("quickstart"), "teacher": "t", "corpus": ["c"]})
    assert plain(recipe)["student"] == "3x384"


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", ""])
def test_files_that_are_no_recipes_are_refused(tmp_path, text):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(limbeck.UserError, match=r"recipe\.yaml"):
        read_recipe(file)
