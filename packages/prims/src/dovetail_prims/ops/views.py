"""View spellings in terms of the view set, and the rearrangements that copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import ShapeRule
from dovetail_prims.ops.card import Card, Dialect, Form, Kind, also, composed, kept, moved, moving
from dovetail_prims.ops.common import (
    aten,
    format_on_cpu,
    formatted,
    iota,
    lookup,
    made_for,
    reshape,
    wrap,
)
from dovetail_prims.shape_rules import copies, indexing, parts
from dovetail_prims.shape_rules import views as rules
from dovetail_prims.shape_rules.copies import in_format, of_cpu
from dovetail_prims.shape_rules.copies import pixel_unshuffle as pixel_unshuffle_shape
from dovetail_prims.shape_rules.copies import roll as roll_shape
from dovetail_prims.shape_rules.indexing import block_diagonal as block_diagonal_shape
from dovetail_prims.shape_rules.views import known_truth

_ROW_MAJOR = torch.contiguous_format


def t(self: Tensor) -> Tensor:
    """The transpose of a matrix; vectors stay"""
    return aten.alias.default(self) if self.dim() < 2 else aten.permute.default(self, [1, 0])


def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions swapped"""
    rank = self.dim()
    order = list(range(rank))
    if rank:
        a, b = wrap(dim0, rank), wrap(dim1, rank)
        order[a], order[b] = b, a
    return aten.permute.default(self, order)


def view(self: Tensor, size: Sequence[int]) -> Tensor:
    """`_unsafe_view`: a view whose base nobody else holds"""
    return aten.view.default(self, size)


def reshape_alias(self: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """What reshape emits when a view will do; the strides follow from the size"""
    return aten.view.default(self, size)


def squeeze_all(self: Tensor) -> Tensor:
    """Every dimension of size 1 dropped"""
    return aten.squeeze.dims(self, [d for d, size in enumerate(self.shape) if size == 1])


def squeeze_dim(self: Tensor, dim: int) -> Tensor:
    """One dimension dropped if its size is 1"""
    return aten.squeeze.dims(self, [dim])


def split(self: Tensor, split_size: int, dim: int = 0) -> list[Tensor]:
    """Equal pieces, the last one perhaps shorter"""
    dim = wrap(dim, self.dim())
    length = self.shape[dim]
    if split_size == 0:
        return [aten.slice.Tensor(self, dim, 0, length)]
    pieces = max(int((length + split_size - 1) // split_size), 1)
    starts = [split_size * i for i in range(pieces)]
    ends = [*starts[1:], length]
    pairs = zip(starts, ends, strict=True)
    return [aten.slice.Tensor(self, dim, a, b) for a, b in pairs]


def split_with_sizes(self: Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """Pieces of given sizes"""
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(aten.slice.Tensor(self, dim, start, start + size))
        start = start + size
    return pieces


def unbind(self: Tensor, dim: int = 0) -> list[Tensor]:
    """Slices of one, their dimension dropped"""
    return [aten.select.int(self, dim, i) for i in range(int(self.shape[dim]))]


def alias(self: Tensor) -> Tensor:
    """The same tensor, detached or lifted"""
    return aten.alias.default(self)


def clone(self: Tensor) -> Tensor:
    """A copy"""
    return aten.clone.default(self)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Side by side along a new dimension"""
    rank = tensors[0].dim()
    dim = wrap(dim, rank + 1)
    if dim < rank and rank in (3, 4, 5):  # (channels-last tensors stay so)
        sizes = list(tensors[0].shape)
        joined = aten.cat.default(tensors, dim)
        return aten.view.default(joined, [*sizes[:dim], len(tensors), *sizes[dim:]])
    return aten.cat.default([aten.unsqueeze.default(x, dim) for x in tensors], dim)


def repeat(self: Tensor, repeats: Sequence[int]) -> Tensor:
    """Tiled: each dimension gets a neighbour to expand over, then the two merge"""
    extra = len(repeats) - self.dim()
    sizes = [1] * extra + list(self.shape)
    paired: list[int] = []
    wanted: list[int] = []
    for n, size in zip(repeats, sizes, strict=True):
        paired += [1, size]
        wanted += [n, size]
    tiled = aten.expand.default(reshape(self, paired), wanted)
    tiled = aten.clone.default(tiled, memory_format=_ROW_MAJOR)
    return aten.view.default(tiled, [n * s for n, s in zip(repeats, sizes, strict=True)])


def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Shifted round, what falls off one end coming in at the other"""
    if not dims:
        flat = reshape(self, [-1])
        return aten.view.default(roll(flat, shifts, [0]), self.shape)
    out = self
    laid = False  # (in memory as eager's steps on the CPU lay it)
    for shift, dim in zip(shifts, dims, strict=True):
        length = self.shape[dim]
        turned = None if known_truth(length == 0) is None else (length - shift) % max(length, 1)
        if turned is None or known_truth(turned == 0) is None:
            # Only the data tells how far it goes round.
            places = aten.sub.Tensor(iota(length, self), shift)
            places = aten.remainder.Scalar(places, torch.sym_max(length, 1))
            out = aten.index_select.default(out, dim, places)
            continue
        if length == 0:
            continue
        cut = (length - shift) % length
        if cut == 0:  # (joined with nothing)
            out = (
                aten.clone.default(out, memory_format=_ROW_MAJOR)
                if out is self
                else formatted(out, _ROW_MAJOR)
            )
            laid = True
            continue
        tail = aten.slice.Tensor(out, dim, cut, length)
        out = aten.cat.default([tail, aten.slice.Tensor(out, dim, 0, cut)], dim)
        laid = True
    if out is self:
        return aten.clone.default(out)
    if self.device.type == "cpu" and laid:
        return out  # (channels-last as long as both parts were)
    return formatted(out, format_on_cpu(self))


def rot90(self: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """k quarter turns in a plane"""
    first, second = dims
    turns = k % 4
    if turns == 0:
        return aten.clone.default(self, memory_format=_ROW_MAJOR)
    if turns == 2:
        return aten.flip.default(self, [first, second])
    flipped = aten.flip.default(self, [second if turns == 1 else first])
    return transpose(flipped, first, second)


def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    """(..., C r², H, W) -> (..., C, H r, W r)"""
    *batch, channels, height, width = self.shape
    r = upscale_factor
    rank = len(batch)
    split_up = reshape(self, [*batch, channels // (r * r), r, r, height, width])
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    moved = aten.clone.default(aten.permute.default(split_up, order), memory_format=_ROW_MAJOR)
    out = aten.view.default(moved, [*batch, channels // (r * r), height * r, width * r])
    return formatted(out, format_on_cpu(self))


def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H r, W r) -> (..., C r², H, W)"""
    if self.device.type == "cpu" and 0 in self.shape:
        return aten.clone.default(self)
    *batch, channels, height, width = self.shape
    r = downscale_factor
    rank = len(batch)
    split_up = reshape(self, [*batch, channels, height // r, r, width // r, r])
    order = [*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3]
    moved = aten.clone.default(aten.permute.default(split_up, order), memory_format=_ROW_MAJOR)
    out = aten.view.default(moved, [*batch, channels * r * r, height // r, width // r])
    return formatted(out, format_on_cpu(self))


def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    """(N, g C/g, ...) with the two factors of the channels swapped"""
    n, channels, *rest = self.shape
    split_up = reshape(self, [n, groups, channels // groups, *rest])
    order = [0, 2, 1, *range(3, split_up.dim())]
    moved = aten.clone.default(aten.permute.default(split_up, order), memory_format=_ROW_MAJOR)
    return formatted(aten.view.default(moved, self.shape), format_on_cpu(self))


def conj(self: Tensor) -> Tensor:
    """The conjugate, computed: no lazy bit reaches a graph"""
    return aten._conj_physical.default(self)


def neg_view(self: Tensor) -> Tensor:
    """The negative, computed: no lazy bit reaches a graph"""
    return aten.neg.default(self)


def _fresh(view: Tensor) -> Tensor:
    """A row-major copy"""
    return aten.clone.default(view, memory_format=_ROW_MAJOR)


def narrow_copy(self: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A copy of a piece"""
    if start < 0:
        start = start + self.shape[dim]
    return _fresh(aten.slice.Tensor(self, dim, start, start + length))


def view_copy(self: Tensor, size: Sequence[int]) -> Tensor:
    """A copy in another shape"""
    return _fresh(reshape(self, size))


def _copied(view: str, *overloads: str, shape: ShapeRule | None = None) -> Card:
    """The copies that stand for overloads of the view `view`, which has this shape rule."""
    rule = None if shape is None else copies.copying(shape)
    forms = (also(name, rule, _copy_of(f"{view}.{name}")) for name in overloads)
    return moved(f"{view}_copy", "A copy of what the view shows", *forms)


def _copy_of(name: str) -> Callable[..., Any]:
    """The entry of the copy that stands for the view called `name`"""
    view = lookup(name)

    def function(*args: Any) -> Any:
        """A copy of what the view shows"""
        assert view is not None
        shown = view(*args[: 2 if name == "expand.default" else None])  # (less its last flag)
        return [_fresh(x) for x in shown] if isinstance(shown, (list, tuple)) else _fresh(shown)

    return made_for(name.replace(".", "_copy."), function)


def _padded(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Zeros at both ends of a dimension"""
    pads = [0, 0] * (x.dim() - dim - 1) + [before, after]
    return aten.constant_pad_nd.default(x, pads)


def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices (or rows, or numbers) along the diagonal of a matrix of zeros"""
    blocks = [x if x.dim() == 2 else aten.view.default(x, [1, x.numel()]) for x in tensors]
    width, left, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        rows.append(_padded(x, 1, left, width - left - x.shape[1]))
        left = left + x.shape[1]
    return aten.cat.default(rows, 0)


def chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Each tensor cut along `dim` into so many chunks (the last filled up with zeros), and all
    first chunks one after the other, then all second ones, ..."""
    dim = wrap(dim, tensors[0].dim())
    rows = []
    for x in tensors:
        x = _padded(x, dim, 0, -x.shape[dim] % num_chunks)
        rows.append(reshape(x, [*x.shape[:dim], num_chunks, -1]))
    return aten.cat.default(rows, dim + 1)


# --- in PRIMS -------------------------------------------------------------------------------------


def select_in_prims(self: Tensor, dim: int, index: int) -> Tensor:
    """A slice of one, its dimension dropped"""
    dim = wrap(dim, self.dim())
    start = index if index >= 0 else index + self.shape[dim]
    shape = [s for d, s in enumerate(self.shape) if d != dim]
    return aten.view.default(aten.slice.Tensor(self, dim, start, start + 1), shape)


def unsqueeze_in_prims(self: Tensor, dim: int) -> Tensor:
    """A dimension of size 1 put in"""
    shape = list(self.shape)
    shape.insert(wrap(dim, self.dim() + 1), 1)
    return aten.view.default(self, shape)


def squeeze_in_prims(self: Tensor, dim: Sequence[int]) -> Tensor:
    """Dimensions of size 1 dropped"""
    named = {wrap(d, self.dim()) for d in dim}
    shape = [s for d, s in enumerate(self.shape) if d not in named or s != 1]
    return aten.view.default(self, shape)


def alias_in_prims(self: Tensor) -> Tensor:
    """A view of the same shape"""
    return aten.view.default(self, self.shape)


def slice_of(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """The meaning of `slice`."""
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


_PRIMS, _CORE = Dialect.PRIMS, Dialect.CORE_ATEN


def _kept(name: str, says: str, shape: ShapeRule, in_place: tuple[str, ...] = ()) -> Card:
    return Card(name, 1, says, (Form("default", _PRIMS, shape),), in_place=in_place,
                kind=Kind.VIEW)  # fmt: skip


CARDS = (
    moving("view", "the elements in row-major order, in another shape",
           Form("default", _PRIMS, rules.view), kept("dtype", rules.view_dtype)),
    _kept("permute", "dimensions reordered", rules.permute),
    _kept("expand", "dimensions of size 1 repeated without a copy", rules.expand),
    moving("slice", "every step-th element from start to end",
           Form("Tensor", _PRIMS, parts.slice_), meaning=slice_of),
    moving("select", "A slice of one, its dimension dropped",
           Form("int", _CORE, parts.select, to_prims=select_in_prims)),
    moving("unsqueeze", "A dimension of size 1 put in",
           Form("default", _CORE, rules.unsqueeze, to_prims=unsqueeze_in_prims),
           in_place=("default",)),
    moving("squeeze", "Dimensions of size 1 dropped",
           Form("dims", _CORE, rules.squeeze, to_prims=squeeze_in_prims),
           also("default", rules.squeeze, squeeze_all), also("dim", rules.squeeze, squeeze_dim),
           in_place=("default", "dim", "dims")),
    _kept("as_strided", "memory seen by strides", rules.as_strided, ("default",)),
    _kept("diagonal", "a diagonal of two dimensions, as the last", rules.diagonal),
    _kept("unfold", "windows along a dimension", rules.unfold),
    moving("alias", "A view of the same shape",
           Form("default", _CORE, rules.alias, to_prims=alias_in_prims)),
    moving("t", "the transpose of a matrix", also("default", rules.t, t), in_place=("default",)),
    moving("transpose", "two dimensions swapped", also("int", rules.transpose, transpose),
           in_place=("default",)),
    moving("_unsafe_view", "a view", also("default", rules.unsafe_view, view)),
    moving("_reshape_alias", "a view", also("default", rules.reshape_alias, reshape_alias)),
    moving("split", "equal pieces", also("Tensor", parts.split, split)),
    moving("split_with_sizes", "pieces", also("default", parts.split_with_sizes, split_with_sizes)),
    moving("unsafe_split", "equal pieces", also("Tensor", parts.split, split)),
    moving("unsafe_split_with_sizes", "pieces", also("default", None, split_with_sizes)),
    moving("unbind", "all slices", also("int", parts.unbind, unbind)),
    moving("detach", "the same tensor", also("default", rules.alias, alias)),
    composed("detach_", indexing.first_argument),
    moving("lift_fresh", "the same tensor", also("default", rules.lift, alias)),
    moving("lift", "the same tensor", also("default", None, alias)),
    moved("lift_fresh_copy", "a copy", also("default", None, clone)),
    moved("stack", "side by side", also("default", indexing.stack, stack)),
    moved("repeat", "tiled", also("default", indexing.repeat, repeat)),
    moved("roll", "shifted round", also("default", of_cpu(roll_shape), roll)),
    moved("rot90", "quarter turns", also("default", None, rot90)),
    moved("pixel_shuffle", "channels as pixels",
          also("default", in_format("pixel_shuffle"), pixel_shuffle)),
    moved("pixel_unshuffle", "pixels as channels",
          also("default", pixel_unshuffle_shape, pixel_unshuffle)),
    moved("channel_shuffle", "channels dealt out",
          also("default", in_format("channel_shuffle"), channel_shuffle)),
    moved("_conj", "the conjugate", also("default", None, conj)),
    moved("_neg_view", "the negative", also("default", None, neg_view)),
    moved("narrow_copy", "a copy of a piece", also("default", None, narrow_copy)),
    moved("view_copy", "a copy in another shape", also("default", copies.view_copy, view_copy)),
    moved("_reshape_copy", "a copy in another shape", also("default", None, view_copy)),
    moved("block_diag", "matrices along the diagonal",
          also("default", block_diagonal_shape, block_diag)),
    moved("_chunk_cat", "chunks, one after the other", also("default", None, chunk_cat)),
    *(_copied(view, "default") for view in ("alias", "as_strided", "diagonal")),
    _copied("expand", "default", shape=rules.expand),
    _copied("permute", "default", shape=rules.permute),
    _copied("split_with_sizes", "default"),
    _copied("squeeze", "default", "dim", "dims"),
    _copied("t", "default", shape=rules.t),
    _copied("transpose", "int", shape=rules.transpose),
    _copied("unbind", "int"),
    _copied("unfold", "default"),
    _copied("unsqueeze", "default", shape=rules.unsqueeze),
)  # fmt: skip
