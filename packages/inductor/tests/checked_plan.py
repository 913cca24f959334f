"""What the suite's `check` gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dovetail_runtime import CallAten, LaunchCpp, Plan


@dataclass(frozen=True)
class Checked:
    """A compiled function that agreed with eager."""

    plan: Plan
    outputs: tuple[torch.Tensor, ...]

    @property
    def launches(self) -> int:
        return sum(isinstance(s, LaunchCpp) for s in self.plan.steps)

    @property
    def externs(self) -> list[str]:
        return [s.op for s in self.plan.steps if isinstance(s, CallAten)]
