"""Reading features out of a running encoder with forward hooks, and stopping once the deepest has been read.

Hooks on the q, k and v projections work with every attention backend and give the heads concatenated, before rotary
positions: just what relations slice. Nothing is asked for through ``output_attentions`` or ``output_hidden_states``.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from limbeck.encoders.families import POSITIONS, family_of
from limbeck.encoders.features import Features
from limbeck.encoders.shape import EncoderShape
from limbeck.encoders.stand_ins import Tap
from limbeck.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Feature = Literal["q", "k", "v", "hidden", "positions"]
Wants = Mapping[Feature, Sequence[int]]
"""Which layers' features to read. Layers count from 1; hidden 0 is what enters layer 1, hidden l what leaves layer l."""
FEATURES: tuple[Feature, ...] = ("q", "k", "v", "hidden")
"""What may be asked for by name; "positions" is for `Features.attention` alone."""
SEGMENTS = "token_type_ids"


class _DeepestRead(Exception):
    """Ends a forward pass whose remaining layers no loss reads; never leaves this module."""


class Capture:
    """Reads the same features of one encoder again and again.

    Calling it runs the encoder up to the deepest feature asked for. Hooks act only during such a call, so the model can
    be used as usual in between; `close` removes them.

    Args:
        model: an encoder, or a model with a task head, whose encoder is then used.
        wants: the features to read and the layers to read them from.
        tap: end a forward pass by a `Tap` at the deepest layer, not by an exception, which compilers and wrappers do not follow;
            the deepest feature is then a projection.

    Raises:
        UserError: no encoder, an unsupported family, an unknown feature, or a layer that the encoder does not have.
    """

    def __init__(self, model: PreTrainedModel, wants: Wants, *, tap: bool = False) -> None:
        if not hasattr(model, "base_model") or not hasattr(model, "config"):
            raise UserError(f"Features are read of a transformers model, not of a {type(model).__name__}; give the model inside.")
        self._encoder: nn.Module = model.base_model
        self._family = family_of(model.config)
        self._layers = self._family.layer_list(self._encoder)
        _check_wants(wants, len(self._layers))
        self.shape = EncoderShape.of(model.config)
        self._accepted = accepted_inputs(self._encoder, self.shape)
        self._wants = wants
        self._total = sum(len(set(layers)) for layers in wants.values())
        self._features: Features | None = None
        self._calls: Counter[tuple[str, int]] = Counter()
        self._deepest = max(layer for layers in wants.values() for layer in layers)
        self._tap = self._make_tap() if tap else None
        self._handles = [self._watch(feature, layer) for feature, layers in wants.items() for layer in set(layers)]

    def __call__(self, **inputs: Tensor) -> Features:
        """Run the encoder on tokenised inputs (input_ids, attention_mask ...) and return the features.

        token_type_ids go only to an encoder with more than one segment, so that teacher and student can share a batch.

        Raises:
            UserError: inputs that are missing, empty, too long or unknown to the encoder, or the encoder trains with
                reentrant gradient checkpointing.
        """
        inputs = {name: value for name, value in inputs.items() if name != SEGMENTS or name in self._accepted}
        _check_inputs(inputs, self._accepted, self.shape)
        _check_checkpointing(self._layers)
        features = Features(self.shape)
        self._features, self._calls = features, Counter()
        try:
            with nullcontext() if self._tap is None else self._tapped(self._tap):
                self._encoder(**inputs)
        except _DeepestRead:
            pass
        finally:
            self._features = None
        return features

    @property
    def projected_layer(self) -> int | None:
        """The one layer whose queries, keys and values are all that is read, so that `project` can do; otherwise None."""
        layers = {layer for read in self._wants.values() for layer in read}
        projected = set(self._wants) <= set(self._family.projections) and not self._family.shared_layers
        return layers.pop() if projected and len(layers) == 1 else None

    def project(self, hidden: Tensor) -> Features:
        """The same features of what enters `projected_layer`, (batch, n, width), without running the layers before it."""
        features = Features(self.shape)
        self._features, self._calls = features, Counter()
        try:
            self._make_tap().project(hidden)
        except _DeepestRead:
            pass
        finally:
            self._features = None
        return features

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _make_tap(self) -> Tap:
        return Tap(self._layers[self._deepest - 1], self._family, self._turn("q", self._deepest))

    @contextmanager
    def _tapped(self, tap: Tap) -> Iterator[None]:
        """Put the tap in the deepest layer's place, and take out what is behind it."""
        tap.begin()
        modules = self._encoder.get_submodule(self._family.layers)._modules
        whole = dict(modules)
        kept = list(whole.items())[: 0 if self._family.shared_layers else self._deepest - 1]
        modules.clear()
        modules.update({**dict(kept), str(len(kept)): tap})
        try:
            yield
        finally:
            modules.clear()
            modules.update(whole)

    def _watch(self, feature: Feature, layer: int) -> RemovableHandle:
        if feature == "positions":
            module, name = self._layers[layer - 1].get_submodule(self._family.attention), POSITIONS[str(self._family.scores)]
            if self._tap is not None and layer == self._deepest:
                module = self._tap.attention
            return self._entering(module, feature, layer, lambda _, kwargs: kwargs[name])
        if feature != "hidden":
            module = self._layers[layer - 1].get_submodule(self._family.projections[feature])
            return module.register_forward_hook(lambda _, __, output: self._read(feature, layer, self._part(feature, output)))
        if layer == len(self._layers):
            return self._layers[-1].register_forward_hook(lambda _, __, output: self._read(feature, layer, output))
        # What leaves a layer may still be changed on its way to the next.
        return self._entering(self._layers[layer], feature, layer, lambda args, kwargs: (*args, *kwargs.values())[0])

    def _entering(
        self, module: nn.Module, feature: Feature, layer: int, pick: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    ) -> RemovableHandle:
        """Read one of a module's arguments."""
        return module.register_forward_pre_hook(
            lambda _, args, kwargs: self._read(feature, layer, pick(args, kwargs)), with_kwargs=True
        )

    def _part(self, feature: Feature, output: Tensor) -> Tensor:
        """A projection of what its module gives, which may hold all three."""
        return output.chunk(3, dim=-1)["qkv".index(feature)] if self._family.fused else output

    def _turn(self, feature: Feature, layer: int) -> int:
        """The call of the watched module that is the layer's: layers may share it, and it may run again with other inputs."""
        watched = layer + 1 if feature == "hidden" and layer < len(self._layers) else layer
        return watched if self._family.shared_layers else 1

    def _read(self, feature: Feature, layer: int, output: Any) -> None:
        if self._features is None:
            return
        self._calls[feature, layer] += 1
        if self._calls[feature, layer] != self._turn(feature, layer):
            return
        tensor = output[0] if isinstance(output, tuple) and feature != "positions" else output
        tensors = self._features.tensors
        tensors.setdefault(feature, {})[layer] = tensor
        if self._tap is None and sum(len(layers) for layers in tensors.values()) == self._total:
            raise _DeepestRead


def capture(
    model: PreTrainedModel, batch: Mapping[str, Tensor], wants: Mapping[Feature, int | Sequence[int]]
) -> dict[str, Tensor | dict[int, Tensor]]:
    """Read features of an encoder, computing nothing beyond the deepest one.

    Args:
        model: an encoder of a supported family, with or without a task head.
        batch: its inputs, such as input_ids and attention_mask, each (batch, n); all that its tokenizer gives by default.
            token_type_ids are left out where the encoder has no segments.
        wants: for each of "q", "k", "v" and "hidden" a layer or a list of layers. Layers count from 1; hidden 0 is the
            embedding output.

    Returns:
        For a feature asked for with one layer a tensor (batch, n, width), for a list a dict from layer to tensor.

    Raises:
        UserError: no encoder, an unsupported family, an unknown feature, a layer that the encoder does not have, or inputs
            that are missing, empty, too long, of another tokenizer or unknown to the encoder.

    Example:
        ``limbeck.capture(model, tokenizer(texts, return_tensors="pt", padding=True), {"q": 12, "hidden": [0, 3]})``
    """
    if not isinstance(wants, Mapping) or not isinstance(batch, Mapping):
        raise UserError('capture needs a batch such as the tokenizer gives, and what to read of it, such as {"q": 12}.')
    reader = Capture(model, {feature: _asked_layers(feature, asked) for feature, asked in wants.items()})
    try:
        _check_vocabulary(batch, model)
        read = reader(**batch).tensors
    finally:
        reader.close()
    return {
        feature: read[feature][int(asked)] if isinstance(asked, Integral) else read.get(feature, {})
        for feature, asked in wants.items()
    }


def _asked_layers(feature: str, asked: object) -> list[int]:
    layers: list[Any] = list(asked) if isinstance(asked, Iterable) else [asked]
    if not all(isinstance(layer, Integral) and not isinstance(layer, bool) for layer in layers):
        raise UserError(f"{asked!r} names no layers of {feature}; give a layer, such as 3, or a list of them.")
    return [int(layer) for layer in layers]


def _check_wants(wants: Wants, layers: int) -> None:
    if not any(wants.values()):
        raise UserError(f"No feature was asked for; name at least one of {', '.join(FEATURES)} with its layers.")
    for feature, wanted in wants.items():
        if feature not in (*FEATURES, "positions"):
            raise UserError(f"There is no feature {feature!r}; the features are {', '.join(FEATURES)}.")
        first = 0 if feature == "hidden" else 1
        for layer in wanted:
            if not first <= layer <= layers:
                raise UserError(f"There is no {feature} of layer {layer}; this encoder's go from {first} to {layers}.")


def accepted_inputs(encoder: nn.Module, shape: EncoderShape) -> set[str]:
    """The inputs by name that an encoder takes: its ``**kwargs`` would pass over anything."""
    parameters = inspect.signature(encoder.forward).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD}
    return names if shape.segments > 1 else names - {SEGMENTS}


def _check_inputs(inputs: Mapping[str, Tensor], accepted: set[str], shape: EncoderShape) -> None:
    unknown = sorted(inputs.keys() - accepted)
    if unknown:
        raise UserError(f"A {shape.model_type} encoder does not take {', '.join(unknown)}; leave it out of the batch.")
    ids = inputs.get("input_ids")
    if ids is None:
        raise UserError("The batch has no input_ids; give what the tokenizer makes of the texts.")
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise UserError('input_ids must be a tensor (batch, n); tokenise a list of texts with return_tensors="pt".')
    if not ids.numel():
        raise UserError(f"The batch is empty: input_ids has the shape {tuple(ids.shape)}.")
    if ids.shape[1] > shape.positions and "position_ids" not in inputs:
        raise UserError(
            f"A sequence of {ids.shape[1]} tokens is longer than the {shape.positions} that the encoder has positions for; "
            f"tokenise with truncation=True, max_length={shape.positions}."
        )
    _check_mask(inputs.get("attention_mask"), ids)


def _check_mask(mask: Any, ids: Tensor) -> None:
    """Refuse a mask of another length, which transformers would fill up with padding; others have four dimensions."""
    if mask is None or (isinstance(mask, Tensor) and (mask.ndim != 2 or mask.shape == ids.shape)):
        return
    given = f"the shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"the type {type(mask).__name__}"
    raise UserError(f"attention_mask has {given}; it must be a tensor of input_ids' shape, {tuple(ids.shape)}.")


def _check_vocabulary(batch: Mapping[str, Tensor], model: PreTrainedModel) -> None:
    """Refuse ids without an embedding, of which a GPU says nothing that helps; looking at them costs it a pause."""
    ids, rows = batch.get("input_ids"), model.config.vocab_size
    if isinstance(ids, Tensor) and ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise UserError(
            f"input_ids go from {int(ids.min())} to {int(ids.max())}, but the encoder knows only 0 to {rows - 1}; "
            "tokenise with its own tokenizer."
        )


def _check_checkpointing(layers: Sequence[nn.Module]) -> None:
    """Refuse reentrant checkpointing, which runs a layer without gradients first, so that its features carry none."""
    for layer in layers:
        run: Any = getattr(layer, "_gradient_checkpointing_func", None)
        active = layer.training and getattr(layer, "gradient_checkpointing", False)
        if active and run.keywords.get("use_reentrant"):
            raise UserError(
                "Features carry no gradient under reentrant gradient checkpointing; "
                'enable it with gradient_checkpointing_kwargs={"use_reentrant": False}.'
            )
