"""The gradient of a table of embeddings, of which a step reaches few rows."""

from __future__ import annotations

from typing import cast

import torch
from accelerate import PartialState
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from typing_extensions import Self


class TableGradient:
    """Keeps the gradient of a table in one place, so that a step touches only the rows of its own tokens.

    autograd makes a new one each step, as large as the table and all but empty. On a processor the memory for it, fresh and
    zeroed, takes a fifth of a step of short texts.

    A context manager: within it each backward pass adds the rows of its tokens to what is kept. A gradient of the whole
    table, as of one that is read as a matrix too, is left to autograd.

    Args:
        table: stays on its device; afterwards it is as before.
        in_place: otherwise the table's gradient is left to autograd.
    """

    def __init__(self, table: nn.Embedding, *, in_place: bool) -> None:
        self._table, self._in_place = table, in_place
        self._kept: Tensor | None = None
        self._rows: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []

    @classmethod
    def of(cls, model: PreTrainedModel, process: PartialState) -> Self:
        """That of a model's tokens, which one process alone keeps on a processor.

        Several processes exchange dense gradients, and a GPU makes them in no time.
        """
        alone = process.num_processes == 1 and process.device.type == "cpu"
        return cls(cast("nn.Embedding", model.get_input_embeddings()), in_place=alone)

    def __enter__(self) -> Self:
        self._sparse = self._table.sparse
        self._table.sparse = self._in_place
        if self._in_place and self._table.weight.requires_grad:
            self._hooks.append(self._table.weight.register_post_accumulate_grad_hook(self._keep))
        return self

    def __exit__(self, *error: object) -> None:
        self._table.sparse = self._sparse
        while self._hooks:
            self._hooks.pop().remove()
        self._kept = None
        self._rows.clear()

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept from one step to the next, which the first backward pass makes."""
        return 0 if self._kept is None else self._kept.nbytes

    def fill(self) -> None:
        """Give the table the gradient of a step's backward passes, which is dense."""
        weight = self._table.weight
        if self._kept is not None and self._rows:
            weight.grad = self._kept if weight.grad is None else self._kept + weight.grad

    def clear(self) -> None:
        """Zero what the step's backward passes left."""
        if self._kept is not None:
            for rows in self._rows:
                self._kept.index_fill_(0, rows, 0.0)
        self._rows.clear()

    def _keep(self, weight: Tensor) -> None:
        """Take what a backward pass left."""
        gradient = weight.grad
        if gradient is None or not gradient.is_sparse:
            return
        if self._kept is None:
            self._kept = torch.zeros_like(weight)
        rows = gradient._indices()[0]
        self._kept.index_add_(0, rows, gradient._values())
        self._rows.append(rows)
        weight.grad = None
