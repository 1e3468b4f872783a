"""Which questions are trained on and which are kept to evaluate: files in SQuAD's JSON, their languages and their splits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from limbeck.errors import UserError
from limbeck.tasks.answer_scores import LANGUAGES
from limbeck.tasks.folders import find_file, folders
from limbeck.tasks.holdout import held_groups
from limbeck.tasks.squad import QUESTIONS, Question, QuestionFile, read_squad
from limbeck.text import count

PARALLEL = ("mlqa", "xquad")
"""Those whose files are translations of each other, a question having the same id in all of them."""
FOLDERS = {"tydiqa": ("tydiqa", "tydiqa_goldp")}
"""What a task's folder may be called besides the task's own name."""
SQUAD_FILES = (("train-v2.0.json", "dev-v2.0.json"), ("train-v1.1.json", "dev-v1.1.json"))
"""The names of SQuAD's own files, the version that is taken first at the front."""
ENDINGS = (".json", ".json.gz")
DEV = "dev"
"""What the split is called that holds the questions of several files."""


@dataclass(frozen=True)
class QuestionData:
    """The questions of a task."""

    name: str
    train: tuple[Question, ...]
    """All of which it is known what a model should point at."""
    splits: Mapping[str, tuple[Question, ...]]
    """Those to evaluate on: the joint split, if there are several files, and each file's."""
    selecting: str
    """The split that selects among models: the joint one, or the only one."""
    notes: tuple[str, ...]
    """What the user should be told."""


@dataclass(frozen=True)
class NamedFile:
    """A file, and what its name says of it."""

    path: Path
    part: Literal["train", "dev", "test"]
    language: str | None
    """That of its passages and answers; None if the name does not tell."""
    asked: str | None
    """That of its questions."""

    @classmethod
    def of(cls, path: Path) -> NamedFile:
        """Read a name such as dev-context-de-question-de.json, xquad.de.json or tydiqa.goldp.en.train.json.gz."""
        words = re.split(r"[^a-z0-9]+", path.name.lower())
        spoken = [word for word in words if word in LANGUAGES]
        part: Literal["train", "dev", "test"] = "train" if "train" in words else "test" if "test" in words else "dev"
        return cls(path, part, *((spoken[0], spoken[-1]) if spoken else (None, None)))

    @property
    def split(self) -> str:
        """What its split is called: dev-de, or dev-de-en where questions in English are asked of German passages."""
        if self.language is None:
            stem = self.path.name.partition(".json")[0]
            return stem if stem.startswith(("dev-", "test-")) else f"dev-{stem}"
        languages = [self.language] if self.asked == self.language else [self.language, self.asked]
        return "-".join(["test" if self.part == "test" else DEV, *map(str, languages)])

    def speaks(self, languages: Sequence[str]) -> bool:
        """Whether it is in some of these languages; any will do if there are none."""
        return not languages or {self.language, self.asked} <= {*languages}


def read_questions(
    task: str,
    data: Sequence[Path],
    *,
    dev: Path | float | None = None,
    languages: Sequence[str] = (),
    train_languages: Sequence[str] = (),
) -> QuestionData:
    """Read what a task is trained and evaluated on.

    A file that is named is taken whatever its language; of a folder those in the languages are taken.

    Args:
        task: one of QUESTIONS.
        data: files to train on, or the folder of the task's files, or one that holds it.
        dev: a file or a folder of files to evaluate on; or the share of the articles that is kept to evaluate on, which of a
            folder without training files are its dev files'; None for the folder's own dev files.
        languages: of a folder's files to evaluate on; all that are there if empty.
        train_languages: likewise of those to train on.

    Raises:
        UserError: a file cannot be read, is not there, or nothing is left to train on or to evaluate on.
    """
    found = [_found(task, path) for path in data]
    files = _Files(None if task == "squad" else task)
    if isinstance(dev, float):
        trained, kept = files.divided([each.pool for each in found], dev, languages, train_languages)
    else:
        training = chain.from_iterable(each.trained(train_languages) for each in found)
        trained = files.read(training)
        kept = files.read(_evaluated(task, found, dev, languages))
    train = tuple(question for questions in trained.values() for question in questions)
    known = tuple(question for question in train if question.trainable)
    if not known:
        raise UserError(f"{', '.join(map(str, data))}: there is no question left to train on; name more files.")
    notes = [*files.remarks]
    if len(known) < len(train):
        notes.append(f"{count(len(train) - len(known))} questions are not trained on: it is unknown where their answer is")
    splits = _splits(kept)
    selecting = next(iter(splits))
    trained_on = {*known}
    if both := sum(question in trained_on for question in splits[selecting]):
        notes.append(f"{count(both)} of {count(len(splits[selecting]))} questions to evaluate on are trained on, too")
    return QuestionData(QUESTIONS[task], known, splits, selecting, tuple(notes))


def read_evaluated(task: str, path: Path, languages: Sequence[str] = ()) -> QuestionData:
    """Read what a model is evaluated on that is not trained any more: a file, or the files of a folder that are not to train on.

    Raises:
        UserError: a file cannot be read, or there is none.
    """
    files = _Files(None if task == "squad" else task)
    splits = _splits(files.read(_evaluated(task, (), path, languages)))
    return QuestionData(QUESTIONS[task], (), splits, next(iter(splits)), tuple(files.remarks))


def of_data_set(task: str, name: str, files: Mapping[str, QuestionFile]) -> QuestionData:
    """The splits "train" and "dev" of a data set in SQuAD's form.

    Args:
        task: one of QUESTIONS.
        name: the data set's.
        files: split -> its questions.

    Raises:
        UserError: one of the two splits is not there.
    """
    if missing := [split for split in ("train", DEV) if split not in files]:
        raise UserError(f"{name} has no split {' nor '.join(missing)}, only {', '.join(files)}; name files as data and dev.")
    train = tuple(question for question in files["train"].questions if question.trainable)
    notes = tuple(f"{split}: {remark}" for split, file in files.items() for remark in file.remarks)
    kept = {split: file.questions for split, file in files.items() if split != "train"}
    return QuestionData(QUESTIONS[task], train, kept, DEV, notes)


@dataclass(frozen=True)
class _Found:
    """The files that one of the paths to train on stands for."""

    path: Path
    train: tuple[NamedFile, ...]
    dev: tuple[NamedFile, ...] = ()
    named: bool = False
    """Whether it is a file itself."""

    @property
    def pool(self) -> _Found:
        """What may be divided: the files to train on, or where there are none those to evaluate on."""
        return _Found(self.path, self.train or self.dev, named=self.named)

    def trained(self, languages: Sequence[str]) -> list[NamedFile]:
        """Those to train on."""
        if not self.train:
            raise UserError(
                f"{self.path} holds no file to train on; name such files as data and give this folder as dev, or give dev a "
                "share such as 0.5 to train on the rest of what is here."
            )
        return list(self.train) if self.named else _spoken(self.path, self.train, languages)


class _Files:
    """Questions of files, each of which is read once.

    Args:
        task: decides by which rules answers are compared and what is a translation; None for SQuAD.
    """

    def __init__(self, task: str | None) -> None:
        self._task = task
        self._read: dict[Path, QuestionFile] = {}

    @property
    def remarks(self) -> list[str]:
        """What should be known of the files."""
        return [f"{path.name}: {remark}" for path, file in self._read.items() for remark in file.remarks]

    def read(self, files: Iterable[NamedFile]) -> dict[NamedFile, tuple[Question, ...]]:
        """The questions of each file."""
        for file in (files := list(files)):
            if file.path not in self._read:
                self._read[file.path] = read_squad(file.path, None if self._task is None else file.language)
        return {file: self._read[file.path].questions for file in files}

    def divided(
        self, pools: Sequence[_Found], share: float, languages: Sequence[str], train_languages: Sequence[str]
    ) -> tuple[dict[NamedFile, tuple[Question, ...]], dict[NamedFile, tuple[Question, ...]]]:
        """Questions to train on, and about a share of all articles that is kept out of them."""
        trained = self.read(chain.from_iterable(pool.trained(train_languages) for pool in pools))
        asked = self.read(
            chain.from_iterable(pool.train if pool.named else _spoken(pool.path, pool.train, languages) for pool in pools)
        )
        group = _groups([*trained.values(), *asked.values()], self._task in PARALLEL)
        held = held_groups(group.values(), share)
        kept = {file: tuple(each for each in questions if group[each.article] in held) for file, questions in asked.items()}
        rest = {file: tuple(each for each in questions if group[each.article] not in held) for file, questions in trained.items()}
        if not any(rest.values()) or not any(kept.values()):
            names = ", ".join(str(pool.path) for pool in pools)
            raise UserError(f"{names}: {count(len({*group.values()}))} articles are too few to hold out a share of {share}.")
        return rest, {file: questions for file, questions in kept.items() if questions}


def _groups(files: Sequence[Sequence[Question]], parallel: bool) -> dict[str, str]:
    """For each article the name of those it must stay together with.

    Articles that share a passage belong together, and in files that are translations of each other those that share a
    question's id. The name is the first of theirs in order.
    """
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for question in chain.from_iterable(files):
        article = ("article", question.article)
        parent[root(article)] = root(("passage", question.passage))
        if parallel:
            parent[root(article)] = root(("id", question.id))
    articles = sorted(name for kind, name in parent if kind == "article")
    names: dict[tuple[str, str], str] = {}
    return {name: names.setdefault(root(("article", name)), name) for name in articles}


def _found(task: str, path: Path) -> _Found:
    if not path.is_dir():
        return _Found(path, (NamedFile.of(path),), named=True)
    folder, files = _folder(task, path)
    if not files:
        example = " or ".join(SQUAD_FILES[0] if task == "squad" else ("xquad.de.json", "dev-context-de-question-de.json"))
        raise UserError(f"{path} holds no file of {QUESTIONS[task]} such as {example}; check the folder, or name the files.")
    train = tuple(file for file in files if file.part == "train")
    return _Found(folder, train, tuple(file for file in files if file.part != "train"))


def _folder(task: str, path: Path) -> tuple[Path, list[NamedFile]]:
    """The folder in which a task's files lie, and these."""
    for folder in chain.from_iterable(folders(path, name, QUESTIONS) for name in FOLDERS.get(task, (task,))):
        if files := _squad_files(folder) if task == "squad" else _spoken_files(folder):
            return folder, files
    return path, []


def _squad_files(folder: Path) -> list[NamedFile]:
    """The training and dev file of one version of SQuAD: of the first that is there to train on, else to evaluate on."""
    versions = [[find_file(folder, [name]) for name in names] for names in SQUAD_FILES]
    best = next((pair for pair in versions if pair[0]), None) or next((pair for pair in versions if pair[1]), [])
    return [NamedFile.of(path) for path in best if path is not None]


def _spoken_files(folder: Path) -> list[NamedFile]:
    return [file for file in map(NamedFile.of, _json_files(folder)) if file.language is not None]


def _json_files(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_file() and entry.name.lower().endswith(ENDINGS))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from error


def _spoken(folder: Path, files: Sequence[NamedFile], languages: Sequence[str]) -> list[NamedFile]:
    """Those files in some languages; those whose name tells none are in any."""
    there = {language for file in files for language in (file.language, file.asked)}
    if there != {None} and (missing := [language for language in languages if language not in there]):
        named = ", ".join(sorted(language for language in there if language))
        raise UserError(f"{folder} holds no such file in {', '.join(missing)}; there are {named}.")
    return [file for file in files if file.language is None or file.speaks(languages)]


def _evaluated(task: str, found: Sequence[_Found], dev: Path | None, languages: Sequence[str]) -> list[NamedFile]:
    if dev is None:
        own = [file for each in found for file in _spoken(each.path, each.dev, languages)]
        if not own:
            beside = ", ".join(str(each.path) for each in found)
            raise UserError(
                f"There is nothing to evaluate {QUESTIONS[task]} on beside {beside}; give dev a file, a folder of files, or a "
                "share of the articles such as 0.1."
            )
        return own
    if not dev.is_dir():
        return [NamedFile.of(dev)]
    _, files = _folder(task, dev)
    files = [file for file in files or map(NamedFile.of, _json_files(dev)) if file.part != "train"]
    if not files:
        raise UserError(f"{dev} holds no JSON file of questions to evaluate on; check the folder.")
    return _spoken(dev, files, languages)


def _splits(kept: Mapping[NamedFile, tuple[Question, ...]]) -> dict[str, tuple[Question, ...]]:
    """The splits of the files, the one that selects at the front."""
    if len(kept) == 1:
        ((file, questions),) = kept.items()
        return {DEV if file.language is None else file.split: questions}
    names = Counter(file.split for file in kept)
    for name, times in names.items():
        if times > 1:
            paths = ", ".join(str(file.path) for file in kept if file.split == name)
            raise UserError(f"{paths} would all be the split {name}; give only one of them.")
    selecting = [questions for file, questions in kept.items() if file.part != "test"] or kept.values()
    return {DEV: tuple(chain.from_iterable(selecting)), **{file.split: questions for file, questions in kept.items()}}
