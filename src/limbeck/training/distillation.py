"""What a distillation is made of, and what is told and written of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from limbeck.data.batches import PackedSource
from limbeck.encoders.loading import Encoder
from limbeck.objectives.base import Mimicry
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, plain, yaml_text
from limbeck.text import millions, several
from limbeck.training.card import first_use, model_card
from limbeck.training.compiling import compile_stage
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

    def prepare(self) -> None:
        """Compile the layers, if that was decided."""
        if self.recipe.compile == "always":
            compile_stage(self.stage)

    def announce(self, unreached: list[str], reporter: Reporter) -> None:
        """Tell teacher, student, objective, and what is trained."""
        recipe = self.recipe
        for role, encoder in (("teacher", self.teacher), ("student", self.student)):
            size = millions(encoder.parameters.total)
            reporter.fact(role, f"{encoder.shape}, {encoder.shape.model_type}, {size} parameters, {encoder.source}")
        reporter.fact("objective", str(self.objective))
        size = f"{recipe.batch_size} x {recipe.max_length}"
        reporter.fact(
            "training",
            f"{several(recipe.steps or 0, 'step')} of {size} tokens, {several(int(recipe.micro_batch_size), 'sequence')} at a "
            f"time, {recipe.precision}, packing {recipe.packing}",
        )
        modules = ", ".join(modules_of(unreached)) or "none"
        reporter.fact("untrained", f"{several(len(unreached), 'tensor')}, which this objective cannot reach: {modules}")
        if recipe.tail != "keep":
            reporter.fact("tail", str(self.tail))

    def outcome(self, unreached: list[str]) -> Encoder:
        """The student with the names of its teachers, and of what stays random."""
        teachers = (*self.teacher.origin.teachers, public_name(self.teacher.source))
        taught = "".join(f", which learned from {name}" for name in self.student.origin.teachers)  # where it was a student
        origin = replace(self.student.origin.kept(unreached), teachers=teachers)
        return replace(self.student, source=public_name(self.student.source) + taught, origin=origin)

    def finish(self, loop: Loop, folder: RunFolder, unreached: list[str]) -> dict[str, Any]:
        """The summary."""
        device = str(loop.accelerator.device)
        rows = untrained_rows(self.text, self.student, loop.progress.examples)
        loop.reporter.fact("rows", f"never trained: {described_rows(rows)}")
        summary = summarise(
            self.recipe,
            self.teacher,
            self.outcome(unreached),
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
        if why := first_use(summary):
            loop.reporter.say(f"Fine-tune the student before you use its output: {why}.")
        return summary

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
