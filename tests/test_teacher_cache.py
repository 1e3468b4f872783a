"""What a teacher said is remembered as it was said, whoever asks again, and whatever happens to the process that wrote it."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck
from kinds import KINDS
from limbeck.training import remembering
from limbeck.training.feature_store import RECORD, FeatureStore, key_of
from limbeck.training.loop import Loop
from limbeck.training.stage import Teacher
from runs import SETTINGS, equal, log_of, weights

WIDTH = 6
EPOCHS = {"steps": None, "epochs": 3, "holdout": "0.1", "eval_every": 4, "teacher_cache": "always"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test finds what another one remembered."""
    monkeypatch.setenv("LIMBECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def corpus(corpus):
    """A text that is soon gone over."""
    corpus.write_text("\n".join(corpus.read_text().splitlines()[:50]))
    return corpus


@pytest.fixture
def make_modernbert(tiny_tokenizer):
    """A tiny model with rotary positions, and its tokenizer."""
    return lambda: (KINDS["modernbert"].model(tiny_tokenizer), tiny_tokenizer)


@pytest.fixture
def asked(monkeypatch):
    """How many sequences the teacher really looked at while training."""
    seen = []
    ask = remembering.RememberingTeacher._asked

    def watched(self, batch, mask):
        if self._watchers:
            seen.append(len(mask))
        return ask(self, batch, mask)

    monkeypatch.setattr(remembering.RememberingTeacher, "_asked", watched)
    return seen


def rows(tokens, seed=0):
    return torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(seed)).bfloat16()


def key(number):
    return key_of(np.array([number]), None)


def filled(folder, numbers, limit=10**6):
    store = FeatureStore(folder, WIDTH, limit)
    store.begin()
    for number in numbers:
        store.put(key(number), rows(number + 1, number))
    store.end()
    return store


# ---------------------------------------------------------------- the store


def test_rows_come_back_as_they_were_put(tmp_path):
    store = filled(tmp_path / "store", [0, 4, 2])
    for again in (store, FeatureStore(tmp_path / "store", WIDTH, 10**6)):
        assert len(again) == 3
        (first, second) = again.get([key(4), key(0)])
        assert torch.equal(first, rows(5, 4))
        assert torch.equal(second, rows(1, 0))
        assert again.get([key(4), key(9)]) is None


def test_parts_of_several_processes_are_one_store(tmp_path):
    one, two = (FeatureStore(tmp_path / "store", WIDTH, 10**6) for _ in range(2))
    for number, store in enumerate((one, two)):
        store.begin()
        store.put(key(number), rows(3, number))
    one.end()
    two.end()
    whole = FeatureStore(tmp_path / "store", WIDTH, 10**6)
    assert all(torch.equal(each, rows(3, number)) for number, each in enumerate(whole.get([key(0), key(1)])))
    assert len(list((tmp_path / "store").glob("*.bin"))) == 2


def test_a_sequence_is_put_once_and_what_has_no_room_is_not(tmp_path):
    store = filled(tmp_path / "store", [1, 1, 1])
    assert store.size == 2 * WIDTH * 2
    again = filled(tmp_path / "store", [1])
    assert again.size == store.size
    assert len(list((tmp_path / "store").glob("*"))) == 2  # no part of nothing
    full = filled(tmp_path / "full", [0, 1, 2], limit=3 * WIDTH * 2)
    assert len(full) == 2
    assert full.size == 3 * WIDTH * 2


def test_what_a_killed_process_left_is_no_more_than_it_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr("limbeck.training.feature_store.FLUSH_BYTES", 4 * WIDTH * 2)
    store = FeatureStore(tmp_path / "store", WIDTH, 10**6)
    store.begin()
    for number in range(6):
        store.put(key(number), rows(2, number))
    assert len(FeatureStore(tmp_path / "store", WIDTH, 10**6)) == 6
    store.put(key(6), rows(2, 6))  # gathered, and found, but not written
    assert torch.equal(store.get([key(6)])[0], rows(2, 6))
    (index,) = (tmp_path / "store").glob("*.idx")
    index.write_bytes(index.read_bytes()[:-5])  # and the last record half-written
    left = FeatureStore(tmp_path / "store", WIDTH, 10**6)
    assert len(left) == 5
    assert all(torch.equal(each, rows(2, number)) for number, each in enumerate(left.get([key(n) for n in range(5)])))
    (data,) = (tmp_path / "store").glob("*.bin")
    data.write_bytes(data.read_bytes()[: 3 * WIDTH * 2])  # the disk lost more than it said
    assert len(FeatureStore(tmp_path / "store", WIDTH, 10**6)) == 1
    assert index.stat().st_size % RECORD.itemsize


def test_a_full_disk_ends_the_keeping_only(tmp_path, monkeypatch):
    store = filled(tmp_path / "store", [0])
    store.begin()
    store.put(key(1), rows(2, 1))
    with monkeypatch.context() as patch:
        patch.setattr("limbeck.training.feature_store.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        store.end()
    assert store.get([key(1)]) is None
    for left in (store, FeatureStore(tmp_path / "store", WIDTH, 10**6)):
        assert torch.equal(left.get([key(0)])[0], rows(1, 0))


def test_a_key_tells_tokens_and_segments_apart():
    ids = np.array([5, 6, 7])
    keys = [key_of(ids, None), key_of(ids[:2], None), key_of(ids, np.array([0, 0, 1])), key_of(ids, np.array([0, 1, 1]))]
    assert len(set(keys)) == 4
    assert key_of(ids, None) == key_of(np.array([4, 5, 6, 7])[1:], None)


# ---------------------------------------------------------------- in a run


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": "minilm"},
        {"tail": "hidden"},  # reads hidden states as well, so that features are kept
        {"packing": "single", "batch_size": 5, "micro_batch_size": 3},
        {"precision": "bf16"},
    ],
)
def test_each_sequence_is_asked_about_once_and_the_student_is_nearly_the_same(distil, asked, changes):
    run = distil("with", **EPOCHS, **changes)
    sequences = run.summary["text"]["sequences"]
    assert sequences < sum(asked) < 1.5 * sequences  # and the held-out ones
    asked.clear()
    again = distil("again", **EPOCHS, **changes)
    assert sum(asked) == 0
    assert equal(weights(again), weights(run))
    assert log_of(again) == log_of(run)
    without = distil("without", **{**EPOCHS, "teacher_cache": "never"}, **changes)
    assert sum(asked) == 0
    assert run.summary["holdout"]["loss"] == pytest.approx(without.summary["holdout"]["loss"], rel=2e-2)


def test_the_first_pass_is_rounded_like_the_later_ones(distil, own_cache):
    """Whether something was remembered changes nothing, so that a lost cache does not either."""
    settings = {**EPOCHS, "epochs": 1}
    first = distil("first", **settings)
    remembered = distil("second", **settings)
    assert list(own_cache.glob("teachers/*/*.bin"))
    assert equal(weights(first), weights(remembered))


def test_interrupted_and_resumed_equals_left_alone_to_the_bit(distil, monkeypatch, asked):
    settings = {**EPOCHS, "dropout": 0.1, "checkpoint_every": 3}
    take = Loop._step

    def step(self, size):
        if self.progress.step == 10:
            raise ZeroDivisionError
        return take(self, size)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", step)
        with pytest.raises(ZeroDivisionError):
            distil(**settings)
    asked.clear()
    resumed = distil(resume="auto", **settings)
    told = sum(asked)
    assert told < resumed.summary["text"]["sequences"]
    assert equal(weights(resumed), weights(distil("alone", **settings)))


def test_students_of_one_pass_remember_together(distil, asked):
    together = distil("together", student=["2x32", "1x16"], init="random", **EPOCHS)
    sequences = together.runs["1x16"].summary["text"]["sequences"]
    assert sequences < sum(asked) < 1.5 * sequences
    for name, run in together.runs.items():
        assert equal(weights(run), weights(distil(f"alone-{name}", student=name, init="random", **EPOCHS)))


def test_another_teacher_finds_nothing(distil, save_bert, corpus, tmp_path, asked):
    distil(**EPOCHS)
    asked.clear()
    other = save_bert(tmp_path / "other", num_hidden_layers=3, hidden_size=32, num_attention_heads=4, seed=1)
    limbeck.distill(other, output=tmp_path / "run2", corpus=[corpus], student="2x32", **{**SETTINGS, **EPOCHS})
    assert sum(asked) > 0


# ---------------------------------------------------------------- when it pays


@pytest.mark.parametrize(
    ("passes", "slow", "share", "there", "decided"),
    [
        (3, 0.05, 2, False, True),
        (1, 0.05, 2, False, False),  # nobody would read it
        (3, 0.0, 2, False, False),  # the teacher is as fast as the disk
        (3, 0.05, 10**12, False, False),  # no room
        (1, 0.0, 10**12, True, True),  # it is there already
    ],
)
def test_auto_remembers_where_that_pays(distil, monkeypatch, passes, slow, share, there, decided):
    if there:
        distil("before", precision="bf16", **EPOCHS)
    ask = Teacher.__call__

    def slowly(self, batch):
        time.sleep(slow)
        return ask(self, batch)

    monkeypatch.setattr(Teacher, "__call__", slowly)
    monkeypatch.setattr(remembering, "bytes_a_second", lambda: 10**6)
    monkeypatch.setattr(remembering, "SHARE_OF_DISK", share)
    run = distil("run", **{**EPOCHS, "epochs": passes, "teacher_cache": "auto", "precision": "bf16"})
    recipe = Path(run.path / "recipe.yaml").read_text()
    assert f"teacher_cache: {'always' if decided else 'never'}\n" in recipe


def test_float32_stays_exact_unless_it_is_asked_for(distil, own_cache):
    run = distil(**{**EPOCHS, "teacher_cache": "auto"})
    assert "teacher_cache: never\n" in (run.path / "recipe.yaml").read_text()
    assert not (own_cache / "teachers").exists()


def test_what_are_no_rows_cannot_be_kept(save_bert, make_modernbert, corpus, tmp_path, refused):
    teacher = save_bert(tmp_path / "rotary", *make_modernbert())
    settings = {**SETTINGS, **EPOCHS, "objective": "minilm", "student": "2x32/4"}
    with refused("minilm", "modernbert", "teacher_cache"):
        limbeck.distill(teacher, output=tmp_path / "run", corpus=[corpus], **settings)
    run = limbeck.distill(
        teacher, output=tmp_path / "run", corpus=[corpus], **{**settings, "teacher_cache": "auto", "precision": "bf16"}
    )
    assert "teacher_cache: never\n" in (run.path / "recipe.yaml").read_text()


def test_the_choice_of_a_run_that_goes_on_is_its_own(distil, refused):
    run = distil(**EPOCHS, checkpoint_every=5)
    (run.path / "summary.json").unlink()
    with refused("teacher_cache", "always then, never now"):
        distil(**{**EPOCHS, "teacher_cache": "never"}, checkpoint_every=5, resume="auto")
    distil(**{**EPOCHS, "teacher_cache": "auto"}, checkpoint_every=5, resume="auto")
