"""Who takes part in an evaluation: the models named, and the teachers and twins of distilled students."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from limbeck.encoders.cost import count_parameters
from limbeck.encoders.loading import load_config, load_encoder
from limbeck.encoders.students import build_student
from limbeck.errors import UserError
from limbeck.recipe import Recipe, read_recipe, validate
from limbeck.report import Model
from limbeck.stages import StagedRecipe
from limbeck.studies.tuning import file_name
from limbeck.tasks.heads import has_sentence_head, output_names
from limbeck.training.export import export_student
from limbeck.training.folder import RUNS, RunFolder
from limbeck.training.staged import stage_recipes
from limbeck.training.summary import public_name
from limbeck.training.tail import apply_tail

LONGEST_NAME = 200
"""Bytes that a file's name may have, with room for what is added while it is written."""
CARD = "The student as it was before its distillation.\n"


@dataclass(frozen=True)
class Entrant:
    """A model that is evaluated."""

    model: Model
    """Its row."""
    source: str
    """What it is loaded from; a twin once it was written there."""
    outputs: tuple[str, ...] = ()
    """The names of its head's outputs, if it has one for sentences and is there for its own sake: a teacher that nobody named is
    there for its student's, which has no head."""
    distilled_by: Recipe | None = None
    """A twin's: the recipe that its run began with."""


def list_entrants(models: Sequence[str], twins: Path) -> list[Entrant]:
    """The rows that the named models make, the twins and teachers of distilled students among them.

    Args:
        models: each a model or NAME=MODEL.
        twins: where `write_twin` is to write students as they were before distillation.

    Raises:
        UserError: a model cannot be loaded, or two rows would have the same name.
    """
    named = [each for text in models for each in _each_student(*named_source(text))]
    distilled = {name: found for name, source in named if (found := _distillation(source)) is not None}
    teachers = {_place(found.teacher): public_name(found.teacher) for found in distilled.values()}
    teachers |= {_place(source): name for name, source in named if _place(source) in teachers}
    rows = [
        *teachers.values(),
        *(name for name, source in named if name in distilled or _place(source) not in teachers),
        *map(_twin_name, distilled),
    ]
    _check_names(rows)
    places = {_place(source) for _, source in named}
    entrants = [_entrant(name, "teacher", place, named=place in places) for place, name in teachers.items()]
    for name, source in named:
        if name in distilled:
            found = distilled[name]
            student = _entrant(name, "distilled", source, taught_by=teachers[_place(found.teacher)])
            row = replace(student.model, name=_twin_name(name), role="twin", twin_of=name, taught_by=None)
            entrants += [Entrant(row, str(twins / file_name(name)), distilled_by=found.recipe), student]
        elif _place(source) not in teachers:
            entrants.append(_entrant(name, "comparator", source))
    return entrants


def write_twin(recipe: Recipe, folder: Path) -> None:
    """Write the student of a run as it was before training, tail included; what an earlier evaluation wrote there is replaced."""
    teacher = load_encoder(recipe.teacher)
    twin = build_student(
        teacher,
        recipe.shape,
        recipe.init,
        recipe.seed,
        family=recipe.named_family,
        teacher_heads=recipe.objective.equal_heads,
    )
    twin, _ = apply_tail(recipe.tail, teacher, twin, recipe.objective)
    export_student(folder, twin, CARD)


def _check_names(names: Sequence[str]) -> None:
    """Refuse rows of one name, and such as would be kept in one directory.

    Raises:
        UserError: naming them.
    """
    for name in names:
        alike = [other for other in names if file_name(other).casefold() == file_name(name).casefold()]
        if len(alike) > 1:
            raise UserError(f"Two models are called {' and '.join(dict.fromkeys(alike))}; tell them apart as NAME=MODEL.")
        if len(file_name(name).encode()) > LONGEST_NAME:
            raise UserError(f"The name {name[:40]}... is too long for a directory; give a shorter one as NAME=MODEL.")


def _twin_name(name: str) -> str:
    return f"{name} (twin)"


def named_source(text: str) -> tuple[str, str]:
    """The name and the source of a model that is given as NAME=MODEL or as MODEL alone."""
    name, equals, source = text.partition("=")
    return (name, source) if equals and name and source and "/" not in name else (public_name(text), text)


def _each_student(name: str, source: str) -> list[tuple[str, str]]:
    """A run of several students as theirs; anything else as it is."""
    students = sorted(path.name for path in Path(source).expanduser().glob(f"{RUNS}/*"))
    return [(f"{name}-{student}", str(Path(source) / RUNS / student)) for student in students] or [(name, source)]


@dataclass(frozen=True)
class _Distillation:
    """Where a distilled student comes from."""

    teacher: str
    """The first one, where there were assistants in between."""
    recipe: Recipe
    """What it was distilled by; of several stages the last one's."""


def _distillation(source: str) -> _Distillation | None:
    """What a run's student was distilled by; None if it is no distillation's run."""
    folder = RunFolder(source)
    if not folder.recipe.is_file():
        return None
    fields = read_recipe(folder.recipe)
    if "stages" in fields:
        load_config(source)  # for its refusal of a run that has no student yet
        recipes = [*stage_recipes(validate(StagedRecipe, fields), folder).values()]
        return _Distillation(recipes[0].teacher, recipes[-1])
    recipe = validate(Recipe, fields) if "teacher" in fields else None
    return None if recipe is None else _Distillation(recipe.teacher, recipe)


def _place(source: str) -> str:
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def _entrant(name: str, role: Any, source: str, *, named: bool = True, **relations: str) -> Entrant:
    try:
        encoder = load_encoder(source)
    except UserError as error:
        raise error if named else UserError(f"The teacher of a run's student cannot be loaded: {error}") from None
    parameters = count_parameters(encoder.model)
    size = parameters.embedding + parameters.transformer
    outputs = tuple(output_names(encoder)) if named and has_sentence_head(encoder) else ()
    return Entrant(Model(name, role, f"{encoder.shape.layers}x{encoder.shape.width}", size, **relations), source, outputs)
