"""A recipe of several stages, carried out: each stage is a run in RUN/stages/NAME, and RUN/student is the last one's."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from limbeck.encoders.loading import Encoder, load_config, new_encoder
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.errors import UserError, naming
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, read_recipe, validate, yaml_text
from limbeck.stages import BEFORE, StagedRecipe, StageRecipe, plain_stages, recipe_of
from limbeck.training.assemble import distillation_job, names_input
from limbeck.training.distillation import DistillationParts
from limbeck.training.folder import RunFolder, link_directory
from limbeck.training.isolation import isolated
from limbeck.training.loop import this_process
from limbeck.training.resume import check_same_recipe
from limbeck.training.run import Job, Resume, Run, alone, carry_out, check, make_ready, may_shrink, opened
from limbeck.training.trackers import TrackerRefused

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """A stage that is looked at without being trained."""

    job: Job[Recipe]
    parts: DistillationParts
    begun: Recipe | None
    """The resolved recipe that its run began with, if that goes on."""
    folder: RunFolder
    reporter: Reporter


class _Checking(Reporter):
    """Tells how far work is, but not what a stage is made of, which is told when it begins."""

    def fact(self, name: str, text: str) -> None:
        """Pass it over."""


def with_assistants(recipe: Recipe, reporter: Reporter) -> Recipe | StagedRecipe:
    """A recipe with its assistants as stages (MiniLM, section 3.3); the recipe itself if it has none.

    An assistant begins with random weights and is distilled as the student is. What was learned lies in an assistant's last
    layer, which is therefore the one that the next stage mimics, whichever is mimicked of the teacher.

    Args:
        recipe: what to do.
        reporter: hears whether there is an assistant, and why.

    Raises:
        UserError: the teacher's configuration cannot be read.
    """
    if recipe.assistant == "none":
        return recipe
    shapes = _assistants(recipe, EncoderShape.of(load_config(recipe.teacher)), reporter)
    direct = replace(recipe, assistant="none")
    if not shapes:
        return direct
    names = ["assistant"] if len(shapes) == 1 else [f"assistant-{number}" for number in range(1, len(shapes) + 1)]
    later = replace(direct, teacher=BEFORE, objective=replace(recipe.objective, teacher_layer="auto"))
    stages = [
        StageRecipe.of(later if place else direct, name=name, student=_written(shape), init="random")
        for place, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    return StagedRecipe(stages=[*stages, StageRecipe.of(later, name="student")])


def run_stages(
    staged: StagedRecipe, output: Any, *, resume: Resume = "never", overwrite: bool = False, quiet: bool = False
) -> Run:
    """Carry a staged recipe out; arguments and errors are those of `carry_out`, and every stage is checked before the first."""
    here = this_process()
    quiet = quiet or not here.is_main_process
    folder, reporter = RunFolder(output), Reporter(quiet=quiet)
    folder.check_usable()
    with alone(folder, here):
        begun = _check(staged, folder, resume=resume, overwrite=overwrite)
        done = begun and folder.finished
        if done and not all(_there(folder, stage.name) for stage in staged.stages):
            reporter.say(f"{folder.path} is finished already, and some of its stages were removed.")
            return Run(folder.path, folder.student, folder.read_summary())
        recipes = stage_recipes(staged, folder)
        ahead = {name: recipe for name, recipe in recipes.items() if not (begun and folder.stage(name).finished)}
        checking = _Checking(quiet=quiet)
        _each(ahead, folder, _try_out, checking, resume=resume, overwrite=overwrite)
        here.wait_for_everyone()  # before the first process writes what others have just looked for
        if not begun and here.is_main_process:
            folder.clear()
            folder.write_recipe(yaml_text(plain_stages(staged)))
        runs = {}
        for number, (name, recipe) in enumerate(recipes.items(), 1):
            here.wait_for_everyone()
            reporter.say(f"stage {number} of {len(recipes)}: {name}")
            try:
                with naming(f"Stage {name}"):
                    runs[name] = carry_out(distillation_job(recipe), folder.stage(name).path, resume="auto", quiet=quiet)
            except (UserError, TrackerRefused):
                if here.is_main_process and not any(_there(folder, stage.name) for stage in staged.stages):
                    folder.clear()  # so that the same command, once mended, finds the directory free
                raise
            gc.collect()  # a model and what reads it refer to each other
        if done:
            return Run(folder.path, folder.student, folder.read_summary())
        return _finish(staged, runs, folder, reporter)


def look_at_stages(
    staged: StagedRecipe, output: Any, look: Callable[[Look], T], *, resume: str, overwrite: bool, quiet: bool
) -> dict[str, T]:
    """Assemble each stage as `run_stages` with the same arguments would, look at it, and write nothing.

    Returns:
        What `look` gives, by the stages' names.
    """
    folder = RunFolder(output)
    reporter = Reporter(quiet=quiet or not this_process().is_main_process)
    folder.check_usable()
    _check(staged, folder, resume=resume, overwrite=overwrite)
    return _each(stage_recipes(staged, folder), folder, look, reporter, resume=resume, overwrite=overwrite)


def _assistants(recipe: Recipe, teacher: EncoderShape, reporter: Reporter) -> list[StudentShape]:
    """The shapes of a recipe's assistants: the explicit heads of the student hold for them, too."""
    student = recipe.shape
    if recipe.assistant != "auto":
        given = [StudentShape.parse(text) for text in recipe.assistant.split(",")]
        return [shape if shape.heads else replace(shape, heads=student.heads) for shape in given]
    small = 2 * student.layers <= teacher.layers and 2 * student.width <= teacher.width
    size = f"at most half the teacher's {teacher.layers} layers and half its width of {teacher.width}"
    if not small:
        reporter.fact("assistant", f"none, since a student of {student.layers}x{student.width} has not {size}")
        return []
    assistant = replace(student, layers=teacher.layers)
    reporter.fact("assistant", f"{_written(assistant)}, since a student of {student.layers}x{student.width} has {size}")
    return [assistant]


def _written(shape: StudentShape) -> str:
    """A shape as `StudentShape.parse` reads it."""
    feed_forward = f":{shape.feed_forward}" if shape.feed_forward else ""
    return f"{shape.layers}x{shape.width}{feed_forward}" + (f"/{shape.heads}" if shape.heads else "")


def stage_recipes(staged: StagedRecipe, folder: RunFolder) -> dict[str, Recipe]:
    """Each stage's recipe as its run has it: what comes of the stage before lies in that stage's directory."""
    recipes: dict[str, Recipe] = {}
    before: StageRecipe | None = None
    for stage in staged.stages:
        recipe = stage.recipe
        if before is not None:
            student = str(folder.stage(before.name).student)
            if stage.init == BEFORE:
                recipe = replace(recipe, init=student)
            if stage.teacher == BEFORE:
                recipe = replace(recipe, teacher=student)
                # Only its last layer has learned; of a deep teacher "auto" would take one that has not.
                if recipe.objective.teacher_layer == "auto":
                    recipe = replace(recipe, objective=replace(recipe.objective, teacher_layer=before.shape.layers))
        recipes[stage.name] = recipe
        before = stage
    return recipes


def _check(staged: StagedRecipe, folder: RunFolder, *, resume: str, overwrite: bool) -> bool:
    """Refuse a directory or a recipe that cannot go together; whether an earlier run goes on.

    Raises:
        UserError: the directory is not free, an input lies in it, or it holds a run with another recipe.
    """
    if resume not in ("never", "auto"):
        raise UserError(f"resume must be never or auto, not {resume!r}.")
    folder.check_free(resume=resume == "auto", overwrite=overwrite)
    for stage in staged.stages:
        folder.check_holds_none(given for given in distillation_job(stage.recipe).inputs if given != BEFORE)
    if resume != "auto" or not folder.recipe.exists():
        return False
    begun = recipe_of(read_recipe(folder.recipe))
    if not isinstance(begun, StagedRecipe):
        raise UserError(f"{folder.path} holds a run without stages; resume it with its own recipe, or name another directory.")
    then, now = ([stage.name for stage in recipe.stages] for recipe in (begun, staged))
    if then != now:
        raise UserError(
            f"{folder.path} holds a run with other stages: {', '.join(then)} then, {', '.join(now)} now. Resume it with the "
            "recipe it began with, or name another directory."
        )
    if not folder.finished and folder.student.exists() and (gone := [name for name in now if not _there(folder, name)]):
        raise UserError(
            f"{folder.path} was finished, and {', '.join(gone)} of its stages {'was' if len(gone) == 1 else 'were'} removed; put "
            "that back, or begin anew with --overwrite."
        )
    for before, stage in zip(begun.stages, staged.stages, strict=True):
        # A stage that has begun is compared with the recipe in its own directory.
        if not (folder.finished or _there(folder, stage.name)):
            with naming(f"Stage {stage.name}"):
                check_same_recipe(before, stage, folder, names_input, same_content=False)
    return True


def _try_out(look: Look) -> None:
    """See that memory and disk suffice."""
    make_ready(look.parts, look.folder, may_shrink=may_shrink(look.job, look.begun))


def _there(folder: RunFolder, name: str) -> bool:
    """Whether a stage has begun, and its directory was not removed since."""
    return folder.stage(name).recipe.is_file()


def _each(
    recipes: Mapping[str, Recipe],
    folder: RunFolder,
    look: Callable[[Look], T],
    reporter: Reporter,
    *,
    resume: str,
    overwrite: bool,
) -> dict[str, T]:
    """Look at stage after stage without training, one in memory at a time.

    Random weights take the place of those that a stage before will have.
    """
    found: dict[str, T] = {}
    stand_ins: dict[str, Encoder] = {}
    for name, recipe in recipes.items():
        stage, job = folder.stage(name), distillation_job(recipe, stand_ins)
        reporter.say(f"checking stage {name}")
        with naming(f"Stage {name}"), isolated(this_process().device):
            opened(job, stage.path, quiet=True)
            parts, begun = check(job, stage, reporter, resume=resume, overwrite=overwrite)
            assert isinstance(parts, DistillationParts)
            found[name] = look(Look(job, parts, begun, stage, reporter))
            config, tokenizer = parts.student.model.config, parts.student.tokenizer
            del parts
        gc.collect()
        if not stage.finished or overwrite:
            student = new_encoder(config, tokenizer, recipe.seed)
            stand_ins = {str(stage.student): replace(student, source=str(stage.student))}
    return found


def _finish(staged: StagedRecipe, runs: Mapping[str, Run], folder: RunFolder, reporter: Reporter) -> Run:
    """Write what stands for the whole: the resolved recipe, the last stage's student, and the summary."""
    last = runs[staged.stages[-1].name]
    summary = {**last.summary, "stages": [_figures(name, run.summary) for name, run in runs.items()]}
    if this_process().is_main_process:
        folder.remove_leftovers()
        folder.write_recipe(yaml_text(plain_stages(_resolved(staged, folder))))
        link_directory(folder.student, last.student)
        folder.write_summary(summary)
    reporter.say(f"student written to {folder.student}")
    return Run(folder.path, folder.student, summary)


def _figures(name: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    try:
        training = {key: summary["training"][key] for key in ("steps", "tokens", "seconds", "last_loss")}
        return {"name": name, **training, "student": summary["student"]["shape"]}
    except (KeyError, TypeError):
        raise UserError(
            f"The summary.json of stage {name} is not what was written; remove it to have its end done again."
        ) from None


def _resolved(staged: StagedRecipe, folder: RunFolder) -> StagedRecipe:
    """The recipe with each stage's decisions as its run made them."""
    stages = []
    for stage in staged.stages:
        decided = validate(Recipe, read_recipe(folder.stage(stage.name).recipe))
        own = {name: BEFORE for name in ("teacher", "init") if getattr(stage, name) == BEFORE}
        stages.append(StageRecipe.of(decided, name=stage.name, **own))
    return StagedRecipe(stages=stages)
