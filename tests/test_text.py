"""Reading text: what a corpus names, what is a unit, what is a document, and what is refused."""

import gzip
import json
import os
import random
import sys

import pytest

from limbeck.data.files import corpus_files
from limbeck.data.text import read_units


@pytest.fixture
def write(tmp_path):
    """Write a file below the test's folder."""

    def write(name, content):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    return write


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow", reason="pip install 'limbeck[data]'")


@pytest.fixture
def write_parquet(tmp_path, arrow):
    """Write a Parquet file of some columns in small groups of rows."""
    import pyarrow.parquet

    def write(name="a.parquet", **columns):
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name, row_group_size=2)
        return tmp_path / name

    return write


@pytest.fixture
def zstd():
    return pytest.importorskip("zstandard", reason="pip install 'limbeck[data]'")


def units(*paths, **settings):
    return [(unit.text, unit.document) for unit in read_units(corpus_files(paths), **settings)]


def jsonl(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def packer(how):
    """A function that compresses."""
    if how == "zst":
        return pytest.importorskip("zstandard").ZstdCompressor().compress
    return {"plain": bytes, "gz": gzip.compress}[how]


compressed = pytest.mark.parametrize("how", ["plain", "gz", "zst"])

# Plain text


def test_lines_are_units_and_blank_lines_separate_documents(write):
    file = write("a.txt", b"\n one\ntwo \r\n\r\n \t\nthree\n\nfour")
    assert units(file) == [("one", 0), ("two", 0), ("three", 1), ("four", 2)]


def test_the_end_of_a_file_ends_its_document(write):
    assert units(write("a.txt", b"one"), write("empty.txt", b""), write("b.txt", b"two\n")) == [("one", 0), ("two", 1)]


@compressed
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a"])
def test_compression_is_recognised_by_the_content_not_by_the_name(write, name, how):
    text = "".join(f"Grüße {number}\n\n" for number in range(10_000)).encode()
    assert units(write(name, packer(how)(text))) == [(f"Grüße {number}", number) for number in range(10_000)]


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_compressed_files_may_be_joined(write, how):
    pack = packer(how)
    assert units(write("a", pack(b"one\n") + pack(b"") + pack(b"two\nth") + pack(b"ree\n"))) == [
        ("one", 0),
        ("two", 0),
        ("three", 0),
    ]


def test_zstd_frames_may_be_skipped_or_have_a_long_window(write, zstd):
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    window = zstd.ZstdCompressionParameters.from_level(1, window_log=30)
    stream = zstd.ZstdCompressor(compression_params=window).compressobj()
    content = skipped + stream.compress(b"one\n") + stream.flush() + skipped
    assert units(write("a", content)) == [("one", 0)]


@compressed
def test_a_byte_order_mark_is_no_text(write, how):
    files = [write(name, packer(how)("\ufeffone\ntwo\n".encode())) for name in ("a", "b")]
    assert units(*files) == [("one", 0), ("two", 0), ("one", 1), ("two", 1)]


@compressed
@pytest.mark.parametrize(("text", "line"), [("ein\nzwei\nfünf\n".encode("latin-1"), 3), ("one\n".encode("utf-16"), 1)])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_text_that_is_not_utf8_is_refused_with_its_line(write, refused, name, text, line, how):
    rows = text if name == "a.txt" else text.replace(b"ein", b'{"text": ""}').replace(b"zwei", b'{"text": ""}')
    file = write(name, packer(how)(rows))
    with refused(file, f"line {line}", "convert"):
        units(file)


BROKEN = {
    "truncated": lambda packed: packed[:-20],
    "garbled end": lambda packed: packed[:-8] + b"\0" * 8,
    "garbled middle": lambda packed: packed[:300] + bytes(byte ^ 255 for byte in packed[300:320]) + packed[320:],
    "only a beginning": lambda packed: packed[:5],
    "something behind": lambda packed: packed + b"something",
}


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_compressed_file_is_refused(write, refused, how, broken):
    text = random.Random(0).randbytes(1000).hex().encode() + b"\n"
    if how == "gz":
        packed = gzip.compress(text)
    else:
        packed = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(text)
    file = write("a.txt", BROKEN[broken](packed))
    with refused(file, "after line", "again"):
        units(file)


def test_a_compressed_file_cut_between_lines_is_refused_with_the_last_line_read(write, refused, zstd):
    stream = zstd.ZstdCompressor().compressobj()
    content = stream.compress(b"one\ntwo\n") + stream.flush(zstd.COMPRESSOBJ_FLUSH_BLOCK)
    file = write("a.zst", content)
    with refused(file, "after line 2", "within a frame"):
        units(file)


def test_what_was_read_adds_up_to_the_files_whatever_their_format(write, write_parquet, datasets, tmp_path):
    texts = [f"line {number}" * 20 for number in range(1000)]
    text = "\n".join(texts).encode()
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / "saved")
    for path in (
        write("a.txt", text),
        write("b.gz", gzip.compress(text)),
        write("c.jsonl", jsonl(*({"text": text} for text in texts))),
        write_parquet(text=texts, other=texts),
        tmp_path / "saved",
    ):
        heard = []
        files = corpus_files([path])
        assert len(list(read_units(files, read=heard.append))) == 1000
        assert sum(heard) == pytest.approx(sum(file.path.stat().st_size for file in files), rel=0.05, abs=2000)


# Tables


@compressed
def test_rows_of_json_lines_are_documents_and_their_lines_units(write, how):
    rows = jsonl({"text": "one\n two\r\n\nthree"}, {"id": 3, "text": "fünf"}) + b"\n" + jsonl({"text": "six"})
    assert units(write("a.jsonl", packer(how)(rows))) == [("one", 0), ("two", 0), ("three", 0), ("fünf", 1), ("six", 2)]


@pytest.mark.parametrize("format", ["jsonl", "parquet", "arrow"])
def test_rows_without_text_are_kept_as_one_empty_unit_which_is_counted_later(format, write, write_parquet, datasets, tmp_path):
    texts = ["one", None, "", " \n\t\n", "five\nsix"]
    path = {
        "jsonl": lambda: write("a.ndjson", jsonl(*({"text": text} for text in texts))),
        "parquet": lambda: write_parquet(text=texts),
        "arrow": lambda: datasets.Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / "a") or tmp_path / "a",
    }[format]()
    assert units(path) == [("one", 0), ("", 1), ("", 2), ("", 3), ("five", 4), ("six", 4)]


def test_another_column_may_hold_the_text(write, write_parquet):
    columns = {"title": ["no", "no"], "body": ["one", "two"]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for path in (write("a.jsonl", jsonl(*rows)), write_parquet(**columns)):
        assert units(path, column="body") == [("one", 0), ("two", 1)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"text": "two"', "not JSON"),
        (b'["two"]', "no object"),
        (b'"two"', "no object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"body": "two", "id": 2}', "body, id"),
        (b"{}", "nothing"),
        (b'{"text": 2}', "no text"),
        (b'{"text": ["two"]}', "no text"),
        (b'{"text": "tw\\ud83do"}', "surrogate"),
    ],
)
def test_a_wrong_line_of_json_is_refused_with_its_number(write, refused, line, says):
    file = write("a.jsonl", jsonl({"text": "one"}) + b"\n" + line + b"\n" + jsonl({"text": "three"}))
    with refused(f"{file}, line 3", says):
        units(file)


def test_a_table_without_the_column_is_refused_with_the_columns_it_has(write_parquet, datasets, tmp_path, refused):
    columns = {"title": ["one"], "body": ["two"]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    for path, name in ((write_parquet(**columns), "a.parquet"), (tmp_path / "saved", ".arrow")):
        with refused(path, name, "'text'", "--text-column", "title, body"):
            units(path)


def test_a_column_that_holds_no_text_is_refused_with_the_row(write_parquet, refused):
    file = write_parquet(text=["one", "two", "three"], number=[None, None, 3])
    with refused(f"{file}, row 3", "'number'", "no text"):
        units(file, column="number")


def test_a_table_whose_text_is_not_utf8_is_refused_with_the_row(write_parquet, arrow, refused):
    _, offsets, content = arrow.array([b"one", b"f\xfcnf"]).buffers()
    file = write_parquet(text=arrow.StringArray.from_buffers(2, offsets, content))
    with refused(f"{file}, row 2", "UTF-8"):
        units(file)


@pytest.mark.parametrize(
    "broken", [lambda _: b"", lambda _: b"no table", lambda c: c[:-200], lambda c: c[:50] + b"\xff" * 400 + c[450:]]
)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_broken_table_is_refused(write_parquet, datasets, tmp_path, refused, format, broken):
    texts = [random.Random(number).randbytes(50).hex() for number in range(100)]
    if format == "parquet":
        path = file = write_parquet(text=texts)
    else:
        path = tmp_path / "saved"
        datasets.Dataset.from_dict({"text": texts}).save_to_disk(path)
        (file,) = path.glob("*.arrow")
    file.write_bytes(broken(file.read_bytes()))
    with refused(file, "again"):
        units(path)


# What a path stands for


def test_a_folder_stands_for_its_files_in_the_order_of_their_names(write, tmp_path):
    names = ["a.txt", "b/a.TXT.gz", "b/c.jsonl", "b/d.ndjson.zst", "e.parquet", "z.txt.zst"]
    for name in [*reversed(names), "b/notes.md", "table.csv", "folder.txt/ignored.md", ".hidden.txt", ".git/hidden.txt"]:
        write(name, b"text")
    files = corpus_files([tmp_path])
    assert [str(file.path.relative_to(tmp_path)) for file in files] == names
    assert [file.kind for file in files] == ["text", "text", "jsonl", "jsonl", "parquet", "text"]


def test_a_folder_may_hold_links_to_other_folders_which_are_followed_once_and_never_back_up(write, tmp_path):
    write("above.txt", b"not below")
    one, two = write("text/one/a.txt", b"text"), write("elsewhere/b.txt", b"text")
    (tmp_path / "text" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "mutual").symlink_to(one.parent)
    (one.parent / "mutual").symlink_to(two.parent)
    for up in ("text", "."):
        (one.parent / f"up {up}").symlink_to(tmp_path / up)
    found = [file.path.resolve() for file in corpus_files([tmp_path / "text"])]
    assert sorted(found) == sorted([one, two])


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_folder_within_that_cannot_be_entered_is_refused_rather_than_left_out(write, tmp_path, refused):
    closed = write("text/closed/a.txt", b"text").parent
    write("text/b.txt", b"text")
    closed.chmod(0)
    try:
        with refused(tmp_path / "text", "cannot be read"):
            corpus_files([tmp_path / "text"])
    finally:
        closed.chmod(0o755)


def test_files_are_read_in_the_order_given_whatever_they_are_called_and_once(write, tmp_path):
    paths = [write(name, b"text") for name in ("z.md", "a", "b.jsonl")]
    files = corpus_files([*map(str, paths), str(tmp_path / "." / "a"), tmp_path])
    assert [file.path for file in files] == paths
    assert [file.kind for file in files] == ["text", "text", "jsonl"]


def test_a_files_digest_follows_from_its_content_and_kind(write):
    paths = [write(name, content) for name, content in [("a", b"1"), ("b", b"1"), ("c", b"2"), ("d.jsonl", b"1")]]
    one, other, changed, kind = (file.digest() for file in corpus_files(paths))
    assert one == other
    assert len({one, changed, kind}) == 3


def test_saved_data_sets_are_read_as_they_stand(datasets, tmp_path):
    whole = datasets.Dataset.from_dict({"text": [f"text {number}" for number in range(50)], "n": list(range(50))})
    for name, chosen in {
        "whole": whole,
        "selected": whole.select([40, 3, 7]),
        "shuffled": whole.shuffle(seed=1),
        "filtered": whole.filter(lambda row: row["n"] % 7 == 1),
        "joined": datasets.concatenate_datasets([whole.select(range(3)), whole]),
    }.items():
        chosen.save_to_disk(tmp_path / name, num_shards=3)
        assert [text for text, _ in units(tmp_path / name)] == chosen["text"][:]


def test_a_saved_dictionary_of_splits_stands_for_train(datasets, tmp_path, refused):
    splits = {name: datasets.Dataset.from_dict({"text": [name]}) for name in ("train", "dev")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "with")
    assert units(tmp_path / "with") == [("train", 0)]
    assert units(tmp_path / "with" / "dev") == [("dev", 0)]
    datasets.DatasetDict(dev=splits["dev"], test=splits["dev"]).save_to_disk(tmp_path / "without")
    with refused(tmp_path / "without", "train", "dev, test"):
        units(tmp_path / "without")


def test_a_damaged_saved_data_set_is_refused(datasets, tmp_path, refused):
    datasets.Dataset.from_dict({"text": ["one"]}).save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    file.unlink()
    with refused(file, "cannot be read"):
        units(tmp_path / "saved")
    for state in ("{", "[]", "{}", '{"_data_files": [3]}'):
        (tmp_path / "saved" / "state.json").write_text(state)
        with refused("state.json", "save it again"):
            units(tmp_path / "saved")


def test_a_data_set_of_the_hub_is_read_from_its_cache(datasets, write, tmp_path, refused):
    """A local path stands in for a name: both go through `load_dataset`."""
    write("hub/train.txt", b"one\ntwo\nthree\n")
    write("hub/test.txt", b"four\n")
    name = f"datasets:{tmp_path / 'hub'}"
    assert [text for text, _ in units(name)] == ["one", "two", "three"]
    assert [text for text, _ in units(f"{name}::test")] == ["four"]
    assert [text for text, _ in units(f"{name}:default:train+test")] == ["one", "two", "three", "four"]
    with refused("[:2]", "part of a split", "save_to_disk"):
        units(f"{name}::train[:2]")
    with refused("dev", "NAME[:CONFIGURATION[:SPLIT]]"):
        units(f"{name}::dev")


def test_a_data_set_that_the_hub_cannot_give_is_refused(datasets, refused):
    with refused("nobody/nothing", "HF_HUB_OFFLINE"):
        units("datasets:nobody/nothing")


@pytest.mark.parametrize(
    ("package", "path"), [("datasets", "datasets:wikitext"), ("pyarrow", "a.parquet"), ("zstandard", "a.txt")]
)
def test_a_missing_package_is_named(write, monkeypatch, refused, package, path):
    if package != "datasets":
        path = write(path, b"\x28\xb5\x2f\xfd")
    monkeypatch.setitem(sys.modules, package, None)
    with refused(path, "pip install 'limbeck[data]'"):
        units(path)


def test_a_missing_path_is_refused(tmp_path, refused):
    with refused(tmp_path / "missing.txt", "check the path"):
        corpus_files([tmp_path / "missing.txt"])
    with refused("is empty"):
        corpus_files([""])


def test_a_folder_without_text_is_refused(write, tmp_path, refused):
    write("notes.md", b"text")
    write("folder.txt/notes.md", b"text")
    write(".hidden.txt", b"text")
    with refused(tmp_path, ".txt", ".parquet", "name the files"):
        corpus_files([tmp_path])


def test_what_is_no_regular_file_is_refused_and_in_a_folder_passed_over(write, tmp_path, refused):
    pipe, good = tmp_path / "pipe.txt", write("good.txt", b"one")
    os.mkfifo(pipe)
    (tmp_path / "link.txt").symlink_to(pipe)
    with refused(pipe, "no regular file"):
        corpus_files([pipe])
    assert [file.path for file in corpus_files([tmp_path])] == [good]


def test_a_file_of_a_folder_that_cannot_be_read_is_refused_rather_than_left_out(write, tmp_path, refused):
    write("good.txt", b"one")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    dangling, good, loop = corpus_files([tmp_path])
    assert good.digest()
    for file in (dangling, loop):
        with refused(file.path, "cannot be read"):
            file.digest()
    with refused(tmp_path / "dangling.txt", "cannot be read"):
        units(tmp_path)
