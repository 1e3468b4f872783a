"""Running a model over a split, and judging what comes out."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from limbeck.data.batches import on_device
from limbeck.tasks.assignment import Assignment, Judged
from limbeck.training.best import Direction
from limbeck.training.stage import Evaluation, Stage, outputs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel


def predict(assignment: Assignment, split: str, model: PreTrainedModel, accelerator: Accelerator, batch_size: int) -> Judged:
    """Ask a model about a split and judge its answers.

    Args:
        assignment: the task.
        split: one of its splits.
        model: with the task's head; its mode stays as it was.
        accelerator: its precision is used, and the rows are shared out to its processes; all get the result.
        batch_size: rows in a forward pass.

    Raises:
        CheckFailed: an output is not finite.
    """
    training = model.training
    model.eval()
    try:
        outputs = decisive_outputs(assignment, split, model, accelerator, batch_size)
    finally:
        model.train(training)
    return assignment.judge(split, outputs)


def decisive_outputs(
    assignment: Assignment, split: str, model: PreTrainedModel, accelerator: Accelerator, batch_size: int
) -> list[NDArray[Any]]:
    """What decides of each row of a split, in the rows' order; the model is in evaluation mode."""
    source = assignment.source(split)
    found: dict[int, NDArray[Any]] = {}
    for number, examples in enumerate(source.in_order(batch_size)):
        if number % accelerator.num_processes != accelerator.process_index:
            continue
        batch = on_device(source.collate(examples), accelerator.device)
        with torch.no_grad(), accelerator.autocast():
            scores = assignment.scores(outputs_of(model, batch)).float().cpu().numpy()
        found.update(zip(examples, scores, strict=True))
    if accelerator.num_processes > 1:
        found = {row: scores for part in gather_object([found]) for row, scores in part.items()}
    return [found[row] for row in range(len(source))]


class TaskEvaluation(Evaluation):
    """The task's metrics on the split that selects."""

    prefix = "dev"
    direction: Direction = "highest"

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.latest: dict[str, Judged] = {}
        """What the last evaluation came to, by its split."""

    @property
    def metric(self) -> str:  # type: ignore[override]
        """The task's first metric."""
        return self.assignment.metric

    @property
    def said(self) -> str:  # type: ignore[override]
        """Such as "accuracy on dev"."""
        return f"{self.assignment.metric} on {self.assignment.selecting}"

    def __len__(self) -> int:
        return len(self.assignment.source(self.assignment.selecting))

    @property
    def fingerprint(self) -> str:
        """A hash of the split's rows."""
        return self.assignment.source(self.assignment.selecting).fingerprint

    def turns(
        self, stage: Stage, module: nn.Module, accelerator: Accelerator, batch_size: int
    ) -> Generator[None, None, dict[str, float]]:
        """Every metric, as a fraction; no teacher is asked."""
        yield from ()
        judged = predict(self.assignment, self.assignment.selecting, stage.module.student, accelerator, batch_size)
        self.latest = {self.assignment.selecting: judged}
        return dict(judged.scores)
