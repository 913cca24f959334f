"""Backends that trace the graph at its example inputs: each size and number gets a graph of its
own, unless the backend declares that it takes symbolic ones, or gives the graph back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dovetail_capture import BackendError, mark_dynamic, optimize, takes_symbolic_graphs
from dovetail_prims import trace_aten
from torch.fx import GraphModule, Interpreter


class Tracing:
    """A backend that runs the graph once, at its example inputs, and keeps what ran."""

    def __init__(self, trace: Callable[[GraphModule, list[Any]], Callable[..., Any]]) -> None:
        self.trace = trace
        self.graphs: list[GraphModule] = []

    def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return self.trace(gm, example_inputs)


def by_dispatcher(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Records the operators that run, with the numbers that they get."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]

    def with_numbers(*given: torch.Tensor) -> Any:
        rest = iter(given)
        full = [next(rest) if isinstance(v, torch.Tensor) else v for v in example_inputs]
        return gm(*full)

    traced = trace_aten(with_numbers, *tensors)

    def run(*args: Any) -> Any:
        return traced(*(value for value in args if isinstance(value, torch.Tensor)))

    return run


def by_jit(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """PyTorch's own tracer, which takes tensors alone."""
    return torch.jit.trace(gm, tuple(example_inputs), check_trace=False)


def by_float(v: torch.Tensor, number: float) -> torch.Tensor:
    return v * number + number


def by_int(v: torch.Tensor, number: int) -> torch.Tensor:
    return v * number - v.new_full((2,), number).sum()


def by_size(v: torch.Tensor) -> torch.Tensor:
    return v.reshape(-1) * v.size(0) / v.shape[-1]


def grows(v: torch.Tensor) -> torch.Tensor:
    return torch.cat([v, v.new_zeros(v.size(0))])


def inside(v: torch.Tensor) -> torch.Tensor:
    return sum((row * len(v) for row in v), torch.zeros(()))


def of_all(v: torch.Tensor, number: float, count: int) -> torch.Tensor:
    grid = torch.arange(v.size(0) * count, dtype=v.dtype).reshape(v.size(0), count)
    return (grid * v[:, None]).sum(1) * number


LENGTHS = (3, 4, 5, 1, 6, 0, 7)
CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[tuple[Any, ...]]]]] = {
    "float": (by_float, lambda: [(torch.randn(3), k / 4) for k in (1, 0, 2, 5, -3)]),
    "int": (by_int, lambda: [(torch.randn(3), k) for k in (2, 5, 0, 1, 9)]),
    "size": (by_size, lambda: [(torch.randn(k, 2),) for k in LENGTHS]),
    "cat": (grows, lambda: [(torch.randn(k),) for k in LENGTHS]),
    "loop": (inside, lambda: [(torch.randn(k),) for k in LENGTHS]),
    "strides": (by_size, lambda: [(m(torch.randn(4, 4)),) for m in (torch.t, torch.clone)]),
    "all": (
        of_all,
        lambda: [(torch.randn(k), k / 2, 7 - k) for k in (3, 4, 5, 6, 1)],
    ),
}


@pytest.mark.parametrize("trace", [by_dispatcher, by_jit])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_is_traced_is_right_for_each_size_and_number(
    trace: Any, name: str, dynamic: bool | None, fullgraph: bool
) -> None:
    function, calls = CALLS[name]
    compiled = optimize(function, Tracing(trace), dynamic=dynamic, fullgraph=fullgraph)
    for args in [*calls(), *calls()]:
        got, expected = compiled(*args), function(*args)
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert torch.equal(got, expected)


def test_a_marked_size_is_a_constant_for_such_a_backend() -> None:
    backend = Tracing(by_dispatcher)
    compiled = optimize(by_size, backend)
    for n in (3, 4, 5):
        x = torch.randn(n, 2)
        mark_dynamic(x, 0)
        assert torch.equal(compiled(x), by_size(x))
    # the first capture found out what the backend is
    assert len(backend.graphs) == 4
    events = [e for e in compiled.capture_context.log.events if e.kind == "static graph"]
    assert "takes_symbolic_graphs" in events[0].text


def test_the_limit_of_recompiles_holds() -> None:
    backend = Tracing(by_dispatcher)
    compiled = optimize(by_size, backend, recompile_limit=3)
    with pytest.warns(RuntimeWarning, match="was compiled 3 times"):
        for n in range(2, 9):
            x = torch.randn(n, 2)
            assert torch.equal(compiled(x), by_size(x))
    assert len(backend.graphs) == 4  # (of which the second was symbolic, and is not used)


@pytest.mark.parametrize(
    "run",
    [
        lambda gm: gm,
        lambda gm: gm.forward,
        lambda gm: gm.__call__,
        lambda gm: Interpreter(gm).run,
    ],
    ids=["graph", "forward", "call", "interpreter"],
)
def test_the_graph_itself_fits_all_sizes(run: Callable[[GraphModule], Any]) -> None:
    backend = Tracing(lambda gm, _: run(gm))
    compiled = optimize(of_all, backend, dynamic=True)
    for k in (3, 4, 5, 6):
        args = (torch.randn(k), k / 2, 7 - k + 2)
        assert torch.equal(compiled(*args), of_all(*args))
    assert len(backend.graphs) == 1


def test_a_backend_may_declare_that_it_takes_symbolic_graphs() -> None:
    graphs = []

    @takes_symbolic_graphs
    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return lambda *args: gm(*args)

    compiled = optimize(by_size, backend, dynamic=True)
    for n in (3, 4, 5):
        x = torch.randn(n, 2)
        assert torch.equal(compiled(x), by_size(x))
    assert len(graphs) == 1


def by_data(v: torch.Tensor) -> torch.Tensor:
    number = v.sum().item()
    return v * number + number


def test_numbers_of_data_break_the_graph() -> None:
    def function(v: torch.Tensor) -> torch.Tensor:
        positive = v[v > 0] * 2
        return positive.reshape(-1) * positive.size(0) + v.sum().item()

    for trace in (by_dispatcher, by_jit):
        for dynamic in (None, True):
            for f in (function, by_data):
                compiled = optimize(f, Tracing(trace), dynamic=dynamic)
                for seed in range(5):
                    x = torch.randn(6, generator=torch.Generator().manual_seed(seed))
                    assert torch.equal(compiled(x), f(x))
                assert compiled.capture_context.log.breaks


def test_numbers_of_data_are_an_error_where_the_graph_is_not_to_break() -> None:
    x = torch.randn(6)
    assert torch.equal(optimize(by_data, lambda gm, _: gm, fullgraph=True)(x), by_data(x))
    with pytest.raises(BackendError, match=r"(?s)tensors' data.*test_tracing_backends"):
        optimize(by_data, Tracing(by_dispatcher), fullgraph=True)(x)


def test_random_numbers_of_python_are_not_constants() -> None:
    def function(v: torch.Tensor) -> torch.Tensor:
        return v * random.random() + random.randint(1, 9)

    compiled = optimize(function, Tracing(by_dispatcher))
    x = torch.randn(3)
    for seed in range(4):
        random.seed(seed)
        got = compiled(x)
        random.seed(seed)
        assert torch.equal(got, function(x))


def test_a_backend_that_fails_on_symbols_gets_a_graph_without() -> None:
    def sizes_only(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                assert all(type(size) is int for size in node.meta["val"]._sizes)
        return gm.forward

    compiled = optimize(by_size, sizes_only, dynamic=True)
    for n in (3, 4, 5):
        x = torch.randn(n, 2)
        assert torch.equal(compiled(x), by_size(x))


def test_gradients_by_a_traced_backend() -> None:
    compiled = optimize(by_size, Tracing(by_jit), dynamic=True)
    for n in (3, 4, 5, 1):
        x = torch.randn(n, 2)
        leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
        for leaf, call in zip(leaves, (compiled, by_size), strict=True):
            call(leaf).square().sum().backward()
        assert torch.equal(leaves[0].grad, leaves[1].grad)
