"""How much memory a run will need: found by watching one and two sequences, and refused before training if it is not there.

On a processor the need is the peak of the process's resident memory, on a GPU that of the memory torch has allocated:

    resident  what the process holds before training: libraries, both models, the text
    moments   AdamW's, 8 bytes a trained parameter, from the first step on
    table     the gradient of the table of tokens, where it is kept from one step to the next
    step      other gradients, activations and all that passes, at the step's highest point
    holes     what the allocator of a processor's memory cannot fill again, as a share of moments, table and step
    saving    instead of a step's: the finished student is loaded once more to prove that it loads
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from limbeck.data.batches import INPUTS, Batch
from limbeck.encoders.cost import gradient_bytes, moment_bytes, weight_bytes
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.errors import UserError
from limbeck.text import size
from limbeck.training.loop import this_process
from limbeck.training.stage import Stage, Trained
from limbeck.training.table import TableGradient

HOLES = {"float32": 0.4, "bf16": 0.6}
"""Measured with glibc over some thirty steps, in which they grow: 0.2 to 0.4 in float32; 0.4 to 0.9 in bf16, whose tensors
are of more sizes. Those of more than 32 MiB leave none, so that large models are forecast on the safe side."""
CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, usage and the entry of memory.stat that is only cache, in versions 2 and 1 of control groups."""


@dataclass(frozen=True)
class Phase:
    """A stretch of a step, between one parameter's gradient and the next; the first begins with the step."""

    gradients: int
    """Bytes of the gradients that were there already."""
    one: int
    """Most bytes at a time with a micro-batch of one sequence, gradients included."""
    two: int
    """The same with two sequences."""

    def bytes(self, sequences: int) -> int:
        """The same with so many: within a phase memory grows by as much with each sequence."""
        return self.one + (sequences - 1) * (self.two - self.one)


@dataclass(frozen=True)
class Memory:
    """What a process needs, in bytes; how much that is depends on the sequences of a micro-batch."""

    resident: int
    """Held before training."""
    highest: int
    """The peak so far: loading models and text passes through more than stays."""
    gradients: int
    """All that one step makes anew."""
    table: int
    """The gradient that is not made anew."""
    moments: int
    exchange: int
    """Buffers in which several processes exchange gradients."""
    holes: float
    """Share of what training needs that is lost in between."""
    saving: int
    """Loading the finished student again."""
    phases: tuple[Phase, ...]
    """What one step goes through."""

    def step(self, sequences: int, *, accumulates: bool) -> int:
        """Most bytes at a time of a step beyond resident memory, moments and table.

        Args:
            sequences: in a micro-batch.
            accumulates: whether a step has several micro-batches, so that all gradients are there from the second on.
        """
        if accumulates:
            return self.gradients + max(phase.bytes(sequences) - phase.gradients for phase in self.phases)
        return max(phase.bytes(sequences) for phase in self.phases)

    def peak(self, sequences: int, *, accumulates: bool) -> int:
        """Most bytes at a time of the whole run."""
        training = self._training(sequences, accumulates=accumulates)
        lost = self.lost(sequences, accumulates=accumulates)
        return max(self.outside, self.resident + training + lost)

    @property
    def outside(self) -> int:
        """Most bytes at a time outside of training."""
        return max(self.highest, self.resident + self.moments + self.saving)

    def lost(self, sequences: int, *, accumulates: bool) -> int:
        """Bytes of the holes between what training needs."""
        return round(self.holes * self._training(sequences, accumulates=accumulates))

    def _training(self, sequences: int, *, accumulates: bool) -> int:
        return self.moments + self.table + self.exchange + self.step(sequences, accumulates=accumulates)


def measure_memory(stage: Stage, max_length: int, precision: str) -> Memory:
    """Watch a step of one and of two sequences of `max_length` tokens.

    Args:
        stage: on its device, parameters out of reach frozen, the teacher in the run's precision. Weights, gradients,
            mode and random state are as before afterwards.
        max_length: tokens in a sequence.
        precision: of the run's matrix products.
    """
    trained = [parameter for parameter in stage.module.parameters() if parameter.requires_grad]
    number = sum(parameter.numel() for parameter in trained)
    device = trained[0].device
    watches = []
    with undisturbed(stage.module) as table:
        forward_and_backward(stage, full_batch(stage, 1, max_length), precision)  # makes what is kept between steps
        for sequences in (1, 2):
            batch = full_batch(stage, sequences, max_length)
            table.clear()
            stage.module.zero_grad(set_to_none=True)
            with _Watch(trained) as watch:
                forward_and_backward(stage, batch, precision)
            watches.append(watch)
        kept = table.kept_bytes
    return Memory(
        resident=_resident(device),
        highest=_highest(device),
        gradients=watches[0].held[-1],
        table=kept,
        moments=moment_bytes(number),
        exchange=gradient_bytes(number) if this_process().num_processes > 1 else 0,
        holes=HOLES[precision] if device.type == "cpu" else 0.0,
        saving=weight_bytes(sum(p.numel() for p in stage.module.student.parameters())) if device.type == "cpu" else 0,
        phases=tuple(
            Phase(held, one, two) for held, one, two in zip(watches[0].held, watches[0].peaks, watches[1].peaks, strict=True)
        ),
    )


def together(memories: Sequence[Memory], *, accumulates: bool) -> Memory:
    """What a process needs for several students that take turns: each keeps its moments while another is at work.

    Args:
        memories: each student's own, measured with all of them there.
        accumulates: whether a step has several micro-batches, between which each keeps its gradients as well.
    """
    largest = max(memories, key=lambda memory: memory.step(1, accumulates=accumulates))
    kept = sum(memory.gradients for memory in memories if memory is not largest) if accumulates else 0
    return replace(
        largest,
        resident=max(memory.resident for memory in memories),
        highest=max(memory.highest for memory in memories),
        moments=sum(memory.moments for memory in memories),
        table=sum(memory.table for memory in memories) + kept,
        exchange=sum(memory.exchange for memory in memories),
        saving=max(memory.saving for memory in memories),
    )


def check_memory(memory: Memory, micro_batch_size: int, share: int, *, may_shrink: bool = False) -> int:
    """Refuse a run that needs more memory than there is.

    Args:
        memory: what this process needs.
        micro_batch_size: sequences in one forward pass, at most `share`.
        share: sequences in an optimiser step of this process.
        may_shrink: whether the micro-batch may be made as small as memory asks for.

    Returns:
        The micro-batch that fits.

    Raises:
        UserError: naming the need, what there is, and the largest micro-batch that fits.
    """
    # All processes go by the first one's figures.
    there: int
    memory, there = broadcast_object_list([memory, available_memory(this_process().device)])
    limit = memory.resident + there

    def fits(sequences: int) -> bool:
        return memory.peak(sequences, accumulates=sequences < share) <= limit

    if fits(micro_batch_size):
        return micro_batch_size
    need = memory.peak(micro_batch_size, accumulates=micro_batch_size < share)
    fitting = bisect_left(range(1, micro_batch_size), True, key=lambda sequences: not fits(sequences))
    if fitting and may_shrink:
        return fitting
    remedy = (
        f"add --micro-batch-size {fitting}, which needs {size(memory.peak(fitting, accumulates=True))}"
        if fitting
        else "not even one sequence at a time fits: shorten --max-length, or choose a smaller student or teacher"
    )
    raise UserError(
        f"Training with {micro_batch_size} sequences at a time needs {size(need)} of memory, "
        f"and there are {size(limit)}; {remedy}."
    )


def check_size(student: StudentShape, teacher: EncoderShape) -> None:
    """Refuse a student whose layers alone are more than memory holds, since building it would fill the machine.

    Raises:
        UserError: naming the need and what there is.
    """
    width = student.width
    feed_forward = student.feed_forward or width * teacher.feed_forward // teacher.width
    need = weight_bytes(student.layers * (4 * width**2 + 2 * width * feed_forward) + teacher.vocabulary * width)
    there: int = broadcast_object_list([available_memory(torch.device("cpu"))])[0]
    if need > there:
        raise UserError(
            f"A student of {student.layers}x{width}:{feed_forward} needs {size(need)} of memory for its weights alone, and "
            f"{size(there)} are there; choose a smaller one."
        )


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still take: of the GPU, or of the machine within the limits of its control groups."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    there = min([int(psutil.virtual_memory().available), *_cgroup_room()])
    return max(0, there) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def forward_and_backward(stage: Stage, batch: Batch, precision: str) -> None:
    """One micro-batch as the loop takes it; gradients are left where they belong."""
    targets = stage.targets(batch)
    with torch.autocast(batch["input_ids"].device.type, torch.bfloat16, enabled=precision == "bf16"):
        loss = stage.loss(batch, targets)
    loss.backward()


@contextmanager
def undisturbed(module: Trained) -> Iterator[TableGradient]:
    """Try something out in training mode; afterwards mode and random state are as before and gradients are none.

    Gives the gradient of the table of tokens, which is kept as the loop keeps it.
    """
    training = module.training
    with torch.random.fork_rng(), TableGradient.of(module.student, this_process()) as table:
        module.train()
        try:
            yield table
        finally:
            module.train(training)
            module.zero_grad(set_to_none=True)


def full_batch(stage: Stage, sequences: int, length: int) -> Batch:
    """A real example repeated until every sequence is full."""
    batch = stage.probe_batch(1)
    return {
        name: tensor.repeat(sequences, -(-length // tensor.shape[1]))[:, :length].contiguous()
        if name in INPUTS
        else tensor.repeat(sequences, *[1] * (tensor.dim() - 1))
        for name, tensor in batch.items()
    }


class _Watch(TorchDispatchMode):
    """Counts the bytes of all tensors made and not yet freed since it began, phase by phase.

    An operation's outputs count unless they share an input's memory; weak references tell when memory is freed. What an
    operation takes and gives back by itself is not seen.
    """

    def __init__(self, trained: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.held, self.peaks = [0], [0]
        self._live = 0
        self._known: set[int] = set()
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._next_phase) for parameter in trained]

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and take note of the memory that it made."""
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in given | self._known:
                self._known.add(storage._cdata)
                self._live += storage.nbytes()
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        self.peaks[-1] = max(self.peaks[-1], self._live)
        return result

    def _freed(self, place: int, size: int) -> None:
        self._known.discard(place)
        self._live -= size

    def _next_phase(self, parameter: Tensor) -> None:
        self.held.append(self.held[-1] + sum(tensor.nbytes for tensor in _tensors(parameter.grad)))
        self.peaks.append(self._live)


def _tensors(values: Any) -> Iterator[Tensor]:
    """All that have memory of their own; of a sparse one these are its indices and its values."""
    for value in tree_iter(values):
        if isinstance(value, Tensor):
            yield from (value._indices(), value._values()) if value.is_sparse else (value,)


def _resident(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if sys.platform == "linux":
        # What the allocator holds back of memory freed by probes would be counted here and in the step once more.
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
    return int(psutil.Process().memory_info().rss)


def _highest(device: torch.device) -> int:
    """The most that this process held so far; what is held now where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return int(psutil.Process().memory_info().rss)
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _cgroup_room() -> Iterator[int]:
    """What the limits of this process's control groups, and of those around them, leave."""
    try:
        lines = CGROUP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = CGROUPS / controllers
            folder = root / path.strip("/")
            for each in (folder, *folder.parents):
                if each.is_relative_to(root):
                    yield from (_room(each, *files) for files in CGROUP_FILES if (each / files[0]).is_file())


def _room(folder: Path, limit: str, usage: str, cache: str) -> int:
    """Bytes below a control group's limit; file contents kept in memory give way."""
    most = (folder / limit).read_text().strip()
    if most == "max":
        return sys.maxsize
    entries = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int(most) - int((folder / usage).read_text()) + int(entries.get(cache, 0))
