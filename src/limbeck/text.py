"""How numbers are written for people."""

from __future__ import annotations


def count(number: float) -> str:
    """A whole number with thousands separated: 1,370."""
    return f"{number:,.0f}"


def millions(number: float) -> str:
    """A count in millions with two decimals: 22.71 M."""
    return f"{number / 1e6:.2f} M"


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())
