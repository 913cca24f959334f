"""Products of few rows by kernels of ours: as eager in Triton's interpreter, which tiles they get,
which stay with the library; compiled for an H100 and, where there is one, run there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.options import Gpu
from dovetail_inductor.products.few_rows import tiles_for
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

Fn = Callable[..., Any]
DRAWN = torch.Generator().manual_seed(0)


def half(*shape: int) -> Tensor:
    # not bfloat16: Triton's interpreter truncates to it, where a GPU rounds
    return torch.randn(*shape, generator=DRAWN).half() / 4


def compiled(fn: Fn, inputs: Sequence[Tensor], gpu: Gpu | None = None) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=InductorOptions(triton=True, gpu=gpu))


def attention_inputs(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return x @ q.t(), x @ k.t(), x @ v.t()


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t())


def gated_with_biases(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh") * F.linear(x, v, c)


def gated_and_kept(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    gate, value = x @ w.t(), x @ v.t()
    return gate, value, F.silu(gate) * value


def gated_halves(x: Tensor, w: Tensor) -> Tensor:
    gate, value = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * value


def gated_halves_of_rows(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    value, gate = torch.addmm(b, x.flatten(0, 1), w).unflatten(0, (1, -1)).chunk(2, -1)
    return value * torch.sigmoid(gate)


def gated_halves_and_sum(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    both = F.linear(x, w)
    gate, value = both.chunk(2, -1)
    return F.silu(gate) * value, both.float().sum(-1)


def gated_by_three(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t()) + (x @ u.t())


def gated_mlp(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return x + gated(x, w, v) @ u.t()


def mlp(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return x + F.gelu(F.linear(x, w, b)) @ v.t()


def normed(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
    y = x @ w.t()
    return y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6).half() * g


# name -> function, inputs, launches
CASES: dict[str, tuple[Fn, tuple[Tensor, ...], int]] = {
    "plain": (lambda x, w: x @ w.t(), (half(16, 256), half(48, 256)), 1),
    "weights in rows": (torch.addmm, (half(48), half(6, 256), half(256, 48)), 1),
    "one row": (lambda x, w: F.linear(x, w), (half(1, 256), half(40, 256)), 1),
    "sequence": (F.linear, (half(2, 4, 64), half(40, 64), half(40)), 1),
    "three rows, gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        (half(3, 72), half(56, 72), half(56)),
        1,
    ),
    "32 rows": (lambda x, w, r: x @ w.t() + r, (half(32, 64), half(24, 64), half(32, 24)), 1),
    "in parts": (lambda x, w: (x @ w.t()).relu(), (half(5, 1536), half(24, 1536)), 2),
    "in parts, a norm follows": (normed, (half(5, 1536), half(24, 1536), half(24)), 2),
    "side by side": (
        attention_inputs,
        (half(4, 64), half(512, 64), half(256, 64), half(256, 64)),
        1,
    ),
    "gated": (gated, (half(4, 64), half(96, 64), half(96, 64)), 1),
    "gated, one row, biases": (
        gated_with_biases,
        (half(1, 64), half(48, 64), half(48), half(48, 64), half(48)),
        1,
    ),
    "gated, both kept": (
        gated_and_kept,
        (half(4, 64), half(96, 64), half(96, 64)),
        1,
    ),
    "gated, halves": (gated_halves, (half(4, 64), half(96, 64)), 1),
    "gated, halves, weights in rows": (
        gated_halves_of_rows,
        (half(1, 4, 64), half(64, 96), half(96)),
        1,
    ),
    "gated, halves that others read": (gated_halves_and_sum, (half(4, 64), half(96, 64)), 3),
    "gated, a third beside them": (gated_by_three, (half(4, 64), *(half(96, 64),) * 3), 2),
    "gated, in parts": (gated, (half(4, 1536), half(48, 1536), half(48, 1536)), 4),
    "gated mlp": (
        gated_mlp,
        (half(4, 64), half(96, 64), half(96, 64), half(64, 96)),
        2,
    ),
    "mlp": (mlp, (half(8, 32), half(64, 32), half(64), half(32, 64)), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    fn, inputs, launches = CASES[name]
    plan = compiled(fn, inputs)
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == launches
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    wanted = fn(*inputs)
    for mine, eager in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert isinstance(mine, Tensor)
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager, rtol=4e-3, atol=4e-3)


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.t()


def columns_of_tile(kernel: TritonKernel) -> int:
    """Of the kernel's tile of sums."""
    return int(kernel.source.partition("acc = tl.zeros([")[2].partition("]")[0].split(",")[1])


@pytest.mark.parametrize(
    "columns, depth, tile, launches",
    [
        (768, 768, 16, 1),
        (2048, 2048, 16, 1),
        (4096, 4096, 32, 1),
        (8192, 2048, 64, 1),
        (11008, 4096, 128, 1),
        (128256, 2048, 64, 1),
        (512, 2048, 32, 2),
        (2048, 8192, 32, 2),
    ],
)
def test_tiles_fill_the_gpu_and_compile_for_it(
    columns: int, depth: int, tile: int, launches: int, build_for_h100: Any
) -> None:
    plan = compiled(product, (meta(16, depth), meta(columns, depth)))
    kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
    assert len(kernels) == launches
    assert columns_of_tile(next(k for k in kernels if "tl.dot" in k.source)) == tile
    binaries = build_for_h100(kernels)
    assert all(binary.shared_bytes <= 227 * 1024 for binary in binaries.values())


@pytest.mark.parametrize(
    "columns, depth, parts",
    [(2048, 2048, 1), (512, 2048, 8), (768, 3072, 8), (1024, 4096, 4), (2048, 8192, 2)],
)
def test_no_more_parts_than_fill_the_gpu(columns: int, depth: int, parts: int) -> None:
    """Their sums go through memory."""
    assert tiles_for((1, 16, columns, depth), Gpu(132)).parts == parts


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (product, (half(33, 64), half(48, 64))),
        (lambda x, w: x @ w, (half(4, 64), half(64, 44))),
        (product, (half(4, 60), half(48, 60))),
        (lambda x, w: x[:, 4:68] @ w.t(), (half(4, 80), half(48, 64))),
        (product, (torch.randn(4, 64), torch.randn(48, 64))),
        (lambda x, w: torch.bmm(x, w.mT), (half(3, 4, 64), half(3, 48, 64))),
    ],
    ids=["many rows", "odd rows", "odd depth", "odd start", "float32", "batches"],
)
def test_what_stays_with_the_library(fn: Fn, inputs: tuple[Tensor, ...]) -> None:
    assert any(isinstance(s, CallAten) for s in compiled(fn, inputs).steps)


def test_other_gpus_use_their_library() -> None:
    """Tiles were measured on one kind, and take its shared memory."""
    fn, inputs, _ = CASES["plain"]
    plan = compiled(fn, inputs, Gpu(108, descriptors=False))
    assert any(isinstance(s, CallAten) for s in plan.steps)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 32])
@pytest.mark.parametrize(
    "name", [n for n in CASES if n not in ("one row", "32 rows", "three rows, gelu")]
)
def test_on_a_gpu(name: str, rows: int) -> None:
    fn, inputs, _ = CASES[name]
    made = [i.cuda() for i in inputs]
    at = 1 if fn is torch.addmm else 0
    lead = (rows,) if inputs[at].dim() == 2 else (1, rows)
    made[at] = torch.randn(*lead, inputs[at].shape[-1], device="cuda").half() / 4
    plan = compiled(fn, made)
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    got, wanted = load(plan).run(*made), fn(*(i.cpu() for i in made))
    for mine, eager in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert isinstance(mine, Tensor) and mine.stride() == eager.stride()
        torch.testing.assert_close(mine.cpu(), eager, rtol=4e-3, atol=4e-3)


def reads_weights_first(plan: Plan) -> bool:
    """Whether the last kernel reads memory before it waits for the launches before it."""
    launch = [step for step in plan.steps if isinstance(step, LaunchTriton)][-1]
    (source,) = (k.source for k in plan.kernels if k.symbol == launch.kernel)
    return 0 < source.index("tl.load") < source.index("gdc_wait()\n")


def test_weights_that_nothing_writes_are_read_before_the_row_is_there() -> None:
    """Not those that a launch of the plan makes."""
    x, w = half(1, 256), half(128, 256)

    def normed(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:]) @ w.t()

    def made(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.softmax(-1).t()

    for fn in (normed, made):
        plan = compiled(fn, (x, w))
        run = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
        torch.testing.assert_close(run(x, w)[0], fn(x, w), rtol=4e-3, atol=4e-3)
        assert reads_weights_first(plan) == (fn is normed)
