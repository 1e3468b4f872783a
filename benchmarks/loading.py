"""Peak memory of loading a deep teacher up to the layer that is mimicked, against loading it whole.

A BERT of 24 layers and width 1024 with random weights is written once, in float32 and in bf16 (which is widened while it is
loaded), and loaded by fresh processes. A process's peak is given beyond that of one that only imports the libraries.

    python benchmarks/loading.py --output benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from limbeck.samples import WIKIPEDIA_HELD_OUT

LAYERS, READ = 24, 19
REPEATS = 3
PRECISIONS = ("float32", "bfloat16")
MIB = 1 << 20
SPAWN = multiprocessing.get_context("spawn")


def write_teacher(folder: Path, precision: str) -> None:
    """A BERT-large with random weights and a WordPiece tokenizer."""
    import gzip

    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizer

    pieces = BertWordPieceTokenizer()
    with gzip.open(WIKIPEDIA_HELD_OUT, "rt", encoding="utf-8") as text:
        pieces.train_from_iterator(text, vocab_size=3000, show_progress=False)
    config = BertConfig(num_hidden_layers=LAYERS, hidden_size=1024, num_attention_heads=16, intermediate_size=4096)
    BertModel(config).to(getattr(torch, precision)).save_pretrained(folder)
    BertTokenizer(vocab=pieces.get_vocab()).save_pretrained(folder)


def load(folder: str, layers: Sequence[int] | None, pipe: multiprocessing.connection.Connection) -> None:
    """Tell the peak before and after, in bytes, and the seconds in between."""
    import torch

    from limbeck import capture
    from limbeck.encoders.loading import load_encoder

    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    encoder = load_encoder(folder, layers)
    seconds = time.perf_counter() - start
    ids = torch.arange(8)[None]
    with torch.no_grad():
        query = capture(encoder.model, {"input_ids": ids}, {"q": [READ]})["q"]
        checksum = float(query[READ].double().sum())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send({"mib": (after - before) * 1024 / MIB, "seconds": seconds, "checksum": checksum})


def measured(folder: str, layers: Sequence[int] | None) -> dict[str, float]:
    """The medians of several fresh processes."""
    told = []
    for _ in range(REPEATS):
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=load, args=(folder, layers, theirs))
        process.start()
        told.append(ours.recv())
        process.join()
    return {name: median(each[name] for each in told) for name in told[0]}


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    output: Path = parser.parse_args().output
    results = {}
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory() as folder:
            writing = SPAWN.Process(target=write_teacher, args=(Path(folder), precision))
            writing.start()  # a child's peak begins with what its parent held
            writing.join()
            results[precision] = {
                "whole": measured(folder, None),
                "truncated": measured(folder, range(1, READ + 1)),
            }
        if len({each["checksum"] for each in results[precision].values()}) > 1:
            raise SystemExit("The truncated teacher computes something else.")
    (output / "loading.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (output / "loading.md").write_text(table(results), encoding="utf-8")
    print(table(results))


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """The results as Markdown."""
    lines = [
        f"Loading a teacher of {LAYERS} layers, 24x1024, up to layer {READ} (`python benchmarks/loading.py`):",
        "",
        "| weights | whole, MiB | up to layer 19, MiB | share | whole, s | up to layer 19, s |",
        "|---|---|---|---|---|---|",
    ]
    for precision, each in results.items():
        whole, part = each["whole"], each["truncated"]
        lines.append(
            f"| {precision} | {whole['mib']:,.0f} | {part['mib']:,.0f} | {part['mib'] / whole['mib']:.2f} | "
            f"{whole['seconds']:.1f} | {part['seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
