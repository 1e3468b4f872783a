"""A protocol's grid: every combination is fine-tuned with every seed, and the best by the mean on the dev split is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.table import Table

from limbeck.encoders.loading import load_encoder
from limbeck.errors import UserError
from limbeck.progress import Reporter, printer
from limbeck.recipe import validate
from limbeck.tasks.finetune import run_finetuning
from limbeck.tasks.predict import TaskEvaluation
from limbeck.tasks.protocols import LAYER, settings
from limbeck.tasks.recipe import FineTuning
from limbeck.tasks.statistics import Mean
from limbeck.training.folder import REMOVED, RunFolder, write_file
from limbeck.training.loop import this_process
from limbeck.training.run import Resume, Run
from limbeck.training.summary import public_name

GRID, TABLE = "grid.json", "grid.md"
LOST = "another combination of the grid was better"


@dataclass(frozen=True)
class Combination:
    """One choice for each field of a protocol, and its runs."""

    settings: Mapping[str, Any]
    """What protocol and user say."""
    varied: Mapping[str, Any]
    """Those of them that are not alike in all combinations."""
    runs: Mapping[str, FineTuning]
    """Directory below the grid's -> recipe; one a seed."""


@dataclass(frozen=True)
class Scored:
    """A combination whose runs are finished."""

    combination: Combination
    runs: Sequence[Run]
    """One a seed."""

    @property
    def metric(self) -> str:
        """By which combinations are compared; the highest wins."""
        return str(self.runs[0].summary["task"]["metric"])

    @property
    def split(self) -> str:
        """On which they are."""
        return str(self.runs[0].summary["task"]["split"])

    @cached_property
    def values(self) -> list[float]:
        """The metric on the split, a fraction a seed."""
        return [_last(run, f"{TaskEvaluation.prefix}_{self.metric}") for run in self.runs]

    @property
    def mean(self) -> Mean:
        """Of these."""
        return Mean.of(self.values)


def finetune_grid(
    model: str | Path,
    protocol: str | Path | None,
    *,
    data: str | Path | Sequence[str | Path],
    output: str | Path,
    task: str | None = None,
    seeds: int = 1,
    resume: Resume = "never",
    overwrite: bool = False,
    quiet: bool = False,
    keep_models: bool = False,
    **given: Any,
) -> Run:
    """Fine-tune with each of a protocol's combinations, and keep the one with the best mean over the seeds.

    Every combination and seed is a run in OUTPUT/NAME/seed-SEED, such as learning_rate-2e-05_epochs-3/seed-0, where NAME says
    what differs. OUTPUT/grid.json and grid.md hold the scores; they are written anew after each combination. Where there is
    one combination, there is no NAME; where there is one seed as well, OUTPUT is the run itself.

    Args:
        model: folder (or hub name) of the encoder, or the directory of a run, whose student is fine-tuned.
        protocol: the name of one that ships with Limbeck, or a YAML file; None for what is given alone.
        data: as in `FineTuning`.
        output: the directory.
        task: as in `FineTuning`; without it your own, of text and label.
        seeds: how many, counted from the field seed.
        resume: "auto" goes on with an earlier grid; runs that are finished stay, and choices and seeds may have been added.
        overwrite: start every run anew.
        quiet: print nothing.
        keep_models: keep the weights of every run. Otherwise those of a combination are removed as soon as another one
            is better; summary, log and predictions stay.
        given: other fields of `FineTuning`, which count instead of what the protocol says. A list is several choices in those
            that a protocol may set.

    Returns:
        The run itself, or for a grid its directory, the student of the best combination's first seed, and what grid.json holds.

    Raises:
        UserError: a setting, the protocol or the input is wrong, or the directory holds something else.
        CheckFailed: a run failed; resume="auto" goes on with it.
    """
    if type(seeds) is not int or seeds < 1:
        raise UserError(f"seeds is how many, a whole number from 1 on, not {seeds!r}.")
    common = {name: value for name, value in given.items() if name not in LAYER}
    over = {name: value for name, value in given.items() if name in LAYER}
    said = settings(protocol, task, load_encoder(model).shape.width, over)
    grid = _combinations(said, {"model": model, "data": data, "task": task, **common}, seeds)
    if len(grid) == seeds == 1:
        (recipe,) = grid[0].runs.values()
        return run_finetuning(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)
    folder = RunFolder(output)
    (first, *_) = grid[0].runs.values()
    folder.check_holds_none([first.model, *first.data])
    _check_free(folder, grid, anew=resume != "auto" and not overwrite)
    this_process().wait_for_everyone()  # before the first process writes what others have just looked for
    reporter = Reporter(quiet=quiet or not this_process().is_main_process)
    facts = {"protocol": None if protocol is None else public_name(str(protocol)), "model": public_name(str(model))}

    places = [place for combination in grid for place in combination.runs]

    def carry_out(combination: Combination) -> Scored:
        runs = []
        for place, recipe in combination.runs.items():
            reporter.say(f"run {places.index(place) + 1} of {len(places)}: {place}")
            runs.append(run_finetuning(recipe, folder.path / place, resume=resume, overwrite=overwrite, quiet=quiet))
        return Scored(combination, runs)

    def write(*, finished: bool) -> dict[str, Any]:
        result = {**facts, **_plain(scored, finished=finished)}
        if this_process().is_main_process:
            write_file(folder.path / GRID, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
            write_file(folder.path / TABLE, markdown(scored))
        return result

    scored: list[Scored] = []
    for combination in grid:
        scored.append(carry_out(combination))
        write(finished=False)
        if not keep_models and this_process().is_main_process:
            _remove_losers(scored)
    best = _best(scored)
    scored[scored.index(best)] = best = _with_weights(best, quiet=quiet)
    result = write(finished=True)
    which = f"best: {Path(next(iter(best.combination.runs))).parent}" if len(grid) > 1 else f"{seeds} seeds"
    reporter.say(f"{which}, {best.metric} {best.mean.text()} on {best.split}")
    return Run(folder.path, best.runs[0].student, result)


def _with_weights(scored: Scored, *, quiet: bool) -> Scored:
    """Train again what lost, and thus its weights, when there were fewer seeds or other choices."""
    recipes = scored.combination.runs.values()
    runs = [
        run_finetuning(recipe, run.path, overwrite=True, quiet=quiet) if REMOVED in run.summary else run
        for recipe, run in zip(recipes, scored.runs, strict=True)
    ]
    return Scored(scored.combination, runs)


def _combinations(said: Sequence[dict[str, Any]], common: Mapping[str, Any], seeds: int) -> list[Combination]:
    varied = [name for name in said[0] if len({repr(each[name]) for each in said}) > 1]
    grid = []
    for each in said:
        first = validate(FineTuning, {**common, **each})
        differing = {name: each[name] for name in varied}
        name = "_".join(f"{field}-{str(value).removesuffix('.0')}" for field, value in differing.items())
        recipes = [validate(FineTuning, {**common, **each, "seed": first.seed + number}) for number in range(seeds)]
        runs = {f"{name}/seed-{recipe.seed}".lstrip("/"): recipe for recipe in recipes}
        grid.append(Combination(each, differing, runs))
    return grid


def _check_free(folder: RunFolder, grid: Sequence[Combination], *, anew: bool) -> None:
    """Refuse a directory with anything that this grid would not write.

    Raises:
        UserError: naming it.
    """
    folder.check_usable()
    found = {entry.name for entry in folder.path.iterdir() if not entry.name.startswith(".")} if folder.path.is_dir() else set()
    if found and anew:
        raise UserError(f"{folder.path} is not empty; name another directory, or add --resume auto or --overwrite.")
    own = {GRID, TABLE, *(Path(place).parts[0] for combination in grid for place in combination.runs)}
    if strange := sorted(found - own):
        raise UserError(f"{folder.path} holds {strange[0]}, which is not of this grid; move it, or name another directory.")


def _last(run: Run, figure: str) -> float:
    """A figure of a run's last evaluation, which is at its end."""
    values = [record[figure] for record in RunFolder(run.path).read_log() if figure in record]
    if not values:
        raise UserError(f"The log of {run.path} holds no {figure}; begin that run anew with --overwrite.")
    return float(values[-1])


def _best(scored: Sequence[Scored]) -> Scored:
    """The first of those with the highest mean."""
    return max(scored, key=lambda each: each.mean.mean)


def _remove_losers(scored: Sequence[Scored]) -> None:
    best = _best(scored)
    for run in (run for each in scored if each is not best for run in each.runs):
        folder = RunFolder(run.path)
        if REMOVED not in folder.read_summary():
            folder.remove_weights(LOST)


def _plain(scored: Sequence[Scored], *, finished: bool) -> dict[str, Any]:
    """The scores as JSON has them."""
    best = _best(scored)
    entries = [
        {
            "settings": dict(each.combination.settings),
            "varied": dict(each.combination.varied),
            "mean": each.mean.mean,
            "deviation": each.mean.deviation,
            "values": list(each.values),
            "runs": list(each.combination.runs),
        }
        for each in scored
    ]
    return {
        "metric": best.metric,
        "split": best.split,
        "finished": finished,
        "selection": _selection(scored),
        "best": entries[scored.index(best)],
        "combinations": entries,
    }


def _selection(scored: Sequence[Scored]) -> str:
    """What a reader must know of the best score."""
    if len(scored) == 1:
        return "There was one combination, so none was chosen."
    return (
        f"The best of {len(scored)} combinations was chosen by the mean on {scored[0].split}, the split that its score is of: on "
        "data that chose nothing it will be lower."
    )


def markdown(scored: Sequence[Scored]) -> str:
    """The scores as a table, times 100, with the best in bold."""
    heading, *rows = _rows(_plain(scored, finished=True))
    best = scored.index(_best(scored))
    cells = [heading, *([f"**{cell}**" for cell in row] if place == best else row for place, row in enumerate(rows))]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    lines.insert(1, f"|{' --- |' * len(heading)}")
    return "\n".join([*lines, "", _selection(scored)]) + "\n"


def show_grid(result: Mapping[str, Any]) -> None:
    """Print what grid.json holds for a person, the best in bold."""
    heading, *rows = _rows(result)
    table = Table()
    for name in heading:
        table.add_column(name, justify="right")
    for entry, row in zip(result["combinations"], rows, strict=True):
        table.add_row(*row, style="bold" if entry == result["best"] and len(rows) > 1 else "")
    console = printer()
    console.print(table)
    console.print(result["selection"], markup=False)


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    """The heading and a row a combination, times 100."""
    entries = result["combinations"]
    rows = [[*(name.replace("_", " ") for name in entries[0]["varied"]), f"{result['metric']} on {result['split']}", "seeds"]]
    for entry in entries:
        seeds = ", ".join(Mean(value, None).text() for value in entry["values"])
        rows.append([*map(str, entry["varied"].values()), Mean(entry["mean"], entry["deviation"]).text(), seeds])
    return rows
