"""Which parameters a loss can reach: found by one real backward pass, not by a list of names.

A relation of the student's last layer reads its queries, keys and values, so nothing behind them gets a gradient: the
last layer's attention output, feed-forward part and norms, and the pooler. That lies in the method.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from transformers import PreTrainedModel

from limbeck.encoders.capture import Capture, Wants
from limbeck.training.stage import Stage


def freeze_unreachable(stage: Stage) -> list[str]:
    """Freeze the student's parameters that the objective's gradient does not reach.

    Args:
        stage: its student is left without gradients, the random state as it was.

    Returns:
        The names of the parameters frozen, as in the student's state dict.
    """
    module, batch = stage.module, stage.probe_batch()
    with torch.random.fork_rng(devices=[]):
        stage.loss(batch, stage.targets(batch)).backward()
    unreached = [name for name, parameter in module.student.named_parameters() if parameter.grad is None]
    for name in unreached:
        module.student.get_parameter(name).requires_grad_(False)
    module.zero_grad(set_to_none=True)
    return unreached


def unread_parameters(model: PreTrainedModel, wants: Wants) -> list[str]:
    """The parameters that none of these features depends on, whatever is made of them.

    Args:
        model: in evaluation mode, on any device; it is left as it was.
        wants: the features read of it.
    """
    names, parameters = zip(*model.named_parameters(), strict=True)
    capture = Capture(model, wants)
    try:
        with torch.enable_grad():
            ids = torch.arange(4, device=model.device).remainder(model.config.vocab_size)[None]
            read = [tensor for layers in capture(input_ids=ids).tensors.values() for tensor in layers.values()]
            gradients = torch.autograd.grad([tensor.sum() for tensor in read], parameters, allow_unused=True)
    finally:
        capture.close()
    return [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]


def modules_of(names: Iterable[str]) -> list[str]:
    """The modules that parameters belong to, without the last word where it says nothing."""
    return list(dict.fromkeys(re.sub(r"(\.dense|\.LayerNorm)?\.(weight|bias)$", "", name) for name in names))
