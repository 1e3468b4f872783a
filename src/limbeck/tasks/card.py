"""The model card of a fine-tuned model, written from what the run did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limbeck.tasks.scores import shown
from limbeck.text import count


def task_card(summary: Mapping[str, Any], model_class: str, recipe_yaml: str, remark: str = "") -> str:
    """README.md of a fine-tuned model.

    Args:
        summary: what RUN/summary.json holds.
        model_class: the transformers class that loads it.
        recipe_yaml: the resolved recipe.
        remark: what sets these weights apart from the run's last ones, if they are others.
    """
    model, task, training = summary["model"], summary["task"], summary["training"]
    answers = model_class.endswith("ForQuestionAnswering")
    auto = "AutoModelForQuestionAnswering" if answers else "AutoModelForSequenceClassification"
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {'question-answering' if answers else 'text-classification'}",
        "tags: [limbeck]",
        "---",
        f"# {model['name']} fine-tuned on {task['name']}",
        *(["", remark] if remark else []),
        "",
        "```python",
        f"from transformers import {auto}, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        f'model = {auto}.from_pretrained("path/to/this/folder")',
        "```",
        "",
        "## Scores",
        "",
        "| split | metric | |",
        "| --- | --- | --- |",
        *(
            f"| {split} | {name.replace('_', ' ')} | {shown(name, value)} |"
            for split, scores in summary["scores"].items()
            for name, value in scores.items()
        ),
        "",
        "Times 100 (thresholds as they are), of the weights at the end of training.",
        "",
        "## Training",
        "",
        f"- {count(task['examples'])} examples, {count(training['steps'])} steps, {training['seconds']:.0f} seconds "
        f"({count(training['tokens_per_second'])} tokens/s) in {training['precision']} on {training['device']}",
        *(f"- {note}" for note in task["notes"]),
        "",
        "```yaml",
        recipe_yaml.rstrip(),
        "```",
        "",
        "Made with " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)
