"""What a distillation is made of, and what is told and written of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.data.batches import PackedSource
from limbeck.encoders.loading import Encoder
from limbeck.objectives.base import Mimicry
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, plain, yaml_text
from limbeck.text import count, millions
from limbeck.training.card import model_card
from limbeck.training.folder import RunFolder
from limbeck.training.loop import Loop
from limbeck.training.reach import modules_of
from limbeck.training.rows import described_rows, untrained_rows
from limbeck.training.run import Parts
from limbeck.training.summary import public_name, summarise
from limbeck.training.tail import Tail


@dataclass(frozen=True)
class DistillationParts(Parts[Recipe]):
    """What a distillation is made of."""

    teacher: Encoder
    text: PackedSource
    """What the stage's source is."""
    objective: Mimicry
    """What the student is trained by: the recipe's, resolved, with what its tail adds."""
    tail: Tail

    @property
    def usual_length(self) -> int:
        """Tokens in a sequence."""
        return self.recipe.max_length

    def announce(self, unreached: list[str], reporter: Reporter) -> None:
        """Tell teacher, student, objective, and what is trained."""
        recipe = self.recipe
        for role, encoder in (("teacher", self.teacher), ("student", self.student)):
            size = millions(encoder.parameters.total)
            reporter.fact(role, f"{encoder.shape}, {size} parameters, {encoder.source}")
        reporter.fact("objective", str(self.objective))
        size = f"{recipe.batch_size} x {recipe.max_length}"
        reporter.fact(
            "training",
            f"{count(recipe.steps or 0)} steps of {size} tokens, {recipe.micro_batch_size} sequences at a time, "
            f"{recipe.precision}",
        )
        modules = ", ".join(modules_of(unreached)) or "none"
        reporter.fact("untrained", f"{len(unreached)} tensors, which this objective cannot reach: {modules}")
        if recipe.tail != "keep":
            reporter.fact("tail", str(self.tail))

    def finish(self, loop: Loop, folder: RunFolder, unreached: list[str]) -> dict[str, Any]:
        """The summary."""
        device = str(loop.accelerator.device)
        rows = untrained_rows(self.text, self.student, loop.progress.examples)
        loop.reporter.fact("rows", f"never trained: {described_rows(rows)}")
        return summarise(
            self.recipe,
            self.teacher,
            self.student,
            self.text,
            unreached,
            self.tail,
            rows,
            loop.progress,
            folder,
            device,
            loop.best,
            self.fingerprints,
        )

    def card(self, summary: Mapping[str, Any], remark: str = "") -> str:
        """The student's README.md."""
        return model_card(summary, yaml_text(_without_folders(self.recipe)), remark)


def _without_folders(recipe: Recipe) -> dict[str, Any]:
    """The recipe as others may read it: files by their names alone, not where they lie on this machine."""
    fields = plain(recipe)
    for name in ("teacher", "init", "holdout"):
        if fields[name] is not None and Path(fields[name]).exists():
            fields[name] = public_name(fields[name])
    return {**fields, "corpus": [public_name(path) for path in recipe.corpus]}
