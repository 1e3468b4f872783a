"""Limbeck distils large Transformer encoders into small, fast students: MiniLM, MiniLMv2 and their kin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limbeck import kernels
from limbeck._lazy import attach

if TYPE_CHECKING:
    from limbeck.data.corpora import prepare
    from limbeck.encoders.capture import capture
    from limbeck.errors import UserError
    from limbeck.objectives.minilm import MiniLM
    from limbeck.objectives.minilmv2 import MiniLMv2
    from limbeck.recipe import Recipe
    from limbeck.stages import StagedRecipe
    from limbeck.studies.describe import Description, describe
    from limbeck.studies.evaluate import evaluate
    from limbeck.tasks.finetune import finetune, run_finetuning
    from limbeck.tasks.recipe import FineTuning
    from limbeck.training.distill import distill, forecast, forecasts, run, run_recipe
    from limbeck.training.forecast import Forecast
    from limbeck.training.run import Run

__all__ = [
    "Description",
    "FineTuning",
    "Forecast",
    "MiniLM",
    "MiniLMv2",
    "Recipe",
    "Run",
    "StagedRecipe",
    "UserError",
    "capture",
    "describe",
    "distill",
    "evaluate",
    "finetune",
    "forecast",
    "forecasts",
    "kernels",
    "prepare",
    "run",
    "run_finetuning",
    "run_recipe",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted(__all__)


__getattr__ = attach(
    __name__,
    {
        "Description": "limbeck.studies.describe",
        "FineTuning": "limbeck.tasks.recipe",
        "Forecast": "limbeck.training.forecast",
        "MiniLM": "limbeck.objectives.minilm",
        "MiniLMv2": "limbeck.objectives.minilmv2",
        "Recipe": "limbeck.recipe",
        "Run": "limbeck.training.run",
        "StagedRecipe": "limbeck.stages",
        "UserError": "limbeck.errors",
        "capture": "limbeck.encoders.capture",
        "describe": "limbeck.studies.describe",
        "distill": "limbeck.training.distill",
        "evaluate": "limbeck.studies.evaluate",
        "finetune": "limbeck.tasks.finetune",
        "forecast": "limbeck.training.distill",
        "forecasts": "limbeck.training.distill",
        "prepare": "limbeck.data.corpora",
        "run": "limbeck.training.distill",
        "run_finetuning": "limbeck.tasks.finetune",
        "run_recipe": "limbeck.training.distill",
    },
)
