"""Several students that learn from one pass of the teacher: each is a run of its own, and they take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from limbeck.encoders.loading import Encoder, keep_layers, load_encoder
from limbeck.errors import CheckFailed, Interrupted, UserError, naming
from limbeck.progress import Chorus, Reporter
from limbeck.recipe import Recipe, plain, read_recipe, validate, yaml_text
from limbeck.training.assemble import deepest_layer, distillation_job, needed_layers
from limbeck.training.disk import check_disk, disk_needed
from limbeck.training.distillation import DistillationParts
from limbeck.training.folder import STUDENTS, RunFolder, link_directory
from limbeck.training.interrupt import StopRequest, stop_request
from limbeck.training.isolation import isolated
from limbeck.training.loop import TrainingStopped, this_process
from limbeck.training.memory import check_memory, together
from limbeck.training.run import (
    Job,
    Ready,
    Resume,
    Run,
    Standing,
    UnderWay,
    alone,
    begin,
    check,
    make_ready,
    may_shrink,
    standing,
)
from limbeck.training.stage import Plan, SharedTeacher, Teacher
from limbeck.training.trackers import TrackerRefused, check_trackers

T = TypeVar("T")
DONE = object()


@dataclass(frozen=True)
class Sibling:
    """One of several students, ready to be trained or looked at."""

    job: Job[Recipe]
    parts: DistillationParts
    begun: Recipe | None
    """The resolved recipe that its run began with, if that goes on."""
    folder: RunFolder
    reporter: Reporter

    @property
    def teacher(self) -> Teacher:
        """What its student is taught by."""
        assert self.parts.stage.teacher is not None
        return self.parts.stage.teacher

    def taught_by(self, teacher: Teacher) -> Sibling:
        """The same with another reader of the teacher."""
        return replace(self, parts=replace(self.parts, stage=replace(self.parts.stage, teacher=teacher)))


def single_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe of each student alone, by the name of its directory.

    Raises:
        UserError: two would have the same directory.
    """
    recipes: dict[str, Recipe] = {}
    for shape in recipe.students:
        name = shape.replace(":", "-").replace("/", "-")
        if name in recipes:
            raise UserError(f"Two of the students would lie in {name}; leave one of them out.")
        recipes[name] = replace(recipe, student=shape)
    return recipes


def run_siblings(
    recipe: Recipe, output: str | Path, *, resume: Resume = "never", overwrite: bool = False, quiet: bool = False
) -> Run:
    """Train the recipe's students side by side; each becomes what it would by itself.

    Each has its own optimiser, log, checkpoints and summary in RUN/runs/SHAPE, and may stop by itself where its loss is not
    finite; RUN/students/SHAPE is the finished student, RUN/log.jsonl all logs together, with the key ``student``. The teacher
    runs once over each micro-batch, and the clock of a log runs for all students.

    Args:
        recipe: with several students.
        output: the run directory.
        resume: as in `carry_out`; a student that is behind the others catches up first.
        overwrite: as in `carry_out`.
        quiet: print nothing.

    Raises:
        UserError: as `carry_out`.
        TrainingStopped: of one student; the others were trained to their end.
        Interrupted: as `carry_out`.
    """
    here, recipes = this_process(), single_recipes(recipe)
    folder, chorus = RunFolder(output), Chorus(list(recipes), quiet=quiet or not here.is_main_process)
    check_trackers(recipe.trackers)
    folder.check_usable()
    with alone(folder, here), isolated(here.device):
        goes_on = _check(recipe, folder, resume=resume, overwrite=overwrite)
        siblings = _assembled(recipes, folder, chorus, goes_on=goes_on, overwrite=overwrite)
        here.wait_for_everyone()  # before the first process writes what others have just looked for
        stands = {name: _stand(name, each) for name, each in siblings.items()}
        runs = {
            name: Run(siblings[name].folder.path, siblings[name].folder.student, at.summary)
            for name, at in stands.items()
            if at is not None and at.summary is not None
        }
        ahead = {name: each for name, each in siblings.items() if name not in runs}
        if not ahead:
            chorus.say(f"{folder.path} is finished already.")
        ready = _make_ready(ahead, folder)
        if here.is_main_process and not goes_on:
            folder.clear()
            folder.write_recipe(yaml_text(_common(recipe, [each.parts.recipe for each in ready.values()])))
        under_way = {
            name: begin(ready[name].parts, ready[name].unreached, each.begun, stands[name], each.folder, each.reporter)
            for name, each in ahead.items()
        }
        if here.is_main_process:
            folder.write_log(_merged_logs(folder, recipes))
        try:
            failed = _train(under_way, chorus)
        except TrackerRefused:
            if here.is_main_process and not goes_on:
                folder.clear()
            raise
        runs |= {name: each.finish() for name, each in under_way.items() if name not in failed}
        if here.is_main_process:
            _link_students(runs, folder)
        if failed:
            raise _as_one(failed, folder)
        chorus.say(f"students written to {folder.path / STUDENTS}")
        return _whole({name: runs[name] for name in recipes}, folder)


def _link_students(runs: Mapping[str, Run], folder: RunFolder) -> None:
    """Put the finished students side by side."""
    folder.remove_leftovers()
    for name, run in runs.items():
        link_directory(folder.path / STUDENTS / name, run.student)


def _whole(runs: Mapping[str, Run], folder: RunFolder) -> Run:
    """The run of all students, its summary written."""
    summaries = {name: run.summary for name, run in runs.items()}
    summary = {"students": summaries, "fingerprints": next(iter(summaries.values()))["fingerprints"]}
    if this_process().is_main_process:
        folder.write_summary(summary)
    return Run(folder.path, folder.path / STUDENTS, summary, runs)


def look_at_siblings(
    recipe: Recipe, output: str | Path, look: Callable[[Sibling], T], *, resume: str, overwrite: bool, quiet: bool
) -> dict[str, T]:
    """Assemble the students as `run_siblings` with the same arguments would, look at each, and write nothing.

    All but the first find the teacher's pass done, so that what they take adds up.

    Returns:
        What `look` gives, by the students' shapes.
    """
    here, recipes = this_process(), single_recipes(recipe)
    folder, chorus = RunFolder(output), Chorus(list(recipes), quiet=quiet or not here.is_main_process)
    check_trackers(recipe.trackers)
    folder.check_usable()
    with isolated(here.device):
        goes_on = _check(recipe, folder, resume=resume, overwrite=overwrite)
        siblings = _assembled(recipes, folder, chorus, goes_on=goes_on, overwrite=overwrite)
        return {name: look(_alone(each) if place == 0 else each) for place, (name, each) in enumerate(siblings.items())}


def _check(recipe: Recipe, folder: RunFolder, *, resume: str, overwrite: bool) -> bool:
    """Refuse a directory that cannot take the run; whether an earlier one goes on.

    Raises:
        UserError: the directory is not free, an input lies in it, or it holds a run of other students.
    """
    if resume not in ("never", "auto"):
        raise UserError(f"resume must be never or auto, not {resume!r}.")
    if "trackio" in recipe.trackers:
        raise UserError("trackio follows one student of a process at a time; use tensorboard or wandb for several.")
    folder.check_free(resume=resume == "auto", overwrite=overwrite)
    folder.check_holds_none(distillation_job(recipe).inputs)
    if resume != "auto" or not folder.recipe.exists():
        return False
    fields = read_recipe(folder.recipe)
    then = [] if "stages" in fields else validate(Recipe, fields).students
    if then != recipe.students:
        what = f"a run of {' and '.join(then)}" if then else "a run of several stages"
        raise UserError(
            f"{folder.path} holds {what}, not of {' and '.join(recipe.students)}; resume it with its own recipe, or name another "
            "directory."
        )
    return True


def _assembled(
    recipes: Mapping[str, Recipe], folder: RunFolder, chorus: Chorus, *, goes_on: bool, overwrite: bool
) -> dict[str, Sibling]:
    """The parts of each student's run, with one teacher among them and the first one's decisions where all must agree."""
    siblings: dict[str, Sibling] = {}
    layers: set[int] = set()
    for name, recipe in recipes.items():
        with naming(f"Student {name}"):
            layers |= needed_layers(recipe, recipe.init)
    teacher = load_encoder(recipe.teacher, layers)
    decided: dict[str, Any] = {}
    for name, recipe in recipes.items():
        job = distillation_job(replace(recipe, **decided), {recipe.teacher: teacher})
        own, voice = folder.run(name), chorus.voice(name)
        with naming(f"Student {name}"):
            parts, begun = check(job, own, voice, resume="auto" if goes_on else "never", overwrite=overwrite)
        assert isinstance(parts, DistillationParts)
        siblings[name] = Sibling(job, parts, begun, own, voice)
        decided = {name: getattr(parts.recipe, name) for name in ("precision", "compile", "teacher_cache")}
    return _sharing(teacher, siblings)


def _sharing(teacher: Encoder, siblings: Mapping[str, Sibling]) -> dict[str, Sibling]:
    """The same with the teacher's pass shared by all that read the same of it."""
    deepest = (deepest_layer(each.parts.objective, teacher.shape, each.parts.student.shape) for each in siblings.values())
    keep_layers(teacher.model, range(1, max(deepest) + 1))
    shared: dict[str, SharedTeacher] = {}
    for each in siblings.values():
        each.teacher.close()
        if str(each.teacher.wants) not in shared:
            shared[str(each.teacher.wants)] = SharedTeacher(each.teacher.anew())
    return {name: each.taught_by(shared[str(each.teacher.wants)]) for name, each in siblings.items()}


def _alone(sibling: Sibling) -> Sibling:
    assert isinstance(sibling.teacher, SharedTeacher)
    return sibling.taught_by(sibling.teacher.asked)


def _make_ready(siblings: Mapping[str, Sibling], folder: RunFolder) -> dict[str, Ready]:
    """Make each ready, and check that memory and disk suffice for all at once; all get the micro-batch that fits."""
    shrinks = all(may_shrink(each.job, each.begun) for each in siblings.values())
    ready = {name: make_ready(each.parts, each.folder, may_shrink=shrinks) for name, each in siblings.items()}
    if not ready:
        return ready
    recipes = [each.parts.recipe for each in ready.values()]
    share = recipes[0].batch_size // this_process().num_processes
    wanted = min(share, *(int(recipe.micro_batch_size) for recipe in recipes))
    memory = together([each.memory for each in ready.values()], accumulates=wanted < share)
    fitting = check_memory(memory, wanted, share, may_shrink=shrinks)
    plans = [Plan.of(recipe, recipe) for recipe in recipes]
    needed = [disk_needed(each.parts.student, plan, plan.steps) for each, plan in zip(ready.values(), plans, strict=True)]
    check_disk(replace(needed[0], total=sum(each.total for each in needed)), folder)
    if fitting == wanted and len({recipe.micro_batch_size for recipe in recipes}) == 1:
        return ready
    return {name: replace(each, parts=each.parts.split(fitting)) for name, each in ready.items()}


def _stand(name: str, sibling: Sibling) -> Standing | None:
    """Where a student's earlier run stands, if it goes on."""
    if sibling.begun is None:
        return None
    with naming(f"Student {name}"):
        return standing(sibling.job, sibling.parts, sibling.begun, sibling.folder, sibling.reporter)


def _train(under_way: Mapping[str, UnderWay], chorus: Chorus) -> dict[str, CheckFailed | Interrupted]:
    """Let the students take turns; what ended any of them early, by their shapes."""
    failed: dict[str, CheckFailed | Interrupted] = {}
    loops = {name: each.loop for name, each in under_way.items()}
    if not loops:
        return failed
    last, first = max(loop.steps for loop in loops.values()), min(loop.progress.step for loop in loops.values())
    batch_size = max(loop.plan.batch_size for loop in loops.values())
    agreed, chorus.names = StopRequest(), list(loops)
    with ExitStack() as open_loops, chorus.training(last, first), stop_request() as stop:
        turns = {name: open_loops.enter_context(closing(loop.turns(agreed))) for name, loop in loops.items()}
        while turns:
            done = [loops[name].progress.examples for name in turns]
            behind, ahead = min(done), max(done)
            if not behind < ahead <= behind + batch_size:  # otherwise some would stop after this step, others after the next
                agreed.since = stop.since
            for name in [name for name in turns if loops[name].progress.examples == behind]:
                try:
                    if next(turns[name], DONE) is DONE:
                        del turns[name]
                except (TrainingStopped, Interrupted) as error:
                    failed[name] = error
                    del turns[name]
                    chorus.names.remove(name)
    return failed


def _as_one(failed: Mapping[str, CheckFailed | Interrupted], folder: RunFolder) -> CheckFailed | Interrupted:
    """What ended some students early, as one error."""
    stopped = {name: error for name, error in failed.items() if isinstance(error, TrainingStopped)}
    if len(stopped) < len(failed):
        step = next(error for name, error in failed.items() if name not in stopped)
        return Interrupted(f"{', '.join(name for name in failed if name not in stopped)} {step}")
    told = " ".join(f"{name}: {error}" for name, error in stopped.items())
    return TrainingStopped(f"{told} Whatever else was to be trained is finished, in {folder.path / STUDENTS}.")


def _common(recipe: Recipe, resolved: Sequence[Recipe]) -> dict[str, Any]:
    """The recipe with the decisions that are the same for every student; each one's own lie in its directory."""
    first, *others = map(plain, resolved)
    asked = plain(recipe)
    return {
        name: value if name != "student" and all(other[name] == value for other in others) else asked[name]
        for name, value in first.items()
    }


def _merged_logs(folder: RunFolder, names: Iterable[str]) -> list[dict[str, Any]]:
    records = [{"student": name, **record} for name in names for record in folder.run(name).read_log()]
    return sorted(records, key=lambda record: int(record["step"]))
