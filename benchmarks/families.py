"""Every family in the table, in figures: features, attention, early stop, student's round trip, and a short distillation.

For each family a random encoder of 4 layers and width 128, with one tokenizer for all, is distilled into 2x64 for 20 steps on the
text that ships with the package.

    python benchmarks/families.py --output benchmarks/results
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import AutoConfig, AutoModel, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import limbeck
from limbeck.encoders.capture import Capture
from limbeck.encoders.cost import flop_counter
from limbeck.encoders.families import FAMILIES, Family, family_of
from limbeck.encoders.features import Attention
from limbeck.encoders.loading import load_encoder, no_progress_bars
from limbeck.encoders.shape import EncoderShape
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT

LAYERS, WIDTH, HEADS = 4, 128, 8
SHAPE = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": HEADS, "max_position_embeddings": 130}
SPECIAL = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]")
"""In this order, since MPNet knows only 1 as the padding token's id."""
OWN: dict[str, dict[str, Any]] = {
    "distilbert": {"n_layers": LAYERS, "dim": WIDTH, "n_heads": HEADS, "hidden_dim": 4 * WIDTH},
    "electra": {"embedding_size": 64},
    "albert": {"embedding_size": 64},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 32,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {"intermediate_size": WIDTH * 3 // 2, "local_attention": 16},
    "eurobert": {"num_key_value_heads": 4, "mask_token_id": SPECIAL.index("[MASK]")},
}
RECIPE: dict[str, Any] = {
    "student": "2x64/4",
    "steps": 20,
    "batch_size": 16,
    "max_length": 64,
    "learning_rate": 5e-3,
    "precision": "float32",
    "packing": "full",
    "eval_every": 1,
}


def make_tokenizer() -> PreTrainedTokenizerBase:
    """A WordPiece tokenizer of the package's text."""
    pieces = BertWordPieceTokenizer()
    with gzip.open(WIKIPEDIA_HELD_OUT, "rt", encoding="utf-8") as text:
        pieces.train_from_iterator(text, vocab_size=500, special_tokens=[*SPECIAL], show_progress=False)
    return BertTokenizer(vocab=pieces.get_vocab())


def make_model(model_type: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A random encoder whose biases and norms are not those of an untrained one."""
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    feed_forward = {} if model_type in ("distilbert", "modernbert") else {"intermediate_size": 4 * WIDTH}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SHAPE, **feed_forward, **special, **tokens, **OWN.get(model_type, {})})
    model: PreTrainedModel = AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    model.eval()
    return model


@torch.no_grad()
def feature_difference(model: PreTrainedModel, family: Family, batch: dict[str, torch.Tensor]) -> float:
    """The largest difference of captured queries, keys and values from projections of the layer's input by hand."""
    features = Capture(model, {**dict.fromkeys(("q", "k", "v"), (LAYERS,)), "hidden": (LAYERS - 1,)})(**batch)
    layer = family.layer_list(model)[-1]
    entering = features.only("hidden")
    entering = layer.get_submodule(family.norm)(entering) if family.norm else entering
    worst = 0.0
    for place, feature in enumerate("qkv"):
        expected = layer.get_submodule(family.projections[feature])(entering)
        expected = expected.chunk(3, dim=-1)[place] if family.fused else expected
        worst = max(worst, float((features.only(feature) - expected).abs().max()))
    return worst


@torch.no_grad()
def attention_difference(model: PreTrainedModel, shape: EncoderShape, batch: dict[str, torch.Tensor]) -> float | None:
    """The largest difference of rebuilt attention from the model's own maps, over all layers."""
    if shape.scores is None:
        return None
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    maps, mask = eager(**batch, output_attentions=True).attentions, batch["attention_mask"].bool()
    worst = 0.0
    for layer in range(1, LAYERS + 1):
        features = Capture(model, dict.fromkeys(shape.attention_features, (layer,)))(**batch)
        found = distributions(features.attention(), shape, mask)
        worst = max(worst, float(((found - maps[layer - 1]) * mask[:, None, :, None]).abs().max()))
    return worst


def distributions(attention: Attention, shape: EncoderShape, mask: torch.Tensor) -> torch.Tensor:
    """(batch, heads, n, n), written out."""
    q, k = (each.unflatten(-1, (shape.heads, -1)).transpose(1, 2) for each in (attention.q, attention.k))
    scores = q @ k.transpose(2, 3) / shape.head_width**0.5
    scores = scores if attention.bias is None else scores + attention.bias
    allowed = mask[:, None, None] if attention.pair_mask is None else mask[:, None, None] & attention.pair_mask
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)


def tap_difference(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> float:
    """The largest difference of any gradient between a pass that ends by a tap and one that ends by an exception."""
    gradients = []
    for tap in (False, True):
        reader = Capture(model, dict.fromkeys(("q", "k", "v"), (LAYERS - 1,)), tap=tap)
        features = reader(**batch)
        reader.close()
        model.zero_grad()
        torch.stack([features.only(feature).sin().sum() for feature in "qkv"]).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    pairs = [(a, b) for a, b in zip(*gradients, strict=True) if a is not None or b is not None]
    return max(float((a - b).abs().max()) if a is not None and b is not None else float("inf") for a, b in pairs)


def flops_share(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> float:
    """Operations up to the queries, keys and values of the last layer but one, of those of a whole pass."""
    counts = []
    for early in (True, False):
        reader = Capture(model, dict.fromkeys(("q", "k", "v"), (LAYERS - 1,)))
        with torch.no_grad(), flop_counter() as counter:
            reader(**batch) if early else model(**batch)
        reader.close()
        counts.append(counter.get_total_flops())
    early, whole = counts
    return float(early / whole)


def distilled(folder: Path) -> dict[str, float]:
    """A short distillation: held-out loss after its first and last step; how far the student is from itself loaded again."""
    held_out = folder / "held-out.txt"
    with gzip.open(WIKIPEDIA_HELD_OUT, "rt", encoding="utf-8") as text:
        held_out.write_text("".join(text.readlines()[:20]), encoding="utf-8")
    run = limbeck.distill(folder / "teacher", corpus=[WIKIPEDIA], holdout=held_out, output=folder / "run", quiet=True, **RECIPE)
    log = map(json.loads, (run.path / "log.jsonl").read_text().splitlines())
    losses = [record["holdout_loss"] for record in log if "holdout_loss" in record]
    student = load_encoder(run.student)
    again = AutoModel.from_pretrained(run.student).eval()
    inputs = {"input_ids": torch.arange(5, 25)[None], "attention_mask": torch.ones(1, 20, dtype=torch.long)}
    with torch.no_grad():
        difference = float((student.model(**inputs)[0] - again(**inputs)[0]).abs().max())
    return {"first_loss": losses[0], "last_loss": losses[-1], "round_trip": difference}


def measure(model_type: str, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """All figures of one family."""
    model = make_model(model_type, tokenizer)
    shape, family = EncoderShape.of(model.config), family_of(model.config)
    texts = ["The still is warm.", "Copper, glass and a very slow fire over twelve large stones in the north", "a"]
    batch = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    if shape.segments < 2:
        batch.pop("token_type_ids")
    with tempfile.TemporaryDirectory() as name, no_progress_bars():
        folder = Path(name)
        model.save_pretrained(folder / "teacher")
        tokenizer.save_pretrained(folder / "teacher")
        return {
            "feature_difference": feature_difference(model, family, batch),
            "attention_difference": attention_difference(model, shape, batch),
            "tap_gradient_difference": tap_difference(model, batch),
            "early_stop_flops": flops_share(model, batch),
            **distilled(folder),
        }


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        f"Random encoders of {LAYERS} layers and width {WIDTH} (`python benchmarks/families.py`). Differences are the largest of "
        "any entry; the early stop is at the last layer but one; loss: on held-out text after the first and after the 20th step.",
        "",
        "| family | q, k, v by hand | attention maps | tap's gradients | operations until the stop | loaded again | loss |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, each in results.items():
        maps = "refused" if each["attention_difference"] is None else f"{each['attention_difference']:.0e}"
        lines.append(
            f"| {name} | {each['feature_difference']:.0e} | {maps} | {each['tap_gradient_difference']:.0e} | "
            f"{each['early_stop_flops']:.0%} | {each['round_trip']:.0e} | {each['first_loss']:.3f} -> {each['last_loss']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    output: Path = parser.parse_args().output
    tokenizer = make_tokenizer()
    results = {name: measure(name, tokenizer) for family in FAMILIES for name in family.model_types}
    (output / "families.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (output / "families.md").write_text(table(results), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
