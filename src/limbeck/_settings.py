"""How typed settings are declared: one class gives the recipe's field, the command's flag and Python's argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass
from pydantic_core import ErrorDetails, PydanticUndefined
from typing_extensions import dataclass_transform

from limbeck.errors import UserError
from limbeck.text import nearest

WRONG_TYPE = ("dict_type", "tuple_type")
"""What pydantic says of a value that is no mapping, or no list."""

T = TypeVar("T")
Collection = TypeVar("Collection", bound=Sequence[Any])
Spelling = Callable[[Sequence[str]], str]
"""Turns the place of a setting, such as ("objective", "teacher_layer"), into the word the user knows it by."""


def _no_boolean(value: object) -> object:
    # Python takes a recipe's "yes" for 1.
    if isinstance(value, bool):
        raise ValueError("should be a number, not a truth value (yes, on, true)")
    return value


def _whole(value: object) -> object:
    # Python's int() reads no exponent.
    if isinstance(value, str) and "e" in value.lower():
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() else value
    return _no_boolean(value)


Number = Annotated[float, BeforeValidator(_no_boolean)]
"""A real number; text is read as on a command line."""
WholeNumber = Annotated[int, BeforeValidator(_whole)]
"""A whole number, however it is written (8, 8.0, "8", 1e6); neither a fraction nor a truth value."""


def no_duplicates(values: Collection) -> Collection:
    """Refuse a value that stands there twice; for use as an ``AfterValidator``."""
    for value in values:
        if list(values).count(value) > 1:
            raise ValueError(f"{value} stands there twice")
    return values


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a frozen, validated dataclass with keyword fields, whose attribute docstrings are the fields' help.

    What does not validate is a `UserError`, as everywhere.
    """
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    made: Any = validated_dataclass(frozen=True, kw_only=True, config=config)(cls)
    validated = made.__init__

    @wraps(validated)
    def __init__(self: Any, *arguments: Any, **given: Any) -> None:  # noqa: N807
        try:
            validated(self, *arguments, **given)
        except ValidationError as error:
            raise described(error, made, given) from None

    __init__.__doc__ = "Keyword arguments only: the fields, which the class describes."
    made.__init__ = __init__
    fields = [f"    {setting.name}: {setting.text}" for setting in described_settings(made) if setting.text]
    made.__doc__ = "\n".join([(made.__doc__ or "").rstrip(), "", "Args:", *fields])
    return made  # type: ignore[no-any-return]


def spelled_signature(function: Callable[..., Any], kind: type, first: str) -> inspect.Signature:
    """The signature of a function with the fields of a class spelled out in place of **settings, for help() and editors.

    Args:
        function: takes `first`, its own keywords, and **settings.
        kind: the class made by `settings` whose fields these are.
        first: the field that the function takes by position.
    """
    own = dict(inspect.signature(function).parameters)
    del own["settings"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = [field.replace(kind=keyword) for name, field in inspect.signature(kind).parameters.items() if name != first]
    returned = inspect.signature(function).return_annotation
    return inspect.Signature([own.pop(first), *fields, *own.values()], return_annotation=returned)


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
    return ",".join(default) if isinstance(default, tuple | list) else str(default)


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def described(error: ValidationError, kind: type, given: Mapping[str, Any], spell: Spelling = ".".join) -> UserError:
    """Say in one line what values that did not validate should have been.

    Args:
        error: what pydantic raised.
        kind: the class of settings.
        given: the values.
        spell: turns a setting's place into the word the user knows it by.
    """
    found = [(_place(each, given), each) for each in error.errors(include_url=False)]
    inside = [place for place, each in found if each["type"] not in WRONG_TYPE]
    problems: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for place, each in found:
        # What is wrong inside a mapping says more than that a list would do as well.
        if each["type"] not in WRONG_TYPE or not any(other[: len(place)] == place for other in inside):
            problems.setdefault(place, []).append(each)
    names = [setting.name for setting in described_settings(kind)]
    sentences = [_sentence(spell(place) if place else kind.__name__, place, found, names) for place, found in problems.items()]
    return UserError(" ".join(sentences))


def _place(problem: ErrorDetails, given: Any) -> tuple[str, ...]:
    """The names on the way to a value, without the indices and the names of types that pydantic puts between them."""
    place: list[str] = []
    for part in problem["loc"]:
        if isinstance(given, Mapping) and part in given:
            given = given[part]
            place.append(str(part))
        elif isinstance(part, str) and problem["type"] in ("missing", "missing_argument"):
            place.append(part)
    return tuple(place)


def _sentence(name: str, place: Sequence[str], problems: Sequence[ErrorDetails], names: Sequence[str]) -> str:
    """What is wrong at one place; a setting that may be of several types has a problem with each of them."""
    kinds = {problem["type"] for problem in problems}
    if kinds & {"missing", "missing_argument"}:
        return f"{name} is required."
    if "unexpected_keyword_argument" in kinds:
        return f"{name}: no such setting{nearest(place[-1], names) or '.'}"
    if "unexpected_positional_argument" in kinds:
        return f"{name} takes its settings by name, such as {names[-1]}=..."
    if "union_tag_invalid" in kinds:
        context = problems[0]["ctx"]
        return f"{name}: there is no {context['tag']!r}; choose one of {context['expected_tags']}."
    texts = list(dict.fromkeys(_message(problem) for problem in problems))
    text = " or ".join([texts[0], *(each.removeprefix("should be ") for each in texts[1:])])
    value = " ".join(repr(problems[0]["input"]).split())[:80]
    shown = "" if "value_error" in kinds or not place or "not " in text else f", not {value}"
    about = f"{name}: " if place else ""
    return f"{about}{text}{shown}" + ("" if text.endswith("?") and not shown else ".")


def _message(problem: ErrorDetails) -> str:
    text = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    return text[:1].lower() + text[1:].split(", unable to")[0]
