"""Decompositions lay out their results as eager's kernels do, whatever the argument's layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TABLE = core_aten_table()


class Compare(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator and its decomposition, and compares the results' strides."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.different: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        expected = func(*args, **(kwargs or {}))
        if func in TABLE and not func._schema.is_mutable:
            found = TABLE[func](*args, **(kwargs or {}))
            if found is NotImplemented:
                return expected
            for ours, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
                if isinstance(theirs, Tensor) and theirs.numel():
                    dims = zip(theirs.shape, ours.stride(), theirs.stride(), strict=True)
                    if any(n != 1 and a != b for n, a, b in dims):
                        self.different.append(f"{func}: {ours.stride()}, not {theirs.stride()}")
        return expected


def laid_out() -> Iterator[Tensor]:
    """Tensors of four dimensions in the layouts that operators tell apart."""
    for n, c, h, w in ((2, 4, 4, 6), (1, 4, 4, 6), (2, 1, 4, 6), (2, 4, 1, 1)):
        yield torch.randn(n, c, h, w)
        yield torch.randn(n, h, w, c).permute(0, 3, 1, 2)  # channels last
        yield torch.randn(h * w, n, c).permute(1, 2, 0).unflatten(2, (h, w))
        yield torch.randn(n, h, w, 2 * c).permute(0, 3, 1, 2)[:, ::2]
        yield torch.randn(n, c, w, h).mT
        yield torch.randn(c, n, h, w).transpose(0, 1)
        if n > 1:
            yield torch.randn(n, 1, h, w).expand(n, c, h, w)
        yield torch.randn(n, 2 * c, h + 2, w + 2)[:, ::2, 1:-1, 2:]


def _norm(x: Tensor, training: bool) -> Tensor:
    channels = x.shape[1]
    return F.batch_norm(x, torch.zeros(channels), torch.ones(channels), training=training)


FIRST = torch.tensor([0])
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "group_norm": lambda x: F.group_norm(x, x.shape[1]),
    "batch_norm": lambda x: _norm(x, False),
    "batch_norm_training": lambda x: _norm(x, True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "pad": lambda x: F.pad(x, (1, 0, 0, 1)),
    "pad_replicate": lambda x: F.pad(x, (1, 0, 0, 1), mode="replicate"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(torch.cat([x] * 4, 1), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 1),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 1),
    "softmax": lambda x: x.softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "index_add": lambda x: x.index_add(1, FIRST, x[:, :1]),
    "index_copy": lambda x: x.index_copy(1, FIRST, x[:, :1]),
    "index_select": lambda x: x.index_select(1, FIRST),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(),
    "roll": lambda x: x.roll(1, 2),
    "roll by nothing": lambda x: [
        x.roll(*to) for to in ((0, 1), (1, 0), ((0, 0), (1, 2)), ((0, 1), (1, 2)), ((1, 0), (1, 2)))
    ],
    "flip": lambda x: x.flip(1),
    "logsigmoid": F.logsigmoid,
    "gelu": F.gelu,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "max": lambda x: x.max(1),
    "norm": lambda x: x.norm(dim=1),
    "unfold": lambda x: F.unfold(x, 1),
    "fold": lambda x: F.fold(F.unfold(x, 1), x.shape[2:], 1),
    "mvlgamma": lambda x: (x.abs() + 3).mvlgamma(2),
    "isin": lambda x: torch.isin(x, torch.ones(3)),
    "powers of a number": lambda x: (2.0**x, 1**x, torch.ldexp(x, x)),
    "put": lambda x: x.put(FIRST, torch.ones(1)),
    "take": lambda x: torch.take(torch.arange(9.0), x.long() % 9),
    "masked_index": lambda x: torch.ops.aten._unsafe_masked_index(
        x, x > 0, [None, torch.arange(x.shape[1])], 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts(name: str) -> None:
    mode = Compare()
    with torch.no_grad(), mode:
        for x in laid_out():
            FUNCTIONS[name](x)
    assert not mode.different


def _loss(function: Any, reduction: str) -> Callable[[Tensor], Any]:
    """A loss beside a target of every layout."""

    def losses(x: Tensor) -> Any:
        return [
            function(x.sigmoid(), y.detach().sigmoid(), reduction=reduction)
            for y in laid_out()
            if y.shape == x.shape
        ]

    return losses


GRADIENTS: dict[str, Callable[[Tensor], Any]] = {
    **{
        f"{function.__name__} {reduction}": _loss(function, reduction)
        for function in (
            F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy,
            F.soft_margin_loss, F.kl_div, F.l1_loss,
        )
        for reduction in ("none", "mean")
    },
    "glu": lambda x: F.glu(torch.cat([x, x], 3), 3),
    "rrelu": lambda x: F.rrelu(x, training=False),
    **{
        mode: lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode)  # type: ignore[misc]
        for mode in ("nearest", "bilinear", "bicubic")
    },
    **{
        mode: lambda x, mode=mode: F.pad(x, (0, 0, 0, 0), mode=mode)  # type: ignore[misc]
        for mode in ("replicate", "reflect")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_layouts_of_gradients(name: str) -> None:
    mode = Compare()
    with mode:
        for x in laid_out():
            leaf = x.requires_grad_()
            results = tree_leaves(GRADIENTS[name](leaf))
            torch.autograd.grad([r.sum() for r in results], leaf)
            torch.autograd.grad(GRADIENTS[name](leaf), leaf, [torch.randn_like(r) for r in results])
    assert not mode.different


def test_huber_loss_lies_as_its_input_does() -> None:
    compare = Compare()
    with torch.no_grad(), compare:
        for x in (torch.randn(5), torch.randn(5, 5), torch.randn(5, 5).t()):
            for target in (torch.randn(5, 5), torch.randn(5, 5).t()):
                F.huber_loss(x.expand(5, 5), target, reduction="none", delta=0.5)
    assert not compare.different


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "trilinear"])
@pytest.mark.parametrize("scale", [2, 1.6])
def test_gradients_of_resized_volumes(mode: str, scale: float) -> None:
    compare = Compare()
    with compare:
        for batch in (1, 2):
            x = torch.randn(batch, 4, 5, 6, 3).permute(0, 4, 1, 2, 3).requires_grad_()
            result = F.interpolate(x, scale_factor=scale, mode=mode)
            for tangent in (torch.randn_like(result), torch.randn(result.shape)):
                torch.autograd.grad(result, x, tangent, retain_graph=True)
    assert not compare.different


TWO = "xlogy special_xlog1py logaddexp logaddexp2 heaviside fmax fmin".split()
BACKWARD = [
    "leaky_relu_backward(x, y, 0.1, False)", "threshold_backward(x, y, 0.5)",
    "hardswish_backward(x, y)", "hardsigmoid_backward(x, y)", "hardtanh_backward(x, y, -1, 1)",
    "elu_backward(x, 1, 1, 1, False, y)", "softplus_backward(x, y, 1, 20)",
    "softshrink_backward(x, y, 0.5)", "hardshrink_backward(x, y, 0.5)", "mish_backward(x, y)",
    "logit_backward(x, y, 0.1)", "gelu_backward(x, y)", "silu_backward(x, y)",
    "log_sigmoid_backward(x, y, y)", "binary_cross_entropy_backward(x, y, x)", "lerp(x, y, 0.3)",
    "lerp(x, y, x)", "addcmul(x, y, x)", "addcdiv(x, y, y)", "_prelu_kernel_backward(x, y, x)",
    "rsub(x, y)", "ldexp(x, y)", "isin(x, y[0])", "isin(x, 0.5)", "masked_fill(x, y > 0.5, 0)",
]  # fmt: skip


@pytest.mark.parametrize("call", [f"{n}(x, y)" for n in TWO] + BACKWARD)
def test_the_operand_that_lays_out_the_result(call: str) -> None:
    def gaps(*strides: int) -> Tensor:
        return torch.empty_strided((4, 5), strides).uniform_(0.1, 0.9)

    given = [torch.rand(5, 4).t(), torch.rand(4, 5), torch.rand(5).expand(4, 5),
             torch.rand(4, 1).expand(4, 5), gaps(1, 8), gaps(12, 2)]  # fmt: skip
    mode = Compare()
    with torch.no_grad(), mode:
        for x in given:
            for y in given:
                if call.startswith("isin") and (x.stride() == (12, 2)):
                    continue  # eager refuses it
                eval(f"aten.{call}", {"aten": torch.ops.aten, "x": x, "y": y})
    assert not mode.different


@pytest.mark.parametrize("call", ["add(x, y)", "div(x, y)", "xlogy(x, y)", "fmax(x, y)",
                                  "ldexp(x, y)", "rsub(x, y)"])  # fmt: skip
def test_operands_of_two_dtypes(call: str) -> None:
    """Of another dtype than the result's, a CPU's kernels read dense copies."""
    strides = ((5, 1), (1, 4), (0, 1), (1, 0), (1, 8), (12, 2))

    def laid(dtype: torch.dtype) -> list[Tensor]:
        return [torch.empty_strided((4, 5), s, dtype=dtype).fill_(2) for s in strides]

    mode = Compare()
    with torch.no_grad(), mode:
        for x in laid(torch.int64):
            for y in laid(torch.float32):
                for a, b in ((x, y), (y, x)):
                    eval(f"aten.{call}", {"aten": torch.ops.aten, "x": a, "y": b})
    assert not mode.different


def test_a_norm_of_one_pixel_is_row_major() -> None:
    """The strides of dimensions of one element decide in which format a resize goes on."""
    x = torch.randn(2, 4, 1, 1).as_strided((2, 4, 1, 1), (4, 1, 4, 4))
    ones = torch.ones(4)
    op = torch.ops.aten.native_batch_norm.default
    for training in (False, True):
        args = (x, ones, ones, ones.clone(), ones.clone(), training, 0.1, 1e-5)
        assert TABLE[op](*args)[0].stride() == op(*args)[0].stride()
