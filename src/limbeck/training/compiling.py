"""Whether the layers of teacher and student run compiled: decided by trying it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from limbeck.encoders.compiled import compile_layers, compile_no_more
from limbeck.text import one_line
from limbeck.training.stage import PROBE_SEQUENCES, Stage
from limbeck.training.trial import trial_seconds

WORTH = 600.0
"""Seconds that training must take for compiling to be tried unasked; it takes up to a few minutes itself."""


def decide_compiling(
    asked: Literal["auto", "always", "never"], stage: Stage, examples: int, *, bf16: bool, say: Callable[[str], None]
) -> Literal["always", "never"]:
    """Decide whether `compile_stage` is to be called before training.

    On a processor in float32, where nearly all time goes to matrix products, it was measured to gain nothing
    (docs/speed.md), and is done only if it is asked for.

    Args:
        asked: always: wherever it can be done; auto: where training is long and was found to be faster by it.
        stage: as in `trial_seconds`.
        examples: that are to be trained on.
        bf16: whether the student's matrix products are in bf16.
        say: hears what takes its time, and why layers that were to be compiled are not.
    """
    on_processor = next(stage.module.parameters()).device.type == "cpu"
    if asked == "never" or (asked == "auto" and on_processor and not bf16):
        return "never"
    plain = trial_seconds(stage, bf16=bf16)
    if asked == "auto" and plain * examples / PROBE_SEQUENCES < WORTH:
        return "never"
    say("trying torch.compile, which takes a minute or two")
    parts = compile_stage(stage)
    try:
        compiled = trial_seconds(stage, bf16=bf16)
    except Exception as error:  # torch, its compiler and the system's fail in many ways
        say(f"warning: the layers run as they are, since torch.compile failed: {one_line(error)}")
        return "never"
    finally:
        compile_no_more(parts)
    return "always" if asked == "always" or compiled < plain else "never"


def compile_stage(stage: Stage) -> list[nn.Module]:
    """Let the layers of student and teacher run compiled; returns what was compiled."""
    teacher = [] if stage.teacher is None else compile_layers(stage.teacher.model)
    return [*compile_layers(stage.module.student), *teacher]
