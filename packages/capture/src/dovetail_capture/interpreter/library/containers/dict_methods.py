"""Methods of dict, OrderedDict and their views, and `types.MappingProxyType`.

The parameters of a signature, the `__dict__` of a class and the `__members__` of an enumeration
are proxies: what one answers is what the mapping behind it has at the time. A proxy never gets
another mapping, so that its identity, guarded, is that of the mapping; what is read of the mapping
is guarded as of any dictionary.
"""

from __future__ import annotations

import collections
import gc
import types
from typing import Any

from dovetail_capture.interpreter.library.containers.sized_methods import (
    COMMON_METHODS,
    method_table,
)
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import (
    comparison,
    dicts,
    iteration,
    operands,
    operators,
    subscripts,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, TRUE, Constant, Value
from dovetail_capture.interpreter.values.containers import (
    DICT_TYPES,
    DictValue,
    DictView,
    TupleValue,
)
from dovetail_capture.interpreter.values.objects import ObjectValue


def _dict(vm: Interpreter, value: Value) -> DictValue:
    native = vm.native(value)
    if not isinstance(native, DictValue):
        raise GraphBreakSignal(f"a dict method on {value.describe()}")
    return native


def dict_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    value = dicts.get(vm, dictionary, dicts.key_of(vm, dictionary, args[1]))
    if value is not None:
        return value
    return args[2] if len(args) > 2 else kwargs.get("default", NONE)


def dict_getitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    value = dicts.get(vm, dictionary, dicts.key_of(vm, dictionary, args[1]))
    if value is None and args[0] is not dictionary:
        handler = operands.dunder(vm, args[0], "__missing__")
        if handler is not None:
            return vm.call(handler, [args[1]], {})
    return value if value is not None else dicts.lookup(vm, dictionary, args[1])


def dict_setitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dicts.put(vm, _dict(vm, args[0]), args[1], args[2])
    return NONE


def dict_setdefault(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    value = dicts.get(vm, dictionary, dicts.key_of(vm, dictionary, args[1]))
    if value is None:
        value = args[2] if len(args) > 2 else NONE
        dicts.put(vm, dictionary, args[1], value)
    return value


def dict_pop(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    key = dicts.key_of(vm, dictionary, args[1])
    value = dicts.get(vm, dictionary, key)
    if value is None:
        if len(args) > 2:
            return args[2]
        return vm.raise_exception(KeyError, [args[1]])
    dicts.delete(vm, dictionary, key)
    return value


def dict_popitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    pairs = dicts.items(vm, dictionary)
    if not pairs:
        vm.raise_error(KeyError, "popitem(): dictionary is empty")
    flag = args[1] if len(args) > 1 else kwargs.get("last", TRUE)
    last = vm.truth(flag)
    key, value = pairs[-1 if last else 0]
    ordered = issubclass(dictionary.cls, collections.OrderedDict)
    dicts.delete(vm, dictionary, dicts.key_of(vm, dictionary, key), "pop" if ordered else "popitem")
    return TupleValue([key, value])


def dict_update(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    if len(args) > 1:
        dicts.update(vm, dictionary, args[1])
    for name, value in kwargs.items():
        dicts.put(vm, dictionary, Constant(name), value)
    return NONE


def dict_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1 or kwargs:
        return dict_update(vm, args, kwargs)
    return NONE


def dict_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _dict(vm, args[0])
    if target is args[0] or target.cls is dict:
        return dicts.copy_entries(vm, target)
    parts = [] if target.default_factory is None else [target.default_factory]
    if parts:  # a class of its own makes its copies
        return vm.call(vm.held(args[0].python_type()), [*parts, args[0]], {})
    made = vm.call(vm.held(args[0].python_type()), [], {})
    for key in vm.iterate(args[0]):
        subscripts.setitem(vm, made, key, vm.getitem(args[0], key))
    return made


def dict_clear(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dicts.clear(vm, _dict(vm, args[0]))
    return NONE


def dict_move_to_end(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    entries = dicts.materialise(vm, dictionary)
    key = dicts.key_of(vm, dictionary, args[1])
    if key not in entries:
        vm.raise_exception(KeyError, [args[1]])
    last = vm.truth(args[2]) if len(args) > 2 else vm.truth(kwargs.get("last", Constant(True)))
    if key == next(reversed(entries) if last else iter(entries)):
        return NONE  # it is there: no iterator sees a change
    entry = entries.pop(key)
    dicts.move(dictionary, "last" if last else "first", entry[0])
    if last:
        entries[key] = entry
    else:
        dictionary.entries = {key: entry, **entries}
    dictionary.mutated = True
    return NONE


def dict_fromkeys(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cls = vm.as_python(args[0])
    if cls not in DICT_TYPES:
        return PASS
    new = DictValue(cls)
    for key in vm.iterate(args[1]):
        dicts.put(vm, new, key, args[2] if len(args) > 2 else NONE)
    return new


def dict_view(kind: str) -> Handler:
    """`keys`, `values` or `items`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return DictView(args[0], kind)

    return handler


def dict_reversed(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterator = iteration.dict_iterator(vm, _dict(vm, args[0]), backwards=True)
    iterator.over = [args[0]]  # the object, not its part
    return iterator


def dict_or(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return operators.binary(vm, "|", vm.native(args[0]), vm.native(args[1]), False)


_DICT_METHODS: dict[str, Handler] = {
    **COMMON_METHODS,
    "get": dict_get, "__getitem__": dict_getitem, "__setitem__": dict_setitem,
    "setdefault": dict_setdefault, "pop": dict_pop, "popitem": dict_popitem,
    "update": dict_update, "copy": dict_copy, "clear": dict_clear, "keys": dict_view("keys"),
    "values": dict_view("values"), "items": dict_view("items"), "__init__": dict_init,
    "move_to_end": dict_move_to_end, "fromkeys": dict_fromkeys, "__reversed__": dict_reversed,
    "__or__": dict_or,
}  # fmt: skip
_VIEW_METHODS = {name: COMMON_METHODS[name] for name in ("__len__", "__iter__", "__contains__")}


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


def mapping_of(vm: Interpreter, value: Value) -> Value:
    """The mapping behind a proxy; other values as they are."""
    if not isinstance(value, ObjectValue) or value.cls is not _PROXY:
        return value
    made = value.slots.get("mapping")
    if made is not None:
        return made
    (mapping,) = gc.get_referents(value.real)  # the only object that a value holds
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


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
HANDLERS: dict[Any, Handler] = {
    **method_table(DICT_TYPES, _DICT_METHODS), **method_table(_VIEWS, _VIEW_METHODS),
    _PROXY: proxy_new, _PROXY.__or__: proxy_or, _PROXY.__ror__: proxy_ror,
    _PROXY.__eq__: _compare("=="), _PROXY.__ne__: _compare("!="),
    **{
        getattr(_PROXY, name): _as_the_mapping(name)
        for name in ("__len__", "__getitem__", "__contains__", "__iter__", "__reversed__", "keys",
                     "values", "items", "get", "copy")
    },
}  # fmt: skip
