"""`python -m dovetail_runtime.bench`: what a call and a step cost on this machine's CPU, beside
the same operators called eagerly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from dovetail_runtime.artifact import load
from dovetail_runtime.plan import (
    Allocate,
    CallAten,
    CppKernel,
    LaunchCpp,
    Plan,
    PlanInput,
    Ref,
    Step,
    TensorSpec,
)

_CPU = torch.device("cpu")
_SMALL = TensorSpec((4, 4), (4, 1), torch.float32, _CPU)
_SOURCE = """
extern "C" void bench_add_one(void* const* p, const int64_t*, int64_t begin, int64_t end) {
  const float* x = static_cast<const float*>(p[0]);
  float* y = static_cast<float*>(p[1]);
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] + 1.0f;
}
"""
_KERNEL = CppKernel("bench_add_one", _SOURCE)


def microseconds(function: Callable[..., Any], *args: Any, calls: int = 5000) -> float:
    """Best of seven means, per call."""
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(calls):
            function(*args)
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def _plan(name: str, steps: list[Step], inputs: int = 1, slab: int = 0) -> Plan:
    return Plan(
        name,
        "cpu",
        tuple(PlanInput(f"x{i}", _SMALL) for i in range(inputs)),
        symbols=(),
        constants=(),
        kernels=(_KERNEL,),
        steps=tuple(steps),
        slab_bytes=(("cpu", slab),) if slab else (),
        outputs=("out",),
    )


def empty_plan(inputs: int) -> Plan:
    """One output allocation and nothing else."""
    return _plan(f"empty_{inputs}", [Allocate("out", _SMALL, None)], inputs)


def kernel_chain(count: int) -> Plan:
    """`count` kernels one after the other, through the slab."""
    steps: list[Step] = []
    previous = "x0"
    for i in range(count):
        last = i == count - 1
        name = "out" if last else f"t{i}"
        steps.append(Allocate(name, _SMALL, None if last else (i % 2) * 64))
        steps.append(LaunchCpp("bench_add_one", (previous, name), (), 16, 32768))
        previous = name
    return _plan(f"kernels_{count}", steps, slab=128)


def mm_chain(count: int) -> Plan:
    """`count` calls of `mm.out`, through the slab."""
    steps: list[Step] = []
    previous = "x0"
    for i in range(count):
        last = i == count - 1
        name = "out" if last else f"t{i}"
        steps.append(Allocate(name, _SMALL, None if last else (i % 2) * 64))
        steps.append(CallAten("aten::mm.out", (Ref(previous), Ref("x0")), (("out", Ref(name)),)))
        previous = name
    return _plan(f"mm_{count}", steps, slab=128)


def _eager_adds(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = x + 1.0
    return x


def _eager_mms(x: torch.Tensor, count: int) -> torch.Tensor:
    out = x
    for _ in range(count):
        out = torch.mm(out, x)
    return out


def main() -> None:
    """Print the table."""
    x = torch.randn(4, 4) * 0.1
    count = 50
    with torch.no_grad():
        empty = microseconds(load(empty_plan(1)).run, x)
        many = microseconds(load(empty_plan(201)).run, *([x] * 201))
        kernels = microseconds(load(kernel_chain(count)).run, x)
        mms = microseconds(load(mm_chain(count)).run, x, calls=1000)
        eager_add = microseconds(_eager_adds, x, count, calls=500)
        eager_mm = microseconds(_eager_mms, x, count, calls=500)
        eager_empty = microseconds(torch.empty, 4, 4)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; microseconds")
    print(f"a call that allocates one output        {empty:7.3f}   torch.empty {eager_empty:.3f}")
    print(f"each further tensor input               {(many - empty) / 200:7.3f}")
    per_kernel = (kernels - empty) / count
    print(
        f"each C++ kernel (16 elements)           {per_kernel:7.3f}   x + 1 {eager_add / count:.3f}"
    )
    per_mm = (mms - empty) / count
    print(
        f"each mm.out of 4x4 into the slab        {per_mm:7.3f}   torch.mm {eager_mm / count:.3f}"
    )


if __name__ == "__main__":
    main()
