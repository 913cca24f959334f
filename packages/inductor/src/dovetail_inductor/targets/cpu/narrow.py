"""Vectors of as many lanes as of float32: whole numbers that fit into 32 bits, in 32 bits, as most
places do, and narrow floats as their bits; and which reads vectors serve well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, Load, walk
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.ops import ROUNDING
from dovetail_inductor.loop_ir.ranges import fits_int32, value_range
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.scheduler.kernels import FusedKernel

_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "minimum", "maximum", "relu", "neg", "abs", "where", "check_index"}
)


def narrowed(builder: Builder, nests: Iterable[LoopNest]) -> tuple[LoopNest, ...]:
    """The nests with all arithmetic of int64 in int32 that is known to fit."""
    made = []
    for nest in nests:
        for value in nest.values:
            value_range(builder, value)
        made.append(nest.renamed(builder, applied=partial(_in_int32, builder)))
    return tuple(made)


def int32_of(value: Expr) -> Expr | None:
    """The int32 that a value was made of, if it was made of one."""
    made = isinstance(value, Apply) and value.op == "cast" and value.args[0].dtype is torch.int32
    return value.args[0] if made else None


def is_small(index: Index) -> bool:
    """Whether vectors of int32 hold an index, and all that it is made of."""
    return fits_int32(index) and all(int32_of(a.value) is not None for a in index.indirects())


def _narrow(builder: Builder, value: Expr) -> Expr | None:
    if isinstance(value, IndexValue):
        small = is_small(value.index)
        return builder.index_value(value.index, torch.int32) if small else None
    if isinstance(value, Constant):
        return builder.constant(value.value, torch.int32) if abs(value.value) < 2**31 else None
    return int32_of(value)


def _in_int32(builder: Builder, node: Apply, args: list[Expr]) -> Expr:
    low, high = builder.ranges[node.uid]
    fits = node.dtype is torch.int64 and -(2**31) <= low <= high < 2**31
    small = [_narrow(builder, a) if a.dtype is torch.int64 else a for a in args]
    known = [a for a in small if a is not None]
    if len(known) == len(args):
        if node.op == "cast" and fits:
            known = [builder.apply("cast", known, torch.int32)]
            return builder.apply("cast", known, torch.int64)
        if node.op == "cast" or node.dtype is torch.bool:
            return builder.apply(node.op, known, node.dtype)
        if node.op in _ARITHMETIC and fits:
            known = [builder.apply(node.op, known, check=node.check)]
            return builder.apply("cast", known, torch.int64)
    return builder.again(node, args)


def moved_bits(
    builder: Builder, kernel: FusedKernel, buffers: Mapping[str, Buffer]
) -> tuple[FusedKernel, Mapping[str, Buffer]]:
    """A kernel that only moves narrow floats, with whole numbers in their place, which need not
    become float32 and be rounded again; any other as it is."""
    dtype, nests, moved = buffers[kernel.nests[0].buffer].dtype, [], dict[str, Buffer]()
    bits = torch.int8 if dtype.itemsize == 1 else torch.int16
    for nest in kernel.nests:
        body = nest.body
        if isinstance(body, Apply) and body.op == ROUNDING.get(dtype):
            body = body.args[0]
        used = [buffers[name].dtype for name in (nest.buffer, *nest.reads())]
        if not isinstance(body, Load) or used.count(dtype) != 2 or dtype not in ROUNDING:
            return kernel, buffers
        if buffers[body.buffer].dtype is not dtype or nest.reduction or nest.scan or nest.scatter:
            return kernel, buffers
        nests.append(replace(nest, body=builder.load(body.buffer, body.index, bits, body.mask)))
        for name in (nest.buffer, body.buffer):
            moved[name] = replace(buffers[name], dtype=bits)
    return replace(kernel, nests=tuple(nests)), {**buffers, **moved}


def is_deinterleaved(load: Load, stride: int, simd_bytes: int) -> bool:
    """True for a load that `lds` of `simd.h` makes of whole vectors and shuffles, given AVX2. (Each
    reads its own: a sum of two neighbours costs 5 to 8% more than as the compiler shares them.)"""
    wide = simd_bytes >= 32 and load.dtype.itemsize >= 4
    return wide and load.mask is None and hint_of(stride) in (2, 3, 4)


def is_transposed(load: Load, vector: Var) -> bool:
    """True for a plain load that strides along the vectorised variable."""
    if load.mask is not None or load.index.indirects():
        return False
    return hint_of(load.index.coefficient(vector) or 0) > 1


def is_near(load: Load, vector: Var, simd_bytes: int) -> bool:
    """True for a load at places that the vectorised variable alone tells, which `ldi` reads as one
    vector where they lie near one another, given AVX2."""
    bit = 1 << vector.id
    own = all(atom.value.free & bit in (0, atom.value.free) for atom in load.index.indirects())
    return own and simd_bytes >= 32 and is_small(load.index)


def widest(nests: Sequence[LoopNest], vector: Var) -> int:
    """Bytes of the widest lane that vector code will hold (masks are 4)."""
    widest = 4
    inside = {nest.buffer for nest in nests}
    for nest in nests:
        for node in walk(nest.values):
            if not node.free >> vector.id & 1:
                continue
            if node.dtype is not torch.bool and int32_of(node) is None:
                widest = max(widest, node.dtype.itemsize)
            if isinstance(node, Load) and node.buffer not in inside:
                by_lane = any(a.value.free >> vector.id & 1 for a in node.index.indirects())
                if by_lane or node.index.coefficient(vector) is None:
                    if not is_small(node.index):
                        widest = 8  # addresses lane by lane
        if nest.body.dtype is not torch.bool:
            widest = max(widest, nest.body.dtype.itemsize)
        if nest.scan is not None:
            widest = max(widest, nest.scan.dtype.itemsize)
    return widest
