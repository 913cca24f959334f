"""`matmul` of symbolic sizes: the same result as PyTorch's, and no size tied to a number."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_prims import from_real
from dovetail_prims.fake.fake_mode import FakeMode
from dovetail_prims.fake_tensor import make
from dovetail_prims.ops.sdpa import choose_backend
from dovetail_prims.sizes.batched_matmul import batched_matmul
from dovetail_prims.symbolic.attention import unfused_attention
from dovetail_prims.symbolic.symbolic_forms import symbolic_form
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [
    ((5, 4, 1), (5, 1, 6)), ((5, 4, 3), (1, 3, 6)), ((2, 5, 4, 3), (5, 3, 6)),
    ((2, 1, 4, 3), (7, 3, 6)), ((5, 4, 3), (2, 5, 3, 4)),
    ((5, 4, 3), (3, 6)), ((5, 4, 3), (3,)), ((3,), (5, 3, 6)), ((4, 3), (5, 3, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_sizes_stay_symbolic(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    env = ShapeEnv()
    x, y = torch.randn(a), torch.randn(b)
    named = {
        n: env.symint(env.create_size(n, SizeSource(LocalSource("x"), i), Dim.DYNAMIC))
        for i, n in enumerate(sorted({*a, *b} - {1}))
    }
    fakes = [from_real(t, sizes=[named.get(n, n) for n in t.shape]) for t in (x, y)]
    with FakeMode():
        got = symbolic_form(torch.matmul, fakes, {})
    wanted = x @ y
    assert not list(env.specialized())
    assert tuple(int(n) for n in got._sizes) == wanted.shape
    assert tuple(int(n) for n in got._strides) == wanted.stride()


def test_linear_without_a_bias() -> None:
    env = ShapeEnv()
    sizes = [
        env.symint(env.create_size(n, SizeSource(LocalSource("x"), n), Dim.DYNAMIC)) for n in (5, 4)
    ]
    x, w = from_real(torch.randn(5, 4, 3), sizes=[*sizes, 3]), from_real(torch.randn(6, 3))
    with FakeMode():
        got = symbolic_form(torch.nn.functional.linear, [x, w], {})
    assert not list(env.specialized()) and got._sizes[2] == 6 and got._strides[1] == 6


RESIZES = [
    ("nearest", 3, False), ("nearest", 4, False), ("nearest-exact", 5, False), ("linear", 3, False),
    ("bilinear", 4, False), ("bilinear", 4, True), ("bicubic", 4, True), ("trilinear", 5, False),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "rank", "antialias"), RESIZES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_interpolate(mode: str, rank: int, antialias: bool, channels_last: bool) -> None:
    env = ShapeEnv()
    sizes = [
        env.symint(env.create_size(n, SizeSource(LocalSource("x"), n), Dim.DYNAMIC))
        for n in (5, 7, 6)[: rank - 2]
    ]
    x = torch.randn(2, 3, *[4] * (rank - 2))
    if channels_last and rank == 4:
        x = x.to(memory_format=torch.channels_last)
    options = {"mode": mode, "antialias": antialias}
    with FakeMode():
        got = symbolic_form(torch.nn.functional.interpolate, [from_real(x), sizes], options)
    wanted = torch.nn.functional.interpolate(x, [int(n) for n in (5, 7, 6)[: rank - 2]], **options)
    assert not list(env.specialized())
    assert tuple(int(n) for n in got._sizes) == wanted.shape
    assert tuple(int(n) for n in got._strides) == wanted.stride()


@pytest.mark.parametrize(("mode", "rank", "antialias"), RESIZES)
def test_interpolate_a_batch_of_none(mode: str, rank: int, antialias: bool) -> None:
    """PyTorch's meta kernel of "nearest" is an error there."""
    x, options = torch.randn(0, 3, *[4] * (rank - 2)), {"mode": mode, "antialias": antialias}
    with FakeMode():
        got = torch.nn.functional.interpolate(from_real(x), [7] * (rank - 2), **options)
        with pytest.raises(RuntimeError, match="greater than 0"):
            torch.nn.functional.interpolate(from_real(x[..., :0]), [7] * (rank - 2), **options)
    wanted = torch.nn.functional.interpolate(x, [7] * (rank - 2), **options)
    assert got.shape == wanted.shape and got.stride() == wanted.stride()


def test_others_are_pytorchs() -> None:
    x = torch.randn(2, 3, 4)
    assert batched_matmul(x, x.mT) is NotImplemented
    assert symbolic_form(torch.add, [x, x], {}) is NotImplemented
    assert symbolic_form([], [x], {}) is NotImplemented


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_on_a_gpu_stays_symbolic(dtype: torch.dtype) -> None:
    env = ShapeEnv()
    b, n = (
        env.symint(env.create_size(size, SizeSource(LocalSource("x"), size), Dim.DYNAMIC))
        for size in (5, 24)
    )
    q = make((b, 4, n, 8), (n * 32, 8, 32, 1), dtype, torch.device("cuda"), 0)
    with FakeMode():
        got = symbolic_form(torch.nn.functional.scaled_dot_product_attention, [q, q, q], {})
    assert not list(env.specialized())
    assert tuple(map(str, got._sizes)) == tuple(map(str, q._sizes)) and got.dtype == dtype


UNFUSED: dict[str, dict[str, Any]] = {
    "bare": {},
    "causal": {"is_causal": True},
    "a mask of truths": {"attn_mask": torch.arange(42).reshape(6, 7) % 3 > 0},
    "rows without a place": {"attn_mask": (torch.arange(6) > 2)[:, None].expand(6, 7)},
    "an added mask": {"attn_mask": torch.linspace(-1, 1, 42).reshape(6, 7)},
    "scaled": {"scale": -0.3},
    "dropout": {"dropout_p": 0.25},
    "groups": {"enable_gqa": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", UNFUSED)
def test_attention_without_a_kernel(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads = 2 if name == "groups" else 4
    q, k, v = (torch.randn(h, n, 8).to(dtype) for h, n in ((4, 6), (heads, 7), (heads, 7)))
    found = []
    for function in (unfused_attention, torch.nn.functional.scaled_dot_product_attention):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        torch.manual_seed(1)
        with sdpa_kernel(SDPBackend.MATH):  # (PyTorch 2.15 has a kernel for three dimensions)
            result = function(*inputs, **UNFUSED[name])
        found.append([result, *torch.autograd.grad(result.float().sin().sum(), inputs)])
    torch.testing.assert_close(*found, rtol=0, atol=0, check_stride=True)
    kernel = unfused_attention(q[None], q[None], q[None])  # (eager has one for these)
    assert kernel is NotImplemented


def test_attention_of_no_rows_runs_no_kernel() -> None:
    """That divides by the number of rows: what only data tells may be none."""
    env = ShapeEnv()
    for n, backend in ((env.symint(env.create_unbacked()), "math"), (7, "flash_attention_for_cpu")):
        q = make((1, 4, n, 8), (n * 32, n * 8, 8, 1), torch.float32, torch.device("cpu"), 0)
        assert choose_backend(q, q, q, None, 0.0, False, False) == backend


@pytest.mark.parametrize("function", [torch.pow, torch.Tensor.pow, operator.pow])
def test_a_power_with_a_gradient(function: Any) -> None:
    """Of whatever PyTorch: it is differentiated, and its size stays symbolic."""
    env = ShapeEnv()
    n, exponent = (
        env.symint(env.create_size(size, SizeSource(LocalSource("x"), size), Dim.DYNAMIC))
        for size in (5, 3)
    )
    x = from_real(torch.ones(5), sizes=[n]).requires_grad_()
    with FakeMode():
        y = symbolic_form(function, [x, exponent], {})
        y = function(x, exponent) if y is NotImplemented else y
        (gradient,) = torch.autograd.grad(y.sum(), x)
    assert str(gradient._sizes[0]) == str(n) and str(n) not in env.specialized()


def test_samples_by_cudnn_have_a_rule() -> None:
    """A convention of eager's on a GPU, for which PyTorch has no meta kernel."""
    gpu = torch.device("cuda")
    x = make((2, 5, 7, 9), (315, 63, 9, 1), torch.float16, gpu, 0)
    grid = make((2, 4, 6, 2), (48, 12, 2, 1), torch.float16, gpu, 0)
    with FakeMode():
        got = torch.ops.aten.cudnn_grid_sampler.default(x, grid)
        with pytest.raises(RuntimeError, match="same batch size"):
            torch.ops.aten.cudnn_grid_sampler.default(
                x, make((3, 4, 6, 2), (48, 12, 2, 1), torch.float16, gpu, 0)
            )
    assert got.shape == (2, 5, 4, 6) and got.is_contiguous()
    assert got.dtype is torch.float16 and got.device.type == "cuda"


def test_tensors_of_plain_numbers_are_pytorchs() -> None:
    for data in (2, [1, 2.5], [], [[1], [2]], torch.ones(2), [torch.tensor(1)]):
        assert symbolic_form(torch.tensor, [data], {}) is NotImplemented


def test_tensors_of_symbolic_numbers() -> None:
    env = ShapeEnv()
    n = env.symint(env.create_size(5, SizeSource(LocalSource("x"), 0), Dim.DYNAMIC))
    with FakeMode():
        for data, wanted in (
            (n, torch.tensor(5)), ([n, True], torch.tensor([5, 1])),
            ([[n, 2.0], (1, n)], torch.tensor([[5, 2.0], [1, 5]])),
        ):  # fmt: skip
            got = symbolic_form(torch.tensor, [data], {})
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            assert symbolic_form(torch.tensor, [data], {"requires_grad": True}) is NotImplemented
        assert symbolic_form(torch.tensor, [[[n], [1, 2]]], {}) is NotImplemented  # which refuses
    assert not list(env.specialized())


def test_cells_on_a_gpu_are_written_out() -> None:
    """Where PyTorch calls fused kernels, of known sizes, too; not with what it refuses."""
    gpu = torch.device("cuda", 0)
    x, h, of_input, of_hidden = (
        make((n, m), (m, 1), torch.float32, gpu) for n, m in ((3, 4), (3, 5), (15, 4), (15, 5))
    )
    bias = make((15,), (1,), torch.float32, gpu)
    weights = x, h, of_input, of_hidden
    with FakeMode():
        for biases in ((), (bias, bias)):
            assert symbolic_form(torch.gru_cell, (*weights, *biases), {}).shape == (3, 5)
        for biases in ((bias,), (bias, bias, bias)):
            assert symbolic_form(torch.gru_cell, (*weights, *biases), {}) is NotImplemented
    known = [torch.randn(tuple(t.shape)) for t in weights]
    assert symbolic_form(torch.gru_cell, known, {}) is NotImplemented
