"""`from_real`: the fake tensor that stands for a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import (
    FakeStorage,
    FakeTensor,
    Size,
    Sizes,
    UnsupportedTensorError,
    is_lazy,
    make,
    set_lazy,
)


class FakeMemo:
    """Which fake stands for which real tensor, and which `FakeStorage` for which storage.

    It keeps the real objects alive, so that an id cannot come to mean another object.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Tensor, FakeTensor]] = {}
        self._storages: dict[int, tuple[Any, FakeStorage]] = {}

    def get(self, real: Tensor) -> FakeTensor | None:
        """The fake already made for this very tensor object."""
        entry = self._tensors.get(id(real))
        return None if entry is None else entry[1]

    def put(self, real: Tensor, fake: FakeTensor) -> None:
        """Record `fake` as the one for `real`."""
        self._tensors[id(real)] = (real, fake)

    def storage_of(self, real: Tensor) -> FakeStorage:
        """The `FakeStorage` for the storage of `real`."""
        storage = real.untyped_storage()
        entry = self._storages.get(storage._cdata)
        if entry is None:
            entry = self._storages[storage._cdata] = (storage, FakeStorage(storage.nbytes()))
        return entry[1]


StrideSymbol = Callable[[int, Size], Size | None]
"""`(dim, least) -> stride`: a symbol for the stride of a dimension that does not follow from the
sizes, which is `least` or more; None where the stride stays a number."""


def from_real(
    t: Tensor,
    *,
    sizes: Sequence[Size] | None = None,
    strides: Sizes | None = None,
    stride_symbol: StrideSymbol | None = None,
    memo: FakeMemo | None = None,
) -> FakeTensor:
    """The fake of a real tensor: strides, offset, dtype, device, requires_grad, leaf-ness kept.

    `sizes` replaces the sizes (with symbols); strides are then expressed through them where they
    follow from them, and are what `stride_symbol` gives where they do not; `strides` are these
    themselves. With a `memo`, one tensor gives one fake and one storage one `FakeStorage`.
    """
    if type(t) is FakeTensor:
        return t
    if memo is not None and (known := memo.get(t)) is not None:
        return known
    is_param = isinstance(t, torch.nn.Parameter)
    if type(t) is not Tensor and type(t) is not torch.nn.Parameter:
        # (A parameter may be a tensor of the user's own kind, that says it is one.)
        own = type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__
        if own or not (is_param or type(t) is torch.nn.Buffer):
            raise UnsupportedTensorError(f"no fake for the tensor subclass {type(t).__name__}")
    if t.layout is not torch.strided or t.is_quantized:
        raise UnsupportedTensorError(f"no fake for layout {t.layout}, dtype {t.dtype}")
    if not torch._C._has_storage(t):
        raise UnsupportedTensorError(f"no fake for a tensor of {t.device} that has no storage")
    new_sizes: Sizes = tuple(t.shape) if sizes is None else tuple(sizes)
    if strides is None:
        strides = t.stride()
        if sizes is not None:
            strides = express_strides(tuple(t.shape), strides, new_sizes, stride_symbol)
    storage = FakeStorage(t.untyped_storage().nbytes()) if memo is None else memo.storage_of(t)
    if any(type(s) is not int for s in (*new_sizes, *strides)):
        _express(storage, t, new_sizes, strides)
    fake = make(new_sizes, strides, t.dtype, t.device, t.storage_offset(), storage)
    if is_lazy(t):
        set_lazy(fake, t.is_conj(), t.is_neg())
    if t.requires_grad:
        fake.requires_grad_()
        if not t.is_leaf:
            with torch.enable_grad():
                fake = _NonLeaf.apply(fake)
    if is_param:
        fake._is_param = True
    if memo is not None:
        memo.put(t, fake)
    return fake


def _express(storage: FakeStorage, t: Tensor, sizes: Sizes, strides: Sizes) -> None:
    """Say how large the storage of a tensor is in symbols, if the tensor is all of it."""
    whole = storage.made_for == t.numel() * t.dtype.itemsize and t.storage_offset() == 0
    storage.made_for = (sizes, strides, 0, t.dtype) if whole else None


def express_strides(
    real_sizes: Sizes, real_strides: Sizes, sizes: Sizes, symbol: StrideSymbol | None = None
) -> Sizes:
    """Strides written as products of the new sizes and of what lies further in.

    From the innermost dimension outwards, a stride that is the extent of the dimensions inside it
    is written as that extent. Any other is what `symbol` gives or the number it was, and those
    outside of it may follow from it again. Dimensions that repeat elements (stride 0) take no part;
    from one that overlaps with those inside it on, strides stay the numbers they were. (A row of
    every other element of five ends with its last one: the next may begin after it.)
    """
    order = sorted(range(len(sizes)), key=lambda d: (real_strides[d], real_sizes[d]))
    strides: list[Size] = list(real_strides)
    extent_now: Size = 1
    extent: Size = 1
    span_now: Size = 1  # from the first to the last element of the dimensions inside
    inside: list[int] = []
    for d in order:
        size, stride = real_sizes[d], real_strides[d]
        if stride == 0 and size != 1:
            continue
        if stride == extent_now:
            strides[d] = extent
        elif size == 0 or (stride < span_now and size != 1):
            break
        else:
            found = None
            if symbol is not None:
                span: Size = 1
                for i in inside:
                    span = span + (sizes[i] - 1) * strides[i]
                found = symbol(d, 0 if size == 1 else span)
            strides[d] = stride if found is None else found
        if size != 1:
            extent_now = stride * size
            extent = strides[d] * sizes[d]
            span_now += stride * (size - 1)
            inside.append(d)
    return tuple(strides)


class _NonLeaf(torch.autograd.Function):
    """Gives a fake that is not a leaf, with the metadata and storage of its input."""

    @staticmethod
    def forward(ctx: Any, x: FakeTensor) -> FakeTensor:
        ctx.set_materialize_grads(False)
        made = make(x._sizes, x._strides, x._dtype, x._device, x._offset, x._storage)
        set_lazy(made, x.is_conj(), x.is_neg())
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        return grad
