"""One typed recipe stands behind flags, YAML and Python."""

import inspect
import pydoc

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
        ({"steps": 0}, "steps: "),
        ({"steps": 8.5}, "steps: should be a valid integer, got a number with a fractional part"),
        ({"steps": True}, "steps: should be a number, not a truth value"),
        ({"steps": 5, "tokens": 9}, "give one of steps, tokens and epochs"),
        ({"learning_rate": "fast"}, "learning_rate: should be a valid number, not 'fast'"),
        ({"learning_rate": float("nan")}, "learning_rate: "),
        ({"bach_size": 3}, "bach_size: no such setting; did you mean batch_size?"),
        ({"zzz": 3}, "zzz: no such setting."),
        ({"precision": "fp8"}, "precision: should be 'auto', 'float32' or 'bf16', not 'fp8'"),
        ({"micro_batch_size": "few"}, "micro_batch_size: should be a valid integer or 'auto', not 'few'"),
        ({"objective": "minilmv3"}, "objective: there is no 'minilmv3'; choose one of 'minilmv2', 'minilm'"),
        ({"objective": {"name": ["minilm"]}}, "objective: there is no"),
        ({"objective": {"name": "minilm", "relation_heads": 4}}, "no setting relation_heads; it belongs to minilmv2"),
        ({"objective": {"relaton_heads": 4}}, "no setting relaton_heads; did you mean relation_heads?"),
        ({"objective": {"relations": "qq,zz"}}, "objective.relations: should be 'qq', 'kk'"),
        ({"objective": {"relations": {"zz": 1}}}, "objective.relations.zz: should be 'qq', 'kk'"),
        ({"objective": {"relations": ""}}, "relations"),
        ({"objective": {"relations": 3}}, "relations"),
        ({"objective": {"relations": ["qq", "vv", "qq"]}}, "objective.relations: qq stands there twice"),
        ({"holdout": "0.9"}, "held-out share"),
        ({"holdout": 1}, "held-out share"),
        ({"corpus": []}, "corpus: "),
        ({"corpus": ["a.txt", 3]}, "corpus: should be a valid string, not 3"),
        ({"trackers": ["wandb", "wandb"]}, "trackers: wandb stands there twice"),
        ({"init": "~nobody-of-that-name/student"}, "init: there is no home directory ~nobody-of-that-name"),
    ],
)
def test_wrong_values_are_refused_in_one_line(changes, expected, refused):
    with refused(expected):
        validate(Recipe, {**NEEDED, **changes})
    with refused(expected):
        Recipe(**{**NEEDED, **changes})
    with refused(expected):
        limbeck.distill(**{**NEEDED, **changes}, output="runs/none")


@pytest.mark.parametrize("kind", [Recipe, *METHODS])
def test_a_truth_value_is_no_value_of_any_setting_but_switches(kind, refused):
    for setting in (each for each in described_settings(kind) if not each.switch):
        with refused(setting.name):
            kind(**{**(NEEDED if kind is Recipe else {}), setting.name: True})


def test_objectives_refuse_what_they_do_not_know(refused):
    with refused("relaton_heads: no such setting; did you mean relation_heads?"):
        limbeck.MiniLMv2(relaton_heads=4)
    with refused("MiniLMv2", "by name"):
        limbeck.MiniLMv2(48)
    with refused("relations: qq stands there twice"):
        limbeck.MiniLMv2(relations=("qq", "qq"))


@pytest.mark.parametrize("kind", [Recipe, *METHODS])
def test_help_describes_every_setting(kind):
    text = pydoc.plain(pydoc.render_doc(kind)).split("Methods defined here")[0]
    for setting in described_settings(kind):
        assert not setting.text or f"{setting.name}: {setting.text}" in text


@pytest.mark.parametrize("written", [8, 8.0, "8", "8.0", "8e0"])
def test_a_whole_number_may_be_written_in_any_way(written):
    steps = validate(Recipe, {**NEEDED, "steps": written}).steps
    assert (steps, type(steps)) == (8, int)
    assert validate(Recipe, {**NEEDED, "seed": str(2**63 - 1)}).seed == 2**63 - 1


def test_what_is_missing_is_named(refused):
    with refused("teacher is required.", "corpus is required."):
        validate(Recipe, {"student": "6x384"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps: 1\nseed: 2\nsteps: 3\n", ", line 3: steps was given in line 1 already"),
        ("objective:\n  relations:\n    qq: 1\n    'qq': 2\n", ", line 4: qq was given in line 3 already"),
        ("steps: 1\n\tseed: 2\n", ", line 2: found character"),
        ("3: 4\n", "3 is no name of a setting"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path, text, expected, refused):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with refused(str(file), expected):
        read_recipe(file)


def test_a_key_may_override_a_merged_one(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("a: {b: &shared {x: 1, y: 2}}\nc: {<<: *shared, y: 3}\n")
    assert read_recipe(file) == {"a": {"b": {"x": 1, "y": 2}}, "c": {"x": 1, "y": 3}}


def test_shipped_recipes_are_valid():
    recipe = validate(Recipe, {**shipped("quick-cpu"), "teacher": "t", "corpus": ["c"]})
    assert plain(recipe)["student"] == "3x384"


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", ""])
def test_files_that_are_no_recipes_are_refused(tmp_path, text):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(limbeck.UserError, match=r"recipe\.yaml"):
        read_recipe(file)
