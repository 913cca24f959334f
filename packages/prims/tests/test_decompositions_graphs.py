"""`apply_table` on graphs: equal results, only core ops, metadata kept."""

import operator

import pytest
import torch
from dovetail_guards import expr
from dovetail_prims.decompositions import (
    DecomposeError,
    apply_table,
    core_aten_table,
    decompose,
)
from dovetail_prims.decompositions.apply import _Sizes
from dovetail_prims.dialects.dialect import Dialect, verify
from dovetail_prims.dialects.opsets import CORE_ATEN
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.graphs.record import trace_aten
from eager_oracle import name_of
from torch.fx import Graph, GraphModule
from torch.fx.node import map_arg

F = torch.nn.functional


def block(x, w, target):
    h = F.layer_norm(F.gelu(x @ w, approximate="tanh"), (w.shape[1],))
    parts = h.split(2, dim=1)
    h = torch.cat([F.silu(parts[0]), parts[1].clamp(0, 1)], 1)
    values, indices = h.max(dim=1)
    loss = F.cross_entropy(h, target)
    return loss, values, indices, h.std(), F.dropout(h, 0.5, False)


def examples():
    torch.manual_seed(0)
    return torch.randn(6, 3), torch.randn(3, 4), torch.tensor([0, 1, 2, 3, -100, 1])


def core_names(gm):
    ops = [n.target for n in gm.graph.nodes if n.op == "call_function"]
    return {name_of(op) for op in ops if op is not operator.getitem}


def test_graph_is_core_and_equal():
    args = examples()
    gm = trace_aten(block, *args, with_stack_trace=True)
    assert not core_names(gm) <= set(CORE_ATEN)
    core = apply_table(gm, core_aten_table())
    assert core_names(core) <= set(CORE_ATEN)
    for ours, theirs in zip(core(*args), block(*args), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
        assert ours.stride() == theirs.stride()


def test_metadata():
    args = examples()
    gm = trace_aten(block, *args, with_stack_trace=True)
    core = apply_table(gm, core_aten_table())
    seen = []

    values = {}
    inputs = iter(args)
    for n in core.graph.nodes:
        if n.op == "placeholder":
            values[n] = next(inputs)
        elif n.op == "call_function":
            take = values.__getitem__
            values[n] = n.target(*map_arg(n.args, take), **map_arg(n.kwargs, take))
        result = values.get(n)
        if isinstance(result, torch.Tensor):
            val = n.meta["val"]
            assert isinstance(val, FakeTensor), n
            assert (result.shape, result.dtype) == (val.shape, val.dtype), n
            assert result.stride() == val.stride(), n
            seen.append(n)
    assert len(seen) > 30
    calls = [n for n in core.graph.nodes if n.op == "call_function"]
    assert all("test_decompositions_graphs" in n.meta["stack_trace"] for n in calls)


def test_decompose_goes_to_verified_dialects():
    args = examples()
    gm = trace_aten(block, *args)
    for to in (Dialect.CORE_ATEN, Dialect.PRIMS):
        lower = decompose(gm, to)
        verify(lower, to)
        for ours, theirs in zip(lower(*args), block(*args), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)
    with pytest.raises(DecomposeError, match="not to TORCH"):
        decompose(gm, Dialect.TORCH)


def test_applying_twice_changes_nothing():
    core = apply_table(trace_aten(block, *examples()), core_aten_table())
    assert apply_table(core, core_aten_table()).code == core.code


def test_running_statistics_are_written():
    def norm(x, mean, var):
        return torch.ops.aten.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0]

    x, mean, var = torch.randn(4, 3, 2), torch.zeros(3), torch.ones(3)
    core = apply_table(trace_aten(norm, x, mean, var), core_aten_table())
    stats, twins = (mean.clone(), var.clone()), (mean.clone(), var.clone())
    assert torch.allclose(core(x, *stats), norm(x, *twins), atol=1e-6)
    assert torch.allclose(stats[0], twins[0]) and torch.allclose(stats[1], twins[1])
    assert not torch.equal(stats[0], mean)


def test_node_without_value_is_an_error():
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.silu.default, (x,)))
    with pytest.raises(DecomposeError, match="carries no meta"):
        apply_table(GraphModule({}, graph), core_aten_table())


def test_sizes_are_built_from_what_is_known():
    """An expression over sizes becomes nodes that compute it."""
    n, m = expr.symbol("n"), expr.symbol("m")
    wanted = [n * m * 2 + 1, (n + 1) // m, n % m, expr.max_(n, m * 3), n * n - m]
    graph = Graph()
    sizes = _Sizes(graph)
    sizes.known = {"n": graph.placeholder("n"), "m": graph.placeholder("m")}
    graph.output([sizes.of_expr(e) for e in wanted])
    values = {"n": 7, "m": 3}
    assert GraphModule({}, graph)(**values) == [e.evaluate(values) for e in wanted]
    with pytest.raises(DecomposeError, match="size k"):
        sizes.of_expr(expr.symbol("k") + 1)
