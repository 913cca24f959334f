"""What a joint graph tells of the cost of eager's calls: about as many calls of simple operators,
those of the backward included, whatever they are decomposed to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot import trace_joint
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor, fx

COSTS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "one call each": (torch.exp, 2),
    "a backward that gives the gradient on": (lambda x: torch.add(x, x), 2),  # (and adds it up)
    "two in the backward": (torch.sin, 3),
    "decomposed": (lambda x: torch.softmax(x, -1), 2),
    "views": (torch.sum, 2),
    "a number": (lambda x: torch.add(x, 1), 3),
    "numbers in the backward": (torch.sqrt, 5),
    "a write in the backward": (lambda x: x.max(-1)[0], 5),
    "slow to begin": (F.gelu, 8),
}


@pytest.mark.parametrize("name", COSTS)
def test_of_an_operator(name: str) -> None:
    function, cost = COSTS[name]
    graph = fx.Graph()
    graph.output((graph.call_function(function, (graph.placeholder("x"),)),))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    x = torch.rand(4, 4, requires_grad=True)
    for table in (None, core_aten_table()):
        assert trace_joint(gm, [x], decompositions=table).eager_cost == cost
