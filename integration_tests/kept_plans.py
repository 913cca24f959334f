"""Our backend, with the plans of what it compiled at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail_runtime import CompiledArtifact
from dovetail_runtime.plan import Plan
from torch.fx import GraphModule

import dovetail
from dovetail.pipeline import CompilerBackend


class KeepingPlans(CompilerBackend):
    """Keeps plans, which go with the compiled code otherwise."""

    def __init__(self) -> None:
        super().__init__(dovetail.Options())
        self.plans: list[Plan] = []

    def compile_functional(
        self, gm: GraphModule, example_inputs: Sequence[Any], place: str = "", label: str = ""
    ) -> CompiledArtifact:
        artifact = super().compile_functional(gm, example_inputs, place, label)
        self.plans.append(artifact.plan)
        return artifact
