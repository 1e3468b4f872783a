"""Packing: nothing is lost, cut or joined that should not be, and hardly a position stays empty."""

import random
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import pytest
from transformers import AutoTokenizer

from limbeck.data.batches import Frame
from limbeck.data.corpora import Layout
from limbeck.data.files import corpus_files
from limbeck.data.packing import LOOKAHEAD, TOLERATED, Piece, pack, pack_full, pack_single
from limbeck.data.text import read_units
from limbeck.data.tokens import Shard, Tokens, tokenize


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
        return self.pack(self.documents)

    def pack(self, documents):
        return list(pack_full(self.lengths, documents, self.body))

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
def test_a_cut_unit_fills_its_block_and_goes_on_in_the_next(case):
    for block, following in pairwise([*case.blocks(), []]):
        for place, piece in enumerate(block):
            end = piece.start + piece.length
            if end < case.lengths[piece.unit]:
                assert place == len(block) - 1
                assert used(block) == case.body
                assert (following[0].unit, following[0].start) == (piece.unit, end)


@every_case
def test_a_unit_that_would_fit_a_block_is_cut_only_for_a_gap_that_none_fills_and_that_is_not_tolerated(case):
    blocks = case.blocks()
    later = []
    for block in reversed(blocks):
        *_, last = block
        length = case.lengths[last.unit]
        if length <= case.body and last.start + last.length < length:
            room = last.length + last.separated
            assert room > case.body // TOLERATED
            assert not any(case.lengths[unit] <= room - 1 or (case.lengths[unit] > case.body and room > 1) for unit in later)
        later.extend(piece.unit for piece in block if piece.start == 0)


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
def test_no_block_but_the_last_has_a_gap_of_more_than_is_tolerated(case):
    *blocks, _ = case.blocks()
    assert all(case.body - used(block) <= max(1, case.body // TOLERATED) for block in blocks)


def test_a_gap_is_filled_by_the_longest_unit_ahead_that_fits():
    lengths = np.array([60, 80, 12, 38, 39, 41, 5])
    blocks = list(pack_full(lengths, np.arange(7), body=100))
    assert [piece.unit for piece in blocks[0]] == [0, 4]
    assert [(piece.unit, piece.start) for block in blocks[1:] for piece in block] == [(1, 0), (2, 0), (6, 0), (3, 0), (5, 0)]


def test_units_too_far_ahead_do_not_fill_a_gap():
    lengths = np.array([60, 80, *[90] * LOOKAHEAD, 39])
    assert [piece.unit for piece in next(pack_full(lengths, np.arange(len(lengths)), body=100))] == [0, 1]


def test_units_of_one_document_that_fit_make_one_block_of_running_text():
    assert list(pack_full(np.array([3, 4, 5]), np.zeros(3), body=12)) == [
        [Piece(0, 0, 3, False), Piece(1, 0, 4, False), Piece(2, 0, 5, False)]
    ]


def test_documents_that_share_a_block_are_separated():
    assert list(pack_full(np.array([3, 4, 5]), np.array([0, 0, 1]), body=13)) == [
        [Piece(0, 0, 3, False), Piece(1, 0, 4, False), Piece(2, 0, 5, True)]
    ]


@every_case
def test_single_packing_gives_each_unit_blocks_of_its_own_as_full_as_can_be(case):
    blocks = list(pack_single(case.lengths, case.body))
    assert all(len(block) == 1 for block in blocks)
    for unit, length in enumerate(case.lengths.tolist()):
        own = [block[0] for block in blocks if block[0].unit == unit]
        assert [piece.start for piece in own] == list(range(0, length, case.body))
        assert [piece.length for piece in own] == [min(case.body, length - piece.start) for piece in own]
    assert [block[0].unit for block in blocks] == sorted(block[0].unit for block in blocks)


@pytest.mark.parametrize("packing", ["full", "pairs", "single"])
@every_case
def test_packed_blocks_are_the_pieces_of_the_corpus(case, packing):
    """Units of which every other one was taken out, so that places in the corpus are not those in the blocks."""
    lengths = np.repeat(case.lengths, 2)
    ids = np.arange(lengths.sum(), dtype=np.uint32)
    shard = Shard(ids, lengths.astype(np.uint32), np.repeat(case.documents, 2).astype(np.uint32), 0, 0, "")
    tokens = Tokens.of([shard]).chosen(np.arange(len(lengths)) % 2 == 1)
    packed = pack(tokens, packing, case.body)
    blocks = list(pack_single(tokens.lengths, case.body) if packing == "single" else case.pack(tokens.documents))
    assert len(packed) == len(blocks)
    assert packed.sizes.tolist() == [used(block) for block in blocks]
    for block, first, end in zip(blocks, packed.blocks, packed.blocks[1:], strict=False):
        assert packed.starts[first:end].tolist() == [tokens.offsets[piece.unit] + piece.start for piece in block]
        assert packed.lengths[first:end].tolist() == [piece.length for piece in block]
        assert packed.separated[first:end].tolist() == [piece.separated for piece in block]


@pytest.mark.parametrize("length", [32, 128, 512])
@pytest.mark.parametrize("kind", [(10, 30), (60, 90), (100, 140), (123, 123), (1, 1000)])
def test_whatever_the_units_lengths_at_least_98_of_100_positions_are_real(kind, length):
    draw = np.random.default_rng(0)
    lengths = draw.integers(kind[0], kind[1], size=5_000, endpoint=True)
    blocks = list(pack_full(lengths, np.cumsum(draw.random(5_000) < 0.5), length - 2))
    assert sum(map(used, blocks)) + 2 * len(blocks) >= 0.98 * length * (len(blocks) - 1)


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("classic_books.txt.gz", [128]),
        ("sentences.txt.gz", [128]),
        ("state_union.txt.gz", [128]),
        ("wikipedia_passages.txt.gz", [128]),
        ("wikipedia_vital_articles.txt.gz", [128, 512]),
        ("wikitext-2/wiki.valid.tokens.gz", [128]),
    ],
)
def test_real_text_leaves_hardly_a_position_empty(real_data, minilm, name, lengths):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokens = tokenize(islice(read_units(corpus_files([real_data / "text" / "en" / name])), 4_000), tokenizer)
    for length in lengths:
        source = Layout(Frame.of(tokenizer), "full", length, seed=0).source([tokens])
        assert source.real_share >= 0.98
