"""The objective's loss on held-out text."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import nn

from limbeck.data.batches import Source, on_device
from limbeck.training.best import Direction
from limbeck.training.stage import Evaluation, Stage, mean


@dataclass(frozen=True)
class HeldOut(Evaluation):
    """Text that the student is not trained on."""

    source: Source
    prefix: str = "holdout"
    metric: str = "loss"
    direction: Direction = "lowest"
    said: str = "held-out loss"

    def __len__(self) -> int:
        return len(self.source)

    @property
    def fingerprint(self) -> str:
        """A hash of the text."""
        return self.source.fingerprint

    def turns(
        self, stage: Stage, module: nn.Module, accelerator: Accelerator, batch_size: int
    ) -> Generator[None, None, dict[str, float]]:
        """The objective's terms over the text, and their weighted sum as "loss"."""
        training = module.training
        module.eval()
        weights, device = stage.weights, accelerator.device
        sums = {term: torch.zeros((), device=device) for term in weights}
        counts = {term: torch.zeros((), device=device) for term in weights}
        for number, examples in enumerate(self.source.in_order(batch_size)):
            if number % accelerator.num_processes != accelerator.process_index:
                continue
            batch = on_device(self.source.collate(examples), device)
            yield
            count = stage.module.counts(batch)
            with torch.no_grad():
                terms = module(batch, stage.targets(batch))
            sums = {term: total + terms[term] for term, total in sums.items()}
            counts = {term: total + count[term] for term, total in counts.items()}
        module.train(training)
        means = {
            term: float(mean(accelerator.reduce(sums[term], "sum"), accelerator.reduce(counts[term], "sum"))) for term in weights
        }
        return {"loss": sum(weights[term] * value for term, value in means.items()), **means}
