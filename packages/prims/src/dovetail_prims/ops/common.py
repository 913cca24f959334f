"""What the families share: the ATen namespace, types, and the few helpers of numerics and layout.

A decomposition calls `aten.<op>.<overload>` directly: that is the cheapest way into the dispatcher,
and it says exactly which op is meant.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from dovetail_prims.fake_tensor import FakeTensor, Sizes
from dovetail_prims.shape_rules.layout import channels_last, reads_as_channels_last, same_strides
from dovetail_prims.shape_rules.layout import contiguous as row_major


class _Packet(Protocol):
    """An ATen op: its overloads are attributes. (One that returns several tensors is unpacked.)"""

    def __getattr__(self, overload: str) -> Callable[..., Tensor]: ...


class _Namespace(Protocol):
    """ATen: its ops are attributes."""

    def __getattr__(self, op: str) -> _Packet: ...


aten: _Namespace = torch.ops.aten

Number = int | float | bool
Family = Mapping[str, Callable[..., Any]]

_LOW = (torch.float16, torch.bfloat16)


def lookup(name: str) -> OpOverload | None:
    """The op called `<op>.<overload>` in this torch, or None: the one place that asks."""
    op, overload = name.split(".")
    packet = getattr(torch.ops.aten, op, None)
    if packet is None or overload not in packet.overloads():
        return None
    found: OpOverload = getattr(packet, overload)
    return found


def made_for(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry for the op `name` that hands `function` the values of all the op's arguments, in
    order: for functions that serve several ops. (`function` itself, where this torch lacks it.)"""
    op = lookup(name)
    if op is None:
        return function
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    empty = inspect.Parameter.empty
    parameters = []
    for a in op._schema.arguments:
        default = a.default_value if a.has_default_value() else empty
        parameters.append(inspect.Parameter(a.name, kinds[a.kwarg_only], default=default))
    signature = inspect.Signature(parameters)

    def entry(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return function(*given.arguments.values())

    entry.__signature__ = signature  # type: ignore[attr-defined]
    entry.__doc__ = function.__doc__
    return entry


def resolve(family: Family) -> dict[OpOverload, Callable[..., Any]]:
    """A family keyed by op; names this torch does not have are left out."""
    found = {lookup(name): function for name, function in family.items()}
    return {op: function for op, function in found.items() if op is not None}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype eager's kernels compute in: float32 for the half types, else the dtype itself."""
    return torch.float32 if dtype in _LOW else dtype


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in `dtype`; no op where it has it already.

    To a half type the layout is given as well (and no device, as `x.to(other)` does), which says
    nothing by itself: it marks a rounding that no one wrote. Where operators are fused it may be
    left out, as between fused operators of half types in general; one that the user wrote is a
    rounding everywhere.
    """
    if x.dtype == dtype:
        return x
    if dtype in _LOW:
        return aten._to_copy.default(x, dtype=dtype, layout=torch.strided)
    return aten._to_copy.default(x, dtype=dtype)


def wide(x: Tensor) -> Tensor:
    """`x` in the dtype eager's kernels compute in."""
    return cast(x, compute_dtype(x.dtype))


def floating(x: Tensor) -> Tensor:
    """Integers and booleans become the default float dtype, as eager's float-only ops do."""
    return cast(x, floating_dtype(x.dtype))


def floating_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype itself; for integers and booleans the default float dtype."""
    whole = not dtype.is_floating_point and not dtype.is_complex
    return torch.get_default_dtype() if whole else dtype


def kind(dtype: torch.dtype) -> int:
    """0 bool, 1 integer, 2 float, 3 complex"""
    if dtype == torch.bool:
        return 0
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def promote_types(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The smallest dtype that holds both. (torch.promote_types goes through the dispatcher, where a
    mode would record it.)"""
    if a == b:
        return a
    if kind(a) != kind(b):
        low, high = sorted((a, b), key=kind)
        widens = high.is_complex and low == torch.float64
        return torch.complex128 if widens else high
    if a in _LOW and b in _LOW:
        return torch.float32
    small, large = sorted((a, b), key=lambda d: d.itemsize)
    if small.itemsize == large.itemsize or (large.is_signed is False and small.is_signed):
        return {1: torch.int16, 2: torch.int32, 4: torch.int64}[large.itemsize]
    return large


def promoted(x: Tensor, value: Number) -> torch.dtype:
    """The dtype of `x op value`: a number raises x's dtype only by its kind (bool, int, float).

    `torch.result_type` says the same, but goes through the dispatcher and would be recorded.
    """
    dtype = x.dtype
    if dtype.is_floating_point or dtype.is_complex or isinstance(value, bool):
        return dtype
    if isinstance(value, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    return torch.int64 if dtype == torch.bool else dtype


def promoted_together(*tensors: Tensor) -> torch.dtype:
    """ATen's promoted dtype of several tensors; equal dtypes, the usual case, cost nothing. Ones
    without dimensions raise that of the others only by their kind."""
    dtype = tensors[0].dtype
    if all(t.dtype == dtype for t in tensors):
        return dtype
    shaped = [t.dtype for t in tensors if t.dim()]
    single = [t.dtype for t in tensors if not t.dim()]
    if not shaped or not single:
        return functools.reduce(promote_types, shaped or single)
    large, small = (functools.reduce(promote_types, dtypes) for dtypes in (shaped, single))
    return promote_types(large, small) if kind(small) > kind(large) else large


def constant(value: Number, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A number as a 0-dim tensor beside `like`, for the ops whose schema refuses a number."""
    return aten.scalar_tensor.default(value, dtype=dtype or like.dtype, device=like.device)


def where(condition: Tensor, a: Tensor | Number, b: Tensor | Number) -> Tensor:
    """`where` with a number allowed in either branch; it takes the other branch's dtype."""
    if not isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        a = constant(a, b)
    if not isinstance(b, Tensor):
        b = constant(b, a)
    return aten.where.self(condition, a, b)


def never_negative(index: Tensor, size: int) -> Tensor:
    """Indices for an operator that does not count negative ones from the end, given to one that
    does: they are put beyond the end of a dimension of this size, where it refuses them, too."""
    return where(aten.lt.Scalar(index, 0), size, index)


def zeros(size: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros beside `like`."""
    return aten.full.default(size, 0, dtype=dtype or like.dtype, device=like.device)


def iota(length: int, like: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
    """0, 1, ..., length - 1 beside `like`."""
    return aten.arange.start_step(0, length, 1, dtype=dtype, device=like.device)


def contiguous(x: Tensor) -> Tensor:
    """`x` in row-major layout; no op where it is already."""
    if x.is_contiguous():
        return x
    return aten.clone.default(x, memory_format=torch.contiguous_format)


def suggested_format(x: Tensor) -> torch.memory_format:
    """channels_last where eager takes x for that layout, as its kernels keep it"""
    sizes: Sizes = tuple(x.shape)
    strides: Sizes = x.stride()
    if isinstance(x, FakeTensor):
        sizes, strides = x._sizes, x._strides
    if not reads_as_channels_last(sizes, strides):
        return torch.contiguous_format
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def formatted(x: Tensor, wanted: torch.memory_format) -> Tensor:
    """x in a memory format; no op where it has exactly its strides (those of dimensions of one
    element, too, tell eager's kernels in which format their input is)"""
    strides = channels_last if wanted is not torch.contiguous_format else row_major
    if x.is_contiguous(memory_format=wanted):
        if isinstance(x, FakeTensor):
            if same_strides(x._strides, strides(x._sizes)):
                return x
        elif x.stride() == strides(tuple(x.shape)):
            return x
    return aten.clone.default(x, memory_format=wanted)


def format_on_cpu(x: Tensor) -> torch.memory_format:
    """What eager's kernels for the CPU alone keep: x's suggested format"""
    return suggested_format(x) if x.device.type == "cpu" else torch.contiguous_format


def reshape(x: Tensor, size: Sequence[int]) -> Tensor:
    """A view of `x` made row-major. (ATen's own reshape would reach a mode whole, undecomposed.)"""
    return aten.view.default(contiguous(x), size)


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front; a 0-dim tensor counts as having one."""
    return dim % max(rank, 1)


def dims_of(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """The reduced dimensions, from the front; None and the empty list mean all of them."""
    if isinstance(dim, int):
        dim = [dim]
    if not dim:
        return list(range(x.dim()))
    return [wrap(d, x.dim()) for d in dim] if x.dim() else []


def count(x: Tensor, dims: Sequence[int]) -> int:
    """How many elements a reduction over `dims` folds into one."""
    shape = x.shape
    return math.prod(shape[d] for d in dims)


def times(x: Tensor, factor: Number) -> Tensor:
    """factor x: x itself for the number 1; what a symbolic number is, is not asked"""
    return x if is_one(factor) else aten.mul.Tensor(x, factor)


def is_one(factor: Number) -> bool:
    """Whether a number is 1; what a symbolic one is, is not asked"""
    return not isinstance(factor, torch.SymFloat | torch.SymInt) and factor == 1


def along(index: Tensor, dim: int, rank: int) -> Tensor:
    """A 1-D tensor laid along `dim` of a tensor of `rank` dimensions, to broadcast there."""
    shape = [1] * rank
    shape[dim] = index.shape[0]
    return aten.view.default(index, shape)


def broadcast(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """The shape two shapes broadcast to (torch.broadcast_shapes loads a tracer of PyTorch's)"""
    rank = max(len(a), len(b))
    left, right = [1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b)
    return [y if x == 1 else x for x, y in zip(left, right, strict=True)]


NONE, MEAN, SUM = 0, 1, 2  # ATen's loss reductions


def reduce_loss(loss: Tensor, reduction: int) -> Tensor:
    """All losses, their mean or their sum."""
    if reduction == NONE:
        return loss
    dims = list(range(loss.dim()))
    total = aten.sum.dim_IntList(loss, dims)
    return total if reduction == SUM else aten.div.Tensor(total, count(loss, dims))


def of_known_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that decides on sizes: the op is left whole where those depend on data."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        given = [n for a in leaves for n in (a.shape if isinstance(a, Tensor) else (a,))]
        if any(map(depends_on_data, given)):
            return NotImplemented
        return function(*args, **kwargs)

    return inner


def depends_on_data(size: Any) -> bool:
    """True for a size that is known when the program runs only."""
    if not isinstance(size, torch.SymInt):
        return False
    env, expr = getattr(size.node, "env", None), size.node.expr
    return env is not None and not env.unbacked.isdisjoint(expr.free_symbols())
