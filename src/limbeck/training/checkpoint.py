"""Checkpoints: all that the next step depends on, so that a resumed run takes it exactly as the first one would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from limbeck.encoders.loading import no_progress_bars
from limbeck.errors import UserError
from limbeck.training.best import Best
from limbeck.training.folder import remove_directory, write_directory

WEIGHTS = "student/model.safetensors"
OPTIMIZER = "optimizer.safetensors"
PROGRESS = "progress.json"
FILES = "files.json"
"""Size and digest of every other file."""


@dataclass(frozen=True)
class Progress:
    """Where in the run a checkpoint was taken."""

    step: int = 0
    """Optimiser steps done."""
    examples: int = 0
    """Examples trained on; the next step begins with the one that stands there."""
    tokens: int = 0
    """Real tokens trained on."""
    seconds: float = 0.0
    """Time spent training."""
    waited: float = 0.0
    """Of that, seconds in which the next batch was not ready."""

    @property
    def waiting(self) -> float:
        """The share of the time that was spent waiting for batches."""
        return self.waited / self.seconds

    def after(self, examples: int, tokens: int, seconds: float, waited: float) -> Progress:
        """One step later: what it trained on, the whole time by then, and how long its batches were waited for."""
        return Progress(self.step + 1, self.examples + examples, self.tokens + tokens, seconds, self.waited + waited)


@dataclass(frozen=True)
class Stamp:
    """Under what a run goes on, as every checkpoint records it."""

    fingerprints: Mapping[str, str]
    """input -> digest of its content, such as the teacher's weights; must be the same on resuming."""
    conditions: Mapping[str, Any]
    """What the last bits of the result depend on, such as the batch size or the number of threads; may change."""


@dataclass(frozen=True)
class State:
    """What a checkpoint holds beside tensors."""

    progress: Progress
    stamp: Stamp
    unlogged: Mapping[str, float]
    """Each term summed over the steps since the last line of the log."""
    unlogged_steps: int
    best: Best


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are all as they were written."""

    path: Path
    state: State


def save_checkpoint(
    folder: Path,
    state: State,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: Optimizer,
    keep: int,
) -> None:
    """Write a checkpoint, then remove those beyond the newest `keep`."""

    def fill(target: Path) -> None:
        with no_progress_bars():
            model.save_pretrained(target / "student")
        tokenizer.save_pretrained(target / "student")
        save_file(_optimizer_state(optimizer, model), target / OPTIMIZER)
        (target / PROGRESS).write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
        files = {file.relative_to(target).as_posix(): _identity(file) for file in sorted(target.rglob("*")) if file.is_file()}
        (target / FILES).write_text(json.dumps(files, indent=2) + "\n", encoding="utf-8")

    write_directory(folder / _name(state.progress.step), fill)
    for old in list_checkpoints(folder)[:-keep]:
        remove_directory(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    return sorted(entry for entry in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", entry.name) and entry.is_dir())


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is no checkpoint at all.

    Args:
        folder: where the checkpoints lie.
        say: is told of each one that is damaged.

    Raises:
        UserError: there are checkpoints, but every one is damaged.
    """
    damaged: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return _read(path)
        except UserError as error:
            damaged.append(str(error))
            say(f"{error} The one before is tried.")
    if damaged:
        raise UserError(f"{damaged[0]} No checkpoint is whole; begin anew with --overwrite.")
    return None


def restore(checkpoint: Checkpoint, model: PreTrainedModel, optimizer: Optimizer) -> None:
    """Put model and optimiser into the state they were saved in.

    Raises:
        UserError: the checkpoint is of another model; model and optimiser are as before.
    """
    weights, moments = load_file(checkpoint.path / WEIGHTS), load_file(checkpoint.path / OPTIMIZER)
    if weights.keys() != model.state_dict().keys() or moments.keys() != _optimizer_keys(model):
        raise UserError(f"{checkpoint.path} holds something else than this run's state; begin anew with --overwrite.")
    model.load_state_dict(weights, strict=True)
    _set_optimizer_state(optimizer, model, moments)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _read(path: Path) -> Checkpoint:
    """Compare every file with what was written.

    Raises:
        UserError: naming the first that is missing, incomplete or altered.
    """
    name = FILES
    try:
        files = json.loads((path / FILES).read_bytes())
        if not {WEIGHTS, OPTIMIZER, PROGRESS} <= files.keys():
            raise ValueError("it does not name all files")
        for name, identity in files.items():
            if _identity(path / name) != identity:
                raise ValueError("it is incomplete or was altered")
        name = PROGRESS
        state = _state(json.loads((path / PROGRESS).read_bytes()))
        if _name(state.progress.step) != path.name:
            raise ValueError(f"it is of step {state.progress.step}")
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"The checkpoint {path} is damaged ({name}: {reason}).") from error
    return Checkpoint(path, state)


def _state(plain: dict[str, Any]) -> State:
    nested = {"progress": Progress(**plain["progress"]), "stamp": Stamp(**plain["stamp"]), "best": Best(**plain["best"])}
    return State(**{**plain, **nested})


def _identity(file: Path) -> dict[str, Any]:
    """Size in bytes and digest of a file."""
    digest = blake2b(digest_size=16)
    with file.open("rb") as content:
        while piece := content.read(1 << 20):
            digest.update(piece)
    return {"size": file.stat().st_size, "blake2b": digest.hexdigest()}


def _trained(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _optimizer_keys(model: PreTrainedModel) -> set[str]:
    return {f"{entry}/{name}" for name in _trained(model) for entry in ("step", "exp_avg", "exp_avg_sq")}


def _optimizer_state(optimizer: Optimizer, model: PreTrainedModel) -> dict[str, Tensor]:
    """AdamW's moments and step counts, keyed by the parameter's name."""
    return {
        f"{entry}/{name}": value.contiguous()
        for name, parameter in _trained(model).items()
        for entry, value in optimizer.state[parameter].items()
    }


def _set_optimizer_state(optimizer: Optimizer, model: PreTrainedModel, saved: Mapping[str, Tensor]) -> None:
    trained = _trained(model)
    for key, value in saved.items():
        entry, name = key.split("/", 1)
        device = trained[name].device if entry != "step" else value.device
        optimizer.state[trained[name]][entry] = value.to(device)
