"""The verifier: what each dialect takes, and what its complaint shows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_prims import Dialect, VerifyError, from_real, trace_aten, verify
from torch.fx import Graph, GraphModule

aten = torch.ops.aten
X = torch.zeros(3, 4)


def graph_of(build: Callable[[Graph, Any], Any]) -> GraphModule:
    """A graph with one input of shape (3, 4) and what `build` adds; every node has a value."""
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = from_real(X)
    out = build(graph, x)
    graph.output(out)
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("val", from_real(X))
    return GraphModule({}, graph)


def test_recorded_graphs_are_valid() -> None:
    gm = trace_aten(lambda x: (x.relu() + 1).sum(0), X)
    for dialect in (Dialect.TORCH, Dialect.ATEN, Dialect.CORE_ATEN):
        verify(gm, dialect)
    verify(trace_aten(lambda x: x.sin() * x.cos(), X), Dialect.PRIMS)


BAD: list[tuple[Dialect, Callable[[Graph, Any], Any], str]] = [
    (Dialect.ATEN, lambda g, x: g.call_function(aten.add_.Tensor, (x, 1)), "writes to an argument"),
    (Dialect.ATEN, lambda g, x: g.call_function(torch.relu, (x,)), "not an ATen op overload"),
    (Dialect.ATEN, lambda g, x: g.call_method("relu", (x,)), "call_method"),
    (Dialect.ATEN, lambda g, x: g.call_function(aten.relu.default, (x, 1)), "positional"),
    (Dialect.ATEN, lambda g, x: g.call_function(aten.mm.default, (x,)), "lacks its .* 'mat2'"),
    (Dialect.ATEN, lambda g, x: g.call_function(aten.relu.default, (slice(0, 1),)), "is a slice"),
    (
        Dialect.ATEN,
        lambda g, x: g.call_function(aten.sum.dim_IntList, (x, [0]), {"nope": 1}),
        "no argument 'nope'",
    ),
    (Dialect.ATEN, lambda g, x: g.call_function(operator.getitem, (x, 0)), "multiple result"),
    (Dialect.CORE_ATEN, lambda g, x: g.call_function(aten.gelu.default, (x,)), "not in the op set"),
    (Dialect.PRIMS, lambda g, x: g.call_function(aten.add.Tensor, (x, 1.0)), "make it a `full`"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "build", "message"), BAD)
def test_offences(dialect: Dialect, build: Callable[[Graph, Any], Any], message: str) -> None:
    gm = graph_of(build)
    with pytest.raises(VerifyError, match=message) as caught:
        verify(gm, dialect)
    assert "-->" in str(caught.value) and "float32[3, 4]" in str(caught.value)


def test_prims_want_equal_shapes_and_dtypes() -> None:
    gm = trace_aten(lambda x, row: x * row, X, torch.zeros(4))
    verify(gm, Dialect.CORE_ATEN)
    with pytest.raises(VerifyError, match="broadcast"):
        verify(gm, Dialect.PRIMS)
    gm = trace_aten(lambda x, y: x * y, X, X.double())
    with pytest.raises(VerifyError, match="different dtypes"):
        verify(gm, Dialect.PRIMS)


def test_extern_and_missing_value() -> None:
    gm = graph_of(lambda g, x: g.call_function(aten.gelu.default, (x,)))
    verify(gm, Dialect.CORE_ATEN, extern=[aten.gelu.default])
    for node in gm.graph.nodes:
        node.meta.clear()
    with pytest.raises(VerifyError, match="no meta"):
        verify(gm, Dialect.TORCH)
