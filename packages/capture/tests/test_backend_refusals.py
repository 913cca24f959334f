"""A backend that cannot compile a node says which: without fullgraph its call is a graph break."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import BackendError, GraphBreakError, error_on_graph_break, optimize
from dovetail_prims.node_facts import blame


class Refusing(CountingBackend):
    """Runs graphs as they are, but none that holds a call of a function named so."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        for node in gm.graph.nodes:
            if getattr(node.target, "__name__", node.target) in self.names:
                try:
                    raise NotImplementedError(f"{node.target} is beyond me")
                except NotImplementedError as error:
                    blame(error, node.name)
                    raise RuntimeError("compiling failed") from error
        return super().__call__(gm, example_inputs)


def test_a_refused_call_breaks_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        y = torch.sort(y)[0]
        return y * 2 + torch.sort(-y)[0]

    backend = Refusing("sort")
    compiled = optimize(f, backend)
    x = torch.randn(5)
    for _ in range(3):
        assert torch.equal(compiled(x), f(x))
    log = compiled.capture_context.log
    assert len(backend.graphs) == 3 and len(log.breaks) == 2
    first = log.breaks[0]
    assert "cannot compile `sort`" in first.reason and "RuntimeError" in first.reason
    assert first.filename == __file__ and "torch.sort(y)" in first.line and first.hint


def inner(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x + 1, 0) * 2


def test_a_refused_call_in_an_inlined_function() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = inner(x) - 1
        return x.cos()

    backend = Refusing("cumsum")
    compiled = optimize(f, backend)
    x = torch.randn(5)
    for _ in range(2):
        assert torch.equal(compiled(x), f(x))
    called = [
        str(n.target) for gm in backend.graphs for n in gm.graph.nodes if n.op != "placeholder"
    ]
    assert not any("cumsum" in name for name in called) and len(backend.graphs) >= 3


def test_everything_refused_runs_in_python() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    backend = Refusing("sin")
    compiled = optimize(f, backend)
    x = torch.randn(5)
    assert torch.equal(compiled(x), x.sin()) and not backend.graphs
    assert len(compiled.capture_context.log.breaks) == 1


def test_fullgraph_is_an_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    with pytest.raises(
        BackendError, match=r"compiling failed.*\n  hint: without fullgraph"
    ) as told:
        optimize(f, Refusing("sin"), fullgraph=True)(torch.randn(3))
    assert f'File "{__file__}", line {f.__code__.co_firstlineno + 1}' in str(told.value)


def test_a_block_where_breaks_are_errors() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with error_on_graph_break(True):
            return x.sin() + 1

    with pytest.raises((BackendError, GraphBreakError)):
        optimize(f, Refusing("sin"))(torch.randn(3))


def test_an_error_without_a_node_is_an_error() -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        raise ValueError("no")

    with pytest.raises(BackendError, match="no"):
        optimize(lambda x: x + 1, backend)(torch.randn(3))


def test_a_refused_graph_of_a_float_from_data_is_told_once() -> None:
    """Such a float stays a symbol, also where the floats of the frame are plain."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.sum().item()

    compiled = optimize(f, Refusing("mul"), dynamic=True, fullgraph=True)
    with pytest.raises(BackendError):
        compiled(torch.randn(4), torch.randn(3))
    assert compiled.capture_context.log.counters["plain floats"] <= 1
