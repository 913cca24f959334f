"""A fused kernel to Triton source text.

The structure follows `FusedKernel.phases`: for each phase one pass over the columns (a loop, or a
single block when a row fits in registers) that computes full nests and accumulates reductions, then
the row nests of that phase. A value written by one nest and read by another at the same point is
handed over in registers; in a looped kernel a later pass computes full values again, but for dear
ones that the program has stored: those it reads back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from dovetail_inductor.kernel_names import operators_of
from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, Load, walk
from dovetail_inductor.loop_ir.handlers import count, interpret
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest, Scatter
from dovetail_inductor.loop_ir.sizes import any_symbolic, is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cuda.assemble import (
    EmittedKernel,
    KernelBody,
    assemble,
    passed_by_value,
)
from dovetail_inductor.targets.cuda.axes import define_axis, define_grid
from dovetail_inductor.targets.cuda.block_accumulators import Accumulator, Accumulators
from dovetail_inductor.targets.cuda.block_reductions import rounded_product
from dovetail_inductor.targets.cuda.body import BodyEmitter, Lines
from dovetail_inductor.targets.cuda.online import online_softmax, subtracted_in
from dovetail_inductor.targets.cuda.pairs import Pairs, pairs_of
from dovetail_inductor.targets.cuda.passes import (
    by_pass,
    computed,
    factors_of_sum,
    is_of_rows,
    passing,
    rows_read,
)
from dovetail_inductor.targets.cuda.quotients import rough_quotients
from dovetail_inductor.targets.cuda.tiling import Tiling, choose
from dovetail_inductor.targets.cuda.triton_ops import NARROW, TRITON_TYPES


def emit_body(kernel: FusedKernel, buffers: Mapping[str, Buffer], tiling: Tiling) -> KernelBody:
    """The statements of a kernel under a tiling.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    return Emission(kernel, buffers, tiling).run()


def emit_kernel(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> EmittedKernel:
    """Triton source of one fused kernel.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    body = emit_body(kernel, buffers, choose(kernel, buffers))
    text = f"    pid = tl.program_id(0)\n{body.text}"
    return assemble(
        f"{body.kind}_{operators_of(kernel.nests)}",
        "",
        text,
        body.parameters,
        body.helpers,
        body.tiling,
        body.tiling.programs,
        buffers,
        body.scatters,
    )


# A stored value that takes more than this many additions is read back, from a cache or at memory's
# speed, at which that much can be computed meanwhile.
_DEAR = 40


@dataclass
class Emission:
    """The text of one fused kernel while it is written; `emitter` writes what its loops compute."""

    emitter: ClassVar[type[BodyEmitter]] = BodyEmitter

    kernel: FusedKernel
    buffers: Mapping[str, Buffer]
    tiling: Tiling
    lines: Lines = field(default_factory=Lines)
    parameters: dict[str, str] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    rows: dict[str, str] = field(default_factory=dict)  # values of one result a row
    full: dict[str, str] = field(default_factory=dict)  # full values of the current pass
    row_memo: dict[int, str] = field(default_factory=dict)
    memo: dict[int, str] = field(default_factory=dict)
    online: dict[str, str] = field(default_factory=dict)  # sum's buffer -> maximum's
    stored: set[str] = field(default_factory=set)  # what later passes read back
    totals: dict[str, str] = field(default_factory=dict)  # running totals of the current pass
    later: frozenset[str] = frozenset()  # rows that a later pass reads
    again: frozenset[str] = frozenset()  # rows that an earlier pass has read
    pairs: Pairs | None = None

    @cached_property
    def wide(self) -> bool:
        """True when an offset may pass 2**31."""
        names = self.kernel.reads() | self.kernel.writes()
        sizes = [self.buffers[n].extent for n in names if n in self.buffers]
        sizes += [a.size for a in self.tiling.axes]
        return any_symbolic(sizes) or max(sizes, default=0) >= 2**31 - 2**16

    @cached_property
    def narrow(self) -> bool:
        """True if all that is made of transcendental functions is stored in 2 bytes."""
        return all(
            nest.reduction is None and self.buffers[nest.buffer].dtype.itemsize == 2
            for nest in self.kernel.nests
            if any(isinstance(n, Apply) and n.op in NARROW for n in walk(nest.values))
        )

    @cached_property
    def rough(self) -> frozenset[int]:
        """The quotients that may be off by their last digits."""
        return rough_quotients(self.kernel, self.buffers)

    def run(self) -> KernelBody:
        """Emit everything."""
        self.pairs = pairs_of(self.kernel, self.tiling, self.buffers, self._by_value)
        define_grid(self.lines, self.tiling, self.wide, self.pairs is not None)
        if self.tiling.columns and not self.tiling.looped:
            self._column_index("0")
        if self.tiling.looped:
            self.online = online_softmax(self.kernel)
            passes = by_pass(self.kernel)
            rows = [rows_read(self.kernel, nests) for nests in passes]
            for number, nests in enumerate(passes):
                self.again = frozenset().union(*rows[:number])
                self.later = frozenset().union(*rows[number + 1 :])
                self._phase(nests)
        else:
            self.row_memo = self.memo  # all is computed at one place
            for nest in self.kernel.nests:
                self._in_one_block(nest)
        return self._body(self._kind())

    def run_at(self, starts: Sequence[str], given: Mapping[str, str]) -> KernelBody:
        """Of a product, after what `lines` holds already: the nests at one tile, which begins at
        `starts` along the axes. `given` are blocks that stand for what is loaded from some
        buffers."""
        assert len(starts) == len(self.tiling.axes)
        for position, start in enumerate(starts):
            define_axis(self.lines, self.tiling, self.wide, position, start)
        self.rows |= given
        self.row_memo = self.memo
        for nest in self.kernel.nests:
            self._row(nest)
        return self._body("product")

    def _body(self, kind: str) -> KernelBody:
        return KernelBody(
            "\n".join(self.lines.text),
            tuple((parameter, buffer) for buffer, parameter in self.parameters.items()),
            frozenset(self.helpers),
            self.tiling,
            kind,
            any(nest.scatter is not None for nest in self.kernel.nests),
        )

    def _kind(self) -> str:
        if not self.tiling.columns:
            return "pointwise" if len(self.tiling.axes) == 1 else "transpose"
        return "reduce_looped" if self.tiling.looped else "reduce_persistent"

    def _column_index(self, start: str) -> None:
        last = len(self.tiling.axes) - 1
        define_axis(self.lines, self.tiling, self.wide, last, start)

    # --- phases ------------------------------------------------------------------------------

    def _is_row(self, nest: LoopNest) -> bool:
        return nest.reduction is None and not self.kernel.is_full(nest)

    def _phase(self, nests: list[LoopNest]) -> None:
        through = passing(self.kernel, nests)
        rows = [n for n in nests if self._is_row(n)]
        for nest in list(rows):  # what needs no result of this pass may be needed in it
            if all(name in self.rows for name in nest.reads() & self.kernel.writes()):
                self._row(nest)
                rows.remove(nest)
        if through:
            self._looped_pass(through)
        for nest in rows:
            self._row(nest)

    def _policy(self, load: Load) -> str | None:
        """What is read again shall stay in the cache until then, and then go: the rows of all
        programs are more than it holds."""
        if not (self.later or self.again) or not is_of_rows(self.kernel, load):
            return None
        if load.buffer in self.later:
            return "evict_last"
        return "evict_first" if load.buffer in self.again else None

    def _row(self, nest: LoopNest) -> None:
        value = interpret(nest.values, self._emitter(), self.row_memo)[0]
        if nest.scatter is not None:
            self._scatter(nest, nest.scatter, value)
            return
        self.rows[nest.buffer] = value
        self._store(nest, value)

    def _in_one_block(self, nest: LoopNest) -> None:
        if self._is_row(nest):
            self._row(nest)
        elif nest.reduction is None:
            self._store(nest, self._full_value(nest))
        else:
            value = self._rounded_product(nest) or self._full_value(nest)
            self._finish(self._accumulators.whole_row(nest, value))

    def _rounded_product(self, nest: LoopNest) -> str | None:
        """The products that a nest adds up, or None if it adds up something else, or if each
        thread adds up several before it exchanges sums with others."""
        factors = factors_of_sum(self.kernel, nest)
        if factors is None or self.tiling.axes[-1].block >= 2 * 32 * self.tiling.num_warps:
            return None
        return self.lines.define(rounded_product(*interpret(factors, self._emitter(), self.memo)))

    def _looped_pass(self, nests: list[LoopNest]) -> None:
        axis = self.tiling.axes[-1]
        if self.stored:  # by other threads of the program, too
            self.lines.add("tl.debug_barrier()")
        self._hoist(nests)
        self._start_totals(computed(self.kernel, nests, self.stored))
        accumulators = {
            n.buffer: self._accumulators.start(n) for n in nests if n.reduction is not None
        }
        if self.tiling.folds > 1 and axis.masked and not is_symbolic(axis.size):
            # All blocks but the last need no mask.
            masked, whole = self.tiling, axis.size // axis.block * axis.block
            self.tiling = replace(masked, axes=(*masked.axes[:-1], replace(axis, whole=True)))
            self._turns(nests, accumulators, f"for start in range(0, {whole}, {axis.block}):")
            self.tiling = masked
            self.lines.add(f"start = {whole}")
            self._turns(nests, accumulators, None)
        else:
            loop = f"for start in range(0, {axis.size}, {axis.block}):"
            self._turns(nests, accumulators, loop)
        self._finish_all(accumulators)
        self.stored |= {n.buffer for n in nests if n.reduction is None and self._is_dear(n)}

    def _is_dear(self, nest: LoopNest) -> bool:
        """Whether a value is read back where it has been stored: it is not rounded by that."""
        exact = self.buffers[nest.buffer].dtype is nest.body.dtype
        counted = count([nest.body])
        if nest.scan is not None:
            return exact
        return exact and counted.cost - counted.loads > _DEAR

    def _turns(
        self, nests: list[LoopNest], accumulators: Mapping[str, Accumulator], loop: str | None
    ) -> None:
        """What is done with each block of columns: in a loop, or (None) once, with `start` set."""
        self.full, self.memo = {}, dict(self.row_memo)
        if loop is not None:
            self.lines.add(loop)
            self.lines.indent += 1
        self._column_index("start")
        for nest in nests:
            if nest.buffer in self.online:
                continue  # accumulated together with its maximum
            value = self._full_value(nest)
            if nest.reduction is None:
                self._store(nest, value)
                continue
            accumulator = accumulators[nest.buffer]
            totals = [accumulators[s] for s, m in self.online.items() if m == nest.buffer]
            before = self.lines.define(f"{accumulator.value} + 0") if totals else ""
            self._accumulators.accumulate(accumulator, value)
            for total in totals:
                self._accumulators.rescale(total, before, accumulator.value, value)
        if loop is not None:
            self.lines.indent -= 1
        self.full, self.memo = {}, {}

    def _finish_all(self, accumulators: Mapping[str, Accumulator]) -> None:
        for buffer, accumulator in accumulators.items():
            if buffer not in self.online:
                self._finish(accumulator)
        for buffer, maximum in self.online.items():
            if buffer in accumulators:
                scaled, lanes = accumulators[buffer].value, accumulators[maximum].value
                shift = [subtracted_in(self.kernel, buffer)]
                (subtracted,) = interpret(shift, self._emitter(), self.row_memo)
                factor = f"tl.exp({lanes} - {subtracted})"
                self.lines.add(f"{scaled} = {rounded_product(scaled, factor)}")
                self._finish(accumulators[buffer])

    def _hoist(self, nests: list[LoopNest]) -> None:
        """Compute before the loop what is the same for all columns."""
        columns = sum(1 << v.id for v in self.kernel.columns)
        own = {nest.buffer: nest for nest in self.kernel.nests}
        todo = [nest for nest in nests if nest.buffer not in self.online]
        seen = {nest.buffer for nest in todo}
        invariant: list[Expr] = []
        while todo:
            for node in walk([todo.pop().body]):
                if not node.free & columns and not isinstance(node, Constant):
                    invariant.append(node)
                elif isinstance(node, Load) and node.buffer in own and node.buffer not in seen:
                    seen.add(node.buffer)  # a full value that the loop computes
                    todo.append(own[node.buffer])
        interpret(invariant, self._emitter(), self.row_memo)

    def _full_value(self, nest: LoopNest) -> str:
        (value,) = interpret([nest.body], self._emitter(), self.memo)
        if nest.scan is not None:
            before = self.totals.get(nest.buffer)
            value = self._accumulators.running_total(nest, nest.scan, value, before)
        if nest.reduction is None:
            self.full[nest.buffer] = value
        return value

    # --- reductions and scans ----------------------------------------------------------------

    @property
    def _accumulators(self) -> Accumulators:
        return Accumulators(
            self.lines,
            self.tiling,
            self.wide,
            self.helpers.add,
            lambda index: self._emitter().index(index, _no_reads),
        )

    def _start_totals(self, nests: Sequence[LoopNest]) -> None:
        """Of the scans that a pass goes through, the totals of no elements."""
        rows = sum(1 << v.id for v in self.kernel.rows)
        self.totals = {
            nest.buffer: self._accumulators.no_total(nest.scan, rows)
            for nest in nests
            if nest.scan is not None
        }

    def _finish(self, accumulator: Accumulator) -> None:
        """Combine along the columns, keep the row value and store it."""
        nest = accumulator.nest
        value = self._accumulators.across(accumulator)
        self.rows[nest.buffer] = value
        self._store(nest, value)

    # --- memory ------------------------------------------------------------------------------

    def _emitter(self) -> BodyEmitter:
        return self.emitter(
            lines=self.lines,
            tiling=self.tiling,
            buffers=self.buffers,
            wide=self.wide,
            parameter=self.parameter,
            by_value=self._by_value,
            forward=self._forward,
            use=self.helpers.add,
            policy=self._policy,
            paired=self._paired,
            narrow=self.narrow,
            rough=self.rough,
        )

    def parameter(self, buffer: str) -> str:
        """The name of a buffer's pointer in the text."""
        if buffer not in self.parameters:
            self.parameters[buffer] = f"p{len(self.parameters)}"
        return self.parameters[buffer]

    def _paired(self, load: Load) -> str | None:
        if self.pairs is None or load.mask is not None:
            return None
        return self.pairs.load(self.lines, self.parameter(load.buffer), load.buffer, load.index)

    def _by_value(self, buffer: str) -> bool:
        return passed_by_value(buffer, self.kernel.writes(), self.buffers)

    def _forward(self, load: Load) -> str | None:
        if load.buffer in self.rows:
            return self.rows[load.buffer]
        if load.buffer in self.full:
            return self.full[load.buffer]
        for nest in self.kernel.nests:  # a full value of an earlier pass: compute it again
            if nest.buffer == load.buffer:
                assert self.tiling.looped and self.kernel.is_full(nest), load.buffer
                return None if nest.buffer in self.stored else self._full_value(nest)
        return None

    def _store(self, nest: LoopNest, value: str) -> None:
        if nest.buffer in self.kernel.internal:
            return
        emitter = self._emitter()
        offset = emitter.index(nest.index, _no_reads)
        free = 0
        for var in nest.vars:
            free |= 1 << var.id
        masks = [a.mask for a in emitter.masked_axes(free)]
        storage = self.buffers[nest.buffer].dtype
        condition = f", {' & '.join(masks)}" if masks else ""
        shape = self.tiling.shape(free)
        stored = f"tl.broadcast_to({value}, {shape}).to({TRITON_TYPES[storage]})"
        parameter, place = self.parameter(nest.buffer), (nest.buffer, nest.index)
        if self.pairs and self.pairs.store(self.lines, parameter, place, stored, free):
            return
        self.lines.add(
            f"tl.store({self.parameter(nest.buffer)} + tl.broadcast_to({offset}, {shape}), "
            f"{stored}{condition})"
        )

    def _scatter(self, nest: LoopNest, how: Scatter, value: str) -> None:
        """Write to computed places, none of them out of bounds, also where assertions are off."""
        emitter = self._emitter()
        memo = self.row_memo
        shape = self.tiling.shape(sum(1 << var.id for var in nest.vars))
        masks = [a.mask for a in emitter.masked_axes(sum(1 << var.id for var in nest.vars))]
        for atom in nest.index.indirects():
            place = memo[atom.value.uid]
            masks.append(f"({place} >= 0) & ({place} < {atom.size})")
        storage = TRITON_TYPES[self.buffers[nest.buffer].dtype]
        pointer = f"{self.parameter(nest.buffer)} + tl.broadcast_to("
        pointer += f"{emitter.index(nest.index, lambda e: memo[e.uid])}, {shape})"
        stored = f"tl.broadcast_to({value}, {shape}).to({storage})"
        condition = f", tl.broadcast_to({' & '.join(masks)}, {shape})" if masks else ""
        call = "tl.store" if how.reduction is None else f"tl.atomic_{how.operation}"
        order = "" if how.reduction is None else ', sem="relaxed"'
        self.lines.add(f"{call}({pointer}, {stored}{condition}{order})")


def _no_reads(expr: object) -> str:
    raise AssertionError("the index of a store, or a position, reads no memory")


__all__ = ["Emission", "emit_body", "emit_kernel"]
