"""The gradient of a table of embeddings, of which a step reaches few rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TableGradient:
    """Keeps the gradient of a table in one place, so that a step touches only the rows of its own tokens.

    autograd makes a new one each step, as large as the table and all but empty. On a processor the memory for it, fresh and
    zeroed, takes a fifth of a step of short texts.

    Args:
        table: stays on its device.
        in_place: otherwise the table's gradient is left to autograd.
    """

    def __init__(self, table: nn.Embedding, *, in_place: bool) -> None:
        table.sparse = in_place
        self._weight = table.weight
        self._dense: Tensor | None = None
        self._rows: Tensor | None = None

    def fill(self) -> None:
        """Make of the sparse gradient that a step's backward passes left a dense one."""
        sparse = self._weight.grad
        if sparse is None or not sparse.is_sparse:
            return
        if self._dense is None:
            self._dense = torch.zeros_like(self._weight.data)
        self._rows = sparse._indices()[0]
        self._weight.grad = self._dense.index_add_(0, self._rows, sparse._values())

    def clear(self) -> None:
        """Zero what the step filled."""
        if self._dense is not None and self._rows is not None:
            self._dense.index_fill_(0, self._rows, 0.0)
            self._rows = None
