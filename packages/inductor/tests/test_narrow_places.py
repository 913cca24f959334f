"""C++ kernels whose places are computed in 32 bits, reads of vectors of what lies near one another,
and what moves narrow floats as the bits that they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.loop_ir.expr import Builder, walk
from dovetail_inductor.loop_ir.index import Var, variable
from dovetail_inductor.loop_ir.ranges import fits_int32, value_range
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, CppKernel
from torch import Tensor

WIDTHS = [InductorOptions(simd_bytes=n, everywhere=True) for n in (16, 32, 64)]
NAN, INF = float("nan"), float("inf")
TYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32,
    torch.int16, torch.uint8, torch.bool,
)  # fmt: skip


def drawn(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Different numbers in most elements; the same for equal sizes."""
    numbers = torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))) * 9
    return numbers > 0 if dtype is torch.bool else numbers.abs().to(dtype)


def sources(fn: Callable[..., Any], *inputs: Tensor, simd_bytes: int = 64) -> list[str]:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(simd_bytes=simd_bytes))
    assert not any(isinstance(step, CallAten) for step in plan.steps)
    return [k.source for k in plan.kernels if isinstance(k, CppKernel)]


# Of each element of a result, the place in a row of so many that it is read from.
PLACES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "twice": lambda i, n: i // 2 % n,
    "three of two": lambda i, n: (i * 2 // 3).clamp(0, n - 1),
    "every second": lambda i, n: (i * 2).clamp(0, n - 1),
    "every fifth": lambda i, n: (i * 5) % n,
    "backwards": lambda i, n: (n - 1 - i).clamp(0, n - 1),
    "to and fro": lambda i, n: ((i * 7) % 5 + i // 3).clamp(0, n - 1),
    "all one": lambda i, n: (i * 0 + n // 2).clamp(0, n - 1),
    "by a float": lambda i, n: (i.float() * 0.37 + 0.2).floor().long().clamp(0, n - 1),
}


@pytest.mark.parametrize("width", WIDTHS, ids=lambda o: str(o.simd_bytes))
@pytest.mark.parametrize("length", [7, 37])
def test_reads_at_computed_places(check: Any, length: int, width: InductorOptions) -> None:
    """Of lengths that fill vectors and that do not, at the very end of memory, too."""

    def read(x: Tensor) -> tuple[Tensor, ...]:
        places = [of(torch.arange(45), length) for of in PLACES.values()]
        return *(x[:, at] + 1 for at in places), *(x.t()[at] + 1 for at in places)

    check(read, drawn(3, length), options=width)


@pytest.mark.parametrize("dtype", TYPES)
def test_reads_of_every_type(check: Any, dtype: torch.dtype) -> None:
    def read(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x[:, of(torch.arange(71), 37)] for of in PLACES.values())

    for width in WIDTHS[1:]:
        check(read, drawn(3, 37, dtype=dtype), options=width, rtol=0, atol=0)


def test_places_from_memory(check: Any) -> None:
    """Neighbours, and what lies far apart, in one vector or in another; under a mask, too."""
    x, mask = drawn(500), drawn(96) > 5
    near, far = torch.arange(96) * 3 // 2, torch.randint(0, 500, (96,))
    mixed = torch.where(mask, near, far)
    for width in WIDTHS:
        for at in (near, far, mixed, near.flip(0), torch.cat([near, far])[::2]):
            check(lambda x, i: x[i] * 2 + x[(i + 1) % 500].sin() - x[i // 2], x, at, options=width)
        check(lambda x, m, s: x.masked_scatter(m, s), x[:96], mask, x[100:196], options=width)


def images(dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    for size in ((2, 3, 5, 7), (1, 17, 18, 33)):
        x = drawn(*size, dtype=dtype)
        yield x
        yield x.to(memory_format=torch.channels_last)


RESIZED: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": lambda x: F.interpolate(x, scale_factor=2),
    "odd": lambda x: F.interpolate(x, size=(11, 37)),
    "less": lambda x: F.interpolate(x, size=(4, 3)),
    "exact": lambda x: F.interpolate(x, size=(11, 37), mode="nearest-exact"),
    "linear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "half": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "corners": lambda x: F.interpolate(x, size=(11, 37), mode="bilinear", align_corners=True),
    "one row": lambda x: F.interpolate(x.flatten(2), scale_factor=2, mode="linear"),
    "shares": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "more shares": lambda x: F.adaptive_avg_pool2d(x, (11, 37)),
}


@pytest.mark.parametrize("width", WIDTHS, ids=lambda o: str(o.simd_bytes))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resized_images(check: Any, dtype: torch.dtype, width: InductorOptions) -> None:
    for x in images(dtype):
        check(lambda x: tuple(fn(x) for fn in RESIZED.values()), x, options=width)


aten = torch.ops.aten


def resized_back(grad: Tensor, image: Tensor) -> tuple[Tensor, ...]:
    sizes = list(grad.shape[2:]), list(image.shape)
    return (
        aten.upsample_nearest2d_backward(grad, *sizes, None, None),
        aten._upsample_nearest_exact2d_backward(grad, *sizes, None, None),
        aten.upsample_bilinear2d_backward(grad, *sizes, False, None, None),
        aten.upsample_bilinear2d_backward(grad, *sizes, True, None, None),
        aten._adaptive_avg_pool2d_backward(grad, image),
    )


@pytest.mark.parametrize("width", WIDTHS, ids=lambda o: str(o.simd_bytes))
@pytest.mark.parametrize("size", [(11, 37), (4, 3), (10, 14)])
def test_their_gradients(check: Any, size: tuple[int, int], width: InductorOptions) -> None:
    for x in images():
        check(resized_back, F.interpolate(x, size=size), x, options=width)


@pytest.mark.parametrize("shares", [(4, 3), (1, 1), (3, 8), (9, 16), (20, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shares_of_a_gradient(check: Any, shares: tuple[int, int], dtype: torch.dtype) -> None:
    """Along one dimension after the other, where there are fewer of them than of elements."""
    for x in images():
        grad = F.adaptive_avg_pool2d(x, shares).to(dtype)
        rtol = 4e-2 if dtype is torch.bfloat16 else None  # (eager adds up in bfloat16)
        check(aten._adaptive_avg_pool2d_backward, grad, x.to(dtype), rtol=rtol)


def sampled(x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
    inside = grid.nan_to_num(0.5, 3.0, -3.0)
    return (
        *(F.grid_sample(x, grid, m, align_corners=False) for m in ("bilinear", "nearest")),
        F.grid_sample(x, inside, padding_mode="border", align_corners=False),
    )


def test_samples_of_a_grid(check: Any) -> None:
    for x in images():
        grid = torch.rand(x.shape[0], 6, 21, 2) * 2.4 - 1.2
        grid[0, 0, :3, 0] = torch.tensor([NAN, INF, -INF])
        for width in WIDTHS[1:]:
            check(sampled, x, grid, options=width)


def test_places_that_32_bits_do_not_hold(check: Any) -> None:
    """Numbers made of places, beside and beyond what an int32 is."""
    x = drawn(40)

    def numbers(x: Tensor) -> Iterator[Tensor]:
        for factor in (2**26, 2**27, 2**31, 2**40):
            places = torch.arange(40) * factor
            yield places + (x > 3)
            yield x * (places > 5 * factor)
            yield (places - 2**31).abs() + x
            yield (torch.arange(40).float() * factor).long()

    for width in WIDTHS:
        check(lambda x: tuple(numbers(x)), x, options=width)


def test_a_place_that_is_no_number_is_not_known(check: Any) -> None:
    """What a float becomes that no integer holds is eager's."""
    x = torch.tensor([NAN, INF, -INF, 1e30, 3e9, -3e9, 5.0, 0.0] * 5)
    for width in WIDTHS:
        check(lambda x: x.long().clamp(0, 7), x, options=width)
        check(lambda x: torch.arange(8.0)[x.relu().nan_to_num().long().clamp(0, 7)], x)


def test_ranges_hold() -> None:
    """Of what is made of a loop's variable, all values lie within the range that is said."""
    b, v = Builder(), Var(0, 1000)
    for dtype in (torch.float32, torch.float64):
        i = torch.arange(1000).to(dtype)
        at = b.apply("cast", [b.index_value(variable(v))], dtype)

        def number(x: float, dtype: torch.dtype = dtype) -> Any:
            return b.constant(x, dtype)

        place = b.apply("mul", [b.apply("add", [at, number(0.5)]), number(0.3337)])
        wanted = (i + 0.5) * 0.3337
        whole = b.apply(
            "cast", [b.apply("floor", [b.apply("sub", [place, number(7.1)])])], torch.int64
        )
        low, high = value_range(b, whole)
        found = (wanted - 7.1).floor().long()
        assert low <= int(found.min()) and int(found.max()) <= high <= low + 345
    unknown = b.load("x", variable(v), torch.float32)
    for op in ("relu", "floor"):
        unknown = b.apply(op, [unknown])
    capped = b.apply("minimum", [unknown, b.constant(5.0, torch.float32)])
    low, _ = value_range(b, b.apply("cast", [capped], torch.int64))
    assert low == -(2**63)  # it may be a NaN
    assert all(node.uid in b.ranges for node in walk([capped]))
    assert fits_int32(variable(v) * 2**21) and not fits_int32(variable(v) * 2**22)


def test_vectors_have_as_many_lanes_as_of_floats() -> None:
    image = torch.randn(2, 3, 9, 40)
    functions: dict[Callable[..., Any], Tensor] = {
        lambda x: F.interpolate(x, size=(11, 70)): image,
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"): image,
        torch.diag_embed: image[0, 0, 0],
    }
    for fn, x in functions.items():
        for text in sources(fn, x):
            assert "<16>" in text and "<8>" not in text, text
    assert "ldi<16>(" in sources(F.grid_sample, image, torch.randn(2, 9, 40, 2))[-1]


HALVES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().contiguous(),
    "picked": lambda x: x[:, torch.arange(x.shape[1]) // 2],
    "some": lambda x: x[::2, 1:].clone(),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_what_is_moved_keeps_its_bits(name: str, dtype: torch.dtype) -> None:
    """NaNs of every kind, too, which arithmetic makes quiet; and nothing is converted."""
    bits = torch.int16 if dtype.itemsize == 2 else torch.int8
    info = torch.iinfo(bits)
    raw = torch.randint(info.min, info.max + 1, (37, 41)).to(bits)
    plan = compile_graph(trace_aten(MOVES[name], raw.view(dtype), decompositions=core_aten_table()))
    (got,) = load(plan)(raw.view(dtype))
    assert torch.equal(got.view(bits), MOVES[name](raw.view(dtype)).view(bits))
    text = "\n".join(k.source for k in plan.kernels if isinstance(k, CppKernel))
    assert "bf16" not in text and "half" not in text and "e4m3" not in text and "e5m2" not in text


def test_what_is_asked_about_is_a_number(check: Any) -> None:
    x, y = drawn(37, 41).bfloat16() - 9, drawn(41, 37).bfloat16()
    check(lambda x, y: torch.where(x > 0, x, y.t()), x, y, rtol=0, atol=0)
    check(lambda x, y: x.masked_fill(y.t() > x, NAN), x, y, rtol=0, atol=0)
    check(lambda x, y: (x.t().contiguous(), x.sum(0)), x, y)
