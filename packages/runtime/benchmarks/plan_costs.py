"""What a call and a step cost this machine's CPU, beside the same operators called eagerly; for
plans of a GPU too, where there is one.

    python packages/runtime/benchmarks/plan_costs.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from dovetail_runtime.artifact import load
from dovetail_runtime.plan import (
    Allocate,
    CallAten,
    CppKernel,
    LaunchCpp,
    LaunchTriton,
    Plan,
    PlanInput,
    Ref,
    Step,
    TensorSpec,
    TritonKernel,
)

_CPU = torch.device("cpu")
_CPP = CppKernel(
    "bench_add_one",
    """
extern "C" void bench_add_one(void* const* p, const int64_t*, int64_t begin, int64_t end) {
  const float* x = static_cast<const float*>(p[0]);
  float* y = static_cast<float*>(p[1]);
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] + 1.0f;
}
""",
)
# What NVIDIA's driver takes for a launch: `count` of them, and nothing between.
_DRIVER = CppKernel(
    "bench_driver",
    """
#include <dlfcn.h>
using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       void*, void**, void**);
static const char* const kText = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 x, .param .u64 y) { ret; }
)";
static void* nothing() {
  void *module = nullptr, *function = nullptr, *driver = dlopen("libcuda.so.1", RTLD_NOW);
  reinterpret_cast<int (*)(void**, const void*)>(dlsym(driver, "cuModuleLoadData"))(&module, kText);
  reinterpret_cast<int (*)(void**, void*, const char*)>(
      dlsym(driver, "cuModuleGetFunction"))(&function, module, "nothing");
  return function;
}
extern "C" void bench_driver(void* const* p, const int64_t*, int64_t begin, int64_t end) {
  static void* const function = nothing();
  static const Launch launch =
      reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel"));
  void* parameters[] = {const_cast<void**>(p), const_cast<void**>(p)};
  float failed = 0;
  for (int64_t i = begin; i < end; ++i) {
    failed += launch(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr) != 0;
  }
  static_cast<float*>(p[1])[0] = failed;
}
""",
)
_TRITON = TritonKernel(
    "bench_add_one",
    """
import triton
import triton.language as tl


@triton.jit
def bench_add_one(x, y):
    i = tl.arange(0, 16)
    tl.store(y + i, tl.load(x + i) + 1.0)
""",
    (("x", "*fp32"), ("y", "*fp32")),
    (),
    num_warps=1,
    num_stages=1,
)


def microseconds(function: Callable[..., Any], *args: Any, calls: int = 5000) -> float:
    """Best of seven means, per call. On a GPU no more than `calls` of them may be under way."""
    best = float("inf")
    for _ in range(7):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function(*args)
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def _small(device: torch.device) -> TensorSpec:
    return TensorSpec((4, 4), (4, 1), torch.float32, device)


def _plan(
    name: str, steps: list[Step], device: torch.device, inputs: int = 1, slab: int = 0
) -> Plan:
    on_gpu = device.type == "cuda"
    return Plan(
        name,
        "cuda" if on_gpu else "cpu",
        tuple(PlanInput(f"x{i}", _small(device)) for i in range(inputs)),
        symbols=(),
        constants=(),
        kernels=(_TRITON if on_gpu else _CPP,),
        steps=tuple(steps),
        slab_bytes=((str(device), slab),) if slab else (),
        outputs=("out",),
    )


def empty_plan(inputs: int, device: torch.device = _CPU) -> Plan:
    """One output allocation and nothing else."""
    steps: list[Step] = [Allocate("out", _small(device), None)]
    return _plan(f"empty_{inputs}", steps, device, inputs)


def _chain(name: str, step: Callable[[str, str], Step], count: int, device: torch.device) -> Plan:
    """`step(from, to)`, one after the other, through the slab."""
    steps: list[Step] = []
    previous = "x0"
    for i in range(count):
        last = i == count - 1
        to = "out" if last else f"t{i}"
        steps += (Allocate(to, _small(device), None if last else (i % 2) * 256), step(previous, to))
        previous = to
    return _plan(f"{name}_{count}", steps, device, slab=512)


def kernel_chain(count: int, device: torch.device = _CPU) -> Plan:
    """`count` kernels one after the other, through the slab."""

    def launch(source: str, to: str) -> Step:
        if device.type == "cuda":
            return LaunchTriton("bench_add_one", (source, to), (1, 1, 1))
        return LaunchCpp("bench_add_one", (source, to), (), 16, 32768)

    return _chain("kernels", launch, count, device)


def mm_chain(count: int, device: torch.device = _CPU) -> Plan:
    """`count` calls of `mm.out`, through the slab."""

    def call(source: str, to: str) -> Step:
        return CallAten("aten::mm.out", (Ref(source), Ref("x0")), (("out", Ref(to)),))

    return _chain("mm", call, count, device)


def driver_launches(count: int) -> Plan:
    """`count` launches by NVIDIA's driver alone, on the default stream; its output tells first how
    many failed."""
    launches = LaunchCpp("bench_driver", ("x0", "out"), (), count, count)
    return replace(
        _plan("driver", [Allocate("out", _small(_CPU), None), launches], _CPU), kernels=(_DRIVER,)
    )


def _eager_adds(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = x + 1.0
    return x


def _eager_mms(x: torch.Tensor, count: int) -> torch.Tensor:
    out = x
    for _ in range(count):
        out = torch.mm(out, x)
    return out


def _measure(device: torch.device) -> None:
    """Print the table of a device."""
    x = torch.randn(4, 4, device=device) * 0.1
    # A stream's queue holds some thousand launches: a GPU's chains are called less often.
    count, few, most = (50, 10, 1000) if device.type == "cuda" else (50, 500, 5000)
    empty = microseconds(load(empty_plan(1, device)).run, x, calls=most)
    many = microseconds(load(empty_plan(201, device)).run, *([x] * 201), calls=most)
    kernels = microseconds(load(kernel_chain(count, device)).run, x, calls=few)
    mms = microseconds(load(mm_chain(count, device)).run, x, calls=few)
    eager_add = microseconds(_eager_adds, x, count, calls=few)
    eager_mm = microseconds(_eager_mms, x, count, calls=few)
    eager_empty = microseconds(lambda: torch.empty(4, 4, device=device), calls=most)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    beside = f"x + 1 {eager_add / count:.3f}"
    if device.type == "cuda":
        beside += f", the driver alone {_driver_alone(count, few):.3f}"
    rows = (
        ("a call that allocates one output", empty, f"torch.empty {eager_empty:.3f}"),
        ("each further tensor input", (many - empty) / 200, ""),
        ("each kernel (16 elements)", (kernels - empty) / count, beside),
        ("each mm.out of 4x4 into the slab", (mms - empty) / count, f"mm {eager_mm / count:.3f}"),
    )
    print(f"{where}, torch {torch.__version__}, {torch.get_num_threads()} threads; microseconds")
    for title, value, eager in rows:
        print(f"{title:<40}{value:7.3f}   {eager}")


def _driver_alone(count: int, calls: int) -> float:
    """Microseconds of a launch by the driver."""
    run, x = load(driver_launches(count)).run, torch.zeros(4, 4)
    if float(run(x)[0][0, 0]) != 0:
        raise RuntimeError("NVIDIA's driver refused a launch")
    return microseconds(run, x, calls=calls) / count


def main() -> None:
    """Print the tables."""
    with torch.no_grad():
        _measure(_CPU)
        if torch.cuda.is_available():
            _measure(torch.device("cuda:0"))


if __name__ == "__main__":
    main()
