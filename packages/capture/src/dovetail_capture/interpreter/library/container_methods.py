"""Methods of list, deque, tuple, dict, OrderedDict, set and their iterators."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.bytecode import VERSION
from dovetail_capture.interpreter.protocols import (
    comparison,
    containment,
    dicts,
    iteration,
    operands,
    operators,
    subscripts,
    truth_and_length,
)
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import (
    NONE,
    TRUE,
    Constant,
    Value,
    boolean,
    is_none,
)
from dovetail_capture.interpreter.values.containers import (
    DICT_TYPES,
    DictValue,
    DictView,
    ListValue,
    SetValue,
    TupleValue,
    hash_key,
)
from dovetail_capture.interpreter.values.functions import IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

Args = list[Value]
Kwargs = dict[str, Value]
Handler = Callable[["Interpreter", Args, Kwargs], Value]
# What a handler returns to leave the call to the general rules.
PASS: Any = NotImplemented


def _list(vm: Interpreter, value: Value) -> ListValue:
    native = vm.native(value)
    if not isinstance(native, ListValue):
        raise GraphBreakSignal(f"a list method on {value.describe()}")
    return native


def _dict(vm: Interpreter, value: Value) -> DictValue:
    native = vm.native(value)
    if not isinstance(native, DictValue):
        raise GraphBreakSignal(f"a dict method on {value.describe()}")
    return native


# --- list ----------------------------------------------------------------------------------------


def list_append(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.items.append(args[1])
    target.mutated = True
    if target.maxlen is not None and len(target.items) > target.maxlen:
        del target.items[0]
    return NONE


def list_appendleft(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.items.insert(0, args[1])
    target.mutated = True
    if target.maxlen is not None and len(target.items) > target.maxlen:
        target.items.pop()
    return NONE


def list_popleft(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return list_pop(vm, [args[0], Constant(0)], kwargs)


def list_extend(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    vm.list_extend(target, args[1])
    if target.maxlen is not None:
        del target.items[: max(0, len(target.items) - target.maxlen)]
    return NONE


def list_insert(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    index = subscripts.index_of(vm, args[1], "")
    if target.maxlen is not None and len(target.items) >= target.maxlen:
        vm.raise_error(IndexError, "deque already at its maximum size")
    target.items.insert(index, args[2])
    target.mutated = True
    return NONE


def list_pop(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    index = subscripts.index_of(vm, args[1], "") if len(args) > 1 else -1
    count = len(target.items)
    if not -count <= index < count:
        if target.cls is collections.deque:
            vm.raise_error(IndexError, "pop from an empty deque")
        vm.raise_error(IndexError, "pop index out of range" if count else "pop from empty list")
    value = vm.list_item(target, index % count)
    del target.items[index]
    target.mutated = True
    return value


def _position(vm: Interpreter, items: Args, wanted: Value) -> int:
    for index, item in enumerate(items):
        if comparison.is_same(vm, item, wanted) or vm.truth(
            comparison.compare(vm, "==", item, wanted)
        ):
            return index
    return -1


def list_remove(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    index = _position(vm, vm.list_items(target), args[1])
    if index < 0:
        # The message is that of the type in question; a deque's alone says what was looked for.
        named = issubclass(target.cls, collections.deque)
        return vm.fold(target.cls().remove, args[1:2] if named else [NONE], {})
    del target.items[index]
    target.mutated = True
    return NONE


def sequence_index(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = list(vm.iterate(vm.native(args[0])))
    first = vm.as_python(args[2]) if len(args) > 2 else 0
    last = vm.as_python(args[3]) if len(args) > 3 else None
    if not hasattr(first, "__index__") or not (last is None or hasattr(last, "__index__")):
        text = "slice indices must be integers or have an __index__ method"
        vm.raise_error(TypeError, text)
    start, stop, _ = slice(first, last).indices(len(items))
    index = _position(vm, items[start:stop], args[1])
    index += start if index >= 0 else 0
    if index < 0:
        # The message is that of the type in question.
        return vm.fold(vm.native(args[0]).python_type()().index, args[1:2], {})
    return Constant(index)


def sequence_count(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    matches = [
        item
        for item in vm.iterate(args[0])
        if comparison.is_same(vm, item, args[1])
        or vm.truth(comparison.compare(vm, "==", item, args[1]))
    ]
    return Constant(len(matches))


def list_clear(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.items = []
    target.mutated = True
    return NONE


def list_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    new = ListValue(vm.list_items(target), target.cls)
    new.maxlen = target.maxlen
    return new


def list_reverse(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.items.reverse()
    target.mutated = True
    return NONE


def list_sort(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    if len(args) > 1:
        vm.raise_error(TypeError, "sort() takes no positional arguments")
    items = list(vm.list_items(target))
    target.items, target.mutated = [], True  # what the keys see meanwhile
    try:
        items = list(sorted_items(vm, items, kwargs))
    finally:
        changed, target.items = bool(target.items), items
    if changed:
        vm.raise_error(ValueError, "list modified during sort")
    return NONE


def error_of(call: Callable[[], Any]) -> TypeError:
    """What Python says of a call that cannot be."""
    try:
        call()
    except TypeError as error:
        return error
    raise AssertionError("the call is possible")


def sorted_items(vm: Interpreter, items: Args, kwargs: Kwargs) -> Args:
    """Items in sorted order by known keys."""
    key_function = kwargs.get("key", NONE)
    for name in kwargs:
        if name not in ("key", "reverse"):
            vm.raise_real(error_of(functools.partial([].sort, **{name: None})))
    keys, key_values = [], []
    for item in items:
        key = item
        if not is_none(key_function):
            key = vm.call(key_function, [item], {})
        keys.append(vm.as_python(key))
        key_values.append(key)
    descending = "reverse" in kwargs and vm.truth(kwargs["reverse"])
    if any(real is UNKNOWN for real in keys):
        return _sorted_by_comparison(vm, items, key_values, descending)
    try:
        order = sorted(range(len(items)), key=lambda index: keys[index], reverse=descending)
    except TypeError as error:
        return vm.raise_real(error)
    return [items[index] for index in order]


def _sorted_by_comparison(vm: Interpreter, items: Args, keys: Args, descending: bool) -> Args:
    """In the order that the keys' own `<` says; the host's sort asks as CPython's would."""

    class Key:
        def __init__(self, index: int) -> None:
            self.value = keys[index]

        def __lt__(self, other: Key) -> bool:
            return vm.truth(comparison.compare(vm, "<", self.value, other.value))

    return [items[i] for i in sorted(range(len(items)), key=Key, reverse=descending)]


def sequence_getitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return subscripts.getitem(vm, vm.native(args[0]), args[1])


def sequence_setitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    subscripts.setitem(vm, vm.native(args[0]), args[1], args[2])
    return NONE


def sequence_delitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    subscripts.delitem(vm, vm.native(args[0]), args[1])
    return NONE


def _contents(vm: Interpreter, value: Value) -> Value:
    """The built-in container that a value is or holds; of a dict's view that was made outside of
    the frame, only C code knows the dict."""
    native = vm.native(value)
    if native is value and isinstance(native, ObjectValue):
        raise GraphBreakSignal(f"what is in {native.describe()}, made outside of the frame")
    return native


def native_len(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return Constant(truth_and_length.length(vm, _contents(vm, args[0])))


def native_iter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterator = vm.get_iter(_contents(vm, args[0]))
    if isinstance(iterator, IteratorValue) and iterator.over:
        iterator.over = [args[0]]  # the object, not its part
    return iterator


def native_contains(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(containment.contains(vm, _contents(vm, args[0]), args[1]))


def _compared(symbol: str) -> Handler:
    """`__eq__` and `__ne__` of a container, which says nothing of what is no such container."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        left, right = vm.native(args[0]), vm.native(args[1])
        cls = left.python_type()
        kinds = next((kinds for kinds in _COMPARED if issubclass(cls, kinds)), None)
        if kinds is not None and not issubclass(right.python_type(), kinds):
            return Constant(NotImplemented)
        return comparison.compare(vm, symbol, left, right)

    return handler


_COMPARED: tuple[tuple[type, ...], ...] = (
    (list,), (tuple,), (collections.deque,), (dict,), (set, frozenset),
)  # fmt: skip
native_eq, native_ne = _compared("=="), _compared("!=")


def native_add(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return operators.binary(vm, "+", vm.native(args[0]), vm.native(args[1]), False)


def list_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.items = list(vm.iterate(args[1])) if len(args) > 1 else []
    return NONE


# --- dict ----------------------------------------------------------------------------------------


def dict_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = dicts.get(vm, _dict(vm, args[0]), hash_key(args[1]))
    if value is not None:
        return value
    return args[2] if len(args) > 2 else kwargs.get("default", NONE)


def dict_getitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    value = dicts.get(vm, dictionary, hash_key(args[1]))
    if value is None and args[0] is not dictionary:
        handler = operands.dunder(vm, args[0], "__missing__")
        if handler is not None:
            return vm.call(handler, [args[1]], {})
    return value if value is not None else vm.dict_lookup(dictionary, args[1])


def dict_setitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dicts.put(vm, _dict(vm, args[0]), args[1], args[2])
    return NONE


def dict_setdefault(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    value = dicts.get(vm, dictionary, hash_key(args[1]))
    if value is None:
        value = args[2] if len(args) > 2 else NONE
        dicts.put(vm, dictionary, args[1], value)
    return value


def dict_pop(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    key = hash_key(args[1])
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
    dicts.delete(vm, dictionary, hash_key(key))
    return TupleValue([key, value])


def dict_update(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    if len(args) > 1:
        vm.dict_update(dictionary, args[1])
    for name, value in kwargs.items():
        dicts.put(vm, dictionary, Constant(name), value)
    return NONE


def dict_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1 or kwargs:
        return dict_update(vm, args, kwargs)
    return NONE


def dict_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return dicts.copy_entries(vm, _dict(vm, args[0]))


def dict_clear(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dicts.clear(vm, _dict(vm, args[0]))
    return NONE


def dict_move_to_end(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    dictionary = _dict(vm, args[0])
    entries = dicts.materialise(vm, dictionary)
    key = hash_key(args[1])
    if key not in entries:
        vm.raise_exception(KeyError, [args[1]])
    entry = entries.pop(key)
    last = vm.truth(args[2]) if len(args) > 2 else vm.truth(kwargs.get("last", Constant(True)))
    if last:
        entries[key] = entry
    else:
        dictionary.entries = {key: entry, **entries}
    dictionary.mutated = True
    return NONE


def dict_fromkeys(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cls = vm.as_python(args[0])
    if cls not in DICT_TYPES:
        return PASS  # type: ignore[no-any-return]
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


# --- set -----------------------------------------------------------------------------------------


def _set(vm: Interpreter, value: Value) -> SetValue:
    native = vm.native(value)
    if not isinstance(native, SetValue):
        raise GraphBreakSignal(f"a set method on {value.describe()}")
    return native


def set_add(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    target.items.setdefault(hash_key(args[1]), args[1])
    target.mutated = True
    return NONE


def set_discard(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    target.items.pop(hash_key(args[1]), None)
    target.mutated = True
    return NONE


def set_remove(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    if hash_key(args[1]) not in target.items:
        vm.raise_exception(KeyError, [args[1]])
    return set_discard(vm, args, kwargs)


def set_update(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    for other in args[1:]:
        target.update(vm.iterate(other), vm.native(other))
    target.mutated = True
    return NONE


def set_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    return target.copy()


def set_pop(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    for key, item in target.in_order():
        del target.items[key]
        target.mutated = True
        return item
    return vm.raise_error(KeyError, "pop from an empty set")


def set_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    if len(args) > 1 and target.cls is set:
        target.items, target.copied = {}, None
        target.update(vm.iterate(args[1]), vm.native(args[1]))
    return NONE


def set_clear(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    target.items, target.copied, target.mutated = {}, None, True
    return NONE


def _other_set(vm: Interpreter, target: SetValue, other: Value, symbol: str) -> SetValue:
    """The set of an operand. Since Python 3.12 an iterator is asked for an intersection only until
    all members of the target have come."""
    made = SetValue([])
    missing = set(target.items)
    stops = symbol == "&" and VERSION >= (3, 12)
    for item in vm.iterate(other):
        made.items.setdefault(hash_key(item), item)
        missing.discard(hash_key(item))
        if stops and target.items and not missing:
            break
    return made


def set_operation(symbol: str) -> Handler:
    """`union`, `intersection`, `difference`, `symmetric_difference`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        result: Value = vm.native(args[0])
        for other in args[1:]:
            right = _other_set(vm, _set(vm, result), other, symbol)
            result = operators.binary(vm, symbol, result, right, False)
        return set_copy(vm, [result], {}) if len(args) == 1 else result

    return handler


def set_update_with(symbol: str) -> Handler:
    """`intersection_update`, `difference_update`, `symmetric_difference_update`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        target = _set(vm, args[0])
        for other in args[1:]:
            right = _other_set(vm, target, other, symbol)
            operators.binary(vm, symbol, target, right, True)
        return NONE

    return handler


def set_issubset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    second = _other_set(vm, target, args[1], "&")
    return boolean(target.items.keys() <= second.items.keys())


def set_issuperset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`issuperset`: an iterator is asked up to the first item that is not there."""
    items = _set(vm, args[0]).items
    return boolean(all(hash_key(item) in items for item in vm.iterate(args[1])))


def set_isdisjoint(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`isdisjoint`: an iterator is asked up to the first item that is there."""
    items = _set(vm, args[0]).items
    return boolean(not any(hash_key(item) in items for item in vm.iterate(args[1])))


def iterator_next(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = vm.next_value(args[0])
    return value if value is not None else vm.raise_exception(StopIteration, [])


def _same(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return args[0]


_SEQUENCE: dict[str, Handler] = {
    "__getitem__": sequence_getitem, "__setitem__": sequence_setitem,
    "__delitem__": sequence_delitem, "__len__": native_len, "__iter__": native_iter,
    "__contains__": native_contains, "__eq__": native_eq, "__ne__": native_ne,
    "__add__": native_add, "index": sequence_index, "count": sequence_count,
}  # fmt: skip
_LIST: dict[str, Handler] = {
    **_SEQUENCE, "append": list_append, "appendleft": list_appendleft, "popleft": list_popleft,
    "extend": list_extend, "insert": list_insert, "pop": list_pop, "remove": list_remove,
    "clear": list_clear, "copy": list_copy, "reverse": list_reverse, "sort": list_sort,
    "__init__": list_init,
}  # fmt: skip
_DICT: dict[str, Handler] = {
    "get": dict_get, "__getitem__": dict_getitem, "__setitem__": dict_setitem,
    "__delitem__": sequence_delitem, "__len__": native_len, "__iter__": native_iter,
    "__contains__": native_contains, "__eq__": native_eq, "__ne__": native_ne,
    "setdefault": dict_setdefault, "pop": dict_pop, "popitem": dict_popitem,
    "update": dict_update, "copy": dict_copy, "clear": dict_clear, "keys": dict_view("keys"),
    "values": dict_view("values"), "items": dict_view("items"), "__init__": dict_init,
    "move_to_end": dict_move_to_end, "fromkeys": dict_fromkeys, "__reversed__": dict_reversed,
    "__or__": dict_or,
}  # fmt: skip
_SET: dict[str, Handler] = {
    "__init__": set_init, "pop": set_pop,
    "add": set_add, "discard": set_discard, "remove": set_remove, "update": set_update,
    "copy": set_copy, "clear": set_clear, "union": set_operation("|"),
    "intersection": set_operation("&"), "difference": set_operation("-"),
    "symmetric_difference": set_operation("^"), "issubset": set_issubset,
    "issuperset": set_issuperset, "isdisjoint": set_isdisjoint,
    "intersection_update": set_update_with("&"), "difference_update": set_update_with("-"),
    "symmetric_difference_update": set_update_with("^"),
    "__len__": native_len, "__iter__": native_iter, "__contains__": native_contains,
    "__eq__": native_eq, "__ne__": native_ne,
}  # fmt: skip
_VIEW: dict[str, Handler] = {"__len__": native_len, "__iter__": native_iter,
                             "__contains__": native_contains}  # fmt: skip
_ITERATOR: dict[str, Handler] = {"__next__": iterator_next, "__iter__": _same}


def _build() -> dict[Any, Handler]:
    table: dict[Any, Handler] = {}
    probes: tuple[Any, ...] = (
        iter([]), iter(()), iter({}), iter(set()), iter({}.items()), iter(range(0)), zip(),
        enumerate([]), map(int, []), filter(None, []), reversed([]),
    )  # fmt: skip
    families: list[tuple[tuple[type, ...], dict[str, Handler]]] = [
        ((list, collections.deque), _LIST),
        ((tuple,), _SEQUENCE),
        (DICT_TYPES, _DICT),
        ((set, frozenset), _SET),
        ((type({}.keys()), type({}.values()), type({}.items())), _VIEW),
        (tuple(type(iterator) for iterator in probes), _ITERATOR),
    ]  # fmt: skip
    for classes, handlers in families:
        for cls in classes:
            for name, handler in handlers.items():
                if name in cls.__dict__ and cls.__dict__[name] is not None:
                    attr = cls.__dict__[name]
                    try:
                        table[attr] = handler
                    except TypeError:
                        continue
    return table


HANDLERS: dict[Any, Handler] = _build()
