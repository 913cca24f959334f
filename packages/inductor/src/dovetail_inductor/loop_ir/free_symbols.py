"""The size symbols whose values a node of a `LoopGraph` reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail_inductor.loop_ir.expr import Apply, Constant, IndexValue, Load, walk
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Mod, Var
from dovetail_inductor.loop_ir.loops import ExternArg, ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.sizes import Dim, FloatSize


def free_symbols(node: LoopNest | ExternCall) -> set[str]:
    """The symbols in a nest's loops, body and addresses, or in the arguments of a call."""
    numbers = _of_nest(node) if isinstance(node, LoopNest) else _of_call(node)
    return {
        name
        for number in numbers
        if isinstance(number, Dim | FloatSize)
        for name in number.expr.free_symbols()
    }


def _of_nest(nest: LoopNest) -> Iterator[object]:
    yield from (v.size for v in (*nest.vars, *nest.reduce_vars))
    yield from _of_index(nest.index)
    for expr in walk(nest.values):
        match expr:
            case Constant(value=value):
                yield value
            case IndexValue(index=index) | Load(index=index):
                yield from _of_index(index)
            case Apply(check=check) if check is not None:
                yield check.size


def _of_index(index: Index) -> Iterator[object]:
    yield index.const
    for atom, coefficient in index.terms:
        yield coefficient
        if isinstance(atom, Var):
            yield atom.size
        elif isinstance(atom, FloorDiv | Mod):
            yield atom.divisor
            yield from _of_index(atom.inner)


def _of_call(call: ExternCall) -> Iterator[object]:
    yield from _of_arguments(call.args)
    yield from _of_arguments(value for _, value in call.kwargs)


def _of_arguments(arguments: Iterable[ExternArg]) -> Iterator[object]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _of_arguments(argument)
        elif isinstance(argument, Strided):
            yield from (*argument.shape, *argument.stride, argument.offset)
        else:
            yield argument
