"""From units to batches: nothing is lost, cut or joined that should not be, and every batch follows from its position."""

import random
from dataclasses import dataclass
from itertools import chain, groupby, islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from limbeck.data import tokens as tokens_module
from limbeck.data.batches import PackedSource, Special, on_device, valid_tokens
from limbeck.data.packing import Piece, pack_full
from limbeck.data.text import Unit, read_units
from limbeck.data.tokens import Tokens, tokenize

# Tokenising


def units(*texts):
    return [Unit(text, document) for document, text in enumerate(texts)]


def pieces(tokens):
    """The ids of each unit."""
    return [ids.tolist() for ids in np.split(tokens.ids, tokens.offsets[1:-1])]


def word_tokenizer(vocabulary):
    """A tokenizer that knows whole words only, with the ids it is given."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, **vocabulary}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


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
    assert tokenize(units("w1"), tokenizer).ids.dtype == dtype


def test_high_ids_stay_what_they_are_even_in_a_vocabulary_with_gaps():
    vocabulary = {"one": 65_535, "two": 65_536, "three": 119_546, "four": 250_001}
    tokens = tokenize(units("one two three four"), word_tokenizer(vocabulary))
    assert pieces(tokens) == [list(vocabulary.values())]


def test_units_without_a_token_are_dropped_and_counted(tiny_tokenizer):
    nothing = "\u200b\x01"
    tokens = tokenize(units("one", nothing, "two", nothing), tiny_tokenizer)
    assert tokens.empty == 2
    assert len(tokens) == 2
    assert tokens.documents.tolist() == [0, 2]
    assert tokens.lengths.tolist() == [1, 1]


@pytest.mark.parametrize("texts", [[], ["\u200b", "\u200b"]])
def test_a_corpus_without_a_token_is_refused(tiny_tokenizer, refused, texts):
    with refused("no text", "check the files"):
        tokenize(units(*texts), tiny_tokenizer)


def test_a_slow_tokenizer_is_refused(refused):
    with refused("not a fast tokenizer", "tokenizer.json"):
        tokenize(units("one"), SimpleNamespace(is_fast=False))


def test_how_many_units_are_tokenised_at_a_time_changes_nothing(tiny_tokenizer, monkeypatch):
    texts = units("one", "\u200b", "two new", "first", "light and water")
    whole = tokenize(texts, tiny_tokenizer)
    monkeypatch.setattr(tokens_module, "BATCH_UNITS", 2)
    parts = tokenize(iter(texts), tiny_tokenizer)
    assert pieces(parts) == pieces(whole)
    assert parts.documents.tolist() == whole.documents.tolist()
    assert parts.empty == whole.empty


# Packing


@dataclass(frozen=True)
class Case:
    """A random corpus and its blocks."""

    seed: int
    lengths: np.ndarray
    documents: np.ndarray
    body: int

    @classmethod
    def random(cls, seed):
        """Units shorter and longer than a block, some exactly as long, in documents of very different sizes."""
        draw = random.Random(seed)
        body = draw.choice([1, 2, 3, 7, 16, 126])
        kinds = draw.choices([(1, 3), (1, body), (body, body), (1, 4 * body)], k=2)
        lengths = [draw.randint(*draw.choice(kinds)) for _ in range(draw.randint(1, 300))]
        new_document = draw.choice([0.0, 0.1, 0.5, 1.0])
        documents = np.cumsum([draw.random() < new_document for _ in lengths])
        return cls(seed, np.array(lengths), documents, body)

    def __str__(self):
        return f"seed{self.seed}"

    def blocks(self):
        return list(pack_full(self.lengths, self.documents, self.body))

    def continues(self, before, after):
        """Whether one piece takes up the text exactly where the other leaves it."""
        if before.unit == after.unit:
            return after.start == before.start + before.length
        whole = before.start + before.length == self.lengths[before.unit] and after.start == 0
        return whole and after.unit == before.unit + 1 and self.documents[after.unit] == self.documents[before.unit]


def used(block):
    """Tokens in a block, separators included."""
    return sum(piece.length + piece.separated for piece in block)


every_case = pytest.mark.parametrize("case", [Case.random(seed) for seed in range(40)], ids=str)


@every_case
def test_every_token_of_every_unit_is_packed_once_and_in_order(case):
    packed = dict.fromkeys(range(len(case.lengths)), 0)
    for block in case.blocks():
        for piece in block:
            assert piece.start == packed[piece.unit]
            assert piece.length > 0
            packed[piece.unit] += piece.length
    assert list(packed.values()) == case.lengths.tolist()


@every_case
def test_no_block_is_empty_or_longer_than_its_body(case):
    assert all(0 < used(block) <= case.body for block in case.blocks())


@every_case
def test_only_units_longer_than_a_block_are_cut_and_they_go_on_in_the_next(case):
    for block, following in pairwise([*case.blocks(), []]):
        for place, piece in enumerate(block):
            end = piece.start + piece.length
            if end < case.lengths[piece.unit]:
                assert case.lengths[piece.unit] > case.body
                assert place == len(block) - 1
                assert used(block) == case.body
                assert (following[0].unit, following[0].start) == (piece.unit, end)


@every_case
def test_a_separator_stands_exactly_where_the_text_does_not_go_on(case):
    for block in case.blocks():
        assert not block[0].separated
        for before, after in pairwise(block):
            assert after.separated == (not case.continues(before, after))


@every_case
def test_the_first_unit_not_yet_begun_comes_next_wherever_it_fits(case):
    waiting = list(range(len(case.lengths)))
    for block in case.blocks():
        room = case.body
        for before, piece in pairwise([None, *block]):
            if piece.start == 0:
                first, length = Piece(waiting[0], 0, 0, False), case.lengths[waiting[0]]
                separator = int(before is not None and not case.continues(before, first))
                if length + separator <= room or (length > case.body and separator < room):
                    assert piece.unit == first.unit
                waiting.remove(piece.unit)
            room -= piece.length + piece.separated


@every_case
def test_no_gap_is_left_that_a_later_unit_would_fill(case):
    blocks = case.blocks()
    later = []
    for block in reversed(blocks):
        room = case.body - used(block) - 1
        assert not any(case.lengths[unit] <= room or (case.lengths[unit] > case.body and room > 0) for unit in later)
        later.extend(piece.unit for piece in block if piece.start == 0)


def test_units_of_one_document_that_fit_make_one_block_of_running_text():
    assert list(pack_full(np.array([3, 4, 5]), np.zeros(3), body=12)) == [
        [Piece(0, 0, 3, False), Piece(1, 0, 4, False), Piece(2, 0, 5, False)]
    ]


def test_documents_that_share_a_block_are_separated():
    assert list(pack_full(np.array([3, 4, 5]), np.array([0, 0, 1]), body=13)) == [
        [Piece(0, 0, 3, False), Piece(1, 0, 4, False), Piece(2, 0, 5, True)]
    ]


@pytest.mark.parametrize(
    ("file", "length"), [("text/en/classic_books.txt.gz", 128), ("text/en/wikipedia_vital_articles.txt.gz", 512)]
)
def test_real_text_leaves_hardly_a_position_empty(real_data, minilm, file, length):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    source = PackedSource(tokenize(islice(read_units([real_data / file]), 4_000), tokenizer), Special.of(tokenizer), length, 0)
    assert source.tokens / (len(source) * length) >= 0.98


# Batches

SPECIAL = Special(begin=1, end=2, pad=0)


@pytest.fixture
def tokens():
    """A random corpus in which every token has an id of its own."""
    draw = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(draw.integers(1, 31, size=200))])
    documents = np.cumsum(draw.random(200) < 0.2)
    return Tokens(np.arange(10, 10 + offsets[-1], dtype=np.uint32), offsets, documents, empty=0)


@pytest.fixture
def make_source(tokens):
    """Pack the corpus into blocks of 16 or fewer."""

    def make(seed=0, max_length=16):
        return PackedSource(tokens, SPECIAL, max_length, seed)

    return make


def test_examples_follow_from_the_position_alone(make_source):
    source = make_source()
    total = 3 * len(source) + 5
    whole = source.examples(0, total)
    for size in (1, 7, 32, len(source), len(source) + 1):
        parts = [source.examples(first, min(size, total - first)) for first in range(0, total, size)]
        assert list(chain.from_iterable(parts)) == whole
    draw = random.Random(0)
    for _ in range(100):
        first = draw.randrange(total)
        reader = draw.choice([source, make_source()])
        assert reader.examples(first, 9)[: total - first] == whole[first : first + 9]


def test_each_epoch_gives_each_example_once_and_in_another_order(make_source):
    source = make_source()
    epochs = [source.examples(epoch * len(source), len(source)) for epoch in range(4)]
    assert all(sorted(epoch) == list(range(len(source))) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_another_seed_gives_another_order(make_source):
    source = make_source()
    assert make_source(seed=0).examples(0, len(source)) == source.examples(0, len(source))
    assert make_source(seed=1).examples(0, len(source)) != source.examples(0, len(source))


@pytest.mark.parametrize("max_length", [4, 16, 50])
def test_the_blocks_hold_the_whole_corpus_between_begin_and_end(make_source, tokens, max_length):
    source = make_source(max_length=max_length)
    rows = [
        row[valid] for batch in source.in_order(8) for row, valid in zip(batch["input_ids"], valid_tokens(batch), strict=True)
    ]
    assert len(rows) == len(source)
    assert all(len(row) <= max_length for row in rows)
    assert all(row[0] == SPECIAL.begin and row[-1] == SPECIAL.end for row in rows)
    assert all(SPECIAL.begin not in row[1:] and SPECIAL.pad not in row for row in rows)
    held = sorted(int(token) for row in rows for token in row if token >= 10)
    assert held == tokens.ids.tolist()
    assert source.tokens == sum(len(row) for row in rows)


def test_one_separator_stands_wherever_the_text_in_a_block_does_not_go_on(make_source, tokens):
    documents = dict(zip(tokens.ids.tolist(), np.repeat(tokens.documents, tokens.lengths).tolist(), strict=True))
    for batch in make_source().in_order(1):
        body = batch["input_ids"][0, 1:-1].tolist()
        runs = [list(run) for separator, run in groupby(body, lambda token: token == SPECIAL.end) if not separator]
        assert body.count(SPECIAL.end) == len(runs) - 1
        assert all(after == before + 1 for run in runs for before, after in pairwise(run))
        assert all(after[0] != before[-1] + 1 or documents[after[0]] != documents[before[-1]] for before, after in pairwise(runs))


def test_collating_pads_on_the_right_and_masks_only_what_is_padded(make_source):
    source = make_source()
    lengths = [source.collate([example])["input_ids"].shape[1] for example in range(len(source))]
    shorter = lengths.index(min(lengths))
    full = [example for example, length in enumerate(lengths) if length == max(lengths)][:2]
    assert lengths[shorter] < lengths[full[0]]

    even = source.collate(full)
    assert set(even) == {"input_ids"}
    assert even["input_ids"].dtype == torch.int64

    batch = source.collate([full[0], shorter])
    alone = source.collate([shorter])["input_ids"][0]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, max(lengths))
    assert torch.equal(batch["input_ids"][0], even["input_ids"][0])
    assert torch.equal(batch["input_ids"][1, : len(alone)], alone)
    assert (batch["input_ids"][1, len(alone) :] == SPECIAL.pad).all()
    assert batch["attention_mask"].sum(dim=1).tolist() == [max(lengths), len(alone)]
    assert torch.equal(batch["attention_mask"][1], torch.arange(max(lengths)) < len(alone))


def test_a_batch_moves_to_a_device_as_a_whole(make_source, device):
    batch = on_device(make_source().collate([0, 1, 2]), device)
    assert all(tensor.device.type == device.type for tensor in [*batch.values(), valid_tokens(batch)])


def test_a_tokenizer_without_the_tokens_that_frame_a_block_is_refused(tiny_tokenizer, refused):
    assert Special.of(tiny_tokenizer) == Special(begin=2, end=3, pad=0)
    with refused("[CLS]"):
        Special.of(word_tokenizer({"one": 1}))
