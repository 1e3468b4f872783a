"""GLUE (https://gluebenchmark.com): its tasks in one table, their official files, and the leaderboard's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from limbeck.errors import UserError
from limbeck.tasks.examples import Example, Split
from limbeck.tasks.folders import find_file, folders, squeezed
from limbeck.tasks.rows import Columns, checked, label_reader, make_example, named, sift, tsv_rows
from limbeck.tasks.task import Task, TaskData, task_data
from limbeck.text import nearest

OFFICIAL = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE, and how its files are written."""

    task: Task
    texts: tuple[str, ...]
    """The columns of the one text or the two."""
    label: str
    """The label's column, which test files need not have."""
    bare: Columns | None = None
    """Where texts and label stand in files without a header, if the task has such."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: OFFICIAL)
    """The names that each split's file may have."""
    submitted: Mapping[str, str] = field(default_factory=dict)
    """The names of the leaderboard's files; where it says nothing, the task's own."""


ENTAILMENT = ("entailment", "not_entailment")
NLI = ("entailment", "neutral", "contradiction")
DIGITS = ("0", "1")
BOTH = ("accuracy", "f1")
SENTENCES = ("sentence1", "sentence2")


def _classes(
    name: str, metrics: tuple[str, ...], labels: tuple[str, ...], written: tuple[str, ...] = (), dev: str = "dev"
) -> Task:
    return Task(name, "classification", metrics, labels, written, dev=dev)


GLUE = {
    "cola": GlueTask(
        _classes("CoLA", ("matthews",), ("unacceptable", "acceptable"), DIGITS), ("sentence",), "label", Columns((3, 1), (4, 4))
    ),
    "sst2": GlueTask(_classes("SST-2", ("accuracy",), ("negative", "positive"), DIGITS), ("sentence",), "label"),
    "mrpc": GlueTask(_classes("MRPC", BOTH, ("not_equivalent", "equivalent"), DIGITS), ("#1 String", "#2 String"), "Quality"),
    "stsb": GlueTask(
        Task("STS-B", "regression", ("spearman", "pearson"), range=(0.0, 5.0)),
        SENTENCES,
        "score",
        Columns((5, 6, 4), (7, 9)),
        {"train": ("train.tsv", "sts-train.csv"), "dev": ("dev.tsv", "sts-dev.csv"), "test": ("test.tsv", "sts-test.csv")},
    ),
    "qqp": GlueTask(_classes("QQP", BOTH, ("not_duplicate", "duplicate"), DIGITS), ("question1", "question2"), "is_duplicate"),
    "mnli": GlueTask(
        _classes("MNLI", ("accuracy",), NLI, dev="dev_matched"),
        SENTENCES,
        "gold_label",
        files={
            "train": ("train.tsv",),
            **{f"{part}_{kind}": (f"{part}_{kind}.tsv",) for part in ("dev", "test") for kind in ("matched", "mismatched")},
        },
        submitted={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    ),
    "qnli": GlueTask(_classes("QNLI", ("accuracy",), ENTAILMENT), ("question", "sentence"), "label"),
    "rte": GlueTask(_classes("RTE", ("accuracy",), ENTAILMENT), SENTENCES, "label"),
    "wnli": GlueTask(_classes("WNLI", ("accuracy",), ("not_entailment", "entailment"), DIGITS), SENTENCES, "label"),
}
"""Each task by its short name. The files that hold digits also say by them which class is which."""


def glue_task(name: str) -> GlueTask:
    """The task of that name, in any spelling: sst2, SST-2.

    Raises:
        UserError: GLUE has none.
    """
    if (short := squeezed(name)) not in GLUE:
        raise UserError(f"GLUE has no task {name!r}{nearest(short, GLUE) or '.'} Its tasks: {', '.join(GLUE)}.")
    return GLUE[short]


def glue_of(task: Task) -> GlueTask | None:
    """The row of a task; None if it is none of GLUE's."""
    return next((glue for glue in GLUE.values() if glue.task == task), None)


def read_glue(name: str, data: Path) -> TaskData:
    """A task's splits: every one whose file is there.

    Args:
        name: the task, in any spelling.
        data: a folder of tasks (SST-2/train.tsv, or glue/SST-2/train.tsv), or the task's own folder.

    Raises:
        UserError: there is no such task or no file of it, or a file cannot be read or is not in GLUE's format.
    """
    glue = glue_task(name)
    others = [other.task.name for other in GLUE.values()]
    for folder in folders(data, glue.task.name, others):
        found = {split: find_file(folder, names) for split, names in glue.files.items()}
        splits = {split: read_split(glue, path, split) for split, path in found.items() if path}
        if splits:
            return task_data(glue.task, splits)
    files = ", ".join(names[0] for names in glue.files.values())
    raise UserError(f"{data} holds no file of {glue.task.name}: expected are {files} in {glue.task.name}/ or right there.")


def read_split(glue: GlueTask, path: Path, name: str) -> Split:
    """One file of a task.

    Args:
        glue: the task.
        path: a file in the task's official format; it may be compressed.
        name: the split; one whose name begins with test need not be labelled.

    Raises:
        UserError: the file cannot be read, lacks a column, or holds too many rows that do not fit; names file and line.
    """
    rows: Iterator[tuple[int, list[str]]] = tsv_rows(path)
    if (first := next(rows, None)) is None:
        raise UserError(f"{path} is empty; fetch it again.")
    test = name.startswith("test")
    if glue.bare is not None and glue.texts[-1] not in first[1]:
        columns, rows = glue.bare, chain([first], rows)
    else:
        columns = named(path, first[1], (*glue.texts, glue.label), optional=(glue.label,) if test else ())
    make = partial(_example, columns, label_reader(glue.task, unlabelled=test))
    examples, bad = sift(rows, make)
    return checked(Split(name, path, tuple(examples), tuple(bad)))


def _example(columns: Columns, label: Callable[[str], int | float | None], line: int, row: Sequence[str]) -> Example:
    *texts, written = columns.of(row)
    return make_example([text or "" for text in texts], None if written is None else label(written), line)
