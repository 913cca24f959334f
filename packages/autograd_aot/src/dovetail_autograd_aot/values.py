"""Small functions on graph values: nodes, the fakes they stand for, keys of operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, propagate
from torch.fx import Node

from dovetail_autograd_aot.storage import fresh

aten = torch.ops.aten


def values(value: Any) -> Any:
    """Fakes and symbolic sizes for nodes."""
    if type(value) is Node:
        return value.meta["val"]
    if type(value) is tuple:
        return tuple(values(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [values(v) for v in value]
    return value


def values_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: values(v) for k, v in kwargs.items()} if kwargs else kwargs


def wrapped(value: Any) -> Any:
    """Traced tensors for nodes, so that a decomposition can be called on them."""
    if type(value) is Node:
        val = value.meta["val"]
        return fresh(value) if isinstance(val, FakeTensor) else val
    if isinstance(value, (list, tuple)):
        return type(value)(wrapped(v) for v in value)
    return value


def wrapped_dict(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: wrapped(v) for k, v in kwargs.items()}


def merge_key(value: Any) -> Any:
    """A hashable stand-in for arguments: equal only if they mean the same (1 is not 1.0 here)."""
    kind = type(value)
    if kind is Node:
        return value
    if kind is tuple or kind is list or isinstance(value, (list, tuple)):
        return tuple([merge_key(v) for v in value])
    if kind is float:
        return (float, value, math.copysign(1.0, value))
    if kind is int or kind is bool or kind is complex:
        return (kind, value)
    return value


def flatten(values: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for v in values:
        flat.extend(v) if isinstance(v, (list, tuple)) else flat.append(v)
    return flat


def same_metadata(a: Any, b: Any) -> bool:
    return (
        a._sizes == b._sizes
        and same_strides(a, b)
        and a._dtype == b._dtype
        and a._device == b._device
        and _statically_equal(a._offset, b._offset)
    )


def _statically_equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is int and type(b) is int and a == b) or str(a) == str(b)


def same_strides(a: FakeTensor, b: FakeTensor) -> bool:
    return all(
        x == y or size == 1 for x, y, size in zip(a._strides, b._strides, a._sizes, strict=True)
    )


def hint(size: Any) -> int:
    return size if type(size) is int else int(getattr(size.node, "hint", 0) or 0)


def viewable(val: FakeTensor, sizes: tuple[Any, ...]) -> bool:
    """Whether a tensor can be seen in another shape without a copy."""
    strides: Any = 1
    contiguous = True
    for size, stride in zip(reversed(val._sizes), reversed(val._strides), strict=True):
        if size == 1:
            continue
        if stride != strides:
            contiguous = False
            break
        strides = strides * size
    if contiguous:
        return True
    try:
        propagate(aten.view.default, (val, list(sizes)), {})
    except (RuntimeError, ValueError):
        return False
    return True
