"""Labels are told apart by their names, never by the order in which a model or a file happens to have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from limbeck.errors import UserError
from limbeck.text import listed

VARIANTS = {"contradictory": "contradiction", "pos": "positive", "neg": "negative"}
"""Spellings that some models and files have, and what they stand for."""
NAMELESS = re.compile(r"label_\d+", re.IGNORECASE)
"""What transformers calls a model's outputs when no one said what they mean."""


def canonical(name: str) -> str:
    """A label's name whatever its case, separators and known variants: "Not Entailment" is "not_entailment"."""
    name = re.sub(r"[\s_-]+", "_", name.strip().casefold())
    return VARIANTS.get(name, name)


def permutation(
    outputs: Mapping[int, str] | Mapping[str, str] | Sequence[str],
    labels: Sequence[str],
    written: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
) -> tuple[int, ...]:
    """Which of a model's outputs stands for each of the data's labels.

    ``logits[:, permutation]`` has the data's order.

    Args:
        outputs: the names of the model's outputs in order, or its configuration's `id2label`.
        labels: the data's labels, in the order of their numbers.
        written: other spellings of the labels in the same order, such as "0" and "1" in the task's official files.
        meanings: which label each of the outputs stands for, where their names do not tell; an output may be called by its
            name or its number.

    Raises:
        UserError: the outputs are called LABEL_0 and so on and no one said what they mean, or outputs and labels do not match
            one to one; names both sides.
    """
    names = in_order(outputs)
    meant = _meant(names, labels, meanings) if meanings else names
    if not meanings and all(NAMELESS.fullmatch(name) for name in names):
        example = ",".join(f"{name}={label}" for name, label in zip(names, labels, strict=False))
        raise UserError(
            f"The model's outputs are called {listed(names)}, which does not tell what they mean; the data's labels are "
            f"{listed(labels)}. Say which is which, such as {example}."
        )
    for outside, inside in _spellings(meant, labels, written):
        if len(set(outside)) == len(outside) and sorted(outside) == sorted(inside):
            return tuple(outside.index(label) for label in inside)
    raise UserError(
        f"The model's outputs ({listed(meant)}) do not match the data's labels ({listed(labels)}) one to one; say which is "
        "which, or fine-tune the model on this data."
    )


def _spellings(
    outputs: Sequence[str], labels: Sequence[str], written: Sequence[str]
) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Both sides as they may be compared, the strictest way first."""
    loose = [canonical(name) for name in outputs]
    compared: list[tuple[Sequence[str], Sequence[str]]] = [(outputs, labels), (loose, [canonical(label) for label in labels])]
    return [*compared, (loose, [canonical(label) for label in written])] if written else compared


def in_order(outputs: Mapping[int, str] | Mapping[str, str] | Sequence[str]) -> list[str]:
    """The names of a model's outputs in order, from a list or from its configuration's `id2label`."""
    if isinstance(outputs, Mapping):
        return [str(name) for _, name in sorted(outputs.items(), key=lambda item: int(item[0]))]
    return [str(name) for name in outputs]


def _meant(names: Sequence[str], labels: Sequence[str], meanings: Mapping[str, str]) -> list[str]:
    """The names that a map gives to the outputs; those it leaves out keep theirs."""
    unknown = [key for key in meanings if key not in names and key not in map(str, range(len(names)))]
    if unknown:
        raise UserError(f"The model has no output called {listed(unknown)}; its outputs are {listed(names)}.")
    strangers = [label for label in meanings.values() if canonical(label) not in map(canonical, labels)]
    if strangers:
        raise UserError(f"The data has no label {listed(strangers)}; its labels are {listed(labels)}.")
    return [meanings.get(name, meanings.get(str(place), name)) for place, name in enumerate(names)]
