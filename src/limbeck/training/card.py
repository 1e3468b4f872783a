"""The student's model card, written from what the run did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limbeck.text import count, millions
from limbeck.training.rows import Rows, described_rows

FIRST_USE = {
    "keep": "the last layer's attention output and feed-forward part are random",
    "teacher": "the last layer's attention output and feed-forward part are the teacher's and were not trained with the rest",
    "identity": "the last layer's attention output and feed-forward part add nothing yet",
}
"""Why a student of random weights is to be fine-tuned, by what became of its tail."""


def model_card(summary: Mapping[str, Any], recipe_yaml: str, remark: str = "") -> str:
    """README.md of a student.

    Args:
        summary: what RUN/summary.json holds.
        recipe_yaml: the resolved recipe.
        remark: what sets these weights apart from the run's last ones, if they are others.
    """
    teacher, student, training = summary["teacher"], summary["student"], summary["training"]
    parameters = student["parameters"]
    untrained, tail = summary["untrained"], summary["tail"]
    rows = {table: Rows(**each) for table, each in summary["untrained_rows"].items()}
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: feature-extraction",
        "tags: [limbeck, knowledge-distillation, " + summary["objective"]["name"] + "]",
        "---",
        f"# {student['layers']}x{student['width']} student of {teacher['name']}",
        "",
        f"A {student['model_type'].upper()} encoder of {student['layers']} layers and width {student['width']}, distilled with "
        f"Limbeck by {summary['objective']['name']}.",
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
        *(
            [
                "",
                f"**Fine-tune it before you use its output**: {FIRST_USE[tail['option']]}.",
            ]
            if student["init"] == "random" and tail["option"] in FIRST_USE
            else []
        ),
        "",
        "## Size",
        "",
        "| | teacher | student |",
        "| --- | --- | --- |",
        f"| shape | {teacher['shape']} | {student['shape']} |",
        *(
            f"| {name} parameters | {millions(teacher['parameters'][part])} | {millions(parameters[part])} |"
            for name, part in (("embedding", "embedding"), ("Transformer", "transformer"), ("pooler", "pooler"), ("all", "total"))
        ),
        "",
        "## Training",
        "",
        f"- {count(training['steps'])} steps, {count(training['tokens'])} tokens, {training['seconds']:.0f} seconds "
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
        f"The objective's gradient does not reach {len(untrained['out_of_reach'])} tensors behind the features it reads "
        + _out_of_reach(tail, student["init"]),
        f"Never trained were {described_rows(rows)}: the text has no such token, place or segment.",
        f"The pooler's weights {'come from the teacher' if student['pooler_trained'] else 'are random: train it before use'}.",
        "",
        "Made with " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


def _out_of_reach(tail: Mapping[str, Any], init: str) -> str:
    """Which tensors these are, and what they hold."""
    behind = "(the last layer's attention output and feed-forward part, and the pooler); "
    kept = f"they keep the weights they began with ({init})."
    return {
        "keep": behind + kept,
        "teacher": f"{behind}{tail['copied']} of them were copied from the teacher, {tail['not_copied']} could not be and keep "
        f"the weights they began with ({init}).",
        "identity": f"{behind}the last layer's output projections were set to zero, so that it passes its input on.",
        "hidden": f"(the pooler); {kept} A small term of hidden states, which is not the papers', trained the last layer's "
        "attention output and feed-forward part.",
    }[tail["option"]]
