"""A model that has learned nothing, on every language of XNLI and MLQA: what any score there has to be held against.

    LIMBECK_DATA=... python benchmarks/languages.py MODEL_FOLDER --shape 2x32/4

Takes tokenizer and kind of the model in the folder, and random weights in the given shape. Writes languages.json and
languages.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.encoders.students import build_student
from limbeck.recipe import Recipe
from limbeck.tasks.assignment import Assignment
from limbeck.tasks.predict import predict
from limbeck.tasks.question_data import read_questions
from limbeck.tasks.questions import QuestionAssignment
from limbeck.tasks.sentences import SentenceAssignment
from limbeck.tasks.xnli import read_xnli

RESULTS = Path(__file__).parent / "results"
BATCH = 32


def untrained(folder: str, shape: str, seed: int) -> Encoder:
    """A student of the model in a folder with random weights."""
    recipe = Recipe(teacher=folder, corpus=["-"], student=shape, init="random")
    return build_student(load_encoder(folder), recipe.shape, recipe.init, seed)


def languages_of(assignment: Assignment, encoder: Encoder, seed: int) -> dict[str, dict[str, float]]:
    """Scores, rows and seconds of each language, of the encoder under a new head."""
    model, accelerator = assignment.head(encoder, seed).model, Accelerator(cpu=True)
    results = {}
    for split in assignment.splits:
        if split == "dev":
            continue  # all of them together
        start = time.perf_counter()
        judged = predict(assignment, split, model, accelerator, BATCH)
        seconds = time.perf_counter() - start
        rows = {"examples": len(judged.predictions), "rows": len(assignment.source(split))}
        results[split.removeprefix("dev-")] = {**judged.scores, **rows, "seconds": round(seconds, 2)}
        print(assignment.name, split, results[split.removeprefix("dev-")], flush=True)
    return results


def drawn_answers(assignment: QuestionAssignment, seed: int) -> dict[str, dict[str, float]]:
    """The scores of each language where starts and ends are drawn at random."""
    draw = np.random.default_rng(seed)
    results = {}
    for split in assignment.splits:
        if split == "dev":
            continue
        source = assignment.source(split)
        logits = draw.normal(size=(len(source), 2, source.longest))
        results[split.removeprefix("dev-")] = dict(assignment.judge(split, [*logits]).scores)
    return results


def as_markdown(results: dict[str, Any]) -> str:
    setting = results["setting"]
    xnli = [
        f"| {language} | {scores['examples']:,} | {100 * scores['accuracy']:.1f} | {scores['seconds']:.1f} |"
        for language, scores in results["xnli"].items()
    ]
    mlqa = [
        f"| {language} | {scores['examples']:,} | {scores['rows']:,} | {100 * scores['exact']:.2f} / {100 * scores['f1']:.2f} "
        f"| {100 * results['mlqa_drawn'][language]['exact']:.2f} / {100 * results['mlqa_drawn'][language]['f1']:.2f} "
        f"| {scores['seconds']:.1f} |"
        for language, scores in results["mlqa"].items()
    ]
    versions = ", ".join(f"{name} {number}" for name, number in setting["versions"].items())
    return "\n".join(
        [
            f"A model of {setting['shape']} with random weights, seed {setting['seed']}, and the tokenizer of "
            f"{setting['tokenizer']} ({setting['vocabulary']:,} pieces).",
            "",
            "XNLI, dev files, accuracy in per cent; chance is 33.3. A third of the pairs of each file has each label, so that a "
            "model with the same answer to everything has exactly that.",
            "",
            "| language | pairs | accuracy | seconds |",
            "| --- | --- | --- | --- |",
            *xnli,
            "",
            "MLQA, dev files, exact match / F1 in per cent by its own rules; beside it what starts and ends score that are "
            "drawn at random.",
            "",
            "| language | questions | windows | untrained | drawn | seconds |",
            "| --- | --- | --- | --- | --- | --- |",
            *mlqa,
            "",
            f"Windows of {setting['max_length']} tokens that share {setting['overlap']}. Seconds are of tokenising, the forward "
            f"passes and judging, on one thread; the process took {setting['peak_bytes'] / 2**20:.0f} MiB at most. "
            f"Python {setting['python']}, {versions}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the folder of a multilingual encoder")
    parser.add_argument("--shape", default="2x32/4", help="of the untrained model, as distill --student has it (default 2x32/4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-length", type=int, default=384)
    parser.add_argument("--overlap", type=int, default=128)
    parser.add_argument("--output", type=Path, default=RESULTS, help="where languages.json and languages.md go")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, encoder = Path(os.environ["LIMBECK_DATA"]), untrained(arguments.model, arguments.shape, arguments.seed)
    pairs = SentenceAssignment(read_xnli(data), encoder.tokenizer, max_length=128)
    mlqa = data / "squad" / "mlqa"
    questions = QuestionAssignment(
        read_questions("mlqa", [mlqa / "dev-context-en-question-en.json"], dev=mlqa),
        encoder.tokenizer,
        max_length=arguments.max_length,
        overlap=arguments.overlap,
    )
    results: dict[str, Any] = {
        "xnli": languages_of(pairs, encoder, arguments.seed),
        "mlqa": languages_of(questions, encoder, arguments.seed),
        "mlqa_drawn": drawn_answers(questions, arguments.seed),
    }
    results["setting"] = {
        "shape": arguments.shape,
        "seed": arguments.seed,
        "tokenizer": Path(arguments.model).name,
        "vocabulary": len(encoder.tokenizer),
        "max_length": arguments.max_length,
        "overlap": arguments.overlap,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("limbeck", "torch", "transformers", "tokenizers", "numpy")},
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "languages.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.output / "languages.md").write_text(as_markdown(results))
    print(as_markdown(results))


if __name__ == "__main__":
    main()
