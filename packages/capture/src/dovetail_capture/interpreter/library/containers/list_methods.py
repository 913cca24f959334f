"""Methods of list, deque and tuple."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

from dovetail_capture.interpreter.library.containers.sized_methods import (
    COMMON_METHODS,
    method_table,
)
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import comparison, operators, sequences, subscripts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.operands import has_own
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, is_none
from dovetail_capture.interpreter.values.containers import ListValue


def _list(vm: Interpreter, value: Value) -> ListValue:
    native = vm.native(value)
    if not isinstance(native, ListValue):
        raise GraphBreakSignal(f"a list method on {value.describe()}")
    return native


def list_append(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.append(args[1])
    if target.maxlen is not None and len(target.items) > target.maxlen:
        del target.items[0]
        target.left += 1
    return NONE


def list_appendleft(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.items.insert(0, args[1])
    target.mutated = True
    if target.maxlen is not None and len(target.items) > target.maxlen:
        target.items.pop()
        target.left += 1
    return NONE


def list_popleft(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return list_pop(vm, [args[0], Constant(0)], kwargs)


def list_extend(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    sequences.extend(vm, target, args[1])
    if target.maxlen is not None:
        over = max(0, len(target.items) - target.maxlen)
        target.left += over
        del target.items[:over]
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
    value = sequences.item(vm, target, index % count)
    del target.items[index]
    target.left += 1
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
    index = _position(vm, sequences.items(vm, target), args[1])
    if index < 0:
        # The message is that of the type in question; a deque's alone says what was looked for.
        named = issubclass(target.cls, collections.deque)
        return vm.fold(target.cls().remove, args[1:2] if named else [NONE], {})
    del target.items[index]
    target.left += 1
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
    target.left += 1
    target.mutated = True
    return NONE


def list_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    new = ListValue(sequences.items(vm, target), target.cls)
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
    items = list(sequences.items(vm, target))
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
    """Items in sorted order: by known keys, or as comparisons say, which symbolic ones answer
    without being fixed."""
    key_function = kwargs.get("key", NONE)
    for name in kwargs:
        if name not in ("key", "reverse"):
            vm.raise_real(error_of(functools.partial([].sort, **{name: None})))
    values = items
    if not is_none(key_function):
        values = [vm.call(key_function, [item], {}) for item in items]
    descending = "reverse" in kwargs and vm.truth(kwargs["reverse"])
    if any(has_own(vm, value, "__lt__") or comparison.holds_symbol(value) for value in values):
        return _sorted_by_comparison(vm, items, values, descending)
    keys = [vm.as_python(value) for value in values]
    if any(real is UNKNOWN for real in keys):
        return _sorted_by_comparison(vm, items, values, descending)
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


def native_add(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return operators.binary(vm, "+", vm.native(args[0]), vm.native(args[1]), False)


def list_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _list(vm, args[0])
    target.items = list(vm.iterate(args[1])) if len(args) > 1 else []
    return NONE


_SEQUENCE_METHODS: dict[str, Handler] = {
    **COMMON_METHODS, "__add__": native_add, "index": sequence_index, "count": sequence_count,
}  # fmt: skip
_LIST_METHODS: dict[str, Handler] = {
    **_SEQUENCE_METHODS,
    "append": list_append, "appendleft": list_appendleft, "popleft": list_popleft,
    "extend": list_extend, "insert": list_insert, "pop": list_pop, "remove": list_remove,
    "clear": list_clear, "copy": list_copy, "reverse": list_reverse, "sort": list_sort,
    "__init__": list_init,
}  # fmt: skip
HANDLERS = {
    **method_table((list, collections.deque), _LIST_METHODS),
    **method_table((tuple,), _SEQUENCE_METHODS),
}
