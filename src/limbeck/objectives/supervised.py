"""What a task's labels ask of a model: the losses of fine-tuning (BERT: Devlin et al., 2019, section 4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from limbeck.data.batches import valid_tokens
from limbeck.objectives.base import Objective

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from limbeck.data.batches import Batch

LABELS, STARTS, ENDS = "labels", "starts", "ends"
"""What a batch holds beside a model's inputs."""


class Supervised(Objective):
    """A loss between a model's outputs and labels, computed in float32 at least."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """For each term what its loss is divided by, which depends on the batch alone."""

    @abstractmethod
    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """For each term the loss summed over what `counts` counts.

        Args:
            outputs: what a model with a task's head returns.
            batch: inputs and labels.
        """

    def finish(self, model: PreTrainedModel) -> None:
        """Make a trained model's outputs, in place, those of the labels' own units."""


@dataclass(frozen=True)
class Classification(Supervised):
    """Cross-entropy with one class an example; labels are (batch,) class numbers.

    With class weights w an example of class c counts w_c times, and the loss is divided by the sum of these, as in
    torch.nn.CrossEntropyLoss.
    """

    class_weights: tuple[float, ...] | None = None
    name: Literal["classification"] = "classification"

    def weights(self) -> Mapping[str, float]:
        """The one term."""
        return {"cross_entropy": 1.0}

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The examples, each as often as its class counts."""
        labels = batch[LABELS]
        return {"cross_entropy": labels.new_tensor(len(labels)) if self.class_weights is None else self._of(labels).sum()}

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy of logits (batch, classes)."""
        logits = _full(outputs.logits)
        weight = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        return {"cross_entropy": functional.cross_entropy(logits, batch[LABELS], weight, reduction="sum")}

    def _of(self, labels: Tensor) -> Tensor:
        return torch.tensor(self.class_weights, device=labels.device)[labels]


@dataclass(frozen=True)
class MultiLabel(Supervised):
    """Binary cross-entropy of each label; labels are (batch, labels), 1.0 where one applies."""

    label_weights: tuple[float, ...] | None = None
    """How often an example counts to which a label applies, for each label."""
    name: Literal["multi_label"] = "multi_label"

    def weights(self) -> Mapping[str, float]:
        """The one term."""
        return {"binary_cross_entropy": 1.0}

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The decisions: examples times labels."""
        return {"binary_cross_entropy": batch[LABELS].new_tensor(batch[LABELS].numel())}

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy of logits (batch, labels)."""
        logits = _full(outputs.logits)
        weight = None if self.label_weights is None else logits.new_tensor(self.label_weights)
        labels = batch[LABELS].to(logits.dtype)
        return {
            "binary_cross_entropy": functional.binary_cross_entropy_with_logits(
                logits, labels, pos_weight=weight, reduction="sum"
            )
        }


@dataclass(frozen=True)
class Regression(Supervised):
    """The squared error, in units of the training labels' variance; labels are (batch,) numbers.

    The model learns (label - mean) / deviation, so that prices are as easy to learn as grades.
    """

    mean: float = 0.0
    deviation: float = 1.0
    name: Literal["regression"] = "regression"

    def weights(self) -> Mapping[str, float]:
        """The one term."""
        return {"squared_error": 1.0}

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The examples."""
        return {"squared_error": batch[LABELS].new_tensor(len(batch[LABELS]))}

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """The error of the one output, (batch, 1)."""
        target = (batch[LABELS] - self.mean) / self.deviation
        return {"squared_error": functional.mse_loss(_full(outputs.logits).squeeze(-1), target, reduction="sum")}

    def finish(self, model: PreTrainedModel) -> None:
        """Scale the head's last layer, so that the model predicts labels."""
        last = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1][-1]
        with torch.no_grad():
            last.weight *= self.deviation
            last.bias.copy_(last.bias * self.deviation + self.mean)


@dataclass(frozen=True)
class AnswerSpan(Supervised):
    """The mean of the cross-entropies of an answer's first and last token, over a window's valid tokens.

    Starts and ends are (batch,) places in the window; the first token stands for "no answer here" (BERT, section 4.3).
    """

    name: Literal["answer_span"] = "answer_span"

    def weights(self) -> Mapping[str, float]:
        """Start and end count alike."""
        return {"start": 0.5, "end": 0.5}

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The windows."""
        return dict.fromkeys(("start", "end"), batch[STARTS].new_tensor(len(batch[STARTS])))

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropies of start and end logits, each (batch, n)."""
        padding = ~valid_tokens(batch)
        return {
            name: functional.cross_entropy(_full(logits).masked_fill(padding, -torch.inf), batch[target], reduction="sum")
            for name, logits, target in (("start", outputs.start_logits, STARTS), ("end", outputs.end_logits, ENDS))
        }


def _full(logits: Tensor) -> Tensor:
    """In float32, unless they are more precise."""
    return logits if logits.dtype == torch.float64 else logits.float()
