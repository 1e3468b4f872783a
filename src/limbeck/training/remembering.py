"""A teacher that remembers what it made of a sequence, so that later epochs and other runs need not ask it again.

What is kept is rounded to bf16: what enters the layer that is mimicked, where queries, keys and values of one layer are all
that is read, which are then projected anew; otherwise the features themselves. A student learns from rounded features whether
they were remembered or not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch
from torch import Tensor

from limbeck.data.batches import Batch, model_inputs, valid_tokens
from limbeck.data.corpora import cache_folder
from limbeck.encoders.capture import Capture, Wants
from limbeck.encoders.features import Features
from limbeck.training.disk import bytes_a_second
from limbeck.training.feature_store import BF16, FeatureStore, key_of
from limbeck.training.stage import Stage, Teacher

SHARE_OF_DISK = 2
"""One part in so many of what is free on the disk may be taken."""


class RememberingTeacher(Teacher):
    """Asks the store first, and keeps there what was not in it.

    Args:
        teacher: whose model is asked for what is not remembered; it is closed.
        store: that `open_store` opened for it.
    """

    def __init__(self, teacher: Teacher, store: FeatureStore) -> None:
        super().__init__(teacher.model, teacher.wants)
        teacher.close()
        self.store = store
        self._projects = self.capture.projected_layer is not None
        self._places = _places(self)
        self._reader = Capture(self.model, _stored_wants(self))
        self._watchers = 0

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Within it the store is read and written; outside of it the teacher is asked whatever it said before."""
        if not self._watchers:
            self.store.begin()
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self.store.end()

    def anew(self) -> RememberingTeacher:
        """The same once layers of the model were replaced."""
        return RememberingTeacher(super().anew(), self.store)

    def close(self) -> None:
        """Let go of the model."""
        super().close()
        self._reader.close()

    def __call__(self, batch: Batch) -> Features:
        """The teacher's features of a batch; those of padding are made of zeros."""
        mask = valid_tokens(batch)
        if not self._watchers:
            return self._features(self._asked(batch, mask), mask)
        keys = batch_keys(batch)
        rows = self.store.get(keys)
        if rows is None:
            rows = self._asked(batch, mask)
            for key, each in zip(keys, rows, strict=True):
                self.store.put(key, each.cpu())
        return self._features(rows, mask)

    def _asked(self, batch: Batch, mask: Tensor) -> list[Tensor]:
        """What the teacher makes of each sequence, (tokens, width) in bf16."""
        with torch.no_grad():
            read = self._reader(**model_inputs(batch)).tensors
        whole = torch.cat([read[feature][layer] for feature, layer, _ in self._places], dim=-1).bfloat16()
        return [whole[place][mask[place]] for place in range(len(mask))]

    def _features(self, rows: list[Tensor], mask: Tensor) -> Features:
        """The features of which these are the rows."""
        dtype = next(self.model.parameters()).dtype
        whole = torch.zeros(*mask.shape, rows[0].shape[-1], dtype=dtype, device=mask.device)
        whole[mask] = torch.cat(rows).to(mask.device, dtype)
        if self._projects:
            with torch.no_grad():
                return self.capture.project(whole)
        features = Features(self.capture.shape)
        parts = whole.split([width for _, _, width in self._places], dim=-1)
        for (feature, layer, _), part in zip(self._places, parts, strict=True):
            features.tensors.setdefault(feature, {})[layer] = part
        return features


def _stored_wants(teacher: Teacher) -> Wants:
    """The features that are kept of a teacher's."""
    layer = teacher.capture.projected_layer
    return teacher.wants if layer is None else {"hidden": (layer - 1,)}


def _places(teacher: Teacher) -> list[tuple[str, int, int]]:
    """Feature, layer and width of what stands in a row, in its order."""
    shape = teacher.capture.shape
    return [
        (feature, layer, shape.width if feature == "hidden" else shape.feature_width(feature))
        for feature, layers in _stored_wants(teacher).items()
        for layer in sorted(set(layers))
    ]


def open_store(teacher: Teacher, content: str) -> FeatureStore:
    """The store of a teacher in the cache.

    Args:
        teacher: what it is asked for decides what is kept.
        content: a digest of its weights, and the precision that it computes in.
    """
    what, cache = f"{content} {_places(teacher)}", cache_folder()
    folder = cache / "teachers" / blake2b(what.encode(), digest_size=16).hexdigest()
    there = sum(file.stat().st_size for file in folder.glob("*"))
    width = sum(width for _, _, width in _places(teacher))
    return FeatureStore(folder, width, there + shutil.disk_usage(cache).free // SHARE_OF_DISK)


def can_be_kept(teacher: Teacher) -> bool:
    """Whether all that a teacher is asked for are rows of numbers, one a token; what attention knows of positions is not."""
    return "positions" not in teacher.wants


def pays(stage: Stage, store: FeatureStore, passes: float) -> bool:
    """Whether to remember what the teacher says: it was said in another run already, or reading is faster, and there is room.

    Args:
        stage: with a teacher that is asked; tried on a few examples.
        store: what may be there already.
        passes: how often training goes over the text.
    """
    assert stage.teacher is not None
    batch = stage.probe_batch()
    if store.get(batch_keys(batch)) is not None:
        return True
    bytes_a_token = store.width * BF16
    if passes <= 1 or stage.source.tokens * bytes_a_token > store.limit - store.size:
        return False
    tokens = int(valid_tokens(batch).sum())
    stage.teacher(batch)
    start = time.perf_counter()
    stage.teacher(batch)
    asking = (time.perf_counter() - start) / tokens
    moving = bytes_a_token / bytes_a_second()
    return (passes - 1) * asking > passes * moving


def batch_keys(batch: Batch) -> list[bytes]:
    """The keys of a batch's sequences."""
    ids, valid = batch["input_ids"].cpu().numpy(), valid_tokens(batch).cpu().numpy()
    segments = batch["token_type_ids"].cpu().numpy() if "token_type_ids" in batch else None
    return [
        key_of(row[kept], None if segments is None else segments[place][kept])
        for place, (row, kept) in enumerate(zip(ids, valid, strict=True))
    ]
