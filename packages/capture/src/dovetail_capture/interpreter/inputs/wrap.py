"""From a pre-existing Python object and its source to a value, with the guard that this needs."""

from __future__ import annotations

import collections
import enum
import inspect
import re
import threading
import types
import weakref
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards import iterators
from dovetail_guards import source as s

from dovetail_capture.interpreter.inputs.wrap_containers import (
    Wrapper,
    dict_value,
    guard_type,
    iterator_value,
    known,
    list_value,
    mapping_proxy_value,
    native_part,
    remember,
    set_value,
    slice_value,
    tuple_value,
    view_value,
)
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import functions, tensors
from dovetail_capture.interpreter.values.base import (
    EQUALITY_TYPES,
    IDENTITY_TYPES,
    Constant,
    Lazy,
    Value,
    is_numpy,
)
from dovetail_capture.interpreter.values.containers import DictValue
from dovetail_capture.interpreter.values.objects import ObjectValue, StandIn
from dovetail_capture.marks import is_marked
from dovetail_capture.skip import module_of

_CONTAINERS = (tuple, list, dict, set, frozenset, collections.deque)


def wrap(session: Session, real: Any, source: s.Source) -> Value:
    """The value of a pre-existing object."""
    cls = type(real)
    wrapper = _WRAPPERS.get(cls) or session.objects.wrappers.get(cls)
    if wrapper is None:
        wrapper = _wrapper_for(real, cls)
        if real.__class__ is cls:  # another object may say something else of its class
            session.objects.wrappers[cls] = wrapper
    value = wrapper(session, real, source)
    if session.late_reads.watch is not None:
        session.late_reads.watch.note(real, source, value)
    return value


def _wrapper_for(real: Any, cls: type) -> Wrapper:
    """What makes the values of objects of a class that is none of those in the table."""
    if isinstance(real, torch.Tensor):
        return _tensor
    if isinstance(real, (type, types.ModuleType, torch._ops.OpOverloadPacket)):
        return _identity
    if isinstance(real, enum.Enum) or (
        type(cls).__name__ == "pybind11_type"
        and (
            hasattr(cls, "__members__")  # an enum written in C++
        )
    ):
        return _identity
    if is_numpy(cls, "ufunc") or is_numpy(cls, "_ArrayFunctionDispatcher"):
        return _identity
    if is_numpy(cls, "generic"):
        return _equality
    if cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        return _array
    if module_of(cls).partition(".")[0] == "numpy" and is_numpy(cls, "dtype"):
        return _equality
    return _object


def _tensor(session: Session, real: torch.Tensor, source: s.Source) -> Value:
    """A tensor: an input of the graph, if a graph can have it. A sparse or quantized one is an
    object: what is done with it breaks the graph, where it is done."""
    own = type(real) not in (torch.Tensor, torch.nn.Parameter)
    if own or (real.layout is torch.strided and not real.is_quantized):
        return session.inputs.tensor(real, source)
    for name in ("layout", "dtype"):  # for one that a graph can have, another version is compiled
        session.guards.add(c.ConstantIs, session.sources.attr(source, name), getattr(real, name))
    return _object(session, real, source)


def _equality(session: Session, real: Any, source: s.Source) -> Value:
    return session.inputs.constant(real, source)


def _identity(session: Session, real: Any, source: s.Source) -> Value:
    session.guards.pin(source, real)
    known = session.objects.known.get(id(real))
    if known is None:
        known = session.objects.bind(real, Constant(real, source))
    return known


def _is_passed(source: s.Source) -> bool:
    """Does the object come from the frame's arguments or closure, maybe in a container?"""
    while isinstance(source, (s.ItemSource, s.CellContentsSource, s.IteratorSource)) or (
        isinstance(source, s.AttrSource)
        and source.name in ("__closure__", "__func__", "__defaults__", "__kwdefaults__")
    ):
        source = source.base
    return isinstance(source, (s.LocalSource, s.ClosureSource))


def _function(session: Session, real: types.FunctionType, source: s.Source) -> Value:
    """A function. One that is made anew by each call of the function around it is known by its
    code, defaults and closure, where it is passed, or where an object that keeps it had another
    in another call; any other by its identity."""
    code = real.__code__
    plain = not real.__dict__ and real.__qualname__ == code.co_qualname and not is_marked(real)
    is_anew = _is_passed(source) or session.inputs.is_replaced(source)
    if "<locals>" not in code.co_qualname or not plain or not is_anew:
        return _identity(session, real, source)
    seen = known(session, real, source)
    if seen is not None:
        return seen
    sources = session.sources
    guard_type(session, real, source)
    session.guards.pin(sources.attr(source, "__code__"), code)
    session.guards.pin(sources.attr(source, "__globals__"), real.__globals__)
    session.guards.add(c.LengthIs, sources.attr(source, "__dict__"), 0)
    value = functions.FunctionValue(code, real.__globals__)
    value.source = source
    value.name = real.__name__
    value.given = real
    if real.__defaults__ is None:
        session.guards.add(c.ConstantIs, sources.attr(source, "__defaults__"), None)
    else:
        base = sources.attr(source, "__defaults__")
        session.guards.add(c.LengthIs, base, len(real.__defaults__))
        value.defaults = tuple(
            Lazy(item, sources.item(base, index))  # type: ignore[misc]
            for index, item in enumerate(real.__defaults__)
        )
    base = sources.attr(source, "__kwdefaults__")
    if real.__kwdefaults__ is None:
        session.guards.add(c.ConstantIs, base, None)
    else:
        value.kwdefaults = wrap(session, real.__kwdefaults__, base)  # type: ignore[assignment]
    base = sources.attr(source, "__closure__")
    value.closure = tuple(
        _cell(session, cell, sources.item(base, index))  # type: ignore[misc]
        for index, cell in enumerate(real.__closure__ or ())
    )
    return remember(session, real, value)


def _generator(session: Session, real: torch.Generator, source: s.Source) -> Value:
    """A generator of random numbers. One that is passed, another in each call maybe, is known by
    its device."""
    if not _is_passed(source):
        return _identity(session, real, source)
    session.guards.add(c.ConstantIs, session.sources.attr(source, "device"), real.device)
    return _object(session, real, source)


def _builtin_method(session: Session, real: Any, source: s.Source) -> Value:
    """`tensor.add`, `items.append`, `MyFunction.apply` and their like: a method of a C type bound
    to an object or a class."""
    receiver = real.__self__
    descriptor: Any = None
    if isinstance(receiver, type):
        descriptor = inspect.getattr_static(receiver, real.__name__, None)
    elif _is_passed(source) and not isinstance(receiver, types.ModuleType):
        # (Likely bound anew by each call: its identity says nothing.)
        descriptor = inspect.getattr_static(type(receiver), real.__name__, None)
    if not isinstance(descriptor, (types.MethodDescriptorType, types.ClassMethodDescriptorType)):
        return _identity(session, real, source)
    sources = session.sources
    guard_type(session, real, source)
    session.guards.add(c.ConstantIs, sources.attr(source, "__name__"), real.__name__)
    bound = wrap(session, receiver, sources.attr(source, "__self__"))
    value = functions.NativeMethod(descriptor, bound, real.__name__)
    value.source = source
    return value


def _array(session: Session, real: Any, source: s.Source) -> Value:
    """A NumPy array: in the graph it is the tensor over its memory. One that torch has no tensor
    for is an object: what is done with it breaks the graph, where it is done."""
    seen = known(session, real, source)
    if seen is not None:
        return seen
    guard_type(session, real, source)
    tensor = _tensor_over(real)
    if tensor is None:
        for path in ("dtype.str", "strides", "flags.writeable"):
            place = session.sources.attrs(source, path)
            session.guards.add(c.ConstantIs, place, attrgetter(path)(real))
        return _object(session, real, source)
    for path, expected in tensors.array_parts(real):
        session.guards.add(c.ConstantIs, session.sources.attrs(source, path), expected)
    value = tensors.ArrayValue(
        session.inputs.array(tensor, tensors.ArraySource(source)), type(real), source
    )
    return remember(session, real, value)


def _tensor_over(real: Any) -> torch.Tensor | None:
    """The tensor over the memory of an array, for a graph to read and to write."""
    if not real.flags.writeable:
        return None
    try:
        tensor = torch.from_numpy(real)
    except (TypeError, ValueError):  # an odd dtype, negative strides
        return None
    return None if tensor.dtype in tensors.FEW_KERNELS else tensor


def _method(session: Session, real: Any, source: s.Source) -> Value:
    guard_type(session, real, source)
    return functions.BoundMethod(
        wrap(session, real.__func__, session.sources.attr(source, "__func__")),
        wrap(session, real.__self__, session.sources.attr(source, "__self__")),
        source,
    )


def _cell(session: Session, real: Any, source: s.Source) -> Value:
    known = session.objects.known.get(id(real))
    if isinstance(known, functions.CellValue):
        # Guards cannot speak of the frame's own cells, only of their contents.
        if isinstance(known.source, s.ClosureCellSource) and isinstance(known.content, Lazy):
            session.guards.same(known.content.source, session.sources.cell(source))
        return known
    return remember(session, real, cell_value(session, real, source))


def cell_value(
    session: Session, real: Any, source: s.Source, content_source: s.Source | None = None
) -> functions.CellValue:
    """The value of a pre-existing cell."""
    try:
        content = real.cell_contents
    except ValueError:
        return functions.CellValue(None, source, real)
    return functions.CellValue(
        Lazy(content, content_source or session.sources.cell(source)), source, real
    )


def _object(session: Session, real: Any, source: s.Source) -> Value:
    known = session.objects.known.get(id(real))
    if known is not None and known.source is not None:
        if (
            isinstance(known, ObjectValue)
            and known.pinned
            and not session.inputs.is_replaced(source)
        ):
            session.guards.pin(source, real)
        else:
            session.guards.same(known.source, source)
        return known
    cls = type(real)
    if isinstance(real, threading.local):
        return _thread_local(session, real, source)
    if _has_another_dict(real):
        raise GraphBreakSignal(
            f"an object of the class {cls.__qualname__}, which looks its attributes up in C",
            "read what is needed of it before the compiled function runs",
        )
    value = ObjectValue(cls, real, source)
    if type(source) is s.ObjectSource:
        value.pinned = True
    elif isinstance(real, torch.nn.Module) and not session.inputs.is_replaced(source):
        session.guards.pin(source, real)
        session.guards.add(c.TypeIs, source, cls)
        value.pinned = True
    else:
        session.guards.add(c.TypeIs, source, cls)
    try:
        attributes = value.fields.origin = object.__getattribute__(real, "__dict__")
    except AttributeError:
        value.fields.origin = None
    else:
        seen = session.objects.known.get(id(attributes))
        shared = session.objects.instance_dicts.get(id(attributes))
        place = session.sources.attr
        if isinstance(seen, DictValue) and seen.source is not None:  # by another way
            session.guards.same(seen.source, place(source, "__dict__"))
            value.fields = seen
        elif shared is not None:  # by another object, of which it is the dictionary, too
            assert shared.holder is not None and shared.holder.source is not None
            session.guards.same(place(shared.holder.source, "__dict__"), place(source, "__dict__"))
            value.fields = shared
        else:
            session.objects.bind_instance_dict(attributes, value.fields)
    if issubclass(cls, _CONTAINERS):
        base = next(base for base in _CONTAINERS if issubclass(cls, base))
        value.native = native_part(wrap, session, real, source, base)
    return remember(session, real, value)


def _weak_proxy(session: Session, real: Any, source: s.Source) -> Value:
    """A `weakref.proxy`, of which nothing is asked here: its target would answer, or be gone."""
    known = session.objects.known.get(id(real))
    if known is not None and known.source is not None:
        session.guards.same(known.source, source)
        return known
    value = ObjectValue(type(real), real, source)
    value.fields.origin = None
    session.guards.add(c.TypeIs, source, type(real))
    return remember(session, real, value)


def _thread_local(session: Session, real: threading.local, source: s.Source) -> Value:
    """Its attributes are in a dictionary of this thread, which guards find as Python does: where
    another thread asks first, they run `__init__`, as the compiled code would that reads it."""
    guard_type(session, real, source)
    value = ObjectValue(type(real), real, source)
    fields = wrap(session, real.__dict__, session.sources.attr(source, "__dict__"))
    assert isinstance(fields, DictValue)
    value.fields = fields
    return remember(session, real, value)


def _has_another_dict(real: Any) -> bool:
    """True if C code of its class gives it attributes elsewhere than in the dictionary that Python
    objects have: `threading.local`, which has one for each thread."""
    looked_up_by: Any = type(real).__getattribute__
    if looked_up_by is object.__getattribute__:
        return False
    if not isinstance(looked_up_by, types.WrapperDescriptorType):
        return False
    try:
        own = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return False
    return own is not looked_up_by(real, "__dict__")


_WRAPPERS: dict[type, Wrapper] = {
    **dict.fromkeys(EQUALITY_TYPES, _equality),
    **dict.fromkeys(IDENTITY_TYPES, _identity),
    int: lambda session, real, source: session.inputs.number(real, source),
    float: lambda session, real, source: session.inputs.number(real, source),
    tuple: partial(tuple_value, wrap),
    torch.Size: partial(tuple_value, wrap),
    list: list_value,
    collections.deque: list_value,
    dict: partial(dict_value, wrap, _object),
    collections.OrderedDict: partial(dict_value, wrap, _object),
    collections.defaultdict: partial(dict_value, wrap, _object),
    set: partial(set_value, _object),
    frozenset: partial(set_value, _object),
    slice: partial(slice_value, wrap),
    torch.Generator: _generator,
    types.MethodType: _method,
    types.FunctionType: _function,
    types.BuiltinMethodType: _builtin_method,
    type(re.compile("").match): _builtin_method,  # a C method that is told the class it is of
    types.CellType: _cell,
    types.MappingProxyType: mapping_proxy_value,
    weakref.ProxyType: _weak_proxy,
    weakref.CallableProxyType: _weak_proxy,
    **dict.fromkeys(iterators.READABLE, iterator_value),
    **dict.fromkeys(iterators.VIEWS, partial(view_value, wrap)),
    StandIn: lambda session, real, source: real.value,
}
