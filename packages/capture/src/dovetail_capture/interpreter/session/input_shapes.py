"""Which sizes of the inputs are symbolic in one capture attempt."""

from __future__ import annotations

from typing import Any

import torch
from dovetail_guards import relations as rel
from dovetail_guards.ranges import Range
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import ItemSource, LocalSource, SizeSource, Source, StrideSource
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake.from_real import StrideSymbol

from dovetail_capture.dim_marks import Bounds, marks_of
from dovetail_capture.errors import CaptureError
from dovetail_capture.options import CaptureOptions


class InputShapes:
    """Makes the sizes of inputs, numbers or symbols, and keeps the symbols' `ShapeEnv`."""

    def __init__(self, options: CaptureOptions) -> None:
        self.env = ShapeEnv(locate=False)
        self.dynamic = options.dynamic
        self.static = options.static_graphs
        self.exports = options.exports
        self.plain_floats = self.static or options.learned.plain_floats
        self.changed = options.learned.sizes
        self.changed_names = frozenset(name for name, _ in self.changed)
        self.counters: frozenset[str] = (
            frozenset()
        )  # ints that the frame writes where it reads them
        self.marked: list[tuple[str, int, Source]] = []  # symbol, dimension, tensor

    def sizes_of(self, real: torch.Tensor, source: Source) -> list[Any] | None:
        """The sizes of a tensor input; None if all sizes and strides are numbers."""
        if self.static or isinstance(real, torch.nn.Parameter) or real.layout != torch.strided:
            return None
        marks = marks_of(real)
        loose = self._has_loose_strides(real, source)
        named = loose or str(source) in self.changed_names
        if marks is None and self.dynamic is not True and not named:
            return None
        sizes: list[Any] = []
        for dim, size in enumerate(real.shape):
            bounds = None if marks is None else marks.dynamic.get(dim)
            if marks is not None and dim in marks.unbacked:
                expr = self.env.create_undecided_size(int(size), SizeSource(source, dim))
                sizes.append(self.env.symint(expr))
                continue
            static = marks is not None and dim in marks.static
            wanted = bounds is not None or self.dynamic is True
            wanted = wanted or (str(source), dim) in self.changed
            if (self.dynamic is False and bounds is None) or static or not wanted:
                sizes.append(int(size))
                continue
            sizes.append(self._size(int(size), dim, source, bounds))
        return sizes if loose or any(type(size) is not int for size in sizes) else None

    def _has_loose_strides(self, real: torch.Tensor, source: Source) -> bool:
        """May strides of this tensor be symbols of their own?"""
        if self.dynamic is True or not self.changed:
            return self.dynamic is True
        places = (str(StrideSource(source, dim)) for dim in range(real.dim()))
        return any((place, -1) in self.changed for place in places)

    def stride_symbol(self, real: torch.Tensor, source: Source) -> StrideSymbol:
        """What makes the symbols for strides of a tensor input that do not follow from its sizes
        and changed before (or may, where sizes may by the user's word)."""
        marks = marks_of(real)
        may_change = self.dynamic is True or (marks is not None and bool(marks.dynamic))
        never = self.dynamic is False or self.exports  # (what is exported takes what it was given)

        def symbol(dim: int, least: Any) -> Any:
            place = StrideSource(source, dim)
            if never or not (may_change or (str(place), -1) in self.changed):
                return None
            made = self.env.create_size(int(real.stride(dim)), place, Dim.DYNAMIC)
            if made.value is None:
                self.env.guard_bool(rel.ge(made, expr_of(least)), "dimensions do not overlap")
            return self.env.symint(made)

        return symbol

    def _size(self, size: int, dim: int, source: Source, bounds: Bounds | None) -> Any:
        limits = None
        if bounds is not None:
            low = 2 if bounds.min is None else max(2, bounds.min)
            limits = Range(low, float("inf") if bounds.max is None else bounds.max)
            if size > 1 and size not in limits:
                raise CaptureError(
                    f"{source}.size({dim}) is {size}, but it was marked dynamic with "
                    f"min={bounds.min}, max={bounds.max}"
                )
        kind = Dim.OPEN if bounds is None and not self.exports else Dim.DYNAMIC
        expr = self.env.create_size(size, SizeSource(source, dim), kind, limits)
        if bounds is not None and bounds.strict and expr.symbol_name is not None:
            self.marked.append((expr.symbol_name, dim, source))
        return self.env.symint(expr)

    def has_changed(self, source: Source) -> bool:
        """Was the number there another one in another call?"""
        return (str(source), -1) in self.changed

    def number(self, real: int | float, source: Source) -> Any:
        """The value of an int or float input: a symbol if it changed before, or if all is
        dynamic."""
        name = str(source)
        counts = name in self.counters and type(real) is int
        if self.static and not counts:
            return real
        is_argument = type(source) is LocalSource or (
            type(source) is ItemSource and type(source.base) is LocalSource
        )
        if not counts and (name, -1) not in self.changed:
            if not (self.dynamic is True and is_argument):
                return real
        if isinstance(real, int) and not -(2**62) < real < 2**62:
            return real  # guards could not compute with it, in 64 bits
        if isinstance(real, float):
            if self.plain_floats:
                return real
            return self.env.symfloat(self.env.create_float(real, source))
        return self.env.symint(self.env.create_int(real, source, counts))

    def is_loose(self, stride: torch.SymInt, place: StrideSource) -> bool:
        """Is the stride at `place` a symbol of its own?"""
        return self.env.symbol_of(place) is expr_of(stride)

    def relate_strides(self, fake: Any, source: Source) -> tuple[int | None, ...]:
        """The strides for the tensor's clause; symbolic ones get a guard of their own."""
        strides: list[int | None] = []
        for dim, stride in enumerate(fake._strides):
            if isinstance(stride, torch.SymInt):
                place = StrideSource(source, dim)
                if not self.is_loose(stride, place):
                    self.env.relate_stride(expr_of(stride), place)
                strides.append(None)
            else:
                strides.append(int(stride))
        return tuple(strides)

    def check_marks(self) -> None:
        """Raise if a dimension that the user marked dynamic was tied to a number."""
        tied = set(self.env.specialized())
        for name, dim, source in self.marked:
            if name in tied:
                why = self.env.why_specialized(name)
                raise CaptureError(
                    f"{source}.size({dim}) is marked dynamic, but the program needs it to be "
                    f"{self.env.hints[name]}: {why}. Take the mark away, or change that line."
                )
