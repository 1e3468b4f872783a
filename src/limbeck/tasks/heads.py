"""Encoders with a task's head."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

from limbeck.encoders.folders import model_folder
from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.encoders.weights import read_weights
from limbeck.errors import UserError
from limbeck.tasks.labels import in_order
from limbeck.tasks.task import Kind

PROBLEMS: dict[Kind, Literal["regression", "single_label_classification", "multi_label_classification"]] = {
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
}
"""What transformers calls the kinds of tasks."""
SENTENCES, ANSWERS = "ForSequenceClassification", "ForQuestionAnswering"
"""How transformers' classes with these heads are called."""


def sentence_head(encoder: Encoder, kind: Kind, labels: Sequence[str], seed: int) -> Encoder:
    """An encoder with a new head that classifies or rates a text or a pair, its outputs called by the labels' names."""
    config = copy.deepcopy(encoder.model.config)
    config.num_labels = max(1, len(labels))
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    config.problem_type = PROBLEMS[kind]
    return _with_head(encoder, AutoModelForSequenceClassification, config, seed)


def answer_head(encoder: Encoder, seed: int) -> Encoder:
    """An encoder with a new head that points at an answer's first and last token."""
    config = copy.deepcopy(encoder.model.config)
    config.num_labels = 2
    return _with_head(encoder, AutoModelForQuestionAnswering, config, seed)


def load_sentence_head(source: str | Path) -> Encoder:
    """A model that was fine-tuned to classify or rate.

    Args:
        source: as in `load_encoder`.

    Raises:
        UserError: as there, or the folder holds no such head.
    """
    return _loaded(source, AutoModelForSequenceClassification, SENTENCES)


def load_answer_head(source: str | Path) -> Encoder:
    """A model that was fine-tuned to answer questions, likewise."""
    return _loaded(source, AutoModelForQuestionAnswering, ANSWERS)


def has_sentence_head(encoder: Encoder) -> bool:
    """Whether what was loaded as an encoder also has a head that classifies or rates."""
    return any(name.endswith(SENTENCES) for name in encoder.model.config.architectures or [])


def output_names(encoder: Encoder) -> list[str]:
    """What the outputs of such a head are called, in order."""
    return in_order(encoder.model.config.id2label or {})


def _with_head(encoder: Encoder, kind: Any, config: PretrainedConfig, seed: int) -> Encoder:
    if type(config) not in kind._model_mapping:
        raise UserError(
            f"transformers has no model of type {config.model_type!r} with a head for this task; take an encoder of "
            "another type, such as bert or modernbert."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs as well
        model: PreTrainedModel = kind.from_config(config)
    base, new = model.base_model, _new_weights(encoder, model)
    weights = encoder.model.base_model.state_dict()
    # Some heads bring their own pooler and leave the encoder's out.
    base.load_state_dict({name: weights[name] for name in base.state_dict() if name not in new}, strict=False)
    return replace(encoder, model=model.eval())


def _new_weights(encoder: Encoder, model: PreTrainedModel) -> set[str]:
    """The weights of a model's encoder that the encoder by itself does not have: a pooler that comes with the head alone."""
    return model.base_model.state_dict().keys() - encoder.model.base_model.state_dict().keys()


def _loaded(source: str | Path, kind: type, ending: str) -> Encoder:
    encoder = load_encoder(source)
    config = encoder.model.config
    architectures = config.architectures or []
    if not any(name.endswith(ending) for name in architectures):
        named = ", ".join(architectures) or "nothing"
        raise UserError(f"{source} has no head for this task (its config.json names {named}); fine-tune it first.")
    made = _with_head(encoder, kind, config, seed=0)
    model = made.model
    prefix = f"{model.base_model_prefix}."
    head = {name for name in model.state_dict() if not name.startswith(prefix)}
    head |= {f"{prefix}{name}" for name in _new_weights(encoder, model)}
    stored = {name.removeprefix("module."): value for name, value in read_weights(model_folder(str(source))).items()}
    if missing := sorted(head - stored.keys()):
        raise UserError(f"The checkpoint {source} lacks {', '.join(missing[:3])} of its head; fine-tune the model again.")
    state = model.state_dict()
    if misshapen := [name for name in sorted(head) if stored[name].shape != state[name].shape]:
        raise UserError(f"The checkpoint {source} has {', '.join(misshapen[:3])} in another shape than its config.json says.")
    model.load_state_dict({name: stored[name].float() for name in head}, strict=False)
    return made
