"""The fine-tunings of an evaluation: every model on every task with every seed, several at a time if that is asked."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from limbeck.encoders.loading import load_encoder
from limbeck.errors import CheckFailed, UserError
from limbeck.progress import Reporter
from limbeck.studies.grid import finetune_grid
from limbeck.tasks.finetune import run_finetuning
from limbeck.tasks.protocols import settings
from limbeck.tasks.recipe import FineTuning
from limbeck.training.folder import REMOVED, SUMMARY, RunFolder


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
        given: dict[str, Any] = {} if recipe.examples is None else {"examples": recipe.examples}
        choices = settings(protocol, recipe.task, load_encoder(recipe.model).shape.width, given)
        if len(choices) > 1:
            with _naming(f"{name} on {recipe.task}"):
                grid = finetune_grid(
                    recipe.model,
                    protocol,
                    task=recipe.task,
                    data=recipe.data,
                    dev=recipe.dev,
                    output=place / "grid",
                    resume="auto",
                    quiet=True,
                    **given,
                )
            choices = [grid.summary["best"]["settings"]]
        return cls(name, replace(recipe, **choices[0]), tuple(place / f"seed-{seed}" for seed in range(seeds)))


Work = tuple[str, FineTuning, Path]
"""What a run is called in messages, its recipe and its directory."""


def finetune_all(tunings: Sequence[Tuning], jobs: int, reporter: Reporter, *, keep_models: bool) -> None:
    """Carry out every run that is not finished yet, the first seeds of all first.

    Args:
        tunings: what is to be done.
        jobs: processes at a time; they share the processor's cores, and none outlives this one.
        reporter: hears of each run.
        keep_models: otherwise weights are removed once they were scored.

    Raises:
        UserError: a run cannot begin; naming it. What is finished stays.
        CheckFailed: a run failed, or its process was killed; naming it. What is finished stays.
    """
    work = list(_in_order(tunings))
    if jobs == 1:
        for number, (said, recipe, place) in enumerate(work, start=1):
            verb = "finished before," if (place / SUMMARY).is_file() else "fine-tuning"
            reporter.say(f"{verb} {number} of {len(work)}: {said}")
            _run(said, recipe, place, keep_models)
        return
    with _pool(jobs) as pool:
        futures = {}
        with _deaf_children():
            for said, recipe, place in work:
                futures[pool.submit(_run_alone, said, recipe, place, keep_models)] = said
        for number, done in enumerate(as_completed(futures), start=1):
            done.result()
            reporter.say(f"fine-tuned {number} of {len(work)}: {futures[done]}")


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for runs; if anything goes wrong they are asked to stop, which saves a run in training, and waited for."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    others = {*multiprocessing.active_children()}
    with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(threads,)) as pool:
        try:
            yield pool
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in {*multiprocessing.active_children()} - others:
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise CheckFailed(
                    "A process was killed, mostly for want of memory; go on with fewer jobs and --resume auto. (A script that "
                    'asks for several calls evaluate below if __name__ == "__main__".)'
                ) from error
            raise


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let processes that are started in it leave Ctrl-C, which a terminal sends to all, to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(threads: int) -> None:
    """Make a process ready for runs; should the one that started it be killed, it ends as well."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a run is safe against that, as it is against any kill


def file_name(name: str) -> str:
    """A model's name as that of a directory."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"


def _in_order(tunings: Sequence[Tuning]) -> Iterator[Work]:
    for seed in range(max(len(tuning.places) for tuning in tunings)):
        for each in tunings:
            yield f"{each.name} on {each.recipe.task}, seed {seed}", replace(each.recipe, seed=seed), each.places[seed]


@contextmanager
def _naming(said: str) -> Iterator[None]:
    """Say of which run it is that something is wrong."""
    try:
        yield
    except (UserError, CheckFailed) as error:
        raise type(error)(f"{said}: {error}") from error


def _run(said: str, recipe: FineTuning, place: Path, keep_models: bool) -> None:
    with _naming(said):
        run_finetuning(recipe, place, resume="auto", quiet=True)
    folder = RunFolder(place)
    if not keep_models and REMOVED not in folder.read_summary():
        folder.remove_weights("an evaluation keeps scores and predictions")
    gc.collect()  # a model and what reads it refer to each other, and the next run comes to the same process


def _run_alone(said: str, recipe: FineTuning, place: Path, keep_models: bool) -> None:
    """A run in a process of its own, which begins no other one after it was asked to stop."""
    try:
        _run(said, recipe, place, keep_models)
    except KeyboardInterrupt:
        os._exit(1)
