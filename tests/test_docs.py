"""The documentation says what the code does: tables of fields and schemas are compared with it."""

from pathlib import Path

import pytest

from limbeck._settings import described_settings
from limbeck.objectives import METHODS
from limbeck.recipe import Recipe

DOCS = Path(__file__).parent.parent / "docs"


def table(kind):
    """The Markdown table of a class of settings."""
    rows = [
        f"| `{setting.name}` | {'required' if setting.required else setting.default or '-'} | {setting.text} |"
        for setting in described_settings(kind)
        if setting.name not in ("name", "objective")
    ]
    return "\n".join(["| field | default | |", "| --- | --- | --- |", *rows])


@pytest.mark.parametrize("kind", [Recipe, *METHODS], ids=lambda kind: kind.__name__)
def test_every_field_is_documented_as_it_is(kind):
    assert table(kind) in (DOCS / "recipes.md").read_text(), f"docs/recipes.md must hold:\n{table(kind)}"
