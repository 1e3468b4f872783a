"""The dry run: what it foretells happens, it changes nothing, and what memory does not hold is refused beforehand."""

import json
import random
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file

import limbeck
from limbeck.cli import main
from limbeck.encoders.cost import distillation_flops
from limbeck.progress import Reporter
from limbeck.recipe import Recipe, read_recipe, validate
from limbeck.text import duration, size
from limbeck.training import memory as memory_module
from limbeck.training.assemble import assemble
from limbeck.training.checkpoint import Progress
from limbeck.training.forecast import make_forecast
from limbeck.training.loop import Loop
from limbeck.training.memory import (
    Memory,
    Phase,
    _Watch,
    available_memory,
    check_memory,
    forward_and_backward,
    full_batch,
    measure_memory,
    undisturbed,
)
from limbeck.training.reach import freeze_unreachable
from limbeck.training.stage import Plan
from limbeck.training.table import TableGradient
from runs import content, equal, weights

TINY = {"student": "2x32", "init": "layers", "steps": 6, "batch_size": 8, "max_length": 16, "precision": "float32"}


@pytest.fixture
def recipe(save_bert, tiny_tokenizer, tmp_path):
    """Make a tiny recipe; keyword arguments change its settings."""
    shape = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 128}
    teacher = save_bert(tmp_path / "teacher", **shape)
    words = sorted(word for word in tiny_tokenizer.get_vocab() if word.isalpha())
    drawn = random.Random(0)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(drawn.choices(words, k=drawn.randint(3, 30))) for _ in range(300)))

    def make(**changes):
        return validate(Recipe, {**TINY, "teacher": teacher, "corpus": [text], **changes})

    return make


def ready(recipe):
    parts = assemble(recipe, None, Reporter(quiet=True))
    return parts, freeze_unreachable(parts.stage)


def folder_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize(
    ("length", "precision", "changes"),
    [
        (64, "float32", {}),
        (64, "bf16", {}),
        (16, "float32", {"student": "2x64/4", "init": "random"}),
        (64, "float32", {"objective": "minilm"}),
        (64, "float32", {"tail": "hidden"}),
    ],
)
def test_a_steps_memory_follows_from_one_and_two_sequences(recipe, length, precision, changes, accumulates):
    parts, _ = ready(recipe(max_length=length, dropout=0.1, **changes))
    stage = parts.stage
    forecast = measure_memory(stage, length, precision).step(12, accumulates=accumulates)
    trained = [parameter for parameter in stage.module.parameters() if parameter.requires_grad]
    batch = full_batch(stage, 12, length)
    with undisturbed(stage.module) as table:
        forward_and_backward(stage, batch, precision)  # the step before
        table.clear()
        stage.module.zero_grad()
        with _Watch(trained) as watch:
            for _ in range(1 + accumulates):
                forward_and_backward(stage, batch, precision)
    # The kernels' blocks stop growing once they are full, which is seen at this size only; from the second micro-batch on, what
    # tells the rows of the token table that the ones before have reached, 8 bytes a token, is there as well.
    assert max(watch.peaks) <= forecast + 8 * accumulates * batch["input_ids"].numel()
    assert forecast <= 1.1 * max(watch.peaks)


def test_all_memory_that_is_made_is_seen_and_all_that_is_freed():
    weight = torch.nn.Parameter(torch.ones(100, 10))
    with _Watch([weight]) as watch:
        kept = (weight @ torch.ones(10, 50)).exp()  # both factors' product, and what exp keeps for its gradient
        assert watch._live == 4 * (10 * 50 + 100 * 50)
        kept.detach().view(-1, 4).t().add_(1)
        assert watch._live == 4 * (10 * 50 + 100 * 50)  # views and what is changed in place take nothing
        del kept
        assert watch._live == 0
        (weight * 2).sum().backward()
    assert watch.held == [0, 4 * 1000]
    assert watch._live == weight.grad.numel() * 4


def test_of_a_sparse_gradient_the_indices_and_values_are_seen():
    table = torch.nn.Embedding(1000, 10, padding_idx=0, sparse=True)
    with _Watch([table.weight]) as watch:
        table(torch.tensor([[5, 5, 9], [7, 0, 0]])).sum().backward()
        assert table.weight.grad.is_sparse
        assert watch._live == 4 * (8 + 4 * 10)
        assert watch.held == [0, watch._live]
        table.weight.grad = None
        assert watch._live == 0


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_what_a_step_makes_anew_and_what_is_kept_are_all_gradients(recipe, micro_batches, monkeypatch):
    stage = ready(recipe(student="2x64/4", init="random"))[0].stage
    word_table, memory = stage.module.student.get_input_embeddings().weight, measure_memory(stage, 16, "float32")
    assert memory.table == word_table.nbytes
    batch = full_batch(stage, 4, 16)
    with undisturbed(stage.module) as table:
        for _ in range(micro_batches):
            forward_and_backward(stage, batch, "float32")
        assert table.kept_bytes == memory.table
        made = sum(parameter.grad.nbytes for parameter in stage.module.parameters() if parameter.grad is not None)
        assert memory.gradients == made
        table.fill()
        assert word_table.grad.layout == torch.strided
    monkeypatch.setattr(memory_module.TableGradient, "of", left_to_autograd)
    usual = measure_memory(stage, 16, "float32")
    assert (usual.table, usual.gradients) == (0, memory.gradients + memory.table)


def left_to_autograd(model, process):
    return TableGradient(model.get_input_embeddings(), in_place=False)


def test_the_optimiser_is_timed_with_the_loops_gradients(recipe, monkeypatch):
    timed = []

    def optimizer_seconds(module):
        timed.extend((name, parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None)
        return 0.0

    monkeypatch.setattr("limbeck.training.forecast._optimizer_seconds", optimizer_seconds)
    parts, unreached = ready(recipe(dropout=0.0, student="2x64/4", init="random"))
    make_forecast(parts, Plan.of(parts.recipe, parts.recipe), unreached, MEMORY, Progress())
    module = parts.stage.module
    assert [name for name, _ in timed] == [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert all(gradient.layout == torch.strided and gradient.any() for _, gradient in timed)


def test_a_sparse_gradient_is_one_for_which_a_table_is_trained(recipe):
    parts = assemble(recipe(), None, Reporter(quiet=True))
    parts.student.model.get_input_embeddings().sparse = True
    assert freeze_unreachable(parts.stage) == ready(recipe())[1]


MEMORY = Memory(
    resident=1000,
    highest=1550,
    gradients=100,
    table=30,
    moments=200,
    exchange=0,
    holes=0.5,
    saving=50,
    phases=(Phase(0, 60, 110), Phase(80, 120, 130)),  # 10 + 50 b and 110 + 10 b
)


def test_the_peak_is_that_of_the_highest_stretch():
    assert [MEMORY.step(b, accumulates=False) for b in (1, 2, 4)] == [120, 130, 210]
    assert [MEMORY.step(b, accumulates=True) for b in (1, 4)] == [100 + 60, 100 + 210]
    assert MEMORY.peak(1, accumulates=False) == 1550  # loading took more
    assert MEMORY.peak(20, accumulates=False) == 1000 + 1.5 * (200 + 30 + 1010)


@pytest.mark.parametrize("there", [600, 1000, 2000])
def test_too_little_memory_is_refused_with_the_largest_micro_batch_that_fits(monkeypatch, there):
    monkeypatch.setattr(memory_module, "available_memory", lambda device: there)
    with pytest.raises(limbeck.UserError, match=r"--micro-batch-size (\d+), which") as caught:
        check_memory(MEMORY, 64, 64)
    fitting = int(str(caught.value).split("--micro-batch-size ")[1].split(",")[0])
    assert MEMORY.peak(fitting, accumulates=True) <= 1000 + there < MEMORY.peak(fitting + 1, accumulates=True)
    check_memory(MEMORY, fitting, 64)


def test_where_nothing_fits_shorter_sequences_are_advised(monkeypatch, refused):
    monkeypatch.setattr(memory_module, "available_memory", lambda device: 10)
    with refused("--max-length", "smaller student"):
        check_memory(MEMORY, 64, 64)


def test_a_run_that_memory_does_not_hold_writes_nothing_and_one_that_follows_the_advice_runs(recipe, monkeypatch, tmp_path):
    changes = {"batch_size": 512, "max_length": 64, "steps": 1}
    parts, _ = ready(recipe(**changes))
    need = measure_memory(parts.stage, 64, "float32")
    # Loading and libraries stay what they are here, so that only the step counts.
    monkeypatch.setattr(memory_module, "_highest", lambda device: 0)
    room = need.moments + need.table + need.step(512, accumulates=False) // 2
    monkeypatch.setattr(memory_module, "available_memory", lambda device: room)
    for call in (limbeck.run_recipe, limbeck.forecast):
        with pytest.raises(limbeck.UserError, match=r"needs .* of memory, and there are .*--micro-batch-size") as caught:
            call(recipe(**changes, micro_batch_size=512), tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()
    advised = int(str(caught.value).split("--micro-batch-size ")[1].split(",")[0])
    assert 1 <= advised < 512
    run = limbeck.run_recipe(recipe(**changes), tmp_path / "run", quiet=True)  # whose micro-batch is left to Limbeck
    assert read_recipe(run.path / "recipe.yaml")["micro_batch_size"] == pytest.approx(advised, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "failing", "tried"),
    [({}, 1, [16, 8, 8]), ({}, 4, [16, 8]), ({"micro_batch_size": 16}, 1, [16])],
)
def test_memory_that_runs_out_all_the_same_halves_a_micro_batch_of_our_choice_once(
    recipe, monkeypatch, tmp_path, capsys, changes, failing, tried
):
    step, sizes = Loop._step, []

    def short_of_memory(self, size):
        sizes.append(self.plan.micro_batch_size)
        if len(sizes) <= failing:
            raise MemoryError
        return step(self, size)

    monkeypatch.setattr(Loop, "_step", short_of_memory)
    settings = recipe(batch_size=16, steps=2, **changes)
    if len(tried) > failing:
        run = limbeck.run_recipe(settings, tmp_path / "run")
        assert "once more with 8 sequences at a time" in capsys.readouterr().err
        assert read_recipe(run.path / "recipe.yaml")["micro_batch_size"] == 8
    else:
        with pytest.raises(MemoryError):
            limbeck.run_recipe(settings, tmp_path / "run", quiet=True)
    assert sizes == tried


def test_computing_activations_once_more_takes_less_memory_and_changes_nothing(recipe, tmp_path):
    changes = {"batch_size": 32, "max_length": 64, "student": "3x32", "dropout": 0.1}
    runs, steps = [], []
    for again in (False, True):
        parts, _ = ready(recipe(**changes, gradient_checkpointing=again))
        steps.append(measure_memory(parts.stage, 64, "float32").step(32, accumulates=False))
        runs.append(
            limbeck.run_recipe(recipe(**changes, steps=3, gradient_checkpointing=again), tmp_path / str(again), quiet=True)
        )
    assert equal(*map(weights, runs))
    assert steps[1] < 0.8 * steps[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_a_process_takes_the_memory_that_was_foretold(minilm, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Wine and spirits are distilled in a still, which was called a limbeck.\n" * 500)
    arguments = [
        *("distill", "--teacher", str(minilm), "--corpus", str(text), "--student", "3x384", "--max-length", "128"),
        *("--batch-size", "16", "--steps", "2", "--precision", "float32", "--json", "--quiet", "-o", str(tmp_path / "run")),
    ]
    code = (
        "import sys, torch; from limbeck.cli import main; from limbeck.training.memory import _highest;"
        "main(sys.argv[1:]); print(_highest(torch.device('cpu')))"
    )
    dry, run = (
        subprocess.run([sys.executable, "-c", code, *arguments, *more], check=True, capture_output=True, text=True)
        for more in (["--dry-run"], [])
    )
    forecast = json.loads(dry.stdout.splitlines()[0])["memory"]
    peak = int(run.stdout.splitlines()[1])
    assert forecast["peak"] == pytest.approx(peak, rel=0.2)
    assert peak - forecast["resident"] > 250e6  # so that more was foretold than what was there
    assert forecast["table"] == 4 * 384 * 30522


# ---------------------------------------------------------------- limits of control groups

GROUPS = {
    2: ("0::/a/b\n", "", "memory.max", "memory.current", "inactive_file"),
    1: ("4:memory:/a/b\n0::/\n", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_this_and_all_outer_control_groups_count(version, monkeypatch, tmp_path):
    line, controller, limit, usage, cache = GROUPS[version]
    (tmp_path / "cgroup").write_text(line)
    monkeypatch.setattr(memory_module, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory_module, "CGROUPS", tmp_path / "groups")

    def group(path, most, used, cached):
        folder = tmp_path / "groups" / controller / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in ((limit, most), (usage, used), ("memory.stat", f"anon 5\n{cache} {cached}")):
            (folder / name).write_text(f"{value}\n")

    before = available_memory(torch.device("cpu"))
    assert before > 10**7
    group("a/b", 10**6, 10**5, 100)
    assert available_memory(torch.device("cpu")) == 10**6 - 10**5 + 100
    group("a", 10**6, 10**6 - 7, 0)
    assert available_memory(torch.device("cpu")) == 7
    group("a", 10**6, 2 * 10**6, 0)
    assert available_memory(torch.device("cpu")) == 0


def test_a_group_without_a_limit_limits_nothing(monkeypatch, tmp_path):
    (tmp_path / "cgroup").write_text("0::/\n")
    monkeypatch.setattr(memory_module, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory_module, "CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(torch.device("cpu")) > 10**7


def test_processes_on_one_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Machine", (), {"available": 1000})())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert available_memory(torch.device("cpu")) == 250


# ---------------------------------------------------------------- the dry run


def test_what_is_foretold_happens(recipe, tmp_path):
    settings = recipe(steps=7, holdout="0.1", eval_every=3, checkpoint_every=3, student="2x64/4", init="random")
    forecast = limbeck.forecast(settings, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    run = limbeck.run_recipe(settings, tmp_path / "run", quiet=True)
    assert forecast.steps == run.summary["training"]["steps"]
    assert forecast.examples == 7 * 8
    assert forecast.tokens == pytest.approx(run.summary["training"]["tokens"], rel=0.05)
    assert forecast.objective == "minilmv2, relation heads 2, relations qq + kk + vv, teacher layer 3"
    assert forecast.teacher.features == {"q": [3], "k": [3], "v": [3]}
    assert (forecast.teacher.layers_run, forecast.student.layers_run) == (2, 1)
    assert forecast.out_of_reach.tensors == len(run.summary["untrained"]["out_of_reach"])
    whole = run.summary["student"]["parameters"]["total"]
    assert forecast.trained.parameters + forecast.out_of_reach.parameters == whole
    assert forecast.frozen.parameters == run.summary["teacher"]["parameters"]["total"]
    checkpoints = list((run.path / "checkpoints").iterdir())
    assert forecast.disk.checkpoints == len(checkpoints) == 2
    assert forecast.disk.checkpoint == pytest.approx(folder_bytes(checkpoints[0]), rel=0.1)
    assert forecast.disk.student == pytest.approx(folder_bytes(run.student), rel=0.1)


def test_a_run_for_which_the_disk_is_too_small_is_refused(recipe, tmp_path, monkeypatch, refused):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Disk", (), {"free": 200_000})())
    with refused("takes", "MB are free", "--keep-checkpoints"):
        limbeck.run_recipe(recipe(checkpoint_every=2), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tail", ["keep", "hidden"])
@pytest.mark.parametrize("objective", [{"relations": ("qq", "kk", "vv")}, {"relations": ("qk", "vv"), "teacher_layer": 2}])
def test_operations_are_those_of_the_closed_form(recipe, objective, tail):
    parts, unreached = ready(recipe(max_length=64, objective=objective, student="2x64/4", init="random", tail=tail))
    forecast = make_forecast(parts, Plan.of(parts.recipe, parts.recipe), unreached, MEMORY, Progress())
    layer = parts.recipe.objective.teacher_layer
    shapes, relations = (parts.teacher.shape, layer, parts.student.shape), len(objective["relations"])
    needed = distillation_flops(*shapes, relations, 8, 64, hidden=tail == "hidden")
    assert 0.9 <= forecast.flops_a_step / needed <= 1.1
    assert forecast.flops == 6 * forecast.flops_a_step


def test_trying_out_leaves_no_trace(recipe):
    parts, unreached = ready(recipe(dropout=0.3, holdout="0.1", checkpoint_every=2))
    module, teacher = parts.stage.module, parts.teacher.model
    before = {name: value.clone() for name, value in (module.state_dict() | teacher.state_dict()).items()}
    random_state = torch.get_rng_state()
    memory = measure_memory(parts.stage, 16, "float32")
    forecast = make_forecast(parts, Plan.of(parts.recipe, parts.recipe), unreached, memory, Progress())
    assert forecast.seconds.training > 0
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in (module.state_dict() | teacher.state_dict()).items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not module.training
    assert not any(parameter._backward_hooks for parameter in module.parameters())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())
    assert not module.student.get_input_embeddings().sparse


@pytest.mark.parametrize(("steps", "done", "evaluations", "saves"), [(7, 0, 3, 2), (6, 0, 2, 2), (7, 5, 2, 1), (6, 6, 0, 0)])
def test_what_is_done_every_few_steps_counts_as_often_as_it_will_be_done(recipe, monkeypatch, steps, done, evaluations, saves):
    monkeypatch.setattr("limbeck.training.forecast._median_seconds", lambda work: work() or 1.0)
    monkeypatch.setattr("limbeck.training.forecast.bytes_a_second", lambda: 1000.0)
    parts, unreached = ready(recipe(steps=steps, holdout="0.1", eval_every=3, checkpoint_every=3))
    plan = Plan.of(parts.recipe, parts.recipe)
    told = make_forecast(parts, plan, unreached, MEMORY, Progress(done, done * plan.batch_size)).seconds
    assert bool(told.checkpoint) == bool(saves)
    expected = (steps - done) * told.step + evaluations * told.evaluation + saves * told.checkpoint
    assert told.training == pytest.approx(expected)


def test_no_number_of_steps_is_too_large_to_be_foretold(recipe, tmp_path):
    settings = recipe(steps=10**15, holdout="0.1", eval_every=3, checkpoint_every=3)
    assert limbeck.forecast(settings, tmp_path / "run", quiet=True).steps == 10**15


def test_a_run_after_a_dry_run_makes_the_same_student(recipe, tmp_path):
    settings = recipe(dropout=0.2)
    alone = limbeck.run_recipe(settings, tmp_path / "alone", quiet=True)
    limbeck.forecast(settings, tmp_path / "after", quiet=True)
    after = limbeck.run_recipe(settings, tmp_path / "after", quiet=True)
    one, other = (load_file(run.student / "model.safetensors") for run in (alone, after))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_earlier_run_stays_and_only_what_it_lacks_is_foretold(recipe, tmp_path):
    settings = recipe(checkpoint_every=2, steps=5)
    run = limbeck.run_recipe(settings, tmp_path / "run", quiet=True)
    files = {file: file.stat().st_mtime_ns for file in run.path.rglob("*")}
    assert limbeck.forecast(settings, run.path, resume="auto", quiet=True).steps == 0
    assert limbeck.forecast(settings, run.path, overwrite=True, quiet=True).steps == 5
    assert {file: file.stat().st_mtime_ns for file in run.path.rglob("*")} == files
    (run.path / "summary.json").unlink()
    forecast = limbeck.forecast(settings, run.path, resume="auto", quiet=True)
    assert (forecast.steps, forecast.examples) == (1, 8)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["--corpus", "nowhere.txt"], "no text file nowhere.txt"),
        (["--relation-heads", "5"], "choose one of"),
        (["--max-length", "4096"], "positions"),
        (["-o", "."], "not empty"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(recipe, changes, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*arguments(recipe(), tmp_path), "--dry-run", *changes]) == 2
    assert expected in capsys.readouterr().err


def test_the_command_says_it_to_people_and_to_programs(recipe, tmp_path, capsys):
    assert main([*arguments(recipe(), tmp_path), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("teacher", "student", "trained", "untrained", "training", "operations", "memory", "time", "disk"):
        assert any(line.startswith(name) for line in lines), name
    assert main([*arguments(recipe(), tmp_path), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == asdict(limbeck.forecast(recipe(), tmp_path / "run", quiet=True)).keys()
    assert told["steps"] == 6
    assert main([*arguments(recipe(), tmp_path), "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_needs_no_directory_and_a_run_does(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = content(tmp_path)
    *given, _, _ = arguments(recipe(), tmp_path)
    assert main([*given, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 6
    assert main(given) == 2
    assert "-o is required" in capsys.readouterr().err
    assert content(tmp_path) == before


def test_of_several_stages_the_sum_is_told(recipe, tmp_path, capsys):
    arguments_ = [*arguments(recipe(), tmp_path), "--assistant", "2x16/4", "--init", "random", "--dry-run"]
    assert main([*arguments_, "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert [*stages] == ["assistant", "student"]
    assert main(arguments_) == 0
    lines = capsys.readouterr().out.splitlines()
    (total,) = (lines[place + 1] for place, line in enumerate(lines) if line == "all stages")
    assert total.endswith(f"{size(sum(each['disk']['total'] for each in stages.values()))} on disk")


def test_an_end_that_is_asked_for_in_a_dry_run_speaks_of_no_checkpoints(recipe, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("limbeck.training.distill.make_forecast", interrupted)
    assert main([*arguments(recipe(), tmp_path), "--dry-run"]) == 130
    assert capsys.readouterr().err.endswith("limbeck: interrupted; nothing was trained\n")


def test_what_memory_is_at_its_highest_for_is_told(recipe, tmp_path):
    memory = limbeck.forecast(recipe(), tmp_path / "run", quiet=True).memory
    training = memory.resident + memory.moments + memory.table + memory.step + memory.holes
    assert memory.peak == max(memory.outside, training)


def arguments(recipe, folder):
    flags = [part for name, value in TINY.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return ["distill", "--teacher", recipe.teacher, "--corpus", *recipe.corpus, *flags, "-o", str(folder / "run")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.3761, "0.38 s"), (4.23, "4.2 s"), (200, "3 min"), (3600 * 5 + 60 * 12 + 7, "5 h 12 min"), (3600 * 100, "4 days 4 h")],
)
def test_times_are_written_for_people(seconds, text):
    assert duration(seconds) == text


def test_sizes_are_written_for_people():
    assert [size(951.4e6), size(9.27e9)] == ["951 MB", "9.3 GB"]
