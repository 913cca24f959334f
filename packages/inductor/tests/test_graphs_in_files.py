"""`LoopGraph` and `KernelGraph` hold plain values: written by pickle, they read back the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions
from dovetail_inductor.loop_ir.sizes import Dim
from dovetail_inductor.pipeline import to_kernels, to_loops, to_plan
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from test_symbolic import traced
from torch import Tensor

Function = Callable[..., Any]

X, Y, PLACES = torch.randn(6, 8), torch.randn(8, 6), torch.tensor([2, 0, 5])
GRAPHS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "pointwise": (lambda x: x.sin() * x + 1, (X,)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    "argmax": (lambda x: (x.argmax(0), x.amax(0)), (X,)),
    "product": (lambda x, y: (x @ y).relu(), (X, Y)),
    "transposed": (lambda x, y: x + y.permute(1, 0), (X, Y)),
    "picked": (lambda x, i: x[i] * 2, (X, PLACES)),
    "scattered": (lambda x, i: torch.zeros_like(x).index_put((i,), x[:3], True), (X, PLACES)),
    "scanned": (lambda x: x.cumsum(1), (X,)),
    "concatenated": (lambda x: torch.cat([x, x.exp()], 0), (X,)),
    "shifted": (lambda x: (x - x.amax(1, True)).exp().sum(0), (X,)),
    "halves": (lambda x: (x.half() * 2).float().sum(0), (X,)),
}


def read_back(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("is_symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_read_back_the_same(name: str, is_symbolic: bool) -> None:
    function, inputs = GRAPHS[name]
    if is_symbolic:
        gm = traced(function, inputs)
    else:
        gm = trace_aten(function, *inputs, decompositions=core_aten_table())
    options = InductorOptions()
    loops = to_loops(gm, options)
    kernels = to_kernels(loops, options)
    assert any(isinstance(n, Dim) for b in loops.buffers.values() for n in b.shape) == is_symbolic
    read_loops, read_kernels = read_back(loops), read_back(kernels)
    assert read_loops.as_text() == loops.as_text()
    assert read_kernels.as_text() == kernels.as_text()
    # What is interned still is: later stages make what the same stages make in this process.
    again = to_kernels(read_loops, options)
    assert again.as_text() == kernels.as_text()
    plan, read_plan = to_plan(kernels, options), to_plan(read_kernels, options)
    assert [k.symbol for k in read_plan.kernels] == [k.symbol for k in plan.kernels]
