"""`types.MappingProxyType`: what a proxy answers is what the mapping behind it has at the time.

The parameters of a signature, the `__dict__` of a class and the `__members__` of an enumeration
are proxies. A proxy never gets another mapping, so that its identity, guarded, is that of the
mapping; what is read of the mapping is guarded as of any dictionary.
"""

from __future__ import annotations

import gc
import types
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import comparison, operators
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.objects import ObjectValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_PROXY: Any = types.MappingProxyType


def proxy_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`MappingProxyType(mapping)`. One that Python would refuse is left to it."""
    mapping = args[0] if len(args) == 1 and not kwargs else kwargs.get("mapping")
    if mapping is None or isinstance(mapping, Constant) or len(args) + len(kwargs) != 1:
        raise GraphBreakSignal("a mappingproxy made of what is no mapping")
    value = ObjectValue(_PROXY)
    value.base_new = _PROXY
    value.slots["mapping"] = mapping
    return value


def mapping_of(vm: Interpreter, proxy: Value) -> Value:
    """The mapping behind a proxy; other values as they are."""
    if not isinstance(proxy, ObjectValue) or proxy.cls is not _PROXY:
        return proxy
    made = proxy.slots.get("mapping")
    if made is not None:
        return made
    (mapping,) = gc.get_referents(proxy.real)  # the only object that a proxy holds
    for owner, _ in vm.session.effects.attribute_writes.values():
        cls = getattr(owner, "value", None)
        if isinstance(cls, type) and mapping is gc.get_referents(vars(cls))[0]:
            raise GraphBreakSignal(f"`{cls.__name__}.__dict__` after an assignment to the class")
    return vm.held(mapping)


def _as_the_mapping(name: str) -> Handler:
    """The method of this name, of the mapping."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return vm.call(vm.get_attr(mapping_of(vm, args[0]), name), list(args[1:]), kwargs)

    return handler


def _compare(symbol: str) -> Handler:
    return lambda vm, args, kwargs: comparison.compare(vm, symbol, mapping_of(vm, args[0]), args[1])


def proxy_or(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`proxy | other`: a new dictionary of what both have."""
    return operators.binary(vm, "|", mapping_of(vm, args[0]), mapping_of(vm, args[1]), False)


def proxy_ror(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`other | proxy`."""
    return operators.binary(vm, "|", mapping_of(vm, args[1]), mapping_of(vm, args[0]), False)


HANDLERS: dict[Any, Handler] = {
    _PROXY: proxy_new, _PROXY.__or__: proxy_or, _PROXY.__ror__: proxy_ror,
    _PROXY.__eq__: _compare("=="), _PROXY.__ne__: _compare("!="),
    **{
        getattr(_PROXY, name): _as_the_mapping(name)
        for name in ("__len__", "__getitem__", "__contains__", "__iter__", "__reversed__", "keys",
                     "values", "items", "get", "copy")
    },
}  # fmt: skip
