"""The documentation says what the code does: tables of fields and schemas are compared with it."""

import json
import re
import shutil
from pathlib import Path

import pytest

import limbeck
from limbeck._settings import described_settings
from limbeck.objectives import METHODS
from limbeck.recipe import Recipe
from limbeck.tasks.recipe import FineTuning

DOCS = Path(__file__).parent.parent / "docs"


def table(kind):
    """The Markdown table of a class of settings."""
    rows = [
        f"| `{setting.name}` | {'required' if setting.required else setting.default or '-'} | {setting.text} |"
        for setting in described_settings(kind)
        if setting.name not in ("name", "objective")
    ]
    return "\n".join(["| field | default | |", "| --- | --- | --- |", *rows])


PAGES = {Recipe: "recipes.md", FineTuning: "tasks.md"} | dict.fromkeys(METHODS, "recipes.md")


@pytest.mark.parametrize("kind", PAGES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented_as_it_is(kind):
    assert table(kind) in (DOCS / PAGES[kind]).read_text(), f"docs/{PAGES[kind]} must hold:\n{table(kind)}"


def documented(section, page="runs.md"):
    """The keys in the first column (or all code spans in a row's second) of a table in a page."""
    text = (DOCS / page).read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return [re.findall(r"`([^`]+)`", line) for line in text.splitlines() if line.startswith("| ")]


def flat(value, path=""):
    """Dotted keys of nested mappings."""
    if not isinstance(value, dict):
        return {path}
    return {key for name, inner in value.items() for key in flat(inner, f"{path}.{name}" if path else name)}


def covers(documented, key, terms):
    """Whether a documented key stands for one that was found."""
    pattern = re.escape(documented).replace(r"\*", r"\w+").replace("<term>", f"({'|'.join(terms)})")
    return re.fullmatch(pattern, key) is not None


@pytest.mark.parametrize("objective", ["minilmv2", "minilm"])
def test_summary_and_log_are_as_documented(distil, objective):
    settings = {"objective": objective, "holdout": "0.1", "eval_every": 2, "keep_best": True, "checkpoint_every": 2}
    run = distil(**settings)
    (run.path / "summary.json").unlink()
    shutil.rmtree(max((run.path / "checkpoints").iterdir()))
    run = distil(**settings, micro_batch_size=3, resume="auto")
    log = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    terms = run.summary["holdout"].keys() - {"loss"}
    keys = [key for row in documented("summary.json")[2:] for key in row if "." in key]
    found = flat(run.summary)
    assert [key for key in found if not any(covers(known, key, terms) for known in keys)] == []
    assert [known for known in keys if not any(covers(known, key, terms) for key in found)] == []
    kinds = [[key for key in row if not key.startswith("--")] for row in documented("log.jsonl")[2:]]
    met = set()
    for record in log:
        (kind,) = [
            place
            for place, known in enumerate(kinds)
            if all(any(covers(each, key, terms) for each in known) for key in record)
            and all(any(covers(each, key, terms) for key in record) for each in known)
        ]
        met.add(kind)
    assert met == set(range(len(kinds)))


def test_the_summary_of_stages_is_as_documented(distil):
    run = distil(student="1x16", init="random", assistant="auto")
    rows = documented("summary.json")
    keys = [key for row in rows[rows.index(["name"]) :] for key in row if key != "training"]
    assert [list(stage) for stage in run.summary["stages"]] == [keys] * 2


def test_the_summary_of_a_fine_tuning_is_as_documented(teacher, tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("text,label\n" + "".join(f"water {number},{'ab'[number % 2]}\n" for number in range(40)))
    settings = {"text": "text", "label": "label", "epochs": 1, "precision": "float32", "keep_best": True, "quiet": True}
    summary = limbeck.finetune(teacher, data=file, output=tmp_path / "run", **settings).summary
    terms = ["dev", *summary["scores"]["dev"]]
    rows = [key for row in documented("summary.json of a fine-tuning", "tasks.md")[2:] for key in row if "." in key]
    keys = [key.replace("<split>", "<term>").replace("<metric>", "<term>") for key in rows]
    found = {key for key in flat(summary) if not key.startswith("training.")}
    assert [key for key in found if not any(covers(known, key, terms) for known in keys)] == []
    assert [known for known in keys if known != "training.*" and not any(covers(known, key, terms) for key in found)] == []
