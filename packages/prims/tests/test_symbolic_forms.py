"""`matmul` of symbolic sizes: the same result as PyTorch's, and no size tied to a number."""

from __future__ import annotations

import pytest
import torch
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_prims import from_real
from dovetail_prims.fake_mode import FakeMode
from dovetail_prims.fake_tensor import make
from dovetail_prims.symbolic_forms import batched_matmul, symbolic_form

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
