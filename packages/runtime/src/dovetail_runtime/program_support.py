"""What a program written by `plan_text` calls: memory by hand, kernels by name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import torch

from dovetail_runtime.artifact import default_cpp_builder
from dovetail_runtime.aten_args import call_with_numbers, element
from dovetail_runtime.cpp_library import CppFunction
from dovetail_runtime.headers import header
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import CppKernel
from dovetail_runtime.sizes import FLOAT_OPERATIONS, float_bits, float_from_bits, storage_bytes

__all__ = [
    "call_with_numbers",
    "cpp_kernels",
    "element",
    "float_bits",
    "float_from_bits",
    "header",
    "on_floats",
    "place",
    "random_input",
    "slab",
    "view",
]

CppCall = Callable[[Sequence[torch.Tensor], Sequence[int], int], None]


def on_floats(operation: str, *bits: int) -> int:
    """An operation on floats that are given by their bits."""
    floats = bits if operation == "float" else [float_from_bits(b) for b in bits]
    return float_bits(FLOAT_OPERATIONS[operation](*floats))


def slab(nbytes: int, device: str) -> torch.UntypedStorage:
    """One allocation that a whole call shares."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


def place(
    memory: torch.UntypedStorage,
    start: int,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    offset: int = 0,
) -> torch.Tensor:
    """A tensor in a slab, from byte `start` on."""
    nbytes = storage_bytes(shape, stride, offset, dtype.itemsize)
    part = memory[start : start + nbytes] if nbytes else slab(0, str(memory.device))
    return torch.empty(0, dtype=dtype, device=memory.device).set_(part, offset, shape, stride)


def view(
    base: torch.Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    offset: int = 0,
) -> torch.Tensor:
    """`base`'s storage seen otherwise; `offset` counts from the storage's start."""
    made = torch.empty(0, dtype=dtype, device=base.device)
    return made.set_(base.untyped_storage(), offset, shape, stride)


def cpp_kernels(sources: Mapping[str, str], preamble: Mapping[str, str]) -> dict[str, CppCall]:
    """Compile C++ kernels; each becomes a function of (tensors, sizes, work)."""
    kernels = [CppKernel(s, source, preamble.get(s, "")) for s, source in sources.items()]
    functions = default_cpp_builder().build(kernels)
    return {symbol: _callable(function) for symbol, function in functions.items()}


def _callable(function: CppFunction) -> CppCall:
    def call(tensors: Sequence[torch.Tensor], sizes: Sequence[int], work: int) -> None:
        pointers = (ctypes.c_void_p * max(1, len(tensors)))(*[t.data_ptr() for t in tensors])
        integers = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        executor_module().call_kernel(
            function.address, ctypes.addressof(pointers), ctypes.addressof(integers), 0, work
        )

    return call


def random_input(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str, offset: int = 0
) -> torch.Tensor:
    """A tensor to try a program with: normal numbers, or zeros where there are none."""
    count = storage_bytes(shape, stride, offset, 1)
    flat = torch.randn(count) if dtype.is_floating_point else torch.zeros(count)
    return flat.to(device, dtype).as_strided(list(shape), list(stride), offset)
