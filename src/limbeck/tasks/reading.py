"""From a recipe to the task that it names, made ready for a model's tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from limbeck.data.files import HUB
from limbeck.errors import UserError
from limbeck.tasks.assignment import Assignment
from limbeck.tasks.folders import squeezed
from limbeck.tasks.glue import GLUE, read_glue
from limbeck.tasks.holdout import hold_out
from limbeck.tasks.hub import is_data_set, read_hub, read_hub_questions
from limbeck.tasks.own import read_own
from limbeck.tasks.question_data import QuestionData, of_data_set, read_evaluated, read_questions
from limbeck.tasks.questions import QuestionAssignment
from limbeck.tasks.recipe import ENGLISH, FineTuning, dev_share
from limbeck.tasks.sentences import SentenceAssignment
from limbeck.tasks.squad import QUESTIONS
from limbeck.tasks.tables import data_set_sources
from limbeck.tasks.task import TaskData
from limbeck.tasks.xnli import XNLI, divided, read_xnli
from limbeck.text import nearest

SENTENCE_LENGTH, WINDOW_LENGTH = 128, 384
"""Tokens, as in BERT's and MiniLM's papers."""


def assignment_of(recipe: FineTuning, tokenizer: PreTrainedTokenizerBase) -> Assignment:
    """Read the task's data and make it ready.

    Raises:
        UserError: there is no such task, or its data cannot be read.
    """
    data = read_data(recipe)
    if isinstance(data, QuestionData):
        return question_assignment(data, recipe, tokenizer)
    return SentenceAssignment(
        data,
        tokenizer,
        max_length=length_of(recipe),
        class_weights=recipe.class_weights,
        splits=recipe.splits,
        limit=recipe.examples,
        seed=recipe.seed,
    )


def read_data(recipe: FineTuning, *, to_train: bool = True) -> TaskData | QuestionData:
    """Read the task's data; errors are those of `assignment_of`."""
    return read_question_files(recipe) if asks_questions(recipe) else read_sentences(recipe, to_train=to_train)


def selecting_splits(task: str) -> list[str]:
    """The split that selects, where a task's name alone tells it."""
    name = squeezed(task)
    return [GLUE[name].task.dev] if name in GLUE else [XNLI.dev] if name == "xnli" else []


def length_of(recipe: FineTuning) -> int:
    """Tokens of a text or a pair."""
    return SENTENCE_LENGTH if recipe.max_length == "auto" else recipe.max_length


def asks_questions(recipe: FineTuning) -> bool:
    """Whether the task's examples are questions on passages."""
    return recipe.task is not None and squeezed(recipe.task) in QUESTIONS


def question_assignment(data: QuestionData, recipe: FineTuning, tokenizer: PreTrainedTokenizerBase) -> QuestionAssignment:
    """Questions made ready as the recipe wants them."""
    if recipe.class_weights != "none":
        raise UserError(f"{data.name} asks for answers, which have no classes to weigh; leave class_weights out.")
    return QuestionAssignment(
        data,
        tokenizer,
        max_length=WINDOW_LENGTH if recipe.max_length == "auto" else recipe.max_length,
        overlap=recipe.overlap,
        splits=recipe.splits,
        limit=recipe.examples,
        seed=recipe.seed,
    )


def read_questions_to_evaluate(recipe: FineTuning) -> QuestionData:
    """The questions of a task for a model that is not trained any more: those of dev, or where that says nothing, of data."""
    place = recipe.data[0] if recipe.dev is None or dev_share(recipe.dev) is not None else recipe.dev
    return read_evaluated(squeezed(recipe.task or ""), Path(place).expanduser(), recipe.languages)


def read_question_files(recipe: FineTuning) -> QuestionData:
    """The questions of a task, those to evaluate on as the recipe wants them."""
    task = squeezed(recipe.task or "")
    if any(path.startswith(HUB) or (Path(path).is_dir() and data_set_sources(path)) for path in recipe.data):
        if len(recipe.data) > 1 or recipe.dev is not None:
            raise UserError(f"A data set brings its own splits; give {recipe.data[0]} alone as data, and no dev.")
        return of_data_set(task, recipe.data[0], read_hub_questions(recipe.data[0]))
    dev: Path | float | None = None
    if recipe.dev is not None:
        share = dev_share(recipe.dev)
        dev = Path(recipe.dev).expanduser() if share is None else share
    data = [Path(path).expanduser() for path in recipe.data]
    return read_questions(task, data, dev=dev, languages=recipe.languages, train_languages=recipe.train_languages)


def read_sentences(recipe: FineTuning, *, to_train: bool = True) -> TaskData:
    """The data of a task of texts or pairs, its dev split as the recipe wants it.

    Args:
        recipe: names task and data.
        to_train: whether there must be something to train on.
    """
    share = None if recipe.dev is None else dev_share(recipe.dev)
    if len(recipe.data) > 1:
        raise UserError(f"Data of this kind is one folder or file, not {len(recipe.data)}: {', '.join(recipe.data)}.")
    data = _place(recipe.data[0])
    if (recipe.languages or recipe.train_languages != ENGLISH) and squeezed(recipe.task or "") != "xnli":
        name = recipe.task or recipe.label
        raise UserError(f"{name} does not have several languages; leave languages and train_languages out.")
    if recipe.task is None:
        assert recipe.label is not None
        dev = _place(recipe.dev) if recipe.dev is not None and share is None else share
        return read_own(
            data, recipe.text, recipe.label, dev=dev, kind=recipe.kind, separator=recipe.separator, header=recipe.header
        )
    if recipe.dev is not None and share is None:
        raise UserError(f"{recipe.task} has its own dev file in {data}; give dev a share of the examples, or leave it out.")
    name = squeezed(recipe.task)
    if name not in (*GLUE, "xnli"):
        known = (*GLUE, "xnli", *QUESTIONS)
        raise UserError(f"There is no task {recipe.task!r}{nearest(name, known) or '.'} The tasks are {', '.join(known)}.")
    if name == "xnli":
        languages = [*dict.fromkeys((*recipe.languages, *recipe.train_languages))] if recipe.languages else []
        read = read_hub(name, data, languages) if is_data_set(name, data) else read_xnli(Path(data), languages)
        return divided(read, recipe.train_languages, share) if to_train or share is not None else read
    read = read_hub(name, data) if is_data_set(name, data) else read_glue(name, Path(data))
    return read if share is None else _divided(read, share)


def _place(name: str) -> str:
    """A path whole, a name on the hub as it is."""
    return name if name.startswith(HUB) else str(Path(name).expanduser())


def _divided(data: TaskData, share: float) -> TaskData:
    """A task whose dev split is a share of its training examples, or where it has none, of its own dev examples."""
    pool = data.splits.get("train", data.splits.get(data.task.dev))
    if pool is None:
        raise UserError(f"{data.task.name} has neither a train nor a dev file here, so nothing can be held out.")
    train, dev = hold_out(pool, share)
    splits = {name: split for name, split in data.splits.items() if not name.startswith("dev")}
    return replace(data, splits={**splits, "train": train, data.task.dev: dev})
