"""Strict loading: a model comes with all of its weights and its own tokenizer, or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.initialization import no_init_weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from limbeck.encoders.cost import Parameters, count_parameters
from limbeck.encoders.families import Family, family_of, supported_families
from limbeck.encoders.folders import contents, model_folder, one_line, read_json
from limbeck.encoders.origin import Origin, matrices, read_origin
from limbeck.encoders.shape import EncoderShape
from limbeck.encoders.stand_ins import LeftOut
from limbeck.encoders.weights import check_weights, encoder_key, encoder_keys, read_weights
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
    origin: Origin
    """Where its weights come from."""

    @property
    def shape(self) -> EncoderShape:
        """The model's sizes."""
        return EncoderShape.of(self.model.config)

    @property
    def pooler_trained(self) -> bool:
        """Whether it has a pooler whose weights are not random."""
        pooler = self.family.pooler
        has = any(name == pooler for name, _ in self.model.base_model.named_children())
        return has and not any(name.startswith(f"{pooler}.") for name in self.origin.random)

    @property
    def parameters(self) -> Parameters:
        """How many parameters it has by part, layers included whose weights were not loaded."""
        if not any(isinstance(module, LeftOut) for module in self.model.modules()):
            return count_parameters(self.model)
        with torch.device("meta"):
            return count_parameters(AutoModel.from_config(self.model.config))

    @property
    def family(self) -> Family:
        """The model's row in the table of families."""
        return family_of(self.model.config)


def load_encoder(source: str | Path, layers: Collection[int] | None = None) -> Encoder:
    """Load an encoder in float32 and evaluation mode.

    Task heads in the checkpoint are left out. Key names of older checkpoints (a ``bert.`` or ``module.`` prefix,
    ``LayerNorm.gamma`` and ``beta``, a stored ``position_ids``) are understood.

    Args:
        source: the folder of a Hugging Face or sentence-transformers model, with or without a task head; the directory of a
            run, whose student is loaded; or a hub name.
        layers: the Transformer layers (numbered from 1) that will run or be copied; the weights of others are neither read nor
            held. None: all.

    Raises:
        UserError: no such model; an unsupported family; a decoder or quantised weights; no safetensors weights; a weight is
            missing, superfluous, not finite or of another shape than the configuration says; the tokenizer does not fit.
    """
    folder = model_folder(str(source))
    config = _config(folder)
    family = family_of(config)
    model = _model_of(config, folder)
    if layers is not None:
        keep_layers(model, layers)
    weights = _weights(folder, model, family)
    whole = check_weights(model, weights, family, str(source))
    known = model.state_dict().keys()
    model.load_state_dict({k: v.float() for k, v in weights.items() if k in known}, strict=False, assign=True)
    origin = read_origin(folder)
    if not whole:
        _fill_pooler(model, family)
        lacking = {name for name in matrices(model) if name.startswith(f"{family.pooler}.")}
        origin = replace(origin, random=origin.random | lacking)
    tokenizer = _tokenizer(folder)
    _check_ids(tokenizer, config, family, folder)
    tokenizer.model_max_length = _most_tokens(tokenizer, family.positions(config))
    return Encoder(model, tokenizer, str(source), origin)


def _most_tokens(tokenizer: PreTrainedTokenizerBase, positions: int) -> int:
    """How long a text a tokenizer lets pass: as long as the model takes, or less if its file says a sensible number."""
    own = tokenizer.model_max_length
    return int(min(own, positions)) if isinstance(own, int | float) and own > tokenizer.num_special_tokens_to_add() else positions


def keep_layers(model: PreTrainedModel, layers: Collection[int]) -> None:
    """Let go of an encoder's layers but some, numbered from 1; layers that share their weights stay whole."""
    family = family_of(model.config)
    if family.shared_layers:
        return
    container = model.get_submodule(family.layers)
    for place, layer in enumerate(list(container.children())):
        if place + 1 not in layers:
            container.register_module(str(place), LeftOut(layer))


def load_config(source: str | Path) -> PretrainedConfig:
    """The configuration of an encoder, without its weights.

    Args:
        source: as in `load_encoder`.

    Raises:
        UserError: no such model, an unsupported family, or no plain encoder.
    """
    config = _config(model_folder(str(source)))
    family_of(config)
    return config


def check_same_tokenizer(teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> None:
    """Refuse a student whose tokens mean something else than the teacher's, even if the vocabularies are equally large.

    Raises:
        UserError: naming the first tokens, special tokens or text that differ.
    """
    if problem := _difference(teacher, student):
        raise UserError(
            f"Teacher and student do not share a tokenizer: {problem}. "
            "Start the student with --init random or layers, which give it the teacher's tokenizer."
        )


def _difference(teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> str | None:
    ours, theirs = teacher.get_vocab(), student.get_vocab()
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if differing:
        shown = ", ".join(f"{token!r} ({ours.get(token, 'none')} and {theirs.get(token, 'none')})" for token in differing[:3])
        return f"they differ in {len(differing)} tokens, first {shown}"
    if teacher.special_tokens_map != student.special_tokens_map:
        return f"the special tokens are {teacher.special_tokens_map} and {student.special_tokens_map}"
    for rule, other in zip_longest(_rules(teacher), _rules(student)):
        if not _same_rule(rule, other):
            return f"they put tokens together by other rules, first {rule} and {other}"
    sample = "A Café, über ﬁne Ünïcode TEXT\u00a0– 東京 it's"
    if teacher.tokenize(sample) != student.tokenize(sample):
        return f"{sample!r} becomes {teacher.tokenize(sample)} and {student.tokenize(sample)}"
    return None


def _rules(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """What decides between equal vocabularies: a BPE's merges, or a Unigram's pieces with their scores."""
    if not tokenizer.is_fast:
        return []
    model: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if model["type"] == "Unigram":
        return list(model["vocab"])
    return list(model.get("merges", []))


def _same_rule(rule: Any, other: Any) -> bool:
    """Whether two merges, or two pieces with their scores, are equal; saving may change a score's last digit."""
    if rule is None or other is None or isinstance(rule[1], str):
        return bool(rule == other)
    return bool(rule[0] == other[0] and math.isclose(rule[1], other[1], rel_tol=1e-6))


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


def _config(folder: Path) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json ({contents(folder)}); give the folder of a Hugging Face encoder.")
    _check_kind(folder / "config.json")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of a file that anyone may have written
        raise UserError(f"{folder / 'config.json'} cannot be read as a model configuration: {one_line(error)}") from error
    config.dtype = torch.float32
    return _for_features(config, folder)


def _check_kind(file: Path) -> None:
    """Refuse code of a folder's own, and families that not even transformers knows, of which it speaks at length.

    Raises:
        UserError: with what is supported, or a file that cannot be read.
    """
    fields = read_json(file)
    if not isinstance(fields, dict):
        raise UserError(f"{file} cannot be read as a model configuration: it holds no fields.")
    code = fields.get("auto_map")
    # Code for a task's head alone leaves the encoder what it is.
    if isinstance(code, dict) and code.keys() & {"AutoConfig", "AutoModel"}:
        raise UserError(f"{file} asks for code of its own (auto_map), which is never run; {supported_families()}.")
    kind = fields.get("model_type")
    if "model_type" in fields and not (isinstance(kind, str) and kind in CONFIG_MAPPING):
        raise UserError(f"Encoders of type {kind!r} are not supported; {supported_families()}.")


def _model_of(config: PretrainedConfig, folder: Path) -> PreTrainedModel:
    """A model for a checkpoint's weights, whose own are not set yet."""
    try:
        with no_init_weights():
            model: PreTrainedModel = AutoModel.from_config(config)
    except Exception as error:  # likewise
        raise UserError(f"{folder / 'config.json'} describes no model that can be built: {one_line(error)}") from error
    model.eval()
    return model


def _fill_pooler(model: PreTrainedModel, family: Family) -> None:
    """Random weights for a pooler that the checkpoint lacks, but always the same."""
    with _seeded(0):
        for module in model.get_submodule(family.pooler).modules():
            model._init_weights(module)


def _weights(folder: Path, model: PreTrainedModel, family: Family) -> dict[str, Tensor]:
    """A checkpoint's weights by the encoder's own names, without those of layers that were left out."""
    if get_checkpoint_conversion_mapping(model.config.model_type):
        return _converted_weights(folder, model)
    prefix = model.base_model_prefix
    left_out = tuple(
        f"{family.layers}.{name}."
        for name, layer in model.get_submodule(family.layers).named_children()
        if isinstance(layer, LeftOut)
    )
    read = read_weights(folder, lambda key: not encoder_key(key, prefix).startswith(left_out))
    return encoder_keys(read, prefix)


def _converted_weights(folder: Path, model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of a family whose checkpoints may have parts under other names or in one piece, as transformers reads them."""
    read_weights(folder, lambda _: False)  # for its refusals
    loader: Any = type(model)
    try:
        with no_progress_bars():
            loaded, info = loader.from_pretrained(folder, config=model.config, output_loading_info=True)
    except Exception as error:  # whatever transformers makes of a file that anyone may have written
        raise UserError(f"The weights in {folder} cannot be loaded: {one_line(error)}") from error
    wanted = model.state_dict().keys() - set(info["missing_keys"])
    return {name: weight for name, weight in loaded.state_dict().items() if name in wanted}


def _for_features(config: PretrainedConfig, folder: Path) -> PretrainedConfig:
    """Refuse what is no plain encoder, and undo settings that only change what a forward pass returns.

    Raises:
        UserError: a decoder, no layers, or quantised weights.
    """
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise UserError(f"{folder} holds a decoder (is_decoder or add_cross_attention in config.json); give an encoder.")
    if config.num_hidden_layers < 1:
        raise UserError(f"{folder} holds no Transformer layers (num_hidden_layers in config.json); give an encoder.")
    if min(config.hidden_size, config.num_attention_heads) < 1:
        raise UserError(f"{folder} has no width or no attention heads (config.json); give an encoder.")
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"{folder} holds quantised weights; give the model they were made from.")
    if getattr(config, "num_hidden_groups", 1) != 1 or getattr(config, "inner_group_num", 1) != 1:
        raise UserError(f"{folder} shares its layers in groups (config.json); only one layer for all is supported.")
    config.output_attentions = False
    config.output_hidden_states = False
    config.return_dict = True
    config.chunk_size_feed_forward = 0
    return config


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        source: as in `load_encoder`; a folder that holds a tokenizer alone will do.

    Raises:
        UserError: no such folder, or no tokenizer in it.
    """
    return _tokenizer(model_folder(str(source)))


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of a file that anyone may have written
        needed = "" if (folder / "tokenizer.json").is_file() else "; put a tokenizer.json there, which needs no other package"
        raise UserError(f"{folder} has no tokenizer that can be read: {one_line(error)}{needed}") from error
    files = tokenizer.vocab_files_names.values()
    if not any((folder / name).is_file() for name in files):  # transformers then invents one that knows no word
        raise UserError(f"{folder} holds no tokenizer ({' or '.join(files)}); put the model's own there.")
    return tokenizer


def _check_ids(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, family: Family, folder: Path) -> None:
    """Refuse a tokenizer whose ids are not those that the model was trained with.

    Raises:
        UserError: ids without an embedding, or another padding id where positions are counted from it.
    """
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= config.vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has ids up to {highest}, but the model has only {config.vocab_size} embedding "
            "rows; they do not belong together."
        )
    if family.positions_after_padding and (config.pad_token_id is None or config.pad_token_id != tokenizer.pad_token_id):
        raise UserError(
            f"The tokenizer in {folder} pads with id {tokenizer.pad_token_id}, but pad_token_id in config.json, from which "
            f"{config.model_type} counts its positions, is {config.pad_token_id}; put the model's own tokenizer and config "
            "there."
        )


def new_encoder(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> Encoder:
    """A randomly initialised encoder in evaluation mode; the seed alone decides its weights."""
    model = _random_model(config, seed)
    return Encoder(model, tokenizer, "random", Origin(random=matrices(model)))


def _random_model(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    with _seeded(seed):
        model: PreTrainedModel = AutoModel.from_config(config)
    model.eval()
    return model


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers by a seed; the process's own stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs as well
        yield
