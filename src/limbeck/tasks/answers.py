"""From a model's scores of starts and ends to answers, each a slice of the passage itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from limbeck.errors import CheckFailed
from limbeck.tasks.squad import Question
from limbeck.tasks.windows import NULL, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Candidate:
    """A span of the passage that may be the answer."""

    text: str
    start: int
    """Its first character in the passage; `text` is the passage from there on."""
    score: float
    """The logit of its first token as a start plus that of its last as an end."""


@dataclass(frozen=True)
class Prediction:
    """What a model answers to one question."""

    candidates: tuple[Candidate, ...]
    """The best spans, best first; none only where the passage has no token."""
    null_score: float
    """The lowest sum of start and end logit at NULL among the question's windows."""

    @property
    def text(self) -> str:
        """The best span."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def no_answer(self) -> float:
        """How much better "no answer" scores than the best span."""
        return self.null_score - self.candidates[0].score if self.candidates else np.inf

    def answer(self, threshold: float = 0.0) -> str:
        """The best span, or nothing where "no answer" scores better by more than `threshold`."""
        return "" if self.no_answer > threshold else self.text


def predict(
    questions: Sequence[Question],
    windows: Sequence[Window],
    starts: Sequence[NDArray[np.floating]],
    ends: Sequence[NDArray[np.floating]],
    *,
    candidates: int = 20,
    max_answer: int = 30,
) -> list[Prediction]:
    """The answers that a model's logits stand for.

    As in BERT's SQuAD script, a span begins at a token that its window shows in the most context, and "no answer" scores as
    in the window that believes least in it: every window must agree that there is nothing. Unlike there, all spans are
    looked at, not only those between the 20 best starts and ends.

    Args:
        questions: the questions whose windows these are.
        windows: every window of each of them.
        starts: for each window the start logits, (n,) or padded to more.
        ends: likewise the end logits.
        candidates: how many spans a question keeps.
        max_answer: tokens in a span.

    Raises:
        CheckFailed: a logit is not finite.
    """
    found: list[list[Candidate]] = [[] for _ in questions]
    null = [np.inf] * len(questions)
    for window, start, end in zip(windows, starts, ends, strict=True):
        start, end = (np.asarray(logits, dtype=np.float64)[: len(window.ids)] for logits in (start, end))
        question = questions[window.question]
        if not (np.isfinite(start).all() and np.isfinite(end).all()):
            raise CheckFailed(f"The model's scores for question {question.id!r} are not finite.")
        null[window.question] = min(null[window.question], float(start[NULL] + end[NULL]))
        found[window.question].extend(_spans(question.passage, window, start, end, candidates, max_answer))
    return [Prediction(_best(spans, candidates), score) for spans, score in zip(found, null, strict=True)]


def _spans(
    passage: str, window: Window, start: NDArray[np.float64], end: NDArray[np.float64], candidates: int, max_answer: int
) -> Iterator[Candidate]:
    """The best spans of one window."""
    tokens = len(window.spans)
    visible = window.spans[:, 0] < window.spans[:, 1]
    inside = slice(window.first, window.first + tokens)
    begins = np.where(window.chosen & visible, start[inside], -np.inf)
    finishes = np.append(np.where(visible, end[inside], -np.inf), np.full(max_answer - 1, -np.inf))
    if not tokens:
        return
    scores = (begins[:, None] + np.lib.stride_tricks.sliding_window_view(finishes, max_answer)).ravel()
    kept = min(candidates, len(scores))
    for place in np.argpartition(scores, len(scores) - kept)[-kept:].tolist():
        if scores[place] > -np.inf:
            token, more = divmod(place, max_answer)
            begin, stop = int(window.spans[token, 0]), int(window.spans[token + more, 1])
            yield Candidate(passage[begin:stop], begin, float(scores[place]))


def _best(spans: list[Candidate], candidates: int) -> tuple[Candidate, ...]:
    """The best spans, each once: tokens that share a character would give one twice."""
    ordered = sorted(spans, key=lambda span: (-span.score, span.start, len(span.text)))
    return tuple({(span.start, span.text): span for span in reversed(ordered)}.values())[::-1][:candidates]
