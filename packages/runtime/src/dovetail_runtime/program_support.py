"""What a program written by `plan_text` calls: memory by hand, kernels by name; and headers of C++
kernels by name, to which it refers."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from dovetail_runtime.artifact import default_cpp_builder
from dovetail_runtime.aten_args import call_with_numbers as call_with_numbers
from dovetail_runtime.aten_args import element as element
from dovetail_runtime.cpp_build import CppFunction
from dovetail_runtime.disk_cache import DiskCache
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import CppKernel
from dovetail_runtime.sizes import FLOAT_OPERATIONS, storage_bytes
from dovetail_runtime.sizes import float_bits as float_bits
from dovetail_runtime.sizes import float_from_bits as float_from_bits

_FILE = "header.h"
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


def header_name(text: str) -> str:
    """The file name of a header: `kernels_<digest of its text>.h`."""
    return f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:16]}.h"


def keep_header(text: str) -> str:
    """Keep a header in the cache, where `header` finds it; its name."""
    name = header_name(text)
    cache, parts = _cache(), [("header", name)]
    if cache.get(parts) is None:
        cache.put_files(parts, {_FILE: text})
    return name


def header(name: str, module: str) -> str:
    """The text of a header: from the folder of the file that `module` was loaded from, where
    `write_program` puts it, else from the cache.

    Raises FileNotFoundError if it is in neither, or is another text than its name says.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    beside = None if file is None else Path(file).parent / name
    if beside is not None and beside.exists():
        return beside.read_text()
    entry = _cache().get([("header", name)])
    data = None if entry is None else entry.read(_FILE)
    if data is None or header_name(data.decode()) != name:
        raise FileNotFoundError(
            f"the header {name} is not in the cache; `dovetail_runtime.write_program` writes it "
            "beside a program"
        )
    return data.decode()


def _cache() -> DiskCache:
    knobs = Knobs.from_environment()
    return DiskCache(knobs.cache_dir, "header", knobs.cache_limit_bytes)
