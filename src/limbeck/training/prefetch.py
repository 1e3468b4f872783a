"""The next step's batches, made in a thread while a step is trained on."""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from limbeck.data.batches import Batch, Source
from limbeck.training.stage import Plan


@dataclass(frozen=True)
class Work:
    """What one process trains on in a step."""

    size: int
    """Examples of the step, over all processes."""
    examples: list[int]
    """This process's share of them."""
    micro_batches: list[Batch]
    """The same, where the source made them."""


def prefetched(source: Source, plan: Plan, done: int, process: int, processes: int) -> Generator[tuple[Work, float], None, None]:
    """Go through the remaining steps.

    Args:
        source: asked by the thread alone until the last step was given or the generator closed.
        plan: how many examples there are in all, and in a step.
        done: examples trained on before.
        process: this process's number.
        processes: how many share a step.

    Yields:
        Each step's work, and the seconds that it had to be waited for.
    """

    def make(done: int) -> Work:
        size = plan.step_size(done, processes)
        examples = source.examples(done, size)[process::processes]
        return Work(size, examples, [source.collate(part) for part in source.split(examples, plan.micro_batch_size)])

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="limbeck-batches") as thread:
        coming = thread.submit(make, done)
        while plan.steps_left(done, processes) > 0:
            asked = time.perf_counter()
            work = coming.result()
            waited = time.perf_counter() - asked
            done += work.size
            if plan.steps_left(done, processes) > 0:
                coming = thread.submit(make, done)
            yield work, waited
