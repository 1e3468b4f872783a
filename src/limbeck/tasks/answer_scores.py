"""What answers are worth: exact match and F1 of their words, as SQuAD and MLQA count them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from limbeck.errors import UserError
from limbeck.tasks.answers import Prediction
from limbeck.tasks.squad import Question, has_unanswerable

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENGLISH_ARTICLES = r"\b(?:a|an|the)\b"
ARTICLES = {
    "en": ENGLISH_ARTICLES,
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",  # wherever it stands, as MLQA's own evaluation has it
}
"""What does not count as a word, by language, as a regular expression."""
LANGUAGES = (*ARTICLES, "hi", "zh", "bn", "el", "fi", "id", "ko", "ro", "ru", "sw", "te", "th", "tr")
"""The languages of MLQA, XQuAD and TyDi QA GoldP. Those that MLQA lacks are counted by its rules, without articles."""
HAN = re.compile("([\u4e00-\u9fa5])")


def normalised(text: str, language: str | None = None) -> str:
    """An answer as it is compared: lower case, without punctuation and articles, one blank between words.

    Args:
        text: an answer.
        language: None for SQuAD's own rules (ASCII punctuation, English articles), which published results on XQuAD and
            TyDi QA use for every language; else one of LANGUAGES by MLQA's rules (punctuation of every script, that
            language's articles, Chinese characters are words; all other languages, Thai too, have words between blanks).

    Raises:
        UserError: there is no such language.
    """
    if language is not None and language not in LANGUAGES:
        raise UserError(f"There are no rules to compare answers in {language!r}; choose one of {', '.join(sorted(LANGUAGES))}.")
    articles = ENGLISH_ARTICLES if language is None else ARTICLES.get(language)
    kept = "".join(character for character in text.lower() if not _punctuation(character, unicode=language is not None))
    if articles:
        kept = re.sub(articles, " ", kept)
    if language == "zh":
        kept = HAN.sub(r" \1 ", kept)
    return " ".join(kept.split())


def _punctuation(character: str, *, unicode: bool) -> bool:
    return character in string.punctuation or (unicode and unicodedata.category(character).startswith("P"))


def f1(answer: str, gold: str, *, empty_counts: bool) -> float:
    """The harmonic mean of precision and recall of the words of two normalised answers, between 0 and 1.

    Args:
        answer: what is judged.
        gold: what it is held against.
        empty_counts: two answers without a word agree (SQuAD 2.0), or score 0 (SQuAD 1.1 and MLQA).
    """
    words, gold_words = answer.split(), gold.split()
    if empty_counts and not (words and gold_words):
        return float(words == gold_words)
    same = (Counter(words) & Counter(gold_words)).total()
    return 2 * same / (len(words) + len(gold_words)) if same else 0.0


@dataclass(frozen=True)
class AnswerScores:
    """Scores of answers, between 0 and 1."""

    exact: NDArray[np.float64]
    """(questions,) 1 where an answer equals a gold."""
    f1: NDArray[np.float64]
    """(questions,) the F1 with the gold that fits best."""


def score(questions: Sequence[Question], answers: Sequence[str]) -> AnswerScores:
    """Score an answer to each question; it is SQuAD 2.0's evaluation where a question has none, and else SQuAD 1.1's.

    Args:
        questions: with their golds and the language by whose rules they are compared.
        answers: as texts; "" where there is none.
    """
    unanswerable = has_unanswerable(questions)
    exact, overlap = [], []
    for question, text in zip(questions, answers, strict=True):
        answer = normalised(text, question.language)
        golds = {normalised(gold.text, question.language) for gold in question.answers}
        if unanswerable:
            golds = golds - {""} or {""}
        exact.append(float(answer in golds))
        overlap.append(max(f1(answer, gold, empty_counts=unanswerable) for gold in golds))
    return AnswerScores(np.array(exact), np.array(overlap))


def best_threshold(
    scores: NDArray[np.float64], no_answer: NDArray[np.float64], answerable: NDArray[np.bool_], spoken: NDArray[np.bool_]
) -> tuple[float, float]:
    """The threshold on `Prediction.no_answer` that gives the best mean score, and that score; every one is tried.

    Args:
        scores: (questions,) of the best spans, whatever "no answer" scores.
        no_answer: (questions,) answers are given where this is at most the threshold.
        answerable: (questions,) whether the passage answers the question.
        spoken: (questions,) whether there is a best span at all.

    Returns:
        The lowest such threshold: one of `no_answer`, or just below all of them where it is best never to answer; the mean.
    """
    silent = float((~answerable).sum())  # an unanswerable question scores 1 as long as nothing is said
    gain = np.where(answerable, scores, -1.0 * spoken)
    levels, places = np.unique(no_answer, return_inverse=True)
    totals = np.cumsum(np.bincount(places, weights=gain))
    best = int(totals.argmax())
    if totals[best] <= 0:
        return float(np.nextafter(levels[0], -np.inf)), silent / len(scores)
    return float(levels[best]), float(silent + totals[best]) / len(scores)


def evaluate(questions: Sequence[Question], predictions: Sequence[Prediction], *, threshold: float = 0.0) -> dict[str, float]:
    """The figures of SQuAD's evaluation, in percent.

    Args:
        questions: at least one.
        predictions: for each of them.
        threshold: by how much "no answer" must score better to be the answer; read only where some question has none.

    Returns:
        exact, f1, questions. Where some question has no answer also these of the answerable ones (has_answer_...) and of
        the others (no_answer_...), the best that any threshold gives on these same questions (best_exact, best_f1) with
        the threshold itself (best_exact_threshold, best_f1_threshold), and what never answering scores (always_null_exact,
        always_null_f1).
    """
    if not has_unanswerable(questions):
        return _means(score(questions, [prediction.text for prediction in predictions]))
    answerable = np.array([question.answerable for question in questions])
    spans = [prediction.text for prediction in predictions]
    scores = score(questions, [prediction.answer(threshold) for prediction in predictions])
    raw = score(questions, spans)
    null = score(questions, [""] * len(spans))
    no_answer = np.array([prediction.no_answer for prediction in predictions])
    result = _means(scores)
    result |= _means(scores, answerable, "has_answer_") | _means(scores, ~answerable, "no_answer_")
    for name, values in (("exact", raw.exact), ("f1", raw.f1)):
        level, best = best_threshold(values, no_answer, answerable, np.array([bool(span) for span in spans]))
        result |= {f"best_{name}": 100 * best, f"best_{name}_threshold": level}
    return result | {"always_null_exact": 100 * float(null.exact.mean()), "always_null_f1": 100 * float(null.f1.mean())}


def _means(scores: AnswerScores, chosen: NDArray[np.bool_] | None = None, name: str = "") -> dict[str, float]:
    exact, overlap = (scores.exact, scores.f1) if chosen is None else (scores.exact[chosen], scores.f1[chosen])
    means = {f"{name}exact": exact, f"{name}f1": overlap} if len(exact) else {}
    return {key: 100 * float(values.mean()) for key, values in means.items()} | {f"{name}questions": float(len(exact))}
