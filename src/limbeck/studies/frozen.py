"""Models as they are on tasks: those with a head by their outputs, encoders by probes of their embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.errors import UserError
from limbeck.progress import Reporter
from limbeck.report import Measured
from limbeck.tasks import weighted
from limbeck.tasks.assignment import Assignment, Compared, Judged
from limbeck.tasks.heads import has_sentence_head, load_answer_head, load_sentence_head, output_names
from limbeck.tasks.labels import permutation
from limbeck.tasks.metrics import chance, correct
from limbeck.tasks.predict import decisive_outputs, predict
from limbeck.tasks.probes import Probed, probe, similarity_probe
from limbeck.tasks.reading import (
    asks_questions,
    length_of,
    question_assignment,
    read_questions_to_evaluate,
    read_sentences,
)
from limbeck.tasks.recipe import FineTuning
from limbeck.tasks.sentences import SentenceAssignment, judge
from limbeck.tasks.task import TaskData
from limbeck.text import listed
from limbeck.training.loop import make_accelerator

BATCH = 32


def measure_frozen(
    name: str, recipe: FineTuning, label_map: Mapping[str, str], reporter: Reporter, *, asked: bool = True
) -> Measured:
    """What a model makes of a task without further training.

    A model with a head for sentences or questions is asked as it is; its outputs are matched with the task's labels by their
    names. Of an encoder the embeddings are probed: by cosines where pairs are to be rated, and by a linear model on top of them.

    Args:
        name: the row's.
        recipe: model, task and data.
        label_map: which label each output stands for, of a model that has outputs of these names.
        reporter: hears of a model that scores less than a constant answer.
        asked: whether a head for sentences is asked, if there is one; otherwise the encoder in front of it is probed.

    Raises:
        UserError: the task's data cannot be read, or the model's outputs cannot be matched with its labels.
    """
    if asks_questions(recipe):
        return _answered(name, recipe)
    data = read_sentences(recipe, to_train=False)
    encoder = load_encoder(recipe.model)
    if asked and has_sentence_head(encoder):
        return _asked(name, recipe, data, label_map, reporter)
    pairs = all(example.second is not None for example in data.split(data.task.dev).examples)
    if data.task.kind == "regression" and pairs:
        return _zero_shot(name, data, encoder)
    probed = probe(encoder, data, split=data.task.dev, limit=recipe.examples, seed=recipe.seed)
    return _probed(name, f"{data.task.name} probe", data, probed)


def _answered(name: str, recipe: FineTuning) -> Measured:
    """What a model that was fine-tuned on questions answers."""
    model = load_answer_head(recipe.model)
    assignment = question_assignment(read_questions_to_evaluate(recipe), recipe, model.tokenizer)
    accelerator = make_accelerator("float32")
    judged = predict(assignment, assignment.selecting, model.model.to(accelerator.device), accelerator, BATCH)
    return _as_it_is(name, assignment, judged)


def _as_it_is(name: str, assignment: Assignment, judged: Judged) -> Measured:
    compared = assignment.compared(assignment.selecting, judged.predictions)
    assert compared is not None
    return _fixed(name, assignment.name, judged.scores, compared)


def measure_zero_shot(name: str, recipe: FineTuning) -> Measured:
    """What the cosines of a model's embeddings make of pairs to be rated, whatever head it has.

    Args:
        name: the row's.
        recipe: model, task and data.

    Raises:
        UserError: the task's data cannot be read.
    """
    return _zero_shot(name, read_sentences(recipe), load_encoder(recipe.model))


def _zero_shot(name: str, data: TaskData, encoder: Encoder) -> Measured:
    return _probed(name, f"{data.task.name} zero-shot", data, similarity_probe(encoder, data, split=data.task.dev))


def _probed(name: str, task: str, data: TaskData, probed: Probed) -> Measured:
    metric, predictions, labels = data.task.metrics[0], probed.predictions, probed.labels
    if data.task.kind == "multi-label":
        right = correct(predictions, labels).astype(np.float64)
        return _fixed(name, task, probed.scores, Compared("accuracy", right, np.zeros(len(right)), weighted.mean_score))
    return _fixed(name, task, probed.scores, Compared(metric, predictions, labels, weighted.METRICS[metric]))


def _fixed(name: str, task: str, scores: Mapping[str, float], compared: Compared) -> Measured:
    """What was measured of a model that nothing was trained of."""
    return Measured(
        model=name,
        task=task,
        metric=compared.metric,
        scores=(scores,),
        seeds=(0,),
        predictions=compared.predictions[None],
        labels=compared.labels,
        weighted=compared.weighted,
        fixed=True,
    )


def _asked(name: str, recipe: FineTuning, data: TaskData, label_map: Mapping[str, str], reporter: Reporter) -> Measured:
    """What a fine-tuned model says by itself."""
    model = load_sentence_head(recipe.model)
    task, split, outputs = data.task, data.task.dev, output_names(model)
    if task.kind == "regression" and len(outputs) != 1:
        raise UserError(
            f"{recipe.model} has {len(outputs)} outputs ({listed(outputs)}), but {task.name} asks for one number; fine-tune it "
            "on that task first, or leave one of the two out."
        )
    length = min(length_of(recipe), model.shape.positions)
    assignment = SentenceAssignment(data, model.tokenizer, max_length=length, splits=[split])
    accelerator = make_accelerator("float32")
    values = np.stack(decisive_outputs(assignment, split, model.model.to(accelerator.device), accelerator, BATCH))
    if task.labels:
        meanings = label_map if label_map.keys() <= {*outputs} else {}
        values = values[:, np.array(permutation(outputs, task.labels, task.written, meanings))]
    judged = judge(data, split, values)
    metric = task.metrics[0]
    if (by_chance := chance(task, data.targets(split))[metric]) > judged.scores[metric]:
        reporter.say(
            f"warning: {name} scores {100 * judged.scores[metric]:.1f} on {task.name}, less than the {100 * by_chance:.1f} of a "
            "constant answer; do its labels mean what their names say?"
        )
    return _as_it_is(name, assignment, judged)
