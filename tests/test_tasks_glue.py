"""GLUE and XNLI: the real files, broken ones, and the leaderboard's format."""

import gzip
from collections import Counter

import numpy as np
import pytest

from limbeck.tasks.glue import GLUE, read_glue, read_split
from limbeck.tasks.holdout import hold_out
from limbeck.tasks.metrics import METRICS
from limbeck.tasks.similarity import read_sts
from limbeck.tasks.submission import write_submission
from limbeck.tasks.xnli import LANGUAGES, read_xnli


@pytest.fixture
def write(tmp_path):
    """Write a file of lines of fields below the test's folder."""

    def write(name, *rows, end="\n"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join("\t".join(row) + end for row in rows), encoding="utf-8", newline="")
        return file

    return write


def counts(data, split):
    return dict(Counter(data.task.labels[number] for number in data.targets(split)))


HEADER = ("sentence", "label")
RTE = ("index", "sentence1", "sentence2", "label")
MNLI = ("index", "genre", "sentence1", "sentence2", "label1", "gold_label")


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("cola", "train", {"acceptable": 6023, "unacceptable": 2528}),
        ("cola", "dev", {"acceptable": 721, "unacceptable": 322}),
        ("SST-2", "train", {"positive": 37569, "negative": 29780}),
        ("mrpc", "train", {"equivalent": 2474, "not_equivalent": 1194}),
        ("mrpc", "dev", {"equivalent": 279, "not_equivalent": 129}),
        ("RTE", "train", {"entailment": 1249, "not_entailment": 1241}),
        ("qnli", "dev", {"entailment": 2702, "not_entailment": 2761}),
        ("WNLI", "train", {"entailment": 312, "not_entailment": 323}),
    ],
)
def test_real_files_have_the_official_counts(real_data, name, split, expected):
    data = read_glue(name, real_data)
    assert counts(data, split) == expected
    assert data.notes == ()


def test_real_scores_are_read_from_both_of_their_formats(real_data):
    data = read_glue("STS-B", real_data / "glue")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 5749, "dev": 1500, "test": 1379}
    assert all(0 <= data.targets(name).min() < data.targets(name).max() <= 5 for name in data.splits)
    pairs, scores = read_sts(real_data / "glue" / "STS-B" / "dev.tsv")
    assert pairs[0] == ("A man with a hard hat is dancing.", "A man wearing a hard hat is dancing.")
    assert scores.tolist() == pytest.approx(data.targets("dev"))


@pytest.mark.parametrize(("name", "rows"), [("cola", 1063), ("sst2", 1821), ("rte", 3000), ("qnli", 5463), ("wnli", 146)])
def test_real_test_files_have_no_labels(real_data, name, rows, refused):
    data = read_glue(name, real_data)
    assert len(data.split("test")) == rows
    assert {example.label for example in data.split("test").examples} == {None}
    with refused("test.tsv", "no labels"):
        data.targets("test")


def test_quotation_marks_are_characters_and_nothing_is_stripped(write):
    rows = [('"It is', "1"), ('a "fine" film" ', "0"), ("say 'no", "1")]
    file = write("SST-2/train.tsv", HEADER, *rows)
    examples = read_split(GLUE["sst2"], file, "train").examples
    assert [(example.text, example.label, example.line) for example in examples] == [
        (text, int(label), line) for line, (text, label) in enumerate(rows, start=2)
    ]


def test_labels_and_texts_are_found_by_the_names_of_their_columns(write):
    file = write("train.tsv", ("label", "extra", "sentence2", "sentence1"), ("not_entailment", "x", "B", "A"))
    (example,) = read_split(GLUE["rte"], file, "train").examples
    assert (example.text, example.second, example.label) == ("A", "B", 1)


def test_bad_rows_are_left_out_and_reported_with_their_lines(write, tmp_path):
    rows = [[f"text {number}", "1"] for number in range(300)]
    rows[10] = ["short"]
    rows[20] = ["a tab before\t1", "0"]
    rows[30] = ["text", "2"]
    rows[40] = [" ", "1"]
    write("sst2/TRAIN.tsv", HEADER, *rows, [""], [" "], [""])
    data = read_glue("SST-2", tmp_path)
    train = data.split("train")
    assert [row.place for row in train.bad] == ["line 12", "line 22", "line 32", "line 42"]
    assert [example.text for example in train.examples] == [
        row[0] for place, row in enumerate(rows) if place not in (10, 20, 30, 40)
    ]
    (note,) = data.notes
    assert all(
        word in note for word in ("TRAIN.tsv", "4 of 300", "line 12: 1 columns instead of 2", "'2' is none of 0, 1", "no text")
    )


@pytest.mark.parametrize(
    ("name", "rows", "problem"),
    [
        ("sst2", [HEADER, ("a",), ("b", "1")], "train.tsv, line 2: 1 columns instead of 2"),
        ("sst2", [HEADER, ("a", "-1"), ("b", "1")], "line 2: the label '-1' is none of 0, 1"),
        ("sst2", [("text", "label"), ("a", "1")], "no column 'sentence'; the columns are text, label"),
        ("sst2", [("sentence", "label", "label"), ("a", "1", "0")], "there is more than one column 'label'"),
        ("sst2", [HEADER], "holds no example"),
        ("sst2", [], "is empty"),
        ("rte", [RTE, ("0", "a", "b", "contradiction")], "none of entailment, not_entailment"),
        ("rte", [RTE, ("0", "a", "b", "0")], "none of entailment, not_entailment"),
        ("stsb", [("sentence1", "sentence2", "score"), ("a", "b", "5.5")], "line 2: the score 5.5 is not between 0 and 5"),
        ("stsb", [("sentence1", "sentence2", "score"), ("a", "b", "nan")], "line 2: the score nan is not between"),
        ("stsb", [("sentence1", "sentence2", "score"), ("a", "b", "high")], "line 2: the score 'high' is no number"),
        ("cola", [("gj04", "1", "", "a"), ("gj04", "1", "a")], "line 2: 3 columns instead of 4"),
    ],
)
def test_files_that_are_not_in_the_format_are_refused(write, tmp_path, name, rows, problem, refused):
    write("train.tsv", *rows)
    with refused("train.tsv", problem):
        read_glue(name, tmp_path)


def test_cola_is_read_with_and_without_a_header(write):
    bare = write("train.tsv", ("gj04", "0", "*", "They drank the pub."), ("gj04", "1", "", "sentence"))
    assert [(example.text, example.label) for example in read_split(GLUE["cola"], bare, "train").examples] == [
        ("They drank the pub.", 0),
        ("sentence", 1),
    ]
    headed = write("test.tsv", ("index", "sentence"), ("0", "They drank."))
    assert [(example.text, example.label) for example in read_split(GLUE["cola"], headed, "test").examples] == [
        ("They drank.", None)
    ]


def test_a_label_of_minus_one_in_a_test_file_is_none(write):
    file = write("test.tsv", HEADER, ("a", "-1"), ("b", "-1"))
    assert not read_split(GLUE["sst2"], file, "test").labelled


def test_mnli_has_two_dev_sets_of_which_the_matched_one_selects(write, tmp_path):
    for name, label in (("train", "neutral"), ("dev_matched", "entailment"), ("dev_mismatched", "contradiction")):
        write(f"MNLI/{name}.tsv", MNLI, ("0", "x", "a", "b", "-", label), end="\r\n")
    write("MNLI/test_matched.tsv", MNLI[:4], ("0", "x", "a", "b"))
    data = read_glue("mnli", tmp_path)
    assert [counts(data, name) for name in ("train", "dev_matched", "dev_mismatched")] == [
        {"neutral": 1},
        {"entailment": 1},
        {"contradiction": 1},
    ]
    assert data.task.dev == "dev_matched"
    assert data.split("test_matched").examples[0].label is None


@pytest.mark.parametrize("folder", [".", "RTE", "rte", "glue/RTE", "GLUE/rte"])
@pytest.mark.parametrize("file", ["train.tsv", "TRAIN.TSV"])
def test_a_task_is_found_in_every_layout(write, tmp_path, folder, file):
    write(f"{folder}/{file}", RTE, ("0", "a", "b", "entailment"))
    assert counts(read_glue("rte", tmp_path), "train") == {"entailment": 1}


def test_compressed_files_are_read(tmp_path):
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress("\ufeffsentence\tlabel\na\t1\n".encode()))
    assert counts(read_glue("sst2", tmp_path), "dev") == {"positive": 1}


def test_another_tasks_folder_is_never_taken_for_this_ones(write, tmp_path, refused):
    write("RTE/train.tsv", RTE, ("0", "a", "b", "entailment"))
    with refused("WNLI", "train.tsv"):
        read_glue("wnli", tmp_path / "RTE")


def test_what_is_missing_is_named_with_what_is_there(write, tmp_path, refused):
    write("QNLI/dev.tsv", ("index", "question", "sentence", "label"), ("0", "a", "b", "entailment"))
    with refused("QNLI", "train", "there are dev"):
        read_glue("qnli", tmp_path).split("train")
    with refused("no file of RTE", "train.tsv"):
        read_glue("rte", tmp_path)
    with refused("no folder", "nowhere"):
        read_glue("rte", tmp_path / "nowhere")
    with refused("'qnly'", "did you mean qnli"):
        read_glue("qnly", tmp_path)


def test_every_task_of_the_table_is_scored_by_metrics_that_exist():
    assert {name: glue.task.metrics for name, glue in GLUE.items() if glue.task.metrics != ("accuracy",)} == {
        "cola": ("matthews",),
        "mrpc": ("accuracy", "f1"),
        "qqp": ("accuracy", "f1"),
        "stsb": ("spearman", "pearson"),
    }
    assert {name for glue in GLUE.values() for name in glue.task.metrics} <= METRICS.keys()
    assert all(glue.task.labels[1] != "not_" + glue.task.labels[0] for glue in GLUE.values() if "f1" in glue.task.metrics)


@pytest.mark.parametrize(
    ("name", "split", "predictions", "file", "lines"),
    [
        ("rte", "test", [1, 0], "RTE.tsv", ["0\tnot_entailment", "1\tentailment"]),
        ("wnli", "test", [1, 0], "WNLI.tsv", ["0\t1", "1\t0"]),
        ("mnli", "test_mismatched", [2, 1], "MNLI-mm.tsv", ["0\tcontradiction", "1\tneutral"]),
        ("stsb", "test", np.float32([5.3, 1.23456]), "STS-B.tsv", ["0\t5.000", "1\t1.235"]),
    ],
)
def test_predictions_are_written_as_the_leaderboard_wants_them(write, tmp_path, name, split, predictions, file, lines):
    data = read_split(GLUE[name], write("t.tsv", ("index", *GLUE[name].texts), ("0", "a", "b"), ("1", "c", "d")), split)
    written = write_submission(tmp_path / "out", GLUE[name], data, predictions)
    assert written == tmp_path / "out" / file
    assert written.read_bytes().decode() == "\n".join(["index\tprediction", *lines, ""])
    assert list(written.parent.iterdir()) == [written]


def test_no_submission_is_written_whose_indices_would_be_wrong(write, tmp_path, refused):
    rows = [(str(number), "text") for number in range(100)]
    rows[3] = ("3",)
    split = read_split(GLUE["cola"], write("test.tsv", ("index", "sentence"), *rows), "test")
    with refused("line 5"):
        write_submission(tmp_path / "out", GLUE["cola"], split, [0] * 99)
    assert not (tmp_path / "out").exists()


def test_real_xnli_is_balanced_in_every_language_and_aligned(real_data):
    data = read_xnli(real_data)
    for language in LANGUAGES:
        assert counts(data, f"dev-{language}") == dict.fromkeys(data.task.labels, 830)
        assert (data.targets(f"dev-{language}") == data.targets("dev-en")).all()
    assert len(data.split(data.task.dev)) == 15 * 2490
    assert all("\r" not in (example.second or "") for example in data.split("dev").examples)


def test_real_xnli_is_divided_by_pairs_across_languages(real_data):
    data = read_xnli(real_data, ["en", "zh", "sw"])
    assert list(data.splits) == ["dev", "dev-en", "dev-zh", "dev-sw"]
    train, held = hold_out(data.split("dev"), 0.2)
    assert len(held) == 3 * 3 * 166
    assert not {example.group for example in train.examples} & {example.group for example in held.examples}
    alone = hold_out(data.split("dev-zh"), 0.2)[1]
    assert {example.group for example in alone.examples} == {example.group for example in held.examples}


def test_each_way_of_writing_xnli_is_read(write, tmp_path, refused):
    write("dev-de.tsv", ("p", "h1", "neutral"), ("p", "h2", "contradiction"), ("p", "h3", "entailment"), ("q", "h", "neutral"))
    write("multinli.train.de.tsv", ("premise", "hypo", "label"), ("p", "h", "contradictory"), ("p", "h", "neutral"))
    official = ("language", "gold_label", "sentence1", "sentence2", "promptID", "pairID")
    write("xnli.test.tsv", official, ("fr", "neutral", "a", "b", "7", "1"), ("de", "entailment", "c", "d", "8", "2"))
    data = read_xnli(tmp_path, ["de"])
    assert [example.group for example in data.split("dev-de").examples] == ["0", "0", "0", "1"]
    assert counts(data, "train-de") == {"contradiction": 1, "neutral": 1}
    assert [example.group for example in data.split("train-de").examples] == ["0", "1"]
    assert [(example.text, example.group) for example in data.split("test-de").examples] == [("c", "8")]
    with refused("sw"):
        read_xnli(tmp_path, ["dev", "sw"])
    (tmp_path / "other").mkdir()
    with refused("dev-en.tsv"):
        read_xnli(tmp_path / "other")
