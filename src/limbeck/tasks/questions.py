"""Tasks whose examples are questions on passages: the answer is a span of the passage, or there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from limbeck.data.batches import Frame, LabelledSource, Row
from limbeck.encoders.loading import Encoder
from limbeck.errors import UserError
from limbeck.objectives.supervised import ENDS, STARTS, AnswerSpan
from limbeck.tasks import weighted
from limbeck.tasks.answer_scores import evaluate, score
from limbeck.tasks.answers import predict
from limbeck.tasks.assignment import Assignment, Compared, Judged
from limbeck.tasks.heads import answer_head
from limbeck.tasks.holdout import drawn_places
from limbeck.tasks.question_data import QuestionData
from limbeck.tasks.squad import Question, has_unanswerable
from limbeck.tasks.windows import Window, Windower
from limbeck.text import count
from limbeck.training.folder import write_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUESTION_LENGTH = 64
"""Tokens of a question at most, as in BERT's SQuAD script."""


class QuestionAssignment(Assignment):
    """A task whose examples are questions on passages; what a model is run on are windows of these.

    Args:
        data: the questions.
        tokenizer: the model's.
        max_length: tokens of a window, special ones included. A question gives up its end where it would leave the passage
            less than half of what windows do not share, or has more than QUESTION_LENGTH tokens.
        overlap: tokens of a passage that a window shares with the one before it.
        splits: those to judge on; all if empty.
        limit: training questions at most, drawn by the seed; the unanswerable ones keep their share.
        seed: decides the order of the windows and which questions are drawn.

    Raises:
        UserError: there is no such split, or windows of that length cannot share so much.
    """

    metric = "f1"
    objective = AnswerSpan()

    def __init__(
        self,
        data: QuestionData,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        overlap: int,
        splits: Sequence[str] = (),
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        self._data, self._limit, self._seed = data, limit, seed
        self._splits = tuple(splits) or tuple(data.splits)
        if missing := [split for split in self._splits if split not in data.splits]:
            raise UserError(f"{data.name} has no split named {missing[0]} here; there are {', '.join(data.splits)}.")
        self._frame = Frame.of(tokenizer)
        room = max_length - self._frame.width("pairs") - overlap
        self._windower = Windower(
            tokenizer, max_length=max_length, overlap=overlap, max_question=min(QUESTION_LENGTH, max(1, room // 2))
        )
        self._known: dict[Question, list[Window]] = {}
        self._sources: dict[str, LabelledSource] = {}
        self.name, self.selecting = data.name, data.selecting

    @property
    def splits(self) -> Sequence[str]:
        """The splits that a trained model is asked about."""
        return self._splits

    @cached_property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """What the user should be told of the data."""
        questions = self._drawn
        silent = sum(not question.answerable for question in questions)
        kind = f" ({count(silent)} without an answer)" if silent else ""
        return (*self._data.notes, f"{count(len(questions))} questions{kind} in {count(len(self.training))} windows to train on")

    @cached_property
    def training(self) -> LabelledSource:  # type: ignore[override]
        """The windows of the training questions, with the places of the answers."""
        windows = self._windows(self._drawn)
        targets = torch.tensor([window.target for window in windows])
        return self._source(windows, {STARTS: targets[:, 0], ENDS: targets[:, 1]})

    def head(self, encoder: Encoder, seed: int) -> Encoder:
        """The encoder under a new head for first and last tokens."""
        return answer_head(encoder, seed)

    def source(self, split: str) -> LabelledSource:
        """A row a window, those of a question one after the other."""
        if split not in self._sources:
            self._sources[split] = self._source(self._windows(self._data.splits[split]), {})
        return self._sources[split]

    def truth(self, split: str) -> str:
        """Each question's answers."""
        return repr([(question.id, question.answers) for question in self._data.splits[split]])

    def scores(self, outputs: Any) -> Tensor:
        """The logits of starts and ends, (batch, 2, n)."""
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=1)

    def judge(self, split: str, outputs: Sequence[NDArray[Any]]) -> Judged:
        """Answers and what they score: a question that has none is answered rightly by none.

        Where some question of the split has none, "no answer" is given where it scores better than the best span. All
        figures of `answer_scores.evaluate` are in the scores, as fractions but for the thresholds, which are differences of
        logits.
        """
        questions = self._data.splits[split]
        predictions = predict(questions, self._windows(questions), [each[0] for each in outputs], [each[1] for each in outputs])
        silent = has_unanswerable(questions)
        answers = [each.answer() if silent else each.text for each in predictions]
        scored = score(questions, answers)
        lines = [
            {
                "id": question.id,
                "prediction": answer,
                "exact": exact,
                "f1": overlap,
                "no_answer": round(each.no_answer, 5) if np.isfinite(each.no_answer) else None,
            }
            for question, each, answer, exact, overlap in zip(
                questions, predictions, answers, scored.exact.tolist(), scored.f1.tolist(), strict=True
            )
        ]
        figures = evaluate(questions, predictions)
        return Judged(lines, {name: _fraction(name, figures[name]) for name in figures if not name.endswith("questions")})

    def compared(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> Compared | None:
        """Each question's F1."""
        values = np.array([entry["f1"] for entry in predictions])
        return Compared("f1", values, np.zeros(len(values)), weighted.mean_score)

    def submit(self, folder: Path, split: str, judged: Judged) -> Path | None:
        """The predictions as SQuAD's own evaluation reads them, {id: text}; None for a split in which ids are repeated."""
        answers = {entry["id"]: entry["prediction"] for entry in judged.predictions}
        if len(answers) < len(judged.predictions):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{split}.json"
        write_file(path, json.dumps(answers, ensure_ascii=False, indent=1) + "\n")
        return path

    @cached_property
    def _drawn(self) -> tuple[Question, ...]:
        questions = self._data.train
        if self._limit is None:
            return questions
        texts = [f"{question.text}\n{question.passage}" for question in questions]
        places = drawn_places(texts, [int(question.answerable) for question in questions], self._limit, self._seed)
        return tuple(questions[place] for place in places)

    def _windows(self, questions: Sequence[Question]) -> list[Window]:
        """The windows of questions; those of a question that stands in several splits are made once."""
        new = [question for question in dict.fromkeys(questions) if question not in self._known]
        self._known |= {question: [] for question in new}
        for window in self._windower(new):
            self._known[new[window.question]].append(window)
        return [replace(window, question=number) for number, question in enumerate(questions) for window in self._known[question]]

    def _source(self, windows: Sequence[Window], targets: dict[str, Tensor]) -> LabelledSource:
        rows = [Row(window.ids, window.first) for window in windows]
        return LabelledSource(rows, targets, pad=self._frame.pad, segments=True, seed=self._seed)


def _fraction(name: str, figure: float) -> float:
    return figure if name.endswith("_threshold") else figure / 100
