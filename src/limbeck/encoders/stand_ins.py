"""Modules that stand in a layer's place: one whose weights were not loaded, or one that is needed only in part.

`Capture` leaves a forward pass by an exception once it has what it was asked for. Compilers and wrappers that shard a model
follow no exceptions; for them the last layer is replaced by a tap, which holds no more of it than leads to its projections, and
the layers behind it are taken out.
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from torch import Tensor, nn

from limbeck.encoders.families import POSITIONS, Family


class StandIn(nn.Module):
    """What stands in a layer's place in the list of layers, with what an encoder asks a layer for before it runs it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if hasattr(layer, "attention_type"):  # ModernBERT's
            self.attention_type = layer.attention_type


class LeftOut(StandIn):
    """Stands where a layer's weights were not loaded; no forward pass may come so far."""

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to run."""
        raise RuntimeError("This layer's weights were not loaded.")


class _Shown(nn.Module):
    """Is shown some values, for whoever watches it."""

    def forward(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


class Tap(StandIn):
    """What of a layer leads to its projections: the norm in front of them, and they themselves, with the same parameters.

    Args:
        layer: the one that it stands for.
        family: the encoder's.
        turn: the call that is the tapped layer's, where several layers share their weights; calls before it run the layer, those
            after it do nothing.
    """

    def __init__(self, layer: nn.Module, family: Family, turn: int = 1) -> None:
        super().__init__(layer)
        self.norm = layer.get_submodule(family.norm) if family.norm else nn.Identity()
        self.projections = nn.ModuleList(dict.fromkeys(layer.get_submodule(path) for path in family.projections.values()))
        self.attention = _Shown()
        """Is given, as the layer's attention would be, what it needs to know of positions."""
        self._family, self._turn, self._calls = family, turn, 0
        self._whole = [layer]  # in a list, so that its other parameters are not the tap's
        self._signature = inspect.signature(layer.forward)

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the projections for the hooks on them; what enters is returned as what leaves."""
        self._calls += 1
        if self._calls < self._turn:
            return self._whole[0](hidden, *args, **kwargs)
        if self._calls == self._turn:
            self._show_positions(hidden, *args, **kwargs)
            self.project(hidden)
        return (hidden, None) if self._family.layers_return_tuples else hidden

    def project(self, hidden: Tensor) -> None:
        """Run the projections of what enters the layer."""
        entering = self.norm(hidden)
        for projection in self.projections:
            projection(entering)

    def begin(self) -> None:
        """Count the calls of a new forward pass."""
        self._calls = 0

    def _show_positions(self, *args: Any, **kwargs: Any) -> None:
        if self._family.scores in POSITIONS:
            name = POSITIONS[self._family.scores]
            given = self._signature.bind(*args, **kwargs)
            self.attention(given.arguments["hidden_states"], **{name: given.arguments[name]})
