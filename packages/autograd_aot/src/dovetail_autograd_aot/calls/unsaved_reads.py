"""What a backward takes for granted that it does not save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail_prims.late_reads import LateRead, check, check_version
from torch import Tensor


@dataclass(frozen=True)
class LateNeeds:
    """What the backward of a user takes for granted when it runs: what it `reads` outside of the
    graph, and the data of `inputs` and `outputs` of the graph that are not saved."""

    reads: tuple[LateRead, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reads or self.inputs or self.outputs)

    def remember(self, inputs: Sequence[Any]) -> list[tuple[Tensor, int]]:
        """The inputs at the time of the forward, with their versions."""
        return [(inputs[i], inputs[i]._version) for i in self.inputs]

    def remember_outputs(self, context: Any, outputs: Sequence[Any]) -> None:
        """The outputs, once nothing is written to them any more."""
        if self.outputs:
            given = (outputs[i] for i in self.outputs)
            context.late += [(one.detach(), one._version) for one in given]

    def check(self, remembered: list[tuple[Tensor, int]]) -> None:
        """Raise an error if any of it has changed."""
        check(self.reads)
        for tensor, version in remembered:
            check_version(tensor, version)
