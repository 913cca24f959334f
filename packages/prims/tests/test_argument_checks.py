"""Calls that eager's kernels refuse raise on fakes what eager raises, and no others do."""

from __future__ import annotations

import pytest
import torch
from dovetail_prims import from_real
from dovetail_prims.decompositions import core_aten_table
from eager_oracle import run_expanded

aten = torch.ops.aten
F = torch.nn.functional
FILL = aten.masked_fill.Tensor
NUMBERS = [0, 1.5, -1, -3, 127, 128, -128, -129, 255, 300, 65504, 65505, 70000.0, -70000.0, 2**31,
           2**62, 1e39, -1e39, 1e300, float("inf"), float("nan"), 1j, 2 + 0j]  # fmt: skip
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16,
          torch.bfloat16, torch.float32, torch.float64, torch.complex64]  # fmt: skip
MASK = torch.tensor([True, False, True])
INDEX = torch.tensor([0, 2])

FILLS = {
    "masked_fill": lambda x, v: x.masked_fill(MASK, v),
    "masked_fill_": lambda x, v: x.masked_fill_(MASK, v),
    "fill": lambda x, v: torch.fill(x, v),
    "fill_": lambda x, v: x.fill_(v),
    "full": lambda x, v: torch.full(x.shape, v, dtype=x.dtype),
    "full_like": lambda x, v: torch.full_like(x, v),
    "new_full": lambda x, v: x.new_full(x.shape, v),
    "index_fill": lambda x, v: x.index_fill(0, INDEX, v),
    "scatter": lambda x, v: x.scatter(0, INDEX, v),
    "pad": lambda x, v: aten.constant_pad_nd(x, [1, 0], v),
    "no pad": lambda x, v: aten.constant_pad_nd(x, [-1, 0], v),
    "scalar_tensor": lambda x, v: aten.scalar_tensor(v, dtype=x.dtype),
    "item": lambda x, v: x.__setitem__(0, v),
}


def outcome(call, *args):
    """What a call raises: its text; None if nothing."""
    try:
        call(*args)
    except (RuntimeError, NotImplementedError, IndexError, TypeError) as error:
        return str(error).splitlines()[0]
    return None


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FILLS)
def test_numbers_that_a_dtype_does_not_hold(name, dtype, count):
    x = torch.ones(count, dtype=dtype)
    if count < 3 and not (("fill" in name and "masked" not in name) or "full" in name):
        return
    for value in NUMBERS:
        eager = outcome(FILLS[name], x.clone(), value)
        if eager is not None and "overflow" not in eager:
            continue  # (refused for another reason)
        assert outcome(FILLS[name], from_real(x), value) == eager, value


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_in_tensors_that_a_dtype_does_not_hold(dtype):
    """Only the data tells: the decomposition asserts it."""
    x = torch.ones(3, dtype=dtype)
    for value in NUMBERS:
        for source in DTYPES:
            try:
                number = torch.tensor(value, dtype=source)
            except (RuntimeError, TypeError):
                continue
            eager = outcome(FILL, x, MASK, number)
            ours = outcome(lambda n=number: run_expanded(core_aten_table(), FILL, (x, MASK, n), {}))
            assert ours == eager, (value, source)


CALLS = {
    "as_strided": lambda x, a: x.as_strided(*a),
    "as_strided_scatter": lambda x, a: x.as_strided_scatter(torch.zeros(a[0]), *a),
    "as_strided_copy": lambda x, a: torch.as_strided_copy(x, *a),
    "as_strided of a part": lambda x, a: x[1:, ::2].as_strided(*a),
    "as_strided of a result": lambda x, a: (x * 2)[1:].as_strided(*a),
    "as_strided as another dtype": lambda x, a: x.view(torch.int16).as_strided(*a),
}


@pytest.mark.parametrize("place", [((2, 2), (4, 1)), ((2, 2), (12, 3)), ((2, 2), (13, 3)),
                                   ((4, 4), (4, 1), 1), ((0, 4), (400, 1)), ((1,), (999,)),
                                   ((2,), (1,), 14), ((2,), (1,), 15), ((2, 2), (-1, 1)),
                                   ((2, 2), (200, 200))])  # fmt: skip
@pytest.mark.parametrize("name", CALLS)
def test_views_that_reach_past_their_storage(name, place):
    x = torch.randn(4, 4)
    if name == "as_strided_scatter" and min(place[1]) < 0:
        return  # (zeros of the result's own size come first)
    assert outcome(CALLS[name], from_real(x), place) == outcome(CALLS[name], x, place)


def test_a_view_of_a_larger_storage_may_reach_past_the_tensor():
    x = torch.randn(4, 4)[:2]
    assert from_real(x).as_strided((4, 4), (4, 1)).shape == (4, 4)


ZERO = torch.zeros(2, dtype=torch.int64)
LONGS = torch.ones(1, 1, 2, 2, dtype=torch.int64)
REFUSED = {
    "scatter": lambda: torch.zeros(3).double().scatter(0, ZERO, torch.zeros(2)),
    "scatter_add": lambda: torch.zeros(3).double().scatter_add(0, ZERO, torch.zeros(2)),
    "scatter_reduce": lambda: torch.zeros(3).scatter_reduce(0, ZERO, ZERO, "sum"),
    "index_add": lambda: torch.zeros(3).double().index_add(0, ZERO, torch.zeros(2)),
    "index_copy": lambda: torch.zeros(3).double().index_copy(0, ZERO, torch.zeros(2)),
    "index_put": lambda: torch.zeros(3).double().index_put((ZERO,), torch.zeros(2)),
    "lerp": lambda: torch.ones(2).lerp(torch.ones(2).double(), 0.5),
    "grid_sample": lambda: F.grid_sample(torch.ones(1, 1, 2, 2), torch.ones(1, 2, 2, 2).double()),
    "grid_sample of integers": lambda: aten.grid_sampler_2d(
        LONGS, LONGS.expand(1, 2, 2, 2), 0, 0, True
    ),
    "cross": lambda: torch.cross(torch.ones(2, 3), torch.ones(2, 3).double(), dim=-1),
    "cdist": lambda: torch.cdist(torch.ones(2, 3).bfloat16(), torch.ones(2, 3).bfloat16()),
    "huber_loss": lambda: F.huber_loss(ZERO, torch.ones(2)),
    "soft_margin_loss": lambda: F.soft_margin_loss(ZERO, torch.ones(2)),
    "cross entropy": lambda: F.binary_cross_entropy(torch.ones(2), torch.ones(2).double()),
    "cross entropy with logits": lambda: F.binary_cross_entropy_with_logits(ZERO, torch.ones(2)),
    "avg_pool2d": lambda: aten.avg_pool2d(torch.ones(1, 3, 3), [2, 2], [], 0, False, True, 0),
    "unpool": lambda: aten.max_unpool2d(torch.ones(1, 2, 2), torch.ones(1, 2, 2), [4, 4]),
    "sum of many dimensions": lambda: torch.ones([1] * 65).sum(-1),
    **{
        f"{name} of nothing, {dim}": lambda name=name, dim=dim: getattr(torch, name)(
            torch.ones(0, 2), *dim
        )
        for name in ("amax", "amin", "max", "min", "argmax", "argmin", "hash_tensor")
        for dim in ((), (0,))
    },
    **{
        f"hash_tensor of {dtype}": lambda d=dtype: torch.hash_tensor(torch.ones(2, dtype=d))
        for dtype in (torch.complex64, torch.uint16, torch.float8_e5m2)
    },
    "amax of many dimensions": lambda: torch.ones([1] * 65).amax(-1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_of_other_dtypes_and_numbers(name):
    from dovetail_prims import FakeMode

    assert outcome(REFUSED[name]) is not None
    with FakeMode():
        assert outcome(REFUSED[name]) is not None


ROUNDED = ["ceil", "floor", "round", "trunc", "frac", "sign", "erf", "erfc", "lgamma"]
IN_PLACE = ["cos", "exp", "sqrt", "log1p", "rsqrt", "reciprocal", "sigmoid", "erf", "tanh"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*ROUNDED, *(f"{name}_" for name in IN_PLACE)])
def test_functions_of_dtypes_that_have_none(name, dtype):
    x, call = torch.ones(3, dtype=dtype), getattr(torch, name)
    found, eager = outcome(call, from_real(x)), outcome(call, x)
    assert (eager is None) == (found is None)
    if eager is not None and "cast" in eager:
        assert found == eager


@pytest.mark.parametrize("options", [{"stride": 0}, {"stride": -1}, {"padding": -1},
                                     {"dilation": 0}, {"dilation": -1}])  # fmt: skip
@pytest.mark.parametrize("convolution", [F.conv1d, F.conv_transpose1d])
def test_windows_that_do_not_move(convolution, options):
    x, weight = torch.randn(1, 3, 8), torch.randn(3, 3, 2)
    eager = outcome(lambda: convolution(x, weight, **options))
    found = outcome(lambda: convolution(from_real(x), from_real(weight), **options))
    assert eager is not None and found is not None
    assert "dilation" in options or found == eager


ORDERED = {
    **{name: getattr(torch, name) for name in ("lt", "le", "gt", "ge", "maximum", "fmin")},
    **{f"{name}_": getattr(torch.Tensor, f"{name}_") for name in ("lt", "ge")},
    "gt a number": lambda x, y: x > 0.5, "relu": lambda x, y: x.relu(),
    "relu_": lambda x, y: x.relu_(), "clamp": lambda x, y: x.clamp(0, 1),
    "clamp_": lambda x, y: x.clamp_(0, 1), "clamp_min": lambda x, y: x.clamp_min(0),
    "clamp by tensors": lambda x, y: x.clamp(y, y), "sort": lambda x, y: x.sort(),
    "stable sort": lambda x, y: x.sort(stable=True), "topk": lambda x, y: x.topk(1),
    "argmax": lambda x, y: x.argmax(), "max": lambda x, y: x.max(),
    "amin": lambda x, y: x.amin(0), "median": lambda x, y: x.median(),
    "cummax": lambda x, y: x.cummax(0), "kthvalue": lambda x, y: x.kthvalue(1),
    "fmod": torch.fmod, "abs_": lambda x, y: x.abs_(), "eq": torch.eq,
}  # fmt: skip


@pytest.mark.parametrize("complexes", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("name", ORDERED)
def test_complex_numbers_have_no_order(name, complexes):
    x, y = (torch.ones(3, dtype=DTYPES[-1 if i in complexes else -3]) for i in range(2))
    if name.endswith("_") and x.dtype is not y.dtype:
        return  # (one or the other reason comes first)
    eager = outcome(ORDERED[name], x.clone(), y)
    found = outcome(ORDERED[name], from_real(x), from_real(y))
    assert found == eager or (name == "clamp by tensors" and found and eager)


WRITTEN = {
    "mul_": lambda x, y: x.mul_(y), "pow_": lambda x, y: x.pow_(y),
    "pow_ by a number": lambda x, y: x.pow_(1.5), "clamp_": lambda x, y: x.clamp_(0.5, 1.5),
    "clamp_ by tensors": lambda x, y: x.clamp_(y, y), "clamp_min_": lambda x, y: x.clamp_min_(0.5),
    "addcmul_": lambda x, y: x.addcmul_(y, y), "remainder_": lambda x, y: x.remainder_(1.5),
    "foreach_mul_": lambda x, y: torch._foreach_mul_([x], [y]),
    "foreach_mul_ by a number": lambda x, y: torch._foreach_mul_([x], 0.5),
    "foreach_add_ by numbers": lambda x, y: torch._foreach_add_([x], [0.5]),
    "foreach_mul_ by a tensor": lambda x, y: torch._foreach_mul_([x], y[0]),
    "foreach_addcmul_": lambda x, y: torch._foreach_addcmul_([x], [y], [y], 0.5),
    "cumsum_": lambda x, y: x.cumsum_(0), "cumprod_": lambda x, y: x.cumprod_(0),
}  # fmt: skip


@pytest.mark.parametrize("other", [torch.bool, torch.int64, torch.float32, torch.complex64])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("name", WRITTEN)
def test_results_are_not_written_to_what_holds_none(name, dtype, other):
    x, y = torch.ones(3, dtype=dtype), torch.ones(3, dtype=other)
    eager = outcome(WRITTEN[name], x.clone(), y)
    found = outcome(WRITTEN[name], from_real(x), from_real(y))
    if eager is None or "cast" in eager or "cum" in eager:  # (no kernel: another reason)
        assert (found is None) == (eager is None), (found, eager)


@pytest.mark.parametrize("index", [(), (1,), (2,), (1, 2), None])
@pytest.mark.parametrize("source", [(), (1,), (2,), (1, 2), (2, 2), (2, 3)])
@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
def test_slices_that_are_copied_by_index(shape, source, index):
    given = (
        torch.zeros(shape), 0,
        torch.zeros(2) if index is None else torch.zeros(index, dtype=torch.int64),
        torch.zeros(source),
    )  # fmt: skip
    eager = outcome(torch.Tensor.index_copy_, *given)
    fakes = [from_real(a) if isinstance(a, torch.Tensor) else a for a in given]
    for call in (torch.Tensor.index_copy_, torch.Tensor.index_copy):
        assert outcome(call, *fakes) == eager


@pytest.mark.parametrize("index", [1, 2, 3])
@pytest.mark.parametrize("source", [(1, 2), (2, 2), (2, 3)])
def test_slices_that_are_added_by_index(source, index):
    given = (torch.zeros(3, 2), 0, torch.zeros(index, dtype=torch.int64), torch.zeros(source))
    eager = outcome(torch.Tensor.index_add_, *given)
    fakes = [from_real(a) if isinstance(a, torch.Tensor) else a for a in given]
    for call in (torch.Tensor.index_add_, torch.Tensor.index_add):
        assert outcome(call, *fakes) == eager
