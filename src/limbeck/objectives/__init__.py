"""The methods: each file holds one paper's mathematics."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from limbeck._settings import described_settings
from limbeck.objectives.minilm import MiniLM
from limbeck.objectives.minilmv2 import MiniLMv2
from limbeck.text import nearest

__all__ = ["METHODS", "AnyObjective", "MiniLM", "MiniLMv2"]

METHODS = (MiniLMv2, MiniLM)
"""Every objective, the default first."""


def _named(value: object) -> object:
    if isinstance(value, dict):
        value = {"name": METHODS[0].name, **value}
        _check_settings(value)
        return value
    return {"name": value} if isinstance(value, str) else value


def _check_settings(given: dict[str, object]) -> None:
    """Refuse a setting that the named method does not have, saying which one has it."""
    known: dict[str, list[str]] = {method.name: [setting.name for setting in described_settings(method)] for method in METHODS}
    method = str(given["name"])
    for setting in given:
        if setting not in known.get(method, list(given)):
            owners = [name for name, settings in known.items() if setting in settings]
            hint = f"; it belongs to {' and '.join(owners)}" if owners else nearest(setting, known[method])
            raise ValueError(f"{method} has no setting {setting}{hint}")


AnyObjective = Annotated[MiniLMv2 | MiniLM, BeforeValidator(_named), Field(discriminator="name")]
"""One of the methods: an instance, a mapping of settings (with a ``name``, unless it is the first), or the name alone."""
