"""Strict loading: a model comes with all of its weights and its own tokenizer, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from limbeck.encoders.families import Family, family_of
from limbeck.encoders.shape import EncoderShape
from limbeck.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Encoder:
    """A model with what belongs to it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str
    """Where it was loaded from, or what it was made of."""
    pooler_trained: bool
    """Whether the pooler's weights come from a checkpoint; without one they are random."""

    @property
    def shape(self) -> EncoderShape:
        """The model's sizes."""
        return EncoderShape.of(self.model.config)

    @property
    def family(self) -> Family:
        """The model's row in the table of families."""
        return family_of(self.model.config)


def load_encoder(source: str | Path) -> Encoder:
    """Load the encoder of a Hugging Face folder or hub model, in float32 and evaluation mode.

    Task heads in the checkpoint are left out. Key names of older checkpoints (a ``bert.`` or ``module.`` prefix,
    ``LayerNorm.gamma`` and ``beta``, a stored ``position_ids``) are understood.

    Raises:
        UserError: no such model; a decoder or quantised weights; no safetensors weights; a weight is missing, superfluous,
            not finite or of another shape than the configuration says; the tokenizer has more tokens than the embedding
            has rows.
    """
    folder = _folder(str(source))
    config = _config(folder)
    family = family_of(config)
    model = _model_of(config, folder)
    weights = _encoder_keys(_read_weights(folder), model.base_model_prefix)
    missing = _check_weights(model, weights, family, str(source))
    known = model.state_dict().keys()
    model.load_state_dict({k: v.float() for k, v in weights.items() if k in known}, strict=False, assign=True)
    tokenizer = _tokenizer(folder, config)
    return Encoder(model, tokenizer, str(source), pooler_trained=bool(family.pooler) and not missing)


def check_same_tokenizer(teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> None:
    """Refuse a student whose tokens mean something else than the teacher's, even if the vocabularies are equally large.

    Raises:
        UserError: naming the first tokens, special tokens or text that differ.
    """
    ours, theirs = teacher.get_vocab(), student.get_vocab()
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if differing:
        shown = ", ".join(f"{token!r} ({ours.get(token, 'none')} and {theirs.get(token, 'none')})" for token in differing[:3])
        problem = f"they differ in {len(differing)} tokens, first {shown}"
    elif teacher.special_tokens_map != student.special_tokens_map:
        problem = f"the special tokens are {teacher.special_tokens_map} and {student.special_tokens_map}"
    else:
        sample = "A Café, über ﬁne Ünïcode TEXT\u00a0– 東京 it's"
        if teacher.tokenize(sample) == student.tokenize(sample):
            return
        problem = f"{sample!r} becomes {teacher.tokenize(sample)} and {student.tokenize(sample)}"
    raise UserError(
        f"Teacher and student do not share a tokenizer: {problem}. "
        "Start the student with --init random or layers, which give it the teacher's tokenizer."
    )


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing its own bars for work of a second, and leave its setting as it was."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _folder(source: str) -> Path:
    """A local folder as it is; a hub name (owner/model) through the hub's cache."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists() or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source):
        raise UserError(
            f"There is no model folder {source!r}; give a folder with config.json and model.safetensors, or a hub name."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"There is no model folder {source!r}, and the hub has no model of that name that can be reached "
            f"({type(error).__name__}); check the path, the name, the network or your access."
        ) from error


def _config(folder: Path) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json; give the folder of a Hugging Face encoder.")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of a file that anyone may have written
        raise UserError(f"{folder / 'config.json'} cannot be read as a model configuration: {_one_line(error)}") from error
    config.dtype = torch.float32
    return _for_features(config, folder)


def _model_of(config: PretrainedConfig, folder: Path) -> PreTrainedModel:
    """A model for a checkpoint's weights; what the checkpoint lacks is random, but always the same."""
    try:
        return _random_model(config, seed=0)
    except Exception as error:  # likewise
        raise UserError(f"{folder / 'config.json'} describes no model that can be built: {_one_line(error)}") from error


def _for_features(config: PretrainedConfig, folder: Path) -> PretrainedConfig:
    """Refuse what is no plain encoder, and undo settings that only change what a forward pass returns.

    Raises:
        UserError: a decoder, or quantised weights.
    """
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise UserError(f"{folder} holds a decoder (is_decoder or add_cross_attention in config.json); give an encoder.")
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"{folder} holds quantised weights; give the model they were made from.")
    config.output_attentions = False
    config.output_hidden_states = False
    config.return_dict = True
    config.chunk_size_feed_forward = 0
    return config


def _read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            weights.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is broken or unreadable ({error}); fetch it again.") from error
    return weights


def _weight_files(folder: Path) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        yield folder / "model.safetensors"
    elif index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{index} is broken ({_one_line(error)}); fetch it again.") from error
        yield from sorted(folder / name for name in names)
    elif (folder / "pytorch_model.bin").is_file():
        raise UserError(
            f"{folder} has only pytorch_model.bin, a pickle, which could run any code when opened; "
            "save the model once with save_pretrained to get model.safetensors."
        )
    else:
        raise UserError(f"{folder} has no model.safetensors; give the folder of a Hugging Face encoder.")


def _encoder_keys(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Bring the known variants of key names into today's form, relative to the encoder."""

    def normalise(key: str) -> str:
        key = key.removeprefix("module.").removeprefix(f"{prefix}.")
        return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[m[1]], key)

    normalised = {normalise(key): value for key, value in weights.items()}
    return {key: value for key, value in normalised.items() if not key.endswith("embeddings.position_ids")}


def _check_weights(model: PreTrainedModel, weights: dict[str, Tensor], family: Family, source: str) -> list[str]:
    """Compare the checkpoint's weights with the model's; return the pooler's that are missing."""
    expected = model.state_dict()
    parts = tuple(f"{name}." for name, _ in model.named_children())
    optional = f"{family.pooler}."
    missing = sorted(key for key in expected if key not in weights)
    needed = [key for key in missing if not key.startswith(optional)]
    extra = sorted(key for key in weights if key not in expected and key.startswith(parts))
    given = {key: weights[key] for key in sorted(expected) if key in weights}
    misshapen = [key for key, value in given.items() if value.shape != expected[key].shape]
    whole = [key for key, value in given.items() if not value.is_floating_point()]
    broken = [key for key, value in given.items() if value.is_floating_point() and not value.isfinite().all()]
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
    return missing


def _tokenizer(folder: Path, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of a file that anyone may have written
        raise UserError(f"{folder} has no tokenizer that can be read: {_one_line(error)}") from error
    files = tokenizer.vocab_files_names.values()
    if not any((folder / name).is_file() for name in files):  # transformers then invents one that knows no word
        raise UserError(f"{folder} holds no tokenizer ({' or '.join(files)}); put the model's own there.")
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= config.vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has ids up to {highest}, but the model has only {config.vocab_size} embedding "
            "rows; they do not belong together."
        )
    return tokenizer


def new_encoder(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> Encoder:
    """A randomly initialised encoder in evaluation mode; the seed alone decides its weights."""
    return Encoder(_random_model(config, seed), tokenizer, "random", pooler_trained=False)


def _random_model(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """The process's own random numbers stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs as well
        model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="sdpa")
    model.eval()
    return model


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
