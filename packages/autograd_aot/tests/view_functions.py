"""What programs of views and writes are made of: each function by name, with how its arguments
are chosen for a tensor."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Rng = random.Random
Chooser = Callable[[Rng, Tensor], "tuple[Any, ...] | None"]


def _dims(rng: Rng, t: Tensor) -> tuple[int, int]:
    return rng.randrange(t.dim()), rng.randrange(t.dim())


def _dim(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    return (rng.randrange(-t.dim(), t.dim()),) if t.dim() else None


def _two(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    return _dims(rng, t) if t.dim() else None


def _permutation(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    return (tuple(rng.sample(range(t.dim()), t.dim())),)


def _factored(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    count = t.numel()
    choices = [(-1,), (count,), (1, count)]
    choices += [(k, count // k) for k in (2, 3, 4) if count and count % k == 0]
    choices += [(count // k, 1, k) for k in (2, 3) if count and count % k == 0]
    return (rng.choice(choices),)


def _expanded(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    sizes = [rng.choice([2, 3]) if s == 1 and rng.random() < 0.7 else s for s in t.shape]
    return (tuple([2, *sizes] if rng.random() < 0.4 else sizes),)


def _slice(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    if not t.dim():
        return None
    dim = rng.randrange(t.dim())
    start = rng.choice([0, 0, 1, 2])
    return dim, start, rng.choice([t.shape[dim], t.shape[dim] - 1, start + 2]), rng.choice([1, 2])


def _select(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    if not t.dim():
        return None
    dim = rng.randrange(t.dim())
    return (dim, rng.choice([0, -1, t.shape[dim] // 2]))


def _diagonal(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    if t.dim() < 2:
        return None
    a, b = rng.sample(range(t.dim()), 2)
    return rng.choice([0, 1, -1]), a, b


def _unfold(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    if not t.dim():
        return None
    dim = rng.randrange(t.dim())
    return dim, rng.choice([1, 2, 3]), rng.choice([1, 2, 3])


def _as_strided(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    sizes, strides = rng.choice([((2, 2), (2, 1)), ((3,), (1,)), ((2, 3), (3, 1)), ((3, 2), (1, 3)),
                                 ((), ()), ((2, 1), (1, 1)), ((2, 2), (1, 1))])  # fmt: skip
    if rng.random() < 0.5:
        return sizes, strides
    return sizes, strides, rng.choice([0, 1, 2, t.storage_offset()])


def _part(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    if not t.dim():
        return None
    return rng.choice([1, 2, 3]), rng.randrange(t.dim()), rng.randrange(3)


def _dtype(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    return (rng.choice([torch.float32, torch.float64, torch.int32, torch.int64, torch.float16]),)


def _nothing(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    return ()


def _number(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    return (rng.choice([0.5, 2, 1.25, -1.0]),)


def _sizes(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    if rng.random() < 0.5:
        return _factored(rng, t)
    return (rng.choice([(2,), (2, 3), (3, 4), (1,), (0,), (5, 5)]),)


def _setitem(t: Tensor, dim: int, start: int, stop: int, step: int, value: Any) -> None:
    t[(slice(None),) * dim + (slice(start, stop, step),)] = value


def _slice_and_number(rng: Rng, t: Tensor) -> tuple[Any, ...] | None:
    args = _slice(rng, t)
    return None if args is None else (*args, rng.choice([0, 1.5]))


def _rows(t: Tensor) -> Tensor:
    return torch.tensor([0, t.shape[0] - 1])


def _chunk(t: Tensor, count: int, dim: int, index: int) -> Tensor:
    return t.chunk(count, dim)[index]


def _split(t: Tensor, size: int, dim: int, index: int) -> Tensor:
    return t.split(size, dim)[index]


def _unbound(t: Tensor, count: int, dim: int, index: int) -> Tensor:
    return t.unbind(dim)[index]


def _tensor_split(t: Tensor, count: int, dim: int, index: int) -> Tensor:
    return t.tensor_split(count, dim)[index]


def _split_sizes(t: Tensor, count: int, dim: int, index: int) -> Tensor:
    return t.split([min(1, t.shape[dim]), max(0, t.shape[dim] - 1)], dim)[index]


def _unflatten(t: Tensor, dim: int) -> Tensor:
    return t.unflatten(dim, (-1, 2))


def _squeeze_all(t: Tensor) -> Tensor:
    return t.squeeze(tuple(range(t.dim())))


def _each(parts: tuple[Tensor, ...]) -> None:
    for number, part in enumerate(parts):
        part.mul_(number + 2)


def _swapped(t: Tensor) -> None:
    """Two halves of a tensor change places, by way of a copy."""
    half = t.shape[0] // 2
    first, second = t[:half], t[t.shape[0] - half :]
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


VIEWS: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "transpose": (torch.transpose, _two), "permute": (torch.permute, _permutation),
    "t": (lambda t: t.t(), _nothing), "view": (Tensor.view, _factored),
    "reshape": (torch.reshape, _factored), "expand": (Tensor.expand, _expanded),
    "slice": (lambda t, d, a, b, s: t[(slice(None),) * d + (slice(a, b, s),)], _slice),
    "select": (torch.select, _select), "diagonal": (torch.diagonal, _diagonal),
    "unfold": (Tensor.unfold, _unfold), "as_strided": (torch.as_strided, _as_strided),
    "squeeze": (torch.squeeze, _nothing), "squeeze_dim": (torch.squeeze, _dim),
    "unsqueeze": (torch.unsqueeze, _dim), "chunk": (_chunk, _part), "split": (_split, _part),
    "unbind": (_unbound, _part), "detach": (Tensor.detach, _nothing),
    "alias": (lambda t: t.view_as(t), _nothing), "flatten": (torch.flatten, _nothing),
    "real": (lambda t: t.real, _nothing), "imag": (lambda t: t.imag, _nothing),
    "view_as_real": (torch.view_as_real, _nothing),
    "view_as_complex": (torch.view_as_complex, _nothing), "view_dtype": (Tensor.view, _dtype),
    "conj": (torch.conj, _nothing), "data": (lambda t: t.data, _nothing),
    "movedim": (torch.movedim, _two), "contiguous": (Tensor.contiguous, _nothing),
    "narrow": (lambda t, d, a, b, s: t.narrow(d, a, 1), _slice),
    "itself": (lambda t: t, _nothing), "adjoint": (lambda t: t.mH, _nothing),
    "matrix_t": (lambda t: t.mT, _nothing), "swapaxes": (torch.swapaxes, _two),
    "neg_view": (torch._neg_view, _nothing), "tensor_split": (_tensor_split, _part),
    "unflatten": (_unflatten, _dim), "squeeze_all": (_squeeze_all, _nothing),
    "resolved": (lambda t: t.resolve_conj().resolve_neg(), _nothing),
    "split_sizes": (_split_sizes, _part), "expand_new": (lambda t: t.expand(2, *t.shape), _nothing),
}  # fmt: skip

WRITES: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "mul_": (Tensor.mul_, _number), "add_": (Tensor.add_, _number),
    "zero_": (Tensor.zero_, _nothing), "fill_": (Tensor.fill_, _number),
    "neg_": (Tensor.neg_, _nothing), "relu_": (torch.relu_, _nothing),
    "abs_": (Tensor.abs_, _nothing), "clamp_": (lambda t: t.clamp_(-1, 1), _nothing),
    "setitem": (_setitem, _slice_and_number),
    "masked_fill_": (lambda t: t.masked_fill_(t > 0, 0.25), _nothing),
    "set_mask": (lambda t: t.__setitem__((t if t.dim() else t[None]) > 0.5, 0.5), _nothing),
    "index_fill_": (lambda t: t.index_fill_(0, _rows(t), 3.0), _nothing),
    "index_put": (lambda t: t.__setitem__(_rows(t), 4.0), _nothing),
    "tril_": (Tensor.tril_, _nothing),
    "foreach_mul_": (lambda t: torch._foreach_mul_([t], 0.5), _nothing),
    "square_out": (lambda t: torch.mul(t.detach(), 0.5, out=t), _nothing),
    "fill_tensor": (lambda t: t.fill_(torch.tensor(0.5)), _nothing),
    "map_rows": (lambda t: t[0].copy_(t[-1]), _nothing),
    "each_chunk": (lambda t: _each(t.chunk(2)), _nothing),
    "each_split": (lambda t: _each(t.split(2, -1)), _nothing),
    "each_row": (lambda t: _each(t.unbind(0)), _nothing),
    "detached_mul_": (lambda t: t.detach().mul_(0.5), _nothing),
    "data_mul_": (lambda t: t.data.mul_(0.5), _nothing),
    "data_row": (lambda t: t.data[0].fill_(2), _nothing),
    "swap_halves": (_swapped, _nothing), "triu_": (Tensor.triu_, _nothing),
    "cumsum_": (lambda t: t.cumsum_(0), _nothing),
    "conj_physical_": (torch.conj_physical_, _nothing),
    "fill_diagonal_": (lambda t: t.fill_diagonal_(2), _nothing),
    "scatter_": (lambda t: t.scatter_(0, torch.zeros_like(t[:1], dtype=torch.int64), 3), _nothing),
    "index_add_": (lambda t: t.index_add_(0, _rows(t), t[:2].clone()), _nothing),
    "index_copy_": (lambda t: t.index_copy_(0, _rows(t), t[:2].clone()), _nothing),
    "masked_scatter_": (lambda t: t.masked_scatter_(t == t, t.clone() + 1), _nothing),
    "put_": (lambda t: t.put_(torch.tensor([0, -1]), t.new_tensor([2, 3])), _nothing),
    "real_mul_": (lambda t: t.real.mul_(3), _nothing),
    "imag_fill_": (lambda t: t.imag.fill_(3), _nothing),
}  # fmt: skip

# Of two tensors: the first is written to.
WRITES_TWO: dict[str, Callable[..., Any]] = {
    "copy_": Tensor.copy_, "add_tensor": Tensor.add_, "mul_tensor": Tensor.mul_,
    "sub_out": lambda t, o: torch.sub(t.detach(), o.detach(), out=t),
    "add_out": lambda t, o: torch.add(o.detach(), o.detach(), out=t),
    "addcmul_": lambda t, o: t.addcmul_(o, o),
    "foreach_add_": lambda t, o: torch._foreach_add_([t], [o]),
    "foreach_copy_": lambda t, o: torch._foreach_copy_([t], [o]),
    "set_row": lambda t, o: t.__setitem__(0, o),
    "lerp_": lambda t, o: t.lerp_(o, 0.5),
    "copy_data": lambda t, o: t.data.copy_(o.data),
    "copy_chunk": lambda t, o: t.chunk(2)[0].copy_(o.chunk(2)[0]),
}  # fmt: skip

META: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "t_": (Tensor.t_, _nothing), "transpose_": (Tensor.transpose_, _two),
    "squeeze_": (Tensor.squeeze_, _nothing), "unsqueeze_": (Tensor.unsqueeze_, _dim),
    "as_strided_": (Tensor.as_strided_, _as_strided), "resize_": (Tensor.resize_, _sizes),
    "detach_": (Tensor.detach_, _nothing), "squeeze_dim_": (Tensor.squeeze_, _dim),
    "swapaxes_": (Tensor.swapaxes_, _two), "swapdims_": (Tensor.swapdims_, _two),
}  # fmt: skip
META_TWO: dict[str, Callable[..., Any]] = {
    "set_": Tensor.set_, "resize_as_": Tensor.resize_as_,
    "set_place": lambda t, o: t.set_(o, o.storage_offset(), o.shape, o.stride()),
}  # fmt: skip

NEW: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "clone": (torch.clone, _nothing), "half": (lambda t: t * 0.5, _nothing),
    "square": (lambda t: t * t, _nothing), "to": (Tensor.to, _dtype),
    "sum": (torch.sum, _dim), "empty_like": (lambda t: torch.zeros_like(t), _nothing),
    "complex": (lambda t: torch.complex(t, t * 2), _nothing),
    "transposed_copy": (lambda t: t.transpose(0, -1).clone(), _nothing),
    "sort": (lambda t: t.sort().values, _nothing),
    "new_zeros": (lambda t: torch.zeros(3, 4), _nothing),
}  # fmt: skip
NEW_TWO: dict[str, Callable[..., Any]] = {
    "mul": torch.mul, "add": torch.add, "where": lambda a, b: torch.where(a > b, a, b),
    "cat": lambda a, b: torch.cat([a, b]), "stack": lambda a, b: torch.stack([a, b]),
    "type_as": Tensor.type_as,
}  # fmt: skip

# More of each, which programs made `wide` draw from, too. (Those of seeds that tests name do not:
# they would become other programs.)


def _indexed(t: Tensor, kind: int) -> Tensor:
    return [
        lambda: t[..., None], lambda: t[None, ..., -1], lambda: t[...], lambda: t[:, 0],
        lambda: t[1:, None, :1], lambda: t[..., ::2], lambda: t[(slice(None),) * t.dim()],
        lambda: t[-1:], lambda: t[0, ..., :0],
    ][kind]()  # fmt: skip


def _any_index(rng: Rng, t: Tensor) -> tuple[Any, ...]:
    return (rng.randrange(9),)


def _second_written(t: Tensor, count: int, dim: int, index: int) -> Tensor:
    """A part that was made with another one, which is written to."""
    parts = t.chunk(count + 1, dim)
    with torch.no_grad():
        parts[index].mul_(2)
    return parts[0]


def _strided_again(t: Tensor) -> Tensor:
    return t.as_strided(t.shape, t.stride()).as_strided(t.shape, t.stride(), t.storage_offset())


def _strided_within(t: Tensor) -> Tensor:
    return t.as_strided((*t.shape[:-1], 1), t.stride(), t.storage_offset()).t()


def _set_imag(t: Tensor) -> None:
    t.imag = t.real


def _augmented(t: Tensor) -> None:
    t[..., -1] += 1


def _two_columns(t: Tensor) -> None:
    t[..., [0, -1]] = t[..., [-1, 0]]


WIDE_VIEWS: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "indexed": (_indexed, _any_index), "second_written": (_second_written, _part),
    "strided_again": (_strided_again, _nothing), "strided_within": (_strided_within, _nothing),
    "ravel": (torch.ravel, _nothing), "hsplit": (lambda t: t.hsplit(2)[1], _nothing),
    "at_least_2d": (torch.atleast_2d, _nothing), "positive": (torch.positive, _nothing),
    "expand_as": (lambda t: t.expand_as(t), _nothing), "numpy_t": (lambda t: t.T, _nothing),
    "broadcast_to": (torch.broadcast_to, _expanded),
    "same_dtype": (lambda t: t.to(t.dtype), _nothing), "as_real": (torch.real, _nothing),
    "meshgrid": (lambda t: torch.meshgrid(t, t, indexing="ij")[1], _nothing),
    "last_chunk": (lambda t: t.chunk(2, -1)[-1].unbind(-1)[0], _nothing),
    "conj_t": (lambda t: t.conj().transpose(0, -1).conj(), _nothing),
    "real_of_conj": (lambda t: t.conj().real, _nothing),
    "conj_of_real": (lambda t: torch.view_as_complex(torch.view_as_real(t)), _nothing),
    "unfold_t": (lambda t: t.unfold(0, 2, 2).transpose(0, -1), _nothing),
    "alias_op": (lambda t: torch.ops.aten.alias(t), _nothing),
    "bytes_again": (lambda t: t.view(torch.uint8).view(t.dtype), _nothing),
    "diagonal_t": (lambda t: t.t().diagonal(1), _nothing),
    "detached_part": (lambda t: t.detach()[:2], _nothing),
    "part_of_data": (lambda t: t.data[:1], _nothing),
}  # fmt: skip

WIDE_WRITES: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "diagonal_mul_": (lambda t: t.diagonal(0, 0, -1).mul_(3), _nothing),
    "unfold_fill_": (lambda t: t.unfold(0, 2, 2).fill_(1.5), _nothing),
    "unfold_mul_": (lambda t: t.unfold(-1, 1, 2).mul_(2), _nothing),
    "strided_mul_": (lambda t: t.as_strided(t.shape, t.stride()).mul_(2), _nothing),
    "strided_fill_": (lambda t: t.as_strided((2,), (1,), t.storage_offset()).fill_(2), _nothing),
    "expanded_mul_": (lambda t: t.expand(2, *t.shape)[0].mul_(2), _nothing),
    "t_mul_": (lambda t: t.t().mul_(2), _nothing), "sub_": (Tensor.sub_, _number),
    "reshape_mul_": (lambda t: t.reshape(-1)[::2].mul_(2), _nothing),
    "augmented": (_augmented, _nothing), "two_columns": (_two_columns, _nothing),
    "set_imag": (_set_imag, _nothing), "sgn_": (Tensor.sgn_, _nothing),
    "index_put_sum": (
        lambda t: t.index_put_((_rows(t),), t.new_tensor(2), accumulate=True), _nothing,
    ),
    "scatter_add_": (
        lambda t: t.scatter_add_(0, torch.zeros_like(t[:1], dtype=torch.int64), t[:1].clone()),
        _nothing,
    ),
    "foreach_chunks": (lambda t: torch._foreach_add_(list(t.chunk(2)), 1), _nothing),
    "foreach_zero_": (lambda t: torch._foreach_zero_(list(t.unbind(-1))), _nothing),
    "init_": (lambda t: torch.nn.init.constant_(t, 0.5), _nothing),
    "relu_of_part": (lambda t: torch.nn.functional.relu(t[..., :1], inplace=True), _nothing),
    "cat_out": (lambda t: torch.cat([t.detach()[:1], t.detach()[1:]], out=t), _nothing),
    "masked_fill_tensor": (
        lambda t: t.masked_fill_(t.detach() < 0, t.new_tensor(2)), _nothing,
    ),
    "no_grad_row": (torch.no_grad()(lambda t: t[0].mul_(2)), _nothing),
    "detached_row": (lambda t: t.detach()[-1].zero_(), _nothing),
    "where_out": (lambda t: torch.where(t > 0, t.detach(), t.detach(), out=t), _nothing),
    "conj_mul_": (lambda t: t.conj().mul_(2j), _nothing),
    "mT_tril_": (lambda t: t.mT.tril_(), _nothing),
    "logical_not_": (Tensor.logical_not_, _nothing), "round_": (Tensor.round_, _nothing),
}  # fmt: skip

WIDE_WRITES_TWO: dict[str, Callable[..., Any]] = {
    "copy_expanded": lambda t, o: t.copy_(o.reshape(-1)[:1]),
    "copy_of_t": lambda t, o: t.t().copy_(o.t()),
    "diagonal_copy_": lambda t, o: t.diagonal(0, 0, -1).copy_(o.diagonal(0, 0, -1)),
    "set_real": lambda t, o: t.real.copy_(o.real),
    "set_columns": lambda t, o: t.__setitem__((..., slice(0, 1)), o[..., -1:]),
    "where_tensor": lambda t, o: t.__setitem__(o > 0, 2),
    "masked_copy": lambda t, o: t.masked_scatter_(t.detach() > 0, o.clone()),
    "stack_out": lambda t, o: torch.stack([o.detach()[0], o.detach()[-1]], out=t),
    "foreach_parts": lambda t, o: torch._foreach_mul_(list(t.unbind(0)), list(o.unbind(0))),
    "index_copy": lambda t, o: t.index_copy_(0, _rows(o)[:1], o[:1]),
    "maximum_out": lambda t, o: torch.maximum(o.detach(), o.detach(), out=t),
}  # fmt: skip

WIDE_META: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "requires_grad_": (lambda t: t.requires_grad_(), _nothing),
    "resize_back": (lambda t: t.resize_(t.shape), _nothing),
    "moved_t_": (lambda t: t.t_().unsqueeze_(0), _nothing),
}  # fmt: skip

WIDE_NEW: dict[str, tuple[Callable[..., Any], Chooser]] = {
    "like_part": (lambda t: torch.ones_like(t[:1]), _nothing),
    "like_transposed": (lambda t: torch.full_like(t.unsqueeze(0).transpose(0, -1), 2), _nothing),
    "new_strided": (lambda t: t.new_empty_strided(t.shape, t.stride()).zero_(), _nothing),
    "channels": (
        lambda t: t[None, None].reshape(1, 1, 1, -1).contiguous(memory_format=torch.channels_last),
        _nothing,
    ),
    "part_of_new": (lambda t: (t * 2)[..., :1], _nothing),
    "two_of_new": (lambda t: (t + 1).chunk(2)[0], _nothing),
    "conj_of_new": (lambda t: torch.complex(t, t * 3).conj(), _nothing),
    "roll": (lambda t: t.roll(1, 0), _nothing), "flip": (lambda t: t.flip(0), _nothing),
    "indexed_new": (lambda t: t[_rows(t)], _nothing),
    "mean_kept": (lambda t: t.mean(0, keepdim=True), _nothing),
}  # fmt: skip
WIDE_NEW_TWO: dict[str, Callable[..., Any]] = {
    "hstack": lambda a, b: torch.hstack([a, b]), "maximum": torch.maximum,
    "broadcast": lambda a, b: torch.broadcast_tensors(a, b)[0],
    "view_as": lambda a, b: a.view_as(b), "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "outer": lambda a, b: a[..., None] * b[..., None, :],
}  # fmt: skip

ALL_VIEWS, ALL_NEW = {**VIEWS, **WIDE_VIEWS}, {**NEW, **WIDE_NEW}
ALL_WRITES, ALL_META = {**WRITES, **WIDE_WRITES}, {**META, **WIDE_META}
ALL_WRITES_TWO, ALL_NEW_TWO = {**WRITES_TWO, **WIDE_WRITES_TWO}, {**NEW_TWO, **WIDE_NEW_TWO}
ONE = {**ALL_VIEWS, **ALL_WRITES, **ALL_META, **ALL_NEW}
TWO = {**ALL_WRITES_TWO, **META_TWO, **ALL_NEW_TWO}
FUNCTIONS: dict[str, Callable[..., Any]] = {**{k: f for k, (f, _) in ONE.items()}, **TWO}
ONES = [(VIEWS, 0.45), (WRITES, 0.3), (META, 0.07), (NEW, 0.18)]
WIDE_ONES = [(ALL_VIEWS, 0.42), (ALL_WRITES, 0.32), (ALL_META, 0.07), (ALL_NEW, 0.19)]
