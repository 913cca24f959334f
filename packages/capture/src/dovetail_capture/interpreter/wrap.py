"""From a pre-existing Python object and its source to a value, with the guard that this needs."""

from __future__ import annotations

import collections
import enum
import functools
import re
import types
from collections.abc import Callable
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.source import ClosureCellSource, ObjectSource, Source

from dovetail_capture.interpreter.session import Session
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SetValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import BoundMethod, CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue


def is_numpy(cls: type, name: str) -> bool:
    """Is `cls` numpy's class of this name, or a subclass? (numpy need not be installed.)"""
    return any(base.__module__ == "numpy" and base.__name__ == name for base in cls.__mro__)


# Compared by value in a guard.
EQUALITY_TYPES: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format, type(Ellipsis), type(NotImplemented), range,
)  # fmt: skip

# Pinned by identity in a guard.
IDENTITY_TYPES: tuple[type, ...] = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType, types.CodeType,
    types.GenericAlias, types.UnionType, type, functools._lru_cache_wrapper, property, staticmethod,
    classmethod, torch._ops.OpOverload, torch._ops.OpOverloadPacket, types.MappingProxyType,
    torch.Generator, re.Pattern, re.Match,
)  # fmt: skip


def wrap(session: Session, real: Any, source: Source) -> Value:
    """The value of a pre-existing object."""
    cls = type(real)
    wrapper = _WRAPPERS.get(cls)
    if wrapper is not None:
        return wrapper(session, real, source)
    if isinstance(real, torch.Tensor):
        return session.tensor_input(real, source)
    if isinstance(real, (type, types.ModuleType, torch._ops.OpOverloadPacket)):
        return _identity(session, real, source)
    if isinstance(real, enum.Enum):
        return _identity(session, real, source)
    if isinstance(real, types.BuiltinFunctionType):
        return _identity(session, real, source)
    if is_numpy(cls, "ufunc"):
        return _identity(session, real, source)
    if is_numpy(cls, "generic"):
        return _equality(session, real, source)
    return _object(session, real, source)


def _equality(session: Session, real: Any, source: Source) -> Value:
    if type(source) is not ObjectSource:
        session.guard(c.ConstantIs, source, real)
    return Constant(real, source)


def _identity(session: Session, real: Any, source: Source) -> Value:
    session.pin(source, real)
    known = session.known.get(id(real))
    if known is None:
        known = session.known[id(real)] = Constant(real, source)
        session.keep_alive.append(real)
    return known


def _known(session: Session, real: Any, source: Source) -> Value | None:
    """The value already made for this object, reached now by another source."""
    known = session.known.get(id(real))
    if known is not None and known.source is not None:
        session.same(known.source, source)
    return known


def _remember(session: Session, real: Any, value: Any) -> Any:
    session.known[id(real)] = value
    session.keep_alive.append(real)
    return value


def _guard_type(session: Session, real: Any, source: Source) -> None:
    if type(source) is not ObjectSource:
        session.guard(c.TypeIs, source, type(real))


def _tuple(session: Session, real: Any, source: Source) -> Value:
    if type(source) is not ObjectSource:
        session.guard(c.TypeIs, source, type(real))
        session.guard(c.LengthIs, source, len(real))
    known = _known(session, real, source) if real else None
    if known is not None:
        return known
    item = session.sources.item
    children = [Lazy(child, item(source, index)) for index, child in enumerate(real)]
    return _remember(session, real, TupleValue(children, type(real), source))  # type: ignore[no-any-return]


def _list(session: Session, real: Any, source: Source) -> Value:
    known = _known(session, real, source)
    if known is not None:
        return known
    _guard_type(session, real, source)
    session.guard(c.LengthIs, source, len(real))
    item = session.sources.item
    children = [Lazy(child, item(source, index)) for index, child in enumerate(real)]
    value = ListValue(children, type(real), source)
    if type(real) is collections.deque:
        value.maxlen = real.maxlen
    return _remember(session, real, value)  # type: ignore[no-any-return]


def _dict(session: Session, real: Any, source: Source) -> Value:
    known = _known(session, real, source)
    if known is not None:
        return known
    _guard_type(session, real, source)
    value = DictValue(type(real), source, real)
    if type(real) is collections.defaultdict:
        value.default_factory = wrap(
            session, real.default_factory, session.sources.attr(source, "default_factory")
        )
    return _remember(session, real, value)  # type: ignore[no-any-return]


def _set(session: Session, real: Any, source: Source) -> Value:
    known = _known(session, real, source)
    if known is not None:
        return known
    if not all(isinstance(item, (*EQUALITY_TYPES, type, enum.Enum)) for item in real):
        raise GraphBreakSignal("a set whose members are not constants")
    if type(source) is not ObjectSource:
        session.guard(c.ConstantIs, source, type(real)(real))
    value = SetValue([Constant(item) for item in real], type(real), source)
    return _remember(session, real, value)  # type: ignore[no-any-return]


def _slice(session: Session, real: Any, source: Source) -> Value:
    _guard_type(session, real, source)
    parts = [
        wrap(session, getattr(real, name), session.sources.attr(source, name))
        for name in ("start", "stop", "step")
    ]
    return SliceValue(*parts)


def _method(session: Session, real: Any, source: Source) -> Value:
    _guard_type(session, real, source)
    return BoundMethod(
        wrap(session, real.__func__, session.sources.attr(source, "__func__")),
        wrap(session, real.__self__, session.sources.attr(source, "__self__")),
        source,
    )


def _cell(session: Session, real: Any, source: Source) -> Value:
    known = session.known.get(id(real))
    if isinstance(known, CellValue):
        # Guards cannot speak of the frame's own cells, only of their contents.
        if isinstance(known.source, ClosureCellSource) and isinstance(known.content, Lazy):
            session.same(known.content.source, session.sources.cell(source))
        return known
    return _remember(session, real, cell_value(session, real, source))  # type: ignore[no-any-return]


def cell_value(
    session: Session, real: Any, source: Source, content_source: Source | None = None
) -> CellValue:
    """The value of a pre-existing cell."""
    try:
        content = real.cell_contents
    except ValueError:
        return CellValue(None, source, real)
    return CellValue(Lazy(content, content_source or session.sources.cell(source)), source, real)


def _object(session: Session, real: Any, source: Source) -> Value:
    known = session.known.get(id(real))
    if known is not None and known.source is not None:
        if isinstance(known, ObjectValue) and known.pinned:
            session.pin(source, real)
        else:
            session.same(known.source, source)
        return known
    cls = type(real)
    value = ObjectValue(cls, real, source)
    if type(source) is ObjectSource:
        value.pinned = True
    elif isinstance(real, torch.nn.Module):
        session.pin(source, real)
        session.guard(c.TypeIs, source, cls)
        value.pinned = True
    else:
        session.guard(c.TypeIs, source, cls)
    try:
        value.fields.origin = object.__getattribute__(real, "__dict__")
    except AttributeError:
        value.fields.origin = None
    for base in (tuple, list, dict, set, frozenset, collections.deque):
        if issubclass(cls, base):
            value.native = _native_part(session, real, source, base)
            break
    return _remember(session, real, value)  # type: ignore[no-any-return]


def _native_part(session: Session, real: Any, source: Source, base: type) -> Value:
    """The list, dict, tuple or set inside an instance of a subclass of one."""
    if base in (list, tuple, collections.deque):
        length = base.__len__(real)
        session.guard(c.LengthIs, source, length)
        item = session.sources.item
        children = [
            Lazy(child, item(source, index)) for index, child in enumerate(base.__iter__(real))
        ]
        if base is tuple:
            return TupleValue(children, tuple, source)
        return ListValue(children, base, source)
    if base is dict:
        kinds = (collections.OrderedDict, collections.defaultdict, dict)
        kind = next(kind for kind in kinds if isinstance(real, kind))
        return DictValue(kind, source, real)
    return SetValue([Constant(item) for item in real], base, source)


_WRAPPERS: dict[type, Callable[[Session, Any, Source], Value]] = {
    **dict.fromkeys(EQUALITY_TYPES, _equality),
    **dict.fromkeys(IDENTITY_TYPES, _identity),
    int: lambda session, real, source: session.int_input(real, source),
    tuple: _tuple,
    torch.Size: _tuple,
    list: _list,
    collections.deque: _list,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: _dict,
    set: _set,
    frozenset: _set,
    slice: _slice,
    types.MethodType: _method,
    types.CellType: _cell,
}
