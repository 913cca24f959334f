"""Python's `random`: numbers that the replacement code draws before the graph runs.

At capture no generator of the program's moves: a call is tried on a generator of our own, which
tells the types of what it gives. The call itself is made by the replacement code, in the order of
the program; the numbers are inputs of the graph of which nothing but a range is known. A call that
might fail, or whose result is no number, breaks the graph: Python makes it, and it alone.
"""

from __future__ import annotations

import random
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.expr import Expr
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.source import ObjectSource, Source

from dovetail_capture import rebuild
from dovetail_capture import recipe as r
from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.computed_sources import DrawSource, GeneratorState
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber

# Whether these raise depends on their arguments only, so that a trial tells.
_TRIED = (
    "seed", "random", "uniform", "triangular", "gauss", "normalvariate", "betavariate",
    "gammavariate", "expovariate", "vonmisesvariate", "randint", "randrange", "getrandbits",
    "choice", "choices", "sample",
)  # fmt: skip
_NAMES = (*_TRIED, "getstate", "setstate", "shuffle")
_TAKE_ANY_NUMBERS = ("seed", "uniform", "gauss", "normalvariate")
_PLAIN = (int, float, str, bytes, type(None), range)
_INT64 = 2**63 - 1
_MOST = 2**32 - 1  # a graph computes with 64 bits, Python with as many as it takes
_MOST_NUMBERS = 64  # that one graph takes
Limits = tuple[float, float] | None


def _draw(name: str) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        generator = args[0] if args else None
        if not isinstance(generator, ObjectValue) or generator.cls is not random.Random:
            return PASS  # a subclass has methods of its own
        return _called(vm, name, generator, args[1:], kwargs)

    return handler


def _of_the_module(function: Any, name: str) -> Handler:
    """`random.random`: a C method bound to the generator that the module's functions share."""
    handler = _draw(name)

    def bound(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return handler(vm, [vm.held(function.__self__), *args], kwargs)

    return bound


def _called(
    vm: Interpreter, name: str, generator: ObjectValue, args: Args, kwargs: Kwargs
) -> Value:
    """The result of a method of a `random.Random`, which is called before the graph runs."""
    session = vm.session
    _check_place(session, generator)
    owner = _place(generator.source)
    generator.fields.read["gauss_next"] = GeneratorState(None)  # whatever it will be
    first = args[0] if args else kwargs.get("x")
    if name == "getstate" and first is None:
        return GeneratorState(session.draws.draw(r.CallFunction(r.GetAttr(owner, name))))
    if name == "setstate" and isinstance(first, GeneratorState) and len(args) == 1:
        session.draws.draw(r.CallFunction(r.GetAttr(owner, name), (_place(first.source),)))
        return NONE
    if name == "shuffle" and isinstance(first, ListValue) and len(args) + len(kwargs) == 1:
        return _shuffled(vm, owner, first)
    if name not in _TRIED:
        raise _break(f"`random.{name}` of {first.describe() if first else 'nothing'}")
    parts = [_argument(vm, name, arg) for arg in args]
    named = {key: _argument(vm, name, arg) for key, arg in kwargs.items()}
    _check_symbols(name, parts, list(named.values()))
    tried = [part.example for part in parts]
    try:
        trial = getattr(random.Random(0), name)
        example = trial(*tried, **{key: part.example for key, part in named.items()})
    except Exception as error:  # Python raises it where the program has the call
        raise _break(f"`random.{name}` raises {type(error).__name__}: {error}") from None
    call = r.CallFunction(
        r.GetAttr(owner, name),
        tuple(part.recipe for part in parts),
        tuple((key, part.recipe) for key, part in named.items()),
    )
    if name == "seed":
        session.draws.draw(call)
        return NONE
    if name in ("choice", "choices", "sample"):
        kind, limits = _kind_of(_population(tried, {k: v.example for k, v in named.items()}))
        return _results(session, call, example, kind, limits)
    limits = None if named else _limits(name, [part.limits for part in parts])
    most = _MOST if all(part.symbol is None for part in parts) else _INT64
    return _results(session, call, example, type(example), limits, most)


def _shuffled(vm: Interpreter, owner: r.Recipe, items: ListValue) -> Value:
    """`shuffle` of a list of numbers: it is given what a shuffled copy holds."""
    known = [vm.as_python(item) for item in _constants(vm, items)]
    kind, limits = _kind_of(known)
    copy = r.Build("list", tuple(map(r.Const, known)))
    call = r.CallFunction(r.Const(rebuild.shuffled), (owner, copy))
    new = _results(vm.session, call, known, kind, limits)
    assert isinstance(new, ListValue)
    items.items[:] = new.items
    items.mutated = True
    return NONE


def _results(
    session: Session,
    call: r.CallFunction,
    example: Any,
    kind: type,
    limits: Limits,
    most: int = _MOST,
) -> Value:
    """The numbers that a draw gives: one, or a list of them."""
    many = example if type(example) is list else []
    if kind not in (int, float):
        raise _break("a random choice among what are not numbers of one type")
    if len(many) + len(session.draws.calls) > _MOST_NUMBERS:
        raise _break(f"more than {_MOST_NUMBERS} random numbers for one graph")
    if kind is int and (limits is None or max(map(abs, limits)) > most):
        raise _break("a random number that may take more than 32 bits")
    source = session.draws.draw(call)
    if type(example) is not list:
        return session.draws.number(example, source, limits)
    items = [DrawSource(source.index, place) for place in range(len(many))]
    return ListValue(
        session.draws.number(number, place, limits)
        for number, place in zip(many, items, strict=True)
    )


# --- arguments ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Argument:
    """An argument of a draw: how the replacement code gets it, what a trial takes; its symbol,
    if it is another in other calls; between which numbers it is."""

    recipe: r.Recipe
    example: Any
    symbol: Any = None
    limits: Any = None


def _argument(vm: Interpreter, name: str, value: Value) -> _Argument:
    if isinstance(value, Constant) and isinstance(value.value, _PLAIN):
        real = value.value
        return _Argument(r.Const(real), real, limits=(real, real))
    if isinstance(value, (ListValue, TupleValue)):
        known = [vm.as_python(item) for item in _constants(vm, value)]
        return _Argument(r.Const(known), known)
    if isinstance(value, SymbolicNumber) and not isinstance(value.value, torch.SymBool):
        expr = value.value.node.expr
        if value.source is not None and value.python_type() is float:
            return _Argument(_place(value.source), 1.0, value.value)  # any float will do
        if isinstance(expr, Expr):
            return _whole_number(vm, value, expr)
    raise _break(f"`random.{name}` of {value.describe()}")


def _whole_number(vm: Interpreter, value: SymbolicNumber, expr: Expr) -> _Argument:
    """A size, or an int that is another in other calls, or that was drawn itself."""
    session, env = vm.session, vm.session.shapes.env
    names = sorted(expr.free_symbols())
    places = [env.sources.get(name) or session.draws.symbols.get(name) for name in names]
    if None in places:
        raise _break(f"a random number that depends on {value.describe()}")
    example = expr.evaluate(env.hints | session.draws.examples)
    found = env.facts.range_of(env.replace(expr))
    limits = max(found.lower, -_INT64), min(found.upper, _INT64)
    if value.source is not None:
        return _Argument(_place(value.source), example, value.value, limits)
    evaluate = r.Const(rebuild.evaluate)
    fetched = tuple(map(_place, places))
    call = r.CallFunction(evaluate, (r.Const(expr), r.Const(tuple(names)), *fetched))
    return _Argument(call, example, value.value, limits)


def _constants(vm: Interpreter, items: ListValue | TupleValue) -> list[Constant]:
    """The members of a list of what is known."""
    found = list(vm.iterate(items))
    if not all(isinstance(item, Constant) for item in found):
        raise _break("a random choice among what is not known")
    return found  # type: ignore[return-value]


def _check_symbols(name: str, parts: Sequence[_Argument], named: Sequence[_Argument]) -> None:
    """With arguments that are others in other calls, a draw must not fail there either."""
    if all(part.symbol is None for part in (*parts, *named)) or name in _TAKE_ANY_NUMBERS:
        return
    numbers = [part.example if part.symbol is None else part.symbol for part in parts]
    whole = all(isinstance(number, (int, torch.SymInt)) for number in numbers)
    if name in ("randint", "randrange") and whole and not named and len(numbers) in (1, 2):
        low, high = [0, *numbers][-2:]
        try:
            if (low <= high) if name == "randint" else (low < high):
                return
        except DataDependentError:
            pass
    raise _break(f"`random.{name}` of a number that is another in other calls")


def _kind_of(population: Any) -> tuple[type, Limits]:
    """The one type of the members, and between which of them all are."""
    if isinstance(population, range):
        ends = [population[0], population[-1]] if population else [0]
        return int, (min(ends), max(ends))
    members = population if isinstance(population, list) else []
    kinds = {type(member) for member in members}
    if len(kinds) != 1 or not kinds <= {int, float}:
        return object, None
    ordered = all(member == member for member in members)
    return kinds.pop(), (min(members), max(members)) if ordered else None


def _population(given: Sequence[Any], named: dict[str, Any]) -> Any:
    """What is chosen from: the first parameter of `choice`, `choices` and `sample`."""
    return given[0] if given else named.get("population", named.get("seq"))


def _limits(name: str, parts: Sequence[Any]) -> Limits:
    """Between which numbers all draws are, for arguments within these limits."""
    if not all(isinstance(end, (int, float)) for part in parts for end in part or (None,)):
        return None
    if name in ("random", "betavariate"):
        return 0.0, 1.0
    if name == "getrandbits":
        return 0, 2 ** parts[0][1] - 1
    if name == "randint":
        return parts[0][0], parts[1][1]
    if name == "randrange":
        ends = parts[:2] if len(parts) > 1 else [(0, 0), *parts]
        beyond = 1 if len(parts) < 3 else 0  # upwards, the end is not among them
        return min(low for low, _ in ends), max(high for _, high in ends) - beyond
    return None


def _check_place(session: Session, generator: ObjectValue) -> None:
    """A draw is made before the graph runs: it must be one of the frame itself."""
    if isinstance(session.recorder, InnerRecorder):
        raise _break("a random number within a transformed function")
    if session.recorder.checkpoint is not None:
        raise _break("a random number in a checkpointed region, which is computed twice")
    if session.modes.locks or session.modes.open_locks:
        raise _break("a random number that is drawn under a lock")
    if generator.source is None or generator.fields.mutated:
        raise _break("a generator of random numbers that is made or changed here")
    if session.shapes.plain_floats:
        raise _break("a random number, in a graph whose backend takes no symbolic numbers")


def _place(source: Source | None) -> r.Recipe:
    assert source is not None
    return r.Const(source.obj) if isinstance(source, ObjectSource) else r.Fetch(source)


def _break(reason: str) -> GraphBreakSignal:
    return GraphBreakSignal(reason, "draw it outside of the compiled function")


_OF_CLASS = {name: getattr(random.Random, name) for name in _NAMES}
HANDLERS: dict[Any, Handler] = {
    **{method: _draw(name) for name, method in _OF_CLASS.items()},
    **{
        function: _of_the_module(function, name)
        for name in _NAMES
        if isinstance(function := getattr(random, name), types.BuiltinMethodType)
    },
}
