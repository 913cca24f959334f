"""Lists and tuples: the items of pre-existing ones are wrapped when they are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_capture.interpreter.values.base import Lazy, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def item(vm: Interpreter, sequence: ListValue | TupleValue, index: int) -> Value:
    """The item at an index that is known to exist."""
    found = sequence.items[index]
    if found.__class__ is Lazy:
        found = sequence.items[index] = vm.wrap(found.real, found.source)
    return found  # type: ignore[no-any-return]


def items(vm: Interpreter, sequence: ListValue | TupleValue) -> list[Value]:
    """All items, looked at."""
    return [item(vm, sequence, index) for index in range(len(sequence.items))]


def extend(vm: Interpreter, target: ListValue, added: Value) -> None:
    """`target.extend(added)`."""
    if vm.native(added) is target:
        target.items.extend(list(target.items))
    else:
        for new in vm.iterate(added):
            target.items.append(new)
    target.mutated = True
