"""The pass `emit_plan`: kernels, memory and calls as a `Plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    Choose,
    Constant,
    Free,
    FreeSlab,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    View,
    While,
)
from dovetail_runtime.plan import Assert, AtenArg, Bind, FloatOf, Kernel, Size, Step
from dovetail_runtime.sizes import float_bits, symbols_of

from dovetail_inductor.kernel_names import label_of
from dovetail_inductor.loop_ir.loops import PART, Buffer, ExternArg, ExternCall, Strided
from dovetail_inductor.loop_ir.sizes import Dim, FloatSize, size_expr
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    FusedKernel,
    KernelGraph,
    ProductKernel,
    kernels_of,
)
from dovetail_inductor.scheduler.memory import MemoryPlan
from dovetail_inductor.scheduler.rebase import rebase, rebase_combined
from dovetail_inductor.scheduler.write_over import in_place
from dovetail_inductor.targets import target_of
from dovetail_inductor.targets.target import Emitted


def spec_of(buffer: Buffer) -> TensorSpec:
    """A buffer's layout as the runtime wants it."""
    return TensorSpec(
        _sizes(buffer.shape),
        _sizes(buffer.stride),
        buffer.dtype,
        buffer.device,
        size_expr(buffer.offset),
    )


def _sizes(sizes: tuple[int, ...]) -> tuple[Size, ...]:
    return tuple(size_expr(size) for size in sizes)


@dataclass
class _Kernels:
    """The plan's kernels. `written` is told of each."""

    written: Callable[[Kernel], None] | None
    by_symbol: dict[str, Kernel] = field(default_factory=dict)

    def add(self, *kernels: Kernel) -> None:
        for kernel in kernels:
            if self.by_symbol.setdefault(kernel.symbol, kernel) is kernel and self.written:
                self.written(kernel)


@dataclass
class _Writer:
    graph: KernelGraph
    memory: MemoryPlan
    options: InductorOptions
    kernels: _Kernels
    steps: list[Step] = field(default_factory=list)
    views: dict[Strided, str] = field(default_factory=dict)
    # Buffers that take the place of another one, laid out alike: by its name in the plan.
    instead: dict[str, str] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)  # symbols whose value is known by now
    unchecked: list[Assert] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)  # the graph's, and parts of them

    def __post_init__(self) -> None:
        self.buffers |= {name: b.as_real() for name, b in self.graph.buffers.items()}

    @cached_property
    def checked(self) -> frozenset[str]:
        """The buffers whose layout is checked when a library call has made them."""
        return _addressed_by_strides(self.graph)

    def name_of(self, tensor: Strided, exact: bool = False) -> str:
        """The plan's name for a tensor in memory; makes a view if it is not a whole buffer.

        With `exact`, for what users see, the strides of dimensions of one element count too.
        """
        buffer = self.graph.buffers[tensor.buffer]
        if tensor.covers(buffer) and not (exact and tensor.stride != buffer.stride):
            return self.instead.get(buffer.name, buffer.name)
        if tensor not in self.views:
            name = f"view{len(self.views)}"
            begin = buffer.offset + tensor.offset
            if tensor.dtype not in (None, buffer.dtype):
                begin = tensor.offset + (
                    2 * buffer.offset if tensor.dtype in PART.values() else buffer.offset // 2
                )
            spec = TensorSpec(
                _sizes(tensor.shape),
                _sizes(tensor.stride),
                tensor.dtype or buffer.dtype,
                buffer.device,
                size_expr(begin),
            )
            self.steps.append(View(name, self.instead.get(buffer.name, buffer.name), spec))
            self.views[tensor] = name
        return self.views[tensor]

    def argument(self, arg: ExternArg) -> AtenArg:
        """An argument of an ATen call."""
        if isinstance(arg, Strided):
            return Ref(self.name_of(arg))
        if isinstance(arg, tuple):
            return tuple(self.argument(a) for a in arg)
        if isinstance(arg, FloatSize):
            return FloatOf(arg.bits)
        return size_expr(arg) if isinstance(arg, Dim) else arg

    def allocate(self, name: str) -> None:
        """Memory for a buffer about to be written."""
        spec = spec_of(self.graph.buffers[name])
        root = self.memory.written_over.get(name)
        if root is not None:
            root = self.instead.get(root, root)
            if spec == spec_of(self.graph.buffers[root]):
                self.instead[name] = root
            else:
                self.steps.append(View(name, root, spec))
            return
        _, number = self.memory.place_of.get(name, ("", 0))
        over = self.memory.taken.get(name)
        self.steps.append(Allocate(name, spec, self.memory.offsets.get(name), number, over))

    def extern(self, call: ExternCall) -> None:
        """An ATen call."""
        if call.branches:
            self.control_flow(call)
            return
        if call.attention is not None:
            for name in call.outputs:
                if name is not None:
                    self.allocate(name)
            device = next(self.buffers[name].device for name in call.outputs if name is not None)
            target, machine = self.options.target_of(device), self.options.machine_of(device)
            for emitted in target.emit_attention(call, self.buffers, machine):
                self.launch_emitted(emitted, label_of((), self.graph.facts.lines, "attention"))
            return
        args = tuple(self.argument(a) for a in call.args)
        kwargs = tuple((k, self.argument(v)) for k, v in call.kwargs)
        line = self.graph.facts.lines.get(call.origin, "")
        if call.out_variant:
            (out,) = call.outputs
            assert out is not None
            self.allocate(out)
            kwargs = (*kwargs, ("out", Ref(self.instead.get(out, out))))
            self.steps.append(CallAten(call.op, args, kwargs, (None,), line=line))
        else:
            expected = tuple(
                spec_of(self.graph.buffers[o]) if o in self.checked else None for o in call.outputs
            )
            if call.binds:
                self.data_dependent(call, args, kwargs, expected)
                return
            own = in_place(call, self.memory.written_over)
            count = len(own.outputs)
            results = own.outputs, expected[:count]
            self.steps.append(CallAten(own.op, args, kwargs, *results, line))
            for name in call.outputs[count:]:
                assert name is not None
                self.allocate(name)

    def control_flow(self, call: ExternCall) -> None:
        """A call of one of two plans, or of both in turn."""
        first, second = (replace(branch, kernels=()) for branch in call.branches)
        self.kernels.add(*(kernel for branch in call.branches for kernel in branch.kernels))
        args = tuple(self.operand(arg) for arg in call.args)
        if call.op == "higher_order::while_loop":
            self.steps.append(While(first, second, args, call.outputs))
            return
        predicate = args[0]
        assert isinstance(predicate, str)
        self.steps.append(Choose(predicate, (first, second), args[1:], call.outputs))

    def operand(self, arg: ExternArg) -> str | Size | FloatOf:
        """An argument of a plan."""
        found = self.argument(arg)
        if isinstance(found, Ref):
            return found.name
        assert isinstance(found, int | SizeExpr | FloatOf)
        return found

    def data_dependent(
        self,
        call: ExternCall,
        args: tuple[AtenArg, ...],
        kwargs: tuple[tuple[str, AtenArg], ...],
        expected: tuple[TensorSpec | None, ...],
    ) -> None:
        """A call whose results tell sizes: they are read, and then the layout is checked."""
        raw = {o: f"{o}_raw" for o, spec in zip(call.outputs, expected, strict=True) if spec and o}
        outputs = tuple(None if o is None else raw.get(o, o) for o in call.outputs)
        line = self.graph.facts.lines.get(call.origin, "")
        self.steps.append(CallAten(call.op, args, kwargs, outputs, line=line))
        for symbol, buffer, dim in call.binds:
            self.steps.append(Bind(symbol, raw.get(buffer, buffer), dim))
            self.bound.add(symbol)
        for output, spec in zip(call.outputs, expected, strict=True):
            if output in raw:
                same = CallAten("aten::detach", (Ref(raw[output]),), (), (output,), (spec,))
                self.steps += [same, Free((raw[output],))]
        self.check()

    def check(self) -> None:
        """What the program states of sizes, once they are all known."""
        for stated in list(self.unchecked):
            sizes = (stated.condition, *stated.numbers)
            if all(symbols_of(size) <= self.bound for size in sizes):
                self.steps.append(stated)
                self.unchecked.remove(stated)

    def places(self, buffers: Sequence[str]) -> tuple[str, ...]:
        """The plan's names for buffers that a kernel takes."""
        return tuple(self.instead.get(name, name) for name in buffers)

    def launch_emitted(self, emitted: Emitted, label: str) -> None:
        """A launch; equal kernels are one. `label` is what people call it."""
        if emitted.kernel is not None:
            self.kernels.add(emitted.kernel)
        self.steps.append(emitted.step(self.places(emitted.tensors), label))

    def launch(self, kernel: FusedKernel | CombinedKernel | ProductKernel) -> None:
        """A generated kernel."""
        written = sorted(kernel.writes() - kernel.internal, key=_number)
        for name in written:
            self.allocate(name)
        target = self.options.target_of(self.buffers[written[0]].device)
        place = (self.graph.builder, self.buffers, self.name_of)
        if isinstance(kernel, ProductKernel):
            label = label_of(kernel.epilogue.nests, self.graph.facts.lines, "product")
        else:
            nests = (nest for each in kernels_of([kernel]) for nest in each.nests)
            label = label_of(nests, self.graph.facts.lines)
        if isinstance(kernel, CombinedKernel):
            kernel, parts = rebase_combined(kernel, *place)
            self.buffers |= parts
        elif isinstance(kernel, FusedKernel):
            kernel, parts = rebase(kernel, *place)
            self.buffers |= parts
        machine = self.options.machine_of(self.buffers[written[0]].device)
        emitted = target.emit(kernel, self.graph.builder, self.buffers, machine)
        self.launch_emitted(emitted, label)


def _number(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name if c.isdigit())
    return (int(digits) if digits else 0, name)


def emit_plan(
    graph: KernelGraph,
    memory: MemoryPlan,
    options: InductorOptions,
    name: str,
    written: Callable[[Kernel], None] | None = None,
) -> Plan:
    """Write the steps, with allocations before and releases after.

    Kernels are Triton for tensors on a GPU, else C++; a graph may have both. `written` is told of
    each as soon as its source is there.
    """
    on_cuda = any(b.device.type == "cuda" for b in graph.buffers.values())
    writer = _Writer(graph, memory, options, _Kernels(written))
    symbols = _symbols(graph)
    writer.bound |= {binding.name for binding in symbols}
    writer.unchecked += graph.checks
    dies: dict[int, list[str]] = {}
    for buffer, position in memory.last.items():
        if buffer not in memory.offsets and position < len(graph.steps):
            dies.setdefault(position, []).append(buffer)
    given_back: dict[int, list[tuple[str, int]]] = {}
    for slab, place in zip(memory.slabs, memory.places, strict=True):
        if not target_of(slab.device).memory.keeps_slabs:
            given_back.setdefault(slab.last, []).append(place)
    for buffer in _without_writer(graph, memory):
        writer.allocate(buffer)
    for position, step in enumerate(graph.steps):
        if isinstance(step, ExternCall):
            writer.extern(step)
        else:
            writer.launch(step)
        if position in dies:
            # a view that a library call was given holds on to its memory: it goes too
            views = [v for t, v in writer.views.items() if t.buffer in dies[position]]
            own = [name for name in dies[position] if name not in writer.instead]
            if own or views:
                writer.steps.append(Free((*sorted(own, key=_number), *views)))
        if position + 1 < len(graph.steps):
            writer.steps += [FreeSlab(*place) for place in given_back.get(position, ())]
    outputs = tuple(_output(writer, out) for out in graph.outputs)  # (views are steps)
    return Plan(
        name=name,
        target="cuda" if on_cuda else "cpu",
        inputs=_inputs(graph.inputs, graph.buffers),
        symbols=symbols,
        constants=tuple(Constant(n, t) for n, t in graph.constants.items()),
        kernels=tuple(writer.kernels.by_symbol.values()),
        steps=tuple(writer.steps),
        slab_bytes=tuple((str(slab.device), slab.nbytes) for slab in memory.slabs),
        outputs=outputs,
        definitions=tuple(graph.definitions.items()),
        mutated=tuple(n for n in graph.inputs if n and n in memory.written_over.values()),
    )


def _output(
    writer: _Writer, out: Strided | FloatSize | float | None
) -> str | Size | FloatOf | None:
    """An output of the plan: the name of a tensor, or a number."""
    if isinstance(out, Strided):
        return writer.name_of(out, exact=True)
    if isinstance(out, Dim):
        return size_expr(out)
    if isinstance(out, FloatSize):
        return FloatOf(out.bits)
    return FloatOf(float_bits(out)) if isinstance(out, float) else out


def _addressed_by_strides(graph: KernelGraph) -> frozenset[str]:
    """Buffers whose promised strides something relies on: kernels, views, what reads the outputs.

    A result that goes from one library call to the next as it is is theirs to lay out; so is, on a
    GPU, one that leaves the call, as the sizes of attention's auxiliary results are known only to
    its kernels there. A library's workspace, which its operator's metadata give no bytes (that of
    oneDNN's LSTM, for its backward), is of any size.
    """
    found: set[str] = set()
    for step in graph.steps:
        if not isinstance(step, ExternCall):
            found |= step.reads()
            continue
        for tensor in step.tensors():
            if not tensor.covers(graph.buffers[tensor.buffer]):
                found.add(tensor.buffer)
    for out in graph.outputs:
        if isinstance(out, Strided):
            buffer = graph.buffers[out.buffer]
            workspace = buffer.dtype is torch.uint8 and buffer.shape == (0,)
            if (buffer.device.type == "cpu" and not workspace) or not out.covers(buffer):
                found.add(out.buffer)
    return frozenset(found)


def _without_writer(graph: KernelGraph, memory: MemoryPlan) -> list[str]:
    """Buffers without elements: nobody computes them, but they are passed on."""
    given = {*graph.inputs, *graph.constants, *memory.first, *memory.written_over}
    wanted = {o.buffer: None for o in graph.outputs if isinstance(o, Strided)}
    for step in graph.steps:
        wanted |= dict.fromkeys(sorted(step.reads(), key=_number))
    return [name for name in wanted if name not in given]


def _symbols(graph: KernelGraph) -> tuple[SymbolBinding, ...]:
    """Where each symbol is read: an int input, or a dimension of a tensor input."""
    bound: dict[str, SymbolBinding] = {}
    for position, name in enumerate(graph.inputs):
        sizes: tuple[tuple[int | None, int], ...]
        if name is None:
            size = graph.size_inputs.get(position)
            sizes = () if size is None else ((None, size),)
        else:
            sizes = tuple(enumerate(graph.buffers[name].shape))
        for dim, size in sizes:
            symbol = size.expr.symbol_name if isinstance(size, Dim) else None
            if isinstance(size, Dim) and symbol is not None:
                is_float = symbol in size.env.floats
                bound.setdefault(symbol, SymbolBinding(symbol, position, dim, is_float))
    return tuple(bound.values())


def _inputs(names: tuple[str | None, ...], buffers: Mapping[str, Buffer]) -> tuple[PlanInput, ...]:
    return tuple(
        PlanInput(f"arg{position}", None)
        if name is None
        else PlanInput(name, spec_of(buffers[name]))
        for position, name in enumerate(names)
    )
