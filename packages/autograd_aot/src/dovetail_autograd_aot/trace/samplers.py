"""Samplers that overwrite a tensor which is not contiguous, with eager's very numbers.

Eager draws in the order in which the elements lie in memory, wherever gaps are; with MKL some
samplers draw in the order of the dimensions instead. `normal_` has two ways on the CPU: a vector at
a time if the tensor is contiguous (and not small), one number after the other if not. The
functional forms draw into a copy of the tensor, which may be laid out otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import log2, sqrt
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules import layout
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from dovetail_autograd_aot.graph.op_info import OpInfo
from dovetail_autograd_aot.trace.constants import untraced
from dovetail_autograd_aot.trace.storage import TraceError, fresh, read

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten
# From so many elements on, `normal_` fills contiguous memory a vector at a time.
VECTORS_FROM = 16

_RANDOM_FROM = getattr(aten.random_, "from")  # (a word of the language)

Draw = Callable[[Tensor, tuple[Any, ...]], Tensor]


def is_sampler(func: OpOverload, info: OpInfo) -> bool:
    """Whether `func` overwrites one tensor by random numbers that depend on no other tensor."""
    arguments = func._schema.arguments
    return (
        torch.Tag.nondeterministic_seeded in func.tags
        and info.written == (0,)
        and not arguments[0].is_out
        and not any("Tensor" in str(a.type) for a in arguments[1:])
    )


def drawn(
    tracer: Tracer,
    func: OpOverload,
    tensor: FakeTensor,
    args: tuple[Any, ...],
    run: Callable[[FakeTensor, tuple[Any, ...]], Node],
) -> Node | None:
    """The new value of `tensor`, which the sampler `func` overwrites; None if its functional form
    draws the same numbers. `run(tensor, args)` records this form, of a fresh tensor."""
    value = read(tracer, tensor).meta["val"]
    plain = layout.is_contiguous(tensor._sizes, tensor._strides)
    within = _limits(tensor._dtype, args) if func is _RANDOM_FROM else None
    if plain and layout.is_contiguous(value._sizes, value._strides) and within is None:
        return None

    def draw(canvas: Tensor, rest: tuple[Any, ...]) -> Tensor:
        if within is not None:
            kind = {"dtype": tensor._dtype, "device": tensor._device}
            return torch.randint(*within, canvas.shape, **kind)  # type: ignore[call-overload, no-any-return]
        return fresh(run(tracer.traced(canvas), rest))

    by_memory = in_memory_order(func, tensor._device.type)
    with tracer:
        if func is aten.normal_.default:
            result = _normal(tensor, args, draw)
        elif by_memory:
            result = _by_memory(tensor, args, draw)
        else:
            result = draw(_canvas(tensor, tensor._sizes), args)
    return read(tracer, tracer.traced(result))


def _limits(dtype: torch.dtype, args: tuple[Any, ...]) -> tuple[int, int] | None:
    """What `random_.from` draws from, for `randint` to draw the same: the name of its own
    functional form, `random.from`, cannot be written in Python. None if `randint` cannot."""
    low, high = args
    if high is None and dtype.is_floating_point:
        high = 1 + 2 ** (1 - int(log2(torch.finfo(dtype).eps)))  # (up to where it counts by ones)
    elif high is None and dtype not in (torch.bool, torch.int64):
        high = 1 + torch.iinfo(dtype).max
    return None if high is None else (low, high)


def _canvas(tensor: FakeTensor, sizes: Any) -> Tensor:
    return torch.empty(list(sizes), dtype=tensor._dtype, device=tensor._device)


def _by_memory(tensor: FakeTensor, args: tuple[Any, ...], draw: Draw) -> Tensor:
    """Numbers drawn in the order of the elements in memory."""
    order = layout.sorted_by_stride(tensor._sizes, tensor._strides)[::-1]
    result = draw(_canvas(tensor, [tensor._sizes[d] for d in order]), args)
    return result.permute([order.index(d) for d in range(len(order))])


def _normal(tensor: FakeTensor, args: tuple[Any, ...], draw: Draw) -> Tensor:
    """`normal_`: of complex numbers, both parts as real ones, each with half the variance."""
    if not tensor._dtype.is_complex:
        return _real_normal(tensor, args, draw)
    mean, std = args
    parts = torch.view_as_real(tensor)
    assert isinstance(parts, FakeTensor)
    return torch.view_as_complex(_real_normal(parts, (mean, std / sqrt(2)), draw))


def _real_normal(tensor: FakeTensor, args: tuple[Any, ...], draw: Draw) -> Tensor:
    sizes = tensor._sizes
    count = layout.numel(sizes)
    if tensor._device.type != "cpu" or layout.settled(count < VECTORS_FROM):
        return _by_memory(tensor, args, draw)
    if layout.is_contiguous(sizes, tensor._strides):
        return draw(_canvas(tensor, sizes), args)
    # One after the other, as eager does here: into pairs that do not lie as contiguous tensors do.
    pairs = count // 2
    flat = draw(_canvas(tensor, (pairs, 2)).t(), args).t().reshape(-1)
    if type(count) is not int or count % 2:
        last = draw(_canvas(tensor, (count - 2 * pairs,)), args)
        flat = torch.cat([flat, last])
    order = layout.sorted_by_stride(sizes, tensor._strides)[::-1]
    result = flat.reshape([sizes[d] for d in order])
    return result.permute([order.index(d) for d in range(len(order))])


def _as_normal(out: Tensor, mean: Tensor | float, std: Tensor | float) -> None:
    """`normal` of tensors, as eager draws it into its result."""
    if isinstance(std, Tensor):
        out.normal_()
        first = mean if isinstance(mean, Tensor) else torch.full((), mean, dtype=out.dtype)
        out.copy_(torch.addcmul(first.to(out.device), out, std))
    else:
        out.normal_(0, std)
        out.add_(mean)


# What eager does to the tensor given as `out`, once it has the right size.
INTO: dict[OpOverload, Callable[..., Any]] = {
    aten.rand.out: lambda out, size: out.uniform_(0, 1),
    aten.randint.out: lambda out, high, size: out.random_(0, high),
    aten.randint.low_out: lambda out, low, high, size: out.random_(low, high),
    aten.normal.float_float_out: lambda out, mean, std, size: out.normal_(mean, std),
    aten.randperm.out: lambda out, n: out.copy_(torch.randperm(n, dtype=out.dtype)),
    aten.bernoulli.out: lambda out, p: out.bernoulli_(p),
    aten.normal.Tensor_float_out: lambda out, mean, std=1.0: _as_normal(out, mean, std),
    aten.normal.float_Tensor_out: _as_normal,
    aten.normal.Tensor_Tensor_out: _as_normal,
}


def drawn_into(
    tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A sampler of `INTO` with the tensor that it writes to, which has the right size."""
    kwargs = dict(tracer.without_generator(func, kwargs))
    out = kwargs.pop("out")
    shapes = [a.shape for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    size: Any = layout.broadcast(shapes) if shapes else kwargs.get("size", args[-1])
    size = (size,) if func is aten.randperm.out else size
    if tuple(size) != tuple(out.shape):
        raise TraceError(
            f"{func}: the result has shape {list(size)}, but the tensor written to "
            f"{list(out.shape)}; resizing in place cannot be compiled"
        )
    with tracer:
        INTO[func](out, *args, **kwargs)
    return out


@functools.cache
def in_memory_order(func: OpOverload, device: str) -> bool:
    """Whether eager's `func` draws in the order of the elements in memory on this machine, tried
    with a generator of its own. (All do on a GPU.)"""
    if device != "cpu":
        return True
    required = [a for a in func._schema.arguments[1:] if not a.has_default_value()]
    numbers = [0.5 if str(a.type) == "float" else 100 * (i + 1) for i, a in enumerate(required)]
    found = []
    with untraced():
        for canvas in (torch.zeros(3, 4), torch.zeros(4, 3).t()):
            func(canvas, *numbers, generator=torch.Generator().manual_seed(1))
            found.append(canvas)
    return not torch.equal(*found)
