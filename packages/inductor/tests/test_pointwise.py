"""Every pointwise op against eager, many in one graph so that one compilation checks them all."""

import math

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.loop_ir.ops import OF_OPERATORS
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.targets.cuda.triton_ops import emit_op, has_scalar_form
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops.card import Dialect
from dovetail_prims.ops.catalog import POINTWISE
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import fx

# The functions of floats that CORE_ATEN keeps.
CORE = [c for c in POINTWISE if any(f.dialect is not Dialect.ATEN for f in c.forms)]
OF_BITS = ("bitwise_", "gcd")
UNARY = [c.reference() for c in CORE if c.arity == 1 and not c.name.startswith(OF_BITS)]
BINARY = [c.reference() for c in CORE if c.arity == 2 and not c.name.startswith(OF_BITS)]
BINARY.append(torch.floor_divide)

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 2.0, 88.7, -103.9,
           1e-40, -1e-40, 3.4e38, 1e-8, 0.999999, -2.5, 2.5, 1.5]  # fmt: skip


def values(n, dtype=torch.float32):
    x = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), torch.randn(n).double() * 3])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unary(check, dtype):
    # lgamma of values next to its poles amplifies the last bit of the argument
    check(lambda x: tuple(f(x) for f in UNARY), values(83, dtype), rtol=3e-6, atol=1e-6)


def test_the_error_function_stays_below_one(check):
    """What a normal distribution has beyond a point is small there, never negative."""
    x = torch.cat([torch.linspace(-5, 5, 4001), torch.tensor([math.nan, math.inf, -math.inf])])
    check(lambda x: (1 - x.erf().abs() < 0,), x)
    x = torch.linspace(2.5, 3.6, 4001)  # (1.2e-7: one unit of the difference, twice)
    check(lambda x: (1 - x.erf(), 1 - (-x).erf().abs()), x, rtol=0, atol=1.2e-7)


def test_functions_have_a_form_for_gpus() -> None:
    """A form of Triton's, or a function of CUDA's device library."""
    libdevice = pytest.importorskip("triton.language.extra.libdevice")
    for op, info in OF_OPERATORS.items():
        if not has_scalar_form(op, torch.float32) or op.startswith(("bitwise_", "shift_")):
            continue
        text = emit_op(op, ["a", "b", "c"][: info.arity], torch.float32, torch.float32)
        if text.startswith("libdevice."):
            assert hasattr(libdevice, op), f"{op} has no form for GPUs"


def test_every_function_in_the_interpreter_of_triton() -> None:
    """Only what is a common form: device functions stand in for themselves there."""
    x = values(40)
    gm = trace_aten(lambda x: tuple(f(x) for f in UNARY), x, decompositions=core_aten_table())
    plan = compile_graph(gm, (x,), options=InductorOptions(triton=True))
    found = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    for f, got in zip(UNARY, found, strict=True):
        torch.testing.assert_close(got, f(x), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_unary_half_types(check):
    ops = [f for f in UNARY if f not in (torch.lgamma, torch.erfinv)]
    for dtype in (torch.bfloat16, torch.float16):
        check(lambda x: tuple(f(x) for f in ops), torch.randn(77).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary(check, dtype):
    x = values(83, dtype)
    # eager's vectorised fmod gives NaN where the quotient overflows
    x = x[(x == 0) | ~(x.abs() < 1e-7) & ~((x.abs() > 1e20) & x.isfinite())]
    y = x[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(1))]
    check(lambda x, y: tuple(f(x, y) for f in BINARY), x, y, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8])
def test_integers(check, dtype):
    low = 0 if dtype is torch.uint8 else -100
    x = torch.randint(low, 100, (71,)).to(dtype)
    y = torch.randint(low, 100, (71,)).to(dtype)
    z = torch.where(y == 0, torch.ones_like(y), y)

    def fn(x, y, z):
        return (
            x + y, x - y, x * y, x & y, x | y, x ^ y, ~x, torch.maximum(x, y), x < y, x == y,
            torch.div(x, z, rounding_mode="trunc"), torch.div(x, z, rounding_mode="floor"),
            torch.remainder(x, z), torch.fmod(x, z), x / z, torch.sign(x), x << 2, x >> 1,
            torch.exp(x.float() / 50), x.to(torch.float32), x.bool(), x * 2.5, x + 3, -x, x ** 2,
        )  # fmt: skip

    check(fn, x, y, z)


def integer_powers(x):
    return tuple(x**n for n in (0, 1, 4, 5, 7, 23, 87)) + (x.pow(3) + 1, 2**5 * x.pow(6))


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integer_powers(check, dtype, triton):
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), (77,), generator=generator)
    x = x.to(dtype)
    if not triton:
        check(integer_powers, x)
        return
    gm = trace_aten(integer_powers, x, decompositions=core_aten_table())
    plan = compile_graph(gm, [x], options=InductorOptions(triton=True))
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    for mine, theirs in zip(got, integer_powers(x), strict=True):
        assert mine.dtype is theirs.dtype and torch.equal(mine, theirs)


def test_integer_division_by_zero_raises(check):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        check(
            lambda x, y: torch.div(x, y, rounding_mode="floor"),
            torch.arange(4),
            torch.tensor([1, 2, 0, 1]),
        )


def test_halves_beside_doubles_are_compared_as_doubles(check):
    def fn(x):
        half = (x * 2).to(torch.float16)
        return x > half, torch.where(half < x, x, half), half == x

    check(fn, torch.randn(7, dtype=torch.float64))


def test_bool_and_promotion(check):
    b, c = torch.rand(45) > 0.5, torch.rand(45) > 0.5
    x, i, h = torch.randn(45), torch.arange(45), torch.randn(45).bfloat16()

    def fn(b, c, x, i, h):
        zero_dim = x.sum() * 0 + 2
        return (
            b & c, b | c, b ^ c, ~b, b + c, b * c, b + x, i + x, i * h, h + x, h * 2.5, i + 2.5,
            i + True, torch.where(b, x, 0.0), torch.where(b, i, x), h + zero_dim, i * zero_dim,
            b < c, x.to(torch.int32), x.to(torch.bool), b.to(torch.float64), h.to(torch.float16),
            x.double() + h, h > 0.1,
        )  # fmt: skip

    check(fn, b, c, x, i, h)


def test_broadcasting_and_strides(check):
    x = torch.randn(7, 1, 33)
    y = torch.randn(5, 33).t().contiguous().t()
    z = torch.randn(33, 5, 14)[:, :, ::2].permute(2, 1, 0)

    def fn(x, y, z):
        return x + y, y * 2, z - x, (z.transpose(0, 1) + 1), z[1:4, ::2] * 3, z.sum() * 0 + 1

    check(fn, x, y, z)


def test_channels_last_strides_are_kept(check):
    x = torch.randn(2, 5, 7, 9).to(memory_format=torch.channels_last)
    check(lambda x, w: (torch.relu(x) * w.view(1, -1, 1, 1), x.contiguous()), x, torch.randn(5))


def test_empty_and_zero_dim(check):
    check(
        lambda x, s: (x + s, s * 2, x.sum(), x.sum(0), torch.exp(s)),
        torch.randn(0, 5),
        torch.tensor(3.0),
    )


def test_large_flat_kernel_splits_into_blocks(check):
    check(lambda x: x * 2 + 1, torch.randn(3 * 4096 + 13))


def test_numbers(check):
    check(
        lambda x: (
            x * float("inf"),
            x + float("nan"),
            x > -float("inf"),
            x.clamp(-1, 1),
            x.clamp(min=0),
            torch.full_like(x, 3),
            torch.zeros_like(x) + x,
        ),
        values(20),
    )


def test_numbers_on_a_cpu_are_part_of_a_gpus_loops():
    """`torch.minimum(x, torch.tensor(0.5))`: no call that takes tensors of two devices."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = FakeTensor.make((8, 8), (8, 1), torch.float32, torch.device("cuda", 0))
    half = graph.call_function(torch.ops.aten.full.default, ([], 0.5), {"dtype": torch.float32})
    half.meta["val"] = FakeTensor.make((), (), torch.float32, torch.device("cpu"))
    least = graph.call_function(torch.ops.aten.minimum.default, (x, half))
    least.meta["val"] = x.meta["val"]
    graph.output((least,))
    lowered = lower(fx.GraphModule(torch.nn.Module(), graph))
    (nest,) = lowered.nodes
    assert isinstance(nest, LoopNest) and nest.reads() == {"arg0"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_integers_wrap_around(check, dtype):
    """What a compiler could know of them if they did not, it must not use."""
    largest = torch.iinfo(dtype).max
    x = torch.tensor([largest, -largest - 1, largest // 2 + 3, largest // 3, 181, -7, 0, 5]).to(
        dtype
    )
    x = torch.cat([x, torch.arange(largest - 40, largest).to(dtype)])

    def fn(x):
        square, more, half = x * x, x + 5, x * 2
        return (
            square.clamp(-1, 1), (square < 0).int(), square // 7, (more > x).int(), half // 2,
            (-x).clamp(min=-3), x.abs().clamp(min=-3), (half - x).sign(), (x - 9 < x).int(),
        )  # fmt: skip

    check(fn, x)


@pytest.mark.parametrize("simd", [16, 32, 64])
def test_tiles_of_every_width_are_whole(check, simd):
    """What lies across is read in tiles: of two lanes as of sixteen, full ones and the last."""
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        x, y = ((torch.randn(70, 67) * 9).to(dtype) for _ in range(2))
        check(
            lambda a, b: a.t() + b[:67],
            x,
            torch.cat([y, y], 1)[:, :70],
            options=InductorOptions(simd_bytes=simd),
        )
