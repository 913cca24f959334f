"""Built-in functions that go through iterators or compute: len, zip, map, sorted, sum, max, print;
generators' methods."""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from dovetail_capture.interpreter.library.containers.list_methods import error_of, sorted_items
from dovetail_capture.interpreter.library.containers.sized_methods import method_table
from dovetail_capture.interpreter.library.standard_library import polyfills
from dovetail_capture.interpreter.library.torch_functions import own_functions
from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import (
    choices,
    comparison,
    inlining,
    iteration,
    operands,
    operators,
    resumed_iterators,
    sequences,
    subscripts,
    truth_and_length,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean, is_none
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import BoundMethod, HeldIterator, IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue


class Steps(Iterator[Value]):
    """Goes on for as long as `step` gives an item; asks it again after it has given none, as
    built-in iterators over others do."""

    def __init__(self, step: Callable[[], Value | None]) -> None:
        self.step = step

    def __next__(self) -> Value:
        item = self.step()
        if item is None:
            raise StopIteration
        return item


# --- iteration -----------------------------------------------------------------------------------


def len_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    own = own_functions.ask_about(vm, torch.Tensor.__len__, args[:1])
    return vm.constant(truth_and_length.length(vm, args[0])) if own is None else own


def iter_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1:
        if not vm.truth(vm.call(Constant(callable), [args[0]], {})):
            vm.raise_real(error_of(lambda: iter(1, None)))  # type: ignore[call-overload]
        until: Any = polyfills.iterate_until
        items = inlining.inline(vm, until, args, kwargs)
        steps = Steps(lambda: vm.next_value(items))
        return IteratorValue(steps, type(iter(int, 1)), over=list(args), remake=iter)
    return vm.get_iter(args[0])


def next_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], (IteratorValue, GeneratorValue, HeldIterator)):
        if operands.dunder(vm, args[0], "__next__") is None:
            kind = args[0].python_type().__name__
            vm.raise_error(TypeError, f"'{kind}' object is not an iterator")
    value = vm.next_value(args[0])
    if value is not None:
        return value
    if len(args) > 1:
        return args[1]
    if isinstance(args[0], GeneratorValue):
        _stop(vm, args[0])
    return vm.raise_exception(StopIteration, [])


def _stop(vm: Interpreter, generator: GeneratorValue) -> NoReturn:
    """Raise the StopIteration of a generator that has just returned."""
    result = generator.frame.result
    vm.raise_exception(StopIteration, [] if result is None or is_none(result) else [result])


def zip_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterators = [vm.get_iter(arg) for arg in args]
    strict = "strict" in kwargs and vm.truth(kwargs["strict"])

    remake = functools.partial(zip, strict=True) if strict else zip
    steps = Steps(resumed_iterators.rows(vm, iterators, strict))
    return IteratorValue(steps, zip, over=iterators, remake=remake)


def enumerate_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterator = vm.get_iter(args[0])
    start = subscripts.index_of(
        vm, args[1] if len(args) > 1 else kwargs.get("start", Constant(0)), ""
    )

    numbers = itertools.count(start)

    def step() -> Value | None:
        item = vm.next_value(iterator)
        return None if item is None else TupleValue([Constant(next(numbers)), item])

    return IteratorValue(Steps(step), enumerate, over=[iterator, Constant(start)])


def map_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterators = [vm.get_iter(arg) for arg in args[1:]]
    steps = Steps(resumed_iterators.mapped(vm, args[0], iterators))
    return IteratorValue(steps, map, over=[args[0], *iterators])


def filter_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterator = vm.get_iter(args[1])
    steps = Steps(resumed_iterators.filtered(vm, args[0], iterator))
    return IteratorValue(steps, filter, over=[args[0], iterator])


def reversed_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    method = operands.dunder(vm, args[0], "__reversed__")
    if isinstance(args[0], ObjectValue) and isinstance(method, BoundMethod):
        return vm.call(method, [], {})
    if isinstance(args[0], ObjectValue) and args[0].native is None:
        count = truth_and_length.length(vm, args[0])
        items = (vm.getitem(args[0], Constant(i)) for i in reversed(range(count)))
        return IteratorValue(items, reversed)
    if isinstance(args[0], Constant) and type(args[0].value) is range:
        return vm.get_iter(Constant(args[0].value[::-1]))
    native = vm.native(args[0])
    if isinstance(native, ListValue):
        over, size = [args[0]], len(native.items)
        backwards = _backwards(vm, native, size, native.left)
        kind = type(reversed(native.cls()))
        made = IteratorValue(backwards, kind, over=over, size=size, remake=reversed)
        made.left = native.left
        return made
    if isinstance(native, (DictValue, DictView)):
        iterator = iteration.dict_iterator(vm, native, backwards=True)
        iterator.over = [args[0]]
        return iterator
    if isinstance(native, TensorValue):
        return vm.call(vm.get_attr(native, "__reversed__"), [], {})
    cls: Any = native.python_type()
    if not (hasattr(cls, "__getitem__") and hasattr(cls, "__len__")):
        vm.raise_error(TypeError, f"'{cls.__name__}' object is not reversible")
    return IteratorValue(iter(list(vm.iterate(args[0]))[::-1]), reversed, True)


def _backwards(vm: Interpreter, items: ListValue, size: int, left: int) -> Iterator[Value]:
    index = size - 1
    while True:
        if items.cls is collections.deque:
            iteration.check_deque(vm, items, size, left)
        if not 0 <= index < len(items.items):  # the list may change while it is iterated
            return
        yield sequences.item(vm, items, index)
        index -= 1


def sorted_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ListValue(sorted_items(vm, list(vm.iterate(args[0])), kwargs))


def sum_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    total = args[1] if len(args) > 1 else kwargs.get("start", Constant(0))
    for item in vm.iterate(args[0]):
        total = operators.binary(vm, "+", total, item, False)
    return total


def any_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(any(vm.truth(item) for item in vm.iterate(args[0])))


def all_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(all(vm.truth(item) for item in vm.iterate(args[0])))


def extremum(symbol: str) -> Handler:
    """`min` and `max`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        items = list(vm.iterate(args[0])) if len(args) == 1 else list(args)
        key = kwargs.get("key", NONE)
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            return vm.fold(min if symbol == "<" else max, [ListValue([])], {})  # its ValueError
        chosen = choices.extremum(vm, symbol, items) if is_none(key) else None
        if chosen is not None:
            return chosen
        if is_none(key) and any(vm.depends_on_data(item) for item in items):
            if all(item.python_type() is int for item in items):  # no branch can tell
                either = torch.sym_min if symbol == "<" else torch.sym_max
                return functools.reduce(lambda a, b: vm.fold(either, [a, b], {}), items)
        best, best_key = None, None
        for item in items:
            item_key = item if is_none(key) else vm.call(key, [item], {})
            if best is None or vm.truth(
                comparison.compare(vm, symbol, item_key, best_key)  # type: ignore[arg-type]
            ):
                best, best_key = item, item_key
        assert best is not None
        return best

    return handler


def abs_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], TensorValue):
        return vm.record("call_method", "abs", args, {})
    if isinstance(args[0], SymbolicNumber) and args[0].python_type() is not bool:
        return vm.constant(abs(args[0].value))
    method = operands.dunder(vm, args[0], "__abs__")
    if isinstance(method, BoundMethod):
        return vm.call(method, [], {})
    return vm.fold(abs, [operands.concrete(arg) for arg in args], kwargs)


def pow_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and not kwargs:
        return operators.binary(vm, "**", args[0], args[1], False)
    return vm.fold(pow, args, kwargs)


def divmod_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if any(isinstance(arg, (ObjectValue, TensorValue)) for arg in args):
        found = operators.by_methods(vm, "divmod()", "divmod", args[0], args[1], False)
        if found is not None:
            return found
        operands.refuse_opaque("divmod", *args)
        names = " and ".join(f"'{arg.python_type().__name__}'" for arg in args)
        vm.raise_error(TypeError, f"unsupported operand type(s) for divmod(): {names}")
    if not any(isinstance(arg, SymbolicNumber) for arg in args):
        return vm.fold(divmod, args, kwargs)
    return TupleValue(
        [
            operators.binary(vm, "//", args[0], args[1], False),
            operators.binary(vm, "%", args[0], args[1], False),
        ]
    )


def print_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreakSignal("print()", "remove the print, or do it outside of compiled code")


# --- generators ----------------------------------------------------------------------------------


def _generator(value: Value) -> GeneratorValue:
    if not isinstance(value, GeneratorValue):
        raise GraphBreakSignal("a generator that was made outside of the graph")
    return value


def generator_send(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    generator = _generator(args[0])
    value = vm.resume(generator, args[1])
    return value if value is not None else _stop(vm, generator)


def generator_throw(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    generator = _generator(args[0])
    value = vm.throw_into(generator, _thrown(vm, args[1:]))
    return value if value is not None else _stop(vm, generator)


def _thrown(vm: Interpreter, args: Args) -> ObjectValue:
    """The exception that `throw(error)`, or the older `throw(cls, argument, traceback)`, means."""
    error, argument = args[0], args[1] if len(args) > 1 else NONE
    cls = vm.as_python(error) if isinstance(error, Constant) else None
    if isinstance(cls, type) and issubclass(cls, BaseException):
        if issubclass(argument.python_type(), cls):
            return vm.as_exception(argument)
        given = [] if is_none(argument) else [argument]
        if isinstance(argument, TupleValue):
            given = list(vm.iterate(argument))
        return vm.as_exception(vm.call(error, given, {}))
    if not issubclass(error.python_type(), BaseException):
        name = error.python_type().__name__
        text = f"exceptions must be classes or instances deriving from BaseException, not {name}"
        vm.raise_error(TypeError, text)
    if not is_none(argument):
        vm.raise_error(TypeError, "instance exception may not have a separate value")
    return vm.as_exception(error)


def generator_close(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    generator = _generator(args[0])
    if generator.started and not generator.finished:
        stop = ObjectValue(GeneratorExit)
        stop.base_new = GeneratorExit
        stop.slots["args"] = TupleValue([])
        try:
            value = vm.throw_into(generator, stop)
        except ProgramException as error:
            if not issubclass(error.value.python_type(), (GeneratorExit, StopIteration)):
                raise
        else:
            if value is not None:
                vm.raise_error(RuntimeError, "generator ignored GeneratorExit")
            if sys.version_info >= (3, 13):  # it gives what the generator returned
                return generator.frame.result or NONE
    generator.finished = True
    return NONE


_ITERATORS: tuple[Any, ...] = (
    iter([]), iter(()), iter({}), iter(set()), iter({}.items()), iter(range(0)), zip(),
    enumerate([]), map(int, []), filter(None, []), reversed([]),
)  # fmt: skip
HANDLERS: dict[Any, Handler] = {
    **method_table(tuple(map(type, _ITERATORS)), {"__next__": next_, "__iter__": iter_}),
    len: len_, iter: iter_, next: next_, zip: zip_, enumerate: enumerate_, map: map_,
    filter: filter_, reversed: reversed_, sorted: sorted_, sum: sum_, any: any_, all: all_,
    min: extremum("<"), max: extremum(">"), abs: abs_, pow: pow_, divmod: divmod_, print: print_,
    types.GeneratorType.send: generator_send, types.GeneratorType.throw: generator_throw,
    types.GeneratorType.close: generator_close, types.GeneratorType.__next__: next_,
    types.GeneratorType.__iter__: iter_,
}  # fmt: skip
