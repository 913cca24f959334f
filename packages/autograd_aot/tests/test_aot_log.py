"""What `AotLog` tells."""

from __future__ import annotations

import torch
from aot_testing import as_graph, run_fx
from dovetail_autograd_aot import AotLog, aot_compile
from dovetail_autograd_aot.calls.graph_calls import MAX_DROPPED, MAX_PLACEMENTS
from torch import Tensor


def write_one(a: Tensor, b: Tensor) -> tuple[Tensor]:
    a.mul_(2)
    return (a + b,)


def overlapping(start: int) -> tuple[Tensor, Tensor]:
    memory = torch.arange(40.0)
    return memory[start : start + 8], memory[4:12]


def test_placements_are_bounded_and_counted() -> None:
    log, compiled = AotLog(), 0

    def compiler(gm: torch.fx.GraphModule, inputs: object) -> object:
        nonlocal compiled
        compiled += 1
        return run_fx(gm, [])

    run = aot_compile(
        as_graph(write_one, 2), overlapping(0), forward_compiler=compiler, log=log
    )  # fmt: skip
    assert log.lines() == []

    def check(start: int) -> None:
        ours, theirs = overlapping(start), overlapping(start)
        torch.testing.assert_close(run(*ours), write_one(*theirs), rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)

    ways = MAX_PLACEMENTS + 3
    for start in range(ways):
        check(start)
        check(0)  # used all the time: never dropped
    assert (compiled, log.placements, log.placements_dropped) == (ways, ways - 1, 3)
    check(ways - 1)
    assert compiled == ways
    check(1)  # the oldest was dropped
    assert (compiled, log.placements, log.placements_dropped) == (ways + 1, ways, 4)
    assert log.lines() == [
        f"inputs that share memory lay in new ways: {ways} compilations, 4 dropped"
    ]
    for start in range(ways, ways + MAX_DROPPED):
        check(start)
    assert log.placements_dropped == MAX_DROPPED and sum(log.eager_calls.values()) == 4
    check(ways + MAX_DROPPED - 5)
    assert sum(log.eager_calls.values()) == 4  # one that was compiled still is
