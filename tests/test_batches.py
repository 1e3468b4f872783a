"""From packed text to batches: every batch follows from its position, nothing is lost, and shares are kept."""

import random
from collections import Counter
from dataclasses import replace
from itertools import chain, groupby, islice, pairwise

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from limbeck.data.batches import Frame, on_device, valid_tokens
from limbeck.data.corpora import Layout
from limbeck.data.files import corpus_files
from limbeck.data.text import read_units
from limbeck.data.tokens import Shard, Tokens, tokenize
from texts import roberta_tokenizer, units, word_tokenizer

FRAME = Frame(begin=1, end=2, pad=0)
ROBERTA = replace(FRAME, between=2)
LAYOUTS = {
    "full": Layout(FRAME, "full", 16, seed=0),
    "pairs": Layout(FRAME, "pairs", 16, seed=0),
    "roberta": Layout(ROBERTA, "pairs", 16, seed=0),
    "single": Layout(FRAME, "single", 16, seed=0),
    "long": Layout(FRAME, "full", 16, seed=0, long_length=64, long_share=0.2),
    "long pairs": Layout(FRAME, "pairs", 16, seed=0, long_length=64, long_share=0.2),
    "long single": Layout(FRAME, "single", 16, seed=0, long_length=64, long_share=0.2),
}

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def random_tokens(seed=0, count=200, longest=31, first=10):
    """A random corpus in which every token has an id of its own."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest, size=count).astype(np.uint32)
    documents = np.cumsum(draw.random(count) < 0.2).astype(np.uint32)
    ids = np.arange(first, first + lengths.sum(), dtype=np.uint32)
    return Tokens.of([Shard(ids, lengths, documents, 0, 0, f"{seed} {count} {longest} {first}")])


@pytest.fixture(scope="module")
def tokens():
    return random_tokens()


def rows(source, examples=None):
    """The ids of examples, without padding."""
    for example in everything(source) if examples is None else examples:
        batch = source.collate([example])
        yield batch["input_ids"][0][valid_tokens(batch)[0]].tolist()


def everything(source):
    """Each example of a source that draws all of them once an epoch."""
    return list(range(len(source)))


def body(row):
    """The text in a sequence."""
    return [token for token in row if token >= 10]


# Order


@every_layout
def test_examples_follow_from_the_position_alone(tokens, layout):
    source, other = layout.source([tokens]), layout.source([tokens])
    total = 3 * len(source) + 5
    whole = source.examples(0, total)
    for size in (1, 7, 32, len(source), len(source) + 1):
        parts = [source.examples(first, min(size, total - first)) for first in range(0, total, size)]
        assert list(chain.from_iterable(parts)) == whole
    draw = random.Random(0)
    for _ in range(100):
        first = draw.randrange(total)
        assert draw.choice([source, other]).examples(first, 9)[: total - first] == whole[first : first + 9]


@every_layout
def test_each_epoch_gives_each_example_once_and_in_another_order(tokens, layout):
    source = layout.source([tokens])
    epochs = [source.examples(epoch * len(source), len(source)) for epoch in range(4)]
    assert all(sorted(epoch) == everything(source) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


@every_layout
def test_a_changed_batch_size_neither_skips_nor_repeats_an_example(tokens, layout):
    source = layout.source([tokens])
    position, read = 0, []
    for size in chain([8], [4, 4, 4], [16] * len(source)):
        read += source.examples(position, size)
        position += size
    assert sorted(read[: len(source)]) == everything(source)
    assert sorted(read[len(source) : 2 * len(source)]) == everything(source)


def test_another_seed_gives_another_order(tokens):
    layout = LAYOUTS["full"]
    source = layout.source([tokens])
    assert layout.source([tokens]).examples(0, len(source)) == source.examples(0, len(source))
    assert replace(layout, seed=1).source([tokens]).examples(0, len(source)) != source.examples(0, len(source))


# Content


@every_layout
def test_the_sequences_hold_the_whole_corpus_in_their_frames(tokens, layout):
    source = layout.source([tokens])
    found = list(rows(source))
    longest = max(layout.max_length, layout.long_length)
    assert all(len(row) <= longest for row in found)
    assert all(row[0] == FRAME.begin and row[-1] == FRAME.end and row.count(FRAME.begin) == 1 for row in found)
    assert all(FRAME.pad not in row for row in found)
    assert sorted(chain.from_iterable(map(body, found))) == list(range(10, 10 + int(tokens.lengths.sum())))
    counted = sum(map(len, found))
    assert counted <= source.tokens <= counted + 2 * len(source)


@pytest.mark.parametrize("max_length", [4, 16, 50])
def test_the_tokens_of_full_packing_are_counted_exactly(tokens, max_length):
    source = replace(LAYOUTS["full"], max_length=max_length).source([tokens])
    assert source.tokens == sum(map(len, rows(source)))
    assert source.real_share == source.tokens / (len(source) * max_length)


def test_one_separator_stands_wherever_the_text_in_a_block_does_not_go_on(tokens):
    documents = dict(enumerate(np.repeat(tokens.documents, tokens.lengths).tolist(), start=10))
    for row in rows(LAYOUTS["full"].source([tokens])):
        runs = [list(run) for separator, run in groupby(row[1:-1], lambda token: token == FRAME.end) if not separator]
        assert row[1:-1].count(FRAME.end) == len(runs) - 1
        assert all(after == before + 1 for run in runs for before, after in pairwise(run))
        assert all(after[0] != before[-1] + 1 or documents[after[0]] != documents[before[-1]] for before, after in pairwise(runs))


@every_layout
def test_evaluation_gives_every_sequence_once_the_short_ones_first(tokens, layout):
    source = layout.source([tokens])
    batches = [source.collate(examples) for examples in source.in_order(8)]
    lengths = [batch["input_ids"].shape[1] for batch in batches]
    assert sum(len(batch["input_ids"]) for batch in batches) == len(source)
    assert all(one <= other + layout.frame.between for one, other in pairwise(lengths))  # a pair may lack a separator
    read = [token for batch in batches for token in batch["input_ids"].flatten().tolist() if token >= 10]
    assert sorted(read) == list(range(10, 10 + int(tokens.lengths.sum())))


def test_collating_pads_on_the_right_and_masks_only_what_is_padded(tokens):
    source = LAYOUTS["full"].source([tokens])
    lengths = list(map(len, rows(source)))
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
    assert (batch["input_ids"][1, len(alone) :] == FRAME.pad).all()
    assert batch["attention_mask"].sum(dim=1).tolist() == [max(lengths), len(alone)]
    assert torch.equal(batch["attention_mask"][1], torch.arange(max(lengths)) < len(alone))


def test_a_batch_moves_to_a_device_as_a_whole(tokens, device):
    batch = on_device(LAYOUTS["pairs"].source([tokens]).collate([0, 1, 2]), device)
    assert all(tensor.device.type == device.type for tensor in [*batch.values(), valid_tokens(batch)])


def test_the_fingerprint_follows_from_text_and_packing(tokens):
    layout = LAYOUTS["full"]
    source = layout.source([tokens])
    assert layout.source([random_tokens()]).fingerprint == source.fingerprint
    others = [
        layout.source([random_tokens(1)]),
        layout.source([tokens.chosen(np.arange(len(tokens)) > 0)]),
        layout.source([tokens, tokens], [1, 2]),
        replace(layout, max_length=17).source([tokens]),
        *(LAYOUTS[name].source([tokens]) for name in ("pairs", "single", "long")),
    ]
    assert len({each.fingerprint for each in [source, *others]}) == 1 + len(others)


def test_dropped_and_unknown_text_is_counted_once_however_often_a_part_is_drawn():
    tokenizer = word_tokenizer({"one": 10, "two": 11})
    parts = [tokenize(units("one two", "", "three one"), tokenizer), tokenize(units("two", "four two"), tokenizer)]
    source = replace(LAYOUTS["long"], long_share=0.5).source(parts, [1, 5])
    assert source.empty_units == 1
    assert source.unknown_share == 2 / 7


# Frames


def test_the_frame_is_the_tokenizers_own(tiny_tokenizer, refused):
    assert Frame.of(tiny_tokenizer) == Frame(begin=2, end=3, pad=0, between=1)
    assert Frame.of(roberta_tokenizer()) == Frame(begin=0, end=2, pad=1, between=2)
    with refused("[CLS]"):
        Frame.of(word_tokenizer({"one": 1}))


def test_a_tokenizer_may_begin_and_end_with_tokens_of_other_names(bpe_tokenizer):
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe_tokenizer.backend_tokenizer, **named)
    assert tokenizer.cls_token_id is None
    frame = Frame.of(tokenizer)
    assert [frame.begin, frame.end] == [tokenizer("a")["input_ids"][place] for place in (0, -1)]
    assert frame.pad == tokenizer.pad_token_id


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_pair_is_framed_as_the_tokenizer_frames_it(tiny_tokenizer, kind):
    tokenizer = tiny_tokenizer if kind == "bert" else roberta_tokenizer()
    texts = ["copper", "still"]
    source = Layout(Frame.of(tokenizer), "pairs", 24, seed=0).source([tokenize(units(*texts), tokenizer)])
    batch = source.collate([0])
    expected = tokenizer(*texts, return_tensors="pt")
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert kind == "roberta" or torch.equal(batch["token_type_ids"], expected["token_type_ids"])


@pytest.mark.parametrize("name", ["pairs", "roberta", "long pairs"])
def test_pairs_are_two_texts_with_segments(tokens, name):
    layout = LAYOUTS[name]
    source = layout.source([tokens])
    between = [FRAME.end] * layout.frame.between
    cuts = []
    for example in everything(source):
        batch = source.collate([example])
        row, segments = batch["input_ids"][0].tolist(), batch["token_type_ids"][0].tolist()
        second = segments.index(1)
        assert segments == [0] * second + [1] * (len(row) - second)
        assert row[second - len(between) : second] == between
        assert body(row[second - len(between) - 1 : second - len(between)])
        assert body(row[second : second + 1])
        assert len(row) - 1 > second
        cuts.append(second / len(row))
    assert np.mean(cuts) == pytest.approx(0.5, abs=0.1)


def test_a_padded_pair_has_segment_0_where_it_is_padded(tokens):
    source = LAYOUTS["pairs"].source([tokens])
    batch = source.collate(everything(source))
    assert not batch["token_type_ids"][batch["attention_mask"] == 0].any()


def test_text_of_one_token_makes_no_pair():
    source = LAYOUTS["pairs"].source([random_tokens(count=1, longest=2)])
    batch = source.collate([0])
    assert batch["input_ids"].tolist() == [[FRAME.begin, 10, FRAME.end]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0]]


# What was seen


@pytest.mark.parametrize("weights", [None, [1, 3, 0.02]])
@every_layout
def test_what_the_first_examples_hold_is_told_without_reading_them(layout, weights, monkeypatch):
    monkeypatch.setattr("limbeck.data.tokens.MARKED", 5)
    first, second, third = (random_tokens(seed, 60, first=10 + 1000 * seed) for seed in range(3))
    first = Tokens.joined([first, second]).chosen(np.random.default_rng(0).random(120) < 0.7)
    parts = [first, third, random_tokens(3, 400, first=4000)]
    source = layout.source(parts, weights)
    for examples in (1, 10, len(source) - 1, len(source), 2 * len(source) + 3):
        batches = [source.collate([example]) for example in set(source.examples(0, examples))]
        read = [batch["input_ids"][0] for batch in batches]
        seen = source.seen(examples, 12_000)
        assert np.flatnonzero(seen.ids).tolist() == sorted(set(torch.cat(read).tolist()))
        assert seen.longest == max(map(len, read))
        assert seen.segments == len({int(s) for batch in batches for s in batch.get("token_type_ids", torch.zeros(1)).flatten()})


def test_where_no_text_can_be_cut_no_second_segment_is_seen():
    seen = LAYOUTS["roberta"].source([random_tokens(count=1, longest=2)]).seen(1, 20)
    assert (np.flatnonzero(seen.ids).tolist(), seen.longest, seen.segments) == ([1, 2, 10], 3, 1)


# Shares


@pytest.mark.parametrize("packing", ["full", "single"])
@pytest.mark.parametrize("weights", [[1, 1, 1], [5, 1, 4], [0.1, 0.2, 0.7]])
def test_each_part_has_its_share_of_the_tokens_and_its_sequences_are_drawn_evenly(packing, weights):
    parts = [random_tokens(seed, count, first=1_000_000 * (seed + 1)) for seed, count in enumerate([300, 3000, 1000])]
    source = replace(LAYOUTS["full"], packing=packing).source(parts, weights)
    texts = [body(row) for row in rows(source, range(max(source.examples(0, 40 * len(source))) + 1))]
    part = np.array([text[0] // 1_000_000 for text in texts])
    sizes = np.array([len(text) for text in texts])
    for epochs in (1, 2, 3, 7):
        counts = np.zeros(len(texts), dtype=int)
        for example, times in Counter(source.examples(0, epochs * len(source))).items():
            counts[example] = times
        for number in (1, 2, 3):
            assert np.ptp(counts[part == number]) <= 1
    shares = [(counts * sizes)[part == number].sum() / (counts * sizes).sum() for number in (1, 2, 3)]
    assert shares == pytest.approx(np.array(weights) / sum(weights), abs=0.01)


def test_an_epoch_of_weighted_text_is_as_long_as_one_of_all_text():
    parts = [random_tokens(0, 300), random_tokens(1, 3000)]
    source = LAYOUTS["full"].source(parts, [1, 1])
    assert source.tokens == pytest.approx(LAYOUTS["full"].source(parts).tokens, rel=0.01)
    assert source.tokens == pytest.approx(sum(map(len, rows(source, source.examples(0, len(source))))), rel=0.01)


@pytest.fixture
def real(real_data, minilm):
    """Build a source of 2,000 units of real text."""
    tokenizer = AutoTokenizer.from_pretrained(minilm)

    def make(name, *settings, **more):
        files = corpus_files([real_data / "text" / "en" / name])
        tokens = tokenize(islice(read_units(files), 2_000), tokenizer)
        return Layout(Frame.of(tokenizer), *settings, **more).source([tokens])

    return make


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_about_the_share_asked_for_is_packed_to_the_long_length(real, share):
    source = real("wikipedia_passages.txt.gz", "full", 128, seed=0, long_length=512, long_share=share)
    lengths = np.array(list(map(len, rows(source))))
    assert lengths.max() == 512
    assert lengths[lengths > 128].sum() / lengths.sum() == pytest.approx(share, abs=0.02)
    assert source.real_share >= 0.97

    epoch = source.examples(0, len(source))
    batches = [lengths[epoch[first : first + 32]] for first in range(0, len(epoch), 32)]
    mixed = [batch for batch in batches if batch.max() > 128 and batch.min() <= 128]
    assert len(mixed) <= max(2, len(batches) // 20)


def test_single_sentences_are_batched_with_others_of_their_length(real):
    source = real("sentences.txt.gz", "single", 128, seed=0)
    lengths = np.array(list(map(len, rows(source))))
    orders = [source.examples(epoch * len(source), len(source)) for epoch in range(2)]
    both = lengths[[*orders[0], *orders[1]]]  # the second epoch begins within a batch
    padded = sum(batch.max() * len(batch) for batch in np.split(both, range(32, len(both), 32)))
    assert 1 - both.sum() / padded < 0.05
    assert Counter(map(frozenset, zip(*[iter(orders[0])] * 32, strict=False))) != Counter(
        map(frozenset, zip(*[iter(orders[1])] * 32, strict=False))
    )
    assert sum(one == other for one, other in zip(*orders, strict=True)) < len(source) / 20


# Micro-batches


@every_layout
@pytest.mark.parametrize("size", [4, 7])
def test_micro_batches_hold_every_example_and_no_more_tokens_than_asked_for(tokens, layout, size):
    source = layout.source([tokens])
    examples = source.examples(0, len(source))
    parts = list(source.split(examples, size))
    assert list(chain.from_iterable(parts)) == examples
    assert all(source.collate(part)["input_ids"].numel() <= size * layout.max_length for part in parts)
    assert all(len(part) <= size for part in parts)
    lengths = list(map(len, rows(source)))
    for part, following in pairwise(parts):
        longest = max(layout.max_length, *(lengths[example] for example in [*part, following[0]]))
        assert (longest + layout.frame.between) * (len(part) + 1) > size * layout.max_length


def test_a_sequence_longer_than_a_micro_batch_stands_alone(tokens):
    source = LAYOUTS["long"].source([tokens])
    lengths = list(map(len, rows(source)))
    parts = list(source.split(source.examples(0, len(source)), 1))
    assert all(len(part) == 1 for part in parts)
    assert max(lengths) > 16
