"""How numbers are written for people."""

from __future__ import annotations


def count(number: float) -> str:
    """A whole number with thousands separated: 1,370."""
    return f"{number:,.0f}"


def millions(number: float) -> str:
    """A count in millions with two decimals: 22.71 M."""
    return f"{number / 1e6:.2f} M"


def size(number: float) -> str:
    """A number of bytes: 951 MB, 9.3 GB."""
    return f"{number / 1e6:,.0f} MB" if number < 1e9 else f"{number / 1e9:,.1f} GB"


def duration(seconds: float) -> str:
    """A time as a person says it: 0.38 s, 4.2 s, 3 min 20 s, 5 h 12 min."""
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 1 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
