"""Products and convolutions of halves as ones of float32, for a tool that cannot run them.

compute-sanitizer's racecheck loses the device in the kernels that cuBLAS and cuDNN have for halves
on Hopper, also when it instruments none of them. What is to be checked are generated kernels: here
their neighbours, eager's operators and the library calls of compiled graphs alike, multiply in
float32 and round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
NAMES = (
    "mm", "bmm", "addmm", "baddbmm", "addmv", "_addmm_activation", "convolution",
    "convolution_backward",
)  # fmt: skip
# Called before a backend is chosen, and by C++ as well as by Python.
KEY = "BackendSelect"


@contextmanager
def float32_products() -> Iterator[None]:
    """Inside, each of `NAMES` computes in float32 what it is given in halves, and nothing in TF32,
    whose kernels are of the same kind."""
    # (Not by `torch.backends.cudnn`, which refuses once `torch.testing` froze its flags.)
    tf32 = torch._C._get_cudnn_allow_tf32(), torch._C._get_cublas_allow_tf32()
    torch._C._set_cudnn_allow_tf32(False)
    torch._C._set_cublas_allow_tf32(False)
    library = torch.library.Library("aten", "IMPL")
    for name in NAMES:
        packet = getattr(torch.ops.aten, name)
        library.impl(name, _widened(packet.default), KEY, with_keyset=True)
        out = getattr(packet, "out", None)
        if out is not None:
            library.impl(f"{name}.out", _into_out(packet.default, out), KEY, with_keyset=True)
    try:
        yield
    finally:
        library._destroy()
        torch._C._set_cudnn_allow_tf32(tf32[0])
        torch._C._set_cublas_allow_tf32(tf32[1])


def _below(keys: torch._C.DispatchKeySet) -> torch._C.DispatchKeySet:
    """The kernels that come after this one."""
    key = getattr(torch._C.DispatchKey, KEY)
    return keys & torch._C._dispatch_keyset_full_after(key)


def _half_among(values: tuple[Any, ...]) -> torch.dtype | None:
    found = (v.dtype for v in values if isinstance(v, Tensor) and v.dtype in HALVES)
    return next(found, None)


def _widened(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """`op`, whose halves are operands of float32 and whose results are rounded."""

    def run(keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> Any:
        dtype = _half_among(args)
        if dtype is None:
            return op.redispatch(_below(keys), *args, **options)
        wide = [v.float() if isinstance(v, Tensor) and v.dtype in HALVES else v for v in args]
        results = op.redispatch(_below(keys), *wide, **options)
        if isinstance(results, Tensor):
            return results.to(dtype)
        return tuple(None if r is None else r.to(dtype) for r in results)

    return run


def _into_out(op: torch._ops.OpOverload, out_op: torch._ops.OpOverload) -> Callable[..., Any]:
    """`out_op`, which writes what `_widened(op)` gives."""

    def run(keys: torch._C.DispatchKeySet, *args: Any, out: Tensor, **options: Any) -> Tensor:
        if _half_among(args) is None:
            result: Tensor = out_op.redispatch(_below(keys), *args, out=out, **options)
            return result
        computed = op(*args, **options)
        return out.resize_(computed.shape).copy_(computed)

    return run
