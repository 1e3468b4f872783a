"""Where each family of encoders keeps the parts that distillation reads: one row a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from limbeck.errors import UserError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Family:
    """One row of the table; paths are relative to the encoder or to one of its layers."""

    model_types: tuple[str, ...]
    """Values of ``config.model_type``."""
    embeddings: str
    """The module in front of layer 1."""
    layers: str
    """The list of Transformer layers."""
    projections: Mapping[str, str]
    """Within a layer: the module whose output is the feature "q", "k" or "v", heads concatenated."""
    pooler: str
    """The module behind the last layer, which checkpoints may lack; empty if the family has none."""
    outputs: tuple[str, ...] = ()
    """Within a layer: the projections that end in the residual stream; where they are zero, the layer adds nothing to it."""
    positions_after_padding: bool = False
    """Whether token t takes position row padding index + t, and padding the row of the padding index, as in fairseq."""

    def layer_list(self, encoder: nn.Module) -> list[nn.Module]:
        """The encoder's Transformer layers, the first at index 0."""
        return list(encoder.get_submodule(self.layers).children())

    def projection(self, encoder: nn.Module, feature: str, layer: int) -> nn.Module:
        """The module that computes q, k or v of a layer (numbered from 1)."""
        return encoder.get_submodule(f"{self.layers}.{layer - 1}.{self.projections[feature]}")

    def positions(self, config: PretrainedConfig) -> int:
        """The most tokens that a sequence may have."""
        rows: int = config.max_position_embeddings
        return rows - config.pad_token_id - 1 if self.positions_after_padding else rows


BERT = Family(
    model_types=("bert",),
    embeddings="embeddings",
    layers="encoder.layer",
    projections={
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
    },
    pooler="pooler",
    outputs=("attention.output.dense", "output.dense"),
)
FAMILIES = (
    BERT,
    replace(BERT, model_types=("roberta", "xlm-roberta"), positions_after_padding=True),
)


def family_of(config: PretrainedConfig) -> Family:
    """The row for a model.

    Raises:
        UserError: the family is not in the table; the message lists those that are.
    """
    return family_named(config.model_type)


def family_named(model_type: str) -> Family:
    """The row for a value of ``config.model_type``.

    Raises:
        UserError: as `family_of`.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    raise UserError(f"Encoders of type {model_type!r} are not supported yet; {supported_families()}.")


def supported_families() -> str:
    """The families in the table, in words for a message."""
    return "supported: " + ", ".join(name for family in FAMILIES for name in family.model_types)
