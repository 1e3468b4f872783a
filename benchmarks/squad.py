"""Fine-tuning on questions: half the articles of a SQuAD 2.0 dev file and TyDi QA's English train file, tested on the rest.

    LIMBECK_DATA=... python benchmarks/squad.py MODEL_FOLDER... --seeds 0 1 2 --work WORK

Windows of 384 tokens that share 128, 2 epochs, batches of 32. Results are written after each run; a run that OUTPUT/squad.json
has with the same settings is not done again, and one that was ended goes on where its checkpoint in WORK is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from limbeck.studies.tuning import file_name
from limbeck.tasks.finetune import finetune
from limbeck.training.summary import public_name

RESULTS = Path(__file__).parent / "results"
TRAINED = (
    "1973_oil_crisis",
    "Force",
    "Imperialism",
    "Islamism",
    "Packet_switching",
    "Scottish_Parliament",
    "Warsaw",
    "Yuan_dynasty",
)
"""The articles that are trained on: 3,041 questions, 1,455 of them answerable; 3,037 and 1,455 are left to test on."""
SETTINGS: dict[str, Any] = {
    "max_length": 384,
    "overlap": 128,
    "epochs": 2,
    "batch_size": 32,
    "eval_every": "end",
}
TRAINING = ("steps", "tokens", "seconds", "tokens_per_second", "precision", "device")
SHOWN = ("exact", "f1", "has_answer_f1", "no_answer_f1", "best_f1", "best_f1_threshold", "always_null_f1")


def divide(squad: Path, folder: Path, tested: int | None) -> tuple[Path, Path]:
    """Write the articles to train on and those to test on, each to a file of its own; of the latter so many questions only."""
    articles = json.loads(squad.read_text(encoding="utf-8"))["data"]
    if missing := {*TRAINED} - {article["title"] for article in articles}:
        raise SystemExit(f"{squad} lacks the articles {', '.join(sorted(missing))}")
    files = folder / "train.json", folder / "test.json"
    for file, trained in zip(files, (True, False), strict=True):
        chosen = [article for article in articles if (article["title"] in TRAINED) == trained]
        if not trained and tested is not None:
            for article in chosen:
                article["paragraphs"] = _first(article["paragraphs"], tested // len(chosen))
        file.write_text(json.dumps({"version": "v2.0", "data": chosen}), encoding="utf-8")
    return files


def _first(paragraphs: list[dict[str, Any]], questions: int) -> list[dict[str, Any]]:
    """The first paragraphs, until they have so many questions."""
    before = accumulate((len(paragraph["qas"]) for paragraph in paragraphs), initial=0)
    return [paragraph for paragraph, asked in zip(paragraphs, before, strict=False) if asked < questions]


def run(model: str, data: Path, learning_rate: float, seed: int, questions: int | None, work: Path) -> dict[str, Any]:
    """Fine-tune a model and test it; returns its scores and how long it took."""
    tydiqa = data / "squad" / "tydiqa_goldp" / "tydiqa.goldp.en.train.json.gz"
    train, test = divide(data / "squad" / "dev-v2.0.json", work, questions)
    done = finetune(
        model,
        task="squad",
        data=[train, tydiqa],
        dev=str(test),
        output=work / file_name(public_name(model)) / f"seed-{seed}",
        learning_rate=learning_rate,
        seed=seed,
        examples=questions,
        checkpoint_every=20,
        keep_checkpoints=1,
        resume="auto",
        **SETTINGS,
    )
    training = {key: done.summary["training"][key] for key in TRAINING}
    return {"name": public_name(model), "seed": seed, **done.summary["scores"]["dev"], "training": training}


def earlier(file: Path, setting: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs that a file of results has with the same settings."""
    if not file.is_file():
        return []
    results = json.loads(file.read_text(encoding="utf-8"))
    return list(results["runs"]) if results["setting"] == setting else []


def as_markdown(results: dict[str, Any]) -> str:
    """A line a run, and the mean of each model's."""
    setting, runs = results["setting"], results["runs"]
    lines = []
    for name in dict.fromkeys(each["name"] for each in runs):
        own = [each for each in runs if each["name"] == name]
        rows = [(str(each["seed"]), each) for each in own]
        if len(own) > 1:
            rows.append(("mean", {key: float(np.mean([each[key] for each in own])) for key in SHOWN}))
        lines += [f"| {name} | {seed} | {' | '.join(_shown(key, scores[key]) for key in SHOWN)} |" for seed, scores in rows]
    drawn = f"; only about {setting['questions']:,} questions of each" if setting["questions"] else ""
    versions = ", ".join(f"{name} {number}" for name, number in setting["versions"].items())
    seconds = " / ".join(f"{each['training']['seconds']:.0f}" for each in runs)
    return "\n".join(
        [
            "Trained on eight articles of SQuAD 2.0's dev file and on TyDi QA GoldP in English, tested on the dev file's other "
            f"eight{drawn}. {setting['epochs']} epochs, batches of {setting['batch_size']}, learning rate "
            f"{setting['learning_rate']:g}, windows of {setting['max_length']} tokens that share {setting['overlap']}, "
            f"{runs[0]['training']['precision']}. In per cent; the threshold is a difference of logits, the best one for the "
            "test articles themselves.",
            "",
            f"| model | seed | {' | '.join(key.replace('_', ' ') for key in SHOWN)} |",
            f"| {' | '.join(['---'] * (2 + len(SHOWN)))} |",
            *lines,
            "",
            f"Training took {seconds} seconds on {runs[0]['training']['device']}, {setting['threads']} threads. "
            f"Python {setting['python']}, {versions}.",
            "",
        ]
    )


def _shown(key: str, value: float) -> str:
    return f"{value:.2f}" if key.endswith("_threshold") else f"{100 * value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders of encoders")
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="that of the protocol small unless it is given")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--questions", type=int, help="train and test on about so many questions only, to try it out")
    parser.add_argument("--work", type=Path, required=True, help="where the runs go")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where squad.json and squad.md go")
    arguments = parser.parse_args()
    setting = {
        **SETTINGS,
        "learning_rate": arguments.learning_rate,
        "questions": arguments.questions,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("limbeck", "torch", "transformers", "tokenizers", "numpy")},
    }
    for folder in (arguments.output, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)
    data, runs = Path(os.environ["LIMBECK_DATA"]), earlier(arguments.output / "squad.json", setting)
    for model in arguments.models:
        for seed in arguments.seeds:
            if (public_name(model), seed) in [(each["name"], each["seed"]) for each in runs]:
                continue
            runs.append(run(model, data, arguments.learning_rate, seed, arguments.questions, arguments.work))
            results = {"setting": setting, "runs": runs}
            (arguments.output / "squad.json").write_text(json.dumps(results, indent=2) + "\n")
            (arguments.output / "squad.md").write_text(as_markdown(results))
    print(as_markdown({"setting": setting, "runs": runs}))


if __name__ == "__main__":
    main()
