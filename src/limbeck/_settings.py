"""How typed settings are declared: one class gives the recipe's field, the command's flag and Python's argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass
from pydantic_core import PydanticUndefined
from typing_extensions import dataclass_transform

from limbeck.errors import UserError

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a frozen, validated dataclass with keyword fields, whose attribute docstrings are the fields' help."""
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    made: Any = validated_dataclass(frozen=True, kw_only=True, config=config)(cls)
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Setting:
    """One field of a class of settings, as its flag and the documentation show it."""

    name: str
    text: str
    """What it is, from the docstring under the field."""
    required: bool
    default: str
    """As a person writes it; empty without one."""
    repeated: bool
    """Whether it takes several values."""
    switch: bool
    """Whether it is on or off."""


def described_settings(kind: type) -> list[Setting]:
    """The fields of a class made by `settings`, in order."""
    return [
        Setting(
            name=name,
            text=" ".join((field.description or "").split()),
            required=field.is_required(),
            default=_written(field.default),
            repeated=_takes_several(field.annotation),
            switch=field.annotation is bool,
        )
        for name, field in kind.__pydantic_fields__.items()  # type: ignore[attr-defined]
    ]


def _takes_several(annotation: Any) -> bool:
    """Whether a field is a list, or may be one."""
    return get_origin(annotation) is list or any(_takes_several(part) for part in get_args(annotation) if part is not annotation)


def _written(default: Any) -> str:
    if default is None or default is PydanticUndefined:
        return ""
    return ",".join(default) if isinstance(default, tuple) else str(default)


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def described(error: ValidationError, spell: Any = str) -> UserError:
    """Say in one line what a value that did not validate should have been.

    Args:
        error: what pydantic raised.
        spell: turns a field's name into the word the user knows it by, such as ``--batch-size``.
    """
    problems = []
    for each in error.errors(include_url=False):
        # The name of a union's member is no word of the user's.
        place = [str(part) for part in each["loc"] if not (isinstance(part, str) and "[" in part)]
        name = spell(place[0]) if place else error.title
        inner = f" ({'.'.join(place[1:])})" if len(place) > 1 else ""
        if each["type"] == "unexpected_keyword_argument":
            problems.append(f"{name}{inner}: no such setting")
        elif each["type"] == "union_tag_invalid":
            problems.append(f"{name}: there is no {each['ctx']['tag']!r}; choose one of {each['ctx']['expected_tags']}")
        elif each["type"] == "missing" or each["type"] == "missing_argument":
            problems.append(f"{name}{inner} is required")
        else:
            message = each["msg"].removeprefix("Value error, ")
            given = repr(each["input"])
            shown = f", not {given[:80]}" if place and given not in message else ""
            problems.append(f"{name}{inner}: {message[:1].lower() + message[1:]}{shown}")
    return UserError("; ".join(problem.rstrip(".") for problem in problems) + ".")
