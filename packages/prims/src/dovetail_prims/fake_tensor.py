"""`FakeTensor`: a tensor that has shape, strides, dtype, device and aliasing, but no data.

It is a wrapper subclass, so PyTorch's C++ autograd runs above it as it does above a real tensor.
Metadata is kept in plain Python attributes (reading `_sizes` costs 20 ns, `.shape` far more).
An op on fakes is answered by a shape rule (`shape_rules/`) or, where there is none, by PyTorch's
own meta kernel on meta tensors (`fake_fallback.py`).

Sizes may be `torch.SymInt`. The C++ object then carries the hints, and every question C++ has
about sizes comes back to `__torch_dispatch__` (`fake_queries.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

Size = int | torch.SymInt
Sizes = tuple[Size, ...]
ShapeRule = Callable[..., Any]

_make_wrapper = Tensor._make_wrapper_subclass
_DisableDispatch = torch._C._DisableTorchDispatch


class FakeTensorError(RuntimeError):
    """A fake tensor cannot answer."""


class DataDependentError(FakeTensorError):
    """The result (or its shape) depends on data, which a fake tensor does not have."""

    def __init__(self, op: str) -> None:
        super().__init__(f"{op} needs the data of a tensor, and a fake tensor has none")
        self.op = op


class UnsupportedTensorError(FakeTensorError):
    """A real tensor of a kind that has no fake counterpart (sparse, quantized, subclass ...)."""


Whole = tuple[Sizes, Sizes, Size, torch.dtype]


class FakeStorage:
    """Stands for a storage. Two fakes alias exactly if they hold the same `FakeStorage`.

    `made_for` tells how large it is: a number of bytes, or the sizes, strides, offset and dtype of
    the tensor that it was made for; None where that is not known."""

    __slots__ = ("__weakref__", "made_for")

    def __init__(self, made_for: int | Whole | None = None) -> None:
        self.made_for = made_for


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """All that a compiler asks of a tensor without data."""

    sizes: Sizes
    strides: Sizes
    offset: Size
    dtype: torch.dtype
    device: torch.device


class FakeTensor(Tensor):
    """A tensor without data. Make one with `FakeTensor.make` or `from_real`."""

    # The C++ object's own `__torch_function__` protocol is of no use here; skipping it is cheap.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    _sizes: Sizes
    _strides: Sizes
    _offset: Size
    _dtype: torch.dtype
    _device: torch.device
    _storage: FakeStorage
    # Whether the strides are exactly those of a fresh contiguous tensor; None: not yet asked.
    _canonical: bool | None = None
    # nn.Parameter's isinstance check reads this attribute.
    _is_param: bool

    # Filled by the first dispatch: the rules live in modules that import this one.
    rules: ClassVar[Mapping[Any, ShapeRule | None] | None] = None

    @staticmethod
    def make(
        sizes: Sequence[Size],
        strides: Sequence[Size],
        dtype: torch.dtype,
        device: torch.device,
        *,
        offset: Size = 0,
        storage: FakeStorage | None = None,
        requires_grad: bool = False,
    ) -> FakeTensor:
        """A new fake tensor (a leaf). `storage` None gives it a storage of its own."""
        fake = make(tuple(sizes), tuple(strides), dtype, torch.device(device), offset, storage)
        return _requiring_grad(fake) if requires_grad else fake

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if has_other_types(types):
            return NotImplemented
        return propagate(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        sizes = ", ".join(str(s) for s in self._sizes)
        return f"FakeTensor([{sizes}], {self._dtype}, device='{self._device}')"

    def tolist(self) -> Any:
        """Raises DataDependentError: there is no data."""
        raise DataDependentError("tolist")

    def numpy(self, *, force: bool = False) -> Any:
        """Raises DataDependentError: there is no data."""
        raise DataDependentError("numpy")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise DataDependentError("__array__")

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        if id(self) not in memo:
            copy = make(self._sizes, self._strides, self._dtype, self._device, self._offset)
            copy.requires_grad_(self.requires_grad)
            memo[id(self)] = copy
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Strides, dtype and device are all there is; aliasing does not survive pickling.
        if any(type(s) is not int for s in (*self._sizes, *self._strides, self._offset)):
            raise FakeTensorError("a fake tensor with symbolic sizes cannot be pickled")
        return _unpickle, (
            self._sizes,
            self._strides,
            self._dtype,
            self._device,
            self._offset,
            self.requires_grad,
        )


def has_other_types(types: Any) -> bool:
    """Whether a call is for a class around our tensors to answer."""
    for cls in types:
        if cls is not FakeTensor:
            return True
    return False


def make(
    sizes: Sizes,
    strides: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    offset: Size = 0,
    storage: FakeStorage | None = None,
) -> FakeTensor:
    """`FakeTensor.make` for shape rules: positional, tuples given, never requires grad."""
    symbolic = type(offset) is not int
    for s in sizes:
        if type(s) is not int:
            symbolic = True
    fake: FakeTensor
    if symbolic:  # its C++ object carries hints and asks us about sizes
        fake = _make_wrapper(
            FakeTensor,
            tuple(hint_of(s) for s in sizes),
            tuple(hint_of(s) for s in strides),
            hint_of(offset),
            dtype=dtype,
            device=device,
            dispatch_sizes_strides_policy="sizes",
        )
    else:
        fake = _make_wrapper(FakeTensor, sizes, strides, offset, dtype=dtype, device=device)
    fake._sizes = sizes
    fake._strides = strides
    fake._offset = offset
    fake._dtype = dtype
    fake._device = device
    fake._storage = FakeStorage((sizes, strides, offset, dtype)) if storage is None else storage
    return fake


def hint_of(size: Size) -> int:
    """The example value of a size; an unbacked one stands as 2 in the C++ object (never read)."""
    if type(size) is int:
        return size
    node = size.node  # type: ignore[union-attr]
    hint = getattr(node, "hint", None)
    return hint if isinstance(hint, int) else 2


def _requiring_grad(fake: FakeTensor) -> FakeTensor:
    fake.requires_grad_()
    return fake


def _unpickle(
    sizes: Sizes,
    strides: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    offset: Size,
    requires_grad: bool,
) -> FakeTensor:
    fake = make(sizes, strides, dtype, device, offset)
    return _requiring_grad(fake) if requires_grad else fake


def propagate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `func(*args, **kwargs)` gives on fakes, without going through the dispatcher.

    This is what `__torch_dispatch__` calls; a tracer that already stands below autograd may call it
    directly. Real tensors among the arguments count as constants; writing to one is an error.
    Raises UnsupportedTensorError where a sparse or quantized tensor comes out.
    """
    rules = FakeTensor.rules
    if rules is None:
        rules = _load_rules()
    for a in args:
        if isinstance(a, Tensor):
            if type(a) is not FakeTensor:
                args, kwargs = _fakify(func, args, kwargs)
                break
        elif type(a) is list or type(a) is tuple:
            if any(isinstance(e, Tensor) and type(e) is not FakeTensor for e in a):
                args, kwargs = _fakify(func, args, kwargs)
                break
    if kwargs:
        for a in kwargs.values():
            if isinstance(a, Tensor) and type(a) is not FakeTensor:
                args, kwargs = _fakify(func, args, kwargs)
                break
        if kwargs.get("layout") not in _HAVE_STRIDES:
            raise UnsupportedTensorError(f"no fake for layout {kwargs['layout']} ({func})")
    rule = rules[func]
    result = NotImplemented if rule is None else rule(*args, **kwargs)
    if result is NotImplemented:
        from dovetail_prims.fake.fake_fallback import run_on_meta

        result = run_on_meta(func, args, kwargs)
    if func in _LAZY_OPS or (args and type(args[0]) is FakeTensor and is_lazy(args[0])):
        _keep_lazy(func, args[0], result)
    return result


_HAVE_STRIDES = (None, torch.strided)
_LAZY_OPS = frozenset({torch.ops.aten._conj.default, torch.ops.aten._neg_view.default})


def is_lazy(t: Tensor) -> bool:
    """Whether a tensor's values are not what its memory holds (see `set_lazy`)."""
    return t.is_conj() or t.is_neg()


def set_lazy(fake: FakeTensor, conj: bool, neg: bool) -> None:
    """Say whether a fake's values are the conjugates, the negatives, of what its memory holds."""
    torch._C._set_conj(fake, conj)
    torch._C._set_neg(fake, neg)


def _keep_lazy(func: Any, base: FakeTensor, result: Any) -> None:
    """A view is as lazy as its base, or the other way."""
    if all(r.alias_info is None or r.alias_info.is_write for r in func._schema.returns):
        return
    conj = base.is_conj() ^ (func is torch.ops.aten._conj.default)
    neg = base.is_neg() ^ (func is torch.ops.aten._neg_view.default)
    for view in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(view, FakeTensor) and view is not base:
            set_lazy(view, conj, neg)


def _load_rules() -> Mapping[Any, ShapeRule | None]:
    from dovetail_prims.ops.rule_table import default_rules

    FakeTensor.rules = default_rules()
    return FakeTensor.rules


def _fakify(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace real tensors by fakes of their own; refuse if the op would write to one."""
    from dovetail_prims.fake.from_real import FakeMemo, from_real

    memo = FakeMemo()
    written = {
        i for i, a in enumerate(func._schema.arguments) if a.alias_info and a.alias_info.is_write
    }
    written_names = {func._schema.arguments[i].name for i in written}

    def convert(value: Any, is_written: bool) -> Any:
        if isinstance(value, FakeTensor):
            return value
        if isinstance(value, Tensor):
            if is_written:
                raise FakeTensorError(f"{func} would write fake values into a real tensor")
            return from_real(value, memo=memo)
        if isinstance(value, (list, tuple)):
            return type(value)(convert(v, is_written) for v in value)
        return value

    return (
        tuple(convert(a, i in written) for i, a in enumerate(args)),
        {k: convert(v, k in written_names) for k, v in kwargs.items()},
    )


def tensor_meta(t: Tensor) -> TensorMeta:
    """The metadata of a fake or real tensor."""
    if type(t) is FakeTensor:
        return TensorMeta(t._sizes, t._strides, t._offset, t._dtype, t._device)
    return TensorMeta(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.device)


def set_metadata(
    fake: FakeTensor, sizes: Sizes, strides: Sizes, offset: Size, storage: FakeStorage | None = None
) -> None:
    """Change a fake in place, as `resize_`, `t_`, `set_` ... do: Python and C++ side alike."""
    before = (*fake._sizes, *fake._strides, fake._offset)
    after = (*sizes, *strides, offset)
    # (Symbols are compared as objects: asking whether they are equal would guard them.)
    same = len(fake._sizes) == len(sizes) and all(
        a is b or (type(a) is type(b) is int and a == b) for a, b in zip(before, after, strict=True)
    )
    if same:
        if storage is not None:
            fake._storage = storage
        return
    template = make(sizes, strides, fake._dtype, fake._device, offset)
    lazy = fake.is_conj(), fake.is_neg()
    with _DisableDispatch():
        fake.data = template  # the C++ object takes over the template's metadata, policy included
    set_lazy(fake, *lazy)
    fake._sizes = sizes
    fake._strides = strides
    fake._offset = offset
    fake._canonical = None
    if storage is not None:
        fake._storage = storage
    else:
        fake._storage.made_for = None  # (it may have grown)
