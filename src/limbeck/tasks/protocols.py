"""Protocols: how models are fine-tuned so that they can be compared, the papers' grids and one that is cheap.

A protocol is a YAML file. Its fields are those of `FineTuning` that say how to train (`FIELDS`); a list instead of one value
is a grid of choices. ``learning_rate_by_width`` gives a learning rate for some widths of models: the nearest one counts, and
the wider of two that are equally near. ``tasks`` holds what differs for some tasks: a task, several with commas between them,
``glue`` or ``questions``; where two entries speak of the same field of a task the later one counts. ``description`` says in
a line what the protocol is, and with ``named_tasks_only`` it is only for tasks that ``tasks`` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from limbeck import recipes
from limbeck._settings import no_duplicates
from limbeck.errors import UserError
from limbeck.recipe import read_recipe, validate
from limbeck.tasks.folders import squeezed
from limbeck.tasks.glue import GLUE
from limbeck.tasks.recipe import FineTuning
from limbeck.tasks.squad import QUESTIONS
from limbeck.text import nearest

FIELDS = (
    "examples",
    "max_length",
    "overlap",
    "class_weights",
    "batch_size",
    "epochs",
    "steps",
    "learning_rate",
    "warmup",
    "weight_decay",
    "dropout",
    "precision",
    "eval_every",
    "patience",
)
"""The fields of `FineTuning` that a protocol may set."""
BY_WIDTH = "learning_rate_by_width"
LAYER = (*FIELDS, BY_WIDTH)
"""What may be said for every task and for some."""
RIVALS = (("epochs", "steps"), ("learning_rate", BY_WIDTH))
"""Fields of which the one that is said later takes the other's place."""
TASKS = (*GLUE, "xnli", *QUESTIONS)
GROUPS: dict[str, tuple[str, ...]] = {"glue": tuple(GLUE), "questions": tuple(QUESTIONS)}
SHIPPED = Path(recipes.__file__).parent / "protocols"

Layer = Mapping[str, Any]
"""field -> its choices, in a list; those by width in a mapping width -> list."""


@dataclass(frozen=True)
class Protocol:
    """A protocol that was read and found right."""

    description: str
    """One line."""
    named_tasks_only: bool
    common: Layer
    """For every task."""
    tasks: tuple[tuple[tuple[str, ...], Layer], ...]
    """For some tasks, in the file's order."""

    def layers(self, task: str | None) -> list[Layer]:
        """What is said for a task, to be laid over one another; None stands for a task of the user's own."""
        return [self.common, *(layer for names, layer in self.tasks if task in names)]

    @property
    def named(self) -> list[str]:
        """The tasks that it names."""
        return [task for task in TASKS if any(task in names for names, _ in self.tasks)]


def names() -> list[tuple[str, str]]:
    """The protocols that ship with Limbeck: name and description, in alphabetical order."""
    return [(file.stem, read_protocol(file).description) for file in sorted(SHIPPED.glob("*.yaml"))]


def settings(
    protocol: str | Path | None, task: str | None, width: int, given: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The settings that a protocol tries for a task.

    Args:
        protocol: the name of one that ships with Limbeck, or a YAML file; without it only what is given counts.
        task: its name; None for the user's own.
        width: of the model that is fine-tuned.
        given: what counts instead of what the protocol says; fields of `LAYER`, a list is several choices here too.

    Returns:
        Fields of `FineTuning`, a mapping a combination; the last field with several choices changes fastest.

    Raises:
        UserError: there is no such protocol or it is broken; it is not for the task; a field of `given` is not what it
            should be.
    """
    if protocol is None:
        return _combinations([_layer(given or {}, "")], width, "")
    read = read_protocol(_file(protocol))
    known = None if task is None else _task(task, TASKS, "")
    if read.named_tasks_only and known not in read.named:
        wanted = task or "a task of your own"
        raise UserError(f"The protocol {protocol} is not for {wanted}, only for {', '.join(read.named)}; choose another.")
    return _combinations([*read.layers(known), _layer(given or {}, "")], width, f"{protocol}: ")


def read_protocol(file: Path) -> Protocol:
    """Read a protocol and check all of it.

    Raises:
        UserError: naming the file, and the field that is unknown or not what it should be.
    """
    fields = read_recipe(file)
    where = f"{file}: "
    known = ("description", "named_tasks_only", "tasks", *LAYER)
    _check_names(fields, known, where)
    description, only, entries = fields.pop("description", None), fields.pop("named_tasks_only", False), fields.pop("tasks", {})
    if description is None:
        raise UserError(f"{where}a line 'description: ...' is missing; say in it what the protocol is.")
    if not isinstance(description, str) or not description.strip() or "\n" in description.strip():
        raise UserError(f"{where}description should be one line of text, not {description!r}.")
    if not isinstance(only, bool):
        raise UserError(f"{where}named_tasks_only should be true or false, not {only!r}.")
    if not isinstance(entries, dict):
        raise UserError(f"{where}tasks should be a mapping such as 'sst2: {{epochs: 2}}', not {entries!r}.")
    tasks = [(_tasks(name, where), _layer(entry, f"{where}tasks.{name}.")) for name, entry in entries.items()]
    protocol = Protocol(description.strip(), only, _layer(fields, where), tuple(tasks))
    for task in (*TASKS, None):
        for width in _widths(protocol.layers(task)):
            _combinations(protocol.layers(task), width, f"{where}for {task or 'a task of your own'}, ")
    return protocol


def _file(protocol: str | Path) -> Path:
    """The file that a name or a path stands for."""
    if (shipped := SHIPPED / f"{protocol}.yaml").is_file() and str(protocol) == shipped.stem:
        return shipped
    file = Path(protocol).expanduser()
    if not file.is_file():
        known = [name.stem for name in sorted(SHIPPED.glob("*.yaml"))]
        raise UserError(
            f"There is no protocol {str(protocol)!r}{nearest(str(protocol), known) or '.'} "
            f"There are {', '.join(known)}, or give a YAML file of your own."
        )
    return file


def _tasks(name: object, where: str) -> tuple[str, ...]:
    """The tasks that the name of an entry stands for."""
    found: list[str] = []
    for part in str(name).split(","):
        known = _task(part, (*TASKS, *GROUPS), f"{where}tasks.{name}: ")
        found += GROUPS.get(known, (known,))
    return tuple(found)


def _task(name: str, known: Iterable[str], where: str) -> str:
    if (short := squeezed(name)) not in known:
        listed = ", ".join(known)
        raise UserError(f"{where}there is no task {name.strip()!r}{nearest(short, known) or '.'} The tasks are {listed}.")
    return short


def _check_names(fields: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for name in fields:
        if name in known:
            continue
        if name in FineTuning.__dataclass_fields__:
            raise UserError(f"{where}{name} is said by the user, not by a protocol; leave it out.")
        raise UserError(f"{where}{name}: no such setting{nearest(str(name), known) or '.'}")


def _layer(fields: object, where: str) -> Layer:
    """Fields with each of their choices checked."""
    if not isinstance(fields, Mapping):
        raise UserError(f"{where.rstrip('.')} should be a mapping of settings such as {{epochs: 3}}, not {fields!r}.")
    _check_names(fields, LAYER, where)
    rivals = next((pair for pair in RIVALS if set(pair) <= fields.keys()), None)
    if rivals:
        raise UserError(f"{where}{rivals[0]} and {rivals[1]} were given; give one of them.")
    return {
        name: _by_width(value, where + name) if name == BY_WIDTH else _choices(name, value, where + name)
        for name, value in fields.items()
    }


def _by_width(value: object, place: str) -> dict[int, list[Any]]:
    if not isinstance(value, Mapping) or not value or not all(type(width) is int and width > 0 for width in value):
        raise UserError(f"{place} should be a mapping of widths such as {{384: 1e-4}}, not {value!r}.")
    return {width: _choices("learning_rate", rate, f"{place}.{width}") for width, rate in value.items()}


def _choices(name: str, value: object, place: str) -> list[Any]:
    """A field's choices as `FineTuning` understands them."""
    choices = value if isinstance(value, list | tuple) else [value]
    if not choices:
        raise UserError(f"{place} holds no choice; give it one, or leave it out.")
    checked = [_checked({name: choice}, lambda _: place)[name] for choice in choices]
    try:
        return no_duplicates(checked)
    except ValueError as error:
        raise UserError(f"{place}: {error}.") from None


def _checked(fields: Mapping[str, Any], spell: Any) -> dict[str, Any]:
    """Fields as `FineTuning` understands them."""
    recipe = validate(FineTuning, {"model": "-", "data": "-", "task": "-", **fields}, spell)
    return {name: getattr(recipe, name) for name in fields}


def _combinations(layers: Iterable[Layer], width: int, where: str) -> list[dict[str, Any]]:
    """What layers say when laid over one another, in every combination of their choices."""
    said: dict[str, Any] = {}
    for layer in layers:
        for pair in RIVALS:
            if layer.keys() & set(pair):
                said = {name: choices for name, choices in said.items() if name not in pair}
        said |= layer
    grid = {("learning_rate" if name == BY_WIDTH else name): _of(width, choices) for name, choices in said.items()}
    found = [dict(zip(grid, combination, strict=True)) for combination in product(*grid.values())]
    for combination in found:
        try:
            _checked(combination, ".".join)
        except UserError as error:
            raise UserError(f"{where}{error}") from None
    return found


def _of(width: int, choices: list[Any] | Mapping[int, list[Any]]) -> list[Any]:
    """A field's choices for models of a width."""
    if isinstance(choices, list):
        return choices
    return choices[min(choices, key=lambda given: (abs(given - width), -given))]


def _widths(layers: Iterable[Layer]) -> list[int]:
    """Widths of models, one for each learning rate that layers may come to."""
    return sorted({width for layer in layers for width in layer.get(BY_WIDTH, {})}) or [1]
