"""Public names that are imported when they are first used, so that ``import limbeck`` stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module ``__getattr__`` (PEP 562) that finds each public name in the module that defines it.

    Args:
        package: the ``__name__`` of the module that calls this, for the error message.
        where: public name -> dotted module that defines it.
    """

    def find(name: str) -> Any:
        if name in where:
            return getattr(import_module(where[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
