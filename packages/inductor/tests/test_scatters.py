"""Ops that write to computed places, against eager: C++ kernels, and interpreted Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.index import Var, constant, indirect, variable
from dovetail_inductor.loop_ir.loops import ExternCall
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.lifetimes import live_bytes
from dovetail_inductor.scheduler.loops import distinct_variables
from dovetail_inductor.scheduler.memory import plan_memory
from dovetail_inductor.targets import CPU, CUDA
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, LaunchCpp, Plan, TritonKernel
from reference_executor import ReferenceExecutor, TritonLauncher
from torch import Tensor

aten = torch.ops.aten
Fn = Callable[..., Any]


def ints(high: int, *shape: int, low: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(high))


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def wide(*shape: int, dtype: torch.dtype) -> Tensor:
    """Elements of any dtype."""
    return (floats(*shape) * 9).to(dtype)


PERMUTED = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(3))] * 6)[:, :4]

CASES: dict[str, tuple[Fn, tuple[Any, ...]]] = {
    "index_put": (
        lambda x, i, v: torch.index_put(x, (i,), v, accumulate=True),
        (floats(7, 20), ints(7, 31, low=-7), floats(31, 20)),
    ),
    "index_put two": (
        lambda x, i, j, v: torch.index_put(x, (i, j), v, accumulate=True),
        (floats(7, 5, 3), ints(7, 4, 1), ints(5, 6, low=-5), floats(4, 6, 1)),
    ),
    "index_put apart": (
        lambda x, i, j, v: aten.index_put(x, [i, None, j], v, True),
        (floats(7, 5, 3), ints(7, 4, 1), ints(3, 6), floats(4, 6, 5)),
    ),
    "index_put inner": (
        lambda x, i, v: aten.index_put(x, [None, i], v, False),
        (floats(7, 9, 3), PERMUTED[0], floats(3)),
    ),
    "index_put transposed": (
        lambda x, i, v: aten.index_put(x.t(), [i], v, True) * 2,
        (floats(20, 7), ints(7, 31), floats(31, 20)),
    ),
    "index_put mask": (
        lambda x, v: (aten.index_put(x, [x > 0], v), aten.index_put(x, [None, x[0] > 0], v, True)),
        (floats(7, 9), floats(1)),
    ),
    "index_add": (
        lambda x, i, v: torch.index_add(x, 1, i, v, alpha=2),
        (floats(4, 6, 33), ints(6, 11), floats(4, 11, 33)),
    ),
    "index_add one dimension": (
        lambda x, i, v: torch.index_add(x, 0, i, v.exp()),
        (floats(300), ints(300, 5000), floats(5000)),
    ),
    "index_copy": (
        lambda x, i, v: torch.index_copy(x, 0, i, v),
        (floats(6, 5), PERMUTED[0] % 5, floats(4, 5)),
    ),
    "index_fill": (lambda x, i: torch.index_fill(x, 1, i, 3), (floats(6, 9), PERMUTED[0])),
    "scatter": (
        lambda x, i, v: torch.scatter(x, 1, i, v.sigmoid()),
        (floats(8, 9), PERMUTED, floats(6, 5)),
    ),
    "scatter number": (lambda x, i: torch.scatter(x, -1, i, 2.5), (floats(6, 9), PERMUTED)),
    "scatter_add": (
        lambda x, i, v: torch.scatter_add(x, 0, i, v),
        (floats(8, 40), ints(8, 21, 37), floats(22, 40)),
    ),
    "scatter_add middle": (
        lambda x, i, v: torch.scatter_add(x, 1, i, v),
        (floats(3, 8, 40), ints(8, 3, 21, 37), floats(4, 22, 40)),
    ),
    "scatter_add expanded": (
        lambda x, i, v: torch.scatter_add(x, 1, i[:, None].expand(6, 40), v),
        (floats(6, 9), ints(9, 6), floats(6, 40)),
    ),
    "scatter_add scalar": (
        lambda x, i, v: torch.scatter_add(x, 0, i, v),
        (torch.tensor(2.0), torch.tensor(0), torch.tensor(3.0)),
    ),
    "as_strided_scatter": (
        lambda x, v: (torch.as_strided_scatter(x * 2, v, (3, 4), (8, 2), 3), v + 1),
        (floats(6, 8), floats(3, 4)),
    ),
    "as_strided_scatter transposed": (
        lambda x, v: torch.as_strided_scatter(x.t(), v, (3, 4), (1, 3)),
        (floats(6, 8), floats(3, 4)),
    ),
    "as_strided_scatter of gaps": (
        lambda x, v: torch.as_strided_scatter(x[:, 1::2], v, (3, 4), (8, 1), 0),
        (floats(6, 8), floats(3, 4)),
    ),
    "results with gaps": (
        lambda x, v: (
            torch.diagonal_scatter(x[:, 1::2], v[:3], 1),
            torch.slice_scatter(x[:, 1::2] + 0, v[None], 0, 1, 2),
            torch.select_scatter(x.t()[1::2], v, 1, 2),
        ),
        (floats(4, 8), floats(4)),
    ),
    "as_strided_scatter beyond": (
        lambda x, v: torch.as_strided_scatter(x[1:3, 1:4], v, (2, 4), (20, 3), 5) + 1,
        (floats(6, 8), floats(2, 4)),
    ),
    "max_unpool": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        (floats(2, 3, 8, 10),),
    ),
    **{
        f"scatter_reduce {name} {include}": (
            lambda x, i, v, name=name, include=include: torch.scatter_reduce(
                x, 1, i, v, name, include_self=include
            ),
            (floats(6, 9), ints(9, 6, 12), floats(6, 12)),
        )
        for name in ("sum", "mean", "amax", "amin", "prod")
        for include in (True, False)
    },
    **{
        f"index_reduce {name} {include}": (
            lambda x, i, v, name=name, include=include: torch.index_reduce(
                x, 0, i, v, name, include_self=include
            ),
            (floats(6, 9), ints(6, 5), floats(5, 9)),
        )
        for name in ("mean", "amax", "amin", "prod")
        for include in (True, False)
    },
    "scatter_reduce int64": (
        lambda x, i, v: tuple(
            torch.scatter_reduce(x, 1, i, v, name, include_self=include)
            for name in ("sum", "mean", "amax", "amin")
            for include in (True, False)
        ),
        (ints(50, 6, 9), ints(9, 6, 12), ints(50, 6, 12, low=-50)),
    ),
    "scatter_reduce corners": (
        lambda x, i, v: (
            torch.scatter_reduce(x, 0, i, v, "amax"),
            torch.scatter_reduce(x, 0, i, v, "amin"),
            torch.scatter_reduce(x.bfloat16(), 0, i, v.bfloat16(), "amin", include_self=False),
        ),
        (
            torch.tensor([1.0, torch.nan, -0.0, -torch.inf, 2, -3]),
            torch.tensor([0, 1, 2, 3, 4, 5, 0, 4]),
            torch.tensor([torch.nan, 5, -1, 0.0, -torch.inf, torch.inf, -7, -9]),
        ),
    ),
    "embedding": (
        lambda g, i: aten.embedding_dense_backward(g, i, 50, 3, False),
        (floats(3, 70, 24), ints(50, 3, 70)),
    ),
    "nothing": (
        lambda x, i, v: (torch.index_add(x, 0, i, v), torch.scatter_add(x, 0, i[:, None], v)),
        (floats(3, 4), ints(3, 0), floats(0, 4)),
    ),
    "chain": (
        lambda x, i, v: torch.index_add(torch.index_add(x, 0, i, v), 0, i.flip(0), v * 2) + 1,
        (floats(5, 16), ints(5, 9), floats(9, 16)),
    ),
    "chain with itself": (
        lambda x, i, v: (lambda y: torch.index_add(y, 0, i, y[:9]))(
            (lambda y: torch.index_add(y, 0, i, y))(torch.index_add(x, 0, i, v))
        ),
        (floats(9, 16), ints(9, 9), floats(9, 16)),
    ),
    "chain through a view": (
        lambda x, i, v: (
            lambda y: (
                torch.index_add(aten.alias(y), 0, i, v),
                torch.index_add(y[:], 0, i, v),
                y + 1,
            )
        )(torch.index_add(x, 0, i, v)),
        (floats(5, 16), ints(5, 9), floats(9, 16)),
    ),
    "read on both sides": (
        lambda x, i, v: (lambda y: (torch.index_add(y, 0, i, v * 3), y * v.sum()))(x.exp()),
        (floats(5, 16), ints(5, 9), floats(9, 16)),
    ),
}
for _dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool):
    CASES[f"index_put {_dtype}"] = (
        lambda x, i, v: torch.index_put(x, (i,), v, accumulate=True),
        (wide(7, 20, dtype=_dtype), ints(7, 9, low=-7), wide(9, 20, dtype=_dtype)),
    )
    CASES[f"scatter {_dtype}"] = (
        lambda x, i, v: torch.scatter(x, 1, i, v),
        (wide(6, 9, dtype=_dtype), PERMUTED, wide(6, 4, dtype=_dtype)),
    )
    if _dtype is not torch.bool:
        CASES[f"scatter_add {_dtype}"] = (
            lambda x, i, v: torch.scatter_add(x, 1, i, v),
            (wide(6, 9, dtype=_dtype), ints(9, 6, 12), wide(6, 12, dtype=_dtype)),
        )


def planned(fn: Fn, inputs: tuple[Any, ...], triton: bool) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=triton))
    assert not [s.op for s in plan.steps if isinstance(s, CallAten)]
    return plan


def compare(got: Any, want: Any) -> None:
    flat = want if isinstance(want, tuple) else (want,)
    assert len(got) == len(flat)
    for g, w in zip(got, flat, strict=True):
        assert g.dtype == w.dtype and g.stride() == w.stride()
        narrow = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
        t = narrow.get(w.dtype, 2e-5)
        torch.testing.assert_close(g, w, rtol=t, atol=t, equal_nan=True)


THREADS = [
    (name, threads)
    for name in CASES
    for threads in (1, 4)
    if threads == 1 or not ("reduce" in name or "torch." in name)
]


@pytest.mark.parametrize(("name", "threads"), THREADS)
def test_cpp_equals_eager(name: str, threads: int) -> None:
    fn, inputs = CASES[name]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plan = planned(fn, inputs, triton=False)
        steps = [replace(s, grain=1) if isinstance(s, LaunchCpp) else s for s in plan.steps]
        plan = replace(plan, steps=tuple(steps))
        copies = [t.clone() for t in inputs]
        compare(load(plan)(*inputs), fn(*inputs))
        torch.testing.assert_close(copies, list(inputs), rtol=0, atol=0, equal_nan=True)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_triton_equals_eager(name: str, interpreter: TritonLauncher) -> None:
    fn, inputs = CASES[name]
    if "prod" in name:
        with pytest.raises(AssertionError, match="_reduce"):
            planned(fn, inputs, triton=True)
        return  # there is no such atomic
    plan = planned(fn, inputs, triton=True)
    got = ReferenceExecutor(plan, launch_triton=interpreter)(*inputs)
    compare(got, fn(*inputs))


def test_every_kernel_compiles_for_an_h100(build_for_h100: Any) -> None:
    cases = [case for name, case in CASES.items() if "prod" not in name]
    plans = [planned(fn, inputs, triton=True) for fn, inputs in cases]
    build_for_h100({k for p in plans for k in p.kernels if isinstance(k, TritonKernel)})


def test_distinct_variables_are() -> None:
    """Against all values of small loops."""
    random = Random(7)
    found = 0
    for _ in range(400):
        builder = Builder()
        variables = [Var(k, random.randint(2, 4)) for k in range(3)]
        index = constant(random.randint(0, 3))
        for v in variables:
            index = index + variable(v) * random.choice([0, 1, 2, 3, 4, 8, 12, 16])
        size, factor = random.randint(1, 4), random.choice([0, 1, 4, 12])
        read = builder.load("i", constant(0), torch.int64)
        index = index + indirect(read, size) * factor
        for v in distinct_variables(index):
            found += 1
            seen: dict[int, int] = {}
            for values in product(*(range(w.size) for w in variables), range(size)):
                at = index.const + factor * values[-1]
                at += sum(
                    (index.coefficient(w) or 0) * n for w, n in zip(variables, values, strict=False)
                )
                assert seen.setdefault(at, values[v.id]) == values[v.id]
    assert found > 100


@pytest.mark.parametrize("bad", [5, -6])
def test_an_index_out_of_range_raises(bad: int) -> None:
    fn, inputs = CASES["index_put"][0], (floats(5, 3), ints(5, 4), floats(4, 3))
    run = load(planned(fn, inputs, triton=False))
    compare(run(*inputs), fn(*inputs))
    with pytest.raises(
        IndexError, match=f"index {bad} is out of bounds for dimension 0 with size 5"
    ):
        run(inputs[0], torch.tensor([0, 1, bad, 2]), inputs[2])


@pytest.mark.parametrize("bad", [5, -6])
def test_a_gpu_writes_nothing_out_of_range(
    bad: int, interpreter: TritonLauncher, build_for_h100: Any
) -> None:
    fn, inputs = CASES["index_put"][0], (floats(5, 3), ints(5, 4), floats(4, 3))
    plan = planned(fn, inputs, triton=True)
    (scattering,) = (k for k in plan.kernels if "atomic" in k.source)
    assert isinstance(scattering, TritonKernel) and scattering.asserts
    binary = build_for_h100([scattering])[scattering.symbol]
    assert b"assertfail" in binary.cubin
    index = torch.tensor([0, 1, bad, 2])
    run = ReferenceExecutor(plan, launch_triton=interpreter)  # in which assertions are off
    want = fn(inputs[0], index[[0, 1, 3]], inputs[2][[0, 1, 3]])
    compare(run(inputs[0], index, inputs[2]), want)


def test_a_gpu_reads_nothing_out_of_range(build_for_h100: Any) -> None:
    plan = planned(lambda x, i: x[i] * 2, (floats(5, 3), ints(5, 4)), triton=True)
    (reading,) = plan.kernels
    assert isinstance(reading, TritonKernel) and reading.asserts and not reading.scatters
    assert b"assertfail" in build_for_h100([reading])[reading.symbol].cubin


def test_deterministic_algorithms_are_the_librarys_on_a_gpu() -> None:
    fn, inputs = CASES["index_put"]
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    torch.use_deterministic_algorithms(True)
    try:
        assert any(isinstance(n, ExternCall) for n in lower(gm, CUDA).nodes)
        assert not any(isinstance(n, ExternCall) for n in lower(gm, CPU).nodes)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(isinstance(n, ExternCall) for n in lower(gm, CUDA).nodes)


def test_a_large_narrow_target_is_the_librarys_on_a_gpu() -> None:
    """It would have to lie in memory in float32 as well: beside a library that sorts rows that is
    little, beside one that adds them at once much."""
    fn, (_, index) = CASES["embedding"]
    for rows, dtype, ours in (
        (1, torch.bfloat16, False), (1, torch.float32, True), (40, torch.bfloat16, True),
    ):  # fmt: skip
        inputs = floats(3, rows, 24).to(dtype), index[:, :rows]
        gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
        nodes = lower(gm, CUDA).nodes
        assert ours == (not any(isinstance(n, ExternCall) for n in nodes))
    for width, dtype, ours in (
        (20, torch.bfloat16, False), (20, torch.float32, True), (48, torch.bfloat16, True),
    ):  # fmt: skip
        given = floats(64, 48).to(dtype), ints(48, 64 * width).view(64, width)
        added = floats(64, width).to(dtype)
        gm = trace_aten(
            lambda x, i, v: x.scatter_add(1, i, v), *given, added,
            decompositions=core_aten_table(),
        )  # fmt: skip
        nodes = lower(gm, CUDA).nodes
        assert ours == (not any(isinstance(n, ExternCall) for n in nodes))


def test_memory_of_a_scatter_is_counted_once() -> None:
    """What it writes is what it was begun with, and lives as long as its last reader needs it."""

    def chain(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        y = torch.index_add(x * 2, 0, i, v)
        return torch.index_add(y, 0, i, v).softmax(0) @ v.t()

    inputs = (floats(64, 48), ints(64, 80), floats(80, 48))
    gm = trace_aten(chain, *inputs, decompositions=core_aten_table())
    kernels = fuse(lower(gm), InductorOptions())
    alive = live_bytes(kernels)
    assert alive.bytes <= 3 * 64 * 80 * 4
    memory = plan_memory(kernels)
    assert len(memory.written_over) >= 2 and len(set(memory.written_over.values())) == 1
    compare(load(compile_graph(gm))(*inputs), chain(*inputs))


def test_what_a_library_call_copies_with_all_its_storage(check):
    """Its result begins where the argument does, and views of it there (complex: no loops)."""

    def fn(x):
        row = torch.slice_scatter(x[1], x[1][:2] * 2, 0, 0, 2)
        column = torch.select_scatter(x[:, 1:], row[1:] * 3, 0, 1)
        return row[2:] * 2, column[1:, 1:] * 2, torch.diagonal_scatter(x[1:], x[0, :2])[1:] * 2

    check(fn, torch.arange(12.0).view(3, 4).to(torch.complex64))
