"""A checkpoint's weights: read from safetensors, brought into today's key names, and compared with the model's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from limbeck.encoders.families import Family
from limbeck.encoders.folders import contents, inside, one_line, read_json
from limbeck.errors import UserError


def read_weights(folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Tensor]:
    """The weights that a folder holds, sharded or not; they are mapped, and enter memory when they are used.

    Args:
        folder: of the model.
        wanted: tells by a weight's name whether it is read.

    Raises:
        UserError: no safetensors weights, or files that are broken.
    """
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, "pt") as content:
                names = [name for name in content.keys() if wanted(name)]  # noqa: SIM118 (it is no mapping)
                weights.update({name: content.get_tensor(name) for name in names})
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, error) from error
    return weights


def read_header(folder: Path) -> dict[str, str]:
    """What is said in the header of the first file of weights in a folder.

    Raises:
        UserError: as `read_weights`.
    """
    file = next(_weight_files(folder))
    try:
        with safe_open(file, "pt") as content:
            return dict(content.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> UserError:
    return UserError(f"{file} is broken or unreadable ({one_line(error)}); fetch it again.")


def _weight_files(folder: Path) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        yield folder / "model.safetensors"
    elif index.is_file():
        yield from _shards(folder, index)
    elif next(folder.glob("pytorch_model*.bin"), None):
        raise UserError(
            f"{folder} has its weights only in pytorch_model.bin, a pickle, which could run any code when opened; "
            "save the model once with save_pretrained to get model.safetensors."
        )
    else:
        raise UserError(f"{folder} has no model.safetensors ({contents(folder)}); give the folder of a Hugging Face encoder.")


def _shards(folder: Path, index: Path) -> list[Path]:
    content = read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"{index} is broken (it names no files of weights); fetch it again.")
    return sorted({inside(folder, name, index) for name in shards.values()})


def encoder_key(key: str, prefix: str) -> str:
    """A weight's name in today's form, relative to the encoder; the arguments are those of `encoder_keys`."""
    key = key.removeprefix("module.").removeprefix(f"{prefix}.")
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[m[1]], key)


def encoder_keys(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Bring the known variants of key names into today's form, relative to the encoder.

    Args:
        weights: as they are stored.
        prefix: the encoder's name in a model with a task head, such as ``bert``.

    Raises:
        UserError: two weights have the same name in that form.
    """
    normalised: dict[str, Tensor] = {}
    for key, value in weights.items():
        name = encoder_key(key, prefix)
        if name in normalised:
            raise UserError(f"The checkpoint has {name} twice, once as {key}; it holds two models, so save one alone.")
        normalised[name] = value
    return {key: value for key, value in normalised.items() if not key.endswith("embeddings.position_ids")}


def check_weights(model: PreTrainedModel, weights: dict[str, Tensor], family: Family, source: str) -> bool:
    """Compare a checkpoint's weights, in today's key names, with the model's.

    Returns:
        Whether all are there; only the pooler's may be missing, and only as a whole.

    Raises:
        UserError: weights are missing, superfluous, of another shape, or no finite numbers.
    """
    expected = model.state_dict()
    parts = tuple(f"{name}." for name, _ in model.named_children())
    pooler = {key for key in expected if family.pooler and key.startswith(f"{family.pooler}.")}
    missing = {key for key in expected if key not in weights}
    needed = sorted(missing - pooler if pooler <= missing else missing)
    extra = sorted(key for key in weights if key not in expected and key.startswith(parts))
    given = {key: weights[key] for key in sorted(expected) if key in weights}
    misshapen = [key for key, value in given.items() if value.shape != expected[key].shape]
    whole = [key for key, value in given.items() if not value.is_floating_point()]
    broken = [key for key, value in given.items() if value.is_floating_point() and not value.float().isfinite().all()]
    for keys, problem in (
        (needed, "lacks"),
        (extra, "has, but its config.json does not,"),
        (misshapen, "has in another shape"),
        (whole, "has as whole numbers"),
        (broken, "has NaN or infinity in"),
    ):
        if keys:
            rest = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise UserError(
                f"The checkpoint {source} {problem} {', '.join(keys[:3])}{rest}; "
                "config.json and weights do not belong together, or the file is incomplete."
            )
    return not missing
