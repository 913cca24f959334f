"""What a program's own code computes that autograd calls in a backward: hooks, and backwards of
functions of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from dovetail_prims.graphs.late_reads import LateRead, check


@dataclass(frozen=True)
class GraphInBackward:
    """A graph of gradients and of what it takes besides, and what it has read outside of it.

    Code that asks for the mode of gradients, or sets it, does something else where autograd records
    the backward itself (`create_graph=True`): then that is `recording`, a graph that takes the same
    and maybe more. `graph` takes the first `count` of what is taken.
    """

    graph: GraphModule
    count: int
    reads: tuple[LateRead, ...] = ()
    recording: GraphModule | None = None

    def run(self, gradients: Sequence[Any], taken: Sequence[Any]) -> Any:
        """The results, in the mode of gradients that holds."""
        check(self.reads)
        if self.recording is not None and torch.is_grad_enabled():
            return self.recording(*gradients, *taken)
        return self.graph(*gradients, *taken[: self.count])


__all__ = ["GraphInBackward"]
