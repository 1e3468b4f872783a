"""Recipes that ship with Limbeck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck.recipe import read_recipe


def shipped(name: str) -> dict[str, Any]:
    """The fields of a recipe that ships with Limbeck."""
    return read_recipe(Path(__file__).parent / f"{name}.yaml")
