"""Going on with a run: what must be as it was when the run began, what may differ, and what a person is told."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from limbeck.encoders.shape import EncoderShape
from limbeck.errors import UserError
from limbeck.recipe import plain, read_recipe, validate
from limbeck.training.folder import RECIPE, RunFolder

T = TypeVar("T")
NamesInput = Callable[[str, Any], bool]
LAYOUT = ("batch_size", "micro_batch_size", "precision", "compile")
"""Fields that may change on resuming; the result is then another one in its last bits."""
FREE = ("log_every", "eval_every", "checkpoint_every", "keep_checkpoints", "trackers")
"""Fields that may change without a word: they do not touch the weights."""


def read_begun(folder: RunFolder, kind: type[T]) -> T | None:
    """The resolved recipe that a run began with; None if there is none.

    Raises:
        UserError: RUN/recipe.yaml is not what was written there.
    """
    if not folder.recipe.exists():
        return None
    try:
        fields = read_recipe(folder.recipe)
        recipe = None if "stages" in fields else _decided(kind, fields)
    except UserError as error:
        raise UserError(
            f"{folder.recipe} is not the recipe that the run began with ({str(error).rstrip('.')}); put that back, or begin "
            "anew with --overwrite."
        ) from error
    if recipe is None:
        raise UserError(f"{folder.path} holds a run of several stages; resume it with its own recipe, or name another directory.")
    return recipe


def _decided(kind: type[T], fields: Mapping[str, Any]) -> T:
    recipe = validate(kind, fields)
    decided = plain(recipe)
    if decided["steps"] is None or "auto" in (decided["precision"], decided["micro_batch_size"]):
        raise UserError("It leaves something to decide.")
    return recipe


def check_same_recipe(begun: Any, resolved: Any, folder: RunFolder, names_input: NamesInput, *, same_content: bool) -> None:
    """Refuse to go on with a run that began with another recipe.

    Args:
        begun: the resolved recipe of the run.
        resolved: the recipe to go on with, resolved with the run's batch size.
        folder: the run's.
        names_input: tells for a field and its value whether that is a path or several, or a model's name on the hub.
        same_content: whether the content of the inputs was compared, so that they may lie elsewhere by now.

    Raises:
        UserError: naming the fields that differ.
    """
    then, now = plain(begun), plain(resolved)
    changed = [
        f"{name} ({then[name]} then, {now[name]} now)"
        for name in now
        if name not in (*LAYOUT, *FREE)
        and not _same(
            then[name], now[name], names_input(name, then[name]) and names_input(name, now[name]), same_content=same_content
        )
    ]
    if changed:
        raise UserError(
            f"{folder.path} holds a run with another recipe: {'; '.join(changed)}. Resume it with the recipe it began "
            "with, or name another directory."
        )


def check_same_content(then: Mapping[str, str], now: Mapping[str, str], folder: RunFolder) -> None:
    """Refuse to go on with inputs whose content is not what it was.

    Raises:
        UserError: naming the inputs.
    """
    changed = [RECIPE if name == "recipe" else name for name in now if then.get(name, now[name]) != now[name]]
    if changed:
        raise UserError(
            f"The {' and the '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since the run in {folder.path} "
            "began. Resume it with what it began with, or name another directory."
        )


def conditions(recipe: Any, processes: int, device: torch.device) -> dict[str, Any]:
    """What the last bits of a run depend on beside its recipe: how the work is laid out, and what does it."""
    return {
        **layout(recipe),
        "processes": processes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def layout(recipe: Any) -> dict[str, Any]:
    """The fields of a recipe that may change on resuming."""
    return {name: getattr(recipe, name) for name in LAYOUT if hasattr(recipe, name)}


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Each condition that changed, as [then, now]."""
    return {name: [value, now[name]] for name, value in then.items() if now.get(name, value) != value}


def fingerprint(model: PreTrainedModel) -> str:
    """A digest of a model's sizes and weights, wherever its folder lies."""
    shape = EncoderShape.of(model.config)
    sizes = f"{shape.model_type} {shape} {shape.vocabulary} {shape.positions} {shape.segments} {shape.key_value_heads}"
    digest = blake2b(sizes.encode(), digest_size=16)  # spelled out, so that a new size does not change it for all models
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def text_fingerprint(text: str) -> str:
    """A digest of a text."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _same(then: Any, now: Any, inputs: bool, *, same_content: bool) -> bool:
    if then == now or not inputs:
        return bool(then == now)
    return same_content or _places(then) == _places(now)


def _places(value: str | list[str]) -> list[str]:
    paths = [Path(text).expanduser() for text in ([value] if isinstance(value, str) else value)]
    return [str(path.resolve() if path.exists() else path) for path in paths]


def _cpu() -> str:
    """The processor's model, and which of its vector instructions torch uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"
