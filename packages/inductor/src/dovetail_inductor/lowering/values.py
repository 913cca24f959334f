"""What an FX tensor value is while a graph is lowered: memory, or a recipe for its elements.

A recipe is a `loader`: given the indices of one element, and a mask under which memory may be
touched, it returns that element's expression. Views compose recipes; consumers inline them. A value
becomes memory (`Context.realize`) when something needs it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from dovetail_guards.expr import Expr as SizeOf
from dovetail_guards.expr import symbol
from dovetail_guards.float_expr import FloatExpr
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_runtime.plan import SizeExpr
from torch import fx

from dovetail_inductor.loop_ir.expr import Builder, Expr, Load, walk
from dovetail_inductor.loop_ir.handlers import Counter, count
from dovetail_inductor.loop_ir.index import Index, Var, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest, Node, Scan, Strided
from dovetail_inductor.loop_ir.ops import ROUNDING, arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import Reduction
from dovetail_inductor.loop_ir.sizes import (
    FloatSize,
    UnknownOrder,
    dim,
    from_torch,
    hint_of,
    is_symbolic,
)
from dovetail_inductor.targets.target import Target

Indices = tuple[Index, ...]
Loader = Callable[[Indices, Expr | None], Expr]
# What only loops read is kept in float32, too, while a cache holds it then: the roundings of the
# residual stream are most of a transformer's error (GPT-2's is 13% less on a GPU, 30% on a CPU),
# and so small a tensor does not travel to memory and back.
WIDE_BYTES = 48 * 2**20  # of it in float32; an H100's second-level cache has 50 MiB

# Of buffers up to this size more may be read than is used: a multiprocessor's cache holds them.
SMALL_BYTES = 1 << 16

Restride = Callable[[Strided], Strided | None]


class UnsupportedGraph(Exception):
    """The graph holds something that this package does not compile."""


@dataclass(frozen=True, eq=False)
class Forms:
    """In which other types there are a value's elements.

    widened: the value whose elements these are, in more bytes.
    unrounded: the same elements in memory in a wider type, which loops read.
    observed: what loops read is rounded as eager stores it, even in the kernel that computes it.
    """

    widened: Value | None = None
    unrounded: Value | None = None
    observed: bool = False


@dataclass(eq=False)
class Value:
    """One tensor. `stride` is the layout that its consumers were promised.

    A view of a value not in memory has that as its `base`, with how it lies once the base does
    (None: not as strides).
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    origin: str
    loader: Loader | None = None
    stored: Strided | None = None
    base: tuple[Value, Restride] | None = None
    forms: Forms = Forms()
    _memo: dict[tuple[Indices, int], Expr] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def made_by(self, loader: Loader) -> Value:
        """This value, whose elements a loader makes."""
        self.loader = loader
        return self

    def forget_memo(self) -> None:
        """Drop what elements were made of: it is made of something else now."""
        self._memo.clear()

    def forget_loader(self) -> None:
        """Drop what inlining needed, once the value is in memory."""
        self.loader = None
        self._memo.clear()


def fits_cache_wide(value: Value) -> bool:
    """Whether a cache holds the tensor in float32 from the kernel that writes it to the next."""
    return hint_of(value.numel) * 4 <= WIDE_BYTES


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n if is_symbolic(n) else max(n, 1)
    return tuple(reversed(strides))


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """True if the elements fill memory without gaps or overlap, in some order of dimensions."""
    expected = 1
    pairs = [(s, n) for n, s in zip(shape, stride, strict=True) if n != 1]
    for s, n in sorted(pairs, key=lambda pair: (hint_of(pair[0]), hint_of(pair[1]))):
        if s != expected:
            return False
        expected *= n
    return True


@dataclass
class SymbolSources:
    """Where the values of a graph's symbols come from.

    inputs: the sizes that are inputs of their own, by position.
    definitions: those that stand for floats (as bits) which a call computes first.
    given: those that are read off inputs.
    binders: those that depend on data, with the buffer that each is read from; `env` is theirs.
    """

    inputs: dict[int, int] = field(default_factory=dict)
    definitions: dict[str, SizeExpr] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    binders: dict[str, str] = field(default_factory=dict)
    env: ShapeEnv | None = None


@dataclass
class Context:
    """The state of one lowering: what was made so far. `target`: what kernels are for;
    `everywhere`: measurements that speak for the library do not count; `converts`: what loops on a
    device can read and write besides, but only convert."""

    target: Target
    everywhere: bool = False
    builder: Builder = field(default_factory=Builder)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    symbols: SymbolSources = field(default_factory=SymbolSources)
    # Matrices by where they lie and the sizes to round up to: memory with zeros beyond them.
    padded: dict[tuple[Strided, tuple[int, int]], Strided] = field(default_factory=dict)
    # What was copied to lie as was promised, by what it is a copy of.
    copies: dict[tuple[object, ...], Strided] = field(default_factory=dict)
    converts: Callable[[torch.device], frozenset[torch.dtype]] = lambda device: frozenset()

    @property
    def leaves_to_library(self) -> bool:
        """True where the simple loops that the library does faster are left to it."""
        return self.target.library.beats_simple_loops and not self.everywhere

    # --- reading ----------------------------------------------------------------------------------

    def load(self, value: Value, indices: Indices, mask: Expr | None = None) -> Expr:
        """One element of `value`, as an arithmetic value."""
        stored = (value.forms.unrounded or value).stored
        if stored is not None:
            address = linear(indices, stored.stride, stored.offset)
            if mask is not None and self._always_there(stored.buffer, address):
                mask = None
            dtype = arithmetic_dtype(value.dtype)
            return self._seen(value, self.builder.load(stored.buffer, address, dtype, mask))
        assert value.loader is not None, value.origin
        key = (indices, -1 if mask is None else mask.uid)
        found = value._memo.get(key)
        if found is None:
            found = value._memo[key] = self._seen(value, value.loader(indices, mask))
        return found

    def _seen(self, value: Value, expr: Expr) -> Expr:
        """An element as loops read it."""
        op = ROUNDING.get(value.dtype) if value.forms.observed else None
        return expr if op is None else self.builder.apply(op, [expr])

    def _always_there(self, name: str, address: Index) -> bool:
        """Whether memory may be read at an address whatever a mask says, at no cost: it lies in a
        small buffer at every point of the loops. Then what is behind several masks, as the
        statistics and weights of what a window goes over are, is read once."""
        buffer = self.buffers[name]
        if buffer.is_symbolic or buffer.nbytes > SMALL_BYTES or address.indirects():
            return False
        low, high = address.bounds
        if is_symbolic(low) or is_symbolic(high):
            return False
        return low >= 0 and high < buffer.extent

    def body(self, value: Value) -> Expr:
        """The element at the loop variables 0, 1, ... of the value's own shape."""
        return self.load(value, self.loop_indices(value.shape)[1])

    def cost(self, value: Value) -> Counter:
        """What computing one element takes."""
        return count([self.body(value)])

    def large_reads(self, cost: Counter, value: Value) -> list[int]:
        """The buffers that an element of `value` is computed from, as `cost` found, that are of a
        size with it (of a quarter of its elements at least): how many bytes an element of each
        has."""
        read = (self.buffers[name] for name in cost.buffers)
        least = hint_of(value.numel) / 4
        return [b.dtype.itemsize for b in read if hint_of(prod(b.shape)) >= least]

    @staticmethod
    def loop_indices(shape: tuple[int, ...]) -> tuple[tuple[Var, ...], Indices]:
        """A loop variable for each dimension, and the indices they give."""
        variables = tuple(Var(i, n) for i, n in enumerate(shape))
        return variables, tuple(variable(v) for v in variables)

    def float_value(self, value: FloatSize) -> Expr:
        """A float that a call computes before its kernels, as a float64."""
        name, bits = value.symbol, value.bits
        if name is None:
            known = (n for n, definition in self.symbols.definitions.items() if definition == bits)
            name = next(known, f"g{len(self.symbols.definitions)}")
            self.symbols.definitions[name] = bits
        whole = self.builder.constant(dim(value.env, symbol(name)), torch.int64)
        return self.builder.apply("from_bits", [whole], torch.float64)

    def bind(self, size: Any, buffer: str, dim: int | None) -> tuple[str, str, int | None] | None:
        """Read a symbol that depends on data off a library call's result (a size of it, or its
        element), if this is where it comes from."""
        node = getattr(size, "node", None)
        expr = getattr(node, "expr", None)
        name = expr.input_name() if isinstance(expr, FloatExpr) else None
        if isinstance(expr, SizeOf):
            name = expr.symbol_name
        if node is None or name is None or name not in node.env.unbacked:
            return None
        if name in self.symbols.given or name in self.symbols.binders:
            return None
        self.symbols.binders[name], self.symbols.env = buffer, node.env
        return name, buffer, dim

    # --- making -----------------------------------------------------------------------------------

    def new_buffer(self, like: Value) -> Buffer:
        """A buffer laid out as `like` promises (row-major if that leaves gaps)."""
        stride = like.stride
        if not is_dense(like.shape, stride):
            stride = contiguous_strides(like.shape)
        name = f"buf{len(self.buffers)}"
        buffer = Buffer(name, like.dtype, like.device, like.shape, stride)
        self.buffers[name] = buffer
        return buffer

    def realize(self, value: Value) -> Strided:
        """Put `value` in memory, if it is not there yet, and say where."""
        if value.stored is not None:
            return value.stored
        if value.base is not None:
            base, restride = value.base
            stored = restride(self.realize(base))
            if stored is not None:
                value.stored = stored
                value.forget_loader()
                return stored
        variables, indices = self.loop_indices(value.shape)
        body = self.load(value, indices)
        if value.forms.unrounded is None:  # what is written is rounded
            value.forms = replace(value.forms, observed=False)
        return self.write(value, self.new_buffer(value), variables, (), None, body)

    def realize_alone(self, value: Value) -> None:
        """Put a 0-d value in memory that holds nothing else."""
        stored = value.stored
        if stored is None or not stored.covers(self.buffers[stored.buffer]):
            alone = replace(value, base=None, stored=None, _memo={})
            alone.loader = lambda indices, mask: self.load(value, indices, mask)
            value.stored = self.realize(alone)
            value.forget_loader()

    def write(
        self,
        value: Value,
        buffer: Buffer,
        variables: tuple[Var, ...],
        reduce_variables: tuple[Var, ...],
        reduction: Reduction | None,
        body: Expr,
        scan: Scan | None = None,
    ) -> Strided:
        """Add the loop nest that computes `value` into `buffer`, one variable a dimension."""
        stored = Strided(buffer.name, buffer.shape, buffer.stride, 0)
        address = linear([variable(v) for v in variables], buffer.stride)
        by_stride = sorted(
            (v for v in zip(variables, buffer.stride, strict=True) if v[0].size != 1),
            key=lambda v: -hint_of(v[1]),
        )
        reduce_variables = tuple(v for v in reduce_variables if v.size != 1)
        if reduction is not None and not reduce_variables:  # one element: nothing to reduce
            if reduction.with_index:
                body = self.builder.constant(0, torch.int64)
            reduction = None
        self.nodes.append(
            LoopNest(
                buffer.name,
                tuple(v for v, _ in by_stride),
                reduce_variables,
                reduction,
                body,
                address,
                value.origin,
                scan=scan,
            )
        )
        value.stored = stored
        value.forget_loader()
        return stored


def tensor_of(node: fx.Node) -> torch.Tensor:
    """The fake tensor of a node (or anything with its metadata)."""
    val = node.meta.get("val")
    if val is None or not hasattr(val, "dtype"):
        raise UnsupportedGraph(f"node {node.name} ({node.target}) has no tensor in meta['val']")
    return val  # type: ignore[no-any-return]


def static_shape(sizes: object, what: str) -> tuple[int, ...]:
    """Sizes as ints or `Dim`s."""
    try:
        return tuple(from_torch(n) for n in sizes)  # type: ignore[attr-defined]
    except (TypeError, UnknownOrder) as error:
        raise UnsupportedGraph(f"{what}: {error}") from error


def shape_of(val: torch.Tensor, what: str) -> tuple[int, ...]:
    """The shape of a fake or real tensor, as ints or `Dim`s."""
    return static_shape(val._sizes if isinstance(val, FakeTensor) else val.shape, what)


def stride_of(val: torch.Tensor, what: str) -> tuple[int, ...]:
    """The strides of a fake or real tensor, as ints or `Dim`s."""
    return static_shape(val._strides if isinstance(val, FakeTensor) else val.stride(), what)


def value_like(val: torch.Tensor, origin: str) -> Value:
    """A value with the metadata of a fake tensor."""
    return Value(shape_of(val, origin), stride_of(val, origin), val.dtype, val.device, origin)


def in_order_of(strides: Sequence[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor of these sizes whose dimensions lie in memory in the order of
    other strides: what reads both then reads neighbours of both."""
    order = sorted(range(len(sizes)), key=lambda d: -hint_of(strides[d]))
    dense = contiguous_strides(tuple(sizes[d] for d in order))
    return tuple(dense[order.index(d)] for d in range(len(sizes)))


def strides_as_read(ctx: Context, value: Value) -> tuple[int, ...]:
    """The strides promised for a value, unless all that is read for each of its elements alone lies
    in one other order: then that of a dense tensor in this order."""
    if any(is_symbolic(n) for n in value.shape) or not is_dense(value.shape, value.stride):
        return value.stride
    variables, _ = ctx.loop_indices(value.shape)
    long = [d for d, n in enumerate(value.shape) if n > 1]

    def order(strides: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(long, key=lambda d: -strides[d]))

    found: dict[tuple[int, ...], list[int]] = {}
    for load in walk([ctx.body(value)]):
        if isinstance(load, Load):
            strides = [load.index.coefficient(v) for v in variables]
            known = [s or 0 for s in strides]
            if all(known[d] > 0 for d in long):
                found.setdefault(order(known), known)
    if len(found) != 1 or order(value.stride) in found:
        return value.stride
    (strides_of_load,) = found.values()
    return in_order_of(strides_of_load, value.shape)
