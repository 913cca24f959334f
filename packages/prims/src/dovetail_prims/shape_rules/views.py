"""Shape rules of views: other sizes and strides over the same memory. (Slices: `parts`.)
Bounds that only the data tells are expressions instead of branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from dovetail_guards.expr import Expr, constant
from dovetail_guards.relations import BoolExpr
from dovetail_guards.sym_node import SymNode

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make, set_metadata
from dovetail_prims.shape_rules import layout


def _expr_of(number: Size) -> Expr:
    if isinstance(number, int):
        return constant(number)
    expr: Expr = number.node.expr
    return expr


def known_truth(relation: Any) -> bool | None:
    """Whether a relation between sizes holds; None if only the data tells. (Of sizes that have an
    example it is guarded.)"""
    node = getattr(relation, "node", None)
    if isinstance(node, SymNode) and isinstance(node.expr, BoolExpr):
        env, symbols = node.env, node.expr.free_symbols()
        loose = symbols & (env.unbacked | env.undecided if env.keep_undecided else env.unbacked)
        if loose and env.statically_known(node.expr) is None:
            return None
    return bool(relation)


def wrapped(index: Size, size: Size) -> Size:
    """An index that counts from the end where it is negative, as one from the beginning."""
    negative = known_truth(index < 0)
    if negative is None:
        # 1 for a negative one, otherwise 0: what is chosen is not known, what is computed is.
        return index + size * torch.sym_min(1, torch.sym_max(0, -index))
    return index + size if negative else index


def clamped(index: Size, size: Size) -> Size:
    """A slice's bound as a position from 0 to `size`."""
    position = wrapped(index, size)
    below, above = known_truth(position < 0), known_truth(position > size)
    if below or above:
        return 0 if below else size
    if above is None:
        position = torch.sym_min(size, position)
    return torch.sym_max(0, position) if below is None else position


def stated(
    condition: Any,
    message: str,
    error: type[Exception] = RuntimeError,
    numbers: tuple[Size, ...] = (),
) -> bool:
    """Whether a relation holds; where only the data tells, the program checks it as it runs, and
    raises `error` with `message`, where each `{}` is one of `numbers`, if there are any."""
    if known_truth(condition) is None:
        node: Any = condition.node
        exprs = tuple(_expr_of(number) for number in numbers)
        return bool(node.env.require(node.expr, message, error, exprs))
    return bool(condition)


def view_of(x: FakeTensor, sizes: Sizes, strides: Sizes, offset: Size) -> FakeTensor:
    """A view of the storage of `x`; `strides` and `offset` are counted in elements."""
    return make(sizes, strides, x._dtype, x._device, offset, x._storage)


def alias(x: FakeTensor) -> FakeTensor:
    """The same view again (`alias`, `detach`)."""
    out = make(x._sizes, x._strides, x._dtype, x._device, x._offset, x._storage)
    out._canonical = x._canonical
    return out


def transpose(x: FakeTensor, dim0: int, dim1: int) -> FakeTensor:
    """Swap two dimensions."""
    rank = len(x._sizes)
    dim0, dim1 = layout.wrap_dim(dim0, rank), layout.wrap_dim(dim1, rank)
    if rank == 0:
        return alias(x)
    sizes, strides = list(x._sizes), list(x._strides)
    sizes[dim0], sizes[dim1] = sizes[dim1], sizes[dim0]
    strides[dim0], strides[dim1] = strides[dim1], strides[dim0]
    return view_of(x, tuple(sizes), tuple(strides), x._offset)


def t(x: FakeTensor) -> FakeTensor:
    """Transpose of a matrix; a vector stays."""
    if len(x._sizes) > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {len(x._sizes)}D"
        )
    return view_of(x, x._sizes[::-1], x._strides[::-1], x._offset)


def permute(x: FakeTensor, dims: Sequence[int]) -> FakeTensor:
    """Reorder the dimensions."""
    rank = len(x._sizes)
    order = [layout.wrap_dim(d, rank) for d in dims]
    if sorted(order) != list(range(rank)):
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {rank} is not equal "
            f"to len(dims) = {len(order)}"
            if len(order) != rank
            else "permute(): duplicate dims are not allowed."
        )
    sizes, strides = x._sizes, x._strides
    return view_of(x, tuple(sizes[d] for d in order), tuple(strides[d] for d in order), x._offset)


def resolve_view_size(x: FakeTensor, size: Sequence[Size]) -> Sizes:
    """The sizes with a -1 filled in; raises if the number of elements differs."""
    out = tuple(-1 if _is_rest(s) else s for s in size)
    for i, s in enumerate(out):
        if type(s) is int and s == -1:
            others = out[:i] + out[i + 1 :]
            if not all(type(o) is int or stated(o >= 0, "invalid shape") for o in others):
                raise RuntimeError(f"invalid shape {list(out)}")
            rest = layout.numel(others)
            total = layout.numel(x._sizes)
            if type(rest) is int and rest == 0:
                raise RuntimeError(
                    f"cannot reshape tensor of 0 elements into shape {list(out)} because the "
                    "unspecified dimension size -1 can be any value and is ambiguous"
                )
            refusal = f"shape '{list(out)}' is invalid for input of size {total}"
            if not stated(rest > 0, refusal) or not stated(total % rest == 0, refusal):
                raise RuntimeError(refusal)
            return (*out[:i], total // rest, *out[i + 1 :])
    # (A size that is -1 at run time would stand for the rest.)
    if not all(type(s) is int or stated(s >= 0, "invalid shape") for s in out):
        raise RuntimeError(f"invalid shape {list(out)}")
    if not layout.same_strides(out, x._sizes) and not layout.insisted(
        layout.numel(out) == layout.numel(x._sizes)
    ):
        raise RuntimeError(
            f"shape '{list(out)}' is invalid for input of size {layout.numel(x._sizes)}"
        )
    return out


def _is_rest(size: Size) -> bool:
    """Whether a symbolic size is -1, which stands for the rest, in this call (and is guarded)."""
    return type(size) is not int and known_truth(size == -1) is True


def view_strides(old_sizes: Sizes, old_strides: Sizes, sizes: Sizes) -> Sizes | None:
    """Strides with which the same memory reads as `sizes`; None if no strides can.

    Where none do for sizes in general, those that happen to be 1 in this call are guarded to be.
    """
    strides = _strides_over(old_sizes, old_strides, sizes)
    if strides is not None:
        return strides
    if all(map(_is_settled, (*old_sizes, *sizes))):
        return None
    return _strides_over(_ones_settled(old_sizes), old_strides, _ones_settled(sizes))


def _is_settled(size: Size) -> bool:
    return isinstance(size, int) or bool(size.node.hint != 1)


def _ones_settled(sizes: Sizes) -> Sizes:
    return tuple(s if _is_settled(s) or s != 1 else 1 for s in sizes)


def _strides_over(old_sizes: Sizes, old_strides: Sizes, sizes: Sizes) -> Sizes | None:
    """The strides of `view_strides`, for sizes other than 1 wherever they are symbolic.

    Both shapes are cut, from the inside out, into stretches with equal element counts; inside a
    stretch the old dimensions must lie one after the other in memory.
    """
    if any(type(s) is int and s == 0 for s in old_sizes):
        return old_strides if sizes == old_sizes else layout.contiguous(sizes)
    if not old_sizes:
        return (1,) * len(sizes)
    strides: list[Size] = [1] * len(sizes)
    at = len(sizes) - 1
    base = old_strides[-1]
    old_count: Size = 1
    new_count: Size = 1
    for d in range(len(old_sizes) - 1, -1, -1):
        old_count = old_count * old_sizes[d]
        ends = d == 0
        if not ends:
            outer = old_sizes[d - 1]
            joined = type(outer) is int and outer == 1
            ends = not joined and layout.settled(old_strides[d - 1] != old_count * base)
        if ends:
            while at >= 0:
                one = type(sizes[at]) is int and sizes[at] == 1
                if not one and not layout.settled(new_count < old_count):
                    break
                strides[at] = new_count * base
                new_count = new_count * sizes[at]
                at -= 1
            if new_count != old_count:
                return None
            if d > 0:
                base = old_strides[d - 1]
                old_count = 1
                new_count = 1
    return tuple(strides) if at == -1 else None


def view(x: FakeTensor, size: Sequence[Size]) -> FakeTensor:
    """`view`: other sizes over the same memory."""
    sizes = resolve_view_size(x, size)
    if layout.is_canonical(x):
        out = view_of(x, sizes, layout.contiguous(sizes), x._offset)
        out._canonical = True
        return out
    strides = view_strides(x._sizes, x._strides, sizes)
    if strides is None and any(_is_zero(size) for size in x._sizes):
        strides = layout.contiguous(sizes)  # there is nothing to be seen
    if strides is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return view_of(x, sizes, strides, x._offset)


def _is_zero(size: Size) -> bool:
    """Whether a size is 0, decided by a guard; one that depends on data is taken not to be."""
    zero = size == 0
    return bool(zero if type(zero) is bool else zero.node.guard_or_false("", 0))


def unsafe_view(x: FakeTensor, size: Sequence[Size]) -> FakeTensor:
    """`_unsafe_view`: a view whose input dies; by its schema not an alias."""
    seen = view(x, size)
    return make(seen._sizes, seen._strides, seen._dtype, seen._device, seen._offset)


def view_dtype(x: FakeTensor, dtype: torch.dtype) -> Any:
    """`view(dtype)` between types of one width."""
    if dtype.itemsize != x._dtype.itemsize or dtype.is_complex != x._dtype.is_complex:
        return NotImplemented
    return make(x._sizes, x._strides, dtype, x._device, x._offset, x._storage)


def expand(x: FakeTensor, size: Sequence[Size], *, implicit: bool = False) -> FakeTensor:
    """Repeat dimensions of size 1 without memory (stride 0)."""
    shift = len(size) - len(x._sizes)
    if shift < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(size)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({len(x._sizes)})"
        )
    sizes: list[Size] = list(size)
    strides: list[Size] = [0] * len(sizes)
    for d in range(len(sizes) - 1, -1, -1):
        target = sizes[d]
        kept = type(target) is int and target == -1
        if d < shift:
            if kept:
                raise RuntimeError(
                    "expand: the expanded size of the tensor (-1) isn't allowed in a leading, "
                    f"non-existing dimension {d}"
                )
            # A new leading dimension of size 1 gets the stride that would follow on.
            if layout.settled(target == 1) and d + 1 < len(sizes) and x._sizes:
                strides[d] = sizes[d + 1] * strides[d + 1]
            continue
        have, stride = x._sizes[d - shift], x._strides[d - shift]
        one = type(have) is int and have == 1
        if kept or have is target or (layout.settled(have == target) if one else have == target):
            sizes[d] = have
            strides[d] = stride
        elif have != 1:
            raise RuntimeError(
                f"The expanded size of the tensor ({target}) must match the existing size ({have}) "
                f"at non-singleton dimension {d}."
            )
    return view_of(x, tuple(sizes), tuple(strides), x._offset)


def unsqueeze(x: FakeTensor, dim: int) -> FakeTensor:
    """Insert a dimension of size 1."""
    rank = len(x._sizes)
    dim = layout.wrap_dim(dim, rank + 1)
    stride: Size = 1 if dim >= rank else x._sizes[dim] * x._strides[dim]
    return view_of(
        x,
        (*x._sizes[:dim], 1, *x._sizes[dim:]),
        (*x._strides[:dim], stride, *x._strides[dim:]),
        x._offset,
    )


def squeeze(x: FakeTensor, dim: int | Sequence[int] | None = None) -> FakeTensor:
    """Drop dimensions of size 1: all, one, or some."""
    rank = len(x._sizes)
    if dim is None:
        candidates = set(range(rank))
    elif isinstance(dim, int):
        candidates = {layout.wrap_dim(dim, rank)}
    else:
        candidates = {layout.wrap_dim(d, rank) for d in dim}
    kept = [d for d in range(rank) if d not in candidates or x._sizes[d] != 1]
    return view_of(
        x, tuple(x._sizes[d] for d in kept), tuple(x._strides[d] for d in kept), x._offset
    )


def as_strided(
    x: FakeTensor, size: Sequence[Size], stride: Sequence[Size], storage_offset: Any = None
) -> FakeTensor:
    """Any view of the storage."""
    offset = x._offset if storage_offset is None else storage_offset
    return view_of(x, tuple(size), tuple(stride), offset)


def diagonal(x: FakeTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> FakeTensor:
    """The diagonal of two dimensions, as a new last dimension."""
    rank = len(x._sizes)
    d1, d2 = layout.wrap_dim(dim1, rank), layout.wrap_dim(dim2, rank)
    if d1 == d2:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    a, b = x._sizes[d1], x._sizes[d2]
    if offset >= 0:
        b = b - offset
    else:
        a = a + offset
    length = a if a < b else b
    if length < 0:
        length = 0
    start = x._offset
    if not (type(length) is int and length == 0):
        start = start + (offset * x._strides[d2] if offset >= 0 else -offset * x._strides[d1])
    kept = [d for d in range(rank) if d not in (d1, d2)]
    return view_of(
        x,
        (*(x._sizes[d] for d in kept), length),
        (*(x._strides[d] for d in kept), x._strides[d1] + x._strides[d2]),
        start,
    )


def unfold(x: FakeTensor, dimension: int, size: Size, step: Size) -> FakeTensor:
    """Sliding windows along a dimension, as a new last dimension."""
    rank = len(x._sizes)
    d = layout.wrap_dim(dimension, rank)
    if rank == 0:
        return NotImplemented  # type: ignore[no-any-return]
    if size > x._sizes[d]:
        raise RuntimeError(
            f"maximum size for tensor at dimension {d} is {x._sizes[d]} but size is {size}"
        )
    count = (x._sizes[d] - size) // step + 1
    stride = x._strides[d]
    return view_of(
        x,
        (*x._sizes[:d], count, *x._sizes[d + 1 :], size),
        (*x._strides[:d], stride * step, *x._strides[d + 1 :], stride),
        x._offset,
    )


def lift(x: FakeTensor) -> FakeTensor:
    """`lift_fresh`: the tensor itself."""
    return alias(x)


def becoming(rule: Callable[..., FakeTensor]) -> Callable[..., FakeTensor]:
    """The rule of an operator that makes its argument such a view of itself (`t_`)."""

    def become(x: FakeTensor, *args: Any) -> FakeTensor:
        view = rule(x, *args)
        set_metadata(x, view._sizes, view._strides, view._offset)
        return x

    return become


def reshape_alias(x: FakeTensor, size: Any, stride: Any) -> FakeTensor:
    """A view that `reshape` makes."""
    return as_strided(x, size, stride)
