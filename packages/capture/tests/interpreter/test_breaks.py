"""Graph breaks: where capture ends, what is alive there, and that the result is still eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dovetail_capture.errors import GraphBreakError
from dovetail_capture.interpreter import capture_frame

from . import programs


def branching(t: torch.Tensor) -> Any:
    t = t + 1
    if t.sum() > 0:
        return t * 2
    return t * 3


def printing(t: torch.Tensor) -> Any:
    a = t + 1
    print("between")
    return a * 2


def item(t: torch.Tensor) -> Any:
    n = (t + 1).sum().item()
    return t * n


def helper(t: torch.Tensor) -> Any:
    b = t * 2
    print("inside")
    return b + 1


def inlined(t: torch.Tensor) -> Any:
    return helper(t + 1) * 3


def in_with(t: torch.Tensor) -> Any:
    with torch.no_grad():
        a = t * 2
        print("in no_grad")
        b = a + torch.ones(2, requires_grad=True)
    return a, b, b.requires_grad


def raising(t: torch.Tensor) -> Any:
    raise ValueError("as eager does")


@pytest.mark.parametrize("program", [branching, printing, item, inlined, in_with])
def test_result_is_eagers(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from dovetail_capture.api import optimize

    backend = programs.CountingBackend()
    captured = optimize(program, backend)
    for t in (torch.ones(2), -10 * torch.ones(2)):
        expected = program(t)
        printed = capsys.readouterr().out
        assert programs.same(captured(t), expected)
        assert capsys.readouterr().out == printed
    assert len(backend.graphs) >= 2


@pytest.mark.parametrize("program", [branching, printing, inlined])
def test_fullgraph_refuses(program: Any) -> None:
    from dovetail_capture.api import optimize

    with pytest.raises(GraphBreakError) as caught:
        optimize(program, programs.CountingBackend(), fullgraph=True)(torch.ones(2))
    assert __file__ in str(caught.value)


def test_exceptions_of_the_program_are_eagers() -> None:
    from dovetail_capture.api import optimize

    with pytest.raises(ValueError, match="as eager does"):
        optimize(raising, programs.CountingBackend())(torch.ones(2))


def test_what_a_break_says() -> None:
    frame = capture_frame(inlined.__code__, inlined, (torch.ones(2),))
    assert frame.break_ is not None and frame.end.break_index is not None
    assert "print" in frame.break_.reason and frame.break_.line.strip() == 'print("inside")'
    assert [text.split(" ")[0] for text in frame.break_.frames] == ["inlined", "helper"]
    assert frame.graph is not None  # `t + 1` was captured; the call of `helper` was not
    targets = [node.target for node in frame.graph.graph.nodes if node.op == "call_function"]
    assert len(targets) == 1


def test_capture_is_repeatable() -> None:
    first = capture_frame(branching.__code__, branching, (torch.ones(2),))
    second = capture_frame(branching.__code__, branching, (torch.ones(2),))
    assert first.end.break_index == second.end.break_index
    assert first.graph is not None and second.graph is not None
    assert first.graph.code == second.graph.code


def test_grad_mode_is_put_back() -> None:
    capture_frame(in_with.__code__, in_with, (torch.ones(2),))
    assert torch.is_grad_enabled()


def test_disabled_and_allowed_functions() -> None:
    from dovetail_capture import allow_in_graph, disable, graph_break, is_compiling, optimize

    @disable
    def outside(t: torch.Tensor) -> Any:
        assert not is_compiling()
        return t * 2

    @allow_in_graph
    def whole(t: torch.Tensor) -> Any:
        return t * 3 + 1

    def program(t: torch.Tensor) -> Any:
        a = outside(t + 1)
        graph_break()
        b = whole(a)
        return b * 5 if is_compiling() else b * 50

    backend = programs.CountingBackend()
    captured = optimize(program, backend)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 65.0))
    targets = [n.target for gm in backend.graphs for n in gm.graph.nodes if n.op == "call_function"]
    assert whole in targets and len(backend.graphs) == 2


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(t)
        return t**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (t,) = ctx.saved_tensors
        return grad * t * 7  # not the true gradient, so that it is known whose it is


def test_autograd_function_is_one_node() -> None:
    def program(t: torch.Tensor) -> Any:
        return Cube.apply(t + 1) * 2

    (graph,) = programs.check(program, torch.ones(2))
    assert sum(node.op == "call_function" for node in graph.graph.nodes) == 3
    t = torch.ones(2, requires_grad=True)
    graph(t)[0].sum().backward()
    assert torch.equal(t.grad, torch.full((2,), 28.0))


def test_tensors_that_have_no_fake_break_the_graph() -> None:
    from dovetail_capture.api import optimize

    def program(t: torch.Tensor) -> Any:
        return torch.vmap(lambda row: row.sum() * 2)(t + 1)

    t = torch.randn(3, 2)
    assert torch.equal(optimize(program, programs.CountingBackend())(t), program(t))
