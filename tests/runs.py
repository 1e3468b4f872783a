"""Tiny runs: their settings, what they left, and how to start them in processes of their own that can be killed."""

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from limbeck.cli import main
from limbeck.training.folder import RunFolder

SETTINGS = {"steps": 4, "batch_size": 8, "max_length": 16, "dropout": 0.0, "precision": "float32", "log_every": 1, "quiet": True}
TIMES = {"seconds", "tokens_per_second", "waiting"}

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "limbeck.cli",
        "limbeck.training.distill",
        "transformers.models.bert.modeling_bert",
        "transformers.models.auto.modeling_auto",
    ]
)


def weights(run):
    return load_file(run.student / "model.safetensors")


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def records(path):
    """The log's lines without what a clock says."""
    lines = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def log_of(run):
    return records(run.path)


def start(arguments, errors=os.devnull, largest_file=None):
    """Start `limbeck` in a process of its own, without the seconds that importing takes."""
    process = PROCESSES.Process(target=_command, args=([str(part) for part in arguments], str(errors), largest_file))
    process.start()
    return process


def finish(process):
    """Wait for a process; return its exit code, negative if a signal ended it."""
    process.join(120)
    return process.exitcode


def hold(folder, held):
    """Work in a run directory until killed."""
    with RunFolder(folder).locked():
        held.set()
        time.sleep(600)


def _command(arguments, errors, largest_file):
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have Ctrl-C ignored
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.exit(main(arguments))


def content(folder):
    """Every file's bytes below a folder."""
    return {file.relative_to(folder): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}
