"""A forward pass that ends at some layer's queries, keys and values without an exception.

`Capture` leaves a forward pass by an exception once it has what it was asked for. Compilers and wrappers that shard a model
follow no exceptions; for them the last layer is replaced by a tap, which holds no more of it than leads to its projections, and
the layers behind it are taken out.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from limbeck.encoders.families import POSITIONS, Family


class _Shown(nn.Module):
    """Is shown some values, for whoever watches it."""

    def forward(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


class Tap(nn.Module):
    """What of a layer leads to its projections: the norm in front of them, and they themselves, with the same parameters.

    Args:
        layer: the one that it stands for.
        family: the encoder's.
        turn: the call that is the tapped layer's, where several layers share their weights; calls before it run the layer, those
            after it do nothing.
    """

    def __init__(self, layer: nn.Module, family: Family, turn: int = 1) -> None:
        super().__init__()
        self.norm = layer.get_submodule(family.norm) if family.norm else nn.Identity()
        self.projections = nn.ModuleList(dict.fromkeys(layer.get_submodule(path) for path in family.projections.values()))
        self.attention = _Shown()
        """Is given, as the layer's attention would be, what it needs to know of positions."""
        self._family, self._turn, self._calls = family, turn, 0
        self._whole = [layer]  # in a list, so that its other parameters are not the tap's
        self._signature = inspect.signature(layer.forward)
        if hasattr(layer, "attention_type"):  # which ModernBERT asks for before it runs the layer
            self.attention_type = layer.attention_type

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the projections for the hooks on them; what enters is returned as what leaves."""
        self._calls += 1
        if self._calls < self._turn:
            return self._whole[0](hidden, *args, **kwargs)
        if self._calls == self._turn:
            self._show_positions(hidden, *args, **kwargs)
            entering = self.norm(hidden)
            for projection in self.projections:
                projection(entering)
        return (hidden, None) if self._family.layers_return_tuples else hidden

    def begin(self) -> None:
        """Count the calls of a new forward pass."""
        self._calls = 0

    def _show_positions(self, *args: Any, **kwargs: Any) -> None:
        if self._family.scores in POSITIONS:
            name = POSITIONS[self._family.scores]
            given = self._signature.bind(*args, **kwargs)
            self.attention(given.arguments["hidden_states"], **{name: given.arguments[name]})
