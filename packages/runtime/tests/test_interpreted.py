"""What the interpreter is told to watch: races and addresses out of bounds; and CUDA's library."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch
from dovetail_runtime.compile_pool import JobFailed
from dovetail_runtime.plan import TritonKernel
from kernel_interpreter import run_in_interpreter

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")


def kernel(*body: str, scatters: bool = False) -> TritonKernel:
    """Two programs of eight lanes each."""
    head = "import triton\nimport triton.language as tl\n"
    head += "from triton.language.extra import libdevice\n\n\n@triton.jit\ndef k(x, y):\n"
    lines = ["pid = tl.program_id(0)", "i = pid * 8 + tl.arange(0, 8)", *body]
    source = head + "".join(f"    {line}\n" for line in lines)
    parameters = (("x", "*fp32"), ("y", "*fp32"))
    return TritonKernel("k", source, parameters, (), 1, 1, (), scatters=scatters)


def run(made: TritonKernel) -> torch.Tensor:
    y = torch.zeros(16)
    run_in_interpreter(made, [torch.arange(16.0), y], (2, 1, 1))
    return y


def test_what_is_no_race() -> None:
    assert torch.equal(run(kernel("tl.store(y + i, tl.load(x + i))")), torch.arange(16.0))
    run(kernel("tl.store(y + i // 16, 1.0)"))  # all the same
    run(kernel("tl.store(x + i, 0.0)", "tl.debug_barrier()", "tl.store(y + i, tl.load(x + i))"))
    run(kernel("tl.store(y + i % 8, tl.load(x + i))", scatters=True))  # to computed places
    run(kernel("tl.atomic_add(y + i % 8, tl.load(x + i))"))


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("in no tensor", ["tl.store(y + i, tl.load(x + i + 1))"]),
        ("in no tensor", ["tl.store(y + i, tl.load(x + i - 1))"]),
        ("in no tensor", ["tl.store(y + i * 2, 1.0, i < 9)"]),
        ("two programs write", ["tl.store(y + i % 8, tl.load(x + i))"]),
        ("one store writes", ["tl.store(y + i // 2, tl.load(x + i))"]),
        ("reads what another", ["tl.store(x + i, tl.load(x + 15 - i))"]),
        ("writes what another", ["t = tl.load(x + i)", "tl.store(x + i - 8, t, i >= 8)"]),
        ("without a barrier", ["tl.store(x + i, 0.0)", "tl.store(y + i, tl.load(x + i))"]),
    ],
)
def test_what_a_gpu_would_not_forgive(message: str, body: list[str]) -> None:
    with pytest.raises(JobFailed, match=message):
        run(kernel(*body))


def test_functions_of_the_device_library() -> None:
    got = run(kernel("tl.store(y + i, libdevice.pow(tl.load(x + i), tl.load(x + i) * 0.25))"))
    x = torch.arange(16.0)
    torch.testing.assert_close(got, x ** (x * 0.25))
    number = kernel("tl.store(y + i, i * 0.0 + libdevice.trunc(tl.load(x + pid) + 1.5))")
    assert torch.equal(run(number), torch.tensor([1.0, 2.0]).repeat_interleave(8))
    shaped = "tl.broadcast_to(libdevice.trunc(tl.load(x)), [1, 1])"
    run(kernel(f"tl.store(y + tl.broadcast_to(pid, [1, 1]), {shaped})"))


def test_reductions_and_scans_by_any_function() -> None:
    combine = "@triton.jit\ndef both(a, b):\n    return a + b - a * b\n\n\n@triton.jit\ndef k("
    total = kernel(
        "t = tl.load(x + i) * 0.1", "tl.store(y + pid + t.to(tl.int32) * 0, tl.reduce(t, 0, both))"
    )
    scan = kernel("t = tl.load(x + i) * 0.1", "tl.store(y + i, tl.associative_scan(t, 0, both))")
    t, wanted = (torch.arange(16.0) * 0.1).view(2, 8), torch.zeros(2, 8)
    wanted[:, 0] = t[:, 0]
    for n in range(1, 8):
        wanted[:, n] = wanted[:, n - 1] + t[:, n] - wanted[:, n - 1] * t[:, n]
    for made, of in ((scan, wanted.view(-1)), (total, wanted[:, -1])):
        source = made.source.replace("@triton.jit\ndef k(", combine)
        got = run(replace(made, source=source))
        torch.testing.assert_close(got[: of.numel()], of, rtol=1e-4, atol=1e-4)
