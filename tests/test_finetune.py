"""Fine-tuning from a recipe to a model that transformers loads and that says what was predicted."""

import csv
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import limbeck
from limbeck.cli import main
from limbeck.encoders.loading import load_encoder
from limbeck.tasks.finetune import read_predictions, write_predictions
from limbeck.tasks.heads import load_sentence_head
from limbeck.training.folder import RunFolder
from runs import content, equal, finish, log_of, start, weights

WORDS = [
    "the",
    "of",
    "and",
    "water",
    "stone",
    "paper",
    "glass",
    "copper",
    "spirit",
    "vapour",
    "still",
    "flask",
    "fire",
    "drop",
    "slow",
    "warm",
    "cold",
    "clear",
    "heavy",
]
QUICK = {"epochs": 12, "learning_rate": 2e-3, "batch_size": 16, "dropout": 0.0, "precision": "float32", "quiet": True}


def sentence(drawn, *more):
    words = drawn.choices(WORDS[:4], k=drawn.randint(3, 9))
    for word in more:
        words.insert(drawn.randrange(len(words) + 1), word)
    return " ".join(words)


@pytest.fixture
def reviews(tmp_path):
    """CSV with quotes and line breaks: stars go by one word; a header in capitals and a column that nobody reads."""
    drawn, file = random.Random(0), tmp_path / "reviews.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(["Id", "Review", "Stars"])
        for number in range(240):
            stars = drawn.choice([1, 3, 5])
            words = sentence(drawn, {1: "cold", 3: "slow", 5: "warm"}[stars])
            rows.writerow([number, f'"{words}",\n{drawn.choice(WORDS[:4])} "again"', stars])
    return file


@pytest.fixture
def topics(tmp_path):
    """JSON lines with lists of labels, some of them empty."""
    drawn, file = random.Random(1), tmp_path / "topics.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for _ in range(320):
            labels = [label for label in ("metal", "heat", "drink") if drawn.random() < 0.4]
            words = sentence(drawn, *({"metal": "copper", "heat": "fire", "drink": "spirit"}[label] for label in labels))
            out.write(json.dumps({"text": words, "topics": labels}) + "\n")
    return file


@pytest.fixture
def prices(tmp_path):
    """TSV of pairs without a header; prices in thousands go by a word of the second text."""
    drawn, file = random.Random(2), tmp_path / "prices.tsv"
    with file.open("w", encoding="utf-8") as out:
        for _ in range(240):
            worth, word = drawn.choice([(1000, "paper"), (5000, "glass"), (20000, "copper")])
            out.write(f"{sentence(drawn)}\t{sentence(drawn, word)}\t{worth + drawn.randint(-50, 50) + 0.5}\n")
    return file


def predictions(run, split="dev"):
    return [json.loads(line) for line in (run.path / "predictions" / f"{split}.jsonl").read_text().splitlines()]


def outputs_of_transformers(run, texts):
    """What plain transformers makes of texts, one by one and hence without padding."""
    model = AutoModelForSequenceClassification.from_pretrained(run.student)
    tokenizer = AutoTokenizer.from_pretrained(run.student)
    with torch.no_grad():
        return model, [model(**tokenizer(*text, return_tensors="pt")).logits[0] for text in texts]


def test_a_csv_of_reviews_with_quotes_and_line_breaks(teacher, reviews, tmp_path):
    run = limbeck.finetune(teacher, data=reviews, text="Review", label="Stars", output=tmp_path / "run", **QUICK)
    assert run.summary["scores"]["dev"]["accuracy"] > 0.9
    with reviews.open(newline="", encoding="utf-8") as file:
        texts = {number: row["Review"] for number, row in enumerate(csv.DictReader(file))}
    lines = reviews.read_text(encoding="utf-8").splitlines()
    dev = predictions(run)[:10]
    chosen = [texts[int(lines[entry["line"] - 1].split(",")[0])] for entry in dev]
    model, outputs = outputs_of_transformers(run, [(text,) for text in chosen])
    assert model.config.id2label == {0: "1", 1: "3", 2: "5"}
    assert [model.config.id2label[int(logits.argmax())] for logits in outputs] == [entry["prediction"] for entry in dev]
    assert np.allclose(torch.stack(outputs).numpy(), [entry["outputs"] for entry in dev], atol=1e-4)


def test_json_lines_with_several_labels(teacher, topics, tmp_path):
    settings = QUICK | {"epochs": 16, "class_weights": "balanced"}
    run = limbeck.finetune(teacher, data=topics, text="text", label="topics", output=tmp_path / "run", **settings)
    assert run.summary["scores"]["dev"]["micro_f1"] > 0.9
    model, outputs = outputs_of_transformers(run, [("the copper of fire",), ("water",)])
    assert [{model.config.id2label[label] for label in (logits > 0).nonzero().flatten().tolist()} for logits in outputs] == [
        {"metal", "heat"},
        set(),
    ]


def test_a_tsv_of_pairs_with_numbers_predicts_in_their_units(teacher, prices, tmp_path):
    columns = {"text": ["1", "2"], "label": "3", "header": False}
    run = limbeck.finetune(teacher, data=prices, **columns, output=tmp_path / "run", keep_best=True, **QUICK)
    assert run.summary["scores"]["dev"]["pearson"] > 0.9
    _, outputs = outputs_of_transformers(run, [("the water", "of glass"), ("the water", "of copper")])
    assert [float(value) for (value,) in outputs] == pytest.approx([5000, 20000], rel=0.3)
    best = AutoModelForSequenceClassification.from_pretrained(run.path / "best")
    assert float(best.state_dict()["classifier.bias"]) == pytest.approx(9000, rel=0.5)


def test_official_files_give_predictions_on_test_in_the_leaderboards_format(teacher, tmp_path, capsys):
    drawn, folder = random.Random(3), tmp_path / "SST-2"
    folder.mkdir()
    for name, number in (("train", 160), ("dev", 40)):
        rows = [(sentence(drawn, "warm" if label else "cold"), label) for label in drawn.choices([0, 1], k=number)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    truth = drawn.choices([0, 1], k=30)
    tests = [sentence(drawn, "warm" if label else "cold") for label in truth]
    (folder / "test.tsv").write_text("index\tsentence\n" + "".join(f"{place}\t{text}\n" for place, text in enumerate(tests)))
    run = limbeck.finetune(teacher, task="SST-2", data=tmp_path, output=tmp_path / "run", **QUICK | {"quiet": False})
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("predicting")]
    assert said == ["predicting test, 30 examples"]  # dev was evaluated at the end
    lines = (run.path / "submission" / "SST-2.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", *(f"{place}\t{label}" for place, label in enumerate(truth))]
    assert run.summary["scores"]["test"] == {}
    assert {entry["prediction"] for entry in predictions(run, "test")} == {"negative", "positive"}


def test_a_run_killed_and_resumed_gives_the_same_model_and_predictions(teacher, reviews, tmp_path):
    given = ["finetune", teacher, "--data", reviews, "--text", "Review", "--label", "Stars", "--quiet"]
    given += ["--epochs", 2, "--precision", "float32", "--batch-size", 16, "--checkpoint-every", 3, "--log-every", 1]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert finish(start([*given, "-o", whole])) == 0
    process = start([*given, "-o", broken])
    while not list(broken.glob("checkpoints/step-*3")) and process.is_alive():
        pass
    process.kill()
    finish(process)
    assert finish(start([*given, "-o", broken, "--resume", "auto"])) == 0
    first, second = (content(run / "student") for run in (whole, broken))
    assert {name for name in first if first[name] != second[name]} == {Path("README.md")}  # which tells the time it took
    assert content(whole / "predictions") == content(broken / "predictions")


def test_early_ending_keeps_the_best_and_ends_there_however_often_it_is_resumed(teacher, reviews, tmp_path):
    settings = QUICK | {"epochs": 12, "patience": 2, "keep_best": True, "checkpoint_every": 5}
    run = limbeck.finetune(teacher, data=reviews, text="Review", label="Stars", output=tmp_path / "run", **settings)
    best, last = run.summary["best"], run.summary["training"]["steps"]
    an_epoch = 14  # 216 examples
    assert last == best["step"] + 2 * an_epoch < 12 * an_epoch
    evaluated = [record["dev_accuracy"] for record in log_of(run) if "dev_accuracy" in record]
    assert max(evaluated) == best["accuracy"]
    (run.path / "summary.json").unlink()
    again = limbeck.finetune(
        teacher, data=reviews, text="Review", label="Stars", output=tmp_path / "run", resume="auto", **settings
    )
    assert again.summary["training"]["steps"] == last
    assert equal(weights(run), weights(again))


def test_patience_alone_keeps_no_second_model(teacher, reviews, tmp_path):
    given = {"data": reviews, "text": "Review", "label": "Stars", "output": tmp_path / "run", **QUICK}
    given |= {"epochs": 2, "patience": 5, "eval_every": 4, "checkpoint_every": 4, "keep_checkpoints": 9}
    run = limbeck.finetune(teacher, **given)
    best = run.summary["best"]["step"]
    (run.path / "summary.json").unlink()
    for folder in (run.path / "checkpoints").iterdir():
        if not folder.name.endswith(f"{best:08d}"):
            shutil.rmtree(folder)
    assert not (limbeck.finetune(teacher, **given, resume="auto").path / "best").exists()


def test_fewer_examples_keep_the_classes_shares(teacher, reviews, tmp_path):
    settings = QUICK | {"epochs": 1, "examples": 60}
    run = limbeck.finetune(teacher, data=reviews, text="Review", label="Stars", output=tmp_path / "run", **settings)
    assert run.summary["task"]["examples"] == 60
    assert run.summary["training"]["steps"] == 4


@pytest.mark.parametrize("save", ["save_bert", "save_roberta", "save_xlm_roberta"])
def test_every_family_takes_a_head_and_comes_back(save, reviews, tmp_path, request):
    folder = request.getfixturevalue(save)(tmp_path / "model")
    settings = QUICK | {"epochs": 1}
    run = limbeck.finetune(folder, data=reviews, text="Review", label="Stars", output=tmp_path / "run", **settings)
    headed, encoder = load_sentence_head(run.path), load_encoder(run.path)
    ids = torch.arange(5, 13)[None]
    with torch.no_grad():
        assert torch.equal(headed.model.base_model(ids)[0], encoder.model(ids)[0])
        assert torch.allclose(headed.model(ids)[0], AutoModelForSequenceClassification.from_pretrained(run.student)(ids)[0])


def test_a_fine_tuned_model_is_fine_tuned_further_under_a_new_head(teacher, reviews, topics, tmp_path):
    quick = QUICK | {"epochs": 1}
    first = limbeck.finetune(teacher, data=reviews, text="Review", label="Stars", output=tmp_path / "first", **quick)
    second = limbeck.finetune(first.path, data=topics, text="text", label="topics", output=tmp_path / "second", **quick)
    assert load_sentence_head(second.path).model.config.id2label == {0: "drink", 1: "heat", 2: "metal"}


REFUSED = {
    "nothing to learn": ({}, ["task", "text", "label"]),
    "both": ({"task": "sst2", "text": "Review", "label": "Stars"}, ["text and label", "sst2"]),
    "unknown task": ({"task": "sst3"}, ["sst3", "did you mean sst2?"]),
    "unknown column": ({"text": "Reviews", "label": "Stars"}, ["Reviews", "Review"]),
    "too long": ({"text": "Review", "label": "Stars", "max_length": 4}, ["max_length"]),
    "share": ({"text": "Review", "label": "Stars", "dev": 1.5}, ["1.5"]),
    "no such split": ({"text": "Review", "label": "Stars", "splits": ["test"]}, ["test", "dev"]),
    "patience": ({"text": "Review", "label": "Stars", "patience": 2, "eval_every": "end"}, ["patience", "eval_every"]),
    "text twice": ({"text": "Review,Review", "label": "Stars"}, ["text", "stands there twice"]),
    "label as text": ({"text": "Stars", "label": "Stars"}, ["Stars", "both text and label"]),
    "nothing separates": ({"text": "Review", "label": "Stars", "separator": ""}, ["separator"]),
    "no such home": ({"text": "Review", "label": "Stars", "dev": "~nobody-of-that-name/dev.csv"}, ["dev", "home directory"]),
    "endless": ({"text": "Review", "label": "Stars", "epochs": 1e308}, ["epochs", "less than"]),
    "kind": ({"task": "sst2", "kind": "regression"}, ["kind", "sst2"]),
    "languages": ({"text": "Review", "label": "Stars", "languages": ["de"]}, ["languages", "Stars"]),
    "training languages": ({"task": "sst2", "train_languages": ["de"]}, ["train_languages", "sst2"]),
    "weights of numbers": ({"text": "Review", "label": "Id", "class_weights": "balanced"}, ["Id", "class_weights"]),
    "epochs and steps": ({"text": "Review", "label": "Stars", "steps": 2}, ["epochs", "steps"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_and_nothing_is_written(teacher, reviews, tmp_path, refused, case):
    settings, named = REFUSED[case]
    with refused(*named):
        limbeck.finetune(teacher, data=reviews, output=tmp_path / "run", **QUICK | settings)
    assert not (tmp_path / "run").exists()


def test_examples_longer_than_the_model_are_refused(save_bert, tmp_path, refused):
    folder = save_bert(tmp_path / "short", max_position_embeddings=16)
    file = tmp_path / "long.csv"
    file.write_text("text,label\n" + "".join(f"{'water ' * 30}{row},{'ab'[row % 2]}\n" for row in range(40)))
    with refused("34", "16 positions", "--max-length"):
        limbeck.finetune(folder, data=file, text="text", label="label", output=tmp_path / "run", **QUICK)


def test_the_command_prints_scores_and_its_json_is_the_summary(teacher, reviews, tmp_path, capsys):
    given = ["finetune", teacher, "--data", reviews, "--text", "Review", "--label", "Stars", "--epochs", 1]
    given += ["--precision", "float32", "-o", tmp_path / "run"]
    assert main([str(part) for part in given]) == 0
    shown = capsys.readouterr()
    assert "accuracy" in shown.out
    assert "3 classes" in shown.err
    assert main([*map(str, given), "--resume", "auto", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_other_labels_or_names_of_labels_are_noticed_on_resuming(teacher, reviews, tmp_path, refused):
    dev = tmp_path / "dev.csv"
    text = reviews.read_text()
    dev.write_text(text)
    settings = QUICK | {"data": reviews, "dev": dev, "text": "Review", "label": "Stars", "steps": 2, "epochs": None}
    limbeck.finetune(teacher, output=tmp_path / "run", **settings)
    limbeck.finetune(teacher, output=tmp_path / "run", resume="auto", **settings)
    dev.write_text(text.replace(",3", ",1"))
    with refused("task has changed"):
        limbeck.finetune(teacher, output=tmp_path / "run", resume="auto", **settings)
    for file in (reviews, dev):  # in the same order, so that their numbers stay
        file.write_text(text.replace(",3", ",4"))
    with refused("task has changed"):
        limbeck.finetune(teacher, output=tmp_path / "run", resume="auto", **settings)


def test_predictions_with_any_character_are_read_again(tmp_path):
    entries = [{"id": number, "answer": f"a{chr(code)}b"} for number, code in enumerate((10, 13, 0x85, 0x2028, 0x2029, 0x1F525))]
    write_predictions(RunFolder(tmp_path), "dev", entries)
    assert read_predictions(tmp_path, "dev") == entries


def test_a_finished_run_whose_weights_are_gone_is_finished_again(teacher, reviews, tmp_path):
    settings = {"text": "Review", "label": "Stars", "data": reviews, "output": tmp_path / "run", "steps": 2, "quiet": True}
    settings |= {"precision": "float32", "max_length": 16, "checkpoint_every": 1}
    run = limbeck.finetune(teacher, **settings)
    before = (run.student / "model.safetensors").read_bytes()
    (run.student / "model.safetensors").unlink()
    limbeck.finetune(teacher, **settings, resume="auto")
    assert (run.student / "model.safetensors").read_bytes() == before


def test_a_column_of_any_name_is_shown_as_it_is(teacher, tmp_path, capsys):
    file = tmp_path / "a.csv"
    file.write_text("text,[/b] | [red]\n" + "".join(f"water {row},{'ab'[row % 2]}\n" for row in range(40)))
    given = ["finetune", teacher, "--data", file, "--text", "text", "--label", "[/b] | [red]", "--steps", 1]
    assert main([*map(str, given), "--precision", "float32", "-o", str(tmp_path / "run")]) == 0
    assert "[/b] | [red]" in capsys.readouterr().out
