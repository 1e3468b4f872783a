"""The text that ships with Limbeck, for the quickstart and for trying things out."""

from __future__ import annotations

from pathlib import Path

WIKIPEDIA = Path(__file__).parent / "wikipedia.txt.gz"
"""Lead sections of English Wikipedia's vital articles, one paragraph a line, a blank line after each (CC BY-SA 4.0)."""
WIKIPEDIA_HELD_OUT = Path(__file__).parent / "wikipedia-held-out.txt.gz"
"""Lead sections of other articles, for evaluation."""
