"""Losses over pairs of tokens that never hold a whole batch of n x n tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limbeck._lazy import attach

if TYPE_CHECKING:
    from limbeck.kernels.relation import relation_kl

__all__ = ["relation_kl"]
__getattr__ = attach(__name__, {"relation_kl": "limbeck.kernels.relation"})
