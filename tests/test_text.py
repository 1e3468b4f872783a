"""Reading text: what is a unit, what is a document, what is refused, and what is held out."""

import gzip
import random
from itertools import pairwise

import pytest

from limbeck.data.text import Unit, hold_out, read_units, text_files


@pytest.fixture
def write(tmp_path):
    """Write a file below the test's folder."""

    def write(name, content):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    return write


def units(*files):
    return [(unit.text, unit.document) for unit in read_units(files)]


def test_lines_are_units_and_blank_lines_separate_documents(write):
    file = write("a.txt", b"\n one\ntwo \r\n\r\n \t\nthree\n\nfour")
    assert units(file) == [("one", 0), ("two", 0), ("three", 1), ("four", 2)]


def test_the_end_of_a_file_ends_its_document(write):
    assert units(write("a.txt", b"one"), write("empty.txt", b""), write("b.txt", b"two\n")) == [("one", 0), ("two", 1)]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a"])
def test_gzip_is_recognised_by_its_content_not_by_its_name(write, name):
    text = "Grüße\n\nещё\n".encode()
    expected = [("Grüße", 0), ("ещё", 1)]
    assert units(write(f"plain/{name}", text)) == expected
    assert units(write(f"zipped/{name}", gzip.compress(text))) == expected


def test_gzip_files_may_be_joined(write):
    assert units(write("a.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n"))) == [("one", 0), ("two", 0)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_is_no_text(write, pack):
    files = [write(name, pack("\ufeffone\ntwo\n".encode())) for name in ("a", "b")]
    assert units(*files) == [("one", 0), ("two", 0), ("one", 1), ("two", 1)]


def test_a_folder_stands_for_its_text_files_in_the_order_of_their_names(write, tmp_path):
    names = ["a.txt", "b/a.txt.gz", "b/c.txt", "z.txt"]
    for name in [*reversed(names), "b/notes.md", "table.csv", "folder.txt/ignored.md"]:
        write(name, b"text")
    assert [str(file.relative_to(tmp_path)) for file in text_files([tmp_path])] == names


def test_files_are_read_in_the_order_given_whatever_they_are_called(write):
    files = [write(name, b"text") for name in ("z.md", "a")]
    assert text_files([str(file) for file in files]) == files


def test_a_missing_path_is_refused(tmp_path, refused):
    with refused(tmp_path / "missing.txt", "check the path"):
        text_files([tmp_path / "missing.txt"])


def test_a_folder_without_text_is_refused(write, tmp_path, refused):
    write("notes.md", b"text")
    with refused(tmp_path, ".txt", "name the files"):
        text_files([tmp_path])


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(("text", "line"), [("ein\nzwei\nfünf\n".encode("latin-1"), 3), ("one\n".encode("utf-16"), 1)])
def test_text_that_is_not_utf8_is_refused_with_its_line(write, refused, pack, text, line):
    file = write("a.txt", pack(text))
    with refused(file, f"line {line}", "convert"):
        units(file)


@pytest.mark.parametrize(
    "broken", [lambda zipped: zipped[:-20], lambda zipped: zipped[:-8] + b"\0" * 8, lambda zipped: zipped[:5]]
)
def test_a_broken_gzip_file_is_refused(write, refused, broken):
    file = write("a.txt.gz", broken(gzip.compress(random.Random(0).randbytes(1000).hex().encode())))
    with refused(file, "gzip", "again"):
        units(file)


def test_what_cannot_be_read_is_refused(tmp_path, refused):
    for path in (tmp_path, tmp_path / "vanished.txt"):
        with refused(path, "cannot be read"):
            units(path)


@pytest.fixture
def corpus():
    """10,000 different lines, each twice, in documents of ten."""
    texts = [f"line {number}" for number in range(10_000)] * 2
    random.Random(0).shuffle(texts)
    return [Unit(text, place // 10) for place, text in enumerate(texts)]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_about_the_share_asked_for_is_held_out_and_nothing_is_lost(corpus, share):
    trained, held = hold_out(corpus, share)
    assert len(held) / len(corpus) == pytest.approx(share, abs=0.015)
    for side in (trained, held):
        chosen = {unit.text for unit in side}
        assert [unit.text for unit in side] == [unit.text for unit in corpus if unit.text in chosen]
    assert len(trained) + len(held) == len(corpus)


def test_units_stand_in_one_document_only_if_nothing_was_taken_out_between_them(corpus):
    sides = hold_out(corpus, 0.3)
    neighbours = {(one.text, other.text) for one, other in pairwise(corpus) if one.document == other.document}
    for side in sides:
        for one, other in pairwise(side):
            assert (one.document == other.document) == ((one.text, other.text) in neighbours)


def test_repeated_lines_fall_on_the_same_side(corpus):
    trained, held = ({unit.text for unit in side} for side in hold_out(corpus, 0.1))
    assert not trained & held


def test_neither_order_nor_documents_nor_other_text_decide_what_is_held_out(corpus):
    held = {unit.text for unit in hold_out(corpus, 0.1)[1]}
    part = [Unit(unit.text, 0) for unit in reversed(corpus[:5000])]
    assert {unit.text for unit in hold_out(part, 0.1)[1]} == held & {unit.text for unit in part}


def test_a_corpus_too_small_to_split_is_refused(refused):
    with refused("too small", "0.1"):
        hold_out([Unit("the only line", 0)] * 3, 0.1)
