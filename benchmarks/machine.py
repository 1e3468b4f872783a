"""What a benchmark says of the machine it ran on, and how it measures times and memory."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

PACKAGES = ("limbeck", "torch", "transformers", "accelerate")


def processor() -> str:
    """The processor's name and how many of its cores this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{names[0] if names else platform.machine()}, {cores} cores"


def about() -> dict[str, Any]:
    """The machine, and the versions that were measured."""
    import torch

    return {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **{package: version(package) for package in PACKAGES},
    }


def described(machine: Mapping[str, Any]) -> str:
    """The same in a line."""
    versions = ", ".join(f"{package} {machine[package]}" for package in PACKAGES)
    return f"{machine['processor']} ({machine['instructions']}), {machine['threads']} thread(s); {versions}."


def write_report(output: Path, report: dict[str, Any], text: str) -> None:
    """Write OUTPUT.json and OUTPUT.md, and print the latter."""
    output.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text, flush=True)


def take_turns(works: Mapping[str, Callable[[], Any]], repeats: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of each work, several times, one after another in one process, so that all meet the same neighbours."""
    for work in works.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return times


def middle(times: Sequence[float]) -> dict[str, float]:
    """Median and spread (the quartiles' distance as a share of the median)."""
    low, _, high = quantiles(times, n=4) if len(times) > 1 else (times[0], times[0], times[0])
    return {"seconds": median(times), "spread": (high - low) / median(times)}


def peak_flops(precision: str, size: int = 2048, repeats: int = 7) -> float:
    """Operations a second of a large matrix product, the most that this machine does."""
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    times = take_turns({"product": lambda: a @ b}, repeats)["product"]
    return 2 * size**3 / min(times)


class Resident:
    """This process's resident memory: the most of it since `begin`, beyond what was there then."""

    def begin(self) -> None:
        """Forget the peak so far."""
        import ctypes

        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._status("VmRSS")

    def added(self) -> int:
        """Bytes."""
        return self._status("VmHWM") - self._before

    def _status(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
