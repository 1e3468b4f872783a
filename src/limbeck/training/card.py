"""The student's model card, written from what the run did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limbeck.text import count, millions


def model_card(summary: Mapping[str, Any], recipe_yaml: str, remark: str = "") -> str:
    """README.md of a student.

    Args:
        summary: what RUN/summary.json holds.
        recipe_yaml: the resolved recipe.
        remark: what sets these weights apart from the run's last ones, if they are others.
    """
    teacher, student, training = summary["teacher"], summary["student"], summary["training"]
    parameters = student["parameters"]
    untrained = summary["untrained"]
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
                "**Fine-tune it before you use its output**: the last layer's attention output and feed-forward part are random.",
            ]
            if student["init"] == "random"
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
        "(the last layer's attention output and feed-forward part, and the pooler); they keep the weights they began "
        f"with ({student['init']}).",
        f"The pooler's weights {'come from the teacher' if student['pooler_trained'] else 'are random: train it before use'}.",
        "",
        "Made with " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)
