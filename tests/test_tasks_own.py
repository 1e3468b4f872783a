"""The user's own task: tables of every kind, how labels are understood, what is held out, and what is refused."""

import csv
import gzip
import io
import json
from collections import Counter
from decimal import Decimal

import pytest

from limbeck import UserError
from limbeck.tasks.own import read_own

REVIEWS = [
    ('She said "no",\nthen yes; twice', "5"),
    ("Fine, really", "3"),
    ("Broken\r\non arrival", "1"),
    ("naïve – 東京", "5"),
] * 10


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


def as_csv(rows, delimiter=","):
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue()


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def numbered(labels):
    """A CSV file with a text of its own for each label."""
    return as_csv([("text", "label"), *((f"text {place}", label) for place, label in enumerate(labels))])


def everything(data):
    return [example for split in data.splits.values() for example in split.examples]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_with_quotes_and_line_breaks(write, delimiter, mark):
    file = write("reviews.csv", mark + as_csv([("stars", "id", "review"), *((s, "x", r) for r, s in REVIEWS)], delimiter))
    data = read_own(file, ["review"], "stars", dev=file)
    assert (data.task.kind, data.task.labels, data.task.name) == ("classification", ("1", "3", "5"), "stars")
    read = [(example.text, data.task.labels[example.label]) for example in data.split("train").examples]
    assert read == REVIEWS
    assert data.split("dev").examples == data.split("train").examples
    assert [example.line for example in data.split("train").examples[:4]] == [2, 4, 5, 7]
    note, overlap = data.notes
    assert overlap.startswith("40 of 40 examples to evaluate on are trained on")
    assert all(part in note for part in ("stars: 3 classes: 1, 3, 5", "classification", "regression predicts the number instead"))


def test_json_lines_with_several_labels(write):
    rows = [
        {"a": "x y", "b": "z", "tags": ["red", "blue"]},
        {"a": "u", "b": "v", "tags": []},
        {"a": "w", "b": "", "tags": ["green", "red", "red"]},
    ]
    file = write("tags.jsonl", as_jsonl(rows) + "\n\n")
    data = read_own(file, ["a", "b"], "tags", dev=file)
    assert data.task.kind == "multi-label"
    assert data.task.labels == ("blue", "green", "red")
    assert data.targets("train").tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 1]]
    assert [(example.text, example.second) for example in data.split("dev").examples] == [("x y", "z"), ("u", "v"), ("w", "")]


def test_tsv_of_numbers_without_a_header(write):
    file = write("scores.tsv", 'A "cat" sits.\t0.5\tA cat\nB\t4\tb"\nC\t-1e1\tc\n')
    data = read_own(file, ["1", "3"], "2", dev=file, header=False)
    assert data.task.kind == "regression"
    assert data.task.range == (-10, 4)
    assert data.targets("train").tolist() == [0.5, 4.0, -10.0]
    assert [(example.text, example.second) for example in data.split("train").examples][:2] == [
        ('A "cat" sits.', "A cat"),
        ("B", 'b"'),
    ]
    assert "regression" in data.notes[0]


def test_parquet_is_read_by_row(tmp_path, refused):
    pytest.importorskip("pyarrow", reason="pip install 'limbeck[data]'")
    import pyarrow.parquet

    file = tmp_path / "a.parquet"
    columns = {"text": ["a", "b", "c"] * 100, "label": [1.0, 2.0, 1.0] * 100, "tags": [["x"], [], ["x", "y"]] * 100}
    columns["label"][7] = None
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    data = read_own(file, ["1"], "label", dev=file)
    assert data.task.labels == ("1", "2")
    assert [row.place for row in data.split("train").bad] == ["row 8"]
    assert read_own(file, ["text"], "tags", dev=file).targets("dev")[:3].tolist() == [[1, 0], [0, 0], [1, 1]]
    with refused("'words'", "text, label, tags"):
        read_own(file, ["words"], "label")


def test_decimals_are_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'limbeck[data]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    labels = [Decimal(f"{row}.25") for row in range(60)]
    table = pyarrow.table({"text": [f"text {row}" for row in range(60)], "label": labels})
    parquet.write_table(table, tmp_path / "a.parquet")
    data = read_own(tmp_path / "a.parquet", ["text"], "label")
    assert (data.task.kind, data.task.range) == ("regression", (0.25, 59.25))


@pytest.mark.parametrize("packed", ["gz", "zst"])
def test_compressed_tables_are_read(write, packed):
    content = numbered("ab" * 10).encode()
    if packed == "zst":
        content = pytest.importorskip("zstandard", reason="pip install 'limbeck[data]'").ZstdCompressor().compress(content)
    else:
        content = gzip.compress(content)
    assert len(everything(read_own(write(f"a.csv.{packed}", content), ["text"], "label"))) == 20


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        (["yes", "no", "yes"], "classification", ("no", "yes")),
        (["1", "2.0", "1.0", "01"], "classification", ("01", "1", "2")),
        (["10", "9", "1"], "classification", ("1", "9", "10")),
        (["1", "2", "n/a"], "classification", ("1", "2", "n/a")),
        (["1", "2.5", "3"], "regression", ()),
        ([str(number) for number in range(21)], "regression", ()),
        ([str(number % 20) for number in range(60)], "classification", tuple(map(str, range(20)))),
        ([f"{number / 7:.2f}" for number in range(99)] + ["n/a"], "regression", ()),
    ],
)
def test_the_labels_tell_the_kind_and_the_notes_say_so(write, labels, kind, names):
    file = write("a.csv", numbered(labels))
    data = read_own(file, ["text"], "label", dev=file)
    assert (data.task.kind, data.task.labels) == (kind, names)
    assert kind in data.notes[0]


def test_the_user_decides_the_kind(write):
    file = write("a.csv", numbered(["1", "2", "3"]))
    assert read_own(file, ["text"], "label", dev=file, kind="regression").targets("dev").tolist() == [1, 2, 3]
    file = write("b.csv", numbered([str(number) for number in range(30)] * 2))
    assert len(read_own(file, ["text"], "label", dev=file, kind="classification").task.labels) == 30


def test_several_labels_in_one_cell_are_divided_by_a_separator(write):
    file = write("a.csv", numbered(["red; blue", "blue", "", "green;"]))
    data = read_own(file, ["text"], "label", dev=file, separator=";")
    assert data.task.labels == ("blue", "green", "red")
    assert data.targets("train").tolist() == [[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_truth_values_of_json_are_classes(write):
    file = write("a.jsonl", as_jsonl([{"t": "a", "l": True}, {"t": "b", "l": False}]))
    assert read_own(file, ["t"], "l", dev=file).task.labels == ("false", "true")


def test_repeated_texts_are_held_out_together_and_each_class_gives_its_share(write):
    rows = [(f"text {number}", "rare" if number % 20 == 0 else "common") for number in range(400)]
    file = write("a.csv", as_csv([("text", "label"), *rows, *rows[:200]]))
    data = read_own(file, ["text"], "label", dev=0.25)
    train, dev = ({example.text for example in data.split(name).examples} for name in ("train", "dev"))
    assert not train & dev
    assert len(train | dev) == 400
    held = Counter("rare" if int(text.split()[1]) % 20 == 0 else "common" for text in dev)
    assert held == {"rare": 5, "common": 95}
    shuffled = write("b.csv", as_csv([("text", "label"), *reversed(rows)]))
    assert {example.text for example in read_own(shuffled, ["text"], "label", dev=0.25).split("dev").examples} == dev
    assert any(f"{len(data.split('dev'))} of 600" in note for note in data.notes)


def test_a_text_with_two_labels_stays_on_one_side(write):
    rows = [(f"text {number}", label) for number in range(50) for label in "ab"]
    data = read_own(write("a.csv", as_csv([("text", "label"), *rows])), ["text"], "label", dev=0.3)
    train, dev = ({example.text for example in data.split(name).examples} for name in ("train", "dev"))
    assert not train & dev
    assert len(dev) == 15


def test_a_few_bad_rows_are_left_out_and_said(write):
    rows = [{"t": f"text {number}", "l": "ab"[number % 2]} for number in range(400)]
    lines = as_jsonl(rows).splitlines()
    lines[3], lines[4], lines[5], lines[6] = "{", "[]", '{"t": "x"}', '{"t": "\\ud800", "l": "a"}'
    lines[7], lines[8] = '{"t": 5, "l": "a"}', '{"t": "", "l": "a"}'
    data = read_own(write("a.jsonl", "\n".join(lines)), ["t"], "l")
    bad = {row.place: row.problem for split in data.splits.values() for row in split.bad}
    assert list(bad) == [f"line {number}" for number in range(4, 10)]
    assert all(
        part in "".join(bad.values()) for part in ("not JSON", "no object", "no 'l'; the columns are t", "surrogate", "no text")
    )
    assert len(everything(data)) == 394
    assert any("6 of 400 rows" in note and "line 4" in note for note in data.notes)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "review,label\nx,1\n", "no column 'text'; the columns are review, label"),
        ("a.csv", '"a\nb",label\nx,1\n', "the columns are a b, label"),
        ("a.csv", "text,text,label\nx,y,1\n", "more than one column 'text'"),
        ("a.csv", "text,label\nx,a\ny\nz,b\n", "line 3: 1 columns instead of 2"),
        ("a.csv", 'text,label\nx,a\n"y,b\nz,a\n', "line 3: quotes"),
        ("a.csv", 'text,label\nx,a\n"y" and,b\n', "line 3: quotes"),
        ("a.csv", "text,label\nx,a\ny,\n", "line 3: 'label' holds no label"),
        ("a.csv", "text,label\nx,a\ny,a\n", "holds only the label a"),
        ("a.csv", "text,label\n", "holds no example"),
        ("a.csv", "", "holds no row"),
        ("a.csv", b"text,label\nx,a\n\xff,b\n", "line 3: not UTF-8"),
        ("a.csv", numbered([f"id-{number}" for number in range(30)]), "another label in each of 30 rows"),
        ("a.csv", numbered(["a", "b"]), "too small to hold out"),
        ("a.csv", "text,label\rx,a\ry,b\r", "line 1: a line ends in a carriage return"),
        ("a.tsv", "text\tlabel\rx\ta\ry\tb\r", "line 1: a line ends in a carriage return"),
        ("a.csv", numbered([f"{row},5" for row in range(60)]), "decimal comma, such as '0,5'"),
        (
            "a.jsonl",
            '{"text": "x", "label": "a"}\n' * 3 + '{"text": "x", "label": "\\ud800"}\n' * 3,
            "line 4: 'label' holds half",
        ),
        ("a.jsonl", '{"text": "x", "label": ["a", "\\ud800"]}\n' * 3, "line 1: 'label' holds half"),
        (
            "a.jsonl",
            '{"text": "x", "label": 1.5}\n' * 3 + '{"text": "x", "label": Infinity}\n' * 3,
            "line 4: 'label' holds infinity",
        ),
        ("a.csv", numbered(["0.1"] * 37), "holds only the number 0.1"),
        ("a.csv", numbered([f"{1_700_000_000 + row}.5" for row in range(60)]), "subtract 1.7e+09 from all"),
        ("a.csv", numbered([f"{row}.5e300" for row in range(60)]), "line 2: the number 5e+299 is too large"),
        ("a.csv", numbered([f"{row / 7:.3f}" for row in range(57)] + ["n/a"] * 3), "in 3 of 60 rows none, as 'n/a'"),
        ("a.jsonl", as_jsonl([{"text": "x", "label": {"a": 1}}] * 40), "such as \"{'a': 1}\", neither names nor numbers"),
        ("a.jsonl", as_jsonl([{"text": "x", "label": ["a", odd]} for odd in ("b", None)] * 9), "line 2: the label 'None'"),
        ("a.jsonl", as_jsonl([{"text": "x", "label": ["a", odd]} for odd in ("b", {})] * 9), "line 2: the label '{}'"),
        ("a.jsonl", '{"text": "x"}\n', "line 1: there is no 'label'; the columns are text"),
        ("a.jsonl", '{"text": "x", "label": {"a": 1}}\n' * 3 + '{"text": "x", "label": "a"}\n' * 3, "holds only the label a"),
        ("a.parquet", "no parquet", "is broken"),
        ("a.xlsx", "", "must end in .csv, .tsv, .jsonl"),
    ],
)
def test_what_makes_no_task_is_refused_with_file_and_place(write, name, content, problem, refused):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pip install 'limbeck[data]'")
    file = write(name, content)
    with refused(file, problem):
        read_own(file, ["text"], "label")


def test_columns_are_numbered_where_there_is_no_header(write, refused):
    file = write("a.tsv", "x\t1\ny\t2\n")
    with refused("no column 'label'", "numbered 1 to 2"):
        read_own(file, ["1"], "label", header=False)
    with refused("no column '3'"):
        read_own(file, ["1"], "3", header=False)
    with refused("no column '0'"):
        read_own(file, ["0"], "2", header=False)


@pytest.mark.parametrize("length", [1_000_000, 10])
def test_a_text_may_be_as_long_as_it_likes(write, length):
    before = csv.field_size_limit()
    file = write("a.csv", as_csv([("text", "label"), *(("x" * length + str(row), "ab"[row % 2]) for row in range(20))]))
    data = read_own(file, ["text"], "label")
    assert {len(example.text) for example in everything(data)} <= {length + 1, length + 2}
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("share", [1e-3, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("sizes", [(40, 2), (2,) * 600, (1, 1, 30)])
def test_every_class_that_is_held_out_is_trained_on(write, share, sizes):
    labels = [f"class {number}" for number, size in enumerate(sizes) for _ in range(size)]
    file = write("a.csv", numbered(labels))
    if round(share * len(labels)) == 0:
        with pytest.raises(UserError, match="too small to hold out"):
            read_own(file, ["text"], "label", dev=share)
        return
    data = read_own(file, ["text"], "label", dev=share)
    assert set(data.targets("dev")) <= set(data.targets("train"))
    assert {*data.targets("train")} == {*range(len(sizes))}
    assert len(data.split("dev")) == pytest.approx(share * len(labels), abs=0.5 + len(sizes))


def test_examples_on_both_sides_are_told(write):
    train, dev = write("train.csv", numbered("ab" * 20)), write("dev.csv", numbered("ba"))
    assert any("2 of 2 examples to evaluate on" in note for note in read_own(train, ["text"], "label", dev=dev).notes)
    other = write("other.csv", as_csv([("text", "label"), ("new", "a"), ("newer", "b")]))
    assert not any("to evaluate on" in note for note in read_own(train, ["text"], "label", dev=other).notes)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 7])
def test_a_share_that_is_none_is_refused(write, share, refused):
    with refused("between 0 and 1"):
        read_own(write("a.csv", numbered("ab" * 20)), ["text"], "label", dev=share)


def test_labels_and_files_of_dev_are_checked_too(write, tmp_path, refused):
    train = write("a.csv", numbered("ab" * 20))
    with refused("dev.csv", "line 2: the label 'c' does not occur in the training data"):
        read_own(train, ["text"], "label", dev=write("dev.csv", numbered("ca")))
    with refused("nowhere.csv cannot be read"):
        read_own(train, ["text"], "label", dev=tmp_path / "nowhere.csv")
    with refused("line 3: the label 'x' is no number"):
        read_own(write("n.csv", numbered(["0.5", "1.5"])), ["text"], "label", dev=write("m.csv", numbered(["0.5", "x"])))
    with refused("holds no numbers"):
        read_own(train, ["text"], "label", kind="regression")
    with refused("say what separates"):
        read_own(train, ["text"], "label", kind="multi-label")
    with refused("one column of text, or two"):
        read_own(train, ["text", "text", "text"], "label")
