"""Preparing text: the same shards however the work went, and only what is missing is done again."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from limbeck.data import prepare as module
from limbeck.data.files import corpus_files
from limbeck.data.prepare import Corpus, is_prepared, open_prepared, prepare_shards
from limbeck.data.text import read_units
from limbeck.data.tokens import BrokenShard, PlainTokenizer, Shard, Tokens, tokenize
from texts import pieces, roberta_tokenizer

SHARD = 2_000
"""Characters of a shard here."""
WORDS = ["the", "copper", "still", "vapour", "drops", "slowly", "into", "a", "cold", "flask", "of", "glass", "river"]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(module, "SHARD_CHARACTERS", SHARD)


@pytest.fixture(autouse=True)
def tokenised(monkeypatch):
    """Where the shards begin that were made anew."""
    made = []
    original = Shard.of

    def of(units, tokenizer):
        made.append(units[0].text)
        return original(units, tokenizer)

    monkeypatch.setattr(Shard, "of", of)
    return made


@pytest.fixture
def write(tmp_path):
    """Write a file of some lines of text, every eighth of which is empty."""

    def write(name="text.txt", seed=0, lines=200):
        draw = random.Random(seed)
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) if number % 8 else "" for number in range(lines)]
        (tmp_path / name).write_text("\n".join(texts), encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def corpus(write, tiny_tokenizer):
    """Name the files of a corpus anew, as another process would."""

    def make(*files, tokenizer=tiny_tokenizer):
        return Corpus(tuple(corpus_files(files or [write()])), PlainTokenizer(tokenizer), "text")

    return make


def content(folder):
    """Every file of a prepared folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.name != module.LOCK}


def names(folder):
    return [name for name in content(folder) if name.startswith("shard-")]


def test_prepared_text_is_the_tokens_of_the_text(corpus, tmp_path, tiny_tokenizer):
    tokens = prepare_shards(corpus(), tmp_path / "a")
    expected = tokenize(read_units(corpus().files), tiny_tokenizer)
    assert len(tokens.shards) > 5
    for found in (tokens, open_prepared(tmp_path / "a", PlainTokenizer(tiny_tokenizer))):
        assert pieces(found) == pieces(expected)
        assert found.documents.tolist() == expected.documents.tolist()
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert index["files"] == ["text.txt"]
    assert (index["units"], index["tokens"]) == (len(expected), int(expected.lengths.sum()))
    assert not [file for file in (tmp_path / "a").iterdir() if file.name.startswith(".tmp")]


def test_the_number_of_threads_changes_nothing(corpus, tmp_path, monkeypatch):
    for threads in (1, 2, 8, None):
        monkeypatch.setattr(os, "cpu_count", lambda threads=threads: threads)
        prepare_shards(corpus(), tmp_path / str(threads))
    assert len(names(tmp_path / "1")) > 5
    for threads in (2, 8, None):
        assert content(tmp_path / str(threads)) == content(tmp_path / "1")


def test_prepared_text_is_neither_read_nor_tokenised_again(corpus, tmp_path, tokenised):
    first = prepare_shards(corpus(), tmp_path / "a")
    before, heard = content(tmp_path / "a"), []
    tokenised.clear()
    assert prepare_shards(corpus(), tmp_path / "a", lambda size: nullcontext(heard.append)).fingerprint == first.fingerprint
    assert (tokenised, heard) == ([], [])
    assert content(tmp_path / "a") == before


def test_what_is_read_is_told_as_it_goes(corpus, tmp_path):
    heard = []
    expected = []
    prepare_shards(corpus(), tmp_path / "a", lambda size: expected.append(size) or nullcontext(heard.append))
    assert [sum(heard)] == expected == [corpus().bytes]
    assert len(heard) > 1


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "garbled": lambda path: path.write_bytes(path.read_bytes()[:-3] + b"abc"),
    "another's": lambda path: shutil.copyfile(path.with_name("shard-000000.safetensors"), path),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("index", [True, False])
def test_only_damaged_shards_are_made_again(corpus, tmp_path, tokenised, tiny_tokenizer, damage, index):
    folder = tmp_path / "a"
    fingerprint = prepare_shards(corpus(), folder).fingerprint
    whole = content(folder)
    for number in (1, 4):
        DAMAGE[damage](folder / f"shard-{number:06d}.safetensors")
    if not index:
        (folder / "index.json").unlink()
    with pytest.raises(BrokenShard):
        open_prepared(folder, PlainTokenizer(tiny_tokenizer))
    tokenised.clear()
    assert prepare_shards(corpus(), folder).fingerprint == fingerprint
    assert len(tokenised) == 2
    assert content(folder) == whole


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "limbeck-tokens-0", "key": "", "tokenizer": "", "shards": []}']
)
def test_a_damaged_index_is_written_again(corpus, tmp_path, tokenised, tiny_tokenizer, text):
    prepare_shards(corpus(), tmp_path / "a")
    whole = content(tmp_path / "a")
    (tmp_path / "a" / "index.json").write_text(text)
    assert is_prepared(tmp_path / "a")
    with pytest.raises(BrokenShard, match=r"index\.json"):
        open_prepared(tmp_path / "a", PlainTokenizer(tiny_tokenizer))
    tokenised.clear()
    prepare_shards(corpus(), tmp_path / "a")
    assert tokenised == []
    assert content(tmp_path / "a") == whole


def test_a_folder_may_be_prepared_with_other_text(corpus, write, tmp_path):
    """Longer text with the same beginning, shorter, quite other, and the first again."""
    short, long, other = write("short", lines=100), write("long", lines=300), write("other", seed=1, lines=200)
    expected = {}
    for path in (short, long, other):
        prepare_shards(corpus(path), tmp_path / f"{path.name}-alone")
        expected[path] = content(tmp_path / f"{path.name}-alone")
    for path in (short, long, short, other, short):
        prepare_shards(corpus(path), tmp_path / "a")
        assert content(tmp_path / "a") == expected[path]


def test_text_that_begins_the_same_shares_its_shards(corpus, write, tmp_path, tokenised):
    whole = write("whole", lines=300)
    longer = tmp_path / "longer"
    longer.write_bytes(whole.read_bytes() + b"\nand more\n")
    prepare_shards(corpus(whole), tmp_path / "a")
    tokenised.clear()
    prepare_shards(corpus(longer), tmp_path / "a")
    assert len(tokenised) == 1


def test_text_prepared_with_another_tokenizer_is_refused_where_it_is_read(corpus, tmp_path, refused, make_tokenizer, tokenised):
    first = prepare_shards(corpus(), tmp_path / "a")
    for other in (make_tokenizer(do_lower_case=False), roberta_tokenizer()):
        with refused(tmp_path / "a", "another tokenizer", "prepare the text again"):
            open_prepared(tmp_path / "a", PlainTokenizer(other))
    tokenised.clear()
    assert pieces(prepare_shards(corpus(tokenizer=roberta_tokenizer()), tmp_path / "a")) != pieces(first)
    assert len(tokenised) == len(first.shards)


def test_what_a_corpus_is_depends_on_content_tokenizer_and_column_only(corpus, write, tmp_path, make_tokenizer):
    one = corpus(write("one"))
    assert corpus(write("two")).key == one.key
    others = [
        corpus(write("three", seed=1)),
        corpus(write("one"), write("four", seed=1)),
        corpus(write("four", seed=1), write("one")),
        corpus(write("one"), tokenizer=make_tokenizer(do_lower_case=False)),
        Corpus(one.files, one.tokenizer, "body"),
    ]
    assert len({each.key for each in [one, *others]}) == 1 + len(others)


def test_too_little_room_is_noticed_before_anything_is_written(corpus, tmp_path, refused, monkeypatch):
    needed = corpus().expected_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with refused(tmp_path / "a", "MB left", "LIMBECK_CACHE"):
        prepare_shards(corpus(), tmp_path / "a")
    assert content(tmp_path / "a") == {}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    assert len(prepare_shards(corpus(), tmp_path / "a"))


def test_interrupted_work_needs_room_only_for_what_is_missing(corpus, tmp_path, monkeypatch):
    prepare_shards(corpus(), tmp_path / "a")
    there = sum(file.stat().st_size for file in (tmp_path / "a").glob("shard-*"))
    (tmp_path / "a" / "index.json").unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=max(0, corpus().expected_bytes() - there)))
    assert len(prepare_shards(corpus(), tmp_path / "a"))


def test_the_room_expected_is_about_what_is_taken(real_data, minilm, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.undo()  # shards of full size
    files = tuple(corpus_files([real_data / "text" / "en" / "state_union.txt.gz"]))
    corpus = Corpus(files, PlainTokenizer(AutoTokenizer.from_pretrained(minilm)), "text")
    monkeypatch.setenv("LIMBECK_CACHE", str(tmp_path))
    prepare_shards(corpus, tmp_path / "a")
    taken = sum(file.stat().st_size for file in (tmp_path / "a").iterdir())
    assert taken <= corpus.expected_bytes() <= 3 * taken


def test_many_short_lines_make_no_shard_of_very_many_units(tmp_path, tiny_tokenizer):
    (tmp_path / "words").write_text("a\n" * 2_000 + "\n")
    corpus = Corpus(tuple(corpus_files([tmp_path / "words"])), PlainTokenizer(tiny_tokenizer), "text")
    tokens = prepare_shards(corpus, tmp_path / "a")
    assert max(len(shard.lengths) for shard in tokens.shards) <= SHARD // module.UNIT_CHARACTERS + 1


def test_text_that_breaks_off_leaves_no_index(corpus, write, tmp_path, refused, tiny_tokenizer):
    file = write("broken")
    text = file.read_bytes()
    file.write_bytes(text + b"\n\xff\n")
    with refused(file, "line 201"):
        prepare_shards(corpus(file), tmp_path / "a")
    assert "index.json" not in content(tmp_path / "a")
    with pytest.raises(BrokenShard):
        open_prepared(tmp_path / "a", PlainTokenizer(tiny_tokenizer))
    file.write_bytes(text)
    assert len(prepare_shards(corpus(file), tmp_path / "a"))


def test_a_file_that_changes_while_it_is_read_is_refused(corpus, write, tmp_path, refused, monkeypatch):
    """What was read of it would be kept under the name of what it was."""
    file, original = write(), Shard.of

    def of(units, tokenizer):
        with file.open("a") as text:
            text.write("more\n")
        return original(units, tokenizer)

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "of", of)
        with refused(file, "changed while it was read"):
            prepare_shards(corpus(file), tmp_path / "a")
    assert "index.json" not in content(tmp_path / "a")
    assert len(prepare_shards(corpus(file), tmp_path / "a"))


def test_a_file_whose_name_is_not_utf8_is_prepared_all_the_same(corpus, write, tmp_path, tiny_tokenizer):
    file = tmp_path / os.fsdecode(b"\xff.txt")
    shutil.copyfile(write(), file)
    tokens = prepare_shards(corpus(file), tmp_path / "a")
    assert open_prepared(tmp_path / "a", PlainTokenizer(tiny_tokenizer)).fingerprint == tokens.fingerprint
    assert module.read_index(tmp_path / "a")["files"] == ["\ufffd.txt"]


@pytest.mark.parametrize(("text", "says"), [("", "no text"), ("\n\u200b\n", "no text"), ("東 東\n京\n" * 300, "unknown")])
def test_text_of_which_nothing_comes_is_refused(tmp_path, tiny_tokenizer, refused, text, says):
    (tmp_path / "text").write_text(text, encoding="utf-8")
    corpus = Corpus(tuple(corpus_files([tmp_path / "text"])), PlainTokenizer(tiny_tokenizer), "text")
    for _ in range(2):
        with refused(says):
            prepare_shards(corpus, tmp_path / "a")
    assert "index.json" not in content(tmp_path / "a")


def test_a_disk_that_fills_up_leaves_what_was_complete(corpus, tmp_path, monkeypatch, tokenised):
    original, saved = Shard.save, []

    def save(shard, path, **notes):
        if len(saved) == 3:
            raise OSError(28, "No space left on device")
        saved.append(path)
        original(shard, path, **notes)

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "save", save)
        with pytest.raises(OSError, match="No space"):
            prepare_shards(corpus(), tmp_path / "a")
    assert len(content(tmp_path / "a")) == 3
    tokenised.clear()
    prepare_shards(corpus(), tmp_path / "a")
    assert len(tokenised) == len(names(tmp_path / "a")) - 3


def test_a_folder_of_text_with_an_index_of_its_own_is_not_taken_for_a_prepared_one(corpus, write, tmp_path):
    write()
    for index in ("{}", "[1]", "no index"):
        (tmp_path / "index.json").write_text(index)
        assert not is_prepared(tmp_path)
    prepare_shards(corpus(), tmp_path / "a")
    assert is_prepared(tmp_path / "a")
    assert is_prepared(str(tmp_path / "a"))
    assert not is_prepared(tmp_path / "missing")


SCRIPT = """
import sys, time
from contextlib import nullcontext
from pathlib import Path
from transformers import AutoTokenizer
from limbeck.data import prepare as module
from limbeck.data.files import corpus_files
from limbeck.data.tokens import PlainTokenizer, Shard
text, tokenizer, folder, characters, pause = sys.argv[1:]
module.SHARD_CHARACTERS = int(characters)
original = Shard.save
def save(shard, path, **notes):
    time.sleep(float(pause))
    original(shard, path, **notes)
Shard.save = save
corpus = module.Corpus(tuple(corpus_files([text])), PlainTokenizer(AutoTokenizer.from_pretrained(tokenizer)), "text")
module.prepare_shards(corpus, Path(folder))
"""


@pytest.fixture
def start(write, tiny_tokenizer, tmp_path):
    """Prepare the text in a process of its own, which takes its time over each shard."""
    tiny_tokenizer.save_pretrained(tmp_path / "tokenizer")

    def start(folder, pause):
        arguments = [write(), tmp_path / "tokenizer", folder, SHARD, pause]
        return subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, arguments)])

    return start


def wait_for(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_process_loses_only_what_was_not_complete(corpus, start, tmp_path, tokenised):
    folder = tmp_path / "a"
    prepare_shards(corpus(), tmp_path / "whole")
    process = start(folder, pause=0.2)
    wait_for(lambda: len(list(folder.glob("shard-*"))) >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    complete = len(names(folder))
    assert 3 <= complete < len(names(tmp_path / "whole"))
    (folder / ".tmp-shard-000099.safetensors").write_bytes(b"what a process left that was killed while it wrote")
    tokenised.clear()
    prepare_shards(corpus(), folder)
    assert len(tokenised) == len(names(folder)) - complete
    assert content(folder) == content(tmp_path / "whole")


def test_of_processes_that_prepare_one_folder_at_the_same_time_one_works(corpus, start, tmp_path, tokenised):
    folder = tmp_path / "a"
    process = start(folder, pause=0.05)
    wait_for(lambda: list(folder.glob("shard-*")))
    tokens = prepare_shards(corpus(), folder)
    assert process.wait() == 0
    assert tokenised == []
    prepare_shards(corpus(), tmp_path / "alone")
    assert content(folder) == content(tmp_path / "alone")
    assert tokens.fingerprint == Tokens.of([Shard.open(folder / name) for name in names(folder)]).fingerprint
