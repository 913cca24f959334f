"""What kernels are called: their operators, and the line of the program that they are from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from re import search

from dovetail_inductor.loop_ir.expr import Apply, walk
from dovetail_inductor.loop_ir.loops import LoopNest

# What is next to all kernels' bodies, and tells nothing of them.
_UNTOLD = frozenset({"cast", "round_f16", "round_bf16", "from_bits", "to_bits", "check_index"})
_SOFTMAX = ("max", "sub", "exp", "sum", "div")
_MOST_OPERATORS = 4


def operators_of(nests: Iterable[LoopNest]) -> str:
    """The operators of some loop nests as a name, in the order of computing, each once:
    `mul_sin_sum`; a softmax as such, `copy` where nothing is computed. Nests that are alike have
    one name, whatever operators of ATen they come from."""
    names = list(dict.fromkeys(name for nest in nests for name in _operators(nest)))
    if all(name in names for name in _SOFTMAX) and _in_order(names):
        first = names.index("max")
        names = [name for name in names if name not in _SOFTMAX]
        names.insert(first, "softmax")
    if len(names) > _MOST_OPERATORS:
        rest = len(names) - _MOST_OPERATORS
        names = [*names[:_MOST_OPERATORS], f"and_{rest}_more"]
    return "_".join(names) or "copy"


def _operators(nest: LoopNest) -> Iterator[str]:
    for value in walk(nest.values):
        if isinstance(value, Apply) and value.op not in _UNTOLD:
            yield value.op
    if nest.reduction is not None:
        yield nest.reduction.name
    if nest.scan is not None:
        yield "scan"
    if nest.scatter is not None:
        yield "scatter"


def _in_order(names: list[str]) -> bool:
    places = [names.index(name) for name in _SOFTMAX]
    return places == sorted(places)


def label_of(nests: Iterable[LoopNest], lines: Mapping[str, str], name: str = "") -> str:
    """What a launch is called for people: its operators (or `name`), and the line of the program
    that the last of its nests is from: `softmax_mul (model.py:12)`. `lines` are tracebacks' lines,
    by the names of the graph's nodes."""
    every = list(nests)
    known = [lines[nest.origin] for nest in every if lines.get(nest.origin)]
    place = search(r'File "(?P<file>[^"]*)", line (?P<line>\d+)', known[-1]) if known else None
    name = name or operators_of(every)
    return name if place is None else f"{name} ({Path(place['file']).name}:{place['line']})"
