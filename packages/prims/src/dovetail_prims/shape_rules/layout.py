"""Sizes and strides of results: the arithmetic that shape rules share.

Eager's pointwise ops all go through one iterator, whose output layout follows from the inputs'
layouts; `pointwise_out` states that once. Sizes may be symbolic: they are compared and multiplied,
never converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.shape_rules.promotion import common_device

# --- sizes and strides ----------------------------------------------------------------------------


def settled(question: Any) -> bool:
    """The answer to a question about a layout; of a size that only the data tells, as if it were
    large. For layouts alone: whatever such a size turns out to be, the elements lie where the
    strides put them.
    """
    return question if type(question) is bool else bool(question.node.answer_of_layout())


def insisted(relation: Any) -> bool:
    """Whether a relation that an operator itself insists on holds. One about a number that only
    data tells does, from here on: the operator's call is its check."""
    if isinstance(relation, torch.SymBool):
        return bool(relation.node.expect_true("", 0))
    return bool(relation)


def contiguous(sizes: Sizes) -> Sizes:
    """The strides of a fresh contiguous tensor (a size of 0 counts as 1)."""
    n = len(sizes)
    if n == 1:
        return (1,)
    if n == 0:
        return ()
    strides: list[Size] = [1] * n
    acc: Size = 1
    for i in range(n - 1, 0, -1):
        size = sizes[i]
        if size > 1 if type(size) is int else settled(size >= 1):
            acc = acc * size
        strides[i - 1] = acc
    return tuple(strides)


def channels_last(sizes: Sizes) -> Sizes:
    """The strides of a fresh channels-last tensor of 4 or 5 dimensions."""
    channels = sizes[1]
    strides: list[Size] = [1] * len(sizes)
    acc: Size = at_least_one(channels)
    for d in range(len(sizes) - 1, 1, -1):
        strides[d] = acc
        acc = acc * at_least_one(sizes[d])
    strides[0] = acc
    return tuple(strides)


def at_least_one(size: Size) -> Size:
    """`max(size, 1)`, decided by a guard where a symbolic size may be 0; one that depends on data
    is taken for positive."""
    if type(size) is int:
        return max(size, 1)
    small = size < 1
    return 1 if (small if type(small) is bool else small.node.guard_or_false("", 0)) else size


def is_one(size: Size) -> bool:
    """Whether a dimension has one element, so that its stride says nothing: decided by a guard;
    where only the data tells, it has more."""
    if type(size) is int:
        return size == 1
    one = size == 1
    return one if type(one) is bool else bool(one.node.guard_or_false("", 0))


def has_zero(sizes: Sizes) -> bool:
    """Whether the tensor is empty, for its layout: decided by a guard where a symbolic size may be
    0; where only the data tells, it is not."""
    return any(settled(size == 0) for size in sizes)


def equal_sizes(a: Sizes, b: Sizes) -> bool:
    """Whether two shapes are known to be equal; the ranks are compared first, as they need no
    guard."""
    return len(a) == len(b) and all(x is y or settled(x == y) for x, y in zip(a, b, strict=True))


def numel(sizes: Sizes) -> Size:
    """The product of the sizes."""
    product: Size = 1
    for size in sizes:
        product = product * size
    return product


def same_strides(a: Sizes, b: Sizes) -> bool:
    """Whether the strides are the same."""
    return len(a) == len(b) and all(x is y or settled(x == y) for x, y in zip(a, b, strict=True))


def is_canonical(t: FakeTensor) -> bool:
    """Whether the strides are exactly those of a fresh contiguous tensor (remembered)."""
    known = t._canonical
    if known is None:
        known = t._canonical = same_strides(t._strides, contiguous(t._sizes))
    return known


def is_contiguous(sizes: Sizes, strides: Sizes) -> bool:
    """Contiguous in PyTorch's sense: strides of dimensions of size 1 do not matter, nor do any of
    an empty tensor. Symbolic sizes are asked whether they are 1 or 0 only where the answer depends
    on it."""
    return _steps_in_order(sizes, strides, range(len(sizes) - 1, -1, -1)) or has_zero(sizes)


def _steps_in_order(sizes: Sizes, strides: Sizes, order: Iterable[int]) -> bool:
    """Whether each dimension that has several elements steps over those before it in `order`."""
    expected: Size = 1
    for d in order:
        if type(sizes[d]) is int and sizes[d] == 1:
            continue
        if settled(strides[d] == expected):
            expected = expected * sizes[d]
        elif not is_one(sizes[d]):
            return False
    return True


def is_channels_last(sizes: Sizes, strides: Sizes) -> bool:
    """Contiguous in channels-last order (4 or 5 dimensions)."""
    if len(sizes) not in (4, 5):
        return False
    order = (1, *range(len(sizes) - 1, 1, -1), 0)
    return _steps_in_order(sizes, strides, order) or has_zero(sizes)


def suggests_channels_last(t: FakeTensor) -> bool:
    """Whether eager takes the tensor for channels-last (its suggested memory format).

    True if the strides grow in the order C, W, H, N and it is not just as well read as contiguous.
    """
    return not t._canonical and reads_as_channels_last(t._sizes, t._strides)


def reads_as_channels_last(sizes: Sizes, strides: Sizes) -> bool:
    """`suggests_channels_last` of sizes and strides."""
    if len(sizes) not in (4, 5):
        return False
    low: Size = 0
    if strides[1] == 0:
        return False
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        size, stride = sizes[d], strides[d]
        if settled(size == 0):
            return False
        if settled(stride < low):
            return False
        if d == 0 and settled(low == strides[1]):
            return False  # N111, or a contiguous tensor with H = W = 1
        low = stride
        if settled(size != 1):
            low = low * size
    return True


def dense_order(sizes: Sizes, strides: Sizes) -> list[int] | None:
    """The dimensions from outermost to innermost if the tensor is dense and does not overlap."""
    order = sorted_by_stride(sizes, strides)
    if any(settled(size == 0) for size in sizes):
        return order[::-1]
    expected: Size = 1
    for d in order:
        size = sizes[d]
        if is_one(size):
            continue
        if settled(strides[d] != expected):
            return None
        expected = expected * size
    return order[::-1]


def sorted_by_stride(sizes: Sizes, strides: Sizes) -> list[int]:
    """Dimensions from innermost to outermost; those of size 1 or 0 come last."""
    small = [d for d, s in enumerate(sizes) if is_one(s) or settled(s == 0)]
    large = [d for d in range(len(sizes)) if d not in small]
    # Insertion sort with `<` only: symbolic strides compare by guards, never by conversion.
    order: list[int] = []
    for d in large:
        at = len(order)
        while at > 0 and settled(strides[d] < strides[order[at - 1]]):
            at -= 1
        order.insert(at, d)
    return order + small


def empty_like_strides(t: FakeTensor) -> Sizes:
    """Strides of `torch.empty_like(t)` (preserve_format)."""
    if is_canonical(t):
        return t._strides
    sizes, strides = t._sizes, t._strides
    if dense_order(sizes, strides) is not None:
        return strides
    return infer_dense_strides(sizes, strides)


def infer_dense_strides(sizes: Sizes, strides: Sizes) -> Sizes:
    """Dense strides in the order of a tensor that is not dense (gaps or overlaps)."""
    return _permuted_strides(sizes, (strides,))


# --- the pointwise iterator -----------------------------------------------------------------------


def broadcast(shapes: Sequence[Sizes]) -> Sizes:
    """The common shape; raises RuntimeError as eager does."""
    rank = max(len(s) for s in shapes)
    out: list[Size] = [1] * rank
    for shape in shapes:
        shift = rank - len(shape)
        for d, size in enumerate(shape):
            have = out[shift + d]
            if have is size:
                continue
            if type(have) is int and have == 1:
                out[shift + d] = size
            elif type(size) is int and size == 1:
                continue
            elif have != size:
                if have == 1:
                    out[shift + d] = size
                elif size != 1:
                    raise RuntimeError(
                        f"The size of tensor a ({have}) must match the size of tensor b ({size}) "
                        f"at non-singleton dimension {shift + d}"
                    )
    return tuple(out)


def _should_swap(d0: int, d1: int, strides_list: Sequence[Sequence[Size]], sizes: Sizes) -> int:
    """1 if d0 (inner) should be outside d1, -1 if the order is right, 0 if no input tells: by the
    strides or, where those are equal, by the sizes."""
    for strides in strides_list:
        s0, s1 = strides[d0], strides[d1]
        if (type(s0) is int and s0 == 0) or (type(s1) is int and s1 == 0):
            continue  # a broadcast dimension says nothing
        if s0 is s1 or settled(s0 == s1):
            if settled(sizes[d0] > sizes[d1]):
                return 1
        elif settled(s0 < s1):
            return -1
        else:
            return 1
    return 0


def _permuted_strides(sizes: Sizes, strides_list: Sequence[Sequence[Size]]) -> Sizes:
    """Dense strides in the order that the inputs' strides suggest, first input first."""
    n = len(sizes)
    perm = list(range(n - 1, -1, -1))  # innermost first
    for i in range(1, n):
        d1 = i
        for d0 in range(i - 1, -1, -1):
            verdict = _should_swap(perm[d0], perm[d1], strides_list, sizes)
            if verdict > 0:
                perm[d0], perm[d1] = perm[d1], perm[d0]
                d1 = d0
            elif verdict < 0:
                break
    if perm == list(range(n - 1, -1, -1)):
        return contiguous(sizes)
    out: list[Size] = [1] * n
    acc: Size = 1
    for d in perm:
        out[d] = acc
        acc = acc * sizes[d]
    return tuple(out)


def _expanded_strides(t: FakeTensor, sizes: Sizes) -> list[Size]:
    """The input's strides in the iterator: 0 where it is broadcast."""
    shift = len(sizes) - len(t._sizes)
    out: list[Size] = [0] * shift
    for d, (size, stride) in enumerate(zip(t._sizes, t._strides, strict=True)):
        full = sizes[shift + d]
        broadcast_here = size is not full and is_one(size) and not is_one(full)
        out.append(0 if broadcast_here else stride)
    return out


def pointwise_layout(tensors: Sequence[FakeTensor], has_number: bool) -> tuple[Sizes, Sizes]:
    """Sizes and strides of a pointwise op's output. `has_number`: a Python number takes part."""
    first = tensors[0]
    sizes = first._sizes
    same = True
    canonical = is_canonical(first)
    for t in tensors[1:]:
        if t is not first:
            if not equal_sizes(t._sizes, sizes):
                same = False
                break
            canonical = canonical and is_canonical(t)
    if same:
        if canonical:
            return sizes, first._strides
        if not has_number or not sizes:
            if all(is_contiguous(t._sizes, t._strides) for t in tensors):
                return sizes, contiguous(sizes)
            if len(sizes) == 4 and all(is_channels_last(t._sizes, t._strides) for t in tensors):
                return sizes, channels_last(sizes)
            if all(same_strides(t._strides, first._strides) for t in tensors) and (
                dense_order(sizes, first._strides) is not None
            ):
                return sizes, first._strides
    else:
        sizes = broadcast([t._sizes for t in tensors])
        # One contiguous tensor of full shape, the rest broadcast into it, is the common case.
        if equal_sizes(sizes, first._sizes) and is_canonical(first):
            if all(len(t._sizes) == 0 or is_canonical(t) for t in tensors):
                if all(type(s) is not int or s > 1 for s in sizes):
                    return sizes, first._strides
    return sizes, _permuted_strides(sizes, [_expanded_strides(t, sizes) for t in tensors])


def as_converted(tensors: Sequence[FakeTensor], dtype: torch.dtype) -> list[FakeTensor]:
    """Operands as the iterator finds them where it computes in `dtype`: on a CPU it first makes
    dense copies of those of another dtype, laid out as `to` does; on a GPU its loops convert."""
    if common_device(tensors).type != "cpu":
        return list(tensors)
    return [
        t
        if t._dtype is dtype or is_canonical(t)
        else make(t._sizes, empty_like_strides(t), dtype, t._device)
        for t in tensors
    ]


def pointwise_out(
    tensors: Sequence[FakeTensor],
    dtype: torch.dtype,
    has_number: bool = False,
    computed_in: torch.dtype | None = None,
) -> FakeTensor:
    """The output of a pointwise op, which is computed in its own dtype or another."""
    device = tensors[0]._device if len(tensors) == 1 else common_device(tensors)
    if len(tensors) > 1:
        tensors = as_converted(tensors, computed_in or dtype)
    sizes, strides = pointwise_layout(tensors, has_number)
    return make(sizes, strides, dtype, device)


# --- dimensions and whole tensors -----------------------------------------------------------------


def wrap_dim(dim: int, rank: int) -> int:
    """A dimension counted from the end becomes counted from the start; raises IndexError."""
    bound = rank if rank > 0 else 1
    if not -bound <= dim < bound:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {dim})"
        )
    return dim + bound if dim < 0 else dim


def fresh(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> FakeTensor:
    """A fresh contiguous tensor."""
    out = make(sizes, contiguous(sizes), dtype, device)
    out._canonical = True
    return out
