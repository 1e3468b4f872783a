"""Predictions in the format of GLUE's leaderboard: a file a test split, ``index<tab>prediction``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from limbeck.errors import UserError
from limbeck.tasks.examples import Split
from limbeck.tasks.glue import GlueTask


def write_submission(folder: Path, glue: GlueTask, split: Split, predictions: ArrayLike) -> Path:
    """Write the predictions for a test split, whole or not at all.

    Args:
        folder: where the file is put; made if it is missing.
        glue: the task.
        split: the examples that were predicted, in the file's order.
        predictions: (examples,) class numbers, or numbers, which are brought into the task's range.

    Returns:
        The file, which has the name that the leaderboard expects.

    Raises:
        UserError: a row of the test file was left out, so that every later index would be wrong.
    """
    if split.bad:
        raise UserError(f"{split.report} A submission needs every row of the test file; fetch it again.")
    values = np.asarray(predictions)
    if values.shape != (len(split),):
        raise ValueError(f"predictions of shape {values.shape} for {len(split)} examples")
    lines = [f"{index}\t{text}\n" for index, text in enumerate(_spelled(glue, values))]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / glue.submitted.get(split.name, f"{glue.task.name}.tsv")
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        temporary.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8", newline="")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _spelled(glue: GlueTask, values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> list[str]:
    if glue.task.range is not None:
        return [f"{value:.3f}" for value in values.astype(np.float64).clip(*glue.task.range)]
    names = glue.task.written or glue.task.labels
    return [names[number] for number in values.astype(np.int64)]
