"""RUN/summary.json: what a run did, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from limbeck.data.batches import PackedSource
from limbeck.encoders.cost import Parameters
from limbeck.encoders.loading import Encoder
from limbeck.recipe import Recipe, plain
from limbeck.training.best import Best
from limbeck.training.checkpoint import Progress
from limbeck.training.folder import RunFolder
from limbeck.training.rows import Rows
from limbeck.training.tail import Tail

VERSIONED = ("limbeck", "torch", "transformers", "tokenizers", "accelerate")
"""Packages whose versions a run records."""


def summarise(
    recipe: Recipe,
    teacher: Encoder,
    student: Encoder,
    source: PackedSource,
    out_of_reach: list[str],
    tail: Tail,
    rows: Mapping[str, Rows],
    progress: Progress,
    folder: RunFolder,
    device: str,
    best: Best,
    fingerprints: Mapping[str, str],
) -> dict[str, Any]:
    """The summary of a run that has come to its end; docs/runs.md describes it."""
    log = folder.read_log()
    held_out = [record for record in log if "holdout_loss" in record]
    return {
        "teacher": {"name": public_name(teacher.source), **encoder_facts(teacher)},
        "student": {
            **encoder_facts(student),
            "init": student.source,
            "teachers": list(student.origin.teachers),
            "pooler_trained": student.pooler_trained,
        },
        "objective": plain(recipe)["objective"],
        "text": _text(source, recipe),
        "training": training_facts(progress, recipe.precision, device, log),
        "holdout": {
            name.removeprefix("holdout_"): value for name, value in (held_out[-1] if held_out else {}).items() if name != "step"
        },
        "best": {} if best.step is None else {"step": best.step, "loss": best.value},
        "untrained": {
            "out_of_reach": out_of_reach,
            "random": sorted(student.origin.random),
            "foreign": sorted(student.origin.foreign),
        },
        "tail": {"option": tail.option, "copied": tail.copied, "not_copied": tail.not_copied},
        "untrained_rows": {table: asdict(each) for table, each in rows.items()},
        "fingerprints": dict(fingerprints),
        "versions": versions(),
    }


def training_facts(progress: Progress, precision: str, device: str, log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the training went."""
    losses = [record["loss"] for record in log if "loss" in record]
    return {
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
        "tokens_per_second": round(progress.tokens / progress.seconds, 1),
        "waiting": round(progress.waiting, 4),
        "precision": precision,
        "device": device,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "resumed": [{"step": record["step"], **record["resumed"]} for record in log if "resumed" in record],
    }


def versions() -> dict[str, str]:
    """Of the packages that matter."""
    return {package: version(package) for package in VERSIONED}


def _text(source: PackedSource, recipe: Recipe) -> dict[str, Any]:
    return {
        "tokens": source.tokens,
        "sequences": len(source),
        "packing": recipe.packing,
        "real_share": round(source.real_share, 4),
        "dropped_units": source.empty_units,
        "unknown_share": round(source.unknown_share, 4),
    }


def encoder_facts(encoder: Encoder) -> dict[str, Any]:
    """What an encoder is, with its sizes."""
    shape = encoder.shape
    return {
        "shape": str(shape),
        "model_type": shape.model_type,
        "layers": shape.layers,
        "width": shape.width,
        "parameters": _parts(encoder.parameters),
    }


def _parts(parameters: Parameters) -> dict[str, int]:
    return {**asdict(parameters), "total": parameters.total}


def public_name(source: str) -> str:
    """A file's or folder's own name, which says something to others; a hub name as it is."""
    path = Path(source).resolve()
    if not path.exists():
        return source
    name = f"{path.parent.name}/{path.name}" if path.name in ("model", "student") else path.name
    return " ".join(name.split())
