"""Distillation from a recipe to a finished student."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from limbeck.data.corpora import saved_datasets
from limbeck.encoders.cost import count_parameters
from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, plain, validate, write_recipe, yaml_text
from limbeck.text import count, millions
from limbeck.training import resume as resuming
from limbeck.training.assemble import Parts, assemble
from limbeck.training.card import model_card
from limbeck.training.checkpoint import Checkpoint, Progress, Stamp, newest_checkpoint
from limbeck.training.disk import check_disk, disk_needed
from limbeck.training.export import export_student
from limbeck.training.folder import RunFolder, write_file
from limbeck.training.forecast import Forecast, make_forecast, modules_of
from limbeck.training.isolation import isolated
from limbeck.training.loop import Loop, this_process
from limbeck.training.memory import Memory, check_memory, measure_memory
from limbeck.training.reach import freeze_unreachable
from limbeck.training.stage import Plan
from limbeck.training.summary import public_name, summarise
from limbeck.training.trackers import TrackerRefused, Trackers, check_trackers


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    """The run directory."""
    student: Path
    """The student, a Hugging Face folder."""
    summary: dict[str, Any]
    """What RUN/summary.json holds."""


def distill(
    teacher: str | Path,
    *,
    output: str | Path,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Distil a teacher into a smaller student.

    Args:
        teacher: folder (or hub name) of the encoder that is mimicked.
        output: the run directory; the student is written to its folder ``student``.
        resume: "auto" goes on from the newest checkpoint in the run directory, or starts if there is none.
        overwrite: start anew although the directory holds an earlier run.
        quiet: print nothing.
        settings: the other fields of `Recipe`: corpus and student are needed, all others have defaults.

    Raises:
        UserError: a setting or the input is wrong; nothing was written.
        CheckFailed: a loss or gradient was not finite, or the disk is full; checkpoints and log stay.
        Interrupted: Ctrl-C or SIGTERM came; the run was saved, and resume="auto" goes on with it.

    Example:
        ``limbeck.distill("teacher/", student="6x384", corpus=["text/"], output="runs/a", steps=1000)``
    """
    for name in {"corpus", "holdout"} & settings.keys():
        settings[name] = saved_datasets(settings[name])
    recipe = validate(Recipe, {"teacher": teacher, **settings})
    return run_recipe(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)


def _full_signature() -> inspect.Signature:
    """The signature of `distill` with the recipe's fields spelled out, for help() and editors."""
    own = dict(inspect.signature(distill).parameters)
    del own["settings"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = [p.replace(kind=keyword) for p in inspect.signature(Recipe).parameters.values() if p.name != "teacher"]
    return inspect.Signature([own.pop("teacher"), *fields, *own.values()], return_annotation="Run")


distill.__signature__ = _full_signature()  # type: ignore[attr-defined]


def run_recipe(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Carry a recipe out.

    Args:
        recipe: what to do.
        output: the run directory.
        resume: "auto" goes on from the newest checkpoint in the run directory, or starts if there is none; a run that
            is finished is returned as it is.
        overwrite: start anew although the directory holds an earlier run, which is removed once all input was checked.
        quiet: print nothing.

    Raises:
        UserError: something in the recipe or the input is wrong, or memory does not suffice; nothing was written.
        TrainingStopped: a loss or gradient was not finite; checkpoints and log stay.
        Interrupted: an end was asked for; a checkpoint was written.
    """
    here = this_process()
    folder, reporter = _opened(recipe, output, quiet=quiet)
    with _alone(folder, here), isolated(here.device):
        parts, begun = _check(recipe, folder, reporter, resume=resume, overwrite=overwrite)
        here.wait_for_everyone()  # before the first process writes what others have just looked for
        return _begin(parts, folder, reporter) if begun is None else _go_on(parts, begun, folder, reporter)


def forecast(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> Forecast:
    """Say what `run_recipe` with the same arguments would do and need; nothing is trained or written.

    Raises:
        UserError: as `run_recipe` would.
    """
    folder, reporter = _opened(recipe, output, quiet=quiet)
    with isolated(this_process().device):
        parts, begun = _check(recipe, folder, reporter, resume=resume, overwrite=overwrite)
        unreached, memory = _make_ready(parts, folder)
        plan, done = Plan.of(parts.recipe, begun or parts.recipe), Progress()
        if begun is not None:
            standing = _standing(parts, begun, folder, reporter)
            done = Progress(plan.steps, plan.examples) if standing.summary else standing.progress
        return make_forecast(parts, plan, unreached, memory, done)


def _opened(recipe: Recipe, output: str | Path, *, quiet: bool) -> tuple[RunFolder, Reporter]:
    """What is cheap to check, checked before anything is read."""
    folder, reporter = RunFolder(output), Reporter(quiet=quiet or not this_process().is_main_process)
    check_trackers(recipe.trackers)
    folder.check_usable()
    return folder, reporter


def _check(recipe: Recipe, folder: RunFolder, reporter: Reporter, *, resume: str, overwrite: bool) -> tuple[Parts, Recipe | None]:
    """The parts of a run that may begin, and the recipe that an earlier one began with, if it is to go on."""
    if resume not in ("never", "auto"):
        raise UserError(f"resume must be never or auto, not {resume!r}.")
    folder.check_free(resume=resume == "auto", overwrite=overwrite)
    folder.check_holds_none([recipe.teacher, recipe.init, *recipe.corpus, *([recipe.holdout] if recipe.holdout else [])])
    begun = resuming.read_begun(folder) if resume == "auto" else None
    return assemble(recipe, begun, reporter), begun


def _make_ready(parts: Parts, folder: RunFolder) -> tuple[list[str], Memory]:
    """Freeze what is out of reach, bring the teacher into the run's precision, and check that memory and disk suffice."""
    recipe, stage = parts.recipe, parts.stage
    unreached = freeze_unreachable(stage)
    if recipe.precision == "bf16":
        parts.teacher.model.bfloat16()
    plan = Plan.of(recipe, recipe)
    share = plan.batch_size // this_process().num_processes
    micro_batch = min(plan.micro_batch_size, share)
    memory = measure_memory(stage, recipe.max_length, plan.precision)
    check_memory(memory, micro_batch, share)
    if (longest := stage.source.longest) > recipe.max_length:
        long = measure_memory(stage, longest, plan.precision)
        check_memory(long, max(1, micro_batch * recipe.max_length // longest), share)
    check_disk(disk_needed(parts.student, plan, plan.steps), folder)
    return unreached, memory


@contextmanager
def _alone(folder: RunFolder, here: PartialState) -> Iterator[None]:
    """Keep other runs out of the directory; the first of this run's processes holds the lock for all of them."""
    refusal = [""]
    with ExitStack() as held:
        if here.is_main_process:
            try:
                held.enter_context(folder.locked())
            except UserError as error:
                refusal = [str(error)]
        if reason := broadcast_object_list(refusal)[0]:
            raise UserError(reason)
        yield


def _begin(parts: Parts, folder: RunFolder, reporter: Reporter) -> Run:
    unreached, _ = _make_ready(parts, folder)
    text = write_recipe(parts.recipe)
    if this_process().is_main_process:
        folder.clear()
        folder.write_recipe(text)
    try:
        return _train(parts, parts.recipe, unreached, _stamp(parts, text), None, folder, reporter)
    except TrackerRefused:
        folder.clear()  # so that the same command, once mended, finds the directory free
        raise


@dataclass(frozen=True)
class _Standing:
    """How far an earlier run has come."""

    stamp: Stamp
    """Under what it goes on."""
    checkpoint: Checkpoint | None
    summary: dict[str, Any] | None
    """Only if it is finished."""

    @property
    def progress(self) -> Progress:
        return self.checkpoint.state.progress if self.checkpoint else Progress()


def _standing(parts: Parts, begun: Recipe, folder: RunFolder, reporter: Reporter) -> _Standing:
    """Where an earlier run stands, after checking that it is the same."""
    summary = folder.read_summary() if folder.finished else None
    checkpoint = None if summary else newest_checkpoint(folder.checkpoints, reporter.say)
    then = summary.get("fingerprints", {}) if summary else checkpoint.state.stamp.fingerprints if checkpoint else {}
    resuming.check_same_recipe(begun, parts.recipe, folder, same_content=bool(then))
    stamp = _stamp(parts, folder.recipe.read_text(encoding="utf-8"))
    resuming.check_same_content(then, stamp.fingerprints, folder)
    return _Standing(stamp, checkpoint, summary)


def _go_on(parts: Parts, begun: Recipe, folder: RunFolder, reporter: Reporter) -> Run:
    """Go on with a run that is as it was left, from its newest checkpoint, or from its beginning without one."""
    standing = _standing(parts, begun, folder, reporter)
    if standing.summary:
        reporter.say(f"{folder.path} is finished already.")
        return Run(folder.path, folder.student, standing.summary)
    unreached, _ = _make_ready(parts, folder)
    return _train(parts, begun, unreached, standing.stamp, standing.checkpoint, folder, reporter)


def _stamp(parts: Parts, recipe: str) -> Stamp:
    here = this_process()
    return Stamp(
        fingerprints={**parts.fingerprints, "recipe": resuming.text_fingerprint(recipe)},
        conditions=resuming.conditions(parts.recipe, here.num_processes, here.device),
    )


def _train(
    parts: Parts,
    begun: Recipe,
    unreached: list[str],
    stamp: Stamp,
    checkpoint: Checkpoint | None,
    folder: RunFolder,
    reporter: Reporter,
) -> Run:
    recipe, stage, teacher, student = parts.recipe, parts.stage, parts.teacher, parts.student
    if this_process().is_main_process:
        folder.remove_leftovers()
    _announce(parts, unreached, reporter)
    trackers = Trackers(recipe, folder, reporter)
    loop = Loop(stage, Plan.of(recipe, begun), folder, teacher.tokenizer, reporter, trackers, stamp)
    loop.resume(
        checkpoint,
        resuming.changes(checkpoint.state.stamp.conditions if checkpoint else resuming.layout(begun), stamp.conditions),
    )
    progress = loop.train()
    device = str(loop.accelerator.device)
    summary = summarise(
        recipe, teacher, student, stage.source, unreached, progress, folder, device, loop.best, stamp.fingerprints
    )
    if loop.accelerator.is_main_process:
        yaml = yaml_text(_without_folders(recipe))
        export_student(folder.student, student.model, teacher.tokenizer, model_card(summary, yaml))
        if loop.best.step is not None:
            write_file(folder.best / "README.md", model_card(summary, yaml, loop.best_remark()))
        folder.write_summary(summary)
    reporter.say(f"student written to {folder.student}")
    return Run(folder.path, folder.student, summary)


def _without_folders(recipe: Recipe) -> dict[str, Any]:
    """The recipe as others may read it: files by their names alone, not where they lie on this machine."""
    fields = plain(recipe)
    for name in ("teacher", "init", "holdout"):
        if fields[name] is not None and Path(fields[name]).exists():
            fields[name] = public_name(fields[name])
    return {**fields, "corpus": [public_name(path) for path in recipe.corpus]}


def _announce(parts: Parts, unreached: list[str], reporter: Reporter) -> None:
    recipe = parts.recipe
    for role, encoder in (("teacher", parts.teacher), ("student", parts.student)):
        size = millions(count_parameters(encoder.model).total)
        reporter.fact(role, f"{encoder.shape}, {size} parameters, {encoder.source}")
    reporter.fact("objective", str(recipe.objective))
    size = f"{recipe.batch_size} x {recipe.max_length}"
    reporter.fact(
        "training",
        f"{count(recipe.steps or 0)} steps of {size} tokens, {recipe.micro_batch_size} sequences at a time, {recipe.precision}",
    )
    modules = ", ".join(modules_of(unreached)) or "none"
    reporter.fact("untrained", f"{len(unreached)} tensors, which this objective cannot reach: {modules}")
