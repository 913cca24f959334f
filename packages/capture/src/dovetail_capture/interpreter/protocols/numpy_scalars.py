"""Arithmetic of NumPy's scalars that are others from call to call; and what `numpy.seterr` says of
floating-point errors, where NumPy computes at capture.

What comes of such arithmetic is a scalar of NumPy's again, by NumPy's rules. So the replacement
code computes it before the graph runs; in the graph it is a number of which nothing is known.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from dovetail_guards.source import Source
from dovetail_guards.torch_state import READERS

from dovetail_capture import recipe as r
from dovetail_capture.interpreter.graph.recorder import Recorder
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Unread, Value
from dovetail_capture.interpreter.values.computed_sources import DrawSource

if TYPE_CHECKING:
    from dovetail_capture.interpreter.session.session import Session


def call(
    session: Session, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call a pure function. What NumPy is to do at floating-point errors is guarded if there was
    one."""
    named = kwargs or {}
    numpy = sys.modules.get("numpy")
    # (NumPy's own functions are of classes of its own.)
    kinds = map(type, (function, *args, *named.values()))
    if numpy is None or not any(kind.__module__ == "numpy" for kind in kinds):
        return function(*args, **named)
    try:
        with numpy.errstate(all="raise"):
            return function(*args, **named)
    except FloatingPointError:
        note(session)
        return function(*args, **named)


def note(session: Session) -> bool:
    """Guard whether NumPy raises or calls something at floating-point errors. Does it?"""
    reader: Callable[[], tuple[str, ...]] = READERS["numpy_errors"]
    errors = reader()
    session.guards.state("numpy_errors", errors)
    return bool(errors)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_NUMBERS = (int, float, bool)
_MOST_BYTES = {"i": 8, "u": 4, "f": 8}  # of what Python's numbers of a graph can be, by kind


def arithmetic(session: Session, symbol: str, left: Value, right: Value) -> Constant | None:
    """`left <symbol> right` for scalars of NumPy's and numbers; None where it is left to the values
    that they have in this call."""
    function = _OPERATIONS.get(symbol)
    if function is None or not (_changes(session, left) or _changes(session, right)):
        return None
    if session.shapes.plain_floats or not _is_outermost(session) or note(session):
        return None
    operands = [_operand(session, side) for side in (left, right)]
    if any(operand is None for operand in operands):
        return None
    given, recipes = zip(*operands, strict=True)
    example = call(session, function, given)
    if not _is_scalar(example):
        return None
    session.draws.computes_scalars = True
    source = session.draws.draw(r.CallFunction(r.Const(function), recipes))
    known: list[Value] = []

    def number() -> Value:
        if not known:
            if not _is_outermost(session):
                _refuse(example, source)
            item = session.draws.draw(r.CallFunction(r.GetAttr(r.Fetch(source), "item")))
            known.append(session.draws.number(example.item(), item, None))
        return known[0]

    return Constant.guarded_when_read(source, Unread(example, _refuse, number))


def _changes(session: Session, value: Value) -> bool:
    """Is it a scalar that was another in another call, or is computed of one?"""
    if not isinstance(value, Constant) or value.unread is None or not _is_scalar(value.example):
        return False
    if value.source is None or isinstance(value.source, DrawSource):
        return value.source is not None
    return session.shapes.has_changed(session.sources.iterator_part(value.source, "number"))


def _operand(session: Session, value: Value) -> tuple[Any, r.Recipe] | None:
    """What it is in this call, and how the replacement code gets it."""
    if isinstance(value, Constant):
        source = value.source
        if source is not None and _changes(session, value):
            return value.example, r.Fetch(source)
        if isinstance(value.value, _NUMBERS) or _is_scalar(value.value):
            return value.value, r.Const(value.value)
        return None
    for graph_input, known in session.inputs.entries:
        if known is value and session.inputs.numbers.get(graph_input.source) is value:
            return graph_input.example, r.Fetch(graph_input.source)
    return None


def _is_scalar(value: Any) -> bool:
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return False
    dtype = getattr(value, "dtype", None)
    return dtype is not None and dtype.itemsize <= _MOST_BYTES.get(dtype.kind, 0)


def _is_outermost(session: Session) -> bool:
    """Is the graph that is recorded that of the frame?"""
    return type(session.recorder) is Recorder and session.recorder.checkpoint is None


def _refuse(real: Any, source: Source) -> NoReturn:
    raise GraphBreakSignal(
        f"the value of a {type(real).__name__} that is computed of scalars of NumPy's",
        "compute it outside of the compiled function, or pass Python's numbers",
    )
