"""Recipes of several stages: their typed form, and how a file's shared fields and its stages' own ones make it.

A recipe file with a list ``stages`` is several distillations, one after another. Each entry holds fields of `Recipe` and
perhaps a ``name``; all other fields of the file hold for every stage that does not say otherwise. An ``objective`` that names
a method takes the shared one's place, and one with settings alone changes these; a length (steps, tokens or epochs) takes the
place of any other. ``teacher: stage`` is the student of the stage before, which is what every stage but the first learns from
unless it names a teacher or says ``init: stage``, which begins with that student's weights.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from limbeck._settings import Spelling, settings
from limbeck.errors import UserError
from limbeck.objectives import METHODS
from limbeck.recipe import Recipe, plain, validate
from limbeck.text import nearest

BEFORE = "stage"
"""As a teacher the student of the stage before, as a start its weights."""
LENGTHS = ("steps", "tokens", "epochs")
"""Ways of saying how long to train; one takes the place of whichever stood there."""


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", text):
        raise ValueError(f"{text!r} is no name of a stage; take letters, digits, - and _, with a letter first")
    return text


@settings
class StageRecipe(Recipe):
    """One stage of a recipe: a distillation with a name."""

    name: Annotated[str, AfterValidator(_name)]
    """what the stage is called, and its directory"""

    def __post_init__(self) -> None:
        """Check what concerns several fields."""
        Recipe.__post_init__(self)
        if self.assistant != "none":
            raise ValueError("assistant is for a recipe without stages; write the assistant as a stage of its own")
        if len(self.students) > 1:
            raise ValueError(f"student: a stage has one student, not {' and '.join(self.students)}; give each a stage")
        if self.teacher == self.init == BEFORE:
            raise ValueError(f"init: {BEFORE} needs a teacher other than the stage before, whose weights it begins with")

    @classmethod
    def of(cls, recipe: Recipe, **changes: Any) -> StageRecipe:
        """A recipe as a stage, with a name and perhaps other changes."""
        return cls(**{**{field.name: getattr(recipe, field.name) for field in fields(Recipe)}, **changes})

    @property
    def recipe(self) -> Recipe:
        """The same without the name."""
        return Recipe(**{field.name: getattr(self, field.name) for field in fields(Recipe)})


@settings
class StagedRecipe:
    """Several distillations, one after another; the last one's student is what they are for."""

    stages: Annotated[list[StageRecipe], Field(min_length=1)]
    """the stages in their order"""

    def __post_init__(self) -> None:
        """Check what concerns several stages."""
        names = [stage.name.casefold() for stage in self.stages]
        for stage in self.stages:
            if names.count(stage.name.casefold()) > 1:
                raise ValueError(f"two stages are called {stage.name}; give each a name of its own")
        first = self.stages[0]
        if BEFORE in (first.teacher, first.init):
            raise ValueError(f"{first.name} is the first stage; no teacher or start of it can come from a stage before")
        for before, stage in pairwise(self.stages):
            if stage.init == BEFORE and (stage.shape.layers, stage.shape.width) != (before.shape.layers, before.shape.width):
                raise ValueError(
                    f"{stage.name} begins with the weights of {before.name}, a {before.student}, so it cannot be a "
                    f"{stage.student}; leave its student out"
                )


def recipe_of(values: Mapping[str, Any], spell: Spelling = ".".join) -> Recipe | StagedRecipe:
    """Build a recipe of one or several stages from plain values.

    Args:
        values: as a recipe file has them; text is understood as on a command line.
        spell: turns a setting's place into the word the user knows it by.

    Raises:
        UserError: a value is missing, unknown or not what it should be; naming the stage.
    """
    if "stages" not in values:
        return validate(Recipe, values, spell)
    shared = {name: value for name, value in values.items() if name != "stages"}
    stages: list[StageRecipe] = []
    for name, own in _named_stages(values):
        try:
            stages.append(validate(StageRecipe, _merged(shared, {**own, "name": name}, stages), spell))
        except UserError as error:
            raise UserError(f"Stage {name}: {error}") from None
    return validate(StagedRecipe, {"stages": stages})


def plain_stages(staged: StagedRecipe) -> dict[str, Any]:
    """A staged recipe as plain values that `recipe_of` reads; each stage holds all of its fields, the name first."""
    return {"stages": [{"name": stage.name, **plain(stage.recipe)} for stage in staged.stages]}


def override(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's plain values with some of them set anew.

    Args:
        values: as a recipe file has them; not changed.
        changes: "steps", "objective.relation_heads", "stages.1.student" or "stages.NAME.student" -> value. A field that
            names no stage holds for all of them, also for those that say something else.

    Raises:
        UserError: there is no such stage, or something that has no settings was to get one.
    """
    changed = copy.deepcopy(dict(values))
    if "stages" in changed:
        _named_stages(changed)  # for its refusal
    for scope in {key.rpartition(".")[0] for key in changes}:
        lengths = [key for key in changes if key in [f"{scope}.{name}".lstrip(".") for name in LENGTHS]]
        if len(lengths) > 1:
            raise UserError(f"{' and '.join(lengths)} each say how long to train; give one of them.")
    for key, value in changes.items():
        place = key.split(".")
        if place[0] == "stages":
            _set(_stage_at(changed, key), place[2:], value, key)
            continue
        for _, own in _named_stages(changed) if "stages" in changed else []:
            if len(place) == 1:
                for name in LENGTHS if key in LENGTHS else [key]:
                    own.pop(name, None)
            elif place[0] in own:
                _set(own, place, value, key)
        _set(changed, place, value, key)
    return changed


def _named_stages(values: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Each stage's name and its own fields, the very mapping.

    Raises:
        UserError: stages are no list of mappings.
    """
    stages = values["stages"]
    if not isinstance(stages, list) or not stages or not all(isinstance(own, dict) for own in stages):
        raise UserError("stages must be a list with the fields of each stage, such as '- {name: assistant, student: 12x384}'.")
    return [(str(own.get("name", f"stage-{number}")), own) for number, own in enumerate(stages, 1)]


def _stage_at(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The fields of the stage that a key such as stages.1.student names."""
    stages = _named_stages(values) if "stages" in values else []
    wanted = key.removeprefix("stages").lstrip(".").split(".")[0]
    for number, (name, own) in enumerate(stages, 1):
        if wanted in (name, str(number)):
            return own
    names = [name for name, _ in stages]
    known = f"its stages are {', '.join(names)}" if stages else "it has no stages"
    if not stages and values.get("assistant", "none") != "none":
        known += ": an assistant takes the recipe's own fields; write stages to give it others"
    raise UserError(f"{key}: the recipe has no stage {wanted!r}, {known}{nearest(wanted, names) or '.'}")


def _set(into: dict[str, Any], place: Sequence[str], value: Any, key: str) -> None:
    if len(place) == 1 and place[0]:
        for name in LENGTHS if place[0] in LENGTHS else []:
            into.pop(name, None)
        into[place[0]] = value
    elif len(place) == 2 and place[0] == "objective":
        before = _objective(into.get("objective", {}))
        into["objective"] = {"name": value} if place[1] == "name" else {**before, place[1]: value}
    else:
        raise UserError(f"{key}: no such setting; write FIELD, objective.SETTING, or stages.NAME before either of them.")


def _objective(given: Any) -> dict[str, Any]:
    """An objective's settings, however it was given."""
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, METHODS):
        raise UserError(f"The recipe's objective must be a name or a mapping with a name, not {given!r}.")
    return plain(given)


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any], earlier: Sequence[StageRecipe]) -> dict[str, Any]:
    """The fields of a stage: its own, and those of the shared ones that it leaves as they are."""
    merged = {name: value for name, value in shared.items() if name not in LENGTHS or not own.keys() & set(LENGTHS)} | dict(own)
    objective = own.get("objective")
    if "objective" in shared and isinstance(objective, Mapping) and "name" not in objective:
        merged["objective"] = {**_objective(shared["objective"]), **objective}
    if earlier and merged.get("init") == BEFORE:
        merged.setdefault("student", earlier[-1].student)
    elif earlier and "teacher" not in own:
        merged["teacher"] = BEFORE
    return merged
