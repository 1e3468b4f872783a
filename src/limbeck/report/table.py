"""Results as a person reads them: the table, the comparisons in words, and what the figures mean."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from limbeck.report.results import Model, Results, comparisons
from limbeck.tasks.statistics import DRAWS, LEVEL, Mean
from limbeck.text import count, millions

MISSING = "-"
SPELLED = {
    "exact": "exact match",
    "f1": "F1",
    "macro_f1": "macro F1",
    "matthews": "Matthews",
    "micro_f1": "micro F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
}
"""Metrics that people write otherwise."""
SPECIAL = re.compile(r"[\\|`*\[\]<>~]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown would not show as it is; an underscore within a word it does."""
ONE_LINE = 1 << 20
"""Columns that no sentence fills: a file or a pipe gets one line a sentence."""


def spelled(metric: str) -> str:
    """A metric's name as people write it: Matthews, macro F1."""
    return SPELLED.get(metric, metric.replace("_", " "))


def markdown(results: Results) -> str:
    """The table, the comparisons and what the figures mean, as Markdown."""
    columns = [column for group in _columns(results) for column in group]
    rows = [
        ["model", *(" / ".join(column.heading) for column in columns)],
        *([model.name, *(column.texts[place] for column in columns)] for place, model in enumerate(results.rows)),
    ]
    table = [f"| {' | '.join(map(_escaped, row))} |" for row in rows]
    table.insert(1, f"| --- |{' ---: |' * len(columns)}")
    roles = [f"- {_escaped(f'{model.name}: {_role(model)}')}" for model in results.rows]
    words = [f"- {_escaped(line)}" for line in _compared(results)]
    compared = [["Comparisons, in points:"], words] if words else []
    parts = [table, roles, *compared, *([_escaped(note)] for note in notes(results))]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def show(results: Results, console: Console) -> None:
    """Print the same; how wide the console is decides how many tasks stand side by side."""
    names = [model.name for model in results.rows]
    tables: list[list[_Column]] = [[]]
    for group in reversed(_columns(results)):  # the average stays with the last tasks
        wider = [*group, *tables[0]]
        if tables[0] and not _fits(names, wider, console):
            tables.insert(0, group)
        else:
            tables[0] = wider
    for columns in tables:
        console.print(_table(names, columns, console))
    roles = Table.grid(Column(overflow="fold"), Column(overflow="fold"), padding=(0, 2))
    for model in results.rows:
        roles.add_row(_cell(model.name), _cell(_role(model)))
    console.print(roles)
    words = _compared(results)
    for line in ["", *(["Comparisons, in points", *words, ""] if words else []), *notes(results)]:
        width = console.width if console.is_terminal else ONE_LINE
        wrapped = textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
        console.print(Text(wrapped), soft_wrap=True)


def notes(results: Results) -> list[str]:
    """What a reader must know of the figures, a line each."""
    said = (_seeds_note(results), _average_note(results), *_twin_notes(results), _interval_note(results), _metric_note(results))
    return [note for note in said if note]


@dataclass(frozen=True)
class _Column:
    heading: tuple[str, ...]
    """One line or two."""
    texts: list[str]
    """A cell a model."""


def _columns(results: Results) -> list[list[_Column]]:
    """All columns but the names; those in one group stay side by side."""
    models = results.rows
    return [
        [
            _Column(("shape",), [model.shape for model in models]),
            _Column(("parameters",), [millions(model.parameters) for model in models]),
        ],
        *([_task_column(results, task)] for task in results.tasks),
        [
            _Column(("average",), [_number(results.average(model.name)) for model in models]),
            _Column(("kept",), [_number(results.kept(model), " %") for model in models]),
        ],
    ]


def _task_column(results: Results, task: str) -> _Column:
    cells = [results.cell(model.name, task) for model in results.rows]
    heading = (task, spelled(results.of_task(task)[0].metric))
    return _Column(heading, [cell.mean.text() if cell else MISSING for cell in cells])


def _number(value: float | None, unit: str = "") -> str:
    return MISSING if value is None else Mean(value, None).text() + unit


def _role(model: Model) -> str:
    if model.role == "twin":
        return f"twin of {model.twin_of}: the same start, not distilled"
    return f"distilled from {model.taught_by}" if model.taught_by else model.role


def _compared(results: Results) -> list[str]:
    return [f"{pair.first} vs {pair.second}, {pair.task}: {pair.words}" for pair in comparisons(results)]


def _seeds_note(results: Results) -> str:
    numbers = sorted({len(one.seeds) for one in results.measured if not one.fixed})
    fixed = list(dict.fromkeys(one.task for one in results.measured if one.fixed))
    said = []
    if numbers[-1:] == [1]:
        said.append("Scores are of one seed, times 100; how much training varies is not known, and no interval counts it.")
    elif numbers:
        seeds = " to ".join(str(number) for number in dict.fromkeys((numbers[0], numbers[-1])))
        said.append(f"Scores are mean ± standard deviation over {seeds} seeds, times 100.")
        if numbers[0] == 1:
            said.append("Of a model with one seed it is not known how much training varies, and no interval counts it.")
    if fixed:
        said.append(f"No model was trained for {_listed(fixed)}: no seeds, no spread.")
    if examples := results.settings.get("examples"):
        said.append(f"What was trained had {count(examples)} examples at most.")
    precisions = sorted({precision for one in results.measured for precision in one.precisions})
    if len(precisions) > 1:
        said.append(f"Trained in {_listed(precisions)}, which may itself make a difference; a protocol can set precision.")
    elif precisions:
        said.append(f"Trained in {precisions[0]}.")
    return " ".join(said)


def _average_note(results: Results) -> str:
    if not (tasks := results.shared_tasks):
        return "No task was measured on every model, so there is no average."
    kept = "kept: the average as a share of the teacher's"
    if any(results.average(model.name) is not None and results.kept(model) is None for model in results.rows):
        kept += f' ("{MISSING}" without one teacher, or where its average is not above zero)'
    return f"average: over {_listed(tasks)}, which every model has; {kept}."


def _twin_notes(results: Results) -> list[str]:
    """A distilled model that is compared with its teacher only does not show what distillation bought."""
    twins = {model.twin_of for model in results.models}
    return [
        f"{model.name} has no twin here (the same start, not distilled): what distillation bought is not shown."
        for model in results.rows
        if model.role == "distilled" and model.name not in twins
    ]


def _interval_note(results: Results) -> str:
    if not results.pairs:
        return ""
    return (
        f"Comparisons give {100 * (1 - LEVEL):.0f} % intervals of a hierarchical bootstrap over seeds and examples "
        f"({count(DRAWS)} draws). Interval and detectable difference are those of one task alone; better and worse are said "
        "after Holm's correction over the tasks of two models."
    )


def _metric_note(results: Results) -> str:
    otherwise = [task for task in results.tasks if not all(one.compared_as_shown for one in results.of_task(task))]
    return f"Compared by the mean of its examples' scores, not by the table's metric: {_listed(otherwise)}." if otherwise else ""


def _listed(words: Sequence[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])


def _escaped(text: str) -> str:
    """For one line of Markdown; folders' names may hold anything, even line ends."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def _cell(text: str) -> Text:
    """For one line of a terminal's table, without rich's markup."""
    return Text(" ".join(text.split()))


def _table(names: list[str], columns: list[_Column], console: Console) -> Table:
    table = Table()
    table.add_column("model", overflow="fold", max_width=max(16, console.width // 3))
    for column in columns:
        table.add_column(Text("\n".join(column.heading)), justify="right", no_wrap=True)
    for place, name in enumerate(names):
        table.add_row(_cell(name), *(_cell(column.texts[place]) for column in columns))
    return table


def _fits(names: list[str], columns: list[_Column], console: Console) -> bool:
    unbounded = console.options.update_width(ONE_LINE)
    return console.measure(_table(names, columns, console), options=unbounded).maximum <= console.width
