"""What an encoder is, and what can be distilled from it: `limbeck describe`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import AutoModel, PretrainedConfig, PreTrainedTokenizerBase

from limbeck.encoders.configuration import student_config
from limbeck.encoders.cost import Parameters, count_parameters, layer_flops, weight_bytes
from limbeck.encoders.families import FAMILIES
from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.errors import UserError
from limbeck.kernels.heads import common_divisors
from limbeck.objectives import METHODS
from limbeck.objectives.base import Mimicry
from limbeck.progress import printer
from limbeck.text import count, millions, several

USUAL = ("12x384", "6x768", "6x384", "4x384", "3x384")
"""Students of the papers, and one that is quick to make."""
SENTENCE = 128
"""Tokens of the sequence whose operations are compared."""


@dataclass(frozen=True)
class TokenizerFacts:
    """How text becomes tokens."""

    kind: str
    """WordPiece, BPE, Unigram, or the class of a tokenizer that is none of them."""
    tokens: int
    lower_case: bool


@dataclass(frozen=True)
class Match:
    """What an objective says of this teacher and one student."""

    objective: str
    student: str
    """The whole shape: heads follow from the objective."""
    settings: dict[str, Any] | None
    """Its settings with every "auto" decided; None if it cannot be applied."""
    text: str
    """The same for a person, or why it cannot be applied."""


@dataclass(frozen=True)
class StudentFacts:
    """A student that is usual and smaller than the teacher."""

    shape: str
    parameters: int
    parameter_share: float
    """Of the teacher's."""
    flops_share: float
    """Of the teacher's operations for a sequence, the embedding left out."""


@dataclass(frozen=True)
class Description:
    """An encoder, as a teacher."""

    source: str
    shape: EncoderShape
    tokenizer: TokenizerFacts
    parameters: Parameters
    pooler_trained: bool
    megabytes: float
    """Weights in float32, 10^6 bytes."""
    relation_heads: list[int]
    """Numbers of relation heads that divide the widths of queries, keys and values."""
    equal_head_widths: list[int]
    """Widths of students that can have as many attention heads as the teacher."""
    families: list[str]
    """Of students with this teacher's tokenizer: what --family may say."""
    students: list[StudentFacts]
    matches: list[Match]
    """Every objective with every student."""


def describe(model: str | Path) -> Description:
    """Describe an encoder and what each objective can do with it as a teacher.

    Args:
        model: folder (or hub name) of an encoder.

    Raises:
        UserError: no such model, a family that is not supported, or weights that are not whole.
    """
    encoder = load_encoder(model)
    config, shape = encoder.model.config, encoder.shape
    parameters = count_parameters(encoder.model)
    students = _usual_students(shape)
    return Description(
        source=encoder.source,
        shape=shape,
        tokenizer=_tokenizer_facts(encoder.tokenizer),
        parameters=parameters,
        pooler_trained=encoder.pooler_trained,
        megabytes=weight_bytes(parameters.total) / 1e6,
        relation_heads=common_divisors(*map(shape.feature_width, "qkv")),
        equal_head_widths=list(range(shape.heads, shape.width + 1, shape.heads)),
        families=_families(encoder),
        students=[_student_facts(student, config, parameters.total) for student in students],
        matches=[_match(method(), student, config) for method in METHODS for student in students],
    )


def _families(teacher: Encoder) -> list[str]:
    """The families in the table whose students can have this teacher's tokenizer."""
    small, config = StudentShape(1, 64, heads=1), teacher.model.config
    possible = []
    for name in (name for family in FAMILIES for name in family.model_types):
        with suppress(UserError):
            student_config(small, config, family=name, tokenizer=teacher.tokenizer)
            possible.append(name)
    return possible


def _usual_students(teacher: EncoderShape) -> list[StudentShape]:
    """The usual students that are smaller than the teacher; half its layers where none is."""
    shapes = [StudentShape.parse(text) for text in USUAL]
    smaller = [
        shape
        for shape in shapes
        if shape.layers <= teacher.layers
        and shape.width <= teacher.width
        and (shape.layers, shape.width) != (teacher.layers, teacher.width)
    ]
    return smaller or [StudentShape(max(1, teacher.layers // 2), teacher.width)]


def _student_facts(student: StudentShape, teacher: PretrainedConfig, parameters: int) -> StudentFacts:
    config = _allowed_config(student, teacher)
    with torch.device("meta"):
        number = count_parameters(AutoModel.from_config(config)).total
    ours, theirs = EncoderShape.of(config), EncoderShape.of(teacher)
    return StudentFacts(f"{student.layers}x{student.width}", number, number / parameters, _flops(ours) / _flops(theirs))


def _allowed_config(student: StudentShape, teacher: PretrainedConfig) -> PretrainedConfig:
    """The student's configuration; where neither usual number of heads divides its width, with one head."""
    try:
        return student_config(student, teacher)
    except UserError:
        return student_config(replace(student, heads=1), teacher)


def _flops(shape: EncoderShape) -> int:
    return shape.layers * layer_flops(shape, 1, SENTENCE)


def _match(objective: Mimicry, student: StudentShape, teacher: PretrainedConfig) -> Match:
    """Ask an objective what it makes of a pair of encoders."""
    shape = f"{student.layers}x{student.width}"
    try:
        ours = EncoderShape.of(student_config(student, teacher, teacher_heads=objective.equal_heads))
        shape = str(ours)
        resolved = objective.resolve(EncoderShape.of(teacher), ours)
    except UserError as error:
        return Match(objective.name, shape, None, str(error))
    return Match(objective.name, shape, asdict(resolved), str(resolved).removeprefix(f"{resolved.name}, "))  # type: ignore[call-overload]


def _tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> TokenizerFacts:
    if not tokenizer.is_fast:
        lower_case = tokenizer.tokenize("A") == tokenizer.tokenize("a")
        return TokenizerFacts(type(tokenizer).__name__, len(tokenizer), lower_case)
    backend = tokenizer.backend_tokenizer
    normalizer = backend.normalizer
    lower_case = normalizer is not None and normalizer.normalize_str("A") == normalizer.normalize_str("a")
    return TokenizerFacts(type(backend.model).__name__, len(tokenizer), lower_case)


def show_description(description: Description) -> None:
    """Print a description for a person."""
    console = printer()
    console.print(_facts(description))
    console.print(_students(description))
    console.print(_objectives(description))


def _facts(description: Description) -> Table:
    shape, parameters, tokenizer = description.shape, description.parameters, description.tokenizer
    head = "no pooler" if not parameters.pooler else f"pooler {'trained' if description.pooler_trained else 'untrained'}"
    table = _grid()
    for name, text in (
        ("source", description.source),
        ("encoder", f"{shape.model_type}, {shape.layers} layers of {shape.heads} heads, {head}"),
        ("widths", f"hidden {shape.width}, feed-forward {shape.feed_forward}"),
        (
            "input",
            f"{count(shape.positions)} positions, {several(shape.segments, 'segment')}, "
            f"{count(shape.vocabulary)} vocabulary rows",
        ),
        (
            "tokenizer",
            f"{tokenizer.kind}, {count(tokenizer.tokens)} tokens, {'lower-casing' if tokenizer.lower_case else 'case kept'}",
        ),
        (
            "parameters",
            f"{millions(parameters.total)} (embedding {millions(parameters.embedding)}, transformer "
            f"{millions(parameters.transformer)}, pooler {millions(parameters.pooler)}), "
            f"{description.megabytes:.1f} MB in float32",
        ),
        ("relation heads", ", ".join(map(str, description.relation_heads))),
        ("families", f"--family {', '.join(description.families)}"),
        ("equal heads", f"students whose width is a multiple of {shape.heads}, up to {description.equal_head_widths[-1]}"),
    ):
        table.add_row(name, text)
    return table


def _students(description: Description) -> Table:
    table = Table(title="Usual students", title_justify="left")
    table.add_column("shape", no_wrap=True)
    for heading in ("parameters", "of the teacher's", "operations"):
        table.add_column(heading, justify="right", no_wrap=True)
    for student in description.students:
        table.add_row(student.shape, millions(student.parameters), f"{student.parameter_share:.0%}", f"{student.flops_share:.0%}")
    return table


def _objectives(description: Description) -> Table:
    """Objectives with what they decide; students of which the same is said stand together."""
    table = Table(title="What each objective can do with it", title_justify="left", show_lines=True)
    table.add_column("objective", no_wrap=True)
    table.add_column("students")
    table.add_column("settings, or why not")
    answers: dict[tuple[str, str], list[Match]] = {}
    for match in description.matches:
        said = match.text.replace(match.student, "")  # a refusal may repeat the shape
        answers.setdefault((match.objective, said), []).append(match)
    for (objective, _), matches in answers.items():
        refused = "" if matches[0].settings is not None else "not possible: "
        table.add_row(objective, ", ".join(match.student for match in matches), refused + matches[0].text)
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table
