"""Triton kernels that a program launches itself: part of its graph, with what they write to.

On a CPU they run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from dovetail_capture.extensions.triton.triton_writes import written_parameters
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

import dovetail


def interpreted(function: Callable[..., None]) -> Any:
    return InterpretedFunction(function)


@interpreted
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@interpreted
def put(places, values, inside):
    tl.store(places, values, mask=inside)


@interpreted
def scale(x, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = x + at
    put(places, tl.load(places, mask=at < n) * by, at < n)


@interpreted
def totals(x, out, n, BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at % 2, tl.load(x + at, mask=at < n), mask=at < n)


rounded = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})(add)
tuned = triton.autotune(
    [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}, num_warps=8)],
    key=["n"],
    do_bench=lambda launch, quantiles: (launch(), [1.0] * len(quantiles))[1],
)(add)


def blocks(x: Tensor) -> Any:
    return lambda given: (triton.cdiv(x.numel(), given["BLOCK"]),)


def chain(x: Tensor, y: Tensor) -> Tensor:
    doubled, out = x * 2, torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 16),)](doubled, y, out, x.numel(), BLOCK=16)
    scale[blocks(out)](out, 2.5, n=out.numel(), BLOCK=32)
    return out.sin()


def writes_input(x: Tensor, y: Tensor) -> Tensor:
    scale[blocks(x)](x, 0.5, x.numel(), BLOCK=16)
    return x + y


def same_tensor_twice(x: Tensor, y: Tensor) -> Tensor:
    result = x + 0
    add[blocks(x)](result, y, result, x.numel(), BLOCK=16)
    return result


def rows_of_one(x: Tensor, y: Tensor) -> Tensor:
    rows = torch.zeros(3, x.numel())
    add[blocks(x)](x, y, rows[1], x.numel(), BLOCK=16)
    add[blocks(x)](x, rows[1], rows[2], x.numel(), BLOCK=16)
    return rows


def with_heuristics(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    rounded[blocks(x)](x, y, out, x.numel())
    return out * y


def with_autotuning(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    tuned[blocks(x)](x, y, out, x.numel())
    return out * y


def atomics(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(2)
    totals[(triton.cdiv(x.numel(), 16), 1)](x, out, x.numel())
    return out.sum() * y


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        chain,
        writes_input,
        same_tensor_twice,
        rows_of_one,
        with_heuristics,
        with_autotuning,
        atomics,
    ],
)
def test_launches_are_part_of_one_graph(program: Callable[..., Tensor], dynamic: bool) -> None:
    compiled = dovetail.compile(program, fullgraph=True, dynamic=dynamic)
    for size in (50, 77):
        given = torch.randn(size), torch.randn(size)
        own, others = [t.clone() for t in given], [t.clone() for t in given]
        torch.testing.assert_close(compiled(*others), program(*own))
        torch.testing.assert_close(others, own)
    report = dovetail.report(compiled)
    each_size = not dynamic or program is with_heuristics  # (a block as large as the size)
    assert report.graphs == (2 if each_size else 1) and not report.breaks


def same_rows(x: Tensor, y: Tensor) -> Tensor:
    rows = torch.stack([x, y])
    add[blocks(x)](rows[0], rows[1], rows[0], x.numel(), BLOCK=16)
    return rows


def one_past_the_other(x: Tensor, y: Tensor) -> Tensor:
    chain = torch.cat([x, y])
    add[(1,)](chain[:8], chain[8:16], chain[4:12], 8, BLOCK=8)
    return chain


def test_memory_that_a_kernel_is_given_twice() -> None:
    x, y = torch.randn(2, 50).unbind()
    compiled = dovetail.compile(same_rows, fullgraph=True)
    torch.testing.assert_close(compiled(x, y), same_rows(x, y))
    with pytest.raises(dovetail.CaptureError, match="memory that it is given twice"):
        dovetail.compile(one_past_the_other, fullgraph=True)(x, y)
    torch.testing.assert_close(dovetail.compile(one_past_the_other)(x, y), one_past_the_other(x, y))


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        threefold = grad.clone()
        scale[(triton.cdiv(grad.numel(), 16),)](threefold, 3.0, grad.numel(), BLOCK=16)
        return threefold, grad


def in_an_autograd_function(x: Tensor, y: Tensor) -> Tensor:
    return Sum.apply(x * 2, y).sin()


def beside_autograd(x: Tensor, y: Tensor) -> Tensor:
    """Autograd does not see the kernel: only the product gives a gradient."""
    out = torch.empty_like(x)
    add[(4,)](x, y, out, x.numel(), BLOCK=16)
    return out * x


@pytest.mark.parametrize("program", [in_an_autograd_function, beside_autograd])
def test_gradients_around_launches(program: Callable[..., Tensor]) -> None:
    leaves = [torch.randn(50, requires_grad=True) for _ in range(2)]
    found = []
    for function in (program, dovetail.compile(program, fullgraph=True)):
        result = function(*leaves)
        found.append((result, torch.autograd.grad(result.sum(), leaves, allow_unused=True)))
    torch.testing.assert_close(found[1], found[0])


def test_another_kernel_of_the_same_name_is_compiled_for_itself() -> None:
    kernel = add

    def program(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel[(4,)](x, x, out, x.numel(), BLOCK=16)
        return out

    compiled = dovetail.compile(program, fullgraph=True)
    x = torch.randn(50)
    torch.testing.assert_close(compiled(x), 2 * x)

    @interpreted
    def add_half(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * 1.5, mask=at < n)

    kernel = add_half
    torch.testing.assert_close(compiled(x), 1.5 * x)


def test_what_cannot_be_part_of_a_graph_runs_by_itself() -> None:
    def program(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add[lambda given: (2 if x.sum() > 100 else 4,)](x, x, out, x.numel(), BLOCK=16)
        return out + 1

    x = torch.randn(50)
    compiled = dovetail.compile(program)
    torch.testing.assert_close(compiled(x), 2 * x + 1)
    assert "a branch on a tensor's value" in dovetail.report(compiled).breaks[0].reason


# --- on a GPU ------------------------------------------------------------------------------------

put_on_gpu = triton.jit(put.fn)


@triton.jit
def scale_on_gpu(x, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = x + at
    put_on_gpu(places, tl.load(places, mask=at < n) * by, at < n)


add_on_gpu = triton.jit(add.fn)
tuned_on_gpu = triton.autotune(
    [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256}, num_warps=8)], key=["n"]
)(add_on_gpu)


def on_gpu(x: Tensor, y: Tensor) -> Tensor:
    doubled, out, result = x * 2, torch.empty_like(x), torch.empty_like(x)
    add_on_gpu[(triton.cdiv(x.numel(), 64),)](doubled, y, out, x.numel(), BLOCK=64, num_warps=2)
    scale_on_gpu[blocks(out)](out, 2.5, n=out.numel(), BLOCK=32)
    tuned_on_gpu[blocks(out)](out, y, result, x.numel())
    return result.sin()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_launches_on_a_gpu(mode: str | None, dynamic: bool) -> None:
    compiled = dovetail.compile(on_gpu, fullgraph=True, dynamic=dynamic, mode=mode)
    for size in (5000, 777, 5000):
        x, y = torch.randn(2, size, device="cuda").unbind()
        for _ in range(3):
            torch.testing.assert_close(compiled(x, y), on_gpu(x, y))
    assert dovetail.report(compiled).graphs == (1 if dynamic else 2)


# --- what a kernel writes to, by its source -------------------------------------------------------


def loop(x, y, out, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chosen = tl.load(y + at)
        tl.store(out + chosen, tl.load(x + at))
        x += BLOCK


def through_blocks(x, out, n):
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (16,), (0,))
    target = tl.make_block_ptr(out, (n,), (1,), (0,), (16,), (0,))
    target = tl.advance(target, (16,))
    tl.store(target, tl.load(source))


def by_method(x, out, other):
    (out + tl.arange(0, 16)).atomic_max(tl.load(x))
    write = tl.store
    write(other, 1)


def descriptor(x, out, n):
    made = tl.make_tensor_descriptor(out, [n], [1], [16])
    made.store([0], tl.load(x + tl.arange(0, 16)))


def assembly(x, y, out):
    tl.store(out, tl.inline_asm_elementwise("", "=r,r", [y], tl.int32, True, 1) + tl.load(x))


def choice(x, y, out, flag):
    place = x if flag else y
    tl.store(place, 0)


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (add.fn, {"out"}), (scale.fn, {"x"}), (totals.fn, {"out"}), (loop, {"out"}),
        (through_blocks, {"out"}), (by_method, {"out", "other"}), (descriptor, {"out"}),
        (assembly, {"y", "out"}), (choice, {"x", "y"}),
    ],
)  # fmt: skip
def test_what_kernels_write_to(kernel: Any, written: set[str]) -> None:
    assert written_parameters(kernel) - {"n", "BLOCK", "flag"} == written
