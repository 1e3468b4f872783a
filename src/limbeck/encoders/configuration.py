"""A student's configuration: its shape and its family, and for all else what the teacher's says."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from limbeck.encoders.families import FAMILIES, Family, family_of, supported_families
from limbeck.encoders.shape import HEAD_WIDTHS, EncoderShape, StudentShape
from limbeck.errors import UserError
from limbeck.kernels.heads import common_divisors
from limbeck.text import nearest

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

PAPERS_HEADS = 12
"""MiniLM (section 4.1) and MiniLMv2 (section 4.1) give every student 12 attention heads."""
TASK_SETTINGS = ("architectures", "id2label", "label2id", "problem_type", "classifier_dropout")
"""What a configuration says of a task head."""
TOKENS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
"""What a configuration says of the tokenizer."""
AS_WIDE = ("embedding_size", "pooler_hidden_size")
"""Widths that a configuration may name beside that of the model, and that are the same in most."""


def student_config(
    shape: StudentShape,
    teacher: PretrainedConfig,
    *,
    family: str | None = None,
    teacher_heads: bool = False,
    cut: Sequence[int] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> PretrainedConfig:
    """The configuration of a student's encoder.

    Heads are 12 where that divides the width (as in the papers), else the teacher's; the feed-forward part is as many times as
    wide as the model as in the teacher, or as is usual in the student's family if that is another one.

    Args:
        shape: what it leaves open follows from the teacher.
        teacher: read, never changed.
        family: the student's, a value of ``config.model_type``; None: the teacher's.
        teacher_heads: whether the objective compares attention heads one by one, so that the student needs as
            many as the teacher.
        cut: the teacher's layer that each layer is like, where layers differ in what they attend to; None: by `default_cut`.
        tokenizer: the teacher's; it knows the special tokens that the configuration of another family names.

    Raises:
        UserError: the heads do not divide the width, no such family, or one whose positions cannot be counted with the
            teacher's tokenizer.
    """
    own = family is None or family == teacher.model_type
    config = copy.deepcopy(teacher) if own else _of_family(str(family), teacher, tokenizer)
    forget_task(config)
    ratio = getattr(config, family_of(config).feed_forward) / config.hidden_size
    width = config.hidden_size
    config.num_hidden_layers = shape.layers
    config.hidden_size = shape.width
    config.num_attention_heads = _heads(shape, teacher.num_attention_heads, same=teacher_heads)
    setattr(config, family_of(config).feed_forward, shape.feed_forward or round(shape.width * ratio))
    for name in AS_WIDE:
        if getattr(config, name, None) == width:
            setattr(config, name, shape.width)
    for name in HEAD_WIDTHS:
        if getattr(config, name, None):
            setattr(config, name, shape.width // config.num_attention_heads)
    _check_rotary(config)
    _set_key_value_heads(config, teacher if own else None)
    _set_layer_types(config, teacher if own else None, cut)
    return config


def default_cut(teacher_layers: int, student_layers: int) -> list[int]:
    """The teacher layers a student starts with: the first, the last, and the others spread evenly between them.

    6 of 12 gives 1, 3, 5, 8, 10, 12 as in DistilBERT, 3 of 6 gives 1, 4, 6; docs/quickstart.md compares cuts.
    """
    if student_layers == 1:
        return [teacher_layers]
    step = (teacher_layers - 1) / (student_layers - 1)
    return [int(1.5 + place * step) for place in range(student_layers)]


def forget_task(config: PretrainedConfig) -> None:
    """Take out of a configuration what an encoder by itself does not have: its task, and settings of foreign code."""
    blank = type(config)()
    for name in vars(config).keys() - vars(blank).keys() - {*family_of(config).undeclared}:
        if not name.startswith("_"):
            delattr(config, name)
    for name in TASK_SETTINGS:
        setattr(config, name, getattr(blank, name, None))


def _tokens(teacher: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, int | None]:
    """What the teacher's configuration says of its tokens, or else its tokenizer."""
    said = {name: getattr(teacher, name, None) for name in TOKENS}
    return {name: getattr(tokenizer, name, None) if value is None else value for name, value in said.items()}


def _of_family(model_type: str, teacher: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> PretrainedConfig:
    """The usual configuration of another family, with the teacher's tokens, and no more positions than either has."""
    from transformers import AutoConfig

    try:
        blank: PretrainedConfig = AutoConfig.for_model(model_type)
    except ValueError:
        meant = nearest(model_type.lower(), [name for family in FAMILIES for name in family.model_types])
        raise UserError(f"There is no family of encoders called {model_type!r}{meant or ';'} {supported_families()}.") from None
    family, ours = family_of(blank), EncoderShape.of(teacher)
    _check_padding(family, model_type, teacher)
    positions = min(ours.positions, blank.max_position_embeddings)  # of which RoBERTa's bare class has two less than its models
    for name, value in _tokens(teacher, tokenizer).items():
        if hasattr(blank, name) and not (value is None and name == "mask_token_id"):  # which EuroBERT needs to be a number
            setattr(blank, name, value)
    if getattr(blank, "type_vocab_size", None):
        blank.type_vocab_size = ours.segments
    blank.max_position_embeddings = positions + (blank.pad_token_id + 1 if family.positions_after_padding else 0)
    return blank


def _check_padding(family: Family, model_type: str, teacher: PretrainedConfig) -> None:
    padding = teacher.pad_token_id
    if family.positions_after_padding and (padding is None or family.padding not in (None, padding)):
        needed = "a padding token" if family.padding is None else f"{family.padding} as the id of the padding token"
        raise UserError(
            f"A student of type {model_type!r} counts its positions from the padding token and needs {needed}, but the teacher's "
            f"tokenizer has {padding}; choose another family."
        )


def _heads(shape: StudentShape, teacher: int, *, same: bool) -> int:
    wanted = [shape.heads] if shape.heads else [teacher] if same else [PAPERS_HEADS, teacher]
    for heads in wanted:
        if shape.width % heads == 0:
            return heads
    if same:
        raise UserError(
            f"A width of {shape.width} cannot be split into {wanted[0]} attention heads, but the student needs {teacher}, as "
            f"many as the teacher has; choose a width that is a multiple of {teacher}, or use --objective minilmv2 and "
            "--init random, which need no equal heads."
        )
    raise UserError(
        f"A width of {shape.width} cannot be split into {wanted[0]} attention heads; "
        f"write {shape.layers}x{shape.width}/HEADS with one of {', '.join(map(str, common_divisors(shape.width)))}."
    )


def _check_rotary(config: PretrainedConfig) -> None:
    width = config.hidden_size // config.num_attention_heads
    if family_of(config).scores == "rotary" and width % 2:
        raise UserError(
            f"Rotary positions turn places in pairs, but {config.num_attention_heads} heads of a width of {config.hidden_size} "
            f"are {width} wide each; ask for a number of heads that leaves an even width."
        )


def _set_key_value_heads(config: PretrainedConfig, teacher: PretrainedConfig | None) -> None:
    """Let as many heads of queries share keys and values as in the teacher, where that divides the student's heads."""
    if not hasattr(config, "num_key_value_heads"):
        return
    heads = config.num_attention_heads
    shared = 1 if teacher is None else teacher.num_attention_heads // EncoderShape.of(teacher).key_value_heads
    config.num_key_value_heads = heads if heads % shared else heads // shared


def _set_layer_types(config: PretrainedConfig, teacher: PretrainedConfig | None, cut: Sequence[int] | None) -> None:
    """Let layers attend as far as those of the teacher that they are like; in another family the last attends to all."""
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return
    layers = config.num_hidden_layers
    if teacher is None:
        config.layer_types = [*kinds[: layers - 1], "full_attention"]
    else:
        like = cut or default_cut(teacher.num_hidden_layers, layers)
        config.layer_types = [teacher.layer_types[layer - 1] for layer in like]
