"""From the names in a recipe to tokens: prepared once, found again by content, and without what is held out."""

import shutil
from contextlib import nullcontext

import pytest

from limbeck.data import corpora
from limbeck.data.corpora import Reading, cache_folder, open_tokens
from limbeck.data.files import corpus_files
from limbeck.data.prepare import Corpus, prepare_shards
from limbeck.data.tokens import PlainTokenizer
from texts import pieces


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LIMBECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def heard():
    """What was read of files, call by call."""
    return []


@pytest.fixture
def reading(tiny_tokenizer, heard):
    return Reading(PlainTokenizer(tiny_tokenizer), "text", lambda _: nullcontext(heard.append))


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.fixture
def prepared(write, tmp_path, reading):
    """Prepare a text into a folder."""

    def make(name, text):
        files = corpus_files([write(f"source of {name}", text)])
        prepare_shards(Corpus(tuple(files), reading.tokenizer, reading.column), tmp_path / name)
        return str(tmp_path / name)

    return make


@pytest.fixture
def texts(tiny_tokenizer):
    """The units of tokens, as text."""
    return lambda tokens: [tiny_tokenizer.decode(ids) for ids in pieces(tokens)]


def test_text_is_tokenised_once_wherever_it_lies(write, reading, heard, tmp_path):
    path = write("a.txt", "copper still\n\nglass")
    first = open_tokens([path], reading)
    assert sum(heard) == len("copper still\n\nglass")
    heard.clear()
    shutil.copyfile(path, tmp_path / "elsewhere")
    for again in ([path], [str(tmp_path / "elsewhere")]):
        assert open_tokens(again, reading).fingerprint == first.fingerprint
    assert heard == []
    write("a.txt", "copper still\n\nglasses")
    assert open_tokens([path], reading).fingerprint != first.fingerprint
    assert heard


def test_files_and_prepared_folders_make_one_corpus(write, prepared, reading, texts):
    paths = [write("a.txt", "copper\nstill"), prepared("folder", "glass"), write("b.jsonl", '{"text": "water"}')]
    tokens = open_tokens(paths, reading)
    assert sorted(texts(tokens)) == ["copper", "glass", "still", "water"]
    assert len(set(tokens.documents.tolist())) == 3


def test_text_that_was_prepared_is_what_it_is_when_it_is_read_from_files(write, prepared, reading):
    text = "copper still\n\nglass\nwater"
    assert open_tokens([prepared("folder", text)], reading).fingerprint == open_tokens([write("a", text)], reading).fingerprint


def test_a_damaged_prepared_folder_is_refused_with_the_remedy(prepared, reading, refused, tmp_path):
    folder = prepared("folder", "copper still")
    shard = tmp_path / "folder" / "shard-000000.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + b"x")
    with refused(shard, "limbeck prepare again"):
        open_tokens([folder], reading)
    shard.write_bytes(whole)
    (tmp_path / "folder" / "index.json").unlink()
    with refused("index.json", "limbeck prepare again"):
        open_tokens([folder], reading)


def test_a_folder_of_text_may_hold_an_index_of_its_own(write, reading, texts, tmp_path):
    write("text/index.json", '{"pages": 3}')
    write("text/a.txt", "copper")
    assert texts(open_tokens([str(tmp_path / "text")], reading)) == ["copper"]


def test_held_out_text_is_left_out_of_the_folder_that_holds_it(write, prepared, reading, texts, tmp_path, refused):
    write("text/a.txt", "copper")
    held = write("text/b.txt", "still")
    (tmp_path / "link").symlink_to(held)
    folder = str(tmp_path / "text")
    for without in ([held], [str(tmp_path / "link")], [str(tmp_path / "text" / ".." / "text" / "b.txt")]):
        assert texts(open_tokens([folder], reading, without)) == ["copper"]
    one, other = prepared("one", "glass"), prepared("other", "water")
    assert texts(open_tokens([one, other], reading, [other])) == ["glass"]
    with refused("held-out text is all"):
        open_tokens([folder, one], reading, [folder, one])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LIMBECK_CACHE": "own", "XDG_CACHE_HOME": "xdg"}, "own"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/limbeck"),
        ({"LIMBECK_CACHE": "", "XDG_CACHE_HOME": ""}, "home/.cache/limbeck"),
        ({}, "home/.cache/limbeck"),
        ({"LIMBECK_CACHE": "~/own"}, "home/own"),
    ],
)
def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path, variables, expected):
    monkeypatch.chdir(tmp_path)
    for name in ("LIMBECK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path / "home"), **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder().resolve() == tmp_path / expected
    assert (tmp_path / expected).is_dir()


def test_a_cache_that_cannot_be_made_is_refused(monkeypatch, write, refused):
    monkeypatch.setenv("LIMBECK_CACHE", write("file", "") + "/cache")
    with refused("file/cache", "LIMBECK_CACHE"):
        corpora.cache_folder()
