"""The methods: each file holds one paper's mathematics."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from limbeck.objectives.minilm import MiniLM
from limbeck.objectives.minilmv2 import MiniLMv2

__all__ = ["METHODS", "AnyObjective", "MiniLM", "MiniLMv2"]

METHODS = (MiniLMv2, MiniLM)
"""Every objective, the default first."""


def _named(value: object) -> object:
    if isinstance(value, dict):
        return {"name": METHODS[0].name, **value}
    return {"name": value} if isinstance(value, str) else value


AnyObjective = Annotated[MiniLMv2 | MiniLM, BeforeValidator(_named), Field(discriminator="name")]
"""One of the methods: an instance, a mapping of settings (with a ``name``, unless it is the first), or the name alone."""
