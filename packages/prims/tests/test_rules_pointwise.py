"""Pointwise rules against eager: layouts, broadcasting, type promotion, in-place checks."""

from __future__ import annotations

import pytest
import torch
from rule_checks import aten, check, layouts

SHAPES = [
    (), (3,), (1,), (2, 3), (1, 3), (3, 1), (0, 3), (2, 1, 3), (2, 3, 4, 5), (2, 1, 4, 5),
    (2, 3, 1, 1), (1, 3, 1, 1), (1, 3, 4, 4), (1, 1, 2, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_unary_and_numbers(shape: tuple[int, ...]) -> None:
    for x in layouts(shape):
        check(aten.relu.default, x)
        check(aten.exp.default, x)
        check(aten.gelu.default, x)
        check(aten.isnan.default, x)
        check(aten.add.Tensor, x, 2.0)
        check(aten.rsub.Scalar, x, 1.0)
        check(aten.gt.Scalar, x, 1)
        check(aten.pow.Tensor_Scalar, x, 2)
        check(aten.pow.Scalar, 2.0, x)
        check(aten.pow.Scalar, 1, x)
        check(aten.clamp.default, x, 0.0, 1.0)
        check(aten.clone.default, x)
        check(aten._to_copy.default, x, dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_same_shape_operands(shape: tuple[int, ...]) -> None:
    for x in layouts(shape):
        for y in layouts(shape)[::-2]:
            check(aten.mul.Tensor, x, y)
            check(aten.where.self, x > 0, x, y)
            check(aten.threshold_backward.default, x, y, 0)
            check(aten.gelu_backward.default, x, y)
            check(aten.masked_fill.Scalar, x, y > 0, 1.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_broadcast_operands(shape: tuple[int, ...]) -> None:
    ones = (1,) * len(shape)
    others = {shape[1:], (*shape[:-1], 1) if shape else (2,), ones, (), (1, *shape), (7,)}
    for x in layouts(shape):
        for other in others:
            for y in layouts(other)[::2]:
                check(aten.sub.Tensor, x, y)
                check(aten.sub.Tensor, y, x)
                check(aten.sub_.Tensor, x, y)


DTYPES = (
    torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
)  # fmt: skip


@pytest.mark.parametrize("first", DTYPES)
def test_type_promotion(first: torch.dtype) -> None:
    binary = (
        aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.maximum.default,
        aten.add_.Tensor, aten.mul_.Tensor, aten.div_.Tensor,
    )  # fmt: skip
    for second in (*DTYPES, torch.complex64):
        for one, two in (((3,), (3,)), ((3,), ()), ((), (3,)), ((), ())):
            a, b = torch.zeros(one, dtype=first), torch.zeros(two, dtype=second)
            for op in binary:
                if second.is_complex and (op is aten.maximum.default or first.itemsize == 2):
                    continue  # eager has no such kernel
                check(op, a, b)
            if not second.is_complex:
                check(aten.where.self, torch.zeros(3, dtype=torch.bool), a, b)
    for number in (True, 2, 2.5, 1j):
        for shape in ((3,), ()):
            a = torch.zeros(shape, dtype=first)
            if isinstance(number, complex) and first.itemsize == 2:
                continue
            for op in (aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Scalar):
                check(op, a, number)
            for op in (aten.sub.Tensor, aten.add_.Tensor, aten.mul_.Tensor, aten.div_.Tensor):
                check(op, a, number)
    a = torch.zeros(3, dtype=first)
    for name in ("neg", "exp", "sqrt", "sigmoid", "tanh", "isnan", "logical_not", "reciprocal"):
        check(getattr(aten, name).default, a)
    for op in (aten.sum.default, aten.mean.default, aten.prod.default, aten.any.default):
        check(op, a)
    check(aten.cumsum.default, a, 0)
    check(aten.all.dim, a, 0)


def of_many_layouts(dtype: torch.dtype) -> list[torch.Tensor]:
    """Matrices, some with gaps or elements on one another, which a conversion makes dense."""
    gaps = [torch.ones(6, 10)[::2, ::2], torch.ones(5, 6)[:, ::2].t(), torch.ones(5, 3).t()]
    spread = [torch.ones(1, 5).expand(3, 5), torch.ones(3, 1).expand(3, 5), torch.ones(3, 5)]
    layouts = [*gaps, *spread, torch.ones(5), torch.ones(1).expand(5), torch.ones(3, 1)]
    return [
        torch.empty_strided(t.shape, t.stride(), dtype=dtype, device=t.device).fill_(1)
        for t in layouts
    ]


def test_operands_of_two_dtypes() -> None:
    """Of another dtype than the result's, a CPU's kernels read dense copies."""
    condition = torch.ones(3, 5, dtype=torch.bool)
    for x in of_many_layouts(torch.bool):
        for y in of_many_layouts(torch.float32):
            for a, b in ((x, y), (y, x)):
                check(aten.add.Tensor, a, b)
                check(aten.div.Tensor, a, b)
                check(aten.lt.Tensor, a, b)
                check(aten.where.self, condition, a, b)
                check(aten.where.self, condition.t().contiguous().t(), a, b)
        for y in of_many_layouts(torch.int64):
            check(aten.div.Tensor, x, y)  # computed in float32
            check(aten.maximum.default, y, x)
            check(aten.where.self, x, y, y.clone())


def test_losses() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for x in layouts((2, 3, 4), dtype):
            for y in layouts((2, 3, 4), dtype)[:3]:
                for reduction in (0, 1, 2):
                    check(aten.mse_loss.default, x, y, reduction)
                    check(aten.smooth_l1_loss.default, x, y, reduction)
                    check(aten.huber_loss.default, x, y, reduction)
        target = torch.zeros(4, dtype=torch.int64)
        for x in layouts((4, 7), dtype):
            for reduction in (0, 1, 2):
                check(aten.nll_loss_forward.default, x, target, None, reduction, -100)
                grad = torch.zeros((4,) if reduction == 0 else (), dtype=dtype)
                weight = torch.zeros((), dtype=dtype)
                check(
                    aten.nll_loss_backward.default,
                    grad, x, target, None, reduction, -100, weight,
                )  # fmt: skip
        pixels = torch.zeros(2, 3, 3, dtype=torch.int64)
        for x in layouts((2, 4, 3, 3), dtype):
            for reduction in (0, 1, 2):
                check(aten.nll_loss2d_forward.default, x, pixels, None, reduction, -100)


@pytest.mark.parametrize(
    "op",
    [
        aten.heaviside.default, aten.logaddexp.default, aten.logaddexp2.default,
        aten.xlogy.Tensor, aten.special_xlog1py.default, aten.ldexp.Tensor, aten.rsub.Tensor,
    ],
    ids=str,
)  # fmt: skip
def test_which_operand_lays_out_the_result(op):
    broadcast = torch.empty_strided((10, 1, 5), (1, 10, 10)).fill_(0.5)
    gaps = [torch.empty_strided((4, 3), strides).fill_(0.5) for strides in ((1, 8), (6, 2))]
    for pair in ((broadcast, torch.ones(5, 10).t()), gaps, gaps[::-1]):
        check(op, *pair)
    whole = torch.ones(3, 4, dtype=torch.int32).t()
    check(op, whole, torch.ones(4, 3), expect_rule=False)
    check(op, whole, whole, expect_rule=False)


def test_operators_that_give_their_argument():
    for x in (torch.empty_strided((4, 3), (1, 8)), torch.ones(3, 4).t(), torch.ones(2).bool()):
        check(aten.positive.default, x)
        check(aten.conj_physical.default, x)
        check(aten.conj_physical.default, x.to(torch.complex64))


def test_whether_each_is_one_of_others_is_row_major():
    for x in (
        torch.ones(3, 4).t(),
        torch.ones(3).expand(2, 3),
        torch.ones(2, 1, 3).transpose(0, 2),
    ):
        check(aten.isin.Tensor_Tensor, x, torch.ones(5))


def test_draws_are_row_major():
    for x in (torch.ones(4, 3).t(), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        check(aten.poisson.default, x)
        check(aten._standard_gamma.default, x)
