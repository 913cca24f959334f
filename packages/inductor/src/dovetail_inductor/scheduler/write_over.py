"""Buffers that kernels, scatters and library calls write over others that die in them.

Operators that users register and that write to their arguments stand in a graph as their functional
forms, which write to copies. Where nobody needs what is written as it was any more, the operator
itself is called on it, and the copy is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail_prims.graphs.functional_forms import FunctionalForm, functional_form_named

from dovetail_inductor.loop_ir.loops import ExternArg, ExternCall, LoopNest, Strided
from dovetail_inductor.scheduler.kernels import FusedKernel, KernelGraph, Step, scatters
from dovetail_inductor.scheduler.lifetimes import LARGE_BYTES, Lifetimes, last_uses
from dovetail_inductor.targets import target_of

# From this size on a kernel on a GPU writes over what dies in it; less is no memory to speak of.
REUSED_BYTES = 1 << 16

# Library calls whose result is a new tensor in any case, never an argument or a view of one.
MAKES_NEW = ("aten::convolution", "aten::mkldnn_convolution", "aten::_convolution")


def _dies_under(
    kernel: Step, graph: KernelGraph, targets: set[str], dying: set[str]
) -> dict[str, str]:
    """Buffers, of the `targets`, that a kernel can write over others, of those `dying`, which it
    reads for the last time."""
    found: dict[str, str] = {}
    if not isinstance(kernel, FusedKernel):
        return found
    reduces = any(n.reduction is not None for n in kernel.nests)
    for nest in kernel.nests:
        if nest.buffer not in targets:
            continue
        target = graph.buffers[nest.buffer]
        by_rows = target_of(target.device).reads_before_it_writes
        may_follow = by_rows if reduces else is_read_only_where_written
        used = _needed_by(nest, kernel)
        for name in sorted(set().union(*(n.reads() for n in used)) & dying):
            source = graph.buffers[name]
            if name in found.values() or name in kernel.writes():
                continue
            if (source.dtype, source.extent) != (target.dtype, target.extent):
                continue
            if may_follow(kernel, nest, name):
                found[nest.buffer] = name
                break
    return found


def is_read_only_where_written(kernel: FusedKernel, nest: LoopNest, name: str) -> bool:
    """Whether a kernel reads the buffer `name` only at the points that `nest` writes, for the value
    that it writes there: then no compiler can put the write before the read."""
    if any(n.reduction is not None for n in kernel.nests):
        return False
    used = _needed_by(nest, kernel)
    readers = [n for n in kernel.nests if name in n.reads()]
    reads = [load for n in readers for load in n.loads if load.buffer == name]
    return all(n in used for n in readers) and all(r.index == nest.index for r in reads)


def _needed_by(nest: LoopNest, kernel: FusedKernel) -> list[LoopNest]:
    """`nest`, and the loops of its kernel whose values it is computed from."""
    by_buffer = {n.buffer: n for n in kernel.nests}
    needed = [nest]
    for one in needed:
        for name in sorted(one.reads() & by_buffer.keys()):
            if by_buffer[name] not in needed:
                needed.append(by_buffer[name])
    return needed


def write_over(lives: Lifetimes) -> dict[str, str]:
    """Buffers written over others -> the ones whose memory they take, which live on as long, and
    leave the slabs as they do if they leave the call.

    Otherwise both are in memory while such a kernel runs. On a CPU of large buffers only: there
    library calls take their results from another allocator than kernels do, so that memory which a
    kernel's input leaves is not there for its output.
    """
    graph, last = lives.graph, lives.last
    reused = lives.at_least(REUSED_BYTES, in_kept_slabs=False)
    large = reused | lives.at_least(LARGE_BYTES, in_kept_slabs=True)
    usable = {n for n in large if not graph.buffers[n].is_symbolic}
    for step in graph.steps:
        makes_new = isinstance(step, ExternCall) and step.op.partition(".")[0] in MAKES_NEW
        if isinstance(step, ExternCall) and not step.out_variant and not makes_new:
            usable -= set(step.outputs)
    roots: dict[str, str] = {}
    for position, step in enumerate(graph.steps):
        dying = {n for n in usable & (lives.outside | reused) if last[n] == position}
        found = _dies_under(step, graph, usable - lives.taken.keys(), dying)
        for name, source in found.items():
            root = roots[name] = roots.get(source, source)
            last[root] = last[name]
            lives.outside.add(name)
            if last[name] == len(graph.steps):  # what leaves the call has memory of its own
                lives.outside.add(root)
    return roots


def take_inputs(lives: Lifetimes) -> None:
    """Note which large buffers may get the memory of an input that the call frees, in the kernel
    that reads it last: a saved tensor makes room for a gradient. They lie outside of slabs.

    That the call owns the input, and nobody else sees its memory, shows when it runs.
    """
    graph = lives.graph
    large = lives.at_least(LARGE_BYTES)
    targets = {n for n in large if not graph.buffers[n].is_symbolic}
    last = last_uses(graph.steps, graph.outputs)
    for position, step in enumerate(graph.steps):
        dying = {n for n in lives.owned if last.get(n) == position}
        lives.taken |= _dies_under(step, graph, targets, dying)
    lives.outside |= lives.taken.keys()


def scattered_over(lives: Lifetimes) -> dict[str, str]:
    """The buffers that scatters write -> the ones whose memory they take, which live on as long,
    and leave the slabs if they do."""
    roots: dict[str, str] = {}
    for name, over in scatters(lives.graph.steps).items():
        root = roots.get(over, over)
        if root in lives.first:
            roots[name] = root
            lives.last[root] = max(lives.last[root], lives.last[name])
            if name in lives.outside:
                lives.outside.add(root)
    return roots


def functional_forms_over(lives: Lifetimes, written_over: Mapping[str, str]) -> dict[str, str]:
    """Results of forms -> the buffers whose memory they take, which live on as long. A form's
    results are all there, or none is. `written_over` are the buffers that have another's memory
    already."""
    roots: dict[str, str] = {}
    for position, step in enumerate(lives.graph.steps):
        form = _form(step)
        if form is None or not isinstance(step, ExternCall):
            continue
        places = [_argument(step, *place) for place in form.written]
        pairs = list(zip(step.outputs[form.results :], places, strict=True))
        if not all(_may_take(lives, position, step, *pair) for pair in pairs):
            continue
        for output, argument in pairs:
            assert isinstance(argument, Strided)
            root = written_over.get(argument.buffer, argument.buffer)
            root = roots.get(root, root)
            assert output is not None
            roots[output] = root
            lives.last[root] = max(lives.last[root], lives.last[output])
            if lives.last[root] == len(lives.graph.steps):
                lives.outside.add(root)
    return roots


def _form(step: Step) -> FunctionalForm | None:
    """The form that is called, if it takes and gives no lists: one buffer for each."""
    form = functional_form_named(step.op) if isinstance(step, ExternCall) else None
    if form is None:
        return None
    schema = form.op._schema
    types = [schema.arguments[place].type for place, _ in form.written]
    types += [result.type for result in schema.returns]
    return form if all("List" not in str(one) for one in types) else None


def _argument(call: ExternCall, place: int, name: str) -> ExternArg:
    return call.args[place] if place < len(call.args) else dict(call.kwargs).get(name)


def in_place(call: ExternCall, written_over: Mapping[str, str]) -> ExternCall:
    """The call of an operator itself, if its form's results have the memory of its arguments."""
    form = _form(call)
    if form is None or not any(o in written_over for o in call.outputs[form.results :]):
        return call
    return replace(call, op=_name(form), outputs=call.outputs[: form.results])


def _name(form: FunctionalForm) -> str:
    overload = form.op._overloadname
    return form.op._schema.name + ("" if overload == "default" else f".{overload}")


def _may_take(
    lives: Lifetimes, position: int, call: ExternCall, output: str | None, argument: ExternArg
) -> bool:
    """Whether a result may have the memory of the argument that it is the new value of."""
    graph = lives.graph
    if output is None or not isinstance(argument, Strided) or argument.buffer not in lives.last:
        return False
    given, made = graph.buffers[argument.buffer], graph.buffers[output]
    alike = (given.dtype, given.device, given.shape, given.stride, given.offset) == (
        made.dtype, made.device, made.shape, made.stride, made.offset
    )  # fmt: skip
    if not alike or not argument.covers(given) or lives.last[given.name] != position:
        return False
    if sum(tensor.buffer == given.name for tensor in call.tensors()) != 1:
        return False
    # (A library call's result may be a view of what it reads.)
    reads = [s for s in graph.steps if isinstance(s, ExternCall) and given.name in s.reads()]
    makes = [s for s in graph.steps if isinstance(s, ExternCall) and given.name in s.outputs]
    return all(_makes_new(s) for s in (*reads, *makes))


def _makes_new(call: ExternCall) -> bool:
    known = call.op.partition(".")[0] in (*MAKES_NEW, "aten::empty", "aten::empty_strided")
    return call.out_variant or known or functional_form_named(call.op) is not None
