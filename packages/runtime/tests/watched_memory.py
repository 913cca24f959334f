"""What Triton's interpreter does not have and a kernel's test wants: it runs the programs of a
launch one after the other, and would neither see a race among them nor an address out of bounds.

`watching` has every access looked at: it must lie in a tensor of the launch, no program may read
what another one writes, two may write one place only if they agree, and what a program reads back
must have a barrier after its store, as other threads may have stored it. (Where values go to
computed places, of several stores one wins: that is meant.) `DeviceLibrary` stands in for CUDA's.

Imported by `interpreter_worker.py` alone: it needs Triton.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle, interpreter_builder

_NOBODY, _SEVERAL = -1, -2


class BadAccess(RuntimeError):
    """A kernel's access that a GPU would not forgive."""


class _Region:
    """One storage: who read and wrote each byte in this launch, and after how many barriers."""

    def __init__(self, start: int, nbytes: int) -> None:
        self.start, self.end = start, start + nbytes
        self.reader = np.full(nbytes, _NOBODY, np.int64)
        self.writer = np.full(nbytes, _NOBODY, np.int64)
        self.stored = np.full(nbytes, _NOBODY, np.int64)


class MemoryWatch:
    """Looks at the accesses of one launch to `storages`; with `scatters`, programs may write
    different values to one place."""

    def __init__(self, storages: Sequence[torch.Tensor], scatters: bool) -> None:
        self._regions = [_Region(s.data_ptr(), s.nbytes) for s in storages]
        self._scatters = scatters
        self._program = _NOBODY
        self._barriers = 0

    def begin(self, program: int) -> None:
        """Another program runs from here on."""
        if program != self._program:
            self._program = program
            self.barrier()

    def barrier(self) -> None:
        """All threads of the program have come as far as this."""
        self._barriers += 1

    def read(self, addresses: Any, size: int) -> None:
        """Reads of `size` bytes each."""
        for region, at in self._places(addresses, size, "reads"):
            writers = region.writer[at]
            if ((writers != _NOBODY) & (writers != self._program)).any():
                raise BadAccess("a program reads what another one writes")
            if (region.stored[at] == self._barriers).any():
                raise BadAccess("what a program has stored is read without a barrier between")
            readers = region.reader[at]
            alone = (readers == _NOBODY) | (readers == self._program)
            region.reader[at] = np.where(alone, self._program, _SEVERAL)

    def write(self, addresses: Any, size: int, values: Any) -> None:
        """Stores of `size` bytes each."""
        new = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, size)
        if not self._scatters and addresses.size:
            order = np.argsort(addresses, kind="stable")
            same = addresses[order][1:] == addresses[order][:-1]
            if (same & (new[order][1:] != new[order][:-1]).any(1)).any():
                raise BadAccess("one store writes different values to one place")
        lanes = np.arange(addresses.size)
        for region, at, own in self._places_of(addresses, lanes, size, "writes"):
            readers, writers = region.reader[at], region.writer[at]
            if ((readers != _NOBODY) & (readers != self._program)).any():
                raise BadAccess("a program writes what another one reads")
            others = (writers != _NOBODY) & (writers != self._program)
            if others.any() and not self._scatters:
                held = torch.frombuffer(_memory(region), dtype=torch.uint8).numpy()[at]
                if (others & (held != new[own].reshape(-1))).any():
                    raise BadAccess("two programs write different values to one place")
            region.writer[at] = self._program
            region.stored[at] = self._barriers

    def update(self, addresses: Any, size: int) -> None:
        """Atomic updates: among them there is no race. Who makes one of a single number after a
        barrier tells others that they may read what it stored before."""
        for _ in self._places(addresses, size, "updates"):
            pass
        for region in self._regions if addresses.size == 1 else ():
            told = (region.writer == self._program) & (region.stored < self._barriers)
            region.writer[told] = _NOBODY

    def _places(self, addresses: Any, size: int, verb: str) -> Iterator[tuple[_Region, Any]]:
        lanes = np.arange(addresses.size)
        for region, at, _ in self._places_of(addresses, lanes, size, verb):
            yield region, at

    def _places_of(
        self, addresses: Any, lanes: Any, size: int, verb: str
    ) -> Iterator[tuple[_Region, Any, Any]]:
        """Of each storage that is touched, the bytes, and the lanes that touch them."""
        left = addresses.size
        for region in self._regions:
            inside = (addresses >= region.start) & (addresses + size <= region.end)
            count = int(inside.sum())
            if count:
                left -= count
                first = addresses[inside] - region.start
                yield region, (first[:, None] + np.arange(size)).reshape(-1), lanes[inside]
        if left:
            raise BadAccess(f"a program {verb} {left} elements that lie in no tensor of the launch")


def _memory(region: _Region) -> Any:
    return (ctypes.c_uint8 * (region.end - region.start)).from_address(region.start)


@contextmanager
def watching(watch: MemoryWatch) -> Iterator[None]:
    """Every access of interpreted kernels goes by `watch`."""
    kind = type(interpreter_builder)
    load, store = kind.create_masked_load, kind.create_masked_store
    atomic, barrier = kind.create_atomic_rmw, kind.create_barrier
    splat = kind.create_splat

    def active(builder: Any, pointers: Any, mask: Any) -> tuple[Any, int, Any]:
        x, y, z = builder.grid_idx
        watch.begin((x * builder.grid_dim[1] + y) * builder.grid_dim[2] + z)
        lanes = np.broadcast_to(mask.data, pointers.data.shape).reshape(-1).astype(np.bool_)
        element = pointers.get_element_ty()
        size = max(1, element.primitive_bitwidth // 8)
        return pointers.data.reshape(-1).astype(np.int64)[lanes], size, lanes

    def watched_load(builder: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        addresses, size, _ = active(builder, pointers, mask)
        watch.read(addresses, size)
        return load(builder, pointers, mask, *rest, **named)

    def watched_store(
        builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any
    ) -> Any:
        addresses, size, lanes = active(builder, pointers, mask)
        stored = np.broadcast_to(value.data, pointers.data.shape).reshape(-1)[lanes]
        watch.write(addresses, size, stored)
        return store(builder, pointers, value, mask, *rest, **named)

    def watched_atomic(
        builder: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any
    ) -> Any:
        addresses, size, _ = active(builder, pointers, mask)
        watch.update(addresses, size)
        # (Triton 3.6 reads one number that is broadcast as if it lay there as often)
        value = TensorHandle(np.ascontiguousarray(value.data), value.dtype)
        return atomic(builder, op, pointers, value, mask, *rest, **named)

    def true_splat(builder: Any, kind_of: Any, value: Any) -> Any:
        # (to the interpreter a comparison's result is of the type of what was compared)
        if value.data.dtype == np.bool_:
            value = TensorHandle(value.data, tl.int1)
        return splat(builder, kind_of, value)

    def watched_barrier(builder: Any) -> None:
        watch.barrier()

    kind.create_masked_load, kind.create_masked_store = watched_load, watched_store
    kind.create_atomic_rmw, kind.create_barrier = watched_atomic, watched_barrier
    kind.create_splat = true_splat
    try:
        yield
    finally:
        kind.create_masked_load, kind.create_masked_store = load, store
        kind.create_atomic_rmw, kind.create_barrier = atomic, barrier
        kind.create_splat = splat


def _reduce_in_halves(ops: Any, blocks: Any) -> list[Any]:
    """A reduction by any function: of halves, as a GPU does it. (The interpreter's own goes from
    element to element, which takes seconds for a row of some hundreds.)"""
    axis = ops.axis
    assert axis is not None
    parts = list(blocks)
    while (count := parts[0].handle.data.shape[axis]) > 1:
        assert count % 2 == 0, "blocks are powers of two"
        halves = [np.split(part.handle.data, 2, axis) for part in parts]
        first, second = (
            [_block(ops, h[k], p) for h, p in zip(halves, parts, strict=True)] for k in (0, 1)
        )
        parts = _tuple(ops.combine_fn.fn(*first, *second))
    data = [p.handle.data if ops.keep_dims else p.handle.data.squeeze(axis) for p in parts]
    return [_block(ops, d, p) for d, p in zip(data, parts, strict=True)]


def _scan_by_doubling(ops: Any, blocks: Any) -> list[Any]:
    """A scan by any function, each step over twice the distance of the one before."""
    axis, parts, distance = ops.axis, list(blocks), 1
    count = parts[0].handle.data.shape[axis]
    place = np.arange(count).reshape([-1 if d == axis else 1 for d in range(len(parts[0].shape))])
    while distance < count:
        before = [_block(ops, np.roll(p.handle.data, distance, axis), p) for p in parts]
        both = _tuple(ops.combine_fn.fn(*before, *parts))
        parts = [
            _block(ops, np.where(place < distance, p.handle.data, b.handle.data), p)
            for p, b in zip(parts, both, strict=True)
        ]
        distance *= 2
    return parts


def _block(ops: Any, data: Any, like: Any) -> Any:
    return ops.to_tensor(np.ascontiguousarray(data), like.dtype)


def _tuple(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


ReduceOps.generic_reduce, ScanOps.generic_scan = _reduce_in_halves, _scan_by_doubling
_dot = type(interpreter_builder).create_dot


def _dot_of_numbers(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
    """A product of tiles. (The interpreter's own multiplies bfloat16's bits as integers.)"""
    narrow = (t.dtype.scalar == tl.bfloat16 for t in (a, b))
    tiles = zip((a, b), narrow, strict=True)
    return _dot(builder, *(builder.cast_impl(t, tl.float32) if n else t for t, n in tiles), *rest)


type(interpreter_builder).create_dot = _dot_of_numbers
_patch_lang_tensor = interpreter._patch_lang_tensor


def _patch_tensors(tensor: Any, scope: Any) -> None:
    """(Triton 3.6 makes a loop's bound an `int` as NumPy since 2.4 does not.)"""
    _patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda number: int(number.handle.data.item()))


interpreter._patch_lang_tensor = _patch_tensors

# What the interpreter does again and again to no end, which took half of its time (Triton 3.6 to
# 3.9): whether a sum of integers overflows it computes and then drops, as assertions are off; for
# each look into the table of NumPy's types it builds that table; and at each call of a device
# function it looks through the whole language for what the kernel's launch has replaced already.
_options = interpreter_builder.options
interpreter_builder.options = dataclasses.replace(_options, sanitize_overflow=_options.debug)
_table_of_types, _patch_lang = interpreter._get_np_dtype, interpreter._patch_lang
_numpy_types: dict[str, Any] = {}
_patched: set[str] = set()  # the language's modules that this launch has replaced


def _numpy_type(kind: Any) -> Any:
    """NumPy's type of what a block, or a number, of this type holds."""
    name = kind.scalar.name
    found = _numpy_types.get(name)
    if found is None:
        found = _numpy_types[name] = _table_of_types(kind)
    return found


def _patch_once(fn: Any) -> Any:
    """Replaces the language that `fn` sees, if its caller has not; the scope of the kernel's launch
    restores it."""
    names = {m.__name__ for m in fn.__globals__.values() if m is tl or m is tl.core}
    if names and names <= _patched:
        return interpreter._LangPatchScope()  # with nothing to restore
    scope = _patch_lang(fn)
    if not _patched:
        restore = scope.restore

        def end_of_launch() -> None:
            _patched.clear()
            restore()

        scope.restore = end_of_launch
    _patched.update(names)
    return scope


interpreter._get_np_dtype, interpreter._patch_lang = _numpy_type, _patch_once


class DeviceLibrary:
    """CUDA's device library for interpreted kernels: its functions as ATen computes them."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = torch.round if name == "rint" else getattr(torch, name)

        def call(*arguments: Any) -> Any:
            dtype = arguments[0].dtype.scalar
            blocks = [torch.from_numpy(np.ascontiguousarray(a.handle.data)) for a in arguments]
            result = function(*blocks).numpy()
            shape = [int(n) for n in result.shape]
            blocks_given = any(
                a.type.is_block() for a in arguments
            )  # a number has one element, too
            kind = tl.block_type(dtype, shape) if blocks_given else dtype
            return tl.core.tensor(TensorHandle(result, dtype), kind)

        return call
