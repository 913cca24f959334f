"""What kernels and their launches are called: by operators, and by the line of the program.

A profiler knows a kernel by the name of its function, which is part of the text that is compiled
and cached: it is made of operators alone, which equal texts share. The program's line stands in the
label of a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from re import search

from dovetail_inductor.loop_ir.expr import Apply, Load, walk
from dovetail_inductor.loop_ir.loops import LoopNest

# Letters of a name made of operators: profilers' tables and debuggers' symbols stay readable.
MOST_LETTERS = 48
# Conversions and checks, which a name leaves out.
_PLUMBING = frozenset(
    {"cast", "round_f16", "round_bf16", "from_bits", "to_bits", "check_index", "where"}
)
# What is written out in several operators, by what programs call it; the longer ones first.
_WHOLE = (
    (("max", "sub", "exp", "sum", "log"), "log_softmax"),
    (("max", "sub", "exp", "sum", "div"), "softmax"),
)


def operators_of(nests: Iterable[LoopNest]) -> str:
    """The operators that loop nests compute as a name of bounded length, `softmax_add`: each once,
    in the order of computation, the first ones if they are many; `copy` or `fill` if they compute
    nothing."""
    every = list(nests)
    names = _with_whole(tuple(dict.fromkeys(name for nest in every for name in _operators(nest))))
    if not names:
        reads = any(isinstance(value, Load) for nest in every for value in walk(nest.values))
        return "copy" if reads else "fill"
    name = names[0]
    for operator in names[1:]:
        if len(name) + len(operator) >= MOST_LETTERS:
            break
        name = f"{name}_{operator}"
    return name


def _operators(nest: LoopNest) -> Iterator[str]:
    for value in walk(nest.values):
        if isinstance(value, Apply) and value.op not in _PLUMBING:
            yield value.op
    if nest.reduction is not None:
        yield nest.reduction.name
    if nest.scan is not None:
        yield nest.scan.operator
    if nest.scatter is not None:
        yield f"scatter_{nest.scatter.operation}"


def _with_whole(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, with one in the place of several that are one operator written out."""
    for parts, whole in _WHOLE:
        for at in range(len(names) - len(parts) + 1):
            if names[at : at + len(parts)] == parts:
                return (*names[:at], whole, *names[at + len(parts) :])
    return names


def label_of(nests: Iterable[LoopNest], lines: Mapping[str, str], name: str = "") -> str:
    """What a launch is called for people: its operators (or `name`), and the line of the program
    that the last of its nests is from: `softmax_mul (model.py:12)`. `lines` are tracebacks' lines,
    by the names of the graph's nodes."""
    every = list(nests)
    known = [lines[nest.origin] for nest in every if lines.get(nest.origin)]
    place = search(r'File "(?P<file>[^"]*)", line (?P<line>\d+)', known[-1]) if known else None
    name = name or operators_of(every)
    return name if place is None else f"{name} ({Path(place['file']).name}:{place['line']})"


__all__ = ["MOST_LETTERS", "label_of", "operators_of"]
