"""Carrying a run out: its directory, checks before anything is written, training, resuming, and the end."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from typing_extensions import Self

from limbeck.encoders.loading import Encoder
from limbeck.encoders.origin import Origin
from limbeck.errors import UserError, out_of_memory
from limbeck.progress import Reporter
from limbeck.recipe import write_recipe
from limbeck.text import several
from limbeck.training import resume as resuming
from limbeck.training.checkpoint import Checkpoint, Progress, Stamp, newest_checkpoint
from limbeck.training.disk import check_disk, disk_needed
from limbeck.training.export import export_student
from limbeck.training.folder import RunFolder, write_file
from limbeck.training.isolation import isolated
from limbeck.training.loop import Loop, this_process
from limbeck.training.memory import Memory, check_memory, measure_memory
from limbeck.training.precision import HOPELESS, bf16_slowdown
from limbeck.training.reach import freeze_unreachable
from limbeck.training.stage import Plan, Stage
from limbeck.training.trackers import TrackerRefused, Trackers, check_trackers

RecipeT = TypeVar("RecipeT")
Resume = Literal["never", "auto"]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    """The run directory."""
    student: Path
    """The student, a Hugging Face folder; of several students the folder that holds them, by their shapes."""
    summary: dict[str, Any] = field(repr=False)
    """What RUN/summary.json holds."""
    runs: Mapping[str, Run] = field(default_factory=dict)
    """Of several students each one's own run, by its shape."""


@dataclass(frozen=True)
class Parts(ABC, Generic[RecipeT]):
    """What a run is made of; each kind of run says what is told of it and written at its end."""

    recipe: RecipeT
    """Resolved: nothing is left to decide."""
    student: Encoder
    stage: Stage
    fingerprints: Mapping[str, str]
    """input -> digest of its content."""

    @property
    @abstractmethod
    def usual_length(self) -> int:
        """Tokens in a row of the usual length, by which a micro-batch is measured."""

    def prepare(self) -> None:
        """Do what is to be done once models and directory are ready: by default nothing."""

    @abstractmethod
    def announce(self, unreached: list[str], reporter: Reporter) -> None:
        """Tell what the run is made of."""

    def split(self, micro_batch_size: int) -> Self:
        """The same with smaller micro-batches."""
        return replace(self, recipe=replace(self.recipe, micro_batch_size=micro_batch_size))  # type: ignore[type-var]

    def outcome(self, unreached: list[str]) -> Encoder:
        """The student with what is to be remembered of it, once it is trained: by default nothing."""
        return replace(self.student, origin=Origin())

    @abstractmethod
    def finish(self, loop: Loop, folder: RunFolder, unreached: list[str]) -> dict[str, Any]:
        """Do what is to be done with the trained student before it is exported; gives the summary, for every process."""

    @abstractmethod
    def card(self, summary: Mapping[str, Any], remark: str = "") -> str:
        """The student's README.md; the remark says what sets these weights apart from the run's last ones, if they are others."""


@dataclass(frozen=True)
class Job(Generic[RecipeT]):
    """A run that is to be carried out."""

    recipe: RecipeT
    inputs: Sequence[str]
    """Files and folders that it reads."""
    assemble: Callable[[RecipeT, RecipeT | None, Reporter], Parts[RecipeT]]
    """Loads, reads and checks all that a recipe names and writes nothing; its second argument is the resolved recipe of the
    run that is resumed, whose length and probed decisions are taken over."""
    names_input: resuming.NamesInput
    """Whether the value of a recipe's field names a file that may lie elsewhere by now."""


def carry_out(
    job: Job[Any], output: str | Path, *, resume: Resume = "never", overwrite: bool = False, quiet: bool = False
) -> Run:
    """Carry a job out.

    Args:
        job: what to do.
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
    try:
        return _attempt(job, output, resume=resume, overwrite=overwrite, quiet=quiet)
    except _MemoryRanOut as ran_out:
        smaller, reporter = ran_out.micro_batch_size // 2, ran_out.reporter
    gc.collect()  # a model and what reads it refer to each other
    reporter.say(f"memory ran out in the first step; once more with {several(smaller, 'sequence')} at a time")
    job = replace(job, recipe=replace(job.recipe, micro_batch_size=smaller))
    return _attempt(job, output, resume=resume, overwrite=overwrite, quiet=quiet)


class _MemoryRanOut(Exception):
    """The estimate of a micro-batch that was left to Limbeck was wrong; never leaves this module."""

    def __init__(self, micro_batch_size: int, reporter: Reporter) -> None:
        super().__init__()
        self.micro_batch_size, self.reporter = micro_batch_size, reporter


def _attempt(job: Job[Any], output: str | Path, *, resume: Resume, overwrite: bool, quiet: bool) -> Run:
    here = this_process()
    folder, reporter = opened(job, output, quiet=quiet)
    with alone(folder, here), isolated(here.device):
        parts, begun = check(job, folder, reporter, resume=resume, overwrite=overwrite)
        here.wait_for_everyone()  # before the first process writes what others have just looked for
        stands = None if begun is None else standing(job, parts, begun, folder, reporter)
        if stands and stands.summary:
            reporter.say(f"{folder.path} is finished already.")
            return Run(folder.path, folder.student, stands.summary)
        ready = make_ready(parts, folder, may_shrink=may_shrink(job, begun))
        under_way = begin(ready.parts, ready.unreached, begun, stands, folder, reporter)
        try:
            under_way.loop.train()
        except TrackerRefused:
            under_way.give_up()
            raise
        except Exception as error:
            size = under_way.loop.plan.micro_batch_size
            once_more = may_shrink(job, begun) and size > 1 and under_way.loop.progress.step == 0 and here.num_processes == 1
            if not (once_more and out_of_memory(error)):
                raise
            under_way.give_up()
            raise _MemoryRanOut(size, reporter) from None
        return under_way.finish()


def may_shrink(job: Job[Any], begun: Any) -> bool:
    """Whether the micro-batch was left to Limbeck, in a run that is yet to begin."""
    return job.recipe.micro_batch_size == "auto" and begun is None


def opened(job: Job[Any], output: str | Path, *, quiet: bool) -> tuple[RunFolder, Reporter]:
    """What is cheap to check, checked before anything is read."""
    folder, reporter = RunFolder(output), Reporter(quiet=quiet or not this_process().is_main_process)
    check_trackers(job.recipe.trackers)
    folder.check_usable()
    return folder, reporter


def check(job: Job[Any], folder: RunFolder, reporter: Reporter, *, resume: str, overwrite: bool) -> tuple[Parts[Any], Any]:
    """The parts of a run that may begin, and the recipe that an earlier one began with, if it is to go on."""
    if resume not in ("never", "auto"):
        raise UserError(f"resume must be never or auto, not {resume!r}.")
    folder.check_free(resume=resume == "auto", overwrite=overwrite)
    folder.check_holds_none(job.inputs)
    begun = resuming.read_begun(folder, type(job.recipe)) if resume == "auto" else None
    return job.assemble(job.recipe, begun, reporter), begun


@dataclass(frozen=True)
class Ready:
    """A run's parts that can be trained."""

    parts: Parts[Any]
    unreached: list[str]
    """Names of the student's parameters that were frozen."""
    memory: Memory
    """What the process needs."""


def make_ready(parts: Parts[Any], folder: RunFolder, *, may_shrink: bool = False) -> Ready:
    """Freeze what is out of reach, bring the teacher into the run's precision, and check that memory and disk suffice.

    Args:
        parts: of the run.
        folder: the run's.
        may_shrink: whether the micro-batch may be made as small as memory asks for.

    Raises:
        UserError: memory or disk does not suffice.
    """
    recipe, stage = parts.recipe, parts.stage
    unreached = freeze_unreachable(stage)
    if recipe.precision == "bf16" and stage.teacher is not None:
        stage.teacher.hold_in_bf16()
    plan, length = Plan.of(recipe, recipe), parts.usual_length
    share = plan.batch_size // this_process().num_processes
    micro_batch = min(plan.micro_batch_size, share)
    memory = measure_memory(stage, length, plan.precision)
    fitting = check_memory(memory, micro_batch, share, may_shrink=may_shrink)
    if (longest := stage.source.longest) > length:
        long, wanted = measure_memory(stage, longest, plan.precision), max(1, fitting * length // longest)
        if (of_long := check_memory(long, wanted, share, may_shrink=may_shrink)) < wanted:
            fitting = of_long * longest // length
    check_disk(disk_needed(parts.student, plan, plan.steps), folder)
    return Ready(parts if fitting == micro_batch else parts.split(fitting), unreached, memory)


@contextmanager
def alone(folder: RunFolder, here: PartialState) -> Iterator[None]:
    """Keep other runs out of the directory; the first of this run's processes holds the lock for all of them.

    Raises:
        UserError: another run works there, or the directory cannot be made.
    """
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


@dataclass(frozen=True)
class Standing:
    """How far an earlier run has come."""

    stamp: Stamp
    """Under what it goes on."""
    checkpoint: Checkpoint | None
    summary: dict[str, Any] | None
    """Only if it is finished."""

    @property
    def progress(self) -> Progress:
        """Where it goes on."""
        return self.checkpoint.state.progress if self.checkpoint else Progress()


def standing(job: Job[Any], parts: Parts[Any], begun: Any, folder: RunFolder, reporter: Reporter) -> Standing:
    """Where an earlier run stands, after checking that it is the same."""
    summary = folder.read_summary() if folder.finished else None
    checkpoint = None if summary else newest_checkpoint(folder.checkpoints, reporter.say)
    then = summary.get("fingerprints", {}) if summary else checkpoint.state.stamp.fingerprints if checkpoint else {}
    resuming.check_same_recipe(begun, parts.recipe, folder, job.names_input, same_content=bool(then))
    stamp = _stamp(parts, folder.recipe.read_text(encoding="utf-8"))
    resuming.check_same_content(then, stamp.fingerprints, folder)
    return Standing(stamp, checkpoint, summary)


def _stamp(parts: Parts[Any], recipe: str) -> Stamp:
    here = this_process()
    return Stamp(
        fingerprints={**parts.fingerprints, "recipe": resuming.text_fingerprint(recipe)},
        conditions=resuming.conditions(parts.recipe, here.num_processes, here.device),
    )


@dataclass(frozen=True)
class UnderWay:
    """A run that stands where its next step begins."""

    parts: Parts[Any]
    unreached: list[str]
    loop: Loop
    folder: RunFolder
    reporter: Reporter
    anew: bool
    """Whether this is its beginning."""

    def finish(self) -> Run:
        """Write the trained student and the summary."""
        parts, loop, folder = self.parts, self.loop, self.folder
        summary = parts.finish(loop, folder, self.unreached)
        if loop.accelerator.is_main_process:
            parts.stage.module.finish(loop.encoder.model)
            export_student(folder.student, loop.encoder, parts.card(summary))
            if folder.best.is_dir():
                write_file(folder.best / "README.md", parts.card(summary, loop.best_remark()))
            folder.write_summary(summary)
        self.reporter.say(f"student written to {folder.student}")
        return Run(folder.path, folder.student, summary)

    def give_up(self) -> None:
        """Leave nothing of a run that could not begin, so that the same command, once mended, finds the directory free."""
        if self.anew:
            self.folder.clear()


def begin(
    parts: Parts[Any], unreached: list[str], begun: Any, stands: Standing | None, folder: RunFolder, reporter: Reporter
) -> UnderWay:
    """Begin a run, or go on with one from its newest checkpoint.

    Args:
        parts: ready to train.
        unreached: names of the student's parameters that were frozen.
        begun: the resolved recipe of the run that goes on.
        stands: where it stands.
        folder: the run's.
        reporter: hears what the run is made of.

    Raises:
        UserError: what the checkpoint holds is another run's.
    """
    main = this_process().is_main_process
    if stands is None:
        text = write_recipe(parts.recipe)
        if main:
            folder.clear()
            folder.write_recipe(text)
        stamp, checkpoint = _stamp(parts, text), None
    else:
        stamp, checkpoint = stands.stamp, stands.checkpoint
    if main:
        folder.remove_leftovers()
    parts.announce(unreached, reporter)
    _warn_of_bf16(parts.recipe, reporter)
    parts.prepare()
    began = begun or parts.recipe
    trackers = Trackers(parts.recipe, folder, reporter)
    loop = Loop(parts.stage, Plan.of(parts.recipe, began), folder, parts.outcome(unreached), reporter, trackers, stamp)
    then = checkpoint.state.stamp.conditions if checkpoint else resuming.layout(began)
    loop.resume(checkpoint, resuming.changes(then, stamp.conditions))
    return UnderWay(parts, unreached, loop, folder, reporter, anew=stands is None)


def _warn_of_bf16(recipe: Any, reporter: Reporter) -> None:
    if recipe.precision == "bf16" and (slowdown := bf16_slowdown(this_process().device)) > HOPELESS:
        reporter.say(
            f"warning: matrix products in bf16 take {slowdown:.0f} times as long as in float32 on this processor; precision auto "
            "finds the faster one"
        )
