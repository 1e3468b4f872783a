"""Where each family of encoders keeps the parts that distillation reads: one row a family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from limbeck.errors import UserError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

Scores = Literal["plain", "rotary", "biased"]
"""How attention scores come of q and k before they are scaled: as they are, turned by rotary positions, or with a learned
bias of relative positions added after the scaling."""

POSITIONS = {"rotary": "position_embeddings", "biased": "position_bias"}
"""The argument in which attention gets what it needs to know of positions: cosines and sines, or a bias of the scores."""


@dataclass(frozen=True)
class Family:
    """One row of the table; paths are relative to the encoder or to one of its layers."""

    model_types: tuple[str, ...]
    """Values of ``config.model_type``."""
    layers: str
    """The list of Transformer layers."""
    projections: Mapping[str, str]
    """Within a layer: the module whose output is the feature "q", "k" or "v", heads concatenated. One module for all three
    gives them in this order, one behind the other."""
    outputs: tuple[str, ...]
    """Within a layer: the projections that end in the residual stream; where they are zero, the layer adds nothing to it."""
    embeddings: tuple[str, ...] = ("embeddings",)
    """The modules in front of layer 1."""
    pooler: str = "pooler"
    """The module behind the last layer, which checkpoints and classes may lack."""
    scores: Scores | None = None
    """How attention scores come of q and k; None: in another way, so that they cannot be rebuilt."""
    norm: str = ""
    """Within a layer: the norm in front of the projections, in families whose norms come first."""
    layers_return_tuples: bool = False
    """Whether a layer returns more than its hidden state."""
    attention: str = ""
    """Within a layer: the module that is given the rotary positions or the bias."""
    feed_forward: str = "intermediate_size"
    """What the configuration calls the width of the feed-forward part."""
    gated: bool = False
    """Whether the feed-forward part has a third matrix, which gates the first."""
    shared_layers: bool = False
    """Whether one layer's weights serve for all layers."""
    positions_after_padding: bool = False
    """Whether token t takes position row padding index + t, and padding the row of the padding index, as in fairseq."""
    padding: int | None = None
    """The only padding index that the family's code knows."""
    undeclared: tuple[str, ...] = ()
    """Settings that the family's code reads, though the class of its configuration does not name them."""

    def layer_list(self, encoder: nn.Module) -> list[nn.Module]:
        """The encoder's Transformer layers, the first at index 0; a shared one as often as it runs."""
        layers = list(encoder.get_submodule(self.layers).children())
        return layers * encoder.config.num_hidden_layers if self.shared_layers else layers  # type: ignore[operator,union-attr]

    def layer_name(self, layer: int) -> str:
        """Where a layer is, numbered from 1, relative to the encoder."""
        return f"{self.layers}.{0 if self.shared_layers else layer - 1}"

    @property
    def fused(self) -> bool:
        """Whether one module computes q, k and v."""
        return len({*self.projections.values()}) == 1

    def positions(self, config: PretrainedConfig) -> int:
        """The most tokens that a sequence may have."""
        rows: int = config.max_position_embeddings
        return rows - config.pad_token_id - 1 if self.positions_after_padding else rows


def _projections(path: str, q: str, k: str, v: str) -> dict[str, str]:
    return {feature: f"{path}{name}" for feature, name in zip("qkv", (q, k, v), strict=True)}


BERT = Family(
    model_types=("bert",),
    layers="encoder.layer",
    projections=_projections("attention.self.", "query", "key", "value"),
    outputs=("attention.output.dense", "output.dense"),
    scores="plain",
)
LLAMA = Family(
    model_types=(),
    layers="layers",
    projections=_projections("self_attn.", "q_proj", "k_proj", "v_proj"),
    outputs=("self_attn.o_proj", "mlp.down_proj"),
    scores="rotary",
    attention="self_attn",
    gated=True,
)
FAMILIES = (
    BERT,
    replace(BERT, model_types=("roberta", "xlm-roberta", "camembert"), positions_after_padding=True),
    replace(BERT, model_types=("electra",), embeddings=("embeddings", "embeddings_project"), pooler=""),
    Family(
        model_types=("distilbert",),
        layers="transformer.layer",
        projections=_projections("attention.", "q_lin", "k_lin", "v_lin"),
        outputs=("attention.out_lin", "ffn.lin2"),
        pooler="",
        scores="plain",
        feed_forward="hidden_dim",
    ),
    Family(
        model_types=("albert",),
        layers="encoder.albert_layer_groups",
        projections=_projections("albert_layers.0.attention.", "query", "key", "value"),
        outputs=("albert_layers.0.attention.dense", "albert_layers.0.ffn_output"),
        embeddings=("embeddings", "encoder.embedding_hidden_mapping_in"),
        scores="plain",
        shared_layers=True,
    ),
    Family(
        model_types=("mpnet",),
        layers="encoder.layer",
        projections=_projections("attention.attn.", "q", "k", "v"),
        outputs=("attention.attn.o", "output.dense"),
        scores="biased",
        layers_return_tuples=True,
        attention="attention",
        positions_after_padding=True,
        padding=1,
    ),
    replace(
        BERT,
        model_types=("deberta-v2",),  # DeBERTa-v3 as well
        projections=_projections("attention.self.", "query_proj", "key_proj", "value_proj"),
        pooler="",
        scores=None,
        layers_return_tuples=True,
        undeclared=(
            "position_buckets",
            "share_att_key",
            "norm_rel_ebd",
            "conv_kernel_size",
            "conv_groups",
            "conv_act",
            "attention_head_size",
        ),
    ),
    Family(
        model_types=("modernbert",),
        layers="layers",
        projections=_projections("attn.", "Wqkv", "Wqkv", "Wqkv"),
        outputs=("attn.Wo", "mlp.Wo"),
        pooler="",
        scores="rotary",
        norm="attn_norm",
        attention="attn",
        gated=True,
    ),
    replace(LLAMA, model_types=("eurobert",), embeddings=("embed_tokens",), pooler="", norm="input_layernorm"),
    replace(LLAMA, model_types=("nomic_bert",)),
)

SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "pad_token_id",
)
"""What a configuration must name for its family to be recognised."""
PADDED_WITHIN = ("attention_window", "block_size")
"""Settings of families that lengthen a sequence within the encoder, so that features are not those of its tokens."""
NAMES = (
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
)
"""What families call the three projections within the module that holds them."""


def family_of(config: PretrainedConfig) -> Family:
    """The row for a model, or one made for it if its parts can be recognised.

    Raises:
        UserError: neither; the message lists the families in the table.
    """
    for family in FAMILIES:
        if config.model_type in family.model_types:
            return family
    recognised = _recognised(config.model_type)
    if recognised is None:
        raise UserError(f"Encoders of type {config.model_type!r} are not supported; {supported_families()}.")
    return recognised


def supported_families() -> str:
    """The families in the table, in words for a message."""
    return "supported: " + ", ".join(name for family in FAMILIES for name in family.model_types)


@cache
def _recognised(model_type: str) -> Family | None:
    """A row for a family that is not in the table; None if its parts are not where they can be told.

    There must be a list of as many equal layers as the configuration says, in each of them one module with three linear ones that
    are called as q, k and v are in `NAMES` and as wide as the model, and a feed-forward part as wide as it says.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.for_model(model_type)
        with torch.device("meta"):
            encoder = AutoModel.from_config(config)
    except Exception:  # whatever the class of a model makes of its own defaults
        return None
    if not all(hasattr(config, size) for size in SIZES) or not hasattr(encoder, "embeddings"):
        return None
    if any(hasattr(config, setting) for setting in PADDED_WITHIN):
        return None
    for layers, name in _layer_lists(encoder, config):
        for names in NAMES:
            found = [path for path, module in layers[0].named_modules() if _holds(module, names, config.hidden_size)]
            if len(found) == 1:
                return Family(
                    model_types=(config.model_type,),
                    layers=name,
                    projections=_projections(f"{found[0]}." if found[0] else "", *names),
                    outputs=(),
                    pooler="pooler" if hasattr(encoder, "pooler") else "",
                    positions_after_padding=any(table.padding_idx is not None for table in _position_tables(encoder)),
                )
    return None


def _layer_lists(encoder: nn.Module, config: PretrainedConfig) -> Iterator[tuple[list[nn.Module], str]]:
    """What may be the list of whole layers, and where it is."""
    from torch import nn

    for name, module in encoder.named_modules():
        layers = list(module.children()) if isinstance(module, nn.ModuleList) else []
        if len(layers) == config.num_hidden_layers and len({type(layer) for layer in layers}) == 1:
            linear = [each for each in layers[0].modules() if isinstance(each, nn.Linear)]
            if any(each.out_features == config.intermediate_size for each in linear):
                yield layers, name


def _holds(module: nn.Module, names: tuple[str, ...], width: int) -> bool:
    """Whether a module has three linear ones of these names, each from the model's width to the model's width."""
    from torch import nn

    parts = [getattr(module, name, None) for name in names]
    return all(isinstance(part, nn.Linear) and (part.in_features, part.out_features) == (width, width) for part in parts)


def _position_tables(encoder: nn.Module) -> list[nn.Embedding]:
    from torch import nn

    named = [module for name, module in encoder.named_modules() if name.split(".")[-1] == "position_embeddings"]
    return [table for table in named if isinstance(table, nn.Embedding)]
