"""Methods of containers and of their iterators, by the method descriptor of each class."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.library.containers.dict_methods import DICT_METHODS, VIEW_METHODS
from dovetail_capture.interpreter.library.containers.list_methods import (
    LIST_METHODS,
    SEQUENCE_METHODS,
)
from dovetail_capture.interpreter.library.containers.set_methods import SET_METHODS
from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import DICT_TYPES

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def iterator_next(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = vm.next_value(args[0])
    return value if value is not None else vm.raise_exception(StopIteration, [])


def _same(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return args[0]


_ITERATOR: dict[str, Handler] = {"__next__": iterator_next, "__iter__": _same}


def _build() -> dict[Any, Handler]:
    table: dict[Any, Handler] = {}
    probes: tuple[Any, ...] = (
        iter([]), iter(()), iter({}), iter(set()), iter({}.items()), iter(range(0)), zip(),
        enumerate([]), map(int, []), filter(None, []), reversed([]),
    )  # fmt: skip
    families: list[tuple[tuple[type, ...], dict[str, Handler]]] = [
        ((list, collections.deque), LIST_METHODS),
        ((tuple,), SEQUENCE_METHODS),
        (DICT_TYPES, DICT_METHODS),
        ((set, frozenset), SET_METHODS),
        ((type({}.keys()), type({}.values()), type({}.items())), VIEW_METHODS),
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
