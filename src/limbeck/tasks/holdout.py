"""Dividing a split into examples to train on and examples kept out, and drawing some of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from limbeck.data.tokens import position
from limbeck.errors import UserError
from limbeck.tasks.examples import Example, Split


def hold_out(split: Split, share: float) -> tuple[Split, Split]:
    """Divide a split into "train" and about a share of it as "dev".

    Examples of the same group, or without groups of the same text, fall on the same side, whatever the file's order and
    the seed. Each class gives about the same share, and keeps an example to train on.

    Args:
        split: the examples; those of a multi-label or regression task are not divided by class.
        share: of the groups, between 0 and 1.

    Raises:
        UserError: the share is no such number, or one side would be empty.
    """
    strata: dict[int, list[str]] = defaultdict(list)
    for group, label in _groups(split).items():
        strata[label].append(group)
    held = set[str]()
    for groups in strata.values():
        held |= held_groups(groups, share)
    if not held:  # classes are too small to give a share each, so some of them give one group
        spare = [_ordered(groups)[0] for groups in strata.values() if len(groups) > 1]
        held |= {*_ordered(spare)[: round(share * sum(map(len, strata.values())))]}
    kept = [example for example in split.examples if _group(example) not in held]
    out = [example for example in split.examples if _group(example) in held]
    if not kept or not out:
        raise UserError(f"{split.path} is too small to hold out a share of {share}; name a file of its own for dev instead.")
    rows = len(split.examples) + len(split.bad)
    train = replace(split, name="train", examples=tuple(kept), rows=rows)
    return train, replace(split, name="dev", examples=tuple(out), bad=())


def held_groups(groups: Iterable[str], share: float) -> set[str]:
    """About a share of some groups, which their names alone decide; never all of them.

    Raises:
        UserError: the share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise UserError(f"The share to hold out is a number between 0 and 1, not {share}.")
    ordered = _ordered(groups)
    return set(ordered[: min(round(share * len(ordered)), len(ordered) - 1)])


def drawn(split: Split, limit: int, seed: int) -> tuple[Example, ...]:
    """At most so many of a split's examples, as `drawn_places` chooses them by their texts and classes."""
    texts = ["\n".join((example.text, example.second or "")) for example in split.examples]
    classes = [example.label if isinstance(example.label, int) else -1 for example in split.examples]
    return tuple(split.examples[place] for place in drawn_places(texts, classes, limit, seed))


def drawn_places(texts: Sequence[str], classes: Sequence[int], limit: int, seed: int) -> list[int]:
    """The places of at most `limit` examples, each class in its share, in the file's order.

    Seed and texts decide which, not the order of the file.
    """
    keys = [position(f"{seed}\n{text}".encode()) for text in texts]
    seen: Counter[int] = Counter()
    sizes = Counter(classes)
    shares = {}
    # With the r-th of n examples at (r - 1/2) / n, the beginning of the row has each class in its share.
    for place in sorted(range(len(texts)), key=keys.__getitem__):
        seen[classes[place]] += 1
        shares[place] = (seen[classes[place]] - 0.5) / sizes[classes[place]]
    return sorted(sorted(shares, key=lambda place: (shares[place], keys[place]))[:limit])


def _ordered(groups: Iterable[str]) -> list[str]:
    """Groups in an order that their names alone decide."""
    return sorted(set(groups), key=lambda group: (position(group.encode()), group))


def _groups(split: Split) -> dict[str, int]:
    """Each group with the class it counts for: the first in order of those that its examples have."""
    groups: dict[str, int] = {}
    for example in split.examples:
        label = example.label if isinstance(example.label, int) else -1
        groups[_group(example)] = min(label, groups.get(_group(example), label))
    return groups


def _group(example: Example) -> str:
    return example.group if example.group is not None else "\n".join((example.text, example.second or ""))
