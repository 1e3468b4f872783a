"""The fine-tunings of an evaluation: every model on every task with every seed, several at a time if that is asked."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from limbeck.encoders.loading import load_encoder
from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.studies.grid import finetune_grid
from limbeck.tasks.finetune import run_finetuning
from limbeck.tasks.protocols import settings
from limbeck.tasks.recipe import FineTuning
from limbeck.training.folder import REMOVED, RunFolder


@dataclass(frozen=True)
class Tuning:
    """A model on a task, by one setting and over several seeds."""

    name: str
    """The model's."""
    recipe: FineTuning
    """That of the first seed."""
    places: tuple[Path, ...]
    """The directory of each seed's run."""

    @classmethod
    def of(cls, name: str, recipe: FineTuning, protocol: str | Path, folder: Path, seeds: int) -> Tuning:
        """What a protocol says of a model on a task; of a grid the best combination is found here, with the first seed.

        Args:
            name: the model's.
            recipe: model, task and data.
            protocol: its name or file.
            folder: where all runs are put.
            seeds: how many.
        """
        place = folder / file_name(name) / str(recipe.task)
        choices = settings(protocol, recipe.task, load_encoder(recipe.model).shape.width)
        if len(choices) > 1:
            grid = finetune_grid(
                recipe.model,
                protocol,
                task=recipe.task,
                data=recipe.data,
                dev=recipe.dev,
                output=place / "grid",
                resume="auto",
                quiet=True,
            )
            choices = [grid.summary["best"]["settings"]]
        return cls(name, replace(recipe, **choices[0]), tuple(place / f"seed-{seed}" for seed in range(seeds)))


Work = tuple[str, FineTuning, Path]
"""What a run is called in messages, its recipe and its directory."""


def carry_out(tunings: Sequence[Tuning], jobs: int, reporter: Reporter, *, keep_models: bool) -> None:
    """Carry out every run that is not finished yet, the first seeds of all first.

    Args:
        tunings: what is to be done.
        jobs: processes at a time; they share the processor's cores.
        reporter: hears of each run.
        keep_models: otherwise weights are removed once they were scored.
    """
    work = list(_in_order(tunings))
    if jobs == 1:
        for number, (said, recipe, place) in enumerate(work, start=1):
            reporter.say(f"fine-tuning {number} of {len(work)}: {said}")
            _run(recipe, place, keep_models)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        futures = {pool.submit(_run, recipe, place, keep_models): said for said, recipe, place in work}
        try:
            for number, done in enumerate(as_completed(futures), start=1):
                done.result()
                reporter.say(f"fine-tuned {number} of {len(work)}: {futures[done]}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def file_name(name: str) -> str:
    """A model's name as that of a directory."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"


def _in_order(tunings: Sequence[Tuning]) -> Iterator[Work]:
    if clashing := {each.places[0] for each in tunings if [other.places for other in tunings].count(each.places) > 1}:
        raise UserError(f"Two models would be kept in {', '.join(map(str, clashing))}; give them other names, as NAME=MODEL.")
    for seed in range(max(len(tuning.places) for tuning in tunings)):
        for each in tunings:
            yield f"{each.name} on {each.recipe.task}, seed {seed}", replace(each.recipe, seed=seed), each.places[seed]


def _run(recipe: FineTuning, place: Path, keep_models: bool) -> None:
    run_finetuning(recipe, place, resume="auto", quiet=True)
    folder = RunFolder(place)
    if not keep_models and REMOVED not in folder.read_summary():
        folder.remove_weights("an evaluation keeps scores and predictions")
