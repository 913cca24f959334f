"""Products of 2-byte floats on a GPU whose rows do not begin at multiples of 16 bytes, or that have
one column.

The library multiplies such matrices several times slower (a head of 50257 classes is the common
case). So the sizes that matter are rounded up and the operands padded with zeros; the result is the
part of a larger matrix. A value computed by kernels is written to padded memory in the first place.
A matrix times one column is a row times the transposed matrix, for which kernels of ours are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, Strided
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.lowering.externs import operator_name
from dovetail_inductor.lowering.values import (
    Context,
    UnsupportedGraph,
    Value,
    contiguous_strides,
    shape_of,
    stride_of,
    tensor_of,
    value_like,
)
from dovetail_inductor.targets.target import Target

MULTIPLE = 8  # elements of 2 bytes in 16 bytes
# Of an H100: operations a second that an aligned product saves its time at (an unaligned one takes
# three to eight times as long), and bytes a second of a copy.
PRODUCT_RATE = 3e14
COPY_RATE = 2e12


def rounded(n: int) -> int:
    """The next multiple of `MULTIPLE`."""
    return -(-n // MULTIPLE) * MULTIPLE


def padded_sizes(
    a: tuple[tuple[int, ...], tuple[int, ...]], b: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[int, int, int] | None:
    """(m, k, n) to compute a product of an m x k and a k x n matrix with, each given by its shape
    and its strides; None if it is best computed as it is."""
    (m, k), (_, n) = a[0], b[0]
    if any_symbolic((m, k, n)) or 0 in (m, k, n) or is_aligned_column(a, b):
        return None
    rows = {"n"}  # the sizes that are lengths of rows in memory; the result is row-major
    rows.add("k" if a[1][1] == 1 else "m")
    rows.add("n" if b[1][1] == 1 else "k")
    sizes = {"m": m, "k": k, "n": n}
    wanted = {s: rounded(size) if s in rows else size for s, size in sizes.items()}
    if wanted == sizes:
        return None
    copied = 0
    if (wanted["m"], wanted["k"]) != (m, k):
        copied += m * k
    if (wanted["k"], wanted["n"]) != (k, n):
        copied += k * n
    if 2 * m * k * n / PRODUCT_RATE < 2 * copied * 2 / COPY_RATE:
        return None
    return wanted["m"], wanted["k"], wanted["n"]


def is_aligned_column(
    a: tuple[tuple[int, ...], tuple[int, ...]], b: tuple[tuple[int, ...], tuple[int, ...]]
) -> bool:
    """Whether a matrix whose rows are aligned is multiplied by one column: turned about, that is a
    row times a matrix of aligned columns."""
    sizes = (*a[0], b[0][1])
    if any_symbolic((*sizes, *a[1])) or sizes[2] != 1 or 0 in sizes:
        return False
    return a[1][1] == 1 and not any(n % MULTIPLE for n in (*sizes[:2], a[1][0])) and sizes[0] > 1


def product(ctx: Context, node: fx.Node, args: Sequence[Any]) -> Any:
    """`mm` turned about or on padded memory; NotImplemented where neither is of use."""
    a, b = args
    if (
        not ctx.target.library.wants_aligned_rows
        or not isinstance(a, Value)
        or a.dtype.itemsize != 2
    ):
        return NotImplemented
    layouts = ((a.shape, a.stride), (b.shape, b.stride))
    operands: tuple[Strided, Strided]
    if is_aligned_column(*layouts):
        column = ctx.realize(b)
        apart, m, n = column.stride[0], 1, a.shape[0]
        row = replace(column, shape=(1, b.shape[0]), stride=(b.shape[0] * apart, apart))
        operands, strides = (row, _transposed(ctx.realize(a))), (1, 1)
    else:
        sizes = padded_sizes(*layouts)
        if sizes is None:
            return NotImplemented
        m, k, n = sizes
        operands, strides = (_padded(ctx, a, (m, k)), _padded(ctx, b, (k, n))), (n, 1)
    value = value_like(tensor_of(node), node.name)
    name = f"buf{len(ctx.buffers)}"
    ctx.buffers[name] = Buffer(name, value.dtype, value.device, (m, n), (n, 1))
    ctx.nodes.append(ExternCall("aten::mm.out", operands, (), (name,), True, node.name))
    value.stored = Strided(name, value.shape, strides, 0)
    return value


def padded_operands(gm: fx.GraphModule, target: Target) -> Mapping[fx.Node, tuple[int, int]]:
    """What padded products read, transposed or as the rows of a matrix: the sizes of their memory,
    as a matrix."""
    found: dict[fx.Node, tuple[int, int]] = {}
    for node in gm.graph.nodes if target.library.wants_aligned_rows else ():
        if node.target is not torch.ops.aten.mm.default:
            continue
        operands = node.args
        tensors = [tensor_of(a) for a in operands]
        if tensors[0].dtype.itemsize != 2:
            continue
        layouts = [(shape_of(t, node.name), stride_of(t, node.name)) for t in tensors]
        sizes = padded_sizes(*layouts)
        if sizes is None:
            continue
        m, k, n = sizes
        for operand, layout, wanted in zip(operands, layouts, ((m, k), (k, n)), strict=True):
            if layout[0] == wanted:
                continue
            if layout[1][1] != 1 and _is_transpose(operand, layout):
                found.setdefault(_of_rows(operand.args[0], wanted[1]), wanted[::-1])
            elif layout[1][1] == 1:
                found.setdefault(_of_rows(operand, wanted[0]), wanted)
    return found


def _of_rows(node: fx.Node, rows: int) -> fx.Node:
    """The tensor whose rows are seen as those of the matrix `node`; the node itself if there is
    none, or if the padded memory has other than `rows` rows."""
    matrix = shape_of(tensor_of(node), node.name)
    if matrix[0] != rows or node.op != "call_function":
        return node
    while _operator_of(node) in ("aten::view", "aten::_unsafe_view", "aten::reshape"):
        base = node.args[0]
        assert isinstance(base, fx.Node)
        shape = shape_of(tensor_of(base), base.name)
        dense = stride_of(tensor_of(base), base.name) == contiguous_strides(shape)
        if not dense or any_symbolic(shape) or shape[-1:] != matrix[1:]:
            break
        node = base
    return node


def _is_transpose(node: fx.Node, layout: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Whether a node turns a matrix stored by rows (a `permute` may also leave it as it is)."""
    if _operator_of(node) not in ("aten::t", "aten::transpose.int", "aten::permute"):
        return False
    (base_node,) = node.all_input_nodes
    base = tensor_of(base_node)
    rows = shape_of(base, node.name), stride_of(base, node.name)
    return rows == (layout[0][::-1], layout[1][::-1]) and rows[1][-1] == 1


def _operator_of(node: fx.Node) -> str | None:
    """The name of the operator that a node calls, if it calls one."""
    if node.op != "call_function":
        return None
    try:
        return operator_name(node.target)
    except UnsupportedGraph:
        return None


def _padded(ctx: Context, value: Value, sizes: tuple[int, int]) -> Strided:
    """A matrix of these sizes in memory: the value, and zeros beyond it."""
    stored = ctx.realize(value)
    if value.shape == sizes:
        return stored
    if stored.stride[1] != 1 and stored.stride[0] == 1:
        # Stored by columns: the transposed matrix is stored by rows.
        turned = replace(
            value, shape=value.shape[::-1], stride=stored.stride[::-1], stored=_transposed(stored)
        )
        return _transposed(_padded(ctx, turned, (sizes[1], sizes[0])))
    key = (stored, sizes)
    if key not in ctx.padded:
        ctx.padded[key] = _write_padded(ctx, value, sizes)
    return ctx.padded[key]


def write_padded(ctx: Context, value: Value, sizes: tuple[int, int]) -> None:
    """Compute a value into memory of these sizes, with zeros beyond it. One that is no matrix is
    seen as its rows, which are as many."""
    of_rows = sizes if len(value.shape) == 2 else (*value.shape[:-1], sizes[1])
    whole = _write_padded(ctx, value, of_rows)
    value.stored = Strided(whole.buffer, value.shape, whole.stride, 0)
    value.forget_loader()
    rows = prod(value.shape[:-1]), value.shape[-1]
    matrix = Strided(whole.buffer, rows, (sizes[1], 1), 0)
    ctx.padded[matrix, sizes] = replace(matrix, shape=sizes)


def _write_padded(ctx: Context, value: Value, sizes: tuple[int, ...]) -> Strided:
    b = ctx.builder
    name = f"buf{len(ctx.buffers)}"
    buffer = Buffer(name, value.dtype, value.device, sizes, contiguous_strides(sizes))
    ctx.buffers[name] = buffer
    variables, indices = ctx.loop_indices(sizes)
    inside: Expr | None = None
    for index, have, want in zip(indices, value.shape, sizes, strict=True):
        if have != want:
            at = b.apply("lt", [b.index_value(index), b.constant(have, torch.int64)])
            inside = at if inside is None else b.apply("bitwise_and", [inside, at])
    assert inside is not None
    own = ctx.load(value, indices, inside)
    body = b.apply("where", [inside, own, b.constant(0, own.dtype)])
    whole = Value(sizes, buffer.stride, value.dtype, value.device, value.origin)
    return ctx.write(whole, buffer, variables, (), None, body)


def _transposed(stored: Strided) -> Strided:
    return replace(stored, shape=stored.shape[::-1], stride=stored.stride[::-1])
