"""`is`, where capture may have made anew what the program has as one object."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from dovetail_capture.interpreter.protocols.comparison import compare, is_same
from dovetail_capture.interpreter.protocols.constants import as_python
from dovetail_capture.interpreter.protocols.truth_and_length import truth
from dovetail_capture.interpreter.protocols.weak_targets import is_proxy
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.texts import LateText

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_MADE_ANEW = (int, float, complex, str, bytes, tuple)
_EMPTY = ("", b"", ())
_SMALLEST, _SMALL = -5, 256  # the numbers of which Python has one object each


def is_object(vm: Interpreter, left: Value, right: Value) -> bool:
    """The program's `left is right`. Whether equal numbers, strings and the like are one object
    is known of small numbers and of what comes from one place, and guarded where it can be."""
    if left is right or (left.source is not None and left.source is right.source):
        return True
    cls = left.python_type()
    if cls is not right.python_type() and LateText in (left.__class__, right.__class__):
        return False
    if cls is right.python_type() and (cls is weakref.ReferenceType or is_proxy(cls)):
        # (Of an object there is one of each.)
        if (left.source is None) is not (right.source is None):
            raise GraphBreakSignal("whether a weak reference made here is one that there was")
    if cls is not right.python_type() or cls not in _MADE_ANEW:
        return is_same(vm, left, right)
    if isinstance(left, Constant) and isinstance(right, Constant):
        made = left.source is None and right.source is None
        same = left.value is right.value
        if same and (made or left.value in _EMPTY):
            return True
        if vm.session.guards.can_relate(left.source, right.source):
            relate = vm.session.guards.same if same else vm.session.guards.distinct
            relate(left.source, right.source)  # type: ignore[arg-type]
            return same
        equal = left.value == right.value or left.value != left.value
    elif isinstance(left, TupleValue) and isinstance(right, TupleValue):
        return (not left.items and not right.items) or is_same(vm, left, right)
    elif isinstance(left, (Constant, SymbolicNumber)) and isinstance(
        right, (Constant, SymbolicNumber)
    ):
        equal = truth(vm, compare(vm, "==", left, right))
    else:
        return is_same(vm, left, right)
    if not equal:
        return False
    if cls is int:
        number = as_python(vm, left)
        if _SMALLEST <= number <= _SMALL:
            as_python(vm, right)
            return True
    raise GraphBreakSignal(f"whether {left.describe()} is the same object as an equal one")
