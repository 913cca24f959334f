"""Parts that were just written are read where they came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import compile_graph
from dovetail_inductor.graph_passes.read_parts import read_parts
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from torch import Tensor, fx

aten = torch.ops.aten
LAYERS = 4


def traced(fn: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    return trace_aten(fn, *inputs, decompositions=core_aten_table())


def check(fn: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """Compiled equals eager, in strides, too; the graph with other reads."""
    gm = traced(fn, *inputs)
    before = str(gm.graph)
    run = load(compile_graph(gm)).run
    for got, wanted in zip(run(*inputs), fn(*inputs), strict=True):
        assert isinstance(got, Tensor) and got.stride() == wanted.stride()
        torch.testing.assert_close(got, wanted)
    assert str(gm.graph) == before  # the caller's graph is as it was
    return read_parts(gm)


def bases(gm: fx.GraphModule) -> list[Any]:
    """What parts are taken of."""
    return [
        n.args[0].target for n in gm.graph.find_nodes(op="call_function", target=aten.select.int)
    ]


def layers(dim: int, first: int = 0) -> Callable[..., Any]:
    def fn(cache: Tensor, new: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        total = new * 0
        for i in range(LAYERS):
            part = cache.select(dim, i - first).index_put((place,), new + i)
            cache = torch.select_scatter(cache, part, dim, i - first)
            total = total + cache.select(dim, i - first)[place] * cache.select(dim, -1)[place]
        return total, cache

    return fn


INPUTS = torch.randn(LAYERS, 6, 5), torch.randn(2, 5), torch.tensor([4, 1])


@pytest.mark.parametrize("first", [0, LAYERS], ids=["from the front", "from the end"])
def test_a_cache_of_all_layers_is_written_once(first: int) -> None:
    changed = check(layers(0, first), *INPUTS)
    assert set(bases(changed)) == {"cache"} or set(bases(changed)) == {"arg0"}
    kept = changed.graph.find_nodes(op="call_function", target=aten.select_scatter.default)
    assert [len(n.users) for n in kept] == [
        1
    ] * LAYERS  # each for the next, and the last one leaves


def test_along_another_dimension() -> None:
    """A part of what lies apart has other strides than what is put there."""
    check(layers(1), INPUTS[0].transpose(0, 1).contiguous(), *INPUTS[1:])


def test_parts_along_different_dimensions_are_read_from_the_whole() -> None:
    def fn(x: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, ...]:
        y = torch.select_scatter(x, row, 0, 1)
        z = torch.select_scatter(y, column, 1, 2)
        return z.select(0, 1) * 2, z.select(1, 2) + 1, z.select(0, 0), z

    changed = check(fn, torch.randn(3, 4), torch.randn(4), torch.randn(3, 4)[:, 0])
    assert bases(changed).count(aten.select_scatter.default) == 2  # both of z along dimension 0


def test_a_part_of_another_type_is_converted() -> None:
    def fn(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        y = torch.select_scatter(x, row, 0, 1)
        return (y.select(0, 1) + 0.5,)

    check(fn, torch.randn(3, 4), torch.randn(4))
    check(fn, torch.randn(3, 4), torch.randn(8)[::2])


def test_what_is_given_out_does_not_lie_in_an_input() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.select_scatter(x, x.select(0, -1), 0, 0)
        return y.select(0, 0).t(), y.select(0, 1)[1:], y.select(0, 2) + 1

    x = torch.randn(3, 4, 5)
    check(fn, x)
    for result in load(compile_graph(traced(fn, x))).run(x):
        assert isinstance(result, Tensor)
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_a_graph_without_such_reads_is_left_alone() -> None:
    x, row = torch.randn(3, 4), torch.randn(4)
    gm = traced(lambda x, y: (torch.select_scatter(x, y, 0, 1) * 2,), x, row)
    assert read_parts(gm) is gm


@pytest.mark.parametrize("dims", [(0, 1), (1, 0)], ids=["rows behind a column", "the reverse"])
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 1)])
def test_parts_along_two_dimensions(shape: tuple[int, int], dims: tuple[int, int]) -> None:
    """What is read behind another part along one dimension is the whole tensor with that other
    part, and not the part."""
    parts, across = dims

    def fn(x: Tensor) -> tuple[Tensor]:
        x = torch.select_scatter(x, x.select(across, 0) * 3, across, 0)
        for i in range(x.shape[parts]):
            x = torch.select_scatter(x, x.select(parts, i) * (i + 2), parts, i)
        return (x,)

    check(fn, torch.randn(shape))
