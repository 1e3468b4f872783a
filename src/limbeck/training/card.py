"""The student's model card, written from what the run did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limbeck.encoders.families import Family
from limbeck.text import count, listed, millions, several
from limbeck.training.reach import modules_of
from limbeck.training.rows import Rows, described_rows

POOLER = f"{Family.pooler}."
"""How names of a pooler's weights begin."""


def first_use(summary: Mapping[str, Any]) -> str:
    """Why a student is to be fine-tuned before its output is used, whichever pooler it has; empty if it need not be.

    Args:
        summary: what RUN/summary.json holds.
    """
    why = {"random": "still random", "foreign": "copied or set to zero, and not trained with the rest"}
    left = {kind: modules_of(name for name in summary["untrained"][kind] if not name.startswith(POOLER)) for kind in why}
    return "; ".join(f"{listed(left[kind])} {'is' if len(left[kind]) == 1 else 'are'} {why[kind]}" for kind in why if left[kind])


def model_card(summary: Mapping[str, Any], recipe_yaml: str, remark: str = "") -> str:
    """README.md of a student.

    Args:
        summary: what RUN/summary.json holds.
        recipe_yaml: the resolved recipe.
        remark: what sets these weights apart from the run's last ones, if they are others.
    """
    teacher, student, training = summary["teacher"], summary["student"], summary["training"]
    parameters, (first, *later) = student["parameters"], student["teachers"]
    why = first_use(summary)
    rows = {table: Rows(**each) for table, each in summary["untrained_rows"].items()}
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: feature-extraction",
        "tags: [limbeck, knowledge-distillation, " + summary["objective"]["name"] + "]",
        "---",
        f"# {student['layers']}x{student['width']} student of {first}",
        "",
        f"An encoder of type {student['model_type']}, {several(student['layers'], 'layer')} and width {student['width']}, "
        f"distilled with Limbeck from {first}{''.join(f', by way of {name}' for name in later)}, by "
        f"{summary['objective']['name']}.",
        *(["", remark] if remark else []),
        "",
        "```python",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        'model = AutoModel.from_pretrained("path/to/this/folder")',
        "```",
        "",
        '`SentenceTransformer("path/to/this/folder")` loads it with mean pooling, not normalised.',
        *(["", f"**Fine-tune it before you use its output**: {why}."] if why else []),
        "",
        "## Size",
        "",
        f"| | teacher{f' ({later[-1]})' if later else ''} | student |",
        "| --- | --- | --- |",
        f"| shape | {teacher['shape']} | {student['shape']} |",
        *(
            f"| {name} parameters | {millions(teacher['parameters'][part])} | {millions(parameters[part])} |"
            for name, part in (("embedding", "embedding"), ("Transformer", "transformer"), ("pooler", "pooler"), ("all", "total"))
            if teacher["parameters"][part] or parameters[part]
        ),
        "",
        "## Training",
        "",
        f"- {several(training['steps'], 'step')}, {several(training['tokens'], 'token')}, {training['seconds']:.0f} seconds "
        f"({count(training['tokens_per_second'])} tokens/s) in {training['precision']} on {training['device']}",
        *(
            [f"- loss at the start {training['first_loss']:.4f}, at the end {training['last_loss']:.4f}"]
            if training["last_loss"] is not None
            else []
        ),
        *([f"- loss on held-out text {summary['holdout']['loss']:.4f}"] if summary["holdout"] else []),
        "",
        "```yaml",
        recipe_yaml.rstrip(),
        "```",
        "",
        "## What was not trained",
        "",
        _out_of_reach(summary["untrained"]["out_of_reach"], summary["tail"], student["init"]),
        f"Never trained in this run were {described_rows(rows)}: no sequence that it read has such a token, place or segment.",
        *([_pooler(trained=student["pooler_trained"])] if parameters["pooler"] else []),
        "",
        "Made with " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


def _out_of_reach(names: Sequence[str], tail: Mapping[str, Any], init: str) -> str:
    """Which tensors these are, and what they hold."""
    kept = f"keep the weights they began with ({init})"
    held: str = {
        "keep": f"these {kept}.",
        "teacher": f"{tail['copied']} of them were copied from the teacher, and {tail['not_copied']} could not be and {kept}.",
        "identity": f"these {kept}, but for the last layer's output projections, which were set to zero, so that it passes its "
        "input on.",
        "hidden": f"these {kept}.",
    }[str(tail["option"])]
    reached = f"The objective's gradient does not reach {several(len(names), 'tensor')} ({listed(modules_of(names))}); {held}"
    if not names:
        reached = "The objective's gradient reaches every tensor."
    if tail["option"] == "hidden":
        reached += " A small term of hidden states, which is not the papers', trained the last layer to its end."
    return reached


def _pooler(*, trained: bool) -> str:
    whence = "come from a trained model" if trained else "are random: train it before use"
    return f"The pooler was not trained in this run; its weights {whence}."
