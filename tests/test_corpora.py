"""From the names in a recipe to tokens: prepared once, found again by content, and without what is held out."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

import limbeck
from limbeck.data import corpora
from limbeck.data.corpora import Reading, cache_folder, open_tokens
from limbeck.data.files import corpus_files
from limbeck.data.prepare import Corpus, prepare_shards
from limbeck.data.tokens import PlainTokenizer, leave_out
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


def test_held_out_text_is_left_out_wherever_it_stands(write, prepared, reading, texts, tmp_path, refused):
    write("text/a.txt", "copper\nstill\nglass")
    held = open_tokens([write("text/b.txt", "still")], reading)
    for corpus, rest in (
        ([str(tmp_path / "text")], ["copper", "glass"]),
        ([prepared("one", "still water\nstill")], ["still water"]),
    ):
        assert texts(leave_out(open_tokens(corpus, reading), held)) == rest
    kept = leave_out(open_tokens([str(tmp_path / "text" / "a.txt")], reading), held)
    assert len(set(kept.documents.tolist())) == 2  # what stood on both sides of it does not run on
    with refused("held-out text is all"):
        leave_out(held, held)


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
    monkeypatch.setenv("LIMBECK_CACHE", "~no-such-person/cache")
    with refused("no-such-person", "LIMBECK_CACHE"):
        corpora.cache_folder()


@pytest.fixture
def dataset():
    """Make a `datasets.Dataset` in memory."""
    package = pytest.importorskip("datasets", reason="pip install 'limbeck[data]'")
    return lambda *texts: package.Dataset.from_dict({"text": list(texts)})


def test_a_data_set_in_memory_is_saved_once_without_a_word_and_again_where_the_cache_lost_it(dataset, reading, texts, capfd):
    made = dataset("copper", "still")
    (folder,) = corpora.saved_datasets([made])
    file = next(Path(folder).glob("*.arrow"))
    before = file.stat().st_ino
    assert corpora.saved_datasets(made) == folder
    assert file.stat().st_ino == before
    file.unlink()
    assert texts(open_tokens([corpora.saved_datasets(made)], reading)) == ["copper", "still"]
    assert capfd.readouterr() == ("", "")


def test_of_a_dictionary_of_splits_train_is_meant_each_time_its_own(dataset, reading, texts, refused):
    from datasets import DatasetDict

    for text in ("copper", "glass"):
        splits = DatasetDict(train=dataset(text), test=dataset("water"))
        assert texts(open_tokens([corpora.saved_datasets(splits)], reading)) == [text]
    with refused("no split named train", "dev, test"):
        corpora.saved_datasets(DatasetDict(dev=dataset("water"), test=dataset("water")))


def test_text_in_memory_may_be_held_out(dataset, teacher, tmp_path):
    data = dataset(*(f"copper still {number}" for number in range(20)))
    settings = {"student": "1x32/4", "steps": 1, "batch_size": 2, "max_length": 16, "precision": "float32", "quiet": True}
    run = limbeck.distill(teacher, corpus=data, holdout=dataset("glass river"), output=tmp_path / "run", **settings)
    assert run.summary["holdout"]["loss"] > 0


def test_a_streamed_data_set_is_refused(dataset, refused):
    with refused("IterableDataset is streamed"):
        corpora.saved_datasets([dataset("copper").to_iterable_dataset()])


@pytest.fixture
def teacher(save_bert, tmp_path):
    return save_bert(tmp_path / "teacher")


def test_preparing_removes_nothing_that_it_did_not_write(write, teacher, refused, tmp_path):
    mine = [
        write("own/shard-of-pottery.safetensors", "mine"),
        write("own/shard-000000.safetensors", "mine"),
        write("own/x", "mine"),
    ]
    with refused("own", "something else"):
        corpora.prepare(write("a.txt", "copper"), tokenizer=teacher, output=tmp_path / "own", quiet=True)
    assert [Path(file).read_text() for file in mine] == ["mine"] * 3


def test_a_prepared_folder_whose_index_is_damaged_is_mended(write, teacher, tmp_path):
    text = write("a.txt", "copper")
    first = corpora.prepare(text, tokenizer=teacher, output=tmp_path / "folder", quiet=True)
    write("folder/index.json", "{")
    assert corpora.prepare(text, tokenizer=teacher, output=tmp_path / "folder", quiet=True) == first


def test_a_place_where_nothing_can_be_prepared_is_refused(write, teacher, refused, tmp_path):
    text = write("a.txt", "copper")
    for place in (write("file", ""), f"{text}/below", f"{tmp_path}/{os.fsdecode(bytes([255]))}"):
        with refused("cannot be a folder for the shards"):
            corpora.prepare(text, tokenizer=teacher, output=place, quiet=True)
