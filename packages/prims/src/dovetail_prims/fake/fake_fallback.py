"""Ops without a shape rule: PyTorch's meta kernel, run on meta tensors in place of the fakes.

A meta tensor has the sizes, strides, offset and dtype of its fake on device "meta". Results are
wrapped as fakes on the right device; a result that views an argument (the schema says so, and the
meta kernel gave it the argument's storage) shares the argument's `FakeStorage`. Some meta kernels
refuse symbolic sizes: then broadcasting tells (of a pointwise op), or the op's decomposition.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dovetail_prims import fake_tensor
from dovetail_prims.fake.custom_fakes import registered_fake, run_registered
from dovetail_prims.shape_rules.layout import pointwise_out
from dovetail_prims.sizes.data_sizes import data_symbols_are_made

_DisableDispatch = torch._C._DisableTorchDispatch
_DisableFunction = torch._C.DisableTorchFunction
_META = torch.device("meta")
_CPU = torch.device("cpu")
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)

_DATA_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Ops that read data without saying so in their tags.
_DATA_DEPENDENT = frozenset(
    {
        "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal",
        "aten::allclose", "aten::nonzero", "aten::masked_select", "aten::unique_dim",
        "aten::_unique2", "aten::_unique", "aten::unique_consecutive",
        "aten::nonzero_numpy", "aten::argwhere", "aten::bincount",
    }
)  # fmt: skip
# Given a mask, these have a shape that depends on its data.
_MASK_INDEXED = frozenset({"aten::index", "aten::_unsafe_index"})


@functools.cache
def _schema_facts(func: Any) -> tuple[bool, bool, bool, frozenset[int], bool]:
    """(reads data, takes masks, composite, indices of written arguments, returns views)."""
    schema = func._schema
    reads_data = schema.name in _DATA_DEPENDENT or bool(_DATA_TAGS.intersection(func.tags))
    composite = func.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    ) and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta)
    written = frozenset(
        i
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return reads_data, schema.name in _MASK_INDEXED, composite, written, views


@functools.cache
def _has_meta_kernel(func: Any) -> bool:
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta))


@functools.cache
def _only_writes(func: Any) -> bool:
    """Is this an operator of some other library's that writes to its arguments and gives nothing?
    Where no fake or meta kernel is registered, nothing need be known of it."""
    schema = func._schema
    own = func.namespace in ("aten", "prims", "prim", "quantized")
    return not own and not schema.returns and schema.is_mutable and not _has_meta_kernel(func)


@functools.cache
def _may_read_data(func: Any) -> bool:
    """Is an operator of some other library's one kernel in C++ for all devices, which may read the
    data that a meta tensor has not (and end the process)?"""
    if func.namespace in ("aten", "prims", "prim", "quantized"):
        return False
    has_kernel = func.has_kernel_for_dispatch_key
    if has_kernel(torch._C.DispatchKey.Meta):
        return False
    if not has_kernel(torch._C.DispatchKey.CompositeExplicitAutograd):
        return False
    rows = torch._C._dispatch_dump(func.name()).splitlines()
    return any(row.startswith("CompositeExplicit") and ".py:" not in row for row in rows)


class _MetaTensors:
    """The meta tensors of one call: one for each fake, a meta storage for each `FakeStorage`."""

    def __init__(self) -> None:
        self.of_fake: dict[int, Tensor] = {}
        self.to_fake: dict[int, fake_tensor.FakeTensor] = {}
        self.device: torch.device | None = None

    def meta(self, fake: fake_tensor.FakeTensor) -> Tensor:
        meta = self.of_fake.get(id(fake))
        if meta is None:
            meta = torch.empty_strided(fake._sizes, fake._strides, dtype=fake._dtype, device=_META)
            if type(fake._offset) is not int or fake._offset != 0:
                room = fake._offset
                for size, stride in zip(fake._sizes, fake._strides, strict=True):
                    room = room + size * stride
                base = torch.empty((room,), dtype=fake._dtype, device=_META)
                meta = base.as_strided(fake._sizes, fake._strides, fake._offset)
            self.of_fake[id(fake)] = meta
            self.to_fake[id(meta)] = fake
            self._see_device(fake)
        return meta

    def _see_device(self, fake: fake_tensor.FakeTensor) -> None:
        # A 0-dim CPU tensor follows the others' device.
        follows = fake._device.type == "cpu" and not fake._sizes
        if self.device is None or (self.device.type == "cpu" and not follows):
            self.device = fake._device

    def symbolic(self) -> bool:
        """Whether a size or stride is no number."""
        lengths = (n for f in self.to_fake.values() for n in (*f._sizes, *f._strides))
        return any(type(n) is not int for n in lengths)

    def to_metas(self, value: Any) -> Any:
        if type(value) is fake_tensor.FakeTensor:
            return self.meta(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.to_metas(v) for v in value)
        return value

    def to_fakes(self, value: Any, device: torch.device, views: bool, func: Any) -> Any:
        """The fakes, on `device`, of what `func` has given; with `views` they may share storages
        with its arguments."""
        if isinstance(value, Tensor):
            fake = self.to_fake.get(id(value))
            if fake is not None:
                return fake
            if value.layout is not torch.strided:
                raise fake_tensor.UnsupportedTensorError(
                    f"no fake for layout {value.layout} ({func})"
                )
            storage = _shared_storage(value, self) if views else None
            sizes, strides, offset = tuple(value.shape), value.stride(), value.storage_offset()
            return fake_tensor.make(sizes, strides, value.dtype, device, offset, storage)
        if isinstance(value, (list, tuple)):
            return type(value)(self.to_fakes(v, device, views, func) for v in value)
        return value


def run_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`func(*args, **kwargs)` on fakes through PyTorch's meta kernel."""
    reads_data, takes_mask, composite, written, views = _schema_facts(func)
    kernel = registered_fake(func)
    if kernel is not None:
        return run_registered(kernel, func, args, kwargs)
    if func._schema.name in ("aten::equal", "aten::allclose") and data_symbols_are_made():
        return True  # C++ asks (captured programs ask otherwise), and raises if it does not hold
    if reads_data or (takes_mask and _has_mask(args[1])):
        raise fake_tensor.DataDependentError(str(func))
    if composite:
        return func.decompose(*args, **kwargs)
    if _only_writes(func):
        return None
    if _may_read_data(func):
        raise fake_tensor.FakeTensorError(f"{func} has neither a shape rule nor a meta kernel")
    for value in (*args, *kwargs.values()):
        if type(value) is torch.dtype and value in _QUANTIZED:
            raise fake_tensor.UnsupportedTensorError(f"no fake for dtype {value} ({func})")
    metas = _MetaTensors()
    explicit = kwargs.get("device")
    if any(a.name == "device" for a in func._schema.arguments):
        explicit = _find_device(func, args, kwargs)
    with _DisableDispatch(), _DisableFunction():
        meta_args = metas.to_metas(args)
        meta_kwargs = {k: metas.to_metas(v) for k, v in kwargs.items()}
        meta_args, meta_kwargs = _on_meta_device(func, meta_args, meta_kwargs)
        try:
            if explicit is None and not metas.of_fake and _has_meta_kernel(func):
                # No argument says to the dispatcher that this is to be the meta kernel's.
                result = func._op_dk(torch._C.DispatchKey.Meta, *meta_args, **meta_kwargs)
            else:
                result = func(*meta_args, **meta_kwargs)
        except NotImplementedError as error:
            raise fake_tensor.FakeTensorError(
                f"{func} has neither a shape rule nor a meta kernel: {error}"
            ) from error
        except (RuntimeError, AttributeError):
            # (Of symbolic numbers PyTorch's kernels in Python ask what its own know.)
            if written or not (metas.symbolic() or _symbolic(args)):
                raise
            _refuse_as_meta_kernel(func, args, kwargs)
            result = NotImplemented
    if result is NotImplemented:
        if torch.Tag.pointwise in func.tags:
            return _broadcast(func, args, kwargs)
        return _taken_apart(func, args, kwargs)
    wrapped = metas.to_fakes(result, explicit or metas.device or _CPU, views, func)
    if written:
        _update_written(func, args, kwargs, written, metas)
    return wrapped


def _refuse_as_meta_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the meta kernel raises of arguments with the sizes of this call, if it does: then
    it is them that it refuses, not symbols. (Sizes that only the data tells have none.)"""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    found = [_at_this_call(value) for value in leaves]
    if not any(
        value is None and leaf is not None for value, leaf in zip(found, leaves, strict=True)
    ):
        args, kwargs = pytree.tree_unflatten(found, spec)
        args, kwargs = _on_meta_device(func, args, kwargs)
        with contextlib.suppress(AttributeError, NotImplementedError):
            func(*args, **kwargs)


def _broadcast(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fake_tensor.FakeTensor:
    """The result of a pointwise op on symbolic sizes: of the dtype that the meta kernel gives for
    tensors of one element."""
    single = pytree.tree_map_only(
        fake_tensor.FakeTensor,
        lambda t: torch.empty((1,) * len(t._sizes), dtype=t._dtype, device=_META),
        (args, kwargs),
    )
    with _DisableDispatch(), _DisableFunction():
        dtype = func(*single[0], **single[1]).dtype
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if type(t) is fake_tensor.FakeTensor]
    return pointwise_out(tensors, dtype, has_number=len(tensors) < len(args))


def _at_this_call(value: Any) -> Any:
    """A meta tensor for a fake, a number for a symbolic one; None where only the data tells it."""
    if type(value) is fake_tensor.FakeTensor:
        sizes, strides = map(_at_this_call, value._sizes), map(_at_this_call, value._strides)
        layout = (tuple(sizes), tuple(strides))
        if any(n is None for numbers in layout for n in numbers):
            return None
        return torch.empty_strided(*layout, dtype=value._dtype, device=_META)
    return value.node.hint if isinstance(value, torch.SymInt) else value


def _symbolic(numbers: Sequence[Any]) -> bool:
    return any(isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)) for n in numbers)


def _taken_apart(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of an op's decomposition on the fakes."""
    from dovetail_prims.decompositions import core_aten_table
    from dovetail_prims.fake.fake_mode import FakeMode

    entry = core_aten_table().get(func)
    with FakeMode():
        result = NotImplemented if entry is None else entry(*args, **kwargs)
    if result is NotImplemented:
        raise fake_tensor.FakeTensorError(f"{func}: PyTorch's meta kernel takes no symbolic sizes")
    return result


def _has_mask(indices: Any) -> bool:
    return any(
        isinstance(i, fake_tensor.FakeTensor) and i._dtype in (torch.bool, torch.uint8)
        for i in indices
    )


def _find_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The op's explicit `device` argument, if given."""
    value = kwargs.get("device")
    if value is None:
        for schema_arg, arg in zip(func._schema.arguments, args, strict=False):
            if schema_arg.name == "device":
                value = arg
    return None if value is None else torch.device(value)


def _on_meta_device(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Send a factory to the meta device, and drop what meta tensors cannot take."""
    names = [a.name for a in func._schema.arguments]
    if "device" in names:
        at = names.index("device")
        if at < len(args):
            args = (*args[:at], _META, *args[at + 1 :])
        else:
            kwargs = {**kwargs, "device": _META}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
    if "generator" in kwargs:
        kwargs = {**kwargs, "generator": None}
    return args, kwargs


def _shared_storage(value: Tensor, metas: _MetaTensors) -> fake_tensor.FakeStorage | None:
    """The storage of the argument that `value` is a view of, if any."""
    storage = value.untyped_storage()._cdata
    for meta in metas.of_fake.values():
        if meta.untyped_storage()._cdata == storage:
            return metas.to_fake[id(meta)]._storage
    return None


# Kernels that fill a tensor of as many elements whatever its shape, where PyTorch's meta kernels
# make it one-dimensional.
_KEEP_SHAPES = frozenset({"aten::arange", "aten::linspace", "aten::logspace"})


def _update_written(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    written: frozenset[int],
    metas: _MetaTensors,
) -> None:
    """Carry a metadata change (`resize_`, `t_`, `set_`, out= resizing) over to the fakes."""
    for i in written:
        name = func._schema.arguments[i].name
        value = args[i] if i < len(args) else kwargs.get(name)
        for fake in value if isinstance(value, (list, tuple)) else (value,):
            if type(fake) is not fake_tensor.FakeTensor:
                continue
            meta = metas.of_fake[id(fake)]
            if func._schema.name in _KEEP_SHAPES and math.prod(fake._sizes) == meta.numel():
                continue
            sizes: fake_tensor.Sizes = tuple(meta.shape)
            strides: fake_tensor.Sizes = meta.stride()
            storage = None
            if func._schema.name == "aten::set_":
                storage = next(
                    (
                        metas.to_fake[id(other)]._storage
                        for other in metas.of_fake.values()
                        if other is not meta
                        and other.untyped_storage()._cdata == meta.untyped_storage()._cdata
                    ),
                    None,
                )
            fake_tensor.set_metadata(fake, sizes, strides, meta.storage_offset(), storage)
