"""Where the log goes besides log.jsonl: TensorBoard, Weights & Biases and trackio, through accelerate's own trackers.

What they write lies in the run directory, and nothing goes to a network unless the user's environment says so:
``WANDB_MODE`` for Weights & Biases; ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL`` for trackio.
"""

from __future__ import annotations

import io
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from accelerate import PartialState
from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker, WandBTracker
from huggingface_hub import constants as hub

from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, Tracker, plain, write_recipe
from limbeck.text import one_line
from limbeck.training.folder import LOG, RunFolder, write_file

PROJECT = "limbeck"
IDENTITY = "run-id"
"""The file that keeps a run's identity."""
NOT_PLOTTED = ("step", "tokens", "seconds")
"""What a line of the log says of the time; it is no measurement."""


class TrackerRefused(UserError):
    """A tracker does not start; nothing was trained yet."""


def check_trackers(names: Sequence[Tracker]) -> None:
    """Refuse trackers whose package is not installed.

    Raises:
        UserError: with the command that installs it.
    """
    for name in names:
        try:
            version(name)
        except PackageNotFoundError as error:
            raise UserError(f'The tracker {name} is not installed: pip install "limbeck[{name}]".') from error


@dataclass(frozen=True)
class Start:
    """What a tracker begins with."""

    folder: Path
    """Where its files go."""
    name: str
    """The run's."""
    recipe: Recipe
    step: int
    """Steps done by an earlier part of the run."""

    @property
    def identity(self) -> str:
        """The run's own, under which a resumed run goes on: made once and kept with the files."""
        path = self.folder / IDENTITY
        if not path.exists():
            write_file(path, uuid.uuid4().hex[:8])
        return path.read_text(encoding="utf-8")


class Trackers:
    """The trackers of a run; one that fails is given up, and the run goes on without it."""

    def __init__(self, recipe: Recipe, folder: RunFolder, reporter: Reporter) -> None:
        self._recipe, self._folder, self._reporter = recipe, folder, reporter
        self._open: dict[Tracker, GeneralTracker] = {}

    @contextmanager
    def running(self, step: int) -> Iterator[None]:
        """While training from this step on; whatever ends it, what was logged is written.

        Raises:
            TrackerRefused: a tracker does not start.
        """
        names = self._recipe.trackers if PartialState().is_main_process else []
        try:
            for name in names:
                self._start(name, step)
            yield
        finally:
            for name, tracker in list(self._open.items()):
                self._attempt(name, tracker.finish)
            self._open.clear()

    def log(self, record: Mapping[str, Any]) -> None:
        """Pass a line of the log on."""
        values = {name: value for name, value in record.items() if isinstance(value, int | float) and name not in NOT_PLOTTED}
        for name, tracker in list(self._open.items()):
            self._attempt(name, partial(tracker.log, values, step=record["step"]))

    def _start(self, name: Tracker, step: int) -> None:
        folder = self._folder.trackers / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with redirect_stdout(io.StringIO()):
                self._open[name], where = STARTS[name](Start(folder, self._folder.path.resolve().name, self._recipe, step))
        except Exception as error:  # whatever a tracker makes of the user's environment
            raise TrackerRefused(f"The tracker {name} does not start: {one_line(error)}") from error
        self._reporter.fact("tracker", where)

    def _attempt(self, name: Tracker, act: Callable[[], None]) -> None:
        try:
            with redirect_stdout(io.StringIO()):
                act()
        except Exception as error:
            self._open.pop(name, None)
            self._reporter.say(f"the tracker {name} failed ({one_line(error)}); {self._folder.path / LOG} goes on")


def _start_tensorboard(start: Start) -> tuple[GeneralTracker, str]:
    # What an interrupted run wrote of later steps is hidden.
    tracker = TensorBoardTracker("", start.folder, purge_step=start.step + 1)
    tracker.start()
    if start.step == 0:
        tracker.log({"recipe": f"```yaml\n{write_recipe(start.recipe)}```"}, step=start.step)
    return tracker, f"tensorboard --logdir {start.folder}"


def _start_wandb(start: Start) -> tuple[GeneralTracker, str]:
    # Its telemetry would ask the network even in offline mode.
    local = {} if "WANDB_MODE" in os.environ else {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    with _environment(local):
        tracker = WandBTracker(
            os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(start.folder.parent),  # it makes a folder "wandb" there
            id=start.identity,
            name=start.name,
            resume="allow",
            reinit="create_new",
            config=plain(start.recipe),
            settings={"silent": True, "console": "off", "disable_git": True},
        )
        tracker.start()
    return tracker, f"wandb sync {start.folder}/offline-run-*" if tracker.run.offline else str(tracker.run.url)


def _start_trackio(start: Start) -> tuple[GeneralTracker, str]:
    tracker = _Trackio(
        PROJECT,
        name=f"{start.name}-{start.identity}",
        resume="allow",
        config=plain(start.recipe),
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    tracker.folder = start.folder
    tracker.start()
    return tracker, f"TRACKIO_DIR={start.folder} trackio show"


STARTS: dict[Tracker, Callable[[Start], tuple[GeneralTracker, str]]] = {
    "tensorboard": _start_tensorboard,
    "wandb": _start_wandb,
    "trackio": _start_trackio,
}
"""Each starts a tracker whose files go to a folder, and says how to look at them."""


class _Trackio(TrackioTracker):  # type: ignore[misc]
    """trackio with a folder of its own.

    trackio reads its folder from the environment as it is imported, once for all runs of a process; a fresh import gives
    each run its own.
    """

    folder: Path

    def start(self) -> None:
        """Begin the run, or go on with it."""
        self._others = _take_modules("trackio")
        offline, remote = hub.HF_HUB_OFFLINE, {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"} & os.environ.keys()
        try:
            # It would ask the hub for the name of whoever is logged in.
            hub.HF_HUB_OFFLINE = offline or not remote
            with _environment({"TRACKIO_DIR": str(self.folder)}):
                super().start()
        except BaseException:
            self._put_back()
            raise
        finally:
            hub.HF_HUB_OFFLINE = offline

    def finish(self) -> None:
        """Write what is left."""
        import trackio

        trackio.finish()  # the run's own finish() would be called once more as Python ends
        self._put_back()

    def _put_back(self) -> None:
        """Let the process have the trackio that it imported before."""
        _take_modules("trackio")
        sys.modules.update(self._others)


def _take_modules(package: str) -> dict[str, ModuleType]:
    """Forget that a package was imported; returns its modules."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set those environment variables that are not set, for a while."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
