"""Questions on passages in SQuAD's JSON: SQuAD 1.1 and 2.0, MLQA, XQuAD, TyDi QA GoldP."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from limbeck.errors import UserError
from limbeck.text import count

QUESTIONS = {"squad": "SQuAD", "mlqa": "MLQA", "xquad": "XQuAD", "tydiqa": "TyDi QA"}
"""The tasks of this kind, and what they are called."""
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Answer:
    """One of the answers that people gave."""

    text: str
    start: int | None
    """Its first character in the passage; None where the text is not found there, or more than once beside its offset."""


@dataclass(frozen=True)
class Question:
    """A question on a passage."""

    id: str
    text: str
    passage: str
    answers: tuple[Answer, ...]
    """None where the passage does not answer it."""
    article: str
    """What to split by, so that no article is in two parts: its title, or its number where it has none."""
    language: str | None = None
    """By whose rules answers are compared (`answer_scores.normalised`); None for SQuAD's own."""

    @property
    def answerable(self) -> bool:
        """Whether the passage answers it."""
        return bool(self.answers)

    @property
    def located(self) -> Answer | None:
        """The first answer whose place is known: the one that is trained."""
        return next((answer for answer in self.answers if answer.start is not None), None)

    @property
    def trainable(self) -> bool:
        """Whether it is known what a model should point at."""
        return not self.answers or self.located is not None


@dataclass(frozen=True)
class QuestionFile:
    """What a file holds."""

    questions: tuple[Question, ...]
    moved: int = 0
    """Answers whose text was not at their offset but at one other place, where they are now."""
    lost: tuple[str, ...] = ()
    """The ids of the questions with an answer whose text is not at its offset, and nowhere else or at several places."""
    renamed: int = 0
    """Questions whose id another one has too; "7" is then "7#2", "7#3"."""

    @property
    def remarks(self) -> list[str]:
        """What a person should know about it, a line each."""
        remarks = []
        if self.moved:
            remarks.append(f"{count(self.moved)} answers were not at their offset and were found elsewhere in the passage")
        if self.lost:
            named = ", ".join(self.lost[:3]) + (", ..." if len(self.lost) > 3 else "")
            remarks.append(f"{count(len(self.lost))} answers are not in their passage or not at one place only: {named}")
        if self.renamed:
            remarks.append(f"{count(self.renamed)} questions share an id with another one and were numbered")
        return remarks


def has_unanswerable(questions: Iterable[Question]) -> bool:
    """Whether these questions are of SQuAD 2.0's kind: the passage does not answer all of them."""
    return not all(question.answerable for question in questions)


def read_squad(path: Path, language: str | None = None) -> QuestionFile:
    """Read a file of questions, plain or gzip, which its content tells.

    Args:
        path: the file.
        language: that of its questions, as in `Question`.

    Raises:
        UserError: the file cannot be read or an entry is broken, naming the place; or a question stands in it twice.
    """
    data = _json(path)
    articles = data.get("data") if isinstance(data, dict) else None
    if not isinstance(articles, list):
        raise UserError(f'{path} is not in SQuAD\'s format: it must be an object with a list "data".')
    return _questions(list(_entries(articles, str(path))), str(path), language)


def questions_of_rows(rows: Iterable[tuple[int, Mapping[str, Any]]], source: str) -> QuestionFile:
    """Questions from rows as data sets have them: id, title, context, question and answers.

    Args:
        rows: each with its number; answers are lists of text and answer_start, empty where the passage does not answer.
        source: what people know them by.

    Raises:
        UserError: a row is broken, naming it; or a question stands there twice.
    """
    return _questions([_row_entry(row, f"{source}, row {number}") for number, row in rows], source, None)


def _questions(entries: list[_Entry], source: str, language: str | None) -> QuestionFile:
    if not entries:
        raise UserError(f"{source} holds no question.")
    _check_repetition(entries)
    names = _names(entries)
    questions: list[Question] = []
    moved, lost = 0, []
    for name, entry in zip(names, entries, strict=True):
        answers = tuple(_located(text, start, entry.passage) for text, start in entry.answers)
        for answer, (_, start) in zip(answers, entry.answers, strict=True):
            if answer.start is None:
                lost.append(name)
            else:
                moved += answer.start != start
        questions.append(Question(name, entry.question, entry.passage, answers, entry.article, language))
    times = Counter(entry.id for entry in entries)
    return QuestionFile(tuple(questions), moved, tuple(lost), sum(number for number in times.values() if number > 1))


class _Entry(NamedTuple):
    """A question as the file has it, with checked types."""

    place: str
    id: str
    question: str
    passage: str
    answers: list[tuple[str, int]]
    article: str


def _json(path: Path) -> Any:
    try:
        content = path.read_bytes()
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
        return json.loads(content.decode("utf-8-sig"))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is a broken compressed file ({error}); fetch it again.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it to UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); give files in SQuAD's JSON, or fetch it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _check_repetition(entries: list[_Entry]) -> None:
    places: dict[tuple[str, str, str], str] = {}
    for entry in entries:
        same = (entry.id, entry.question, entry.passage)
        if same in places:
            raise UserError(f"{entry.place}: the question {entry.id!r} stands in {places[same]} already; drop one of them.")
        places[same] = entry.place


def _names(entries: list[_Entry]) -> list[str]:
    """The ids, numbered where one returns: some copies of TyDi QA count the questions of each article from 0."""
    seen: Counter[str] = Counter()
    names = []
    for entry in entries:
        seen[entry.id] += 1
        names.append(entry.id if seen[entry.id] == 1 else f"{entry.id}#{seen[entry.id]}")
    return names


def _entries(articles: list[Any], file: str) -> Iterator[_Entry]:
    for number, article in enumerate(articles, start=1):
        place = f"{file}, article {number}"
        title = article.get("title") if isinstance(article, dict) else None
        name = title if isinstance(title, str) and title else str(number)
        for paragraph_number, paragraph in enumerate(_list(article, "paragraphs", place), start=1):
            paragraph_place = f"{place}, paragraph {paragraph_number}"
            passage = _text(paragraph, "context", paragraph_place)
            for question_number, entry in enumerate(_list(paragraph, "qas", paragraph_place), start=1):
                yield _entry(entry, f"{paragraph_place}, question {question_number}", passage, name)


def _entry(entry: Any, place: str, passage: str, article: str) -> _Entry:
    question = _text(entry, "question", place, blank=True)
    id_ = entry.get("id")
    if not isinstance(id_, str | int) or isinstance(id_, bool) or id_ == "":
        raise UserError(f'{place}: there is no "id".')
    impossible = entry.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise UserError(f'{place}: "is_impossible" is {impossible!r}; it must be true or false.')
    answers = [_answer(answer, place) for answer in _list(entry, "answers", place)]
    if impossible and answers:
        raise UserError(f'{place}: "is_impossible" is true, yet there is an answer; drop one of the two.')
    if not impossible and not answers:
        raise UserError(f'{place}: "answers" is empty and "is_impossible" is not true; give an answer or mark the question.')
    return _Entry(place, str(id_), question, passage, answers, article)


def _row_entry(row: Mapping[str, Any], place: str) -> _Entry:
    answers = row["answers"]
    texts, starts = (_list(answers, key, place) for key in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise UserError(f'{place}: "answers" has {len(texts)} of "text" but {len(starts)} of "answer_start".')
    listed = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    title = row["title"]
    article = title if isinstance(title, str) and title else place
    return _entry({**row, "answers": listed, "is_impossible": not listed}, place, _text(row, "context", place), article)


def _answer(answer: Any, place: str) -> tuple[str, int]:
    text = _text(answer, "text", f"{place}, an answer")
    start = answer.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise UserError(f'{place}: the "answer_start" of {text[:40]!r} is {start!r}; it must be a whole number of characters.')
    return text, start


def _list(value: Any, key: str, place: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise UserError(f'{place}: there is no list "{key}".')
    return found


def _text(value: Any, key: str, place: str, *, blank: bool = False) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise UserError(f'{place}: there is no text "{key}".')
    if not blank and not found.strip():
        raise UserError(f'{place}: "{key}" is empty.')
    if any("\ud800" <= character <= "\udfff" for character in found):
        raise UserError(f'{place}: "{key}" holds half of a surrogate pair, which is no character; mend or drop it.')
    return found


def _located(text: str, start: int, passage: str) -> Answer:
    if start >= 0 and passage.startswith(text, start):
        return Answer(text, start)
    found = passage.find(text)
    unique = found >= 0 and passage.find(text, found + 1) < 0
    return Answer(text, found if unique else None)
