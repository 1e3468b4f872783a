"""Results as one picture: a panel a task, a row a model."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from limbeck.errors import CheckFailed, UserError
from limbeck.report.results import Measured, Model, Results, Role
from limbeck.report.table import spelled
from limbeck.tasks.statistics import LEVEL
from limbeck.text import one_line
from limbeck.training.folder import TEMPORARY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: dict[Role, tuple[str, str]] = {
    "teacher": ("#000000", "s"),
    "twin": ("#D55E00", "D"),
    "distilled": ("#0072B2", "o"),
    "comparator": ("#009E73", "^"),
}
"""Colour and marker: colours that all eyes can tell apart (Okabe and Ito 2008), and shapes for print without any."""
BESIDE = 0.24
"""How far below a mean its seeds stand, in rows."""
LINE = 1.8
ACROSS = 3
"""Panels side by side."""
NAME_COLUMNS, NAME_LINES = 24, 3
"""How much of a long name is written."""
GAP = 0.08
"""Inches around a panel."""
DOTS_AN_INCH = 150


def plot(results: Results, path: Path) -> None:
    """Draw each model's mean with its 95 % interval and its seeds, a panel a task, as a PNG that is there whole or not at all.

    Raises:
        UserError: matplotlib is missing.
        CheckFailed: the file cannot be written; an earlier one of that name is as it was.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    figure = _figure(results)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # of a name in a script that the font lacks
            figure.savefig(temporary, format="png", dpi=DOTS_AN_INCH)
        temporary.replace(path)
    except OSError as error:
        raise CheckFailed(f"{path} could not be written ({one_line(error)}); make room, and try again.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _figure(results: Results) -> Figure:
    """A figure of its own, which no state of matplotlib's holds on to."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise UserError("The plot needs matplotlib: pip install 'limbeck[report]'.") from error
    models, tasks = results.rows, results.tasks
    across = min(ACROSS, len(tasks))
    down = -(-len(tasks) // across)
    names = [_name(model) for model in models]
    row = 0.14 + 0.18 * max(name.count("\n") + 1 for name in names)
    figure = Figure(
        figsize=(1.9 + 2.7 * across, 0.6 + (0.8 + row * len(models)) * down), layout=ConstrainedLayoutEngine(w_pad=GAP, h_pad=GAP)
    )
    panels = figure.subplots(down, across, sharey=True, squeeze=False)
    for panel, task in zip(panels.flat, tasks, strict=False):
        _draw(panel, results, task)
    for panel in panels.flat[len(tasks) :]:
        panel.set_axis_off()
    for panel in panels[:, 0]:
        panel.set_yticks(range(len(models)), names, parse_math=False)
    panels[0, 0].set_ylim(len(models) - 0.4, -0.6)
    _explain(figure, models, seeds=not all(cell.fixed for task in tasks for cell in results.of_task(task)))
    return figure


def _draw(panel: Axes, results: Results, task: str) -> None:
    for row, model in enumerate(results.rows):
        cell = results.cell(model.name, task)
        if cell is None:
            panel.text(0.5, row, "not measured", transform=panel.get_yaxis_transform(), ha="center", va="center", color="0.5")
        else:
            _draw_cell(panel, row, cell, *LOOKS[model.role])
    panel.set_title(task, parse_math=False)
    panel.set_xlabel(f"{spelled(results.of_task(task)[0].metric)} x 100", parse_math=False)
    panel.grid(axis="x", color="0.9")
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _draw_cell(panel: Axes, row: int, cell: Measured, colour: str, marker: str) -> None:
    if cell.interval is not None:
        low, high = cell.interval
        panel.hlines(row, 100 * low, 100 * high, color=colour, linewidth=LINE)
    panel.plot([100 * cell.mean.mean], [row], marker=marker, markersize=6.5, color=colour, linestyle="none")
    if not cell.fixed:
        seeds = [100 * value for value in cell.values]
        panel.plot(seeds, [row + BESIDE] * len(seeds), marker="o", markersize=3, alpha=0.6, color=colour, linestyle="none")


def _explain(figure: Figure, models: list[Model], *, seeds: bool) -> None:
    from matplotlib.lines import Line2D

    roles = {model.role: LOOKS[model.role] for model in models}
    entries = [
        Line2D([], [], color=colour, marker=marker, linestyle="none", label=role) for role, (colour, marker) in roles.items()
    ]
    entries.append(Line2D([], [], color="0.4", linewidth=LINE, label=f"{100 * (1 - LEVEL):.0f} % interval"))
    if seeds:
        entries.append(Line2D([], [], color="0.4", marker="o", markersize=3, linestyle="none", label="a seed"))
    figure.legend(handles=entries, loc="outside lower center", ncols=3, frameon=False, fontsize="small")


def _name(model: Model) -> str:
    """In a few lines; of a long one the end, where names of folders differ."""
    most = NAME_COLUMNS * NAME_LINES
    short = model.name if len(model.name) <= most else f"...{model.name[-most:]}"
    # A folder's name begins a line rather than being cut in two.
    lines = textwrap.wrap(short.replace("/", "/ "), NAME_COLUMNS)
    return "\n".join(line.replace("/ ", "/") for line in lines)
