"""What reductions and scans of a kernel keep from block to block of columns, and what they make of
it in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.loop_ir.loops import LoopNest, Scan
from dovetail_inductor.loop_ir.reduction import PROD, SUM, Reduction
from dovetail_inductor.scheduler.loops import position_index
from dovetail_inductor.targets.cuda.body import Lines, literal
from dovetail_inductor.targets.cuda.tiling import Tiling
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES, emit_op


@dataclass
class Accumulator:
    """A running reduction: the block name, and for argmax/argmin the block of positions; `found`
    names the extreme elements and their positions, once they are known."""

    nest: LoopNest
    value: str
    position: str | None = None
    found: str | None = None


@dataclass(frozen=True)
class Accumulators:
    """Writes the statements of reductions and scans under a tiling. With `wide`, positions have 64
    bits. `index` gives the text of an index."""

    lines: Lines
    tiling: Tiling
    wide: bool
    index: Callable[[Index], str]

    @property
    def _far(self) -> int:
        """A position after every column."""
        return 2**62 if self.wide else 2**31 - 1

    # --- reductions --------------------------------------------------------------------------

    def start(self, nest: LoopNest) -> Accumulator:
        """A reduction of nothing."""
        value = self.lines.define(self._neutral(nest), "acc")
        if not nest.with_index:
            return Accumulator(nest, value)
        # (Columns counted in order: as if the first at each place held the neutral element.)
        first = f"tl.arange(0, {self.tiling.axes[-1].block})[None, :]"
        places = first if self._counts_columns(nest) else str(self._far)
        shape = self.tiling.accumulator_shape
        return Accumulator(nest, value, self._positions(places, shape))

    def whole_row(self, nest: LoopNest, value: str) -> Accumulator:
        """A whole row in one block: neutral elements where the block hangs over."""
        axis, shape = self.tiling.axes[-1], self._block_shape()
        value = self.lines.define(f"tl.broadcast_to({value}, {shape})")
        if axis.masked:
            neutral = self._neutral(nest, literal_only=True)
            value = self.lines.define(f"tl.where({axis.mask}, {value}, {neutral})")
        if not nest.with_index:
            return Accumulator(nest, value)
        return Accumulator(nest, value, self._positions(self._places(nest), shape))

    def _positions(self, places: str, shape: str) -> str:
        kind = "tl.int64" if self.wide else "tl.int32"
        return self.lines.define(f"tl.full({shape}, 0, {kind}) + {places}", "pos")

    def _counts_columns(self, nest: LoopNest) -> bool:
        """Whether elements are counted in the order in which columns are gone through."""
        return nest.reduce_vars == self.tiling.axes[-1].vars

    def _places(self, nest: LoopNest) -> str:
        """A block's positions among the elements of a row, after all where it hangs over."""
        axis = self.tiling.axes[-1]
        if self._counts_columns(nest):
            return axis.name
        places = self.lines.define(self.index(position_index(nest)))
        return f"tl.where({axis.mask}, {places}, {self._far})" if axis.masked else places

    def _finder(self, nest: LoopNest, in_order: bool = False) -> str:
        """The helper that finds the better of two elements with their positions, of which with
        `in_order` the second comes later."""
        assert nest.reduction is not None
        name = "dv_next" if in_order else "dv_first"
        return f"{name}_{'max' if nest.reduction.finds_largest else 'min'}"

    def accumulate(self, accumulator: Accumulator, value: str) -> None:
        """A block taken in."""
        axis = self.tiling.axes[-1]
        acc, nest = accumulator.value, accumulator.nest
        dtype = nest.body.dtype
        value = self.lines.define(f"tl.broadcast_to({value}, {self._block_shape()})")
        assert nest.reduction is not None
        if accumulator.position is not None:
            if axis.masked:
                value = f"tl.where({axis.mask}, {value}, {acc})"
            finder = self._finder(nest, self._counts_columns(nest))
            position = accumulator.position
            self.lines.add(
                f"{acc}, {position} = {finder}({acc}, {position}, {value}, {self._places(nest)})"
            )
            return
        if self.tiling.folds > 1:
            value = self._folded(nest, value)
        both = emit_op(nest.reduction.combine, [acc, value], dtype, dtype)
        if axis.masked and self.tiling.folds == 1:
            both = f"tl.where({axis.mask}, {both}, {acc})"
        self.lines.add(f"{acc} = {both}")

    def rescale(self, total: Accumulator, before: str, maximum: str, value: str) -> None:
        """One step of the online softmax: the running sum moves to the new running maximum
        (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). Of a folded
        block once for all its rows."""
        axis = self.tiling.axes[-1]
        shift = self.lines.define(f"tl.where({maximum} == float('-inf'), 0.0, {maximum})")
        if self.tiling.folds > 1:
            added = f"tl.broadcast_to(tl.exp({value} - {shift}), {self._block_shape()})"
            added = self._folded(total.nest, self.lines.define(added))
            self.lines.add(f"{total.value} = {total.value} * tl.exp({before} - {shift}) + {added}")
            return
        step = f"{total.value} * tl.exp({before} - {shift}) + tl.exp({value} - {shift})"
        if axis.masked:
            step = f"tl.where({axis.mask}, {step}, {total.value})"
        self.lines.add(f"{total.value} = {step}")

    def across(self, nest: LoopNest, accumulator: Accumulator) -> str:
        """The result of each row for `nest`: where its extreme element is, or that itself."""
        acc = accumulator.value
        dtype = nest.body.dtype
        along = len(self.tiling.axes) - 1
        spread = "[" + ", ".join([":"] * along + ["None"]) + "]"
        assert nest.reduction is not None
        if accumulator.position is not None:
            if accumulator.found is None:
                both = f"tl.reduce(({acc}, {accumulator.position}), {along}, {self._finder(nest)})"
                accumulator.found = self.lines.define(both)
            if nest.with_index:
                return self.lines.define(f"{accumulator.found}[1]{spread}.to(tl.int64)")
            return self.lines.define(f"{accumulator.found}[0]{spread}")
        return self.lines.define(_reduced(nest.reduction, acc, dtype, along) + spread)

    def _folded(self, nest: LoopNest, value: str) -> str:
        """The rows of a folded block reduced to one."""
        axis = self.tiling.axes[-1]
        if axis.masked:
            neutral = self._neutral(nest, literal_only=True)
            value = self.lines.define(f"tl.where({axis.mask}, {value}, {neutral})")
        dtype = nest.body.dtype
        assert nest.reduction is not None
        return self.lines.define(_reduced(nest.reduction, value, dtype, 0) + "[None, :]")

    def _block_shape(self) -> str:
        return self.tiling.shape(-1)

    def _neutral(self, nest: LoopNest, literal_only: bool = False) -> str:
        dtype = nest.body.dtype
        assert nest.reduction is not None
        value = nest.reduction.identity(dtype)
        if literal_only:
            return literal(value, dtype, len(self.tiling.axes))
        one = literal(value, dtype, len(self.tiling.axes))
        shape = self.tiling.accumulator_shape
        return one.replace(one[one.index("[") : one.index("]") + 1], shape, 1)

    # --- scans -------------------------------------------------------------------------------

    def no_total(self, scan: Scan, rows: int) -> str:
        """The totals of no elements, for the rows of the variables in the bit set `rows`; those of
        logarithms are two (see `dv_add_logs`)."""
        numbers = [scan.neutral, *([0.0] if scan.reduction.adds_logarithms else [])]
        ones = [literal(number, scan.dtype, len(self.tiling.axes)) for number in numbers]
        shape = self.tiling.shape(rows)
        return ", ".join(
            self.lines.define(f"tl.broadcast_to({one}, {shape})", "total") for one in ones
        )

    def running_total(self, nest: LoopNest, scan: Scan, element: str, before: str | None) -> str:
        """The totals up to each element of a block: what lies behind the end comes after all.
        `before` holds those of the blocks before, and gets this one's."""
        along, how = len(self.tiling.axes) - 1, scan.reduction
        spread = "[" + ", ".join([":"] * along + ["None"]) + "]"
        if scan.dtype is not nest.body.dtype:
            element = f"({element}).to({TRITON_TYPES[scan.dtype]})"
        element = self.lines.define(f"tl.broadcast_to({element}, {self._block_shape()})")
        if how.adds_logarithms:
            value = self._logarithms(scan, element, before)
        else:
            value = self.lines.define(_scanned(how, element, along))
        if before is not None and not how.adds_logarithms:
            value = self.lines.define(f"{_COMBINING[how.combine]}({before}, {value})")
            block = _block_total(how, element, along) + spread
            self.lines.add(f"{before} = {_COMBINING[how.combine]}({before}, {block})")
        if scan.dtype is not nest.body.dtype:
            value = self.lines.define(f"{value}.to({TRITON_TYPES[nest.body.dtype]})")
        return value

    def _logarithms(self, scan: Scan, element: str, before: str | None) -> str:
        """Totals of what elements are logarithms of: one exponential and no logarithm to combine
        two, and one logarithm for each in the end."""
        axis, along = self.tiling.axes[-1], len(self.tiling.axes) - 1
        parts = [self.lines.fresh(), self.lines.fresh()]
        both = ", ".join(parts)
        ones = f"tl.full({self._block_shape()}, 1.0, {TRITON_TYPES[scan.dtype]})"
        self.lines.add(f"{both} = tl.associative_scan(({element}, {ones}), {along}, dv_add_logs)")
        if before is not None:
            self.lines.add(f"{both} = dv_add_logs({before}, {both})")
            last = self.lines.define(f"({axis.name} == start + {axis.block - 1})")
            for total, part in zip(before.split(", "), parts, strict=True):
                chosen = f"tl.sum(tl.where({last}, {part}, 0.0), {along})"
                self.lines.add(f"{total} = tl.expand_dims({chosen}, {along})")
        return self.lines.define(f"({parts[0]} + tl.log({parts[1]}))")


# --- the text of reductions and scans -------------------------------------------------------------

# Triton's own reductions, by the op that combines two partial results, and functions of ours: of
# floats, too, where Triton's lose a NaN.
_OWN = {"add": "tl.sum", "maximum": "tl.max", "minimum": "tl.min", "bitwise_xor": "tl.xor_sum"}
_COMBINING = {
    "add": "dv_add", "mul": "dv_mul", "maximum": "dv_max", "minimum": "dv_min",
}  # fmt: skip


def _reduced(reduction: Reduction, value: str, dtype: torch.dtype, along: int) -> str:
    """A block reduced along a dimension, which the result does not have."""
    if dtype is torch.bool and not reduction.is_sum:
        kind = "max" if reduction.is_true_if_any else "min"
        return f"(tl.{kind}({value}.to(tl.int32), {along}) != 0)"
    own = _OWN.get(reduction.combine)
    if own is not None and not (dtype.is_floating_point and own in ("tl.max", "tl.min")):
        return _own_type(f"{own}({value}, {along})", dtype)
    return f"tl.reduce({value}, {along}, {_COMBINING[reduction.combine]})"


def _own_type(text: str, dtype: torch.dtype) -> str:
    """A result of Triton's own reductions in the type of its operand: of integers of 1 or 2 bytes
    they make one of 4, in which arithmetic does not wrap around where it should."""
    if dtype.is_floating_point or dtype.itemsize >= 4:
        return text
    return f"{text}.to({TRITON_TYPES[dtype]})"


def rounded_product(a: str, b: str) -> str:
    """A product of floats whose elements are added up across threads.

    The threads that share a row each compute its sum, and may all store it to the same place, which
    is a race unless they agree. They do if every sum of two is the same whichever of the two comes
    first: it must not be fused with a product into one rounding (that of the thread's own element).
    Nothing can be fused with this, nor made of it the product alone: of -0.0 it makes 0.0.
    """
    return f"tl.fma({a}, {b}, 0.0)"


def _scanned(reduction: Reduction, value: str, along: int) -> str:
    """A block of the totals up to each element along a dimension."""
    if reduction in (SUM, PROD):
        return f"tl.cum{reduction}({value}, {along})"
    return f"tl.associative_scan({value}, {along}, {_COMBINING[reduction.combine]})"


def _block_total(reduction: Reduction, value: str, along: int) -> str:
    """The total of a block along a dimension, which the result does not have."""
    if reduction.is_sum:
        return f"tl.sum({value}, {along})"
    return f"tl.reduce({value}, {along}, {_COMBINING[reduction.combine]})"
