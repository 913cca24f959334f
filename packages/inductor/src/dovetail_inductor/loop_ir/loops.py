"""`LoopGraph`: loop nests and extern calls over buffers, in order. The output of lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from dovetail_runtime.plan import Assert, Plan, SizeExpr

from dovetail_inductor.loop_ir.attention_loops import AttentionLoops
from dovetail_inductor.loop_ir.expr import Builder, Expr, Load, loads, rename
from dovetail_inductor.loop_ir.handlers import Printer, dtype_name, interpret
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.reduction import Reduction
from dovetail_inductor.loop_ir.sizes import FloatSize, any_symbolic, hint_of

# The dtype of a complex number's parts.
PART = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


@dataclass(frozen=True)
class Buffer:
    """Memory for one tensor. `offset` is where its first element lies in its storage: 0 but for
    inputs. `eager_dtype` is that of the tensor in eager if it is kept as loops have it instead."""

    name: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    eager_dtype: torch.dtype | None = None

    @cached_property
    def extent(self) -> int:
        """Elements from the first to the last, both included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of memory (of symbolic sizes: in the call that is compiled)."""
        return hint_of(self.extent) * self.dtype.itemsize

    @property
    def is_symbolic(self) -> bool:
        """True if its size is known at run time only."""
        return any_symbolic((*self.shape, *self.stride))

    def as_real(self) -> Buffer:
        """The memory as loops see it, which know no complex numbers: as pairs of real ones."""
        part = PART.get(self.dtype)
        if part is None:
            return self
        stride = (*(2 * s for s in self.stride), 1)
        return Buffer(self.name, part, self.device, (*self.shape, 2), stride, 2 * self.offset)


@dataclass(frozen=True)
class Strided:
    """A tensor that lies in a buffer; `offset` counts in elements from the buffer's first. With a
    `dtype` they are of another than the buffer's: parts of complex numbers, or such of parts."""

    buffer: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype | None = None

    def covers(self, buffer: Buffer) -> bool:
        """True if this is the whole buffer, as it lies."""
        return (
            self.offset == 0
            and self.dtype in (None, buffer.dtype)
            and self.shape == buffer.shape
            and same_strides(self.shape, self.stride, buffer.stride)
        )


def same_strides(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """True if the strides agree wherever they matter."""
    if 0 in shape:
        return True
    return all(n == 1 or x == y for n, x, y in zip(shape, a, b, strict=True))


@dataclass(frozen=True)
class Scatter:
    """How a pointwise nest writes to places that it computes.

    What is there already, and what several points write to one place, is combined by `reduction`;
    None stores, and of several stores to one place one wins. The memory is that of the buffer
    `over`, which another node has written and nobody else reads.
    """

    reduction: Reduction | None
    over: str

    @property
    def operation(self) -> str:
        """What is done with the memory: `store`, `add`, `mul`, `max` or `min`."""
        if self.reduction is None:
            return "store"
        return self.reduction.name if self.reduction.is_extreme else self.reduction.combine


@dataclass(frozen=True)
class Scan:
    """How a pointwise nest writes running totals in place of its elements.

    At each point the element is combined with the total of those before it along `vars`, of which
    the last is the innermost: what they count is gone through in order. Totals are kept in `dtype`
    and written in that of the body. Of equal extremes the last one counts, and any NaN.
    """

    reduction: Reduction
    vars: tuple[Var, ...]
    dtype: torch.dtype

    @property
    def neutral(self) -> int | float:
        """The total of no elements."""
        return self.reduction.identity(self.dtype)

    @property
    def operator(self) -> str:
        """What programs call it: `cumsum`, `logcumsumexp`."""
        return "logcumsumexp" if self.reduction.adds_logarithms else f"cum{self.reduction}"


@dataclass(frozen=True)
class LoopNest:
    """`for v in vars: buffer[index] = reduce(reduction, body for r in reduce_vars)`.

    Pointwise when `reduction` is None (then there are no `reduce_vars`). `index` is over `vars`;
    it reads no memory, and different points write different elements, unless there is a `scatter`.
    With a `scan` what is written is the running total of the bodies.
    """

    buffer: str
    vars: tuple[Var, ...]
    reduce_vars: tuple[Var, ...]
    reduction: Reduction | None
    body: Expr
    index: Index
    origin: str  # the FX node it was made for
    after: frozenset[str] = frozenset()  # buffers that sizes in it are read from
    scatter: Scatter | None = None
    scan: Scan | None = None

    @property
    def with_index(self) -> bool:
        """Whether its results are positions of elements."""
        return self.reduction is not None and self.reduction.with_index

    @property
    def is_sum(self) -> bool:
        """Whether it adds up its elements."""
        return self.reduction is not None and self.reduction.is_sum

    @property
    def is_maximum(self) -> bool:
        """Whether it gives the largest of its elements."""
        return self.reduction is not None and self.reduction.finds_largest and not self.with_index

    @property
    def rows(self) -> tuple[Var, ...]:
        """The variables whose points are independent of one another."""
        along = () if self.scan is None else self.scan.vars
        return tuple(v for v in self.vars if v not in along)

    @property
    def columns(self) -> tuple[Var, ...]:
        """The variables that are reduced or scanned."""
        return self.reduce_vars if self.scan is None else self.scan.vars

    @property
    def points(self) -> int:
        """Elements written (of symbolic sizes: in the call that is compiled)."""
        return prod(hint_of(v.size) for v in self.vars)

    @property
    def iterations(self) -> int:
        """How often the body is computed."""
        return self.points * prod(hint_of(v.size) for v in self.reduce_vars)

    @property
    def is_symbolic(self) -> bool:
        """True if it has a loop whose length is known at run time only."""
        return any_symbolic(v.size for v in (*self.vars, *self.reduce_vars))

    @property
    def copied(self) -> str | None:
        """The buffer that it only copies, each element to the place that it has there."""
        body = self.body
        plain = self.reduction is None and self.scatter is None and self.scan is None
        same = isinstance(body, Load) and body.index == self.index and body.mask is None
        return body.buffer if plain and same and isinstance(body, Load) else None

    @cached_property
    def values(self) -> tuple[Expr, ...]:
        """What is computed at a point: the body, and what the index is made of."""
        return (self.body, *(atom.value for atom in self.index.indirects()))

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Every load of memory."""
        return tuple(loads(self.values))

    @cached_property
    def _reads(self) -> frozenset[str]:
        over = () if self.scatter is None else (self.scatter.over,)
        return self.after.union((load.buffer for load in self.loads), over)

    def renamed(
        self, builder: Builder, variables: Callable[[Var], Index] = variable, **making: Any
    ) -> LoopNest:
        """The nest's computation with every variable replaced, and its loads and operations made
        anew as for `rename`; its loops stay as they are."""
        old = self.values
        made = rename(builder, old, variables, **making)
        new = {o.uid: n for o, n in zip(old, made, strict=True)}
        index = self.index.substitute(variables, lambda value: new[value.uid])
        return replace(self, body=new[self.body.uid], index=index)

    def reads(self) -> frozenset[str]:
        """Names of the buffers read, those included that only a size is read from."""
        return self._reads

    def as_text(self) -> str:
        """Readable form."""
        printer = Printer()
        value, *places = interpret(self.values, printer)
        loops = ", ".join(f"{v} < {v.size}" for v in self.vars)
        head = f"for {loops or 'once'}"
        if self.reduction is not None:
            head += f" reduce {', '.join(f'{v} < {v.size}' for v in self.reduce_vars)}"
            value = f"{self.reduction}({value})"
        if self.scan is not None:
            along = ", ".join(map(str, self.scan.vars))
            value = f"{self.scan.reduction} up to here along {along} of {value}"
        lines = [f"{head}:  # {self.origin}", *(f"    {line}" for line in printer.lines)]
        at = str(self.index)
        for atom, place in zip(self.index.indirects(), places, strict=True):
            at = at.replace(str(atom), place)
        sign = "="
        if self.scatter is not None:
            sign = f"{self.scatter.operation} over {self.scatter.over}"
        return "\n".join([*lines, f"    {self.buffer}[{at}] {sign} {value}"])


# An argument of an extern call: a tensor in memory, a literal, or a (nested) tuple of arguments.
ExternArg = (
    Strided | int | float | FloatSize | bool | str | None | complex | torch.dtype | torch.device
    | torch.layout | torch.memory_format | tuple["ExternArg", ...]
)  # fmt: skip


@dataclass(frozen=True)
class ExternCall:
    """A call of an ATen operator: `op` is `aten::name.overload`.

    `outputs` are the buffers of its results (None: not used). With `out_variant` the call writes
    into memory that the plan provides.
    """

    op: str
    args: tuple[ExternArg, ...]
    kwargs: tuple[tuple[str, ExternArg], ...]
    outputs: tuple[str | None, ...]
    out_variant: bool
    origin: str
    after: frozenset[str] = frozenset()  # as for loops
    # Symbols that stand for sizes of its results: (symbol, buffer, dimension; None: its element).
    binds: tuple[tuple[str, str, int | None], ...] = ()
    # Instead of an operator, plans are called. `higher_order::cond`: one of two, on what comes
    # after the first argument, the first if that is true. `higher_order::while_loop`: the second,
    # for as long as the first gives what is true; of the arguments, one for each output is carried.
    branches: tuple[Plan, ...] = ()
    # Instead of an operator, kernels of ours are launched, which write to memory of the plan's.
    attention: AttentionLoops | None = None

    def tensors(self) -> list[Strided]:
        """The tensors among the arguments."""
        found: list[Strided] = []

        def visit(arg: ExternArg) -> None:
            if isinstance(arg, Strided):
                found.append(arg)
            elif isinstance(arg, tuple):
                for a in arg:
                    visit(a)

        visit(self.args)
        for _, value in self.kwargs:
            visit(value)
        return found

    def reads(self) -> set[str]:
        """Names of the buffers read."""
        return {tensor.buffer for tensor in self.tensors()} | self.after

    def as_text(self) -> str:
        """Readable form."""

        def show(arg: ExternArg) -> str:
            if isinstance(arg, Strided):
                return f"{arg.buffer}{list(arg.shape)}"
            if isinstance(arg, tuple):
                return f"[{', '.join(map(show, arg))}]"
            return repr(arg)

        args = [show(a) for a in self.args] + [f"{k}={show(v)}" for k, v in self.kwargs]
        text = f"{', '.join(map(str, self.outputs))} = {self.op}({', '.join(args)})"
        if self.attention is not None:
            text += "".join(f"\n    {line}" for line in self.attention.as_text().splitlines())
        return text


Node = LoopNest | ExternCall


@dataclass(frozen=True)
class GraphFacts:
    """What the FX graph tells of its inputs and nodes that no loop shows.

    `owned` are the inputs that the call frees after their last use, `overwritten` those about to
    get the value of an output, with its position. `lines` are the program's, as tracebacks write
    them, by the names of the graph's nodes.
    """

    owned: frozenset[str] = frozenset()
    overwritten: Mapping[str, int] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LoopGraph:
    """A graph after lowering. Every buffer is written by one node, or is an input or a constant.

    `inputs` names a buffer for each graph input (None: an input that is not a tensor). `outputs`
    are tensors in memory, numbers or None.
    """

    inputs: tuple[str | None, ...]
    constants: Mapping[str, torch.Tensor]
    buffers: Mapping[str, Buffer]
    nodes: tuple[Node, ...]
    outputs: tuple[Strided | int | float | FloatSize | None, ...]
    builder: Builder = field(repr=False, compare=False)  # made the bodies; passes make more
    # Inputs that are symbolic numbers; a float stands as its bits.
    size_inputs: Mapping[int, int] = field(default_factory=dict)
    # Floats (as bits) that kernels take, by the names of the symbols that stand for them.
    definitions: Mapping[str, SizeExpr] = field(default_factory=dict)
    # What the program states of sizes that depend on data.
    checks: tuple[Assert, ...] = ()
    facts: GraphFacts = field(default_factory=GraphFacts)

    def as_text(self) -> str:
        """Readable form."""

        def show(name: str) -> str:
            b = self.buffers[name]
            return f"{name}: {dtype_name(b.dtype)}{list(b.shape)} strides {list(b.stride)}"

        lines = [f"input {show(name)}" for name in self.inputs if name is not None]
        lines += [f"constant {show(name)}" for name in self.constants]
        for node in self.nodes:
            if isinstance(node, ExternCall):
                lines += [f"extern {show(name)}" for name in node.outputs if name is not None]
            else:
                lines.append(f"buffer {show(node.buffer)}")
            lines.append(node.as_text())
        for out in self.outputs:
            text = f"{out.buffer}{list(out.shape)}" if isinstance(out, Strided) else repr(out)
            lines.append(f"output {text}")
        return "\n".join(lines) + "\n"
