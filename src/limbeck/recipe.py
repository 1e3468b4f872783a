"""The typed recipe: what a run is. Its fields are the flags of the command line and the arguments in Python."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from limbeck._settings import Number, Spelling, WholeNumber, described, no_duplicates, settings
from limbeck.encoders.shape import StudentShape
from limbeck.errors import UserError
from limbeck.objectives import AnyObjective, MiniLMv2

T = TypeVar("T")

PositiveInt = Annotated[WholeNumber, Field(ge=1)]


def _paths(value: object) -> object:
    if isinstance(value, str | Path):
        value = [value]
    return [str(path) if isinstance(path, Path) else path for path in value] if isinstance(value, list | tuple) else value


def listed_text(value: object) -> object:
    """Several words; a single one may hold several with commas between them, as on a command line."""
    values = [value] if isinstance(value, str | int) and not isinstance(value, bool) else value
    if not isinstance(values, list | tuple):
        return values
    return [part.strip() for part in str(values[0]).split(",")] if len(values) == 1 else [str(each) for each in values]


def _one_or_several(value: object) -> object:
    """A single shape as it is, several as a list."""
    shapes = listed_text(value)
    return shapes[0] if isinstance(shapes, list) and len(shapes) == 1 else shapes


def _shapes(given: str | list[str]) -> str | list[str]:
    if not given:
        raise ValueError("give at least one shape, such as 6x384")
    for shape in [given] if isinstance(given, str) else no_duplicates(given):
        StudentShape.parse(shape)
    return given


def _assistants(text: str) -> str:
    if text not in ("none", "auto"):
        for shape in text.split(","):
            StudentShape.parse(shape)
    return text


def _utf8(value: object) -> object:
    text = str(value) if isinstance(value, Path) else value
    if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"the name {text!r} is not UTF-8, as recipe files are; give it another")
    return text


def _share(value: object) -> object:
    return value if isinstance(value, bool) or not isinstance(value, Real) else str(value)


def _home(text: str) -> str:
    try:
        Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home directory {Path(text).parts[0]}") from None
    return text


Text = Annotated[
    str,
    Field(min_length=1),
    AfterValidator(_home),
    BeforeValidator(_utf8),
]
Holdout = Annotated[Text, BeforeValidator(_share)]
Paths = Annotated[list[Text], BeforeValidator(_paths)]
Tracker = Literal["tensorboard", "wandb", "trackio"]


@settings
class Recipe:
    """One distillation: a teacher, a student, an objective, text, and how to train."""

    teacher: Text
    """folder (or hub name) of the encoder that is mimicked"""
    corpus: Annotated[Paths, Field(min_length=1)]
    """text, JSON lines or Parquet, each also .gz or .zst, folders of them, saved data sets, what limbeck prepare wrote, or
    datasets:NAME; in text a line is a unit and blank lines separate documents"""
    corpus_weights: Annotated[list[Annotated[Number, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)] | None = None
    """share of the tokens that comes of each corpus, in proportion; without it each text is seen once an epoch"""
    corpus_alpha: Annotated[Number, Field(ge=0, le=1)] | None = None
    """weigh each corpus by its size to this power, as for languages: 1 as large as they are, 0 all alike"""
    text_column: Annotated[str, Field(min_length=1)] = "text"
    """where the text stands in JSON lines, Parquet and data sets"""
    student: Annotated[str | list[str], BeforeValidator(_one_or_several), AfterValidator(_shapes)]
    """the student's shape, LAYERSxWIDTH[:FEED_FORWARD][/HEADS], such as 6x384; several students learn from one pass of the
    teacher"""
    objective: AnyObjective = MiniLMv2()
    """what is mimicked, and its loss"""
    init: Text = "random"
    """the student's first weights: random, layers, layers:1,3,6 (of the teacher) or the folder of an earlier student"""
    family: Text = "auto"
    """the student's family, such as bert or modernbert; auto: the teacher's, or that of the earlier student"""
    tail: Literal["keep", "teacher", "identity", "hidden"] = "keep"
    """what becomes of the last layer behind the queries, keys and values that are read; keep: it stays as it began; teacher:
    it is copied from the mimicked layer; identity: it passes its input on; hidden: it is trained by a small extra term"""
    assistant: Annotated[str, AfterValidator(_assistants)] = "none"
    """shape of an assistant that learns from the teacher and teaches the student, such as 12x384, or several with commas
    between them; auto: teacher's depth and student's width where the student has at most half of both; none"""
    max_length: Annotated[WholeNumber, Field(ge=8)] = 128
    """tokens in a sequence, special tokens included"""
    packing: Literal["auto", "full", "pairs", "single"] = "auto"
    """full: units fill sequences; pairs: the same, split in two segments; single: a unit a sequence; auto: pairs where the
    teacher has two segments, else full"""
    long_fraction: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """share of the tokens that is packed to the model's full length, so that positions beyond max_length are trained"""
    batch_size: PositiveInt = 32
    """sequences in an optimiser step, over all processes"""
    micro_batch_size: PositiveInt | Literal["auto"] = "auto"
    """sequences in one forward pass of a process; auto: the process's whole share of the batch, or as many as memory holds"""
    steps: PositiveInt | None = None
    """optimiser steps; give one of steps, tokens and epochs"""
    tokens: PositiveInt | None = None
    """about how many real tokens to train on, in whole steps"""
    epochs: Annotated[Number, Field(gt=0, allow_inf_nan=False)] | None = None
    """passes over the corpus (1 if nothing is said)"""
    learning_rate: Annotated[Number, Field(gt=0, allow_inf_nan=False)] = 6e-4
    """the highest learning rate, reached after the warm-up"""
    warmup: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """share of the steps over which the learning rate rises; it falls linearly to zero afterwards"""
    weight_decay: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 0.01
    """decoupled weight decay, not on biases and norms"""
    adam_beta2: Annotated[Number, Field(gt=0, lt=1)] = 0.999
    """how slowly Adam forgets squared gradients: its second beta"""
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    """dropout of the student's hidden states and attention during training"""
    gradient_checkpointing: bool = False
    """whether the student's layers are computed once more in the backward pass, instead of being kept: less memory, more time"""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """number format of the matrix products; auto: bf16 where a short probe finds it faster"""
    compile: Literal["auto", "always", "never"] = "auto"
    """whether torch.compile makes the layers' code; auto: in bf16 or on a GPU, where training is long and a short probe finds it
    faster"""
    teacher_cache: Literal["auto", "always", "never"] = "auto"
    """whether what the teacher says of a sequence is kept in the cache, rounded to bf16, for later epochs and other runs; auto:
    in precision bf16, where it is there already or reading it is faster than asking, and takes at most half of the free disk"""
    holdout: Holdout | None = None
    """text kept out of training, whose loss is reported: a file, or a share of the corpus such as 0.02"""
    eval_every: PositiveInt | None = None
    """steps between two evaluations on the held-out text; the end is always evaluated"""
    checkpoint_every: PositiveInt | None = None
    """steps between two checkpoints that --resume can go on from"""
    keep_checkpoints: PositiveInt = 2
    """newest checkpoints that are kept; an older one stands in should the newest be damaged"""
    keep_best: bool = False
    """also keep the student of the evaluation with the lowest held-out loss, in RUN/best"""
    log_every: PositiveInt = 10
    """steps between two lines of the log"""
    trackers: Annotated[list[Tracker], AfterValidator(no_duplicates)] = Field(default_factory=list)
    """where the log goes besides log.jsonl: tensorboard, wandb, trackio"""
    seed: Annotated[WholeNumber, Field(ge=0, lt=2**63)] = 0
    """decides random weights, the order of the examples and dropout"""

    def __post_init__(self) -> None:
        """Check what concerns several fields."""
        given = [name for name in ("steps", "tokens", "epochs") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} were given; give one of steps, tokens and epochs")
        if self.corpus_weights is not None and len(self.corpus_weights) != len(self.corpus):
            raise ValueError(
                f"{len(self.corpus)} corpora were given, but {len(self.corpus_weights)} corpus_weights; give one each"
            )
        if self.corpus_weights is not None and self.corpus_alpha is not None:
            raise ValueError("corpus_weights and corpus_alpha were given; give one of them")
        if self.holdout is not None and (share := holdout_share(self.holdout)) is not None and not 0 < share <= 0.5:
            raise ValueError(f"a held-out share of {share} was asked for; it must lie above 0 and at most at 0.5")
        if self.keep_best and (self.holdout is None or self.eval_every is None):
            raise ValueError("the best student is known only by evaluations; give holdout and eval_every with keep_best")
        if len(self.students) > 1 and self.assistant != "none":
            raise ValueError("an assistant teaches one student; give one student, or no assistant")

    @property
    def students(self) -> list[str]:
        """The shapes of all students."""
        return [self.student] if isinstance(self.student, str) else self.student

    @property
    def shape(self) -> StudentShape:
        """The shape of the one student."""
        (student,) = self.students
        return StudentShape.parse(student)

    @property
    def named_family(self) -> str | None:
        """The student's family if it was named."""
        return None if self.family == "auto" else self.family


def holdout_share(holdout: str) -> float | None:
    """The share that `Recipe.holdout` asks for; None if it names a file."""
    try:
        return float(holdout)
    except ValueError:
        return None


def validate(kind: type[T], values: Mapping[str, Any], spell: Spelling = ".".join) -> T:
    """Build settings from plain values, such as a YAML file's or a command line's.

    Args:
        kind: the class of settings.
        values: field -> value; text is understood as on a command line ("48", "1e-4").
        spell: turns a setting's place into the word the user knows it by.

    Raises:
        UserError: a value is missing, unknown or not what it should be.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        raise described(error, kind, values, spell) from None


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands in a mapping twice, of which YAML would silently drop one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[object, int] = {}
        for key, _ in node.value:
            name, mark = (key.tag, str(key.value)), key.start_mark
            if name in lines:
                raise yaml.MarkedYAMLError(problem=f"{key.value} was given in line {lines[name]} already", problem_mark=mark)
            lines[name] = mark.line + 1
        return node


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields that a YAML file sets.

    Raises:
        UserError: no such file, no YAML, a field given twice (naming the line), or no mapping of fields.
    """
    try:
        fields = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
    except OSError as error:
        raise UserError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise UserError(f"{path}{line}: {error.problem or error.context}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"The recipe {path} is no YAML that can be read: {' '.join(str(error).split())}") from error
    if not isinstance(fields, dict):
        raise UserError(f"The recipe {path} holds no fields; write lines such as 'student: 6x384'.")
    if unnamed := [key for key in fields if not isinstance(key, str)]:
        raise UserError(f"{path}: {unnamed[0]!r} is no name of a setting.")
    return fields


def read_value(text: str) -> Any:
    """A field's value as a recipe file would have it in a line: 48, yes, [a.txt, b.txt]; what is no YAML as it stands."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):
        return text


def write_recipe(recipe: Any) -> str:
    """The recipe as YAML that `read_recipe` reads."""
    return yaml_text(plain(recipe))


def yaml_text(fields: dict[str, Any]) -> str:
    """Plain values as YAML, in their order."""
    text: str = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    return text


def plain(recipe: Any) -> dict[str, Any]:
    """The fields of a recipe as plain values."""
    fields: dict[str, Any] = TypeAdapter(type(recipe)).dump_python(recipe, mode="json")
    return fields
