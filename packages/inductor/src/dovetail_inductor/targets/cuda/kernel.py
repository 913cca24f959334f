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
from dovetail_inductor.loop_ir.expr import Constant, Expr, Load, direct_loads, walk
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.sizes import any_symbolic, hint_of, is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cuda.assemble import (
    EmittedKernel,
    KernelBody,
    assemble,
    passed_by_value,
)
from dovetail_inductor.targets.cuda.axes import Pairs, define_axis, define_grid, pairs_of
from dovetail_inductor.targets.cuda.block_accumulators import (
    Accumulator,
    Accumulators,
    rounded_product,
)
from dovetail_inductor.targets.cuda.body import BodyEmitter, Lines, Reads, no_reads
from dovetail_inductor.targets.cuda.passes import (
    Pass,
    by_pass,
    computed,
    extreme_with_place,
    factors_of_sum,
    is_dear,
    is_of_rows,
    online_softmax,
    passing,
    rows_read,
    subtracted_in,
)
from dovetail_inductor.targets.cuda.quotients import rough_quotients, stores_narrow
from dovetail_inductor.targets.cuda.tiling import MULTIPROCESSORS, Tiling, choose


def emit_kernel(
    kernel: FusedKernel, buffers: Mapping[str, Buffer], dependent: bool = False
) -> EmittedKernel:
    """Triton source of one fused kernel.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    body = Emission(kernel, buffers, choose(kernel, buffers)).run()
    whole = replace(body, text=f"    pid = tl.program_id(0)\n{body.text}")
    name = f"{body.kind}_{operators_of(kernel.nests)}"
    return assemble(name, whole, body.tiling.programs, buffers, dependent=dependent)


@dataclass
class Emission:
    """The text of one fused kernel while it is written; `emitter` writes what its loops compute."""

    emitter: ClassVar[type[BodyEmitter]] = BodyEmitter

    kernel: FusedKernel
    buffers: Mapping[str, Buffer]
    tiling: Tiling
    lines: Lines = field(default_factory=Lines)
    parameters: dict[str, str] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)  # values of one result a row
    row_memo: dict[int, str] = field(default_factory=dict)
    now: Pass = field(default_factory=lambda: Pass())
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
        return stores_narrow(self.kernel, self.buffers)

    @cached_property
    def whole(self) -> dict[str, Accumulator]:
        """Reductions of rows in one block."""
        return {}

    @cached_property
    def online(self) -> dict[str, str]:
        """Of the sums that follow their maximum in one pass, the maximum's buffer."""
        return online_softmax(self.kernel) if self.tiling.looped else {}

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
            passes = by_pass(self.kernel)
            rows = [rows_read(self.kernel, nests) for nests in passes]
            for number, nests in enumerate(passes):
                self.now.again = frozenset().union(*rows[:number])
                self.now.later = frozenset().union(*rows[number + 1 :])
                self._phase(nests)
        else:
            self.row_memo = self.now.memo  # all is computed at one place
            if hint_of(self.tiling.programs) <= MULTIPROCESSORS:  # none hides another's waiting
                whole = (n.body for n in self.kernel.nests if self.kernel.is_full(n))
                there = (x for x in direct_loads(whole) if x.buffer not in self.kernel.writes())
                interpret([*there], self._emitter(), self.now.memo)
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
        self.row_memo = self.now.memo
        for nest in self.kernel.nests:
            self._row(nest)
        return self._body("product")

    def _body(self, kind: str) -> KernelBody:
        return KernelBody(
            "\n".join(self.lines.text),
            tuple((parameter, buffer) for buffer, parameter in self.parameters.items()),
            self.tiling,
            kind,
            any(nest.scatter is not None for nest in self.kernel.nests),
        )

    def _kind(self) -> str:
        if not self.tiling.columns:
            return "pointwise" if len(self.tiling.axes) == 1 else "transpose"
        return "reduce_looped" if self.tiling.looped else "reduce_persistent"

    def _column_index(self, start: str) -> None:
        define_axis(self.lines, self.tiling, self.wide, len(self.tiling.axes) - 1, start)

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
        if not (self.now.later or self.now.again) or not is_of_rows(self.kernel, load):
            return None
        if load.buffer in self.now.later:
            return "evict_last"
        return "evict_first" if load.buffer in self.now.again else None

    def _row(self, nest: LoopNest) -> None:
        value = interpret(nest.values, self._emitter(), self.row_memo)[0]
        if nest.scatter is not None:
            self._emitter().scatter(nest, nest.scatter, value, self.row_memo)
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
            found = extreme_with_place(self.kernel.nests, nest)
            if found.buffer not in self.whole:
                self.whole[found.buffer] = self._accumulators.whole_row(found, value)
            self._finish(nest, self.whole[found.buffer])

    def _rounded_product(self, nest: LoopNest) -> str | None:
        """The products that a nest adds up, or None if it adds up something else, or if each
        thread adds up several before it exchanges sums with others."""
        factors = factors_of_sum(self.kernel, nest)
        if factors is None or self.tiling.axes[-1].block >= 2 * 32 * self.tiling.num_warps:
            return None
        return self.lines.define(
            rounded_product(*interpret(factors, self._emitter(), self.now.memo))
        )

    def _looped_pass(self, nests: list[LoopNest]) -> None:
        axis = self.tiling.axes[-1]
        if self.now.stored:  # by other threads of the program, too
            self.lines.add("tl.debug_barrier()")
        self._hoist(nests)
        self._start_totals(computed(self.kernel, nests, self.now.stored))
        found = {n.buffer: extreme_with_place(nests, n) for n in nests if n.reduction is not None}
        begun = {n.buffer: self._accumulators.start(n) for n in nests if found.get(n.buffer) is n}
        accumulators = {buffer: begun[nest.buffer] for buffer, nest in found.items()}
        if self.tiling.folds > 1 and axis.masked and not is_symbolic(axis.size):
            # All blocks but the last need no mask.
            masked, whole = self.tiling, axis.size // axis.block * axis.block
            self.tiling = replace(masked, axes=(*masked.axes[:-1], replace(axis, whole=True)))
            self._turns(nests, accumulators, f"for start in range(0, {whole}, {axis.block}):")
            self.tiling = masked
            self.lines.add(f"start = {whole}")
            self._turns(nests, accumulators, None)
        else:
            unroll, pieces = self.tiling.unroll, self.tiling.pieces
            bounds = f"0, {axis.size // pieces if pieces > 1 else axis.size}, {axis.block}"
            turns = f"tl.range({bounds}, loop_unroll_factor={unroll})"
            loop = f"for start in {turns if unroll > 1 else f'range({bounds})'}:"
            self._turns(nests, accumulators, loop)
        self._finish_all(accumulators)
        self.now.stored |= {
            n.buffer for n in nests if n.reduction is None and is_dear(n, self.buffers)
        }

    def _turns(
        self, nests: list[LoopNest], accumulators: Mapping[str, Accumulator], loop: str | None
    ) -> None:
        """What is done with each block of columns: in a loop, or (None) once, with `start` set."""
        self.now.full, self.now.memo = {}, dict(self.row_memo)
        if loop is not None:
            self.lines.add(loop)
            self.lines.indent += 1
        pieces, size = self.tiling.pieces, self.tiling.axes[-1].size
        self._column_index(f"start + pid % {pieces} * {size // pieces}" if pieces > 1 else "start")
        for nest in nests:
            if nest.buffer in self.online:
                continue  # accumulated together with its maximum
            value = self._full_value(nest)
            if nest.reduction is None:
                self._store(nest, value)
                continue
            accumulator = accumulators[nest.buffer]
            if accumulator.nest is not nest:
                continue  # accumulated together with its place
            totals = [
                accumulators[s]
                for s, m in self.online.items()
                if accumulators.get(m) is accumulator
            ]
            before = self.lines.define(f"{accumulator.value} + 0") if totals else ""
            self._accumulators.accumulate(accumulator, value)
            for total in totals:
                self._accumulators.rescale(total, before, accumulator.value, value)
        if loop is not None:
            self.lines.indent -= 1
        self.now.full, self.now.memo = {}, {}

    def _finish_all(self, accumulators: Mapping[str, Accumulator]) -> None:
        nests = [nest for nest in self.kernel.nests if nest.buffer in accumulators]
        for nest in sorted(nests, key=lambda nest: nest.buffer in self.online):
            accumulator, maximum = accumulators[nest.buffer], self.online.get(nest.buffer)
            if maximum is not None:
                scaled, lanes = accumulator.value, accumulators[maximum].value
                shift = [subtracted_in(self.kernel, nest.buffer)]
                (subtracted,) = interpret(shift, self._emitter(), self.row_memo)
                factor = f"tl.exp({lanes} - {subtracted})"
                self.lines.add(f"{scaled} = {rounded_product(scaled, factor)}")
            self._finish(nest, accumulator)

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
        (value,) = interpret([nest.body], self._emitter(), self.now.memo)
        if nest.scan is not None:
            before = self.now.totals.get(nest.buffer)
            value = self._accumulators.running_total(nest, nest.scan, value, before)
        if nest.reduction is None:
            self.now.full[nest.buffer] = value
        return value

    # --- reductions and scans ----------------------------------------------------------------

    @property
    def _accumulators(self) -> Accumulators:
        return Accumulators(
            self.lines, self.tiling, self.wide, lambda index: self._emitter().index(index, no_reads)
        )

    def _start_totals(self, nests: Sequence[LoopNest]) -> None:
        """Of the scans that a pass goes through, the totals of no elements."""
        rows = sum(1 << v.id for v in self.kernel.rows)
        self.now.totals = {
            nest.buffer: self._accumulators.no_total(nest.scan, rows)
            for nest in nests
            if nest.scan is not None
        }

    def _finish(self, nest: LoopNest, accumulator: Accumulator) -> None:
        """Combine along the columns, keep the row value and store it."""
        value = self._accumulators.across(nest, accumulator)
        self.rows[nest.buffer] = value
        self._store(nest, value)

    # --- memory ------------------------------------------------------------------------------

    @cached_property
    def reads(self) -> Reads:
        """Where the loops find what they read."""
        return Reads(self.parameter, self._forward, self._by_value, self._policy, self._paired)

    def _emitter(self) -> BodyEmitter:
        return self.emitter(
            lines=self.lines,
            tiling=self.tiling,
            buffers=self.buffers,
            wide=self.wide,
            reads=self.reads,
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
        if load.buffer in self.now.full:
            return self.now.full[load.buffer]
        for nest in self.kernel.nests:  # a full value of an earlier pass: compute it again
            if nest.buffer == load.buffer:
                assert self.tiling.looped and self.kernel.is_full(nest), load.buffer
                return None if nest.buffer in self.now.stored else self._full_value(nest)
        return None

    def _store(self, nest: LoopNest, value: str) -> None:
        if nest.buffer not in self.kernel.internal:
            self._emitter().store(nest, value, self.pairs.store if self.pairs else None)
