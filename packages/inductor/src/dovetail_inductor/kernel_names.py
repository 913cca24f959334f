"""What kernels and their launches are called: by operators, and by the line of the program.

A profiler knows a kernel by the name of its function, which is part of the text that is compiled
and cached: it is made of operators alone, which equal texts share. The program's line stands in the
label of a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from re import search

import torch
from dovetail_runtime import plan as p
from dovetail_runtime.sizes import size_text

from dovetail_inductor.loop_ir.expr import Apply, Load, walk
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.loop_ir.ops import ROUNDING

# Letters of a name made of operators: profilers' tables and debuggers' symbols stay readable.
MOST_LETTERS = 48
# Conversions and checks, which a name leaves out.
_PLUMBING = frozenset({"cast", *ROUNDING.values(), "from_bits", "to_bits", "check_index", "where"})
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
    if nest.reduction is not None and nest.reduction.of_products:
        yield "sum_of_products"
        return
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
    """What a launch is called for people: its operators (or `name`), and the lines of the program
    that its nests are from: `softmax_mul (model.py:12, model.py:15)`. `lines` are tracebacks'
    lines, by the names of the graph's nodes."""
    every = list(nests)
    found = (search(r'File "([^"]*)", line (\d+)', lines.get(nest.origin) or "") for nest in every)
    places = dict.fromkeys(f"{Path(one[1]).name}:{one[2]}" for one in found if one is not None)
    name = name or operators_of(every)
    return f"{name} ({', '.join(places)})" if places else name


def head_of(kernel: p.Kernel, plan: p.Plan) -> str:
    """What a kernel is for, as a comment to stand before its text where people read it: for each
    launch its operators, the line of the program, and its tensors with their shapes.

    It is no part of what is compiled, so that equal kernels of other lines and sizes are one.
    """
    known = [one for one in (*plan.inputs, *plan.steps) if isinstance(one, _WITH_LAYOUT)]
    shapes = {one.name: (one.spec.dtype, one.spec.shape) for one in known if one.spec is not None}
    shapes |= {one.name: (one.value.dtype, tuple(one.value.shape)) for one in plan.constants}
    lines: dict[str, None] = {}
    for step in plan.steps:
        if isinstance(step, p.LaunchCpp | p.LaunchTriton) and step.kernel == kernel.symbol:
            names = step.tensors if isinstance(step, p.LaunchCpp) else step.args
            tensors = [_with_shape(name, shapes) for name in names if isinstance(name, str)]
            lines[f"{step.label}: {', '.join(tensors)}"] = None
    mark = "//" if isinstance(kernel, p.CppKernel) else "#"
    return "".join(f"{mark} {line}\n" for line in lines)


_WITH_LAYOUT = (p.PlanInput, p.Allocate, p.View)


def _with_shape(name: str, shapes: Mapping[str, tuple[torch.dtype, tuple[p.Size, ...]]]) -> str:
    """`buf0 float32[64, s0]`; the name alone of what a library call has laid out."""
    if name not in shapes:
        return name
    dtype, sizes = shapes[name]
    return f"{name} {str(dtype).removeprefix('torch.')}[{', '.join(map(size_text, sizes))}]"
