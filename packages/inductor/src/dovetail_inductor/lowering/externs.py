"""Extern calls: ops that run as ATen kernels; and values in the very layout that was promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, propagate
from torch import fx

from dovetail_inductor.loop_ir.loops import Buffer, ExternArg, ExternCall, Strided, same_strides
from dovetail_inductor.loop_ir.ops import STORED_DTYPES
from dovetail_inductor.loop_ir.sizes import (
    Dim,
    FloatSize,
    any_symbolic,
    float_from_torch,
    from_torch,
    hint_of,
    largest,
    only_data_tells,
    to_torch,
)
from dovetail_inductor.lowering import scatters
from dovetail_inductor.lowering.values import (
    Context,
    UnsupportedGraph,
    Value,
    contiguous_strides,
    is_dense,
    stride_of,
    value_like,
)

# Ops whose out variant writes straight into memory of the plan's choosing.
OUT_VARIANTS = {
    "aten::mm": "aten::mm.out",
    "aten::addmm": "aten::addmm.out",
    "aten::bmm": "aten::bmm.out",
    "aten::baddbmm": "aten::baddbmm.out",
    "aten::_int_mm": "aten::_int_mm.out",
    "aten::_scaled_mm": "aten::_scaled_mm.out",
}


def operator_name(target: object) -> str:
    """`aten::name.overload`, without `.default`."""
    if not isinstance(target, torch._ops.OpOverload):
        raise UnsupportedGraph(f"call of {target!r}, which is no ATen operator")
    name = target._schema.name
    return f"{name}.{target._schema.overload_name}" if target._schema.overload_name else name


def extern_call(
    ctx: Context,
    node: fx.Node,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    op: torch._ops.OpOverload | None = None,
    val: Any = None,
) -> Value | tuple[Any, ...]:
    """Record the call of `node`'s op, or of an `op` that gives the like, on values in memory;
    returns its results, which are like `val` (or what the node is said to give)."""
    target = op or node.target
    name = operator_name(target)
    returns = target._schema.returns  # type: ignore[union-attr]
    if any(r.alias_info is not None for r in returns):
        # The result shares memory with its argument, and would outlive the slab's reuse: give it
        # an argument in memory of its own.
        args = [_copied(ctx, a) if isinstance(a, Value) else a for a in args]
    new_args = tuple(_argument(ctx, a) for a in args)
    new_kwargs = tuple((k, _argument(ctx, v)) for k, v in kwargs.items())
    laid_out: list[tuple[int, ...]] = []
    if name not in OUT_VARIANTS and _lie_otherwise(node if op is None else None, args, kwargs):
        laid_out = _layouts(target, args, kwargs)
    val = node.meta.get("val") if val is None else val
    results = _flat(val) if isinstance(val, tuple | list) else [val] if returns else []
    found = _in_memory(ctx, node, results, laid_out, name)
    only = found.values[0] if len(found.values) == 1 else None
    out_variant = (
        name in OUT_VARIANTS and isinstance(only, Value) and is_dense(only.shape, only.stride)
    )
    ctx.nodes.append(
        ExternCall(
            OUT_VARIANTS[name] if out_variant else name,
            new_args,
            new_kwargs,
            tuple(found.outputs),
            out_variant,
            node.name,
            binds=tuple(found.binds),
        )
    )
    if isinstance(val, tuple | list) or not returns:
        return _as_nested(iter(found.values), val or ())
    assert isinstance(only, Value)
    return only


@dataclass
class _Results:
    """What a call gives; the names of the buffers that it is in, of a number None; and what of the
    sizes is known from then on."""

    values: list[Value | int | float | None] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)
    binds: list[tuple[str, str, int | None]] = field(default_factory=list)


def _in_memory(
    ctx: Context, node: fx.Node, results: list[Any], laid_out: list[tuple[int, ...]], name: str
) -> _Results:
    """The results of a call in buffers of their own, laid out so where they do not lie as they
    say."""
    found = _Results()
    for result in results:
        if result is None or isinstance(result, bool | int | float):
            found.values.append(result)  # a number was known when the graph was traced
            found.outputs.append(None)
            continue
        if not hasattr(result, "dtype"):
            raise UnsupportedGraph(f"{node.name}: {name} returns {type(result).__name__}")
        value = value_like(result, node.name)
        stride = laid_out[len(found.outputs)] if laid_out else value.stride
        buffer = Buffer(f"buf{len(ctx.buffers)}", value.dtype, value.device, value.shape, stride)
        ctx.buffers[buffer.name] = buffer
        for dim, size in enumerate(result._sizes if isinstance(result, FakeTensor) else ()):
            bound = ctx.bind(size, buffer.name, dim)
            if bound is not None:
                found.binds.append(bound)
        value.stored = Strided(buffer.name, value.shape, buffer.stride, 0)
        found.values.append(value)
        found.outputs.append(buffer.name)
    return found


def _flat(results: Sequence[Any]) -> list[Any]:
    """Results in the order in which a call hands them over: lists among them are taken apart."""
    return [r for v in results for r in (_flat(v) if isinstance(v, tuple | list) else (v,))]


def _as_nested(flat: Iterator[Any], like: Sequence[Any]) -> tuple[Any, ...]:
    """The inverse of `_flat`."""
    return tuple(_as_nested(flat, v) if isinstance(v, tuple | list) else next(flat) for v in like)


def element(ctx: Context, node: fx.Node, value: Value) -> int | float | FloatSize:
    """The number that a tensor of one element holds: known when the program gets there."""
    number = node.meta["val"]
    stored = ctx.realize(value)
    buffer = ctx.new_buffer(value)
    bound = ctx.bind(number, buffer.name, None)
    if bound is not None:
        call = ("aten::clone", (stored,), (), (buffer.name,), False, node.name)
        ctx.nodes.append(ExternCall(*call, binds=(bound,)))
    if isinstance(number, torch.SymFloat):
        return float_from_torch(number)
    if isinstance(number, torch.SymInt):
        return from_torch(number)
    raise UnsupportedGraph(f"{node.name}: a truth value that depends on data")


def _lie_otherwise(node: fx.Node | None, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether some argument lies in memory otherwise than when `node` was traced: a view of what
    was not in memory then."""
    values = [v for v in _flat([*args, *kwargs.values()]) if isinstance(v, Value)]
    promised = [v.stride for v in values]
    if node is not None:
        nodes = [n for n in _flat([*node.args, *node.kwargs.values()]) if isinstance(n, fx.Node)]
        traced = [value_like(t, "") for n in nodes if isinstance(t := n.meta["val"], FakeTensor)]
        if len(traced) == len(values):
            promised = [v.stride for v in traced]
    places = [_place(v) for v in values]
    return not all(
        same_strides(p.shape, p.stride, s) for p, s in zip(places, promised, strict=True)
    )


def _layouts(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[int, ...]]:
    """How the results of a call lie in memory, from how its arguments do; none where data says
    what they are, or where the runtime is to lay them out as they should lie."""
    if torch.Tag.dynamic_output_shape in target.tags or target.namespace == "mkldnn":
        return []
    if any(isinstance(v, FloatSize) for v in _flat([*args, *kwargs.values()])):
        return []

    def fake(arg: Any) -> Any:
        if isinstance(arg, list | tuple):
            return [fake(a) for a in arg]
        if isinstance(arg, Value):
            shape, stride = ([*map(to_torch, sizes)] for sizes in (arg.shape, _place(arg).stride))
            return FakeTensor.make(shape, stride, arg.dtype, arg.device)
        return to_torch(arg)

    found = propagate(target, tuple(map(fake, args)), {k: fake(v) for k, v in kwargs.items()})
    results = _flat(found) if isinstance(found, list | tuple) else [found]
    return [stride_of(v, str(target)) if isinstance(v, FakeTensor) else () for v in results]


def _place(value: Value) -> Strided:
    assert value.stored is not None
    return value.stored


def _copied(ctx: Context, value: Value) -> Value:
    """A copy of a value, without gaps, by ATen: it may be of a dtype that loops cannot hold."""
    source = ctx.realize(value)
    stride = value.stride
    if not is_dense(value.shape, stride):
        stride = contiguous_strides(value.shape)
    like = Value(value.shape, stride, value.dtype, value.device, value.origin)
    like.stored = copied(ctx, source, like)
    return like


def copied(ctx: Context, stored: Strided, like: Value) -> Strided:
    """A copy, by ATen, that lies as `like` says: row-major in the order that its strides have, or
    in memory with gaps."""
    shape, stride = like.shape, like.stride
    if 0 not in shape and not is_dense(shape, stride):
        return _spread(ctx, stored, like)
    order = sorted(range(len(shape)), key=lambda d: -hint_of(stride[d]))
    source = replace(
        stored, shape=tuple(shape[d] for d in order), stride=tuple(stored.stride[d] for d in order)
    )
    row_major = replace(like, shape=source.shape, stride=contiguous_strides(source.shape))
    buffer = ctx.new_buffer(row_major)
    kwargs = (("memory_format", torch.contiguous_format),)
    ctx.nodes.append(
        ExternCall("aten::clone", (source,), kwargs, (buffer.name,), False, like.origin)
    )
    return Strided(buffer.name, shape, stride, 0)


def _spread(ctx: Context, stored: Strided, like: Value) -> Strided:
    """A copy, by ATen, with the gaps between elements that `like` has; they hold zeros."""
    shape, stride = like.shape, like.stride
    length = 1 + sum((largest(n, 1) - 1) * s for n, s in zip(shape, stride, strict=True))
    row = Value((length,), (1,), like.dtype, like.device, like.origin)
    zeros, filled = ctx.new_buffer(row), ctx.new_buffer(row)
    # What is expanded is there once.
    once = tuple(1 if s == 0 else n for n, s in zip(shape, stride, strict=True))
    into = Strided(zeros.name, (length,), (1,), 0)
    scattered = (into, replace(stored, shape=once), once, stride, 0)
    for op, args, buffer in (
        ("aten::new_zeros", (stored, (length,)), zeros),
        ("aten::as_strided_scatter", scattered, filled),
    ):
        ctx.nodes.append(ExternCall(op, args, (), (buffer.name,), False, like.origin))
    return Strided(filled.name, shape, stride, 0)


def _argument(ctx: Context, arg: Any) -> ExternArg:
    if isinstance(arg, Value):
        return ctx.realize(arg)
    if isinstance(arg, list | tuple):
        return tuple(_argument(ctx, a) for a in arg)
    if arg is None or isinstance(
        arg,
        bool | int | Dim | float | FloatSize | str | complex | torch.dtype | torch.device
        | torch.layout | torch.memory_format,
    ):  # fmt: skip
        return arg
    raise UnsupportedGraph(f"argument {arg!r} of an extern call")


def as_promised(ctx: Context, value: Value, promised: Value) -> Strided:
    """`value` in memory, laid out as `promised` (another value of its shape) says."""
    stored = ctx.realize(value)
    if same_strides(promised.shape, stored.stride, promised.stride):
        return replace(stored, stride=promised.stride)  # users see all of them
    # Laid out otherwise than promised: a copy in the promised layout. Views of one tensor are views
    # of one copy, as they would be of the tensor.
    seen = _as_seen(stored, promised)
    if seen is None:
        return _laid_out(ctx, value, stored, promised)
    if seen not in ctx.copies:
        ctx.copies[seen] = _laid_out(ctx, value, stored, promised)
    return replace(ctx.copies[seen], shape=promised.shape, stride=promised.stride)


def _as_seen(stored: Strided, promised: Value) -> tuple[object, ...] | None:
    """The elements of a memory that are copied, and their order, if each lies behind the one before
    in the copy: the same for all shapes that they are seen in. None if they lie otherwise."""
    if any_symbolic((*promised.shape, *stored.stride)) or promised.stride != contiguous_strides(
        promised.shape
    ):
        return None
    steps: list[tuple[int, int]] = []  # sizes and strides, dimensions that go on evenly as one
    for size, stride in zip(promised.shape, stored.stride, strict=True):
        if size == 1:
            continue
        if steps and steps[-1][1] == size * stride:
            steps[-1] = (steps[-1][0] * size, stride)
        else:
            steps.append((size, stride))
    return stored.buffer, promised.dtype, stored.offset, *steps


def _laid_out(ctx: Context, value: Value, stored: Strided, promised: Value) -> Strided:
    if value.dtype not in STORED_DTYPES:
        return copied(ctx, stored, promised)
    # (Where only data tells a size, gaps were guessed: results have none, unless elements of them
    # lie on one another.)
    guessed = any(map(only_data_tells, (*promised.shape, *promised.stride)))
    told = 0 in promised.stride or not guessed
    if told and not is_dense(promised.shape, promised.stride):
        spread = scatters.with_gaps(ctx, value, promised.stride)
        # (None: elements of it lie on one another, or may do so: the sizes are symbolic.)
        return copied(ctx, stored, promised) if spread is None else spread
    promised.loader = lambda indices, mask: ctx.load(value, indices, mask)
    return ctx.realize(promised)
