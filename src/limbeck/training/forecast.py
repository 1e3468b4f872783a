"""What a run will read, train, take and need, said before it runs: the dry run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from rich.table import Table
from torch import nn

from limbeck.data.batches import Batch, on_device
from limbeck.encoders.capture import Wants
from limbeck.encoders.cost import flop_counter
from limbeck.encoders.shape import EncoderShape
from limbeck.progress import printer
from limbeck.text import duration, millions, several, size
from limbeck.training.checkpoint import Progress
from limbeck.training.disk import Disk, bytes_a_second, disk_needed
from limbeck.training.distillation import DistillationParts
from limbeck.training.loop import CLIP, EPSILON, this_process
from limbeck.training.memory import Memory, available_memory, forward_and_backward, full_batch, undisturbed
from limbeck.training.reach import modules_of
from limbeck.training.stage import PROBE_SEQUENCES, Plan, Stage

PASS_SECONDS = 1.5
"""About how long a tried pass may take; of a micro-batch that takes longer only some sequences are tried."""
TRIALS = 3
MOST_TRIALS = 7
TRIAL_SECONDS = 2.0
"""More than `TRIALS` are made, up to `MOST_TRIALS`, while they take no longer than this."""


@dataclass(frozen=True)
class Read:
    """What is read of one of the two encoders."""

    shape: str
    layers: int
    features: dict[str, list[int]]
    """Feature -> the layers it is read from."""
    layers_run: int
    """Layers that run whole; of the next only what leads to its features."""

    @classmethod
    def of(cls, shape: EncoderShape, wants: Wants) -> Read:
        """What an objective's wants amount to."""
        features = {str(feature): sorted(layers) for feature, layers in wants.items() if layers and feature != "positions"}
        whole = [max(layers) if feature == "hidden" else max(layers) - 1 for feature, layers in features.items()]
        return cls(str(shape), shape.layers, features, max(whole))

    def __str__(self) -> str:
        together: dict[str, list[str]] = {}
        for feature, layers in self.features.items():
            together.setdefault(", ".join(map(str, layers)), []).append(feature)
        read = "; ".join(f"{', '.join(features)} of layer {layers}" for layers, features in together.items())
        return f"{self.shape}: {read}; {self.layers_run} of {self.layers} layers run whole"


@dataclass(frozen=True)
class Tensors:
    """Some of the parameters."""

    tensors: int
    parameters: int
    modules: list[str]
    """Where they are, shortened."""

    @classmethod
    def of(cls, named: Iterable[tuple[str, nn.Parameter]]) -> Tensors:
        """Count some of a model's parameters."""
        chosen = dict(named)
        return cls(len(chosen), sum(parameter.numel() for parameter in chosen.values()), modules_of(chosen))

    def __str__(self) -> str:
        return f"{several(self.tensors, 'tensor')}, {millions(self.parameters)} parameters"


@dataclass(frozen=True)
class Bytes:
    """Memory at its highest, by cause; `limbeck.training.memory` says what each is."""

    resident: int
    moments: int
    table: int
    step: int
    holes: int
    outside: int
    """At its highest outside of training: while models and text are read, checks are made and the student is saved."""
    peak: int
    available: int
    """What this process may hold in all."""


@dataclass(frozen=True)
class Seconds:
    """Time, by cause."""

    step: float
    evaluation: float
    checkpoint: float
    """Each once."""
    training: float
    """All of them together."""


@dataclass(frozen=True)
class Forecast:
    """What a run would do and need."""

    teacher: Read
    student: Read
    objective: str
    device: str
    precision: str
    trained: Tensors
    """Of the student."""
    out_of_reach: Tensors
    """Of the student, frozen because no gradient comes to them."""
    tail: str
    """What becomes of what stands behind the features read."""
    frozen: Tensors
    """The teacher's."""
    steps: int
    """Still to be taken."""
    examples: int
    """Sequences trained on."""
    tokens: int
    """About how many real tokens these are."""
    tokens_a_step: int
    epochs: float
    flops_a_step: int
    """Operations of the matrix products, counted on one full sequence."""
    flops: int
    memory: Bytes
    seconds: Seconds
    disk: Disk


def make_forecast(parts: DistillationParts, plan: Plan, unreached: list[str], memory: Memory, done: Progress) -> Forecast:
    """Forecast a run whose parts are ready to train.

    A few passes of real text are timed; weights, mode and random state are as before afterwards.

    Args:
        parts: on their device, in the run's precision.
        plan: of the run.
        unreached: names of the student's parameters that were frozen.
        memory: what the process needs.
        done: where the run is resumed.
    """
    recipe, stage, processes = parts.recipe, parts.stage, this_process().num_processes
    reads = parts.objective.wants(parts.teacher.shape, parts.student.shape)
    share, source = plan.batch_size // processes, stage.source
    micro_batch = min(plan.micro_batch_size, share)
    steps = plan.steps_left(done.examples, processes)
    examples = plan.examples - done.examples
    tokens_a_step = plan.batch_size * source.tokens / len(source)
    flops_a_step = plan.batch_size * flops_a_sequence(stage, recipe.max_length, plan.precision)
    student = dict(stage.module.student.named_parameters())
    accumulates = micro_batch < share
    device = this_process().device
    disk = disk_needed(parts.student, plan, steps)
    return Forecast(
        teacher=Read.of(parts.teacher.shape, reads[0]),
        student=Read.of(parts.student.shape, reads[1]),
        objective=str(parts.objective),
        device=str(device),
        precision=plan.precision,
        trained=Tensors.of((name, parameter) for name, parameter in student.items() if parameter.requires_grad),
        out_of_reach=Tensors.of((name, student[name]) for name in unreached),
        tail=str(parts.tail),
        frozen=Tensors.of(parts.teacher.model.named_parameters()),
        steps=steps,
        examples=examples,
        tokens=round(examples * source.tokens / len(source)),
        tokens_a_step=round(tokens_a_step),
        epochs=round(examples / len(source), 3),
        flops_a_step=flops_a_step,
        flops=steps * flops_a_step,
        memory=Bytes(
            resident=memory.resident,
            moments=memory.moments,
            table=memory.table,
            step=memory.step(micro_batch, accumulates=accumulates),
            holes=memory.lost(micro_batch, accumulates=accumulates),
            outside=memory.outside,
            peak=memory.peak(micro_batch, accumulates=accumulates),
            available=memory.resident + available_memory(device),
        ),
        seconds=_seconds(stage, plan, share, done.step, steps, disk.checkpoint),
        disk=disk,
    )


def flops_a_sequence(stage: Stage, max_length: int, precision: str) -> int:
    """Operations of one full sequence's forward and backward pass, the teacher's included."""
    batch = full_batch(stage, 1, max_length)
    stage.targets(batch)  # a teacher that several students share is counted with one of them
    with undisturbed(stage.module), flop_counter() as counter:
        forward_and_backward(stage, batch, precision)
    return int(counter.get_total_flops())


def _seconds(stage: Stage, plan: Plan, share: int, done: int, steps: int, checkpoint: int) -> Seconds:
    """Time of a step, an evaluation and a checkpoint, and of all of them in the steps that are still to come."""
    batch = _tried_batch(stage, min(plan.micro_batch_size, share), plan.precision)
    sequences = len(batch["input_ids"])
    with undisturbed(stage.module) as table:

        def train() -> None:
            table.clear()
            stage.module.zero_grad(set_to_none=True)
            forward_and_backward(stage, batch, plan.precision)

        micro_batch = _median_seconds(train)
        table.fill()
        step = micro_batch * share / sequences + _optimizer_seconds(stage.module)
    evaluation = 0.0
    if stage.evaluation is not None:

        def evaluate() -> None:
            targets = stage.targets(batch)
            with torch.no_grad(), torch.autocast(_device(stage).type, torch.bfloat16, enabled=plan.precision == "bf16"):
                stage.loss(batch, targets)

        evaluation = _median_seconds(evaluate) / sequences * len(stage.evaluation) / this_process().num_processes
    evaluations = _times(plan.eval_every, done, done + steps - 1) + 1 if steps else 0  # the end is always evaluated
    saves = _times(plan.checkpoint_every, done, done + steps)
    save = checkpoint / bytes_a_second() if saves else 0.0
    return Seconds(step, evaluation, save, steps * step + evaluations * evaluation + saves * save)


def _times(every: int | None, done: int, last: int) -> int:
    """How often what is done every so many steps is done after step `done`, up to step `last`."""
    return 0 if every is None else last // every - done // every


def _tried_batch(stage: Stage, micro_batch_size: int, precision: str) -> Batch:
    """A real micro-batch, or as much of it as a pass can take in `PASS_SECONDS`."""

    def batch_of(sequences: int) -> Batch:
        return on_device(stage.source.collate(stage.source.examples(0, sequences)), _device(stage))

    few = min(micro_batch_size, PROBE_SEQUENCES)
    batch = batch_of(few)
    with undisturbed(stage.module):
        forward_and_backward(stage, batch, precision)  # the first is slower than any other
        seconds = _timed(lambda: forward_and_backward(stage, batch, precision), _device(stage))
    return batch_of(max(1, min(micro_batch_size, int(few * PASS_SECONDS / seconds))))


def _optimizer_seconds(module: nn.Module) -> float:
    """Time to clip the gradients that are there and to take an optimiser's step, on copies of the weights."""
    copies = []
    for parameter in module.parameters():
        if parameter.grad is not None:
            copies.append(nn.Parameter(parameter.detach().clone()))
            copies[-1].grad = parameter.grad
    optimizer = torch.optim.AdamW(copies, eps=EPSILON, fused=True)

    def take() -> None:
        nn.utils.clip_grad_norm_(copies, CLIP)
        optimizer.step()

    return _median_seconds(take)


def _median_seconds(work: Callable[[], None]) -> float:
    device = this_process().device
    times: list[float] = []
    work()
    while len(times) < TRIALS or (len(times) < MOST_TRIALS and sum(times) < TRIAL_SECONDS):
        times.append(_timed(work, device))
    return median(times)


def _timed(work: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _device(stage: Stage) -> torch.device:
    return next(stage.module.parameters()).device


def show_forecasts(told: Mapping[str, Forecast], *, side_by_side: bool) -> None:
    """Print forecasts for a person, each under its name, if it has one.

    Args:
        told: by the names of stages, or of students.
        side_by_side: whether these are students that are trained at a time, not stages one after another.
    """
    console, what = printer(), "student" if side_by_side else "stage"
    for name, forecast in told.items():
        if name:
            console.print(f"{what} {name}", markup=False)
        console.print(_table(forecast))
    if len(told) > 1:
        console.print(f"all {what}s\n{_together([*told.values()], side_by_side=side_by_side)}")
    console.print("Nothing was trained, and nothing was written but the text's tokens, which the next run finds in the cache.")


def _together(told: Sequence[Forecast], *, side_by_side: bool) -> str:
    seconds, disk = sum(each.seconds.training for each in told), sum(each.disk.total for each in told)
    peak = max(each.memory.peak for each in told)
    if side_by_side:  # one at a time takes its steps, but all keep their moments
        peak += sum(each.memory.moments + each.memory.table for each in told) - max(each.memory.moments for each in told)
    taught = "; the teacher's pass is told of with the first" if side_by_side else ""
    return f"{duration(seconds)}, {size(peak)} of memory at the highest, {size(disk)} on disk{taught}"


def _table(told: Forecast) -> Table:
    memory, seconds, disk = told.memory, told.seconds, told.disk
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    beyond = ", ".join(told.out_of_reach.modules) or "none"
    outside = f"; {size(memory.outside)} outside of training" if memory.outside == memory.peak else ""
    kept = f"{disk.checkpoints} checkpoints of {size(disk.checkpoint)} at most, " if disk.checkpoints else ""
    table_gradient = f"{size(memory.table)} for the token table's gradient, " if memory.table else ""
    parts = [f"{duration(seconds.step)} a step"]
    parts += [f"{duration(seconds.evaluation)} an evaluation"] if seconds.evaluation else []
    parts += [f"{duration(seconds.checkpoint)} a checkpoint"] if seconds.checkpoint else []
    for name, text in (
        ("teacher", str(told.teacher)),
        ("student", str(told.student)),
        ("objective", told.objective),
        ("trained", f"{told.trained} of the student"),
        ("frozen", f"{told.frozen} of the teacher"),
        ("untrained", f"{told.out_of_reach} of the student, which this objective cannot reach: {beyond}"),
        ("tail", told.tail),
        (
            "training",
            f"{several(told.steps, 'step')} of {several(told.tokens_a_step, 'token')}: {several(told.examples, 'sequence')}, "
            f"{told.epochs:,.2f} epochs, {told.precision} on {told.device}",
        ),
        ("operations", f"{told.flops_a_step / 1e9:,.1f} GFLOP a step, {told.flops / 1e12:,.1f} TFLOP in all"),
        (
            "memory",
            f"{size(memory.peak)} at the highest, {size(memory.available)} are there: {size(memory.resident)} before training, "
            f"{size(memory.moments)} for AdamW's moments, {table_gradient}{size(memory.step)} for a step, "
            f"{size(memory.holes)} lost in between{outside}",
        ),
        ("time", f"{duration(seconds.training)}: {', '.join(parts)}"),
        ("disk", f"{size(disk.total)}: {kept}the student {size(disk.student)}"),
    ):
        table.add_row(name, text)
    return table
