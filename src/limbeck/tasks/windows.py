"""Windows: a question with a stretch of its passage, as many as it takes to show every token of the passage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from limbeck.data.batches import Frame
from limbeck.data.tokens import Ids, PlainTokenizer
from limbeck.errors import UserError
from limbeck.tasks.squad import Question

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

NULL = 0
"""The place in a window that stands for "no answer here": its first token, [CLS] or <s>."""
LENGTH_BONUS = 0.01
"""What a token of a window's length counts where windows show a token in equal context."""
PASSAGES = 1024
"""How many are tokenised at a time, since what comes of it is many times larger than what is kept."""


@dataclass(frozen=True)
class Window:
    """begin QUESTION end PASSAGE end, where RoBERTa has two ends in the middle."""

    question: int
    """Which of the questions it belongs to."""
    ids: NDArray[np.int64]
    """(n,) special tokens included."""
    first: int
    """The place of the first token of the passage: what stands before it is the first segment, the rest the second."""
    spans: NDArray[np.int64]
    """(tokens, 2) where each token of the passage begins and ends in it, in characters without surrounding white space."""
    chosen: NDArray[np.bool_]
    """(tokens,) whether of all windows this one shows the token in the most context; true in one window a token."""
    target: tuple[int, int]
    """The places in the window of the answer's first and last token; NULL twice where the window does not show all of it."""


class Windower:
    """Cuts questions and passages into windows.

    Neighbouring windows of a passage share `overlap` tokens (what transformers calls stride; BERT's own scripts call the
    step from one window to the next so). Questions longer than `max_question` lose their end.

    Args:
        tokenizer: a fast one with [CLS] and [SEP].
        max_length: tokens in a window, special ones included.
        overlap: tokens of the passage that a window shares with the one before it.
        max_question: tokens of a question.

    Raises:
        UserError: some question would leave no more room for the passage than windows share; with numbers that do.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, max_length: int = 384, overlap: int = 128, max_question: int = 64
    ) -> None:
        self._frame = Frame.of(tokenizer)
        special = self._frame.width("pairs")
        if overlap < 0 or max_question < 1:
            raise UserError(f"overlap is {overlap} and max_question {max_question}; they must be at least 0 and 1.")
        room = max_length - special - max_question
        if room <= overlap:
            fitting = max_length - special - overlap - 1
            choices = [f"a max_length of at least {max_length + overlap - room + 1}"]
            choices += [f"a max_question of at most {fitting}"] if fitting > 0 else []
            choices += [f"an overlap of at most {room - 1}"] if room > 0 else []
            raise UserError(
                f"Beside a question of {max_question} tokens and {special} special ones a window of {max_length} has room for "
                f"{max(0, room)} tokens of the passage, which must be more than the {overlap} that windows share; "
                f"choose {' or '.join(choices)}."
            )
        self._tokenizer = PlainTokenizer(tokenizer)
        self._max_length, self._overlap, self._max_question = max_length, overlap, max_question

    def __call__(self, questions: Sequence[Question]) -> list[Window]:
        """The windows of each question, one after the other."""
        texts = list({question.text: None for question in questions})
        asked = dict(zip(texts, self._tokenizer(texts), strict=True))
        read = self._read(list({question.passage: None for question in questions}))
        return [
            window
            for number, question in enumerate(questions)
            for window in self._windows(number, question, asked[question.text].astype(np.int64), read[question.passage])
        ]

    def _read(self, passages: list[str]) -> dict[str, _Passage]:
        read = {}
        for first in range(0, len(passages), PASSAGES):
            part = passages[first : first + PASSAGES]
            for text, (ids, offsets) in zip(part, self._tokenizer.with_offsets(part), strict=True):
                read[text] = _Passage.of(text, ids, offsets)
        return read

    def _windows(self, number: int, question: Question, asked: NDArray[np.int64], passage: _Passage) -> Iterator[Window]:
        begin, end = self._frame.begin, self._frame.end
        head = np.array([begin, *asked[: self._max_question], *[end] * self._frame.between], dtype=np.int64)
        room = self._max_length - len(head) - 1
        starts = np.arange(0, max(1, len(passage.ids) - self._overlap), room - self._overlap)
        ends = np.minimum(starts + room, len(passage.ids))
        owner = _most_context(starts, ends, len(passage.ids))
        answer = _tokens_of_answer(question, passage.spans)
        for place, (start, stop) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            shown = answer is not None and start <= answer[0] and answer[1] < stop
            offset = len(head) - start
            yield Window(
                question=number,
                ids=np.concatenate([head, passage.ids[start:stop], [end]]),
                first=len(head),
                spans=passage.spans[start:stop],
                chosen=owner[start:stop] == place,
                target=(answer[0] + offset, answer[1] + offset) if answer and shown else (NULL, NULL),
            )


@dataclass(frozen=True)
class _Passage:
    """A passage as tokens."""

    ids: NDArray[np.int64]
    spans: NDArray[np.int64]
    """As in Window."""

    @classmethod
    def of(cls, text: str, ids: Ids, offsets: NDArray[np.int64]) -> _Passage:
        spans = [_without_blanks(text, start, end) for start, end in offsets.tolist()]
        return cls(ids.astype(np.int64), np.array(spans, dtype=np.int64).reshape(-1, 2))


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """A token's span without the white space that byte-level and Unigram tokens begin with."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _most_context(starts: NDArray[np.int64], ends: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    """For each token the window that shows it in the most context, as BERT's SQuAD script decides it.

    Context is what stands on the side that shows less; longer windows win equal cases, then earlier ones.
    """
    places = np.arange(tokens)
    before, after = places - starts[:, None], ends[:, None] - 1 - places
    context = np.minimum(before, after)
    scores = np.where(context >= 0, context + LENGTH_BONUS * (ends - starts)[:, None], -1.0)
    owner: NDArray[np.int64] = scores.argmax(axis=0)
    return owner


def _tokens_of_answer(question: Question, spans: NDArray[np.int64]) -> tuple[int, int] | None:
    """The first and last token that hold a part of the trained answer."""
    answer = question.located
    if answer is None or answer.start is None:
        return None
    inside = np.flatnonzero((spans[:, 1] > answer.start) & (spans[:, 0] < answer.start + len(answer.text)))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None
