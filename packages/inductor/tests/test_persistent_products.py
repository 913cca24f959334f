"""Products of matrices in persistent kernels, and operands by descriptors of tensors: run by
Triton's interpreter, compiled for an H100 and, where there is a GPU, run there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.options import Gpu, InductorOptions
from dovetail_inductor.products import choose_products
from dovetail_inductor.products.candidates import candidates
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_inductor.targets.cuda.descriptors import described
from dovetail_runtime.plan import CallAten, LaunchTriton, TritonKernel
from test_products import (
    CASES,
    Chosen,
    check,
    check_on_gpu,
    compiled,
    gelu_mlp,
    half,
    kept,
    on_gpu,
    products,
)
from torch import Tensor

# Fewer programs than tiles, and no divisor of their number.
PERSISTENT = ProductTiles(16, 32, 16, 4, 2, programs=5)
DESCRIBED = ProductTiles(16, 32, 16, 4, 2, programs=5, descriptors=True)
CPU = torch.device("cpu")

# Rows begin at multiples of 16 bytes; tiles hang over along each dimension in some case.
ALIGNED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "edges": (gelu_mlp, (half(1, 37, 56), half(72, 56), half(72))),
    "whole": (gelu_mlp, (half(1, 48, 64), half(64, 64), half(64))),
    "kept": (kept, (half(40, 40), half(40, 72), half(72))),
    "turned": (lambda x, w: torch.sigmoid(x.t() @ w.t()), (half(40, 24), half(45, 40))),
    "part": (lambda x, w: F.relu(x[:, 8:48] @ w[:, 16:56].t()), (half(37, 64), half(50, 72))),
    "itself": (lambda x: torch.tanh(x @ x.t()), (half(50, 40),)),
    "batches": (lambda x, w: torch.tanh(torch.bmm(x, w)) * 2, (half(3, 37, 24), half(3, 24, 40))),
    "batches_turned": (
        lambda x, w: torch.bmm(x.mT, w.mT).float() + 1,
        (half(3, 24, 40), half(3, 39, 24)),
    ),
    "one_batch": (lambda x, w: torch.bmm(x, w) * 2, (half(1, 37, 24), half(1, 24, 72))),
}


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProductTiles], None]:
    """Makes these tiles the only candidate."""

    def set_to(only: ProductTiles) -> None:
        monkeypatch.setattr(choose_products, "candidates", lambda *sizes: [only])

    return set_to


@pytest.mark.parametrize("name", ["gated", "columns", "batches", "added_matrix"])
def test_persistent(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = CASES[name]
    tiles(PERSISTENT)
    plan = compiled(fn, inputs, Chosen(1))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    assert all("tl.range" in k.source and "descriptor" not in k.source for k in products(plan))
    check(fn, inputs, plan)


@pytest.mark.parametrize("name", ALIGNED)
def test_described(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = ALIGNED[name]
    tiles(DESCRIBED)
    plan = compiled(fn, inputs, Chosen(1))
    (kernel,) = products(plan)
    assert kernel.source.count("tl.make_tensor_descriptor") == 2
    (launch,) = (s for s in plan.steps if isinstance(s, LaunchTriton))
    assert launch.grid[0] <= DESCRIBED.programs
    check(fn, inputs, plan)


def test_described_in_parts(tiles: Callable[[ProductTiles], None]) -> None:
    """By a program for each tile, which ends where its part does."""
    tiles(ProductTiles(16, 32, 16, 4, 2, parts=3, descriptors=True))
    inputs = (half(20, 104), half(40, 104), half(40))
    check(gelu_mlp, inputs, compiled(gelu_mlp, inputs, Chosen(1)))


def matrix(shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Strided:
    return Strided("x", shape, stride, offset)


@pytest.mark.parametrize(
    "operand, turned",
    [
        (matrix((40, 64), (64, 1)), False),
        (matrix((64, 40), (1, 64)), True),
        (matrix((40, 60), (72, 1), 8), False),
        (matrix((3, 40, 64), (64 * 40, 64, 1)), False),
        (matrix((3, 64, 40), (64 * 48, 1, 64)), True),
        (matrix((40, 60), (60, 1)), None),  # rows of 120 bytes
        (matrix((40, 64), (72, 1), 4), None),  # begins at 8 bytes
        (matrix((40, 32), (64, 2)), None),  # not dense
        (matrix((40, 64), (0, 1)), None),  # repeated
        (matrix((40, 64), (32, 1)), None),  # rows that overlap
        (matrix((3, 40, 64), (0, 64, 1)), None),  # a repeated matrix
        (matrix((3, 40, 64), (64, 192, 1)), None),  # rows of matrices alternate
    ],
)
def test_what_can_be_described(operand: Strided, turned: bool | None) -> None:
    found = described(operand, {"x": Buffer("x", torch.bfloat16, CPU, (10000,), (1,))})
    assert (None if found is None else found.turned) == turned


def test_an_input_that_begins_elsewhere_is_not_described() -> None:
    asked: list[Gpu] = []

    def none(sizes: object, followed: bool, gpu: Gpu, itemsize: int) -> list[ProductTiles]:
        asked.append(gpu)
        return []

    memory = half(40 * 64 + 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_products, "candidates", none)
        for offset in (8, 3):
            x = memory[offset : offset + 32 * 64].view(32, 64)
            compiled(gelu_mlp, (x, half(72, 64), half(72)), Chosen(0))
    assert [gpu.descriptors for gpu in asked] == [True, False]


LARGE = (1, 4096, 3072, 768)


def test_candidates_are_persistent_where_programs_have_several_tiles() -> None:
    found = candidates(LARGE, True, Gpu())
    described = [t for t in found if t.descriptors]
    assert described and all(t.programs % 132 == 0 and t.programs for t in described)
    assert any(t.programs and not t.descriptors for t in found)
    assert any(not t.programs for t in found) and len(found) <= 12
    other = candidates(LARGE, True, Gpu(multiprocessors=108, descriptors=False))
    assert not any(t.descriptors for t in other)
    assert {t.programs for t in other} == {0, 108, 216}
    batches = candidates((96, 197, 197, 64), True, Gpu())
    assert any(t.descriptors for t in batches) and len(batches) <= 12
    (some, *_) = candidates((1, 4096, 768, 3072), True, Gpu())
    assert some.descriptors and some.programs == 132
    for sizes in ((1, 16, 8192, 2048), (1, 128, 768, 3072), (4, 128, 128, 64)):
        assert not any(t.programs for t in candidates(sizes, True, Gpu()))


@pytest.mark.parametrize("sizes", [LARGE, (96, 197, 197, 64), (1, 4096, 768, 3072)], ids=str)
def test_persistent_candidates_fit(sizes: tuple[int, int, int, int]) -> None:
    """What ends a tile (at most with the sums as they are) has memory beside the operands."""
    for tiles in candidates(sizes, True, Gpu()):
        operands = tiles.stages * tiles.k * (tiles.m + tiles.n) * 2
        ending = tiles.m * tiles.n * (2 if sizes[0] == 1 else 4) if tiles.programs else 0
        assert operands + ending <= 227 * 1024


def test_products_in_one_launch_are_not_persistent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [PERSISTENT, ProductTiles(16, 32, 16, 4, 2)]
    monkeypatch.setattr(choose_products, "candidates", lambda *sizes: asked)
    fn, inputs = CASES["gated"]
    tuner = Chosen(1, group=1.0)
    plan = compiled(fn, inputs, tuner)
    assert any("2 in one launch" in c.what and c.chosen for c in tuner.choices)
    assert not any("tl.range" in k.source for k in plan.kernels if isinstance(k, TritonKernel))
    check(fn, inputs, plan)


def test_a_form_says_what_it_is() -> None:
    """In `dovetail.report`."""
    assert PERSISTENT.as_text() == "16x32x16 4 warps 2 stages 5 programs persistent"
    assert DESCRIBED.as_text() == "16x32x16 4 warps 2 stages 5 programs persistent TMA"


def test_which_gpu_kernels_are_chosen_for() -> None:
    assert InductorOptions().gpu_of(CPU) == Gpu()
    ampere = Gpu(108, descriptors=False)
    assert InductorOptions(gpu=ampere).gpu_of(torch.device("cuda")) == ampere


def bf(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def test_persistent_candidates_compile_for_an_h100(build_for_h100: Any) -> None:
    """One with descriptors, one without; what a launch has to give them."""
    inputs = (bf(4, 1024, 192), bf(3072, 192), bf(3072))
    tuner = Chosen(0)
    compiled(gelu_mlp, inputs, tuner)
    (problem,) = tuner.problems
    names, plans = problem.names, problem.plans()
    kernels: dict[str, TritonKernel] = {}
    for form in ("persistent TMA", "persistent"):
        number = next(i for i, name in enumerate(names) if name.endswith(form))
        (kernels[form],) = products(plans[number])
    binaries = build_for_h100(kernels.values())
    assert all(binary.shared_bytes <= 227 * 1024 for binary in binaries.values())
    mine = binaries[kernels["persistent TMA"].symbol]
    assert mine.scratch_bytes == 2 * 128 and mine.scratch_parameters >= 1
    assert set(mine.parameters) == {"aligned pointer"}
    assert binaries[kernels["persistent"].symbol].scratch_bytes == 0


# --- on a GPU -------------------------------------------------------------------------------------

GPU_TILES = [
    ProductTiles(64, 64, 32, 4, 4, programs=4, descriptors=True),
    ProductTiles(128, 256, 64, 8, 2, programs=2, descriptors=True),
    ProductTiles(64, 64, 32, 4, 4, descriptors=True),
]
SIZED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "whole": (gelu_mlp, ((2, 512, 256), (768, 256), (768,))),
    "edges": (gelu_mlp, ((1, 1000, 200), (776, 200), (776,))),
    "kept": (kept, ((500, 136), (136, 520), (520,))),
    "residual": (lambda x, w, r: x @ w.t() + r, ((700, 320), (400, 320), (700, 400))),
    "turned": (lambda x, w: torch.sigmoid(x.t() @ w.t()), ((320, 456), (300, 320))),
    "batches": (lambda q, k: torch.bmm(q, k.mT) * 0.125, ((7, 197, 64), (7, 197, 64))),
    "values": (lambda p, v: torch.tanh(torch.bmm(p, v)), ((7, 136, 200), (7, 200, 64))),
}


needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a CUDA device of compute capability 9.0",
)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("only", GPU_TILES, ids=ProductTiles.as_text)
@pytest.mark.parametrize("name", SIZED)
def test_described_on_a_gpu(
    name: str, only: ProductTiles, tiles: Callable[[ProductTiles], None]
) -> None:
    fn, sizes = SIZED[name]
    torch.manual_seed(0)
    tiles(only)
    tuner = Chosen(1)
    dtype = torch.float16 if name == "kept" else torch.bfloat16
    check_on_gpu(fn, on_gpu([half(*s) for s in sizes], dtype), tuner)
    assert tuner.choices


@pytest.mark.gpu
@pytest.mark.parametrize("name", SIZED)
def test_persistent_on_a_gpu(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    fn, sizes = SIZED[name]
    torch.manual_seed(0)
    tiles(ProductTiles(64, 64, 32, 4, 4, programs=4))
    check_on_gpu(fn, on_gpu([half(*s) for s in sizes], torch.bfloat16), Chosen(1))
