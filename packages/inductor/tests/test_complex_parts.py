"""Complex numbers in loops of real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

C64 = torch.complex64


def planned(fn: Callable[..., Any], inputs: Sequence[Tensor], triton: bool) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, inputs, options=InductorOptions(triton=triton))


def calls(plan: Plan) -> list[str]:
    """The library calls of a plan but those that only look at memory otherwise."""
    looks = ("aten::view_as_real", "aten::view_as_complex")
    return [s.op for s in plan.steps if isinstance(s, CallAten) and s.op not in looks]


def check(fn: Callable[..., Any], *inputs: Tensor, library: Sequence[str] = ()) -> None:
    """By Triton as eager, with these library calls alone; and on a CPU, where numbers stay whole:
    values, dtypes and strides."""
    wanted = fn(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for triton in (False, True):
        plan = planned(fn, inputs, triton)
        assert not triton or calls(plan) == list(library)
        run = ReferenceExecutor(plan, launch_triton=run_in_interpreter) if triton else load(plan)
        for got, expected in zip(run(*inputs), wanted, strict=True):
            assert isinstance(got, Tensor)
            assert got.dtype is expected.dtype and got.stride() == expected.stride()
            # (The interpreter cuts off what a bfloat16 does not hold.)
            near = 1e-2 if got.dtype is torch.bfloat16 else 1e-5
            torch.testing.assert_close(got, expected, rtol=near, atol=near, equal_nan=True)


def c(*shape: int, dtype: torch.dtype = C64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def rotary(q: Tensor, rotation: Tensor) -> Tensor:
    """As Llama's authors wrote it."""
    pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(3).type_as(q)


def test_a_rotary_embedding_is_one_kernel() -> None:
    q = torch.randn(2, 16, 4, 32).bfloat16()
    rotation = torch.polar(torch.ones(16, 1, 16), torch.randn(16, 1, 16))
    check(rotary, q, rotation)
    plan = planned(rotary, (q, rotation), True)
    assert len([s for s in plan.steps if isinstance(s, LaunchTriton)]) == 1


def test_both_parts_are_computed_by_one_thread() -> None:
    """Where there are many: no mask says which part it is."""
    q = torch.randn(2, 128, 8, 64)
    rotation = torch.polar(torch.ones(128, 1, 32), torch.randn(128, 1, 32))
    check(rotary, q, rotation)
    (kernel,) = planned(rotary, (q, rotation), True).kernels
    assert isinstance(kernel, TritonKernel)
    assert kernel.source.count("tl.store") == 1 and "where" not in kernel.source
    assert kernel.source.count("tl.load") == 2  # of pairs


def written_parts(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Two corners of zeros replaced, as without writes: rows with new columns, put back."""
    out = torch.zeros_like(x)
    for rows, part in ((slice(None, 2), a), (slice(-2, None), b)):
        whole = out[..., rows, :]
        whole = torch.slice_scatter(whole, part.expand_as(whole[..., :3]), -1, 0, 3)
        out = torch.slice_scatter(out, whole, -2, rows.start, rows.stop)
    return out


def test_a_spectral_convolution_copies_no_spectrum() -> None:
    weight = c(4, 4)

    def fn(x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x)
        kept = torch.einsum("bixy,io->boxy", spectrum[..., :2, :3], weight)
        return torch.fft.irfft2(written_parts(spectrum, kept, kept.conj()), s=x.shape[-2:])

    check(
        fn, torch.randn(2, 4, 8, 8), library=["aten::_fft_r2c", "aten::bmm.out", "aten::_fft_c2r"]
    )


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "sums": (lambda x, y: (x + y, x - y, -x, x + 2, x - 1j, 1j - x, 3 - x), (c(4, 5), c(4, 5))),
    "products": (lambda x, y: (x * y, x * 2.5, x * (1 + 2j), x * y.conj()), (c(4, 5), c(5))),
    "a real factor": (lambda x, r: (x * r, r * x, x + r), (c(4, 5), torch.randn(4, 1))),
    "whole factors": (lambda x, n: x * n, (c(4, 5), torch.arange(5))),
    "half factors": (lambda x, n: x * n, (c(4, 5), torch.randn(5).half())),
    "two precisions": (lambda x, y: (x * y, x.to(torch.complex128)), (c(4, 5), c(5).cdouble())),
    "from real ones": (lambda r: (r.to(C64) * 1j, r.cfloat() + 1), (torch.randn(4, 5),)),
    "moves": (
        lambda x: (x.mT.contiguous() * 1, x.flip(0) * 1, x.roll(1, 1) * 1, torch.cat([x, x]) * 1),
        (c(4, 5),),
    ),
    "views": (lambda x: (x * 2)[1:, None].expand(3, 2, 5).permute(2, 1, 0) * x[0, 0], (c(4, 5),)),
    "written": (written_parts, (c(3, 4, 5), c(3, 2, 3), c(2, 3))),
    "gathered": (lambda x, i: x[i] * 1j, (c(6, 5), torch.tensor([5, 0, -2]))),
    "chosen": (lambda x, y, r: torch.where(r > 0, x, y) * 2, (c(4, 5), c(5), torch.randn(4, 5))),
    "reduced": (lambda x: (x.sum(), (x * 1j).sum(1), x.sum((0, 1), keepdim=True)), (c(4, 5),)),
    "triangles": (lambda x: x.triu() * x.tril(1), (c(5, 5),)),
    "filled": (lambda x: torch.full_like(x, 2 - 1j) * x, (c(4, 5),)),
    "parts": (lambda x: ((x * x).real * 2, (x * 1j).imag + x.real), (c(4, 5),)),
    "permuted": (lambda x: x.permute(1, 0) * 2, (c(4, 5),)),
    "with gaps": (lambda x: x[:, ::2] * 2 + x[:, 1:4], (c(4, 6)[:, :6],)),
    "none": (lambda x: x * 2, (c(0, 5),)),
    "one": (lambda x, y: x * y, (c(), c(1))),
}


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    fn, inputs = CASES[name]
    check(fn, *inputs)


def test_views_that_are_given_out_share_memory() -> None:
    """A caller writes to a part and sees it in the whole, as in eager."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2j
        return y, torch.view_as_real(y)

    x = c(4, 5)
    for triton in (False, True):
        plan = planned(fn, (x,), triton)
        run = ReferenceExecutor(plan, launch_triton=run_in_interpreter) if triton else load(plan)
        whole, pairs = run(x)
        assert isinstance(whole, Tensor) and isinstance(pairs, Tensor)
        assert whole.data_ptr() == pairs.data_ptr()
        pairs.fill_(7)
        assert torch.equal(whole, torch.full_like(whole, 7 + 7j))


def test_computed_pairs_are_read_as_numbers_where_they_lie() -> None:
    def fn(r: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.view_as_complex(r * 2).exp()
        return z, torch.view_as_real(z) * 2

    check(fn, torch.randn(3, 4, 2), library=["aten::exp"])


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_halves_are_seen_as_pairs() -> None:
    """No arithmetic is done on them; their parts are."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        z = x.to(torch.complex32)
        return z, torch.view_as_real(z) * 2, torch.view_as_complex(torch.view_as_real(z) + 1)

    check(fn, c(3, 4), library=["aten::_to_copy"])


def test_infinite_factors_as_eager() -> None:
    values = torch.tensor([complex(float("inf"), 0), complex(0, float("nan")), 1 + 1j, -0.0])
    check(lambda x: (x * 2, x * x, x + 1, -x), values)


def test_what_loops_do_not_know_stays_a_call() -> None:
    check(lambda x: ((x * 2).exp() * 3, x / 3), c(4, 5), library=["aten::exp", "aten::div.Tensor"])


def test_lazy_conjugates_are_read_as_what_they_are() -> None:
    check(lambda x, y: (x.conj() * y, x.conj().imag + 1), c(4, 5), c(4, 5))
