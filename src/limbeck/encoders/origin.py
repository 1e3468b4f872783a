"""What is remembered of a student beside its weights: whom it learned from, and what of it was never trained.

It stands in the header of model.safetensors. So it goes where the weights go, and is gone when anything else saves others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from limbeck.encoders.weights import read_header
from limbeck.errors import UserError
from limbeck.text import encodable

KEY = "limbeck"
"""Of the entry in the header."""
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Origin:
    """Where an encoder's weights come from, as far as it is known."""

    teachers: tuple[str, ...] = ()
    """Names of the models it was distilled from, one after another: each but the first is the student of the one before."""
    random: frozenset[str] = frozenset()
    """Its matrices that hold the random numbers they began with."""
    foreign: frozenset[str] = frozenset()
    """Its matrices that a tail copied from a teacher or set to zero, and that were not trained with the rest."""

    def copied(self, sources: Mapping[str, str], theirs: Origin) -> Origin:
        """The same after weights were copied from another encoder.

        Args:
            sources: name of a weight -> the other encoder's name of what was copied to it.
            theirs: the other encoder's.
        """

        def inherited(own: frozenset[str], names: frozenset[str]) -> frozenset[str]:
            return (own - sources.keys()) | {name for name, source in sources.items() if source in names}

        return replace(self, random=inherited(self.random, theirs.random), foreign=inherited(self.foreign, theirs.foreign))

    def replaced(self, names: Collection[str]) -> Origin:
        """The same after what stood in these matrices gave way to what does not belong to the rest."""
        return replace(self, random=self.random.difference(names), foreign=self.foreign.union(names))

    def kept(self, names: Collection[str]) -> Origin:
        """The same after a training that these weights had no part in."""
        return replace(self, random=self.random.intersection(names), foreign=self.foreign.intersection(names))


def matrices(model: PreTrainedModel) -> frozenset[str]:
    """The names of a model's weights that begin with random numbers: all but norms and biases."""
    return frozenset(name for name, parameter in model.named_parameters() if parameter.dim() > 1)


def read_origin(folder: Path) -> Origin:
    """What stands of it in a model's folder; nothing where Limbeck did not write it.

    Raises:
        UserError: it cannot be understood, or the folder holds no weights.
    """
    text = read_header(folder).get(KEY)
    if text is None:
        return Origin()
    try:
        fields = {name: _names(value) for name, value in json.loads(text).items()}
        return Origin(fields["teachers"], frozenset(fields["random"]), frozenset(fields["foreign"]))
    except (ValueError, AttributeError, KeyError, RecursionError) as error:
        raise UserError(f"The header of {folder / WEIGHTS} cannot be understood ({KEY}); export the student again.") from error


def _names(value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(name, str) and encodable(name) for name in value)):
        raise ValueError(f"{value!r} is no list of names")
    return tuple(value)


def write_origin(folder: Path, origin: Origin) -> None:
    """Put it into the header of the weights in a folder that nobody else reads yet."""
    file, whole = folder / WEIGHTS, folder / f"{WEIGHTS}.whole"
    fields = {"teachers": origin.teachers, "random": sorted(origin.random), "foreign": sorted(origin.foreign)}
    with file.open("rb") as old, whole.open("wb") as new:
        header = json.loads(old.read(int.from_bytes(old.read(8), "little")))
        # The package safetensors would write these two in any order, so that equal students had other bytes.
        header["__metadata__"] = {"format": "pt", KEY: json.dumps(fields, ensure_ascii=False)}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        new.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(old, new)
    whole.replace(file)
