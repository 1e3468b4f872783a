"""Recipes that ship with Limbeck: the papers' settings, and two for a first try.

A file holds a recipe's fields, and what is said of it: ``description``, a line; ``paper``, where the paper has it; ``notes``,
what the paper states beside its tables, or does not state. ``base`` names a file in ``shared`` whose fields and notes it takes
over.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.errors import UserError
from limbeck.recipe import read_recipe, yaml_text
from limbeck.text import nearest

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Shipped:
    """A recipe that ships with Limbeck."""

    name: str
    description: str
    """One line."""
    paper: str
    """Paper, section and table; empty if it is of no paper."""
    notes: tuple[str, ...]
    """What the paper states beside its tables, or does not state, and what is done then."""
    fields: Mapping[str, Any]
    """As a recipe file has them; the corpus is the user's to name."""

    @property
    def text(self) -> str:
        """The recipe as a file, with what is said of it as comments."""
        said = [f"{self.name}: {self.description}", *([f"Paper: {self.paper}"] if self.paper else []), *self.notes]
        said.append("Name the text, as 'corpus: [text/]' here or with --set corpus=text/")
        lines = [line for each in said for line in textwrap.wrap(each, 110, subsequent_indent="  ")]
        return "".join(f"# {line}\n" for line in lines) + yaml_text(dict(self.fields))


def names() -> list[str]:
    """The recipes, in alphabetical order."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def about(name: str) -> Shipped:
    """A recipe with what is said of it.

    Raises:
        UserError: there is none of that name.
    """
    if name not in names():
        raise UserError(
            f"There is no recipe {name!r}, which is no file either; see limbeck recipes{nearest(name, names()) or '.'}"
        )
    fields = read_recipe(FOLDER / f"{name}.yaml")
    base = read_recipe(FOLDER / "shared" / f"{fields.pop('base')}.yaml") if "base" in fields else {}
    notes = [*base.pop("notes", []), *fields.pop("notes", [])]
    description, paper = fields.pop("description"), fields.pop("paper", "")
    objective = {"objective": {**base.get("objective", {}), **fields.get("objective", {})}}
    return Shipped(name, description, paper, tuple(notes), {**fields, **base, **fields, **objective})


def shipped(name: str) -> dict[str, Any]:
    """The fields of a recipe that ships with Limbeck."""
    return dict(about(name).fields)


def find(recipe: str | Path) -> dict[str, Any]:
    """The fields of a recipe file, or of the recipe of that name that ships with Limbeck.

    Raises:
        UserError: it is neither, or the file is no recipe.
    """
    try:
        path = Path(recipe).expanduser()
    except RuntimeError:
        raise UserError(f"There is no home directory {Path(recipe).parts[0]}; name another recipe.") from None
    return read_recipe(path) if path.suffix or path.is_file() or len(path.parts) > 1 else shipped(str(recipe))


def show_recipes(recipes: Sequence[Shipped]) -> None:
    """Print what each recipe is: two lines each for a person, one with tabs where the output goes elsewhere."""
    from rich.table import Table  # whoever only looks for a file of recipes need not wait for it

    from limbeck.progress import printer

    console = printer()
    if not console.is_terminal:  # for grep and the like
        for recipe in recipes:
            print(recipe.name, recipe.description, _source(recipe), sep="\t")
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for recipe in recipes:
        table.add_row(recipe.name, recipe.description)
        table.add_row("", _source(recipe))
    console.print(table)


def _source(recipe: Shipped) -> str:
    return "; ".join([*([recipe.paper] if recipe.paper else []), f"teacher {recipe.fields['teacher']}"])
