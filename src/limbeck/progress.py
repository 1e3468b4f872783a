"""What a person sees while a run goes on: a progress bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from limbeck.text import count, duration

LINES = 20
"""About how many plain lines a run prints where there is no terminal."""
NAMES = 10
"""Columns for the name of a fact."""
WIDE = 1000
"""Columns of a file or a pipe, where lines are not to be broken."""
LARGE = 20_000_000
"""Bytes of text from which on a person wants to hear how far tokenising is."""
ROOM_FOR_A_BAR = 80
"""Columns of a terminal from which on there is room for a bar beside the figures."""


def printer(*, quiet: bool = False) -> Console:
    """What prints results to standard output: as wide as a terminal is, and as wide as they are where there is none."""
    console = Console(highlight=False, quiet=quiet)
    return console if console.is_terminal else Console(highlight=False, quiet=quiet, width=WIDE)


class Reporter:
    """Tells a person what a run does, on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._steps = 0
        self._begun, self._started = 0, 0.0
        self._next_line = 0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    def fact(self, name: str, text: str) -> None:
        """Print what the run is made of, name and text in two columns."""
        indent = " " * (NAMES + 1)
        # A file or a pipe gets one line a fact.
        width = self._console.width if self._console.is_terminal else len(indent) + len(text)
        lines = textwrap.wrap(text, max(width - len(indent), 1), break_long_words=False, break_on_hyphens=False)
        self.say(f"{name:<{NAMES}} " + f"\n{indent}".join(lines))

    @contextmanager
    def tokenizing(self, size: int) -> Iterator[Callable[[int], None]]:
        """While text is tokenised; what it gives hears how many more of its `size` bytes were read."""
        if not self._console.is_interactive:
            yield self._tenths(size)
            return
        columns = (TextColumn("tokenising"), BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn(compact=True))
        with Progress(*columns, console=self._console, expand=True, transient=True) as bar:
            task = bar.add_task("", total=size)
            yield lambda read: bar.advance(task, read)

    def _tenths(self, size: int) -> Callable[[int], None]:
        """Print a line after each tenth of a text that takes a while."""
        done = 0

        def read(more: int) -> None:
            nonlocal done
            before, done = done, done + more
            if size >= LARGE and done * 10 // size > before * 10 // size:
                self.say(f"tokenising: {done / size:.0%} of {count(size / 1e6)} MB")

        return read

    @contextmanager
    def training(self, steps: int, done: int) -> Iterator[None]:
        """While training from step `done` to `steps`."""
        self._steps, self._next_line = steps, done
        self._begun, self._started = done, time.perf_counter()
        if not self._console.is_interactive:
            yield
            return
        figures = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = (figures, BarColumn(bar_width=None)) if self._console.width >= ROOM_FOR_A_BAR else (figures,)
        with Progress(*columns, console=self._console, expand=True) as self._bar:
            self._task = self._bar.add_task(f"step {done}/{steps}", total=steps, completed=done, figures="")
            yield
        self._bar = self._task = None

    def stepped(self, step: int) -> None:
        """After each step."""
        if self._bar is not None and self._task is not None:
            figures = self._bar.tasks[0].fields["figures"]
            self._bar.update(self._task, completed=step, description=self._line(step, figures))

    def logged(self, record: Mapping[str, Any]) -> None:
        """After each line of the log."""
        self._show(record["step"], f"loss {record['loss']:.4f}", record["tokens_per_second"])

    def _show(self, step: int, losses: str, tokens_per_second: float) -> None:
        figures = f"{losses}  {count(tokens_per_second)} tokens/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, description=self._line(step, figures), figures=figures)
        elif step >= self._next_line or step == self._steps:
            self.say(self._line(step, figures))
            self._next_line = step + self._steps // LINES

    def evaluated(self, step: int, metric: str, value: float) -> None:
        """After an evaluation, with the figure that decides."""
        self.say(f"step {step}/{self._steps}  {metric} {value:.4f}")

    def _line(self, step: int, figures: str) -> str:
        """Where training is; the time left follows from the steps taken by this process, not by an earlier one."""
        left = (time.perf_counter() - self._started) / (step - self._begun) * (self._steps - step)
        return f"step {step}/{self._steps}  {figures}  {duration(left)} left"


class Chorus(Reporter):
    """Tells of several students that are trained side by side: what is the same of all of them once, and the rest of each."""

    def __init__(self, names: Sequence[str], *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.names = list(names)
        """Those that are still trained."""
        self._facts: set[tuple[str, str]] = set()
        self._records: dict[str, Mapping[str, Any]] = {}

    def voice(self, name: str) -> Reporter:
        """What one of the students is told of by."""
        return _Voice(self, name)

    def fact(self, name: str, text: str) -> None:
        """Print what the runs are made of, unless that was said of another student already."""
        if (name, text) not in self._facts:
            self._facts.add((name, text))
            super().fact(name, text)

    def heard(self, name: str, record: Mapping[str, Any]) -> None:
        """After a line of a student's log; a step is told of once all students have come to it."""
        self._records = {other: each for other, each in self._records.items() if each["step"] == record["step"]}
        self._records[name] = record
        if self._records.keys() >= {*self.names}:
            losses = ", ".join(f"{each} {self._records[each]['loss']:.4f}" for each in self.names)
            self._show(record["step"], f"loss {losses}", record["tokens_per_second"])


class _Voice(Reporter):
    """Tells of one of several students."""

    def __init__(self, chorus: Chorus, name: str) -> None:
        super().__init__(quiet=True)
        self._chorus, self._name = chorus, name

    def say(self, text: str) -> None:
        """Print a line."""
        self._chorus.say(f"{self._name}: {text}")

    def fact(self, name: str, text: str) -> None:
        """Print what the run is made of."""
        self._chorus.fact(name, text)

    @contextmanager
    def tokenizing(self, size: int) -> Iterator[Callable[[int], None]]:
        """While text is tokenised."""
        with self._chorus.tokenizing(size) as read:
            yield read

    def stepped(self, step: int) -> None:
        """After each step."""
        self._chorus.stepped(step)

    def logged(self, record: Mapping[str, Any]) -> None:
        """After each line of the log."""
        self._chorus.heard(self._name, record)

    def evaluated(self, step: int, metric: str, value: float) -> None:
        """After an evaluation."""
        self._chorus.evaluated(step, f"{self._name} {metric}", value)
