"""What reductions and scans keep from one point of a row to the next: C++ variables, one (or a
vector) for a row, or an array of vectors for a block of rows."""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path

import torch

from dovetail_inductor.loop_ir.index import Var
from dovetail_inductor.loop_ir.loops import LoopNest, Scan
from dovetail_inductor.loop_ir.reduction import SUM, Reduction
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.scheduler.loops import position_index
from dovetail_inductor.targets.cpu.shape import KernelShape
from dovetail_inductor.targets.cpu.syntax import ARITHMETIC, combination, index_text, literal
from dovetail_inductor.targets.cpu.writer import Name, Writer

# A sum of float32 down the columns is made of sums of so many terms, and those of as many in turn
# (cascade summation: a chain of all terms would have an error that grows with their number).
CASCADE = 64


def identity(reduction: Reduction, dtype: torch.dtype) -> str:
    """The value a reduction begins with."""
    return literal(reduction.identity(dtype), dtype)


def _update(reduction: Reduction, a: str, x: str) -> str:
    """The statement by which a value joins an accumulator."""
    return f"{a} = {combination(reduction.combine, a, x)};"


class Accumulators:
    """The accumulators of one kernel.

    `names`: of each buffer that holds a value a row, the variable (or array) with its values.
    `totals`: the same of the running totals of scans.
    """

    def __init__(self, shape: KernelShape, writer: Writer) -> None:
        self.shape = shape
        self.writer = writer
        self.names: dict[str, str] = {}
        self.totals: dict[str, str] = {}
        self._cascades: list[str] = []  # the sums of this pass that are made of sums
        self._levels = 0  # and of how many sums each, beside the one that takes the elements

    def lane_type(self, dtype: torch.dtype) -> str:
        """The C++ type of a vector of values."""
        element = "int32_t" if dtype is torch.bool else ARITHMETIC[dtype]
        return f"V<{element}, {self.shape.lanes}>"

    def array(self, name: str, dtype: torch.dtype, start: str | None = None) -> None:
        """An array with a vector for each vector of the block, at the head of the item."""
        lines = self.writer.scopes[0].lines
        lines.append(f"{self.lane_type(dtype)} {name}[{self._vectors()}];")
        if start is not None:
            n, count = self.shape.lanes, self._vectors()
            lines.append(f"for (int u = 0; u < {count}; ++u) {name}[u] = bc<{n}>({start});")

    def _vectors(self) -> int:
        assert self.shape.block is not None
        return self.shape.block // self.shape.lanes

    # --- scans ------------------------------------------------------------------------------------

    def declare_totals(self, nest: LoopNest) -> None:
        """The running totals of a scan, before its first element."""
        assert nest.scan is not None
        name = self.totals[nest.buffer] = f"total{len(self.totals)}"
        lanes = None if self.shape.vector is None else self.shape.lanes
        if self.shape.by_row:
            lines = _totals_declared(nest.scan, name, lanes, self._vectors())
            self.writer.scopes[0].lines += lines
            return
        for line in _totals_declared(nest.scan, name, lanes, None):
            self.writer.line(line)

    def total(self, nest: LoopNest, value: Name) -> Name:
        """The running total at one point (or vector of points), which `value` joins."""
        w, n = self.writer, self.shape.lanes
        name = self.totals[nest.buffer]
        if self.shape.vector is None:
            text = _total_up_to(nest, name, value.text, None, None)
        elif self.shape.by_row:
            text = _total_up_to(nest, f"{name}[u]", w.as_vector(value), None, None)
        else:
            counted = f"first_lanes<{n}>(n)" if w.tail else None
            text = _total_up_to(nest, name, w.as_vector(value), n, counted)
        w.line(f"const auto at_{name} = {text};")
        return Name(f"at_{name}", self.shape.vector is not None, len(w.scopes) - 1)

    # --- reductions -------------------------------------------------------------------------------

    def declare(self, nest: LoopNest) -> None:
        """The accumulator of a reduction, before its first element."""
        name = f"acc{len(self.names)}"
        self.names[nest.buffer] = name
        assert nest.reduction is not None
        dtype = nest.body.dtype
        start = identity(nest.reduction, dtype)
        position = nest.with_index
        if self.shape.by_row:
            self.array(name, dtype, start)
            if nest.reduction.accumulates_error(dtype):
                self._declare_cascade(name, dtype, start)
            if position:
                at, start = self._position(nest), f"({ARITHMETIC[self._position(nest)]})0"
                self.array(f"{name}_at", at, start)
            return
        line = self.writer.line
        unroll = self.shape.unroll
        if unroll > 1:
            line(f"{self.lane_type(dtype)} {name}[{unroll}];")
            line(f"for (int u = 0; u < {unroll}; ++u) {name}[u] = bc<{self.shape.lanes}>({start});")
        elif self.shape.vector is not None:
            line(f"{self.lane_type(dtype)} {name} = bc<{self.shape.lanes}>({start});")
            if position:
                line(f"{self.lane_type(self._position(nest))} {name}_at = {{}};")
        else:
            kept = "double" if self._is_wide(nest) else ARITHMETIC[dtype]
            line(f"{kept} {name} = {start};")
            if position:
                line(f"int64_t {name}_at = 0;")

    def _declare_cascade(self, name: str, dtype: torch.dtype, start: str) -> None:
        """Sums of sums, if there are terms enough (of symbolic sizes those of the example)."""
        terms = hint_of(prod(v.size for v in self.shape.column_loops))
        self._levels = 0 if terms <= 2 * CASCADE else 1 if terms <= 2 * CASCADE**2 else 2
        if self._levels == 0:
            return
        for level in range(1, self._levels + 1):
            self.array(f"{name}_{level}", dtype, start)
        if not self._cascades:
            self.writer.scopes[0].lines.append(f"int64_t sums_{name} = 0;")
        self._cascades.append(name)

    def cascade_step(self, var: Var) -> int | None:
        """After how many steps of a loop over columns the sums of this pass are full; None if
        that is looked at in another loop, or there are none."""
        if not self._cascades:
            return None
        inner = 1
        for loop in reversed(self.shape.column_loops):
            size = hint_of(loop.size)
            if inner * size >= CASCADE:
                return -(-CASCADE // inner) if loop is var else None
            inner *= size
        return None

    def cascade(self) -> list[str]:
        """What is full joins the next sum."""
        count = f"sums_{self._cascades[0]}"
        lines = self._fold(1)
        if self._levels > 1:
            rest = [f"  {line}" for line in self._fold(2)]
            lines += [f"if ((++{count} & {CASCADE - 1}) == 0) {{", *rest, "}"]
        return lines

    def _fold(self, level: int) -> list[str]:
        zero = f"bc<{self.shape.lanes}>({identity(SUM, torch.float32)})"
        lines = []
        for name in self._cascades:
            into, below = f"{name}_{level}[u]", f"{name}{'' if level == 1 else '_1'}[u]"
            each = f"for (int u = 0; u < {self._vectors()}; ++u)"
            lines.append(f"{each} {{ {into} = {into} + {below}; {below} = {zero}; }}")
        return lines

    def finish_cascades(self) -> None:
        """After a pass: the sums of each are one."""
        for name in self._cascades:
            terms = " + ".join(f"{name}_{level}[u]" for level in range(1, self._levels + 1))
            self.writer.line(
                f"for (int u = 0; u < {self._vectors()}; ++u) {name}[u] = {name}[u] + ({terms});"
            )
        self._cascades = []

    def _is_wide(self, nest: LoopNest) -> bool:
        """True for a sum that is kept in float64: one accumulator takes all elements of a row, so
        that its rounding errors would grow with the row, which those of a vector's lanes share."""
        alone = self.shape.vector is None and not self.shape.by_row
        reduction = nest.reduction
        return alone and reduction is not None and reduction.accumulates_error(nest.body.dtype)

    def update(self, nest: LoopNest, value: Name) -> None:
        """One more element (or vector of them) of a reduction."""
        w = self.writer
        assert nest.reduction is not None
        name = self.names[nest.buffer]
        at = f"{name}_at"
        if self.shape.by_row:
            name, at = f"{name}[u]", f"{at}[u]"
        elif self.shape.unroll > 1:
            name = f"{name}[u]"
        text = value.text if self.shape.vector is None else w.as_vector(value)
        guard = w.tail and not self.shape.by_row
        if nest.with_index:
            self._update_position(nest, text, name, at, guard)
            return
        if guard:
            start = identity(nest.reduction, nest.body.dtype)
            n = self.shape.lanes
            text = f"sel(first_lanes<{n}>(n), {text}, bc<{n}>({start}))"
        w.line(_update(nest.reduction, name, text))

    def _update_position(self, nest: LoopNest, text: str, name: str, at: str, guard: bool) -> None:
        w = self.writer
        assert nest.reduction is not None
        biggest = "true" if nest.reduction.finds_largest else "false"
        index = position_index(nest)
        best = name.partition("[")[0]
        w.line(f"const auto x_{best} = {text};")
        if self.shape.vector is None:
            place = index_text(index, lambda v: f"i{v.id}", lambda e: "")
            place = f"(int64_t)({place})"
        else:
            kind = ARITHMETIC[self._position(nest)]
            step = index.coefficient(self.shape.vector) or 0
            place = index_text(index, lambda v: f"i{v.id}", lambda e: "")
            place = f"bc<{self.shape.lanes}>(({kind})({place}))"
            if step:
                place += f" + iota<{kind}, {self.shape.lanes}>() * ({kind}){step}"
        w.line(f"const auto place_{best} = {place};")
        loops = self.shape.column_loops if self.shape.by_row else self.shape.loops
        counted = "" if loops == nest.reduce_vars else f", place_{best}, {at}"
        wins = f"beats<{biggest}>(x_{best}, {name}{counted})"
        if guard:
            wins = f"({wins}) & first_lanes<{self.shape.lanes}>(n)"
        w.line(f"const auto wins_{best} = {wins};")
        w.line(f"{name} = sel(wins_{best}, x_{best}, {name});")
        w.line(f"{at} = sel(wins_{best}, place_{best}, {at});")

    def keep_positions(self, nest: LoopNest) -> None:
        """After a pass over a block of rows: of `argmax` and `argmin` the positions are kept."""
        if not nest.with_index:
            return
        at = f"{self.names[nest.buffer]}_at"
        self.names[nest.buffer] = at
        if self._position(nest) is not torch.int64:
            self.names[nest.buffer] = f"{at}_wide"
            self.array(f"{at}_wide", torch.int64)
            each = f"for (int u = 0; u < {self._vectors()}; ++u)"
            self.writer.line(f"{each} {at}_wide[u] = cast<int64_t>({at}[u]);")

    def _position(self, nest: LoopNest) -> torch.dtype:
        """The type in which places are counted: one with as many lanes as most values have."""
        size = prod(v.size for v in nest.reduce_vars)
        narrow = self.shape.vector is not None and not is_symbolic(size) and size < 1 << 31
        return torch.int32 if narrow else torch.int64

    def result(self, nest: LoopNest) -> Name:
        """After a pass over one row: what its reduction gives."""
        w = self.writer
        name = self.names[nest.buffer]
        assert nest.reduction is not None
        if self.shape.vector is None:
            text = f"{name}_at" if nest.with_index else name
            text = f"(float){text}" if self._is_wide(nest) else text
        elif nest.with_index:
            biggest = "true" if nest.reduction.finds_largest else "false"
            text = f"hposition<{biggest}>({name}, {name}_at)"
        else:
            text = f"h{nest.reduction}({name})"
        result = f"result{name}"
        if self.shape.unroll > 1:
            update = _update(nest.reduction, f"{name}[0]", f"{name}[u]")
            w.line(f"for (int u = 1; u < {self.shape.unroll}; ++u) {update}")
            text = f"h{nest.reduction}({name}[0])"
        w.line(f"const auto {result} = {text};")
        return Name(result, False, len(w.scopes) - 1)


# --- running totals -------------------------------------------------------------------------------

# What holds the running totals of a row between its points. Where lanes are neighbouring rows, each
# takes its own row's next element (`across`); where they are neighbours in one row, a vector's
# elements are added up among themselves first (`along`).
_TYPES = {
    "add": "Running<Sum, {}>", "mul": "Running<Prod, {}>", "maximum": "Running<Max, {}>",
    "minimum": "Running<Min, {}>", "logaddexp": "RunningLogarithm<{}>",
}  # fmt: skip


@cache
def totals_source() -> str:
    """The C++ of running totals."""
    return (Path(__file__).parent / "scan.h").read_text()


def _start(scan: Scan) -> str:
    return literal(scan.neutral, scan.dtype)


def _totals_declared(scan: Scan, name: str, lanes: int | None, count: int | None) -> list[str]:
    """Statements that declare the totals of a row: of one, of as many as there are lanes, or an
    array of `count` such vectors."""
    element = ARITHMETIC[scan.dtype]
    kind = _TYPES[scan.reduction.combine].format(
        element if lanes is None else f"V<{element}, {lanes}>"
    )
    first = _start(scan) if lanes is None else f"bc<{lanes}>({_start(scan)})"
    if count is None:
        return [f"{kind} {name}{{{first}}};"]
    return [f"{kind} {name}[{count}];", f"for (auto& total : {name}) total = {{{first}}};"]


def _total_up_to(
    nest: LoopNest, name: str, element: str, lanes: int | None, first: str | None
) -> str:
    """The total up to an element (or a vector of them), which joins it. `lanes` tells that they are
    of one row, `first` which of them count (None: all)."""
    scan = nest.scan
    assert scan is not None
    x = f"cast<{ARITHMETIC[scan.dtype]}>({element})"
    call = f"{name}.across({x})"
    if lanes is not None:
        none = f"bc<{lanes}>({_start(scan)})"
        x = x if first is None else f"sel({first}, {x}, {none})"
        call = f"{name}.along({x}, {none})"
    return f"cast<{ARITHMETIC[nest.body.dtype]}>({call})"
