"""The pass `write_in_place`: new values of inputs are computed where the inputs lie.

A functional graph returns what its caller then copies over an input: a parameter after a step of an
optimizer, a cache of keys and values with another row. Where nobody needs the old value any more,
that copy is saved, and so is the one that a scatter into a few rows began with.

`x[:, 1:5] = s` is, as a value, `where(1 <= j < 5, s, x)` for all of x. Where that is computed in
the memory of x itself, the loop goes over the points at which the condition holds
(`over_written_part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, Load, walk
from dovetail_inductor.loop_ir.index import Var, constant, variable
from dovetail_inductor.loop_ir.loops import ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.sizes import any_symbolic, is_symbolic
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    FusedKernel,
    KernelGraph,
    Step,
    kernels_of,
    scatters,
)
from dovetail_inductor.scheduler.write_over import MAKES_NEW, is_read_only_where_written

# Integers divided by zero are an error.
DIVISIONS = ("truncdiv", "floordiv", "remainder", "fmod")


def write_in_place(
    graph: KernelGraph, overwritten: Mapping[str, int], options: InductorOptions
) -> tuple[KernelGraph, dict[str, str]]:
    """Inputs that an output (by position) is about to be copied over -> the graph without copies of
    an input onto itself, and the buffers that take an input's memory, with the input.

    Needs steps in the order in which they will run.
    """
    unchanged = graph
    graph = _copied_late(graph, overwritten)
    over, accesses = scatters(graph.steps), _Accesses(graph.steps)
    raising = any(isinstance(step, ExternCall) or _checks_of(step) for step in graph.steps)
    leaving = [o.buffer for o in graph.outputs if isinstance(o, Strided)]
    places: dict[str, str] = {}
    for source, position in overwritten.items():
        output = graph.outputs[position]
        if not isinstance(output, Strided) or not output.covers(graph.buffers[output.buffer]):
            continue
        chain = [output.buffer]  # of scatters, each over the one before
        while chain[-1] in over:
            chain.append(over[chain[-1]])
        seen = sum(leaving.count(name) for name in chain)
        free = not places.keys() & set(chain) and source not in (*leaving, *places.values())
        target = options.target_of(graph.buffers[source].device)
        final = target.scheduling.failure_is_final
        if not (final or not raising or _fails_as_eager(graph, chain)):
            continue  # what a call that fails has begun would be seen
        if seen == 1 and free and _may_take(graph, accesses, chain[-1], source):
            places |= dict.fromkeys(chain, source)
    if not places:
        return unchanged, places
    # What leaves has to be written by a step, be it by a copy of the input onto itself.
    inner = {name: source for name, source in places.items() if name not in leaving}
    steps = [kept for step in graph.steps if (kept := _without_copies(step, inner)) is not None]
    steps = [
        over_written_part(graph.builder, step, places[name])
        if isinstance(step, FusedKernel) and (name := step.nests[0].buffer) in places
        else step
        for step in steps
    ]
    return replace(graph, steps=tuple(steps)), places


def copies_for_scatters(steps: Sequence[Step], inputs: Iterable[str]) -> dict[str, FusedKernel]:
    """The kernels that only copy an input, for a scatter to write over, by the buffers they
    make."""
    begun, names = set(scatters(steps).values()), set(inputs)
    return {
        kernel.nests[0].buffer: kernel
        for kernel in kernels_of(steps)
        if len(kernel.nests) == 1
        and kernel.nests[0].buffer in begun
        and kernel.nests[0].copied in names
    }


def _copied_late(graph: KernelGraph, inputs: Iterable[str]) -> KernelGraph:
    """The graph where inputs are copied for scatters right before these: what reads an input for
    another value comes before."""
    copies = copies_for_scatters(graph.steps, inputs)
    waiting = {}
    steps: list[Step] = []
    for step in graph.steps:
        name = step.nests[0].buffer if isinstance(step, FusedKernel) else ""
        if step is copies.get(name):
            waiting[name] = step
            continue
        steps += [waiting.pop(n) for n in sorted(step.reads() & waiting.keys())]
        steps.append(step)
    return replace(graph, steps=tuple(steps))


class _Accesses:
    """By buffer: the positions of the steps that read it, and the one that computes it, with the
    kernel."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.readers: dict[str, list[int]] = {}
        self.writer: dict[str, tuple[int, FusedKernel]] = {}
        for position, step in enumerate(steps):
            for name in step.reads():
                self.readers.setdefault(name, []).append(position)
            for kernel in kernels_of([step]):
                for name in kernel.writes() - kernel.internal:
                    self.writer.setdefault(name, (position, kernel))


def _may_take(graph: KernelGraph, accesses: _Accesses, name: str, source: str) -> bool:
    """Whether the buffer `name` can be computed in the memory of the input `source`: the kernel
    that writes it is the last to look there, at each point before it writes there."""
    target, place = graph.buffers[name], graph.buffers[source]
    alike = (target.dtype, target.device, target.shape, target.stride, target.offset) == (
        place.dtype, place.device, place.shape, place.stride, place.offset
    )  # fmt: skip
    if not alike or target.is_symbolic or target.offset != 0:
        return False
    if name not in accesses.writer:
        return False
    written, writer = accesses.writer[name]
    for position in accesses.readers.get(source, ()):
        step = graph.steps[position]
        # (A library call's result may be a view of what it reads.)
        if position > written or (
            isinstance(step, ExternCall)
            and not (step.out_variant or step.op.partition(".")[0] in MAKES_NEW)
        ):
            return False
    step = graph.steps[written]
    beside = (
        [k for k in step.kernels if k is not writer] if isinstance(step, CombinedKernel) else []
    )
    if not all(isinstance(k, FusedKernel) and source not in k.reads() for k in beside):
        return False
    nest = next(n for n in writer.nests if n.buffer == name)
    return source not in writer.reads() or is_read_only_where_written(writer, nest, source)


_Check = int | tuple[int, int, bool]
"""A division, by its uid; or an index (its uid), the size that it is held against, and whether it
may be negative."""


def _checks_of(step: Step) -> frozenset[_Check]:
    nests = [nest for kernel in kernels_of([step]) for nest in kernel.nests]
    return _checks(value for nest in nests for value in nest.values)


def _checks(values: Iterable[Expr]) -> frozenset[_Check]:
    """Where a divisor may be zero, or a place out of bounds, in what is computed."""
    return frozenset(
        _check_of(node)
        for node in walk(values)
        if isinstance(node, Apply)
        and node.op in (*DIVISIONS, "check_index")
        and not node.dtype.is_floating_point
    )


def _check_of(node: Apply) -> _Check:
    if node.check is None:
        return node.uid
    (index,) = node.args
    if node.check.wrapped and isinstance(index, Apply) and index.op == "where":
        index = index.args[2]
    return index.uid, node.check.size, node.check.wrapped


def _with_implied(checks: frozenset[_Check]) -> frozenset[_Check]:
    """An index that is in bounds and not negative is in bounds where it may be negative, too."""
    plain = (check for check in checks if isinstance(check, tuple))
    return checks | {(index, size, True) for index, size, _ in plain}


def _fails_as_eager(graph: KernelGraph, chain: Sequence[str]) -> bool:
    """Whether a call that fails leaves an input that the buffers of a `chain` are written over, the
    last one first, as eager does.

    What fails before anything is written there leaves it as it was. A scatter that comes to a place
    out of bounds leaves what it has written by then, as it does in eager. What fails later has read
    what was written, so that in eager, too, it comes after that; or it has places that were found
    right before, so that it does not fail.
    """
    written = set(chain[:-1])  # (the last is a copy of the input onto itself)
    passed: frozenset[_Check] = frozenset()  # what was checked in earlier steps
    read: set[str] = set()  # what is computed of the new value
    for step in graph.steps:
        writes = bool(_written_by(step) & set(chain))
        if writes or step.reads() & read:
            read |= _written_by(step)
        later = bool(read) and not step.reads() & read
        if later and isinstance(step, ExternCall):
            return False
        if (writes or later) and not _checks_of(step) <= passed:
            kernels = kernels_of([step])
            if len(kernels) != 1 or not _only_places_fail(kernels[0], written):
                return False
        passed |= _with_implied(_checks_of(step))
    return True


def _written_by(step: Step) -> set[str]:
    """The buffers that a step gives values."""
    if isinstance(step, ExternCall):
        return {name for name in step.outputs if name is not None}
    return step.writes()


def _only_places_fail(kernel: FusedKernel, written: set[str]) -> bool:
    """Whether nothing but the places that a kernel scatters to may be wrong in it, of one scatter
    that writes to one of the buffers `written`, or of several to the same places."""
    scattered = [nest for nest in kernel.nests if nest.scatter is not None]
    if not any(nest.buffer in written for nest in scattered):
        return False
    if _checks(nest.body for nest in kernel.nests):
        return False
    return len({_checks(nest.values[1:]) for nest in scattered}) == 1


def _without_copies(step: Step, places: Mapping[str, str]) -> Step | None:
    """A step without kernels that only copy inputs onto themselves."""
    if isinstance(step, CombinedKernel):
        kernels = tuple(
            k
            for k in step.kernels
            if not isinstance(k, FusedKernel) or _without_copies(k, places) is not None
        )
        if not kernels:
            return None
        return kernels[0] if len(kernels) == 1 else replace(step, kernels=kernels)
    if isinstance(step, FusedKernel) and all(
        n.copied is not None and n.copied == places.get(n.buffer) for n in step.nests
    ):
        return None
    return step


Box = dict[Var, tuple[int, int]]  # the values of loop variables: from, to before


def over_written_part(builder: Builder, kernel: FusedKernel, source: str) -> FusedKernel:
    """The kernel, whose one nest writes over the buffer `source`, without the points at which it
    writes what is there; as it is if that is not told by ranges of its loops."""
    if len(kernel.nests) != 1 or kernel.columns:
        return kernel
    (nest,) = kernel.nests
    if nest.reduction is not None or nest.scatter is not None or nest.scan is not None:
        return kernel
    box = {v: (0, v.size) for v in nest.vars}
    if any_symbolic(v.size for v in nest.vars):
        return kernel
    while (inner := _where_new(nest, source)) is not None:
        condition, new = inner
        if not _holds_within(condition, box):
            break  # outside of the box all the same
        nest = replace(nest, body=new)
    if all(hi - lo == v.size for v, (lo, hi) in box.items()):
        return kernel
    if any(lo >= hi for lo, hi in box.values()):
        return kernel  # nothing is written: a loop there must be
    loops = {v: Var(v.id, hi - lo) for v, (lo, hi) in box.items()}
    places = {
        v: constant(lo) if hi - lo == 1 else variable(loops[v]) + lo for v, (lo, hi) in box.items()
    }
    shorter = replace(
        nest.renamed(builder, lambda v: places[v]),
        vars=tuple(loops[v] for v in nest.vars if loops[v].size != 1),
    )
    rows = tuple(loops[v] for v in kernel.rows if v in loops and loops[v].size != 1)
    return replace(kernel, rows=rows, nests=(shorter,))


def _where_new(nest: LoopNest, source: str) -> tuple[Expr, Expr] | None:
    """Of a value that is either new or what is there: when it is new, and what it is then."""
    body = nest.body
    if not isinstance(body, Apply) or body.op != "where":
        return None
    condition, new, old = body.args
    same = isinstance(old, Load) and (old.buffer, old.index) == (source, nest.index)
    return (condition, new) if same and isinstance(old, Load) and old.mask is None else None


def _holds_within(condition: Expr, box: Box) -> bool:
    """Narrow a box to where a condition may hold; True if it consists of bounds of loop variables,
    so that it holds everywhere there."""
    if not isinstance(condition, Apply):
        return False
    if condition.op == "bitwise_and":
        return all(_holds_within(part, box) for part in condition.args)
    if condition.op not in ("lt", "le", "gt", "ge"):
        return False
    place, bound = condition.args
    if not (isinstance(place, IndexValue) and isinstance(bound, Constant)):
        return False
    terms, first = place.index.terms, place.index.const
    if len(terms) != 1 or terms[0][1] != 1 or is_symbolic(first):
        return False
    v = terms[0][0]
    if not isinstance(v, Var) or v not in box:
        return False
    low, high = box[v]
    at = int(bound.value) - first
    if condition.op in ("lt", "le"):
        high = min(high, at + (condition.op == "le"))
    else:
        low = max(low, at + (condition.op == "gt"))
    box[v] = (low, high)
    return True
