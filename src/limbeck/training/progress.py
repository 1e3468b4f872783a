"""What a person sees while a run goes on: a progress bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from limbeck.text import count

LINES = 20
"""About how many plain lines a run prints where there is no terminal."""


class Reporter:
    """Tells a person what a run does, on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._steps = 0
        self._next_line = 0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    def fact(self, name: str, text: str) -> None:
        """Print what the run is made of, name and text in two columns."""
        self.say(f"{name:<10} {text}")

    @contextmanager
    def training(self, steps: int, done: int) -> Iterator[None]:
        """While training from step `done` to `steps`."""
        self._steps, self._next_line = steps, done
        if not self._console.is_terminal:
            yield
            return
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]} tokens/s"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=self._console, expand=True) as self._bar:
            self._task = self._bar.add_task("", total=steps, completed=done, loss="-", rate="-")
            yield
        self._bar = self._task = None

    def logged(self, record: Mapping[str, Any]) -> None:
        """After each line of the log."""
        step, loss, rate = record["step"], f"{record['loss']:.4f}", count(record["tokens_per_second"])
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, loss=loss, rate=rate)
        elif step >= self._next_line or step == self._steps:
            left = record["seconds"] / step * (self._steps - step)
            self.say(f"step {step}/{self._steps}  loss {loss}  {rate} tokens/s  {left:.0f} s left")
            self._next_line = step + self._steps // LINES

    def evaluated(self, record: Mapping[str, Any]) -> None:
        """After an evaluation on held-out text."""
        self.say(f"step {record['step']}/{self._steps}  held-out loss {record['holdout_loss']:.4f}")
