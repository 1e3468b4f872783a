"""Text as tokens: what the tokenizer says, kept in shards that come back as they were or not at all, and held out."""

import random
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from limbeck.data import tokens as tokens_module
from limbeck.data.text import Unit
from limbeck.data.tokens import BrokenShard, PlainTokenizer, Shard, Tokens, checked, hold_out, tokenize
from texts import pieces, roberta_tokenizer, units, word_tokenizer

NOTHING = "\u200b\x01"
"""Text of which no token comes."""
HIGH = {"one": 65_535, "two": 65_536, "three": 119_546, "four": 250_001}

# Tokenising


def test_units_become_the_tokenizers_own_tokens_without_special_ones(tiny_tokenizer):
    texts = ["The copper still", "vapours, dropping slowly", "Zürich 1920 ☃", "a still in the text"]
    tokens = tokenize(units(*texts), tiny_tokenizer)
    assert pieces(tokens) == [tiny_tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokens.documents.tolist() == [0, 1, 2, 3]
    assert tokens.lengths.tolist() == [len(piece) for piece in pieces(tokens)]


def test_a_special_token_written_in_a_text_is_text(tiny_tokenizer):
    (written,) = pieces(tokenize(units("copper [SEP] still [PAD]"), tiny_tokenizer))
    assert not {tiny_tokenizer.sep_token_id, tiny_tokenizer.pad_token_id} & set(written)
    assert written[0] == tiny_tokenizer.convert_tokens_to_ids("copper")


def test_limits_that_a_tokenizer_file_asks_for_do_not_apply(minilm):
    file = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    assert file.truncation["max_length"] == 128
    assert file.padding is not None
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    texts = ["still " * 500, "short"]
    before = tokenizer.backend_tokenizer.to_str()
    assert pieces(tokenize(units(*texts), tokenizer)) == [[2145] * 500, [2460]]
    assert tokenizer.backend_tokenizer.to_str() == before


@pytest.mark.parametrize(("highest", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_ids_are_16_bits_wide_only_if_the_whole_vocabulary_fits(highest, dtype):
    tokenizer = word_tokenizer({f"w{number}": number for number in range(1, highest + 1)})
    (shard,) = tokenize(units("w1"), tokenizer).shards
    assert shard.ids.dtype == dtype


def test_units_without_a_token_are_dropped_and_counted(tiny_tokenizer):
    tokens = tokenize(units("one", NOTHING, "two", "", NOTHING), tiny_tokenizer)
    assert [shard.empty for shard in tokens.shards] == [3]
    assert len(tokens) == 2
    assert tokens.documents.tolist() == [0, 2]
    assert tokens.lengths.tolist() == [1, 1]


def test_tokens_that_the_tokenizer_does_not_know_are_counted():
    (shard,) = tokenize(units("one other", "two another one"), word_tokenizer(HIGH)).shards
    assert shard.unknown == 2


def test_a_tokenizer_that_cannot_take_a_text_is_refused(refused):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]")))
    with refused("cannot take this text", "unk_token"):
        tokenize(units("b"), tokenizer)


def test_a_corpus_without_a_known_token_is_refused(refused, tiny_tokenizer):
    for texts in ([], [NOTHING, NOTHING], [""]):
        with refused("no text", "check the files"):
            tokenize(units(*texts), tiny_tokenizer)
    with refused("unknown", "language"):
        tokenize(units("eins zwei", "drei"), word_tokenizer(HIGH))


def test_one_known_part_of_a_corpus_is_enough():
    tokenizer = PlainTokenizer(word_tokenizer(HIGH))
    shards = [Shard.of(units(text), tokenizer) for text in ("eins zwei", "", "one")]
    assert len(checked(Tokens.of(shards))) == 2


def test_a_slow_tokenizer_is_refused(refused):
    with refused("not a fast tokenizer", "tokenizer.json"):
        tokenize(units("one"), SimpleNamespace(is_fast=False))


def test_how_much_text_is_tokenised_at_a_time_changes_nothing(tiny_tokenizer, monkeypatch):
    texts = units("one", NOTHING, "two new", "first", "", "light and water")
    whole = tokenize(texts, tiny_tokenizer)
    for characters in (1, 6, 12):
        monkeypatch.setattr(tokens_module, "BATCH_CHARACTERS", characters)
        parts = tokenize(iter(texts), tiny_tokenizer)
        assert pieces(parts) == pieces(whole)
        assert parts.documents.tolist() == whole.documents.tolist()
        assert parts.fingerprint == whole.fingerprint


def test_a_tokenizers_fingerprint_tells_apart_what_gives_other_ids(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    same = [tokenizer, make_tokenizer(), AutoTokenizer.from_pretrained(tmp_path)]
    assert len({PlainTokenizer(each).fingerprint for each in same}) == 1

    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    swapped = [*vocabulary[:-2], vocabulary[-1], vocabulary[-2]]
    accents = make_tokenizer()
    accents.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    others = [make_tokenizer(swapped), make_tokenizer(do_lower_case=False), accents, make_tokenizer(vocabulary[:-1])]
    prints = [PlainTokenizer(each).fingerprint for each in [*same[:1], *others, roberta_tokenizer()]]
    assert len(set(prints)) == len(prints)


# Shards


def shard_of(*texts, vocabulary=HIGH):
    return Shard.of(units(*texts), PlainTokenizer(word_tokenizer(vocabulary)))


def content(shard):
    return [*(array.tolist() for array in (shard.ids, shard.lengths, shard.documents)), shard.empty, shard.unknown, shard.digest]


@pytest.mark.parametrize("vocabulary", [HIGH, {"one": 1, "two": 2, "three": 65_534, "four": 65_535}])
def test_a_shard_comes_back_as_it_was_saved(tmp_path, vocabulary):
    shard = shard_of("one two", "", "three other", "four", vocabulary=vocabulary)
    assert shard.ids.tolist() == [*(vocabulary[word] for word in ("one", "two", "three")), 0, vocabulary["four"]]
    shard.save(tmp_path / "a", text="some")
    opened = Shard.open(tmp_path / "a", text="some")
    assert content(opened) == content(shard)
    assert opened.ids.dtype == shard.ids.dtype
    assert pieces(Tokens.of([opened])) == pieces(Tokens.of([shard]))
    assert Tokens.of([opened]).fingerprint == Tokens.of([shard]).fingerprint


def test_a_shard_without_a_token_comes_back_too(tmp_path):
    shard = shard_of("", NOTHING)
    shard.save(tmp_path / "a")
    assert content(Shard.open(tmp_path / "a")) == content(shard)


def test_shards_of_other_content_have_other_digests():
    shards = [shard_of("one two", "one"), shard_of("one", "two one"), shard_of("two one", "one"), shard_of("one two", "one", "")]
    shards.append(Shard.of([Unit("one two", 0), Unit("one", 0)], PlainTokenizer(word_tokenizer(HIGH))))
    shards.append(shard_of("one two", "one", vocabulary={"one": 65_535, "two": 1}))
    assert len({shard.digest for shard in shards}) == len(shards)


def test_every_altered_byte_is_noticed(tmp_path):
    shard_of(*(random.Random(number).choice([*HIGH, "other", ""]) for number in range(50))).save(tmp_path / "a", text="some")
    whole = (tmp_path / "a").read_bytes()
    assert len(whole) > 800
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 1 << place % 8
        (tmp_path / "b").write_bytes(altered)
        with pytest.raises(BrokenShard):
            Shard.open(tmp_path / "b", text="some")


def test_a_shard_that_is_not_whole_or_not_a_shard_is_noticed(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(BrokenShard, match="missing"):
        Shard.open(path)
    shard_of("one", "two three", "four").save(path, text="some")
    whole = path.read_bytes()
    for wrong in (*(whole[:length] for length in range(0, len(whole), 7)), whole + b"\0", bytes(len(whole)), b"\xff" * 100):
        path.write_bytes(wrong)
        with pytest.raises(BrokenShard):
            Shard.open(path)


@pytest.mark.parametrize("notes", [{"text": "other"}, {"text": "some", "tokenizer": "any"}])
def test_a_shard_of_other_text_is_noticed(tmp_path, notes):
    shard_of("one").save(tmp_path / "a", text="some")
    assert Shard.open(tmp_path / "a", text="some")
    with pytest.raises(BrokenShard, match="other text"):
        Shard.open(tmp_path / "a", **notes)


def test_a_shard_of_another_format_is_noticed(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tokens_module, "FORMAT", "limbeck-tokens-0")
        shard_of("one").save(tmp_path / "a")
    with pytest.raises(BrokenShard, match="another version"):
        Shard.open(tmp_path / "a")


def test_nothing_is_left_when_a_shard_cannot_be_written(tmp_path, monkeypatch):
    def fail(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    shard_of("one").save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    monkeypatch.setattr(tokens_module, "save_file", fail)
    for name in ("a", "b"):
        with pytest.raises(OSError, match="no space"):
            shard_of("two").save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == before


def test_open_shards_take_no_file_descriptors(tmp_path):
    resource = pytest.importorskip("resource")
    shard_of("one two", "three").save(tmp_path / "a")
    script = f"""
import resource, sys
from pathlib import Path
from limbeck.data.tokens import Shard, Tokens
resource.setrlimit(resource.RLIMIT_NOFILE, (100, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}))
tokens = Tokens.of([Shard.open(Path(sys.argv[1])) for _ in range(2000)])
print(sum(tokens.read(start, length).sum() for start, length in zip(tokens.offsets.tolist(), tokens.lengths.tolist())))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == 2000 * sum(HIGH[word] for word in ("one", "two", "three"))


# Views of units


@pytest.fixture
def parts():
    """Shards of a corpus, one of which holds no token."""
    tokenizer = PlainTokenizer(word_tokenizer(HIGH))
    texts = [[("one two", 0), ("three", 0)], [("", 0), ("", 1)], [("four", 1), ("two two", 2)]]
    return [Shard.of([Unit(text, document) for text, document in part], tokenizer) for part in texts]


def test_units_are_read_across_shards(parts):
    tokens = Tokens.of(parts)
    one, two, three, four = HIGH.values()
    assert pieces(tokens) == [[one, two], [three], [four], [two, two]]
    assert tokens.documents.tolist() == [0, 0, 1, 2]
    assert tokens.read(1, 1).tolist() == [two]
    assert tokens.read(5, 1).dtype == np.int64


def test_joined_corpora_stand_one_after_the_other_in_documents_of_their_own(parts):
    first = Tokens.of(parts)
    second = first.chosen(np.array([False, True, True, True]))
    both = Tokens.joined([first, second, first])
    assert pieces(both) == pieces(first) + pieces(second) + pieces(first)
    borders = [place for place, (one, other) in enumerate(pairwise(both.documents.tolist()), start=1) if one != other]
    assert borders == [2, 3, 4, 5, 6, 7, 9, 10]


def test_a_new_document_begins_where_units_were_left_out(parts):
    tokens = Tokens.of([*parts, *parts])
    draw = np.random.default_rng(0)
    for _ in range(20):
        chosen = draw.random(len(tokens)) < 0.6
        part = tokens.chosen(chosen)
        places = np.flatnonzero(chosen)
        assert pieces(part) == [pieces(tokens)[place] for place in places]
        for number, (one, other) in enumerate(pairwise(places)):
            same = other == one + 1 and tokens.documents[one] == tokens.documents[other]
            assert (part.documents[number] == part.documents[number + 1]) == same


def test_the_fingerprint_follows_from_the_units(parts):
    tokens = Tokens.of(parts)
    assert Tokens.of(parts).fingerprint == tokens.fingerprint
    others = [tokens.chosen(np.arange(4) != 0), tokens.chosen(np.arange(4) != 3), Tokens.of(parts[::-1]), Tokens.of(parts * 2)]
    assert len({each.fingerprint for each in [tokens, *others]}) == 5


# Held-out text


@pytest.fixture(scope="module")
def corpus():
    """10,000 different lines, each twice, in documents of ten; every word is an id."""
    texts = [f"line {number}" for number in range(10_000)] * 2
    random.Random(0).shuffle(texts)
    return [Unit(text, place // 10) for place, text in enumerate(texts)]


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer({"line": 1, **{str(number): number + 2 for number in range(10_000)}})


def lines(tokens):
    """What stands behind "line" in each unit."""
    return [second - 2 for _, second in pieces(tokens)]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_about_the_share_asked_for_is_held_out_and_nothing_is_lost(corpus, tokenizer, share):
    tokens = tokenize(corpus, tokenizer)
    trained, held = hold_out(tokens, share)
    assert len(held) / len(tokens) == pytest.approx(share, abs=0.015)
    for side in (trained, held):
        chosen = set(lines(side))
        assert lines(side) == [number for number in lines(tokens) if number in chosen]
    assert len(trained) + len(held) == len(tokens)
    assert not set(lines(trained)) & set(lines(held))


def test_neither_order_nor_documents_nor_other_text_decide_what_is_held_out(corpus, tokenizer):
    held = set(lines(hold_out(tokenize(corpus, tokenizer), 0.1)[1]))
    part = [Unit(unit.text, 0) for unit in reversed(corpus[:5000])]
    expected = held & {int(unit.text.removeprefix("line ")) for unit in part}
    assert set(lines(hold_out(tokenize(part, tokenizer), 0.1)[1])) == expected


def test_a_corpus_too_small_to_split_is_refused(refused, tokenizer):
    with refused("too small", "0.1"):
        hold_out(tokenize([Unit("line 1", 0)] * 3, tokenizer), 0.1)
