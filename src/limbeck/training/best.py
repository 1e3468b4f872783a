"""Which evaluation of a run was the best so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Direction = Literal["lowest", "highest"]


@dataclass(frozen=True)
class Best:
    """The best value of a metric so far, and the step it belongs to."""

    direction: Direction = "lowest"
    """Which value is the best one."""
    value: float | None = None
    """None before the first evaluation: any finite value beats it, negative ones and zero included."""
    step: int | None = None

    def after(self, value: float, step: int) -> Best:
        """The best after one more evaluation; the record itself if the value is not better, or not finite."""
        if not math.isfinite(value) or (self.value is not None and not self._beats(value, self.value)):
            return self
        return replace(self, value=value, step=step)

    def _beats(self, value: float, other: float) -> bool:
        return value < other if self.direction == "lowest" else value > other
