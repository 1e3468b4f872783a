"""How numbers and lists are written for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def count(number: float) -> str:
    """A whole number with thousands separated: 1,370."""
    return f"{number:,.0f}"


def several(number: float, noun: str) -> str:
    """A count of things: 1 step, 1,370 steps."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def millions(number: float) -> str:
    """A count in millions with two decimals: 22.71 M."""
    return f"{number / 1e6:.2f} M"


def size(number: float) -> str:
    """A number of bytes: 951 MB, 9.3 GB."""
    return f"{number / 1e6:,.0f} MB" if number < 1e9 else f"{number / 1e9:,.1f} GB"


def duration(seconds: float) -> str:
    """A time as one says it: 0.38 s, 4.2 s, 45 s, 12 min, 3 h 10 min, 12 days 3 h."""
    if seconds < 120:
        decimals = 0 if seconds < 0.01 or seconds >= 10 else 1 if seconds >= 1 else 2
        return f"{seconds:.{decimals}f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours >= 72:
        days, hours = divmod(hours, 24)
        return f"{days} days {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())


def encodable(text: str) -> bool:
    """Whether a text holds no half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def nearest(word: str, words: Iterable[str]) -> str:
    """A question that names the word probably meant, to be put behind a message; empty if none is near."""
    close = get_close_matches(word, list(words), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def listed(words: Sequence[str], most: int = 20) -> str:
    """The first few words in one line, each cut to 40 characters, and how many there are if that is not all."""
    shown = ", ".join(" ".join(word[:40].split()) for word in words[:most])
    return f"{shown}, ... ({len(words)} in all)" if len(words) > most else shown
