"""GLUE, XNLI and questions in the form in which the Hugging Face hub has them.

A data set is named ``datasets:NAME[:CONFIGURATION]``, such as datasets:nyu-mll/glue, whose configuration follows from the task,
and only such a name is ever fetched; or it is a folder that `datasets` saved or that holds Parquet files, or one with such a
folder for the task. Classes are told apart by their names, and -1 is no label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from limbeck.data.files import HUB
from limbeck.errors import UserError
from limbeck.tasks.examples import Example, Split
from limbeck.tasks.folders import folders, squeezed
from limbeck.tasks.glue import GLUE, glue_task
from limbeck.tasks.rows import Unfit, checked, label_reader, make_example, sift
from limbeck.tasks.squad import QuestionFile, questions_of_rows
from limbeck.tasks.tables import Cells, Source, data_set_sources, text_cell
from limbeck.tasks.task import TaskData, task_data
from limbeck.tasks.xnli import HYPOTHESES, LANGUAGES, PARTS, XNLI, check_languages, joint_dev

NLI_TEXTS = ("premise", "hypothesis")
TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": NLI_TEXTS}
"""The columns of texts where they are called otherwise than in GLUE's own files."""
LABEL = "label"
QUESTION = ("id", "title", "context", "question", "answers")
ALL_LANGUAGES = "all_languages"
"""The configuration of XNLI that holds each pair in every language."""

LabelReader = Callable[[str], "int | float | None"]


def read_hub(task: str, name: str | Path, languages: Sequence[str] = ()) -> TaskData:
    """A task's splits under the names that `limbeck.tasks.glue.read_glue` and `limbeck.tasks.xnli.read_xnli` give them.

    Args:
        task: one of GLUE's, or XNLI, in any spelling.
        name: the data set.
        languages: of XNLI; all that are there if empty.

    Raises:
        UserError: there is no such task, the data set cannot be had or has none of its splits or columns, or too many rows do
            not fit; says which.
    """
    if squeezed(task) == squeezed(XNLI.name):
        return _read_xnli(name, languages)
    glue, short = glue_task(task), squeezed(task)
    sources = _sources(name, short)
    splits = {}
    for split in glue.files:
        if source := sources.get(split):
            label = label_reader(glue.task, unlabelled=split.startswith("test"))
            splits[split] = _read_split(source, split, TEXTS.get(short, glue.texts), label)
    if not splits:
        there = ", ".join(sources) or "nothing"
        raise UserError(f"{name} has no split of {glue.task.name}: expected are {', '.join(glue.files)}, not {there}.")
    return task_data(glue.task, splits)


def read_hub_questions(name: str | Path) -> dict[str, QuestionFile]:
    """The questions of a data set in SQuAD's form, such as datasets:rajpurkar/squad_v2, by split: "train", "dev", "test".

    Raises:
        UserError: the data set cannot be had or lacks a column, or a row is broken; says which.
    """
    if not (sources := data_set_sources(name)):
        raise UserError(f"{name} holds no data set, saved by datasets or as Parquet such as train.parquet; check the folder.")
    return {split: _read_questions(source) for split, source in sources.items()}


def is_data_set(task: str, name: str | Path) -> bool:
    """Whether `read_hub` is to read this, and not the reader of the task's own files; nothing is fetched.

    Raises:
        UserError: there is no such folder.
    """
    return str(name).startswith(HUB) or any(data_set_sources(folder) for folder in folders(Path(name), task, GLUE))


def _sources(name: str | Path, task: str) -> dict[str, Source]:
    """The splits of the data set in which a task is: its configuration on the hub, or the folder that holds it."""
    if str(name).startswith(HUB):
        return data_set_sources(name if _configuration(name) else f"{name}:{task}")
    found = (data_set_sources(folder) for folder in folders(Path(name), task, GLUE))
    return next((sources for sources in found if sources), {})


def _configuration(name: str | Path) -> str:
    """The configuration that a name on the hub tells; nothing if it tells none."""
    return str(name).removeprefix(HUB).partition(":")[2].partition(":")[0]


def _read_split(source: Source, name: str, columns: tuple[str, ...], label: LabelReader) -> Split:
    table = source.open((*columns, LABEL))
    examples, bad = sift(table.rows, partial(_example, table.cells, columns, label), table.unit)
    return checked(Split(name, source.path, tuple(examples), tuple(bad)))


def _example(cells: Callable[[Any], Cells], columns: Sequence[str], label: LabelReader, number: int, row: Any) -> Example:
    *texts, written = cells(row)
    return make_example([text_cell(*cell) for cell in zip(columns, texts, strict=True)], label(_written(written)), number)


def _written(label: Any) -> str:
    """A label as the task's own files write it."""
    if label is None or isinstance(label, str):
        return label or ""
    if not isinstance(label, int | float):
        raise Unfit(f"the label {str(label)[:40]!r} is neither a name nor a number")
    return f"{label:g}"  # without the digits that 32 bits add to a score such as 3.8


def _read_questions(source: Source) -> QuestionFile:
    table = source.open(QUESTION)
    rows, bad = sift(table.rows, lambda number, row: (number, dict(zip(QUESTION, table.cells(row), strict=True))), table.unit)
    if bad:
        raise UserError(f"{source.path}, {bad[0].place}: {bad[0].problem}.")
    return questions_of_rows(rows, str(source.path))


def _read_xnli(name: str | Path, languages: Sequence[str]) -> TaskData:
    check_languages(languages)
    splits: dict[str, Split] = {}
    for language, sources in _spoken(name, languages):
        for part in PARTS:
            if source := sources.get(part):
                splits |= _read_pairs(source, part, [language] if language else list(languages or LANGUAGES))
    if not splits:
        raise UserError(f"{name} has no split of XNLI: expected are {', '.join(PARTS)} of a language or {ALL_LANGUAGES}.")
    if missing := [language for language in languages if not any(f"{part}-{language}" in splits for part in PARTS)]:
        raise UserError(f"{name} holds nothing of XNLI in {', '.join(missing)}; name another configuration or folder.")
    return task_data(XNLI, {**joint_dev(splits, Path(name)), **splits})


def _spoken(name: str | Path, languages: Sequence[str]) -> Sequence[tuple[str | None, dict[str, Source]]]:
    """Each language with its splits, or None with those of all languages in one."""
    if str(name).startswith(HUB):
        if configuration := _configuration(name):
            return [(configuration if configuration in LANGUAGES else None, data_set_sources(name))]
        if not languages:
            return [(None, data_set_sources(f"{name}:{ALL_LANGUAGES}"))]
        return [(language, data_set_sources(f"{name}:{language}")) for language in languages]
    for folder in folders(Path(name), XNLI.name):
        inner = [(each, data_set_sources(folder / each)) for each in languages or LANGUAGES]
        if found := [(language, sources) for language, sources in inner if sources]:
            return found
        if sources := data_set_sources(folder / ALL_LANGUAGES) or data_set_sources(folder):
            return [(folder.name if folder.name in LANGUAGES else None, sources)]
    return []


def _read_pairs(source: Source, part: str, languages: Sequence[str]) -> dict[str, Split]:
    """A split in each of the languages, in which a pair has the same group."""
    table = source.open((*NLI_TEXTS, LABEL))
    rows, broken = sift(table.rows, lambda number, row: (number, table.cells(row)), table.unit)
    together, label = 1 if part == "train" else HYPOTHESES, label_reader(XNLI, unlabelled=part == "test")
    splits = {}
    for language in languages:
        make = partial(_pair, language, len(languages) == 1, together, label)
        examples, bad = sift(rows, make, table.unit)
        name = f"{part}-{language}"
        splits[name] = checked(Split(name, source.path, tuple(examples), (*broken, *bad)))
    return splits


def _pair(language: str, alone: bool, together: int, label: LabelReader, number: int, cells: Cells) -> Example:
    *texts, written = cells
    said = [text_cell(column, _translation(text, language, alone)) for column, text in zip(NLI_TEXTS, texts, strict=True)]
    return make_example(said, label(_written(written)), number, str((number - 1) // together))


def _translation(cell: Any, language: str, alone: bool) -> Any:
    """What a cell holds in a language: it is a text, a mapping from languages, or a list of them beside one of texts."""
    if not isinstance(cell, dict):
        if not alone:
            raise Unfit("it is in one language only, which the name must tell, as in datasets:facebook/xnli:de")
        return cell
    if "translation" in cell:
        cell = dict(zip(cell["language"], cell["translation"], strict=True))
    if cell.get(language) is None:
        raise Unfit(f"it is not there in {language}")
    return cell[language]
