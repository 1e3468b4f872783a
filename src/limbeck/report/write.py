"""Results as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.report.plot import plot
from limbeck.report.results import Results, plain
from limbeck.report.table import markdown
from limbeck.training.folder import write_file

JSON, TABLE, PLOT = "results.json", "results.md", "results.png"


def write_results(results: Results, folder: Path, say: Callable[[str], None] | None = None) -> None:
    """Write results.json, results.md and results.png, each whole or not at all; earlier ones are replaced.

    Args:
        results: what was measured.
        folder: made if it is missing.
        say: hears, should matplotlib be missing, that there is no plot; by default a line on standard error.

    Raises:
        CheckFailed: a file cannot be written, such as on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / JSON, json.dumps(plain(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    write_file(folder / TABLE, markdown(results))
    try:
        plot(results, folder / PLOT)
    except UserError as missing:
        (folder / PLOT).unlink(missing_ok=True)  # it would show other results
        (say or Reporter().say)(f"{PLOT} is left out: {missing}")
