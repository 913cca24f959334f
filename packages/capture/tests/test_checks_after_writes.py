"""Checks of data in graphs that write to their inputs: what was written is put back where a check
does not hold, and the frame runs again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from torch import Tensor, nn
from torch.fx import GraphModule


def check(x: Tensor) -> None:
    if (x < 0).any():
        raise ValueError("a negative number")


class Counted(nn.Module):
    """Counts calls in a buffer, and normalises by running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.norm(x)
        check(x)
        self.calls += 10
        return y.exp()


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def compiled_with(fn: Any) -> tuple[Any, list[GraphModule]]:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    return optimize(fn, backend), graphs


def test_a_module_that_updates_buffers() -> None:
    ours, theirs = Counted(), Counted()
    run, graphs = compiled_with(ours)
    for x in (torch.rand(3, 4), torch.rand(3, 4), -torch.rand(3, 4), torch.rand(3, 4)):
        outcomes: list[Any] = []
        for call in (theirs, run):
            try:
                outcomes.append(call(x))
            except ValueError as error:
                outcomes.append(str(error))
        if isinstance(outcomes[0], Tensor):
            torch.testing.assert_close(outcomes[1], outcomes[0])
        else:
            assert outcomes[1] == outcomes[0]
        for one, other in zip(state(ours).values(), state(theirs).values(), strict=True):
            torch.testing.assert_close(one, other)
    assert len(graphs) == 1
    assert not run.capture_context.log.breaks


def written(memory: Tensor, x: Tensor) -> Tensor:
    memory.mul_(2)
    check(x)
    memory.add_(x.sum())
    return memory + x


def through_a_view(memory: Tensor, x: Tensor) -> Tensor:
    memory[0].add_(5)
    check(x)
    return x * memory[0]


def handled(memory: Tensor, x: Tensor) -> Any:
    memory += 1
    try:
        check(x)
    except ValueError as error:
        memory += 100
        return str(error)
    return x + memory


def with_random_numbers(memory: Tensor, x: Tensor) -> Tensor:
    memory.add_(torch.rand(3))
    check(x)
    return memory * 2


@pytest.mark.parametrize("fn", [written, through_a_view, handled, with_random_numbers])
def test_inputs_that_are_written_to(fn: Callable[..., Any]) -> None:
    run, graphs = compiled_with(fn)
    ours, theirs = torch.ones(3), torch.ones(3)
    for x in (torch.ones(3), -torch.ones(3), torch.rand(3), -torch.rand(3)):
        outcomes: list[Any] = []
        for call, memory in ((fn, theirs), (run, ours)):
            torch.manual_seed(0)
            try:
                outcomes.append(call(memory, x))
            except ValueError as error:
                outcomes.append(repr(error))
        torch.testing.assert_close(outcomes[1], outcomes[0]) if isinstance(
            outcomes[0], Tensor
        ) else None
        assert isinstance(outcomes[0], Tensor) or outcomes[1] == outcomes[0]
        assert torch.equal(ours, theirs)
    if fn is not handled:
        assert len(graphs) == 1


BREAKS: dict[str, Callable[[], Tensor]] = {
    "large": lambda: torch.ones(1 << 20),
    "a part of its memory": lambda: torch.ones(6)[:3],
    "needs a gradient": lambda: torch.ones(3).requires_grad_() * 1,
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_cannot_be_put_back_breaks_the_graph(name: str) -> None:
    run, graphs = compiled_with(written)
    ours, theirs = BREAKS[name](), BREAKS[name]()
    x = torch.ones(ours.shape)
    torch.testing.assert_close(run(ours, x), written(theirs, x))
    with pytest.raises(ValueError, match="a negative number"):
        run(ours, -x)
    with pytest.raises(ValueError, match="a negative number"):
        written(theirs, -x)
    torch.testing.assert_close(ours, theirs)
    assert len(graphs) > 1


def test_another_layout_is_not_put_back() -> None:
    def turned(memory: Tensor, x: Tensor) -> Tensor:
        memory.t_()
        memory.mul_(2)
        check(x)
        return memory + 1

    run, _ = compiled_with(turned)
    ours, theirs = torch.rand(2, 3), torch.rand(2, 3)
    theirs.copy_(ours)
    for x in (torch.ones(2), -torch.ones(2)):
        for call, memory in ((turned, theirs), (run, ours)):
            if x[0] < 0:
                with pytest.raises(ValueError, match="negative"):
                    call(memory, x)
            else:
                call(memory, x)
        assert ours.shape == theirs.shape and torch.equal(ours, theirs)
