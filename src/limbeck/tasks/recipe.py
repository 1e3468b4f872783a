"""The typed recipe of a fine-tuning: a model, a task, and how to train."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from limbeck._settings import Number, WholeNumber, no_duplicates, settings
from limbeck.recipe import Holdout, Paths, PositiveInt, Text, Tracker, listed_text

ENGLISH = ["en"]
"""What is trained on where a task has several languages and none is named."""


@settings
class FineTuning:
    """One fine-tuning: a model, a task with its data, and how to train."""

    model: Text
    """folder (or hub name) of the encoder, or the directory of a run, whose student is fine-tuned"""
    data: Annotated[Paths, Field(min_length=1)]
    """the folder of a task's official files; for questions also files in SQuAD's JSON; a CSV, TSV, JSON lines or Parquet file
    of your own"""
    task: str | None = None
    """cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, xnli, squad, mlqa, xquad or tydiqa; without it, your own, of text and
    label"""
    text: Annotated[list[str], BeforeValidator(listed_text), AfterValidator(no_duplicates), Field(max_length=2)] = Field(
        default_factory=list
    )
    """your own task: the column of the text, or both columns of a pair, by name or number"""
    label: str | None = None
    """your own task: the column of the label, of several labels, or of a number"""
    kind: Literal["auto", "classification", "multi-label", "regression"] = "auto"
    """your own task: what the labels are; auto: as they look"""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """your own task: what stands between several labels in one cell"""
    header: bool = True
    """your own task: whether a CSV or TSV file names its columns in its first line"""
    dev: Holdout | None = None
    """what to evaluate on instead of the task's own dev split: a file, or a share of the examples such as 0.1, which is kept
    out of training by text, pair or article"""
    languages: Annotated[list[str], BeforeValidator(listed_text), AfterValidator(no_duplicates)] = Field(default_factory=list)
    """languages to evaluate on, where a task has several; all that are there if none is named"""
    train_languages: Annotated[list[str], BeforeValidator(listed_text), AfterValidator(no_duplicates)] = Field(
        default_factory=lambda: [*ENGLISH]
    )
    """languages to train on, where a task has several"""
    splits: Annotated[list[str], BeforeValidator(listed_text), AfterValidator(no_duplicates)] = Field(default_factory=list)
    """splits to predict at the end; all but train if none is named"""
    examples: PositiveInt | None = None
    """training examples at most, drawn at random with the classes' shares kept"""
    max_length: Annotated[WholeNumber, Field(ge=8)] | Literal["auto"] = "auto"
    """tokens of an example, special tokens included; auto: 128, for questions 384"""
    overlap: Annotated[WholeNumber, Field(ge=0)] = 128
    """questions: tokens of a passage that a window shares with the one before it"""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: each class counts alike, however many examples it has"""
    batch_size: PositiveInt = 32
    """examples in an optimiser step, over all processes"""
    micro_batch_size: PositiveInt | Literal["auto"] = "auto"
    """examples in one forward pass of a process; auto: its whole share of the batch, on a processor at most 4,096 tokens"""
    epochs: Annotated[Number, Field(gt=0, lt=1e9)] | None = None
    """passes over the training examples (3 if nothing is said)"""
    steps: PositiveInt | None = None
    """optimiser steps, instead of epochs"""
    learning_rate: Annotated[Number, Field(gt=0, allow_inf_nan=False)] = 5e-5
    """the highest learning rate, reached after the warm-up"""
    warmup: Annotated[Number, Field(ge=0, le=1)] = 0.1
    """share of the steps over which the learning rate rises; it falls linearly to zero afterwards"""
    weight_decay: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 0.01
    """decoupled weight decay, not on biases and norms"""
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    """dropout of hidden states, attention and head during training"""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """number format of the matrix products; auto: bf16 where a short probe finds it faster"""
    eval_every: PositiveInt | Literal["epoch", "end"] = "epoch"
    """steps between two evaluations on the dev split; epoch: after each; end: only then, which is always evaluated"""
    keep_best: bool = False
    """also keep the model of the evaluation with the best metric, in RUN/best"""
    patience: PositiveInt | None = None
    """end training after so many evaluations without a better one"""
    checkpoint_every: PositiveInt | None = None
    """steps between two checkpoints that --resume can go on from"""
    keep_checkpoints: PositiveInt = 2
    """newest checkpoints that are kept; an older one stands in should the newest be damaged"""
    log_every: PositiveInt = 10
    """steps between two lines of the log"""
    trackers: Annotated[list[Tracker], AfterValidator(no_duplicates)] = Field(default_factory=list)
    """where the log goes besides log.jsonl: tensorboard, wandb, trackio"""
    seed: Annotated[WholeNumber, Field(ge=0, lt=2**63)] = 0
    """decides the head's first weights, the order of the examples and dropout"""

    def __post_init__(self) -> None:
        """Check what concerns several fields."""
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps were given; give one of them")
        if self.task is None and not (self.text and self.label):
            raise ValueError("name a task such as sst2, or for your own data the columns text and label")
        if self.task is not None and (self.text or self.label):
            raise ValueError(f"text and label are for data of your own, not for {self.task}; leave them or task out")
        if self.task is not None and (self.kind, self.separator, self.header) != ("auto", None, True):
            raise ValueError(f"kind, separator and header are for data of your own, not for {self.task}; leave them or task out")
        if self.label in self.text:
            raise ValueError(f"the column {self.label} cannot be both text and label; name another one")
        if self.dev is not None and (share := dev_share(self.dev)) is not None and not 0 < share < 1:
            raise ValueError(f"a share of {share} was asked for dev; it must lie between 0 and 1")
        if self.eval_every == "end" and (self.keep_best or self.patience is not None):
            raise ValueError("keep_best and patience need evaluations on the way; give eval_every a number or epoch with them")


def dev_share(dev: str) -> float | None:
    """The share that `FineTuning.dev` asks for; None if it names a file."""
    try:
        return float(dev)
    except ValueError:
        return None


def names_input(name: str, value: Any) -> bool:
    """Whether a field's value is a path or several, or a model's name on the hub."""
    return name in ("model", "data") or (name == "dev" and value is not None and dev_share(value) is None)
