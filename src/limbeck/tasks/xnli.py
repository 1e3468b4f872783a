"""XNLI (https://arxiv.org/abs/1809.05053): natural language inference, the same pairs in fifteen languages.

Three ways of writing it are read: XTREME's dev-de.tsv (premise, hypothesis, label, no header), XNLI's own xnli.dev.tsv (all
languages in one file, with a header), and its translated training data, multinli.train.de.tsv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from limbeck.errors import UserError
from limbeck.tasks.examples import Example, Split
from limbeck.tasks.folders import find_file, folders
from limbeck.tasks.holdout import hold_out
from limbeck.tasks.rows import Columns, checked, label_reader, make_example, named, sift, tsv_rows
from limbeck.tasks.task import Task, TaskData, task_data
from limbeck.text import nearest

LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
XNLI = Task("XNLI", "classification", ("accuracy",), ("entailment", "neutral", "contradiction"))
"""Its dev split is that of all languages together: one model is selected for all of them."""
PARTS = ("train", "dev", "test")
HYPOTHESES = 3
"""Consecutive pairs of dev and test that share their premise."""
BARE = Columns((0, 1, 2), (3, 3))
"""Premise, hypothesis and label in files without a header."""


def read_xnli(data: Path, languages: Sequence[str] = ()) -> TaskData:
    """Every split of the languages, named "dev-de" and so on, and as "dev" that of all languages together.

    Translations of the same pair are in one group.

    Args:
        data: the folder of the files, or one that holds it as xnli.
        languages: all that are there if empty.

    Raises:
        UserError: there is no file, or none of a language asked for; a file cannot be read or has another format.
    """
    check_languages(languages)
    places = [(part, language) for part in PARTS for language in languages or LANGUAGES]
    for folder in folders(data, XNLI.name):
        found = {place: path for place in places if (path := find_file(folder, _names(*place)))}
        if found:
            break
    else:
        raise UserError(
            f"{data} holds no file of XNLI such as dev-{(*languages, 'en')[0]}.tsv or xnli.dev.tsv; check the folder."
        )
    if missing := [language for language in languages if language not in {language for _, language in found}]:
        raise UserError(f"{folder} holds no file of XNLI in {', '.join(missing)}.")
    splits = {f"{part}-{language}": read_language(path, part, language) for (part, language), path in found.items()}
    return task_data(XNLI, {**joint_dev(splits, folder), **splits})


def check_languages(languages: Sequence[str]) -> None:
    """Refuse a language that XNLI does not have.

    Raises:
        UserError: lists those it has.
    """
    for language in languages:
        if language not in LANGUAGES:
            raise UserError(
                f"XNLI has no language {language!r}{nearest(language, LANGUAGES) or '.'} It has {', '.join(LANGUAGES)}."
            )


def read_language(path: Path, part: str, language: str) -> Split:
    """One language's pairs of a file, which may hold other languages too.

    Args:
        path: in one of the three formats; it may be compressed.
        part: train, dev or test; only test may be without labels.
        language: such as "de".

    Raises:
        UserError: the file cannot be read, lacks a column, or holds too many rows that do not fit; names file and line.
    """
    rows: Iterator[tuple[int, list[str]]] = tsv_rows(path)
    if (first := next(rows, None)) is None:
        raise UserError(f"{path} is empty; fetch it again.")
    start, header = first
    if "gold_label" in header:
        columns = named(path, header, ("sentence1", "sentence2", "gold_label", "language", "promptID"))
        spoken = header.index("language")
        rows = (row for row in rows if row[1][spoken : spoken + 1] == [language])
    elif "hypo" in header:
        columns, start = named(path, header, ("premise", "hypo", "label")), start + 1
    else:
        columns, rows = BARE, chain([first], rows)
    together = 1 if part == "train" else HYPOTHESES
    examples, bad = sift(rows, partial(_example, columns, label_reader(XNLI, part == "test"), start, together))
    return checked(Split(f"{part}-{language}", path, tuple(examples), tuple(bad)))


def _example(
    columns: Columns, label: Callable[[str], int | float | None], start: int, together: int, line: int, row: Sequence[str]
) -> Example:
    """The pair of a row; its group is the prompt's number, or where the file tells none, that of its place."""
    premise, hypothesis, written, *rest = columns.of(row)
    group = rest[-1] if rest else str((line - start) // together)
    return make_example([premise or "", hypothesis or ""], label(written or ""), line, group)


def _names(part: str, language: str) -> list[str]:
    return [f"{part}-{language}.tsv", f"multinli.train.{language}.tsv" if part == "train" else f"xnli.{part}.tsv"]


def joint_dev(splits: Mapping[str, Split], source: Path) -> dict[str, Split]:
    """The dev splits of all languages as one named "dev"; nothing if there is none."""
    examples = chain.from_iterable(split.examples for name, split in splits.items() if name.startswith("dev-"))
    joint = Split("dev", source, tuple(examples))
    return {"dev": joint} if joint.examples else {}


def divided(data: TaskData, train_languages: Sequence[str], share: float | None) -> TaskData:
    """The task with a split "train" in some of its languages.

    Args:
        data: as `read_xnli` gives it.
        train_languages: to train on; ignored if empty.
        share: what of dev is kept to evaluate on where it is also trained on, divided by pair: all translations of a pair
            are on one side. None to train on the training files alone.

    Raises:
        UserError: there is nothing in these languages to train on.
    """
    part = "train" if share is None else "dev"
    there = [name.removeprefix(f"{part}-") for name in data.splits if name.startswith(f"{part}-")]
    if missing := [language for language in train_languages if language not in there]:
        hint = "" if share else "; give --dev a share, such as 0.5, to train on the rest of the dev files"
        raise UserError(f"There is no {part} file of XNLI in {', '.join(missing)} to train on{hint}.")
    if share is None:
        parts = [data.splits[f"train-{language}"] for language in train_languages or there]
        pool = tuple(chain.from_iterable(each.examples for each in parts))
        return replace(data, splits={"train": Split("train", parts[0].path, pool), **data.splits})
    _, held = hold_out(data.split("dev"), share)
    groups = {example.group for example in held.examples}
    splits = {
        name: replace(split, examples=tuple(each for each in split.examples if each.group in groups))
        for name, split in data.splits.items()
        if name.startswith("dev")
    }
    trained = chain.from_iterable(
        (each for each in data.splits[f"dev-{language}"].examples if each.group not in groups)
        for language in train_languages or there
    )
    others = {name: split for name, split in data.splits.items() if name.startswith("test")}
    return replace(data, splits={"train": Split("train", held.path, tuple(trained)), **splits, **others})
