"""`verify`: the grammar of `LoopGraph` and `KernelGraph`, executable.

Each variable that a nest names is one of its loops; each buffer is written before it is read, and a
kernel reads what it wrote at the point where it wrote it; each index lies within its buffer. An
index that its ranges do not settle is computed at the points of the loops, with the masks that are
made of indices: at all of them if they are few, else at the first and last of each loop. What data
decides is not looked at, so whatever is reported is wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, IndexValue, Load, walk
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Indirect, Mod, Var
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopGraph, LoopNest, Node, Strided
from dovetail_inductor.loop_ir.sizes import hint_of, only_data_tells
from dovetail_inductor.scheduler.kernels import CombinedKernel, FusedKernel, KernelGraph, Step

MOST_POINTS = 1 << 14


class LoopError(AssertionError):
    """A graph of loops that says something impossible; the message holds the nest's text."""


def verify(graph: LoopGraph | KernelGraph, known: dict[int, LoopNest] | None = None) -> None:
    """Raise `LoopError` at the first nest or call that is wrong.

    Nests in `known`, by identity, were verified before; those of this graph are added.
    """
    done = {} if known is None else known
    written = {name for name in graph.inputs if name is not None} | graph.constants.keys()
    written |= {name for name, buffer in graph.buffers.items() if 0 in buffer.shape}
    steps: Sequence[Node | Step] = graph.nodes if isinstance(graph, LoopGraph) else graph.steps
    for step in steps:
        unwritten = step.reads() - written
        if unwritten:
            _fail(step, f"reads {sorted(unwritten)} before anything writes it")
        for kernel in _kernels(step):
            _check_kernel(kernel)
        for nest in _nests(step):
            if id(nest) not in done:
                _check_nest(nest, graph.buffers)
                done[id(nest)] = nest
        if isinstance(step, ExternCall):
            written |= {name for name in step.outputs if name is not None}
        else:
            written |= {step.buffer} if isinstance(step, LoopNest) else step.writes()
    for output in graph.outputs:
        if isinstance(output, Strided) and output.buffer not in written:
            raise LoopError(f"the output {output.buffer} is never written\n{graph.as_text()}")


def _fail(where: Node | Step, what: str) -> None:
    raise LoopError(f"{what}, in\n{where.as_text()}")


def _kernels(step: Node | Step) -> Iterator[FusedKernel]:
    if isinstance(step, CombinedKernel):
        yield from chain.from_iterable(map(_kernels, step.kernels))
    elif isinstance(step, FusedKernel):
        yield step


def _nests(step: Node | Step) -> Iterable[LoopNest]:
    if isinstance(step, LoopNest):
        return [step]
    # (The sums that follow a product are no memory.)
    return [nest for kernel in _kernels(step) for nest in kernel.nests]


def _check_kernel(kernel: FusedKernel) -> None:
    """The loops of its nests are its own, and what it wrote is read at the same point."""
    loops = {*kernel.rows, *kernel.columns}
    places: dict[str, Index] = {}
    names = kernel.writes()
    for nest in kernel.nests:
        if foreign := {*nest.vars, *nest.reduce_vars} - loops:
            _fail(kernel, f"{_names(foreign)} of {nest.buffer} is no loop of the kernel")
        for load in nest.loads:
            if load.buffer not in names:
                continue
            if load.buffer not in places:
                _fail(kernel, f"{nest.buffer} reads {load.buffer} before it is computed")
            elif load.index != places[load.buffer]:
                _fail(kernel, f"{nest.buffer} reads {load.buffer} at another point: {load.index}")
        if nest.scatter is None:
            places[nest.buffer] = nest.index


def _check_nest(nest: LoopNest, buffers: Mapping[str, Buffer]) -> None:
    loops = {*nest.vars, *nest.reduce_vars}
    nodes = list(walk(nest.values))
    indices = [node.index for node in nodes if isinstance(node, IndexValue | Load)]
    for index in (*indices, nest.index):
        if foreign := index.variables() - loops:
            _fail(nest, f"{_names(foreign)} in {index} is no loop of the nest")
    if foreign := nest.index.variables() - {*nest.vars}:
        _fail(nest, f"the place {nest.index} that is written depends on {_names(foreign)}")
    if any(only_data_tells(v.size) for v in loops) or 0 in {hint_of(v.size) for v in loops}:
        return
    points = _Points([*nest.vars, *nest.reduce_vars], nodes)
    for load in nodes:
        if isinstance(load, Load):
            wrong = points.outside(load.index, buffers[load.buffer].as_real(), load.mask)
            if wrong is not None:
                _fail(nest, f"{load.buffer}[{load.index}] is read {wrong}")
    wrong = points.outside(nest.index, buffers[nest.buffer].as_real(), None)
    if wrong is not None:
        _fail(nest, f"{nest.buffer}[{nest.index}] is written {wrong}")


def _names(variables: Iterable[Var]) -> str:
    return ", ".join(sorted(f"{v} < {v.size}" for v in variables))


class _Points:
    """Values of indices at points of loops. (Symbolic sizes are what they are in the call that is
    compiled.)"""

    def __init__(self, loops: Sequence[Var], nodes: Sequence[Expr]) -> None:
        self.loops = loops
        self.nodes = nodes
        self._values: dict[int, Tensor | None] | None = None

    def outside(self, index: Index, buffer: Buffer, mask: Expr | None) -> str | None:
        """Where an index leaves its buffer; None if it is not known to."""
        extent = buffer.extent
        if only_data_tells(extent):
            return None
        low, high = index.bounds
        if not (only_data_tells(low) or only_data_tells(high)):
            if hint_of(low) >= 0 and hint_of(high) < hint_of(extent):
                return None
        at = self._index(index)
        holds = torch.tensor(True) if mask is None else self._value(mask)
        if at is None or holds is None:
            return None
        wrong = ((at < 0) | (at >= hint_of(extent))) & holds
        if not bool(wrong.any()):
            return None
        first = at.expand(wrong.shape)[wrong][0]
        return f"at {int(first)}, and it has {hint_of(extent)} elements"

    def _axis(self, v: Var) -> Tensor:
        size = hint_of(v.size)
        every = torch.arange(size)
        points = 1
        for loop in self.loops:
            points *= hint_of(loop.size)
        if points > MOST_POINTS and size > 4:
            every = torch.tensor([0, 1, size - 2, size - 1])
        position = [loop.id for loop in self.loops].index(v.id)
        return every.reshape([-1 if k == position else 1 for k in range(len(self.loops))])

    def _index(self, index: Index) -> Tensor | None:
        """An index at all points; None where memory tells it."""
        if only_data_tells(index.const):
            return None
        result = torch.tensor(hint_of(index.const))
        for atom, factor in index.terms:
            if isinstance(atom, Indirect):
                value: Tensor | None = self._value(atom.value)
            elif isinstance(atom, Var):
                value = self._axis(atom)
            else:
                value = self._quotient(atom)
            if value is None or only_data_tells(factor):
                return None
            result = result + value * hint_of(factor)
        return result

    def _quotient(self, atom: FloorDiv | Mod) -> Tensor | None:
        inner = self._index(atom.inner)
        if inner is None or only_data_tells(atom.divisor):
            return None
        divisor = hint_of(atom.divisor)
        return inner // divisor if isinstance(atom, FloorDiv) else inner % divisor

    def _value(self, expr: Expr) -> Tensor | None:
        """A value made of indices at all points; None where memory tells it."""
        if self._values is None:
            self._values = {}
            for node in self.nodes:
                self._values[node.uid] = self._of_node(node)
        return self._values.get(expr.uid)

    def _of_node(self, node: Expr) -> Tensor | None:
        if isinstance(node, Load):
            return None
        if isinstance(node, Constant):
            return torch.tensor(node.value, dtype=node.dtype)
        if isinstance(node, IndexValue):
            at = self._index(node.index)
            return None if at is None else at.to(node.dtype)
        return self._applied(node)

    def _applied(self, node: Apply) -> Tensor | None:
        assert self._values is not None
        args = [self._values[a.uid] for a in node.args]
        if node.op == "cast" and args[0] is not None:
            return args[0].to(node.dtype)
        if node.op not in _OPERATIONS or any(a is None for a in args):
            return None
        return _OPERATIONS[node.op](*args)


# Those that masks are made of.
_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "bitwise_not": operator.invert,
    "abs": torch.abs, "relu": torch.relu, "maximum": torch.maximum, "minimum": torch.minimum,
    "where": torch.where, "floordiv": torch.floor_divide, "remainder": torch.remainder,
    "check_index": lambda value: value,
}  # fmt: skip
