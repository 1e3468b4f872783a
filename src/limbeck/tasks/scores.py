"""A fine-tuned model's scores, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from limbeck.progress import printer


def show_scores(summary: Mapping[str, Any]) -> None:
    """Print a run's scores times 100, a row a split."""
    scored = {split: scores for split, scores in summary["scores"].items() if scores}
    metrics = list(dict.fromkeys(metric for scores in scored.values() for metric in scores))
    title = Text(f"{summary['task']['name']}, times 100")
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    for split in scored:
        table.add_column(Text(split), justify="right")
    if len(scored) > 4:  # languages: a row each reads better
        table = Table(title=title, title_justify="left")
        table.add_column("split")
        for metric in metrics:
            table.add_column(metric.replace("_", " "), justify="right")
        for split, scores in scored.items():
            table.add_row(Text(split), *(shown(metric, scores.get(metric)) for metric in metrics))
    else:
        for metric in metrics:
            table.add_row(metric.replace("_", " "), *(shown(metric, scores.get(metric)) for scores in scored.values()))
    printer().print(table)


def shown(metric: str, value: float | None) -> str:
    """A score in per cent, and a threshold as it is."""
    if value is None:
        return "-"
    return f"{value:.2f}" if metric.endswith("_threshold") else f"{100 * value:.1f}"
