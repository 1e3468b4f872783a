"""Compiling an encoder's layers with torch.compile, around what is read of them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from limbeck.encoders.families import family_of

VARIANTS = 64
"""Shapes, types and modes that torch compiles a kind of module for, of both models, before it goes on without."""


def compile_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Let the layers of an encoder run compiled, from their next call on.

    Modules with forward hooks, by which features are read, stay as they are, and so do those that hold them; their other parts
    are compiled. Weights, names and hooks do not change, and copies of the model are not compiled.

    Args:
        model: an encoder, or a model with a task's head.

    Returns:
        The modules that were compiled.
    """
    layers = dict.fromkeys(family_of(model.config).layer_list(model.base_model))  # some share one
    parts = [part for layer in layers for part in _without_hooks(layer)]
    for part in parts:
        part.compile(recompile_limit=VARIANTS)
    return parts


def compile_no_more(parts: list[nn.Module]) -> None:
    """Let modules run as they were written."""
    for part in parts:
        part._compiled_call_impl = None


def _without_hooks(module: nn.Module) -> Iterator[nn.Module]:
    """The largest parts of a module without hooks that are worth it: a module without parts is a call of torch's already."""
    children = list(module.children())
    if not children:
        return
    if not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        yield module
    else:
        for child in children:
            yield from _without_hooks(child)
