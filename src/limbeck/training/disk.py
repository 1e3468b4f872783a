"""How much room a run takes on the disk, refused before training if it is not there."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass

from limbeck.encoders.cost import checkpoint_bytes, weight_bytes
from limbeck.encoders.loading import Encoder
from limbeck.errors import UserError
from limbeck.text import size
from limbeck.training.folder import RunFolder
from limbeck.training.stage import Plan

WRITTEN_BYTES = 1 << 25
"""What is written to the folder for temporary files to see how fast the disk is."""


@dataclass(frozen=True)
class Disk:
    """Bytes in the run directory."""

    checkpoint: int
    checkpoints: int
    """Most that stand at a time, the one being written included."""
    student: int
    total: int
    """With the best student, if that is kept."""


def disk_needed(student: Encoder, plan: Plan, steps: int) -> Disk:
    """What a run of so many steps takes.

    Args:
        student: parameters out of reach frozen.
        plan: of the run.
        steps: still to be taken.
    """
    parameters = list(student.model.parameters())
    number = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    tokenizer = len(student.tokenizer.backend_tokenizer.to_str(pretty=True).encode())
    saves = 0 if plan.checkpoint_every is None else steps // plan.checkpoint_every
    if plan.keep_best and plan.eval_every is not None:
        saves += 1 + steps // plan.eval_every
    checkpoint, exported = checkpoint_bytes(number, trained) + tokenizer, weight_bytes(number) + tokenizer
    standing = min(saves, plan.keep_checkpoints + 1)
    return Disk(checkpoint, standing, exported, standing * checkpoint + (1 + plan.keep_best) * exported)


def check_disk(needed: Disk, folder: RunFolder) -> None:
    """Refuse a run for which there is too little room; what an earlier run left in the directory gives way.

    Raises:
        UserError: naming what it needs and what there is.
    """
    standing = next(place for place in (folder.path, *folder.path.absolute().parents) if place.exists())
    there = sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file())
    free = shutil.disk_usage(standing).free + there
    if needed.total > free:
        raise UserError(
            f"The run takes {size(needed.total)} in {folder.path}, where {size(free)} are free; name a directory on another "
            "disk, or keep fewer checkpoints (--keep-checkpoints)."
        )


def bytes_a_second() -> float:
    """How fast a file is written to the disk for temporary files, which need not be the run's."""
    with tempfile.TemporaryFile() as file:
        start = time.perf_counter()
        file.write(bytes(WRITTEN_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return WRITTEN_BYTES / (time.perf_counter() - start)
