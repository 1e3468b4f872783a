"""Checkpoints: all that the next step depends on, so that a resumed run takes it exactly as the first one would."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from limbeck.encoders.loading import no_progress_bars
from limbeck.errors import UserError
from limbeck.training.folder import write_directory

KEPT = 2
"""Checkpoints that are kept; the older of them stands in should the newer be damaged."""

WEIGHTS = "student/model.safetensors"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
PROGRESS = "progress.json"


@dataclass(frozen=True)
class Progress:
    """Where in the run a checkpoint was taken."""

    step: int
    """Optimiser steps done."""
    tokens: int
    """Real tokens trained on."""
    seconds: float
    """Time spent training."""


def save_checkpoint(
    folder: Path,
    progress: Progress,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: Optimizer,
) -> None:
    """Write a checkpoint, then remove those beyond the newest `KEPT`."""

    def fill(target: Path) -> None:
        with no_progress_bars():
            model.save_pretrained(target / "student")
        tokenizer.save_pretrained(target / "student")
        save_file(_optimizer_state(optimizer, model), target / OPTIMIZER)
        save_file(_random_state(), target / RANDOM)
        (target / PROGRESS).write_text(json.dumps(asdict(progress)) + "\n")

    write_directory(folder / f"step-{progress.step:08d}", fill)
    for old in list_checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    return sorted(entry for entry in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", entry.name) and entry.is_dir())


def restore(checkpoint: Path, model: PreTrainedModel, optimizer: Optimizer) -> Progress:
    """Put model, optimiser and random numbers into the state they were saved in.

    Raises:
        UserError: the checkpoint is damaged; model, optimiser and random numbers are as before.
    """
    try:
        weights, moments, random = (load_file(checkpoint / name) for name in (WEIGHTS, OPTIMIZER, RANDOM))
        progress = Progress(**json.loads((checkpoint / PROGRESS).read_text()))
        complete = (
            weights.keys() == model.state_dict().keys()
            and moments.keys() == _optimizer_keys(model)
            and f"step-{progress.step:08d}" == checkpoint.name
            and "cpu" in random
        )
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise UserError(f"{checkpoint} is damaged ({' '.join(str(error).split())}).") from error
    if not complete:
        raise UserError(f"{checkpoint} is damaged (it holds something else than this run's state).")
    model.load_state_dict(weights, strict=True)
    _set_optimizer_state(optimizer, model, moments)
    _set_random_state(random)
    return progress


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


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state |= {f"cuda:{device}": torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count())}
    return state


def _set_random_state(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    for name, value in state.items():
        if name != "cpu" and torch.cuda.is_available():
            torch.cuda.set_rng_state(value, name)
