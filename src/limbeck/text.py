"""How numbers are written for people."""

from __future__ import annotations


def count(number: float) -> str:
    """A whole number with thousands separated: 1,370."""
    return f"{number:,.0f}"


def millions(number: float) -> str:
    """A count in millions with two decimals: 22.71 M."""
    return f"{number / 1e6:.2f} M"


def duration(seconds: float) -> str:
    """A time as one says it: 45 s, 12 min, 3 h 10 min."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())
