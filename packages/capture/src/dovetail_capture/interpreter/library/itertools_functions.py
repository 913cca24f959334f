"""The iterators of `itertools`, over values; those said in Python are in `polyfills`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.library.handlers import Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import IteratorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def chain_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return IteratorValue((item for part in args for item in vm.iterate(part)), itertools.chain)


def chain_from_iterable(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    parts = vm.get_iter(args[-1])
    items = (item for part in vm.iterate(parts) for item in vm.iterate(part))
    return IteratorValue(items, itertools.chain)


def islice_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    bounds = [vm.as_python(arg) for arg in args[1:]]
    try:
        items = itertools.islice(vm.iterate(vm.get_iter(args[0])), *bounds)
    except (TypeError, ValueError) as error:
        return vm.raise_real(error)
    return IteratorValue(items, itertools.islice)


def repeat_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return IteratorValue(itertools.repeat(args[0]), itertools.repeat, over=[args[0]])
    times = vm.as_python(args[1] if len(args) > 1 else kwargs["times"])
    return IteratorValue(itertools.repeat(args[0], times), itertools.repeat, True)


def count_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    bounds = [vm.as_python(arg) for arg in args]
    named = {name: vm.as_python(arg) for name, arg in kwargs.items()}
    if any(bound is UNKNOWN for bound in (*bounds, *named.values())):
        raise GraphBreakSignal("itertools.count() of unusual numbers")
    try:
        numbers = itertools.count(*bounds, **named)
    except TypeError as error:
        return vm.raise_real(error)
    items = (Constant(number) for number in numbers)
    return IteratorValue(items, itertools.count)


def cycle_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = itertools.cycle(vm.iterate(vm.get_iter(args[0])))
    return IteratorValue(items, itertools.cycle)


def _combinatoric(fn: Any) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        items = list(vm.iterate(args[0]))
        rest = [vm.as_python(arg) for arg in args[1:]]
        try:
            found = fn(items, *rest)
        except (TypeError, ValueError) as error:
            return vm.raise_real(error)
        rows = (TupleValue(row) for row in found)
        return IteratorValue(rows, fn, True)

    return handler


def product_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    repeat = vm.as_python(kwargs.get("repeat", Constant(1)))
    pools = [list(vm.iterate(arg)) for arg in args]
    rows = (TupleValue(row) for row in itertools.product(*pools, repeat=repeat))
    return IteratorValue(rows, itertools.product, True)


def pairwise_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = vm.iterate(vm.get_iter(args[0]))
    rows = (TupleValue(row) for row in itertools.pairwise(items))
    return IteratorValue(rows, itertools.pairwise)


def zip_longest_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    fill = kwargs.get("fillvalue", NONE)
    parts = [vm.iterate(vm.get_iter(arg)) for arg in args]
    rows = (TupleValue(row) for row in itertools.zip_longest(*parts, fillvalue=fill))
    return IteratorValue(rows, itertools.zip_longest)


def starmap_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    rows = vm.get_iter(args[1])
    items = (vm.call(args[0], list(vm.iterate(row)), {}) for row in vm.iterate(rows))
    return IteratorValue(items, itertools.starmap, over=[args[0], rows])


HANDLERS: dict[Any, Handler] = {
    itertools.chain: chain_,
    itertools.chain.__dict__["from_iterable"]: chain_from_iterable,
    itertools.islice: islice_, itertools.repeat: repeat_, itertools.count: count_,
    itertools.cycle: cycle_, itertools.combinations: _combinatoric(itertools.combinations),
    itertools.permutations: _combinatoric(itertools.permutations),
    itertools.combinations_with_replacement: _combinatoric(
        itertools.combinations_with_replacement
    ),
    itertools.product: product_, itertools.pairwise: pairwise_,
    itertools.zip_longest: zip_longest_, itertools.starmap: starmap_,
}  # fmt: skip
