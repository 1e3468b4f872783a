"""Tiny random models of every family in the table, each with a tokenizer of its kind."""

from dataclasses import dataclass, field
from typing import Any

import transformers

from conftest import TINY, noisy

TEXTS = ["The still is warm.", "Copper, glass and a very slow fire over 12 large stones", "a"]


@dataclass(frozen=True)
class Kind:
    """How to make a tiny model of a family."""

    prefix: str
    """What its classes are called."""
    tokenizer: str
    """The fixture of a tokenizer of its kind."""
    settings: dict[str, Any] = field(default_factory=dict)
    norm: str | None = None
    """Within a layer what stands in front of attention, in families whose norms come first."""

    def model(self, tokenizer, *, head="Model", seed=0, **settings):
        model_class = getattr(transformers, self.prefix + head)
        tokens = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        special = {"bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}
        return noisy(model_class, model_class.config_class(**{**TINY, **special, **tokens, **self.settings, **settings}), seed)


FAIRSEQ = {"max_position_embeddings": 66, "type_vocab_size": 1}
KINDS = {
    "bert": Kind("Bert", "tiny_tokenizer"),
    "roberta": Kind("Roberta", "bpe_tokenizer", FAIRSEQ),
    "xlm-roberta": Kind("XLMRoberta", "unigram_tokenizer", FAIRSEQ),
    "camembert": Kind("Camembert", "unigram_tokenizer", FAIRSEQ),
    "electra": Kind("Electra", "tiny_tokenizer", {"embedding_size": 16}),
    "distilbert": Kind("DistilBert", "tiny_tokenizer", {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 128}),
    "albert": Kind("Albert", "unigram_tokenizer", {"embedding_size": 16}),
    "mpnet": Kind("MPNet", "unigram_tokenizer", {"max_position_embeddings": 66}),
    "deberta-v2": Kind(
        "DebertaV2",
        "unigram_tokenizer",
        {
            "type_vocab_size": 0,
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "conv_kernel_size": 3,
        },
    ),
    "modernbert": Kind("ModernBert", "bpe_tokenizer", {"intermediate_size": 48, "local_attention": 8}, norm="attn_norm"),
    "eurobert": Kind("EuroBert", "bpe_tokenizer", {"num_key_value_heads": 2}, norm="input_layernorm"),
    "nomic_bert": Kind("NomicBert", "tiny_tokenizer"),
}
