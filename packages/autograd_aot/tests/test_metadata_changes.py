"""In-place views: as_strided_ as pooling of channels-last images makes it, t_ and what follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from aot_testing import as_graph, check, run_fx
from dovetail_autograd_aot import TraceError, aot_compile
from torch import Tensor
from torch.fx import symbolic_trace

CASES: list[tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]] = [
    ("pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 8, 5, 7)),
    ("pool2d, flattened", lambda x: F.adaptive_avg_pool2d(x * 2, 1).flatten(1), (2, 8, 5, 7)),
    ("pool3d", lambda x: F.adaptive_avg_pool3d(x, 1) + 1, (2, 3, 4, 5, 7)),
    ("as_strided_", lambda x: (x * 2).as_strided_((2, 3), (3, 1)), (4, 6)),
    ("written to after t_", lambda x: (x * 2).t_().mul_(3), (4, 6)),
]


@pytest.mark.parametrize(("name", "function", "shape"), CASES, ids=[c[0] for c in CASES])
def test_equals_eager(
    name: str, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = torch.randn(shape)
    if len(shape) in formats:
        x = x.to(memory_format=formats[len(shape)])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    gm = symbolic_trace(lambda x: (function(x),))
    compiled = aot_compile(gm, [ours], forward_compiler=lambda graph, inputs: graph.forward)
    (got,), expected = compiled(ours), function(theirs)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    weight = torch.randn_like(expected)
    (got * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_input_that_changes_its_shape_after_a_view_of_its_relative() -> None:
    """The change counts as a write, which must not come after the view that is returned."""

    def function(x: Tensor, part: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            part.t_()
            seen = x.unsqueeze(0)
        return (seen.view(1, 12),)

    def run(fn: Callable[..., tuple[Tensor]]) -> tuple[Tensor, ...]:
        leaf = torch.arange(12.0).view(3, 4).requires_grad_()
        x = leaf.clone()
        part = x.detach()[:2, :2]
        versions = x._version
        (out,) = fn(x, part)
        (out * torch.arange(12.0)).sum().backward()
        assert leaf.grad is None and x._version == versions + 1
        return out, part

    def compiled(x: Tensor, part: Tensor) -> tuple[Tensor]:
        gm = as_graph(function, 2)
        run = aot_compile(gm, [x, part], forward_compiler=lambda graph, inputs: graph.forward)
        return run(x, part)  # type: ignore[return-value]

    for got, expected in zip(run(compiled), run(function), strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_a_graded_write_to_a_reshaped_view_is_refused() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            y = x.to(torch.float32)
        view = torch._neg_view(y)
        with torch.no_grad():
            view.resize_((1,))
        view.add_(x)
        view[0:1] = 1.5
        return (view,)

    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TraceError, match="after a change of shape in place"):
        aot_compile(as_graph(function, 1), [x], forward_compiler=lambda graph, _: graph.forward)


def _shrunk(x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        y = torch.stack([x, x]).resize_((2, 3))
    return y, y.expand(2, 3), y[0]


def _turned(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.stack([x, x])
    old = y[0]
    with torch.no_grad():
        y.transpose_(0, 1)
    return y, y[1], old


@pytest.mark.parametrize("function", [_shrunk, _turned])
def test_what_changed_its_shape_under_no_grad_is_no_view_made_there(
    function: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    """It may be written to with gradients, and so may what is a view of it."""
    x = torch.randn(3, 4)
    gm = as_graph(function, 1)
    compiled = aot_compile(gm, [x], forward_compiler=lambda graph, inputs: graph.forward)
    for place in range(3):
        ours, theirs = compiled(x), function(x)
        leaves = []
        for outputs in (ours, theirs):
            values = torch.arange(float(outputs[place].numel())).view(outputs[place].shape)
            leaves.append(values.requires_grad_())
            outputs[place].mul_(leaves[-1])
        for got, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride()
        (2 * ours[place]).sum().backward()
        (2 * theirs[place]).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


def test_input_that_changes_its_shape_is_saved_as_it_was() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x.squeeze_()
        z = y.swapdims_(1, 0)
        return (z * 0.5) * z, z.sin()

    check(fn, [torch.randn(3, 1, 4, requires_grad=True) * 1])


def test_create_graph_through_a_graph_that_changes_the_shape_of_an_input() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return (x.t_().pow(3),)

    leaf = torch.randn(3, 4, requires_grad=True)
    run = aot_compile(as_graph(fn, 1), [leaf * 1], forward_compiler=run_fx)
    for call in (fn, run):
        x = leaf * 1
        (out,) = call(x)
        (first,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf, retain_graph=True)
        (again,) = torch.autograd.grad(first.square().sum(), leaf)
        assert x.shape == (4, 3)
        torch.testing.assert_close(second, 36 * leaf**3)
        torch.testing.assert_close(again, second)


def test_create_graph_through_a_graph_that_changes_where_an_input_lies_is_refused() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return (x.as_strided_((2, 2), (1, 2)).square(),)

    leaf = torch.randn(3, 4, requires_grad=True)
    run = aot_compile(as_graph(fn, 1), [leaf * 1], forward_compiler=run_fx)
    (out,) = run(leaf * 1)
    with pytest.raises(RuntimeError, match="changes in place where an input lies"):
        torch.autograd.grad(out.sum(), leaf, create_graph=True)
