"""Pointwise ops against eager's, over dtypes, broadcasts, numbers and the awkward values."""

import math

import pytest
import torch
from decomposition_checks import check

aten = torch.ops.aten
FLOATS = (torch.float64, torch.float32, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)


def draw(*shape, dtype):
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(1, 9, shape).to(dtype)
    return (torch.randn(shape, dtype=torch.float64) * 3).to(dtype)


AWKWARD = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, math.inf, -math.inf, math.nan, 1e-30, -1e30]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + (torch.bool,), ids=str)
def test_numbers(dtype):
    torch.manual_seed(0)
    for shape in ((3, 4), (), (0, 2)):
        x = draw(*shape, dtype=dtype)
        for n in (2, 2.5, True):
            check(aten.add.Scalar, [x, n])
            check(aten.mul.Scalar, [x, n])
            check(aten.div.Scalar, [x, n])
            if dtype != torch.bool and n is not True:
                check(aten.add.Scalar, [x, n, 3])
                check(aten.sub.Scalar, [x, n])
                check(aten.sub.Scalar, [x, n, 3])
                check(aten.rsub.Scalar, [x, n])
                check(aten.rsub.Scalar, [x, n, 3])
                check(aten.rsub.Tensor, [x, draw(*shape, dtype=dtype)], {"alpha": 2})
                check(aten.floor_divide.Scalar, [x, n])
                check(aten.floor_divide.default, [x, draw(*shape, dtype=dtype)])
                for mode in (None, "floor", "trunc"):
                    check(aten.div.Scalar_mode, [x, n], {"rounding_mode": mode})
                check(aten.remainder.Scalar_Tensor, [n, x.abs() + 1 if dtype != torch.uint8 else x])
            check(aten.fill.Scalar, [x, n])
            check(aten.masked_fill.Scalar, [x, draw(*shape, dtype=torch.bool), n])
            if dtype != torch.bool:
                check(aten.clamp.default, [x, n])
            check(aten.copysign.Scalar, [x, n])
        check(aten.zero.default, [x])
        value = draw(dtype=dtype)
        check(aten.fill.Tensor, [x, value])
        check(aten.masked_fill.Tensor, [x, draw(*shape, dtype=torch.bool), value])
    row = draw(4, dtype=dtype)
    check(aten.masked_fill.Scalar, [row, draw(3, 4, dtype=torch.bool), 1])


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_clamps(dtype):
    torch.manual_seed(0)
    x, low, high = draw(3, 4, dtype=dtype), draw(4, dtype=dtype), draw(3, 1, dtype=dtype)
    for a, b in ((2, 4), (None, 3), (3, None), (5, 2), (1.5, 3.5), (-2, 3), (-2, 3.5), (-5, None)):
        check(aten.clamp.default, [x, a, b])
    for a, b in ((low, high), (None, high), (low, None)):
        check(aten.clamp.Tensor, [x, a, b])
    check(aten.clamp_min.default, [x, 3])
    check(aten.clamp_max.default, [x, 3.5])
    check(aten.clamp_min.Tensor, [x, low])
    check(aten.clamp_max.Tensor, [x, high])
    if dtype.is_floating_point:
        odd = torch.tensor(AWKWARD, dtype=dtype)
        check(aten.clamp.default, [odd, -0.5, 0.5])
        check(aten.clamp_min.default, [odd, 0])


EXPONENTS = (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 2.5, 0.0, 1.0, 2.0, -3)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_powers(dtype):
    torch.manual_seed(0)
    x = draw(3, 4, dtype=dtype)
    for exponent in EXPONENTS:
        if dtype.is_floating_point or exponent >= 0 or isinstance(exponent, float):
            check(aten.pow.Tensor_Scalar, [x, exponent])
            check(aten.pow.Tensor_Scalar, [x[0, 0], exponent])
    for base in (1, 2, 2.5, 0, 10):
        check(aten.pow.Scalar, [base, x.abs() if dtype != torch.uint8 else x])
    if dtype.is_floating_point:
        for exponent in EXPONENTS:
            odd = torch.tensor(AWKWARD[:9], dtype=dtype)
            check(aten.pow.Tensor_Scalar, [odd, exponent])


@pytest.mark.parametrize("dtype", FLOATS + (torch.int64,), ids=str)
def test_fused_forms(dtype):
    torch.manual_seed(0)
    x, a, b = draw(3, 4, dtype=dtype), draw(4, dtype=dtype), draw(3, 1, dtype=dtype)
    for value in (1, 2):
        check(aten.addcmul.default, [x, a, b], {"value": value})
        if dtype.is_floating_point:
            check(aten.addcdiv.default, [x, a, b], {"value": value})
    if dtype.is_floating_point:
        for weight in (0.0, 0.3, 0.5, 0.9, 1.0):
            check(aten.lerp.Scalar, [x, a, weight])
        check(aten.lerp.Tensor, [x, a, torch.rand(3, 4).to(dtype)])


UNARY = (
    "special_entr.default", "deg2rad.default", "rad2deg.default", "sgn.default",
    "signbit.default", "nan_to_num.default", "isposinf.default", "isneginf.default",
    "sinc.default", "frac.default", "angle.default",
)  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS + (torch.int64,), ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    torch.manual_seed(0)
    op, overload = name.split(".")
    function = getattr(getattr(aten, op), overload)
    if op == "frac" and not dtype.is_floating_point:
        return
    for shape in ((3, 4), (), (0, 2)):
        check(function, [draw(*shape, dtype=dtype)])
    if dtype.is_floating_point:
        odd = torch.tensor(AWKWARD[:9], dtype=dtype)
        if op != "sinc":
            check(function, [odd])
        if op == "nan_to_num":
            check(function, [odd, 1.0, 2.0, 3.0])


BINARY = ("logaddexp", "logaddexp2", "xlogy", "special_xlog1py", "heaviside", "fmax", "fmin")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    torch.manual_seed(0)
    packet = getattr(aten, name)
    function = packet.Tensor if name == "xlogy" else packet.default
    check(function, [draw(3, 4, dtype=dtype), draw(3, 4, dtype=dtype).abs()])
    if name != "heaviside":
        check(function, [draw(3, 4, dtype=dtype), draw(4, dtype=dtype).abs()])
    odd = torch.tensor(AWKWARD[:9], dtype=dtype)
    grid = [odd.view(-1, 1).expand(9, 9).contiguous(), odd.expand(9, 9).contiguous()]
    check(function, grid)


def test_numbers_in_special_functions():
    x = torch.rand(5) + 0.5
    check(aten.xlogy.Scalar_Other, [x, 3.0])
    check(aten.xlogy.Scalar_Self, [2, x])
    check(aten.special_xlog1py.other_scalar, [x, 3])
    check(aten.special_xlog1py.self_scalar, [2.0, x])
    for decimals in (0, 2, -1):
        check(aten.round.decimals, [torch.randn(20) * 30], {"decimals": decimals})


def test_shifts():
    x = torch.randint(0, 99, (7,))
    check(aten.bitwise_left_shift.Tensor_Scalar, [x, 3])
    check(aten.bitwise_right_shift.Tensor_Scalar, [x, 3])


def test_layouts():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    permuted = torch.randn(3, 4, 5).permute(2, 0, 1)
    for t in (x, permuted):
        check(aten.pow.Tensor_Scalar, [t, 2])
        check(aten.pow.Tensor_Scalar, [t, 0])
        check(aten.clamp.default, [t, 0.0, 1.0])
        check(aten.fill.Scalar, [t, 2.0])
        check(aten.masked_fill.Scalar, [t, t > 0, 2.0])
        check(aten.addcmul.default, [t, t, t])
