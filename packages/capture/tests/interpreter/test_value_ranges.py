"""Branches on random numbers that their range decides, as layer dropout of probability 0 makes."""

from __future__ import annotations

import pytest
import torch
from dovetail_capture.api import optimize
from dovetail_capture.errors import GraphBreakError

from .programs import check


def test_a_branch_that_the_range_decides_and_the_generator_moves() -> None:
    def program(x, layerdrop):
        for _ in range(3):
            probability = torch.rand([])
            if probability < layerdrop:
                continue
            x = x * 1.5
        return x + torch.rand(2)

    (graph,) = check(program, torch.ones(2), 0.0)
    drawn = [node for node in graph.graph.nodes if node.target is torch.rand]
    assert len(drawn) == 4


def test_all_samplers_and_sides() -> None:
    def program(x):
        if 1.0 <= torch.rand(1):
            x = x - 1
        if torch.rand_like(x[0]) >= 0:
            x = x + 1
        if torch.rand(()) == 2:
            x = x * 7
        if torch.empty(1, dtype=torch.int64).random_(3, 7) > 2:
            x = x * 2
        if torch.empty((), dtype=torch.int32).random_(4) < 4:
            x = x * 3
        return x

    check(program, torch.ones(2))


@pytest.mark.parametrize("threshold", [0.5, 0.999])
def test_a_branch_that_the_range_leaves_open(threshold: float) -> None:
    def program(x):
        return x + 1 if torch.rand([]) < threshold else x

    with pytest.raises(GraphBreakError, match="branch on a tensor's value"):
        optimize(program, lambda gm, inputs: gm, fullgraph=True)(torch.ones(2))
    check(program, torch.ones(2), fullgraph=False, graphs=2)


def test_the_range_ends_with_a_change_of_the_tensor() -> None:
    def changed(x):
        drawn = torch.rand([])
        drawn.sub_(1)
        return x - 1 if drawn < 0.0 else x + 1

    def changed_by_a_view(x):
        drawn = torch.rand([])
        drawn.view(1).sub_(1)
        return x - 1 if drawn < 0.0 else x + 1

    def filled_through_a_view(x):
        drawn = torch.empty(2, dtype=torch.int64)
        part = drawn[:1]
        drawn.random_(3, 7)
        part.zero_()
        return x - 1 if drawn[:1] < 3 else x + 1

    for program in (changed, changed_by_a_view, filled_through_a_view):
        with pytest.raises(GraphBreakError):
            optimize(program, lambda gm, inputs: gm, fullgraph=True)(torch.ones(2))
        check(program, torch.ones(2), fullgraph=False, graphs=2)


def test_a_low_precision_number_may_round_up_to_one() -> None:
    def program(x):
        return x + 1 if torch.rand([], dtype=torch.float16) < 1.0 else x

    with pytest.raises(GraphBreakError):
        optimize(program, lambda gm, inputs: gm, fullgraph=True)(torch.ones(2))
