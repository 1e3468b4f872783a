"""Preparing text: speed and peak memory on two sizes of corpus, against `datasets`, and after a SIGKILL half-way.

The text is made of LIMBECK_DATA/text/en, over and over, with a word of each line replaced so that hardly a line repeats.
Everything measured runs in a fresh process; its clock starts once libraries and tokenizer are loaded, and what it adds to
its peak resident memory counts from there. Ours and `datasets` take turns, and figures of several runs are medians.

    LIMBECK_DATA=... python benchmarks/prepare.py --tokenizer MODEL_FOLDER
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from machine import processor

# limbeck and datasets are imported by the measured processes only: a child's peak begins with what its parent holds.

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("limbeck", "tokenizers", "transformers", "datasets", "pyarrow", "numpy", "torch")
MIB = 1 << 20


def source_lines(folder: Path) -> list[str]:
    """The lines of real text; a blank one ends a document."""
    lines = []
    for file in sorted(folder.glob("*.txt.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as text:
            lines += [*text.read().splitlines(), ""]
    return lines


def altered(lines: list[str], seed: int) -> Iterator[str]:
    """The lines without end, each with one of its words replaced by one of another line."""
    draw = random.Random(seed)
    words = [word for line in lines[::50] for word in line.split()]
    while True:
        for line in lines:
            parts = line.split()
            if parts:
                parts[draw.randrange(len(parts))] = draw.choice(words)
            yield " ".join(parts)


def write_text(path: Path, lines: list[str], megabytes: int, seed: int) -> None:
    """Write that many million bytes of text, or a line more."""
    left = megabytes * 1_000_000
    with path.open("wb") as file:
        for line in altered(lines, seed):
            left -= file.write(f"{line}\n".encode())
            if left <= 0:
                return


def run_limbeck(text: Path, folder: Path, tokenizer: str) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from limbeck.data.files import corpus_files
    from limbeck.data.prepare import Corpus, prepare_shards
    from limbeck.data.tokens import PlainTokenizer

    corpus = Corpus(tuple(corpus_files([text])), PlainTokenizer(AutoTokenizer.from_pretrained(tokenizer)), "text")
    before, start = peak(), time.perf_counter()
    tokens = prepare_shards(corpus, folder)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "added_bytes": peak() - before, "peak_bytes": peak(), "tokens": int(tokens.lengths.sum())}


def run_datasets(text: Path, folder: Path, tokenizer: str) -> dict[str, Any]:
    import datasets
    from transformers import AutoTokenizer

    fast = AutoTokenizer.from_pretrained(tokenizer, model_max_length=sys.maxsize)

    def encode(batch: dict[str, Any]) -> Any:
        settings = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
        return fast(batch["text"], **settings)

    datasets.disable_progress_bars()
    before, start = peak(), time.perf_counter()
    rows = datasets.load_dataset("text", data_files=str(text), cache_dir=str(folder), split="train")
    rows = rows.map(encode, batched=True, num_proc=2, remove_columns=["text"])
    seconds = time.perf_counter() - start
    added, most = peak() - before, peak()
    tokens = sum(len(ids) for batch in rows.iter(10_000) for ids in batch["input_ids"])
    return {"seconds": seconds, "added_bytes": added, "peak_bytes": most, "tokens": tokens}


RUNS = {"limbeck": run_limbeck, "datasets": run_datasets}


def peak() -> int:
    """The peak resident memory in bytes of this process, or of its largest child if that has more."""
    used = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return used if sys.platform == "darwin" else 1024 * used


def start(how: str, text: Path, folder: Path, tokenizer: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--run", how, str(text), str(folder), "--tokenizer", tokenizer]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure(how: str, text: Path, folder: Path, tokenizer: str) -> dict[str, Any]:
    """One run in a process of its own."""
    process = start(how, text, folder, tokenizer)
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{how} failed with exit code {process.returncode}")
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(f"{how:>9}  {text.stat().st_size / 1e6:>5.0f} MB  {figures['seconds']:>8.1f} s", flush=True)
    return figures


def summary(how: str, text: Path, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of runs, which must agree on the tokens."""
    (tokens,) = {run["tokens"] for run in runs}
    seconds = median(run["seconds"] for run in runs)
    return {
        "what": how,
        "text_bytes": text.stat().st_size,
        "runs": len(runs),
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds),
        **{name: round(median(run[name] for run in runs)) for name in ("added_bytes", "peak_bytes")},
    }


def take_turns(text: Path, work: Path, tokenizer: str, repeats: int) -> list[dict[str, Any]]:
    """Ours and `datasets` on one text, one after the other, several times."""
    runs: dict[str, list[dict[str, Any]]] = {how: [] for how in RUNS}
    for _ in range(repeats):
        for how, done in runs.items():
            folder = work / how
            done.append(measure(how, text, folder, tokenizer))
            shutil.rmtree(folder)
    return [summary(how, text, done) for how, done in runs.items()]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.safetensors"))


def content(folder: Path) -> str:
    """A hash of all bytes of a prepared folder."""
    hashed = blake2b(digest_size=16)
    for file in [*shards(folder), folder / "index.json"]:
        hashed.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return hashed.hexdigest()


def interrupted(text: Path, whole: Path, folder: Path, tokenizer: str) -> dict[str, Any]:
    """Kill the preparation of a text when half of its shards are there, and take it up again."""
    half = max(1, len(shards(whole)) // 2)
    process = start("limbeck", text, folder, tokenizer)
    while len(shards(folder)) < half and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(shards(folder))
    if (folder / "index.json").exists():
        raise SystemExit("the preparation was over before it could be killed; take more text")
    resumed = measure("limbeck", text, folder, tokenizer)
    return {
        "shards": len(shards(whole)),
        "shards_when_killed": kept,
        "seconds_to_finish": round(resumed["seconds"], 2),
        "content": content(whole),
        "content_after_kill": content(folder),
    }


def as_markdown(results: dict[str, Any]) -> str:
    setting, kill = results["setting"], results["killed"]
    rows = [
        f"| {case['what']} | {case['text_bytes'] / 1e6:.0f} MB | {case['tokens_per_second']:,} | {case['seconds']:.1f} "
        f"| {case['added_bytes'] / MIB:.0f} MiB | {case['peak_bytes'] / MIB:.0f} MiB | {case['runs']} |"
        for case in results["cases"]
    ]
    same = "the same bytes as" if kill["content"] == kill["content_after_kill"] else "OTHER BYTES THAN"
    versions = ", ".join(f"{name} {setting['versions'][name]}" for name in PACKAGES)
    return "\n".join(
        [
            "Tokenising text into what training reads: `prepare`, and `datasets` with `map(batched=True, num_proc=2)`.",
            "",
            "| what | text | tokens/s | seconds | memory added | peak memory | runs |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            f"Killed with {kill['shards_when_killed']} of {kill['shards']} shards written, `prepare` took "
            f"{kill['seconds_to_finish']:.1f} s to finish, with {same} the uninterrupted run.",
            "",
            f"{setting['processor']}; Python {setting['python']}, {versions}. The memory of `datasets` is that of its "
            "largest process.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a folder that holds a fast tokenizer")
    parser.add_argument("--megabytes", type=int, default=300, help="size of the large text (default 300)")
    parser.add_argument("--small", type=int, default=30, help="size of the small text (default 30)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each on the small text (default 3)")
    parser.add_argument("--compare-large", action="store_true", help="run datasets on the large text too")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where prepare.json and prepare.md go")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        how, text, folder = arguments.run
        print(json.dumps(RUNS[how](Path(text), Path(folder), arguments.tokenizer)))
        return

    lines = source_lines(Path(os.environ["LIMBECK_DATA"]) / "text" / "en")
    with TemporaryDirectory() as name:
        work = Path(name)
        small, large = work / "small.txt", work / "large.txt"
        write_text(small, lines, arguments.small, seed=0)
        write_text(large, lines, arguments.megabytes, seed=1)
        del lines
        cases = take_turns(small, work, arguments.tokenizer, arguments.repeats)
        cases.append(summary("limbeck", large, [measure("limbeck", large, work / "whole", arguments.tokenizer)]))
        killed = interrupted(large, work / "whole", work / "killed", arguments.tokenizer)
        if arguments.compare_large:
            cases.append(summary("datasets", large, [measure("datasets", large, work / "datasets", arguments.tokenizer)]))
    setting = {
        "processor": processor(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "tokenizer": Path(arguments.tokenizer).name,
    }
    results = {"setting": setting, "cases": cases, "killed": killed}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "prepare.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.output / "prepare.md").write_text(as_markdown(results))
    print(as_markdown(results))


if __name__ == "__main__":
    main()
