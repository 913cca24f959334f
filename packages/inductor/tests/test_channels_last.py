"""Convolutions in channels-last: values, layouts of outputs, and how many copies that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph, prefer_channels_last
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.shape_rules.layout import is_channels_last
from dovetail_runtime import load
from dovetail_runtime.plan import Allocate, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

aten = torch.ops.aten
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


def relaid(
    fn: Callable[..., Any], inputs: Sequence[Tensor], machine: str | None = "cuda"
) -> GraphModule:
    """The graph of `fn` in channels-last; run as it is and compiled, it agrees with `fn`."""
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    changed = prefer_channels_last(gm, machine)
    changed.graph.lint()
    wanted = fn(*inputs)
    for run in (AsPromised(changed).run, load(compile_graph(changed))):
        for got, expected in zip(run(*inputs), wanted, strict=True):
            # (Sums of large terms may be small: a rounding is one of the largest.)
            atol = 1e-5 * max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=atol)
            assert got.stride() == expected.stride()
    return changed


class AsPromised(Interpreter):
    """Runs a graph and compares the layout of every value with the metadata."""

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            promised = n.meta["val"].stride()
            for size, a, b in zip(result.shape, result.stride(), promised, strict=True):
                assert size == 1 or a == b, (n.format_node(), result.stride(), promised)
        return result


def copies(gm: GraphModule) -> int:
    return sum(n.target is aten.clone.default for n in gm.graph.nodes)


DRAWN = torch.Generator().manual_seed(0)  # the same numbers, whatever else is imported
X = torch.randn(2, 8, 9, 10, generator=DRAWN)
W = torch.randn(8, 8, 3, 3, generator=DRAWN)
ONE = torch.randn(8, 8, 1, 1, generator=DRAWN)
D = torch.randn(2, 8, 9, 10, generator=DRAWN)


def test_a_run_of_convolutions_is_laid_out_once() -> None:
    def fn(x: Tensor, w: Tensor, one: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, padding=1).relu()
        y = y + F.conv2d(y, one)
        y = F.max_pool2d(y, 2)
        return (F.conv2d(y, w).mean((2, 3)),)

    gm = relaid(fn, (X, W, ONE))
    assert copies(gm) == 2  # x, and w once; a weight of one pixel is in both layouts as it is
    strides = [n.meta["val"].stride() for n in gm.graph.nodes if n.target is aten.relu.default]
    assert strides == [(720, 1, 80, 8)]


def test_outputs_keep_their_layout() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        parts = y.split(3, 1)
        return parts[1], y, y.flatten(1), y.transpose(1, 2), y[:, ::2], y.expand(3, *y.shape)

    gm = relaid(fn, (X, W))
    assert copies(gm) >= 3


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_upsampling_between_convolutions_keeps_the_layout(mode: str) -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        wide = F.interpolate(y, scale_factor=2, mode=mode)
        skip = F.conv2d(wide, w, padding=1)
        both = torch.cat([wide, skip], 1)
        return wide, F.conv2d(both.relu(), w.repeat(1, 2, 1, 1))

    gm = relaid(fn, (X, W * 0.1))
    (cat,) = (n for n in gm.graph.nodes if n.target is aten.cat.default)
    assert cat.meta["val"].stride()[1] == 1


def test_views_that_the_layout_does_not_allow() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        groups = y.view(2, 4, 180)
        normed = (groups - groups.mean(-1, keepdim=True)).view(2, 8, 9, 10)
        return (F.conv2d(normed, w), y.as_strided((4, 5), (3, 1), 2))

    relaid(fn, (X, W))


def test_gradients() -> None:
    def fn(x: Tensor, w: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, None, 2, 1).relu()
        grads = aten.convolution_backward(
            d * (y > 0), x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        return y, grads[0], grads[1] * 2

    d = torch.randn(2, 8, 5, 5)
    gm = relaid(fn, (X, W, d))
    (node,) = [n for n in gm.graph.nodes if n.target is aten.convolution_backward.default]
    assert all(a.meta["val"].stride()[1] == 1 for a in node.args[:3])


def test_the_gradient_of_a_weight_of_one_pixel() -> None:
    def fn(x: Tensor, w: Tensor, one: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, None, 1, 1)
        return aten.convolution_backward(
            d, y, one, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
        )[1:2]

    relaid(fn, (X, W, ONE, D))


def test_random_numbers_are_drawn_in_the_former_order() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = F.conv2d(x, w, padding=1)
        return torch.rand_like(y) * y

    gm = trace_aten(fn, X, W)
    drawn = [n for n in prefer_channels_last(gm, "cuda").graph.nodes if "rand" in str(n.target)]
    assert [n.meta["val"].stride() for n in drawn] == [X.stride()]


@pytest.mark.parametrize(
    ("dtype", "groups", "kernel", "chosen"),
    [
        (torch.float32, 1, 3, True),
        (torch.float32, 8, 3, False),
        (torch.bfloat16, 8, 3, True),
        (torch.float64, 1, 3, False),
        (torch.float32, 1, 1, False),
    ],
)
def test_where_it_pays(dtype: torch.dtype, groups: int, kernel: int, chosen: bool) -> None:
    w = torch.randn(8, 8 // groups, kernel, kernel, dtype=dtype)
    gm = trace_aten(lambda x, w: F.conv2d(x, w, groups=groups), X.to(dtype), w)
    assert (prefer_channels_last(gm, "cuda") is not gm) == chosen
    # On a CPU so few pixels are worth a copy only of one channel a group.
    assert (prefer_channels_last(gm) is not gm) == (groups > 1)


@pytest.mark.parametrize(
    ("own", "results", "chosen"),
    [(1, 1, True), (4, 4, True), (8, 8, True), (1, 2, False), (3, 3, False), (8, 4, False)],
)
def test_groups_that_the_vendor_has_kernels_for(own: int, results: int, chosen: bool) -> None:
    """Those of other sizes are reached in rows, where ungrouped ones are most of what is moved."""
    groups = 4
    x = torch.randn(2, own * groups, 9, 10, dtype=torch.bfloat16)
    w = torch.randn(results * groups, own, 3, 3, dtype=torch.bfloat16)
    gm = trace_aten(lambda x, w: F.conv2d(x, w, groups=groups), x, w)
    assert (prefer_channels_last(gm, "cuda") is not gm) == chosen

    def fn(x: Tensor, w: Tensor, whole: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(F.conv2d(x, whole, padding=1).relu(), w, groups=groups, padding=1)
        return (F.conv2d(F.conv2d(x, whole, padding=1), whole) + y.mean(),)

    whole = torch.randn(own * groups, own * groups, 3, 3)
    gm = prefer_channels_last(trace_aten(fn, x, w, whole.to(x.dtype)), "cuda")
    strides = [n.meta["val"].stride() for n in gm.graph.nodes if n.target in CONVOLUTIONS]
    assert [s[1] == 1 for s in strides].count(False) == (0 if chosen else 1)


def test_convolutions_that_lose_are_left_as_they_are() -> None:
    """Beside those that gain, one that loses gets what it had."""

    def fn(x: Tensor, w: Tensor, deep: Tensor) -> tuple[Tensor, ...]:
        return (F.conv2d(F.conv2d(x, w, padding=1), deep, groups=64).relu(),)

    x = torch.randn(2, 16, 9, 10)
    gm = relaid(fn, (x, torch.randn(64, 16, 3, 3), torch.randn(64, 1, 3, 3)))
    first, second = (n for n in gm.graph.nodes if n.target is aten.convolution.default)
    assert first.meta["val"].stride()[1] == 1
    assert second.meta["val"].is_contiguous()


def test_convolutions_over_three_dimensions() -> None:
    def fn(x: Tensor, w: Tensor, back: Tensor) -> tuple[Tensor, ...]:
        y = F.max_pool3d(F.conv3d(x, w, padding=1).relu(), 2)
        y = F.interpolate(y, scale_factor=2)
        return F.conv_transpose3d(y, back, stride=2, padding=1).mean((2, 3, 4)), y

    weight = torch.randn(32, 16, 3, 3, 3) / 8
    gm = relaid(fn, (torch.randn(2, 16, 6, 8, 8), weight, weight + 1))
    found = [n for n in gm.graph.nodes if n.target is aten.convolution.default]
    assert [n.meta["val"].stride()[1] for n in found] == [1, 1]


def test_grouped_convolutions_over_three_dimensions_stay() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (F.conv3d(x, w, padding=1, groups=4),)

    assert copies(relaid(fn, (torch.randn(2, 4, 6, 8, 8), torch.randn(4, 1, 3, 3, 3)))) == 0


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "results", "groups", "window", "stride", "dilation"),
    [
        (32, 32, 32, 3, 1, 1),
        (33, 33, 33, 5, 2, 2),
        (33, 66, 33, 3, 1, 1),
        (17, 19, 1, 3, 1, 2),
        (24, 40, 4, 3, 2, 1),
        (3, 16, 1, 7, 2, 1),
    ],
)
def test_convolutions_of_a_cpu(
    channels: int,
    results: int,
    groups: int,
    window: int,
    stride: int,
    dilation: int,
    given: torch.memory_format,
) -> None:
    """Values, gradients and strides are eager's, in whichever layout the images are given."""

    def fn(x: Tensor, w: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, None, stride, window // 2, dilation, groups).relu()
        gate = torch.sigmoid(y.mean((2, 3), keepdim=True))
        grads = aten.convolution_backward(
            d * (y > 0), x, w, None, [stride] * 2, [window // 2] * 2, [dilation] * 2, False,
            [0, 0], groups, [True, True, False],
        )  # fmt: skip
        return F.max_pool2d(y * gate, 3, 2, 1), y, grads[0], grads[1]

    x = torch.randn(7, channels, 33, 34, generator=DRAWN).to(memory_format=given)
    w = torch.randn(results, channels // groups, window, window, generator=DRAWN)
    d = torch.randn(F.conv2d(x, w, None, stride, window // 2, dilation, groups).shape)
    gm = relaid(fn, (x, w, d), None)
    found = [n for n in gm.graph.nodes if n.target in CONVOLUTIONS]
    operands = [n.args[k].meta["val"] for n in found for k in (0, 1)]
    assert all(is_channels_last(v.shape, v.stride()) for v in operands)


@pytest.mark.parametrize(
    ("dtype", "images", "results", "groups", "chosen"),
    [
        (torch.float32, 1, 16, 16, True),
        (torch.float64, 1, 16, 16, False),
        (torch.bfloat16, 2, 16, 16, torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        (torch.bfloat16, 2, 32, 16, False),
    ],
)
def test_where_it_pays_on_a_cpu(
    dtype: torch.dtype,
    images: int,
    results: int,
    groups: int,
    chosen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = torch.randn(images, 16, 40, 40), torch.randn(results, 16 // groups, 3, 3)
    gm = trace_aten(lambda x, w: F.conv2d(x, w, groups=groups), x.to(dtype), w.to(dtype))
    assert (prefer_channels_last(gm) is not gm) == chosen
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert prefer_channels_last(gm) is gm


def triton_plan(fn: Callable[..., Any], *inputs: Tensor) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, options=InductorOptions(triton=True))


def test_what_is_expanded_lies_as_what_it_is_made_of() -> None:
    """Statistics of rows of a channels-last tensor, and what is made of them point by point."""

    def fn(x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        return ((x - mean) * torch.rsqrt(variance + 1e-5)).roll(1, 1)

    x = torch.randn(2, 32, 16, 64).contiguous(memory_format=torch.channels_last)
    plan = triton_plan(fn, x)
    rows = [s.spec for s in plan.steps if isinstance(s, Allocate) and s.spec.shape[-1] == 1]
    assert rows and all(spec.stride[1] == 1 for spec in rows)
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    torch.testing.assert_close(got, fn(x), rtol=1e-4, atol=1e-5)


def test_statistics_of_many_channels_read_memory_once() -> None:
    """Of more than the cache holds while it is read again: in pieces that it does hold."""
    x = torch.empty(64, 128, 126, 126, device="meta").contiguous(memory_format=torch.channels_last)
    plan = triton_plan(lambda x: F.instance_norm(x), x)
    parts = [s.spec.shape for s in plan.steps if isinstance(s, Allocate) and "parts" in s.name]
    assert parts == [(63, 64 * 128)] * 2
    small = torch.empty(2, 128, 126, 126, device="meta")
    plan = triton_plan(lambda x: F.instance_norm(x), small.to(memory_format=torch.channels_last))
    parts = [s.spec.shape for s in plan.steps if isinstance(s, Allocate) and "parts" in s.name]
    assert all(pieces > 100 for pieces, _ in parts), "as many as it takes to fill a GPU"


def test_groups_of_few_channels_are_turned_by_tiles() -> None:
    """A tile is as wide as several groups where one has fewer channels than a tile's side."""

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.group_norm(x, 4, w, b).contiguous()

    w, b = torch.randn(32, generator=DRAWN), torch.randn(32, generator=DRAWN)
    x = torch.randn(2, 32, 48, 48, generator=DRAWN).to(memory_format=torch.channels_last)
    plan = triton_plan(fn, x, w, b)
    (turning,) = [k for k in plan.kernels if k.symbol.startswith("transpose")]
    assert "tl.arange(0, 32)[None, :]" in turning.source
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x, w, b)
    torch.testing.assert_close(got, fn(x, w, b), rtol=1e-4, atol=1e-5)
