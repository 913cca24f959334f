"""Shape rules of gathers, scatters, concatenation and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import DataDependentError, FakeTensor, Size, Sizes, make
from dovetail_prims.shape_rules.layout import (
    broadcast,
    channels_last,
    contiguous,
    dense_order,
    empty_like_strides,
    equal_sizes,
    fresh,
    infer_dense_strides,
    insisted,
    is_canonical,
    pointwise_layout,
    settled,
    suggests_channels_last,
    wrap_dim,
)
from dovetail_prims.shape_rules.promotion import common_device, of_one_kind, promote
from dovetail_prims.shape_rules.views import unsqueeze, view, view_strides
from dovetail_prims.sizes.data_sizes import new_size


def embedding(
    weight: FakeTensor, indices: FakeTensor, padding_idx: Any = -1, *rest: Any, **options: Any
) -> FakeTensor:
    """Rows of a table."""
    if len(weight._sizes) != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices._dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            f"Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {indices._dtype} instead"
        )
    return fresh((*indices._sizes, weight._sizes[1]), weight._dtype, weight._device)


def index(x: FakeTensor, indices: Sequence[FakeTensor | None]) -> FakeTensor:
    """Advanced indexing with integer tensors."""
    given = [i for i in indices if i is not None]
    for i in given:
        if i._dtype in (torch.bool, torch.uint8):
            return _index_by_masks(x, indices)
    if len(indices) > len(x._sizes):
        raise IndexError(
            f"too many indices for tensor of dimension {len(x._sizes)} (got {len(indices)})"
        )
    if not given:
        return NotImplemented  # type: ignore[no-any-return]
    at = [d for d, i in enumerate(indices) if i is not None]
    try:
        shape = _common_shape([i._sizes for i in given])
    except RuntimeError as error:
        raise IndexError(
            "shape mismatch: indexing tensors could not be broadcast together with shapes "
            f"{', '.join(str(list(i._sizes)) for i in given)}"
        ) from error
    dims = list(range(len(x._sizes)))
    if at != list(range(at[0], at[-1] + 1)):
        # Indexed dimensions that are apart go to the front together.
        dims = at + [d for d in dims if d not in at]
        at = list(range(len(at)))
    before, after = at[0], at[-1] + 1
    sizes = tuple(x._sizes[d] for d in dims)
    strides = tuple(x._strides[d] for d in dims)
    out_sizes = sizes[:before] + shape + sizes[after:]
    source_strides = strides[:before] + (0,) * len(shape) + strides[after:]
    # The iterator sees the source with stride 0 over the indexed dimensions, and the indices.
    source = make(out_sizes, source_strides, x._dtype, x._device)
    tail = len(sizes) - after
    seen = [source, *(_as_index(i, shape, before, tail) for i in given)]
    out_sizes, out_strides = pointwise_layout(seen, False)
    return make(out_sizes, out_strides, x._dtype, x._device)


def _common_shape(shapes: Sequence[Sizes]) -> Sizes:
    """What indices broadcast to. A length that only data tells is the others' or 1: which it is,
    the call itself finds out."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    fitted: list[Sizes] = []
    for shape in padded:
        sizes = list(shape)
        for d, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.hint is None:
                others = [o[d] for o in padded if type(o[d]) is int and o[d] != 1]
                sizes[d] = others[0] if others else size
        fitted.append(tuple(sizes))
    return broadcast(fitted)


def _index_by_masks(x: FakeTensor, indices: Sequence[FakeTensor | None]) -> FakeTensor:
    """Indexing where a mask stands for the positions at which it is true."""
    count: Any = None
    plain: list[FakeTensor | None] = []
    for one in indices:
        if one is None or one._dtype not in (torch.bool, torch.uint8):
            plain.append(one)
            continue
        at = len(plain)
        if len(x._sizes) < at + len(one._sizes) or not one._sizes:
            raise DataDependentError("aten.index.Tensor with a mask of no dimension or too many")
        for have, wanted in zip(one._sizes, x._sizes[at:], strict=False):
            if have != wanted:
                raise IndexError(
                    f"The shape of the mask {list(one._sizes)} at index {at} does not match the "
                    f"shape of the indexed tensor {list(x._sizes)}"
                )
        if count is not None:
            raise DataDependentError("aten.index.Tensor with several masks")
        count = new_size("aten.index.Tensor with a mask")
        position = make((count,), (1,), torch.int64, one._device)
        plain += [position] * len(one._sizes)
    return index(x, plain)


def _as_index(index: FakeTensor, shape: Sizes, lead: int, tail: int) -> FakeTensor:
    """An index tensor expanded to the common shape, with dimensions of size 1 around."""
    shift = len(shape) - len(index._sizes)
    strides: list[Size] = [0] * shift
    for d, (size, stride) in enumerate(zip(index._sizes, index._strides, strict=True)):
        whole = size is shape[shift + d] or settled(size == shape[shift + d])
        strides.append(stride if whole else 0)
    sizes = (1,) * lead + shape + (1,) * tail
    reshaped = view_strides(shape, tuple(strides), sizes)
    return make(
        sizes, contiguous(sizes) if reshaped is None else reshaped, index._dtype, index._device
    )


def like_clone(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """A changed copy of the first argument (`index_put`, `index_add` ...)."""
    return make(x._sizes, empty_like_strides(x), x._dtype, x._device)


def like_view_scatter(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """`slice_scatter` ...: a copy of the whole storage, so that strides and offset stay."""
    for size, stride in zip(x._sizes, x._strides, strict=True):
        if type(stride) is int and stride == 0 and size > 1:
            return like_clone(x)
    return make(x._sizes, x._strides, x._dtype, x._device, x._offset)


def first_argument(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """An in-place op that keeps the metadata of its target."""
    return x


def index_select(x: FakeTensor, dim: int, index: FakeTensor) -> FakeTensor:
    """Slices by a vector of positions."""
    rank = len(x._sizes)
    d = wrap_dim(dim, rank)
    if len(index._sizes) > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if rank == 0:
        return fresh((), x._dtype, x._device)
    count = index._sizes[0] if index._sizes else 1
    return fresh((*x._sizes[:d], count, *x._sizes[d + 1 :]), x._dtype, x._device)


def gather(x: FakeTensor, dim: int, index: FakeTensor, *, sparse_grad: bool = False) -> FakeTensor:
    """One element of `x` for each element of `index`."""
    wrap_dim(dim, len(x._sizes))
    if any(type(size) is int and size == 0 for size in index._sizes):
        return fresh(index._sizes, x._dtype, x._device)  # nothing is taken, of whatever
    if index._dtype not in (torch.int64, torch.int32):
        raise RuntimeError("gather(): Expected dtype int32/int64 for index")
    return fresh(index._sizes, x._dtype, x._device)


def scatter(x: FakeTensor, dim: int, index: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """`scatter`, `scatter_add`, `scatter_reduce`: contiguous."""
    wrap_dim(dim, len(x._sizes))
    return fresh(x._sizes, x._dtype, x._device)


def cat(tensors: Sequence[FakeTensor], dim: int = 0) -> FakeTensor:
    """Joins tensors along a dimension. An empty vector counts for nothing, by old custom."""
    if not tensors:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    first = tensors[0]
    dtype = first._dtype
    if any(t._dtype is not dtype for t in tensors):
        dtype = promote(tensors)
    used = list(tensors)
    if any(len(t._sizes) != 1 for t in tensors) or all(type(t._sizes[0]) is int for t in tensors):
        used = [t for t in tensors if not (len(t._sizes) == 1 and t._sizes[0] == 0)]
    if any(not t._sizes for t in tensors):
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    device = common_device(tensors)
    if not used:
        return fresh((0,), dtype, device)
    lead = used[0]
    rank = len(lead._sizes)
    d = wrap_dim(dim, rank)
    total: Size = 0
    for t in used:
        if len(t._sizes) != rank:
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {rank} and {len(t._sizes)}"
            )
        for i in range(rank):
            if i != d and t._sizes[i] is not lead._sizes[i] and t._sizes[i] != lead._sizes[i]:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {d}. Expected size "
                    f"{lead._sizes[i]} but got size {t._sizes[i]}"
                )
        total = total + t._sizes[d]
    sizes = (*lead._sizes[:d], total, *lead._sizes[d + 1 :])
    if all(suggests_channels_last(t) for t in tensors):
        return make(sizes, channels_last(sizes), dtype, device)
    return fresh(sizes, dtype, device)


def stack(tensors: Sequence[FakeTensor], dim: int = 0) -> FakeTensor:
    """Joins tensors along a new dimension."""
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    lead = tensors[0]
    d = wrap_dim(dim, len(lead._sizes) + 1)
    for t in tensors:
        if not equal_sizes(t._sizes, lead._sizes):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(lead._sizes)} at entry "
                f"0 and {list(t._sizes)}"
            )
    if len(lead._sizes) in (3, 4, 5) and not all(is_canonical(t) for t in tensors):
        return _stack_by_cat(tensors, d)
    dtype = lead._dtype if all(t._dtype is lead._dtype for t in tensors) else promote(tensors)
    sizes = (*lead._sizes[:d], len(tensors), *lead._sizes[d:])
    return fresh(sizes, dtype, common_device(tensors))


def _stack_by_cat(tensors: Sequence[FakeTensor], d: int) -> FakeTensor:
    """`stack` where `cat` may give channels-last: eager cats along `d`, then splits it."""
    lead = tensors[0]
    if d == len(lead._sizes):
        return cat([unsqueeze(t, d) for t in tensors], d)
    joined = cat(tensors, d)
    seen = view(joined, (*lead._sizes[:d], len(tensors), *lead._sizes[d:]))
    return make(seen._sizes, seen._strides, seen._dtype, seen._device)


def constant_pad(x: FakeTensor, pad: Sequence[Size], value: Any = 0) -> FakeTensor:
    """Padding (or cropping) with a constant, from the last dimension on."""
    if len(pad) % 2 or len(pad) > 2 * len(x._sizes):
        raise RuntimeError(
            f"Length of pad must be even and at most twice the rank, but got {list(pad)}"
        )
    sizes = list(x._sizes)
    for i in range(len(pad) // 2):
        d = len(sizes) - 1 - i
        sizes[d] = sizes[d] + pad[2 * i] + pad[2 * i + 1]
        if not insisted(sizes[d] >= 0):
            raise RuntimeError(
                f"The input size {x._sizes[d]}, plus negative padding {pad[2 * i]} and "
                f"{pad[2 * i + 1]}, resulted in a negative output size"
            )
    out = tuple(sizes)
    layout = channels_last if suggests_channels_last(x) else contiguous
    strides = layout(out)
    if all(settled(p >= 0) for p in pad) and equal_sizes(x._strides, layout(x._sizes)):
        return make(out, strides, x._dtype, x._device)  # also where nothing is added
    of_clone = _strides_of_clone(out, x._strides)
    if not equal_sizes(strides, of_clone) and all(settled(p <= 0) for p in pad):
        strides = of_clone  # a crop is cloned
    return make(out, strides, x._dtype, x._device)


def _strides_of_clone(sizes: Sizes, strides: Sizes) -> Sizes:
    if dense_order(sizes, strides) is not None:
        return strides
    return infer_dense_strides(sizes, strides)


def repeat(x: FakeTensor, repeats: Sequence[Size]) -> FakeTensor:
    """Tiling."""
    shift = len(repeats) - len(x._sizes)
    if shift < 0:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            "tensor"
        )
    padded = (1,) * shift + x._sizes
    return fresh(tuple(s * r for s, r in zip(padded, repeats, strict=True)), x._dtype, x._device)


def triangle(x: FakeTensor, diagonal: int = 0) -> FakeTensor:
    """`tril`, `triu`."""
    if len(x._sizes) < 2:
        raise RuntimeError("tril/triu: input tensor must have at least 2 dimensions")
    return fresh(x._sizes, x._dtype, x._device)


def zeros_of_size(grad: FakeTensor, input_sizes: Sequence[Size], *rest: Any) -> FakeTensor:
    """Backward of a view: zeros with the gradient in its place (`slice_backward` ...)."""
    return fresh(tuple(input_sizes), grad._dtype, grad._device)


def nonzero_static(x: FakeTensor, *, size: Size, fill_value: int = -1) -> FakeTensor:
    """Positions of what is not zero, as many as asked for."""
    return fresh((size, len(x._sizes)), torch.int64, x._device)


def index_add(
    x: FakeTensor, dim: int, index: FakeTensor, source: FakeTensor, *, alpha: Any = 1
) -> FakeTensor:
    """Rows added to those that an index names."""
    if not of_one_kind(x, source) or not is_canonical(x) or len(index._sizes) != 1:
        return NotImplemented  # type: ignore[no-any-return]
    if (
        not x._sizes
        or len(x._sizes) != len(source._sizes)
        or index._dtype not in (torch.int32, torch.int64)
    ):
        return NotImplemented  # type: ignore[no-any-return]
    dim = wrap_dim(dim, len(x._sizes))
    wanted = (*x._sizes[:dim], index._sizes[0], *x._sizes[dim + 1 :])
    if not equal_sizes(source._sizes, wanted) or index._device != x._device:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(x._sizes, x._dtype, x._device)


def block_diagonal(tensors: Sequence[FakeTensor]) -> FakeTensor:
    """`block_diag` of matrices."""
    fits = tensors and all(len(t._sizes) == 2 for t in tensors) and of_one_kind(*tensors)
    if not fits:
        return NotImplemented  # type: ignore[no-any-return]
    rows: Size = 0
    columns: Size = 0
    for t in tensors:
        rows, columns = rows + t._sizes[0], columns + t._sizes[1]
    return fresh((rows, columns), tensors[0]._dtype, tensors[0]._device)
