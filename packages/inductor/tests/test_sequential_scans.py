"""Running sums, products, extremes and logarithms on a CPU: loops along each row, against eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.options import FusionLimits
from dovetail_runtime import load
from test_symbolic import SHAPES, traced
from torch import Tensor

OPERATORS: dict[str, Callable[..., Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "logcumsumexp": torch.logcumsumexp,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
INTEGERS = (torch.int64, torch.uint8, torch.bool)


def elements(shape: tuple[int, ...], dtype: torch.dtype, product: bool = False) -> Tensor:
    """Few different ones, so that extremes are met more than once; near one for products."""
    if dtype.is_floating_point:
        x = torch.randn(shape)
        return (1 + x * 0.05 if product else (x * 8).round() / 4).to(dtype)
    return torch.randint(-3, 4, shape).to(dtype)


@pytest.mark.parametrize("name", OPERATORS)
def test_types(check: Any, name: str) -> None:
    """In both directions through memory; a vector's worth of columns, and fewer."""
    fn = OPERATORS[name]
    dtypes = FLOATS if name == "logcumsumexp" else FLOATS + INTEGERS
    shapes = [((21, 37), dtype) for dtype in dtypes] + [((40, 3), dtypes[-1])]
    for shape, dtype in shapes:
        x = elements(shape, dtype, name == "cumprod")
        checked = check(lambda x: (*_flat(fn(x, 1)), *_flat(fn(x, -2))), x)
        assert checked.externs == [] and checked.launches <= 2


def _flat(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("size", [7, 8, 300])
def test_lengths_and_special_numbers(check: Any, name: str, size: int) -> None:
    fn = OPERATORS[name]
    x = elements((6, size), torch.float32, name == "cumprod")
    x[0, size // 2] = torch.nan
    x[1, 0] = x[1, size // 3] = -torch.inf
    x[2, size // 2 :] = torch.inf
    x[3] = -torch.inf
    x[4, : size // 2] = torch.nan
    x[5] = 0.0
    y = x.half() if size == 8 else x
    check(lambda y: (*_flat(fn(y, 0)), *_flat(fn(y, 1))), y)


@pytest.mark.parametrize("name", OPERATORS)
def test_layouts(check: Any, name: str) -> None:
    """Rows with gaps, transposed, expanded, of four dimensions, channels last; of one element, of
    none, of no dimension."""
    fn = OPERATORS[name]
    x = torch.rand(6, 10, 9) + 0.5
    inputs = [
        x[::2, 1:, ::3], x.transpose(0, 2), x[:, :1].expand(6, 5, 9), x.permute(1, 2, 0).flip(0),
        (torch.rand(2, 3, 4, 5) + 0.5).to(memory_format=torch.channels_last),
    ]  # fmt: skip
    for y in inputs:
        check(lambda y: tuple(v for d in range(y.dim()) for v in _flat(fn(y, d - y.dim()))), y)
    for y in (torch.rand(3, 0, 2), torch.rand(4, 1), torch.tensor(2.0)):
        check(lambda y: (*_flat(fn(y, 0)), *_flat(fn(y, -1))), y)


def test_conversions(check: Any) -> None:
    def fn(x: Tensor, k: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return (
            x.cumsum(0, dtype=torch.float64), k.cumsum(1, dtype=torch.float32),
            k.cumprod(1, dtype=torch.int8), m.cumsum(1), (m.cumsum(1) * m).long() - 1,
        )  # fmt: skip

    k = torch.randint(-9, 9, (4, 40), dtype=torch.int32)
    assert check(fn, torch.randn(30, 5), k, torch.rand(4, 50) > 0.3).externs == []


def test_totals_are_as_exact_as_eagers(check: Any) -> None:
    """A float32 total is rounded once, when it is written, however long the row."""
    x = torch.randn(2, 100_000) * 100
    x[1] = x[1].abs()
    checked = check(lambda x: (x.cumsum(1), x.logcumsumexp(1), x.t().contiguous().cumsum(0)), x)
    sums, logarithms, across = checked.outputs
    wide = x.double()
    assert torch.equal(sums, wide.cumsum(1).float())
    assert torch.equal(across.t(), sums)
    assert (logarithms - wide.logcumsumexp(1)).abs().max() <= 0.51 * 2**-14  # beside 1e2 .. 5e2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x * y).cumsum(1),
        lambda x, y: 1 - (x * y).cumsum(1).tanh(),
        lambda x, y: (x * y).cumsum(0) + y,
        lambda x, y: x.softmax(1).cumsum(1) > 0.9,
        lambda x, y: (x - x.mean(1, keepdim=True)).cumsum(1).amax(1),
        lambda x, y: x.cumsum(1) / x.cumsum(1).abs().sum(1, keepdim=True),
        lambda x, y: x.cumsum(1).cumprod(1) + y,
        lambda x, y: (x + y).cummax(1)[1] * 2,
        lambda x, y: tuple((x + y).cummin(0)),
        lambda x, y: (x * 2).flip(1).cumsum(1).flip(1),
        lambda x, y: x.flip(0).cumsum(0).flip(0) * y,
        lambda x, y: y * (x.flip(1).logcumsumexp(1).flip(1) + 1),
        lambda x, y: x.flip(0, 1).cumsum(1).flip(0, 1).tanh(),
    ],
)
def test_one_kernel(check: Any, fn: Callable[..., Any]) -> None:
    """What is computed of the elements, and of the totals, joins the loop; also backwards."""
    checked = check(fn, torch.rand(6, 35), torch.rand(6, 35), rtol=1e-5, atol=1e-5)
    assert (checked.launches, checked.externs) == (1, [])


def test_several_dimensions(check: Any) -> None:
    """Scans along several dimensions share no loop, but each has its own kernel only."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        flat = x.reshape(-1).cumsum(0)
        return x.cumsum(0).cumsum(1).cumsum(2), flat, x.transpose(0, 2).reshape(-1).cumsum(0)

    checked = check(fn, torch.rand(5, 12, 9), rtol=1e-5, atol=1e-5)
    assert checked.externs == [] and checked.launches == 5


def test_many_short_rows_of_logarithms_are_the_librarys(check: Any) -> None:
    """Unless ours are asked for."""
    fn, x = lambda x: (x.logcumsumexp(1),), torch.randn(500, 3)
    assert check(fn, x).externs == ["aten::logcumsumexp"]
    assert check(fn, x, options=InductorOptions(everywhere=True)).externs == []
    assert check(fn, x[:20]).externs == []


def test_unfused_and_narrow(check: Any) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return (x * 2).cumsum(0) + 1, *x.cummax(1), x.flip(0).logcumsumexp(0)

    for options in (
        InductorOptions(fusion=FusionLimits(max_nests=1)),
        InductorOptions(simd_bytes=16),
    ):
        assert check(fn, torch.rand(9, 21), options=options).externs == []


@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp"])
def test_symbolic_sizes(name: str) -> None:
    fn = OPERATORS[name]

    def both(x: Tensor) -> Tensor:
        return fn(x, 0) + fn(x, 1).flip(1) * 2

    artifact = load(compile_graph(traced(both, [torch.zeros(4, 6)])))
    for shape in SHAPES:
        x = elements(shape, torch.float32)
        torch.testing.assert_close(artifact.run(x)[0], both(x), atol=1e-4, rtol=1e-4)
