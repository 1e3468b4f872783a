"""A run from recipe to student: what it writes, and what must hold whatever happens on the way."""

import itertools
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Semaphore
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

import limbeck
from kinds import KINDS
from limbeck.cli import main
from limbeck.data.batches import LabelledSource, PackedSource, Row, valid_tokens
from limbeck.encoders.loading import load_encoder
from limbeck.errors import UserError
from limbeck.recipe import Recipe
from limbeck.training import assemble as assemble_module
from limbeck.training import precision as precision_module
from limbeck.training import prefetch as prefetch_module
from limbeck.training import stage as stage_module
from limbeck.training.checkpoint import Progress
from limbeck.training.isolation import seed_step
from limbeck.training.prefetch import prefetched
from limbeck.training.stage import Plan, Teacher
from runs import SETTINGS, equal, log_of, weights


def test_a_run_ends_with_everything_it_promises(distil):
    run = distil(steps=30, learning_rate=3e-3, holdout="0.1", eval_every=10)
    assert {"student", "recipe.yaml", "summary.json", "log.jsonl"} == {entry.name for entry in run.path.iterdir()}
    training = run.summary["training"]
    assert training["last_loss"] < training["first_loss"]
    assert training["steps"] == 30
    assert 0 < training["tokens"] <= 30 * 8 * 16
    assert run.summary == json.loads((run.path / "summary.json").read_text())
    assert [record["step"] for record in log_of(run) if "holdout_loss" in record] == [10, 20, 30]
    logged = [record for record in log_of(run) if "loss" in record]
    assert all(record["loss"] == pytest.approx(record["qq"] + record["kk"] + record["vv"]) for record in logged)


def test_the_student_loads_everywhere_without_a_missing_key(distil):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    run = distil()
    model, info = AutoModel.from_pretrained(run.student, output_loading_info=True)
    assert not any(info.values()), info
    tokenizer = AutoTokenizer.from_pretrained(run.student)
    inputs = tokenizer(["a b c", "d"], padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    embedder = sentence_transformers.SentenceTransformer(str(run.student), device="cpu")
    torch.testing.assert_close(
        torch.as_tensor(embedder.encode(["a b c", "d"])), (hidden * mask).sum(1) / mask.sum(1), atol=1e-6, rtol=1e-5
    )
    assert "pooler.dense.weight" in load_file(run.student / "model.safetensors")


def test_the_resolved_recipe_repeats_the_run(distil, teacher, tmp_path):
    run = distil(init="layers", tokens=500, steps=None)
    again = tmp_path / "again"
    assert main(["distill", "--config", str(run.path / "recipe.yaml"), "--quiet", "-o", str(again)]) == 0
    assert (again / "recipe.yaml").read_text() == run.path.joinpath("recipe.yaml").read_text()
    assert equal(weights(run), load_file(again / "student" / "model.safetensors"))


BEHIND_THE_LAST_LAYERS_ATTENTION = {
    f"encoder.layer.1.{module}.{part}"
    for module in (
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    )
    for part in ("weight", "bias")
} | {"pooler.dense.weight", "pooler.dense.bias"}
QKV = {
    name: {f"encoder.layer.1.attention.self.{name}.{part}" for part in ("weight", "bias")} for name in ("query", "key", "value")
}


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        (limbeck.MiniLMv2(), set()),
        (limbeck.MiniLM(), set()),
        (limbeck.MiniLMv2(relations=("qq",)), QKV["key"] | QKV["value"]),
        (limbeck.MiniLMv2(relations=("qk",)), QKV["value"]),
    ],
)
def test_exactly_what_lies_beyond_the_loss_is_frozen(distil, teacher, objective, more):
    run = distil(objective=objective)
    assert set(run.summary["untrained"]["out_of_reach"]) == BEHIND_THE_LAST_LAYERS_ATTENTION | more
    start, end = load_encoder(teacher).model.state_dict(), weights(run)
    last = "encoder.layer.1."  # which was cut from the teacher's layer 3
    for name in BEHIND_THE_LAST_LAYERS_ATTENTION | more:
        assert torch.equal(end[name], start[name.replace(last, "encoder.layer.2.")]), name
    for name in end.keys() - BEHIND_THE_LAST_LAYERS_ATTENTION - more:
        assert not torch.equal(end[name], start[name.replace(last, "encoder.layer.2.")]), name


def test_the_teacher_stays_as_it_is(distil, monkeypatch):
    seen = []
    build = assemble_module.build_stage

    def watched(student, teacher, *rest):
        stage = build(student, teacher, *rest)
        seen.append((stage, {name: value.clone() for name, value in teacher.state_dict().items()}))
        return stage

    monkeypatch.setattr(assemble_module, "build_stage", watched)
    distil(dropout=0.5, holdout="0.1", eval_every=2)
    stage, before = seen[0]
    teacher, student = stage.teacher.model, stage.module.student
    assert equal(before, teacher.state_dict())
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert teacher.config is not student.config
    batch = stage.probe_batch()
    first, second = stage.teacher(batch), stage.teacher(batch)
    assert all(torch.equal(first.only(feature), second.only(feature)) for feature in "qkv")
    assert not set(map(id, teacher.parameters())) & set(map(id, student.parameters()))


def test_micro_batches_make_the_same_step_as_one_batch(distil):
    whole = distil("whole", batch_size=12, micro_batch_size=12)
    parts = distil("parts", batch_size=12, micro_batch_size=5)  # 5 + 5 + 2
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], value, atol=2e-5, rtol=1e-4)
    for one, other in zip(log_of(whole), log_of(parts), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_the_seed_decides_everything(distil):
    settings = {"init": "random", "dropout": 0.3}
    assert equal(weights(distil("a", **settings)), weights(distil("b", **settings)))
    assert not equal(weights(distil("a", overwrite=True, **settings)), weights(distil("c", seed=1, **settings)))


def test_one_process_can_run_with_one_precision_after_the_other(distil):
    assert distil("a", precision="bf16").summary["training"]["precision"] == "bf16"
    assert distil("b", precision="float32").summary["training"]["precision"] == "float32"


def test_a_probed_precision_is_recorded_and_taken_again(distil, monkeypatch):
    monkeypatch.setattr(assemble_module, "faster_precision", lambda stage: "bf16")
    run = distil(precision="auto", checkpoint_every=2)
    assert "precision: bf16" in (run.path / "recipe.yaml").read_text()
    (run.path / "summary.json").unlink()
    monkeypatch.setattr(assemble_module, "faster_precision", lambda stage: pytest.fail("probed again"))
    distil(precision="auto", checkpoint_every=2, resume="auto")


@pytest.fixture
def slow_bf16(monkeypatch):
    """A processor whose matrix products take eight times as long in bf16."""
    monkeypatch.setattr(precision_module, "_product_seconds", lambda dtype, device: 8.0 if dtype == torch.bfloat16 else 1.0)


def test_bf16_is_not_even_tried_where_products_are_far_slower(distil, slow_bf16, monkeypatch):
    monkeypatch.setattr(precision_module, "trial_seconds", lambda *given, **more: pytest.fail("tried"))
    assert distil(precision="auto").summary["training"]["precision"] == "float32"


@pytest.mark.parametrize(("precision", "warned"), [("bf16", True), ("float32", False)])
def test_asking_for_bf16_where_products_are_far_slower_warns(distil, slow_bf16, capsys, precision, warned):
    distil(precision=precision, quiet=False)
    assert ("bf16 take 8 times as long as in float32" in " ".join(capsys.readouterr().err.split())) == warned


def test_an_evaluation_disturbs_nothing(distil):
    plain, evaluated = distil("a", dropout=0.2), distil("b", dropout=0.2, holdout="0.1", eval_every=1)
    assert log_of(plain)[0]["learning_rate"] == log_of(evaluated)[0]["learning_rate"]
    again = distil("c", dropout=0.2, holdout="0.1")
    assert equal(weights(evaluated), weights(again))


def made_plan(now=None, micro_batch_size=1, **settings):
    begun = Recipe(teacher="t", corpus=["c"], student="1x8", precision="float32", micro_batch_size=micro_batch_size, **settings)
    return Plan.of(replace(begun, batch_size=now or begun.batch_size), begun)


@pytest.mark.parametrize("now", [1, 3, 8, 64])
@pytest.mark.parametrize("done", [0, 8, 16, 40])
def test_the_learning_rate_goes_on_sensibly_with_another_batch_size(now, done):
    plan = made_plan(now, steps=10, batch_size=8, warmup=0.2, learning_rate=1.0)
    rates = []
    while done < plan.examples:
        size = plan.step_size(done, 1)
        rates.append((done + size / 2, plan.learning_rate_at(done, size)))
        done += size
    top = max(range(len(rates)), key=lambda place: rates[place][1])
    assert all(0 < rate <= 1 for _, rate in rates)
    assert [rate for _, rate in rates[: top + 1]] == sorted(rate for _, rate in rates[: top + 1])
    assert [rate for _, rate in rates[top:]] == sorted((rate for _, rate in rates[top:]), reverse=True)
    assert all(rate == pytest.approx(1 - (middle - 16) / 64, abs=now / 64) for middle, rate in rates if middle - now > 16)


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("now", [3, 4, 8, 50])
def test_steps_of_any_size_cover_all_examples_with_one_at_least_for_each_process(now, processes):
    plan = made_plan(now, steps=5, batch_size=8)
    for done in range(plan.examples - processes + 1):
        sizes, steps = [], plan.steps_left(done, processes)
        while done < plan.examples:
            sizes.append(plan.step_size(done, processes))
            done += sizes[-1]
        assert done == plan.examples
        assert len(sizes) == steps
        assert all(processes <= size < now + processes for size in sizes)


@pytest.mark.parametrize("kind", ["bert", "mpnet", "modernbert"])
def test_a_teacher_looks_at_small_micro_batches_together_and_says_the_same(kind, request, monkeypatch):
    monkeypatch.setattr(stage_module, "PASS_TOKENS", 16)
    model = KINDS[kind].model(request.getfixturevalue(KINDS[kind].tokenizer))
    wants = {"q": [2], "hidden": [1], **({} if kind == "bert" else {"positions": [2]})}
    teacher, passes = Teacher(model, wants), []
    model.register_forward_pre_hook(lambda *given: passes.append(given[2]["input_ids"].shape), with_kwargs=True)
    ids = torch.randint(5, 60, (6, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3]).bool()
    batches = [{"input_ids": ids[[row], :8]} for row in range(3)]
    batches += [{"input_ids": ids[3:5, :8], "attention_mask": mask}, {"input_ids": ids[[5]]}]
    together = list(teacher.of_each(batches))
    assert passes == [(2, 8), (1, 8), (2, 8), (1, 12)]
    for batch, features in zip(batches, together, strict=True):
        alone, tokens = teacher(batch), valid_tokens(batch)
        for feature in ("q", "hidden"):
            torch.testing.assert_close(features.only(feature)[tokens], alone.only(feature)[tokens], rtol=1e-4, atol=1e-5)
        if kind != "bert":
            torch.testing.assert_close(features.only("positions"), alone.only("positions"))


class Rows(LabelledSource):
    """Seven rows, of which something is done before each batch is made."""

    def __init__(self, before=lambda batch: None):
        rows = [Row(np.full(4, row), 4) for row in range(7)]
        super().__init__(rows, {}, pad=0, segments=False, seed=0)
        self.made, self._before = Semaphore(0), before
        self._batches = itertools.count(1)

    def collate(self, examples):
        self._before(next(self._batches))
        self.made.release()
        return super().collate(examples)


def batch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("limbeck-batches")]


def test_batches_are_made_while_the_step_before_is_trained_on():
    source, plan = Rows(), made_plan(steps=6, batch_size=2, micro_batch_size=2)
    for place, (work, _) in enumerate(prefetched(source, plan, 0, process=0, processes=1)):
        for _ in range(2 if place == 0 else 1 if place < 5 else 0):
            assert source.made.acquire(timeout=60), "this step's batch, and the next one's without being asked for"
        assert (work.size, work.examples) == (2, Rows().examples(2 * place, 2))
        assert torch.equal(work.micro_batches[0]["input_ids"], Rows().collate(work.examples)["input_ids"])
    assert place == 5
    assert not batch_threads()


def test_the_time_spent_waiting_for_a_batch_is_told(monkeypatch):
    now, asked = [0.0], threading.Event()

    def clock():
        asked.set()
        return now[0]

    def late(batch):
        if batch == 1:
            assert asked.wait(60)
            now[0] += 3.0

    monkeypatch.setattr(prefetch_module, "time", SimpleNamespace(perf_counter=clock))
    works = prefetched(Rows(late), made_plan(steps=4, batch_size=2), 0, process=0, processes=1)
    assert [seconds for _, seconds in works] == [3.0, 0.0, 0.0, 0.0]
    assert Progress().after(2, 8, 12.0, 3.0).after(2, 8, 16.0, 1.0).waiting == 0.25


def test_processes_share_a_steps_examples():
    plan = made_plan(steps=3, batch_size=4)
    shares = [[work.examples for work, _ in prefetched(Rows(), plan, 4, process, 2)] for process in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == [sorted(Rows().examples(done, 4)) for done in (4, 8)]


def test_what_a_batch_fails_with_is_told_at_its_step_and_no_thread_stays():
    def fail(batch):
        if batch == 5:
            raise UserError("no such row")

    works = prefetched(Rows(fail), made_plan(steps=6, batch_size=1), 0, process=0, processes=1)
    assert [next(works)[0].size for _ in range(4)] == [1] * 4
    with pytest.raises(UserError, match="no such row"):
        next(works)
    assert not batch_threads()
    works = prefetched(Rows(), made_plan(steps=6, batch_size=1), 0, process=0, processes=1)
    next(works)
    works.close()
    assert not batch_threads()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_callers_torch_settings_and_random_numbers_neither_matter_nor_change(distil, around, precision):
    plain = distil("plain", dropout=0.2, init="random", precision=precision)
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    with around():
        within = distil("within", dropout=0.2, init="random", precision=precision, checkpoint_every=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(weights(plain), weights(within))


def test_bf16_computes_with_each_steps_own_weights(distil):
    """Autocast keeps cast weights; kept beyond a step, they would be those of steps ago."""
    settings = {"steps": 12, "learning_rate": 1e-2}
    full, half = (log_of(distil(precision, precision=precision, **settings)) for precision in ("float32", "bf16"))
    assert [record["loss"] for record in half] == pytest.approx([record["loss"] for record in full], rel=0.05)


def test_dropout_is_drawn_anew_for_each_step_process_and_micro_batch():
    def drawn(*place):
        seed_step(torch.device("cpu"), *place)
        return tuple(torch.rand(3).tolist())

    with torch.random.fork_rng(devices=[]):
        places = list(itertools.product((0, 1), (0, 1), (0, 8, 16), (0, 1)))
        assert len({drawn(*place) for place in places}) == len(places)
        assert drawn(0, 1, 8, 1) == drawn(0, 1, 8, 1)


def test_the_learning_rate_rises_and_falls_linearly():
    plan = made_plan(steps=10, batch_size=8, warmup=0.2, learning_rate=1.0)
    assert [plan.learning_rate_at(8 * step, 8) for step in range(10)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    )


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_place(distil, monkeypatch):
    def poison(self, *_):
        with torch.no_grad():
            self.student.embeddings.word_embeddings.weight.fill_(float("nan"))

    monkeypatch.setattr("limbeck.training.loop.Loop.resume", poison)
    with pytest.raises(limbeck.errors.CheckFailed, match=r"not finite at step 1 \(examples \d+"):
        distil()


def test_every_field_of_a_recipe_is_read(distil, monkeypatch):
    """A setting that nothing reads is worse than none."""
    read = set()

    def record(kind):
        original = kind.__getattribute__

        def watched(self, name):
            caller = sys._getframe(1)
            copies = caller.f_globals["__name__"].startswith(("dataclasses", "pydantic")) or caller.f_code.co_name in (
                "of",
                "<dictcomp>",
            )
            if not copies:
                read.add(name)
            return original(self, name)

        monkeypatch.setattr(kind, "__getattribute__", watched)

    record(Recipe)
    record(Plan)
    distil(checkpoint_every=2)
    assert set(Recipe.__dataclass_fields__) <= read


# ---------------------------------------------------------------- the run directory


def test_a_directory_that_is_not_empty_is_refused(distil, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    for changes in ({}, {"overwrite": True}, {"resume": "auto"}):
        with pytest.raises(limbeck.UserError, match="another directory"):
            distil(**changes)
    assert (tmp_path / "run" / "thesis.txt").read_text() == "mine"


def test_a_run_is_overwritten_only_when_asked_and_only_after_all_input_was_checked(distil, tmp_path):
    run = distil()
    before = weights(run)
    with pytest.raises(limbeck.UserError, match="--overwrite"):
        distil(seed=1)
    with pytest.raises(limbeck.UserError, match="no text file"):
        distil(seed=1, overwrite=True, corpus=[tmp_path / "gone.txt"])
    assert equal(before, weights(run))
    assert not equal(before, weights(distil(seed=1, learning_rate=1e-2, overwrite=True)))


def test_a_finished_run_is_returned_as_it_is(distil):
    run = distil()
    written = (run.student / "model.safetensors").stat().st_mtime_ns
    again = distil(resume="auto")
    assert again.summary == run.summary
    assert (run.student / "model.safetensors").stat().st_mtime_ns == written


def test_a_checkpoint_of_another_recipe_is_refused_naming_the_fields(distil):
    distil(checkpoint_every=2)
    with pytest.raises(limbeck.UserError, match=r"learning_rate \(0\.0006 then, 0\.001 now\)"):
        distil(checkpoint_every=2, resume="auto", learning_rate=1e-3)


def test_nothing_is_left_of_an_export_that_fails(distil, monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError("full")

    monkeypatch.setattr("limbeck.training.export._check_reload", fail)
    with pytest.raises(RuntimeError, match="full"):
        distil()
    assert not (tmp_path / "run" / "student").exists()
    assert not list((tmp_path / "run").glob(".tmp-*"))
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("name", ["student", "checkpoints"])
def test_what_no_run_wrote_is_never_removed(distil, tmp_path, name):
    mine = tmp_path / "run" / name / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for changes in ({"overwrite": True}, {"resume": "auto"}):
        with pytest.raises(limbeck.UserError, match="is not a run"):
            distil(**changes)
    assert mine.read_text() == "mine"


def test_what_a_killed_process_left_half_written_stops_no_run(distil, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".tmp-recipe.yaml").write_text("teacher: ")
    run = distil(resume="auto")
    assert not list(run.path.glob(".tmp-*"))


def test_hidden_files_stop_no_run_and_stay(distil, tmp_path):
    hidden = tmp_path / "run" / ".DS_Store"
    hidden.parent.mkdir()
    hidden.write_text("mine")
    distil()
    distil(overwrite=True)
    assert hidden.read_text() == "mine"


def test_inputs_inside_the_run_directory_are_refused(distil, tmp_path):
    run = distil()
    for changes in ({"init": str(run.student)}, {"corpus": [run.path]}):
        with pytest.raises(limbeck.UserError, match="lies in the run directory"):
            distil(overwrite=True, **changes)
    assert (run.student / "model.safetensors").exists()


def test_a_directory_may_be_called_as_a_start_is(teacher, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for init in ("random", "layers"):
        limbeck.distill(teacher, student="2x32", corpus=[corpus], init=init, output=init, **SETTINGS)
        assert (tmp_path / init / "student").is_dir()


def test_text_that_is_held_out_is_not_trained_on(distil, corpus, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = corpus.read_text().splitlines()
    (folder / "train.txt").write_text("\n".join(lines[:200]))
    alone = distil("alone", corpus=[folder])
    (folder / "held.txt").write_text("\n".join(lines[200:]))
    both = distil("both", corpus=[folder], holdout=folder / "held.txt")
    assert equal(weights(alone), weights(both))
    with pytest.raises(limbeck.UserError, match="all the text there is"):
        distil("none", corpus=[folder / "held.txt"], holdout=folder / "held.txt")


def test_names_of_held_out_files_may_be_numbers(distil, corpus, tmp_path):
    held = tmp_path / "held" / "2024"
    held.parent.mkdir()
    held.write_text("the still\n")
    assert "holdout: '2024'" in (distil(holdout=held).student / "README.md").read_text()


def test_a_default_device_of_the_callers_changes_nothing(distil):
    expected = weights(distil("usual", init="random"))
    with torch.device("meta"):
        assert equal(weights(distil("meta", init="random")), expected)


def test_a_second_run_in_one_process_is_refused(distil, monkeypatch, refused):
    """Both would draw from the same random numbers."""
    second = []

    def begin_another(*_):
        with ThreadPoolExecutor(1) as pool:
            second.append(pool.submit(distil, "second").exception())
        raise KeyboardInterrupt

    monkeypatch.setattr(assemble_module, "build_stage", begin_another)
    with pytest.raises(KeyboardInterrupt):
        distil("first")
    monkeypatch.undo()
    with refused("Another run", "process"):
        raise second[0]
    distil("third")


@pytest.mark.parametrize("output", [None, 3, "~nobody-of-that-name/run"])
def test_what_is_no_directory_is_refused(teacher, corpus, refused, output):
    with refused("the run's directory"):
        limbeck.distill(teacher, output=output, corpus=[corpus], student="1x32")


def test_a_name_too_long_for_a_file_is_refused(corpus, tmp_path, refused):
    with refused("no model folder"):
        limbeck.distill("x" * 5000, output=tmp_path / "run", corpus=[corpus], student="1x32", quiet=True)


@pytest.mark.parametrize("student", ["1x99999999999", "99999999999999x32", "1x32:9999999999999"])
def test_a_student_larger_than_memory_is_refused_before_it_is_built(distil, refused, student):
    with refused("weights alone", "choose a smaller one"):
        distil(student=student, init="random")


# ---------------------------------------------------------------- the text of a run


@pytest.mark.parametrize(
    ("settings", "packing"),
    [
        ({}, "pairs"),
        ({"packing": "full", "long_fraction": 0.3}, "full"),
        ({"packing": "single", "epochs": 1, "steps": None}, "single"),
        ({"packing": "pairs", "long_fraction": 0.5, "micro_batch_size": 2}, "pairs"),
    ],
)
def test_every_packing_trains(distil, settings, packing):
    run = distil(**{"learning_rate": 3e-3, "steps": 30, **settings})
    assert run.summary["text"]["packing"] == packing
    assert run.summary["training"]["last_loss"] < run.summary["training"]["first_loss"]


@pytest.mark.parametrize("weighing", [{"corpus_weights": [1, 3]}, {"corpus_alpha": 0.0}, {"corpus_alpha": 1.0}])
def test_corpora_are_weighed(distil, corpus, tmp_path, monkeypatch, weighing):
    """The second corpus is a tenth of the first and made of one word."""
    second = tmp_path / "second.jsonl"
    second.write_text('{"body": "still still still still still still"}\n' * (len(corpus.read_text().split()) // 60))
    lines = "\n".join(json.dumps({"body": line}) for line in corpus.read_text().replace("still", "").splitlines())
    first = tmp_path / "first.jsonl"
    first.write_text(lines)
    seen = []
    collate = PackedSource.collate
    monkeypatch.setattr(PackedSource, "collate", lambda self, examples: seen.append(collate(self, examples)) or seen[-1])
    run = distil(corpus=[first, second], text_column="body", packing="full", epochs=1, steps=None, **weighing)
    ids = torch.cat([batch["input_ids"].flatten() for batch in seen[1:]])  # the first is a probe
    still = AutoTokenizer.from_pretrained(run.student).convert_tokens_to_ids("still")
    share = (ids == still).sum() / (ids > 4).sum()
    expected = {"[1, 3]": 0.75, "0.0": 0.5, "1.0": 0.1}[str(next(iter(weighing.values())))]
    assert share == pytest.approx(expected, abs=0.03)


def test_adam_forgets_squared_gradients_as_the_recipe_says(distil):
    usual, named, other = distil("a"), distil("b", adam_beta2=0.999), distil("c", adam_beta2=0.9)
    assert equal(weights(usual), weights(named))
    assert not equal(weights(usual), weights(other))
    # Adam's first step is the gradient's sign, up to epsilon, however fast it forgets; later ones are not.
    losses = [[record["loss"] for record in log_of(run)] for run in (usual, other)]
    assert losses[0][:2] == pytest.approx(losses[1][:2], rel=1e-5)
    assert losses[0][3] != pytest.approx(losses[1][3], rel=1e-5)
