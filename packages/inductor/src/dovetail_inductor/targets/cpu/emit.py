"""One fused kernel to C++ source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.index import Index, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.sizes import is_symbolic, name_parts, names_in
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cpu.cpp_loops import Loops, decode_item
from dovetail_inductor.targets.cpu.narrow import is_transposed, moved_bits, narrowed
from dovetail_inductor.targets.cpu.picks import Pick, emit_pick, find_picks
from dovetail_inductor.targets.cpu.register_tiles import Tiles, TileWriter, find_tiles
from dovetail_inductor.targets.cpu.segments import Segment, ShortLoops, segments_of, short_loops
from dovetail_inductor.targets.cpu.shape import (
    TILE_BYTES,
    KernelShape,
    choose_shape,
    lanes_of,
)
from dovetail_inductor.targets.cpu.syntax import (
    ARITHMETIC,
    SIZE_FUNCTIONS,
    STORAGE,
    index_text,
    without_unread,
)
from dovetail_inductor.targets.cpu.vector_accumulators import Accumulators, totals_source
from dovetail_inductor.targets.cpu.writer import Name, Place, Writer


@dataclass(frozen=True)
class CppSource:
    """A kernel's function body, and the buffers whose pointers it takes, in order. The function's
    name stands as `@symbol@`, so that equal kernels have equal text."""

    text: str
    pointers: tuple[str, ...]
    sizes: tuple[str, ...] = ()  # the symbols whose values it takes, in order


def emit_kernel(
    builder: Builder, kernel: FusedKernel, buffers: Mapping[str, Buffer], simd_bytes: int
) -> tuple[CppSource, KernelShape]:
    """C++ for a kernel, and the loops that were chosen for it."""
    kernel, buffers = moved_bits(builder, kernel, buffers)
    tiles = find_tiles(builder, kernel, simd_bytes)
    if tiles is not None:
        return _Emitter(kernel, tiles.shape, buffers, tiles=tiles).run(), tiles.shape
    short = short_loops(builder, kernel)
    small = replace(short.kernel, nests=narrowed(builder, short.kernel.nests))
    shape = choose_shape(small, simd_bytes)
    by_lane = shape.vector is not None and any(
        end.coefficient(shape.vector) for end in short.ends.values()
    )
    if by_lane:  # they would end at another place in each lane
        short = ShortLoops(kernel)
        small = replace(kernel, nests=narrowed(builder, kernel.nests))
        shape = choose_shape(small, simd_bytes)
    shape = replace(shape, ends=frozenset(short.ends))
    segments: tuple[Segment, ...] = ()
    if not short.ends:
        shape, segments = _in_segments(builder, kernel, shape, simd_bytes)
    return _Emitter(small, shape, buffers, short.ends, segments).run(), shape


def _in_segments(
    builder: Builder, kernel: FusedKernel, shape: KernelShape, simd_bytes: int
) -> tuple[KernelShape, tuple[Segment, ...]]:
    """The segments of the vectorised loop, and the loops for them."""
    v = shape.vector
    if v is None or shape.by_row or shape.tile is not None:
        return shape, ()
    found = tuple(
        replace(one, nests=narrowed(builder, one.nests)) for one in segments_of(builder, kernel, v)
    )
    if not found:
        return shape, ()
    lanes = min(lanes_of(one.nests, one.var, v.size, simd_bytes) for one in found)
    return replace(shape, lanes=lanes), found


class _Emitter:
    def __init__(
        self,
        kernel: FusedKernel,
        shape: KernelShape,
        buffers: Mapping[str, Buffer],
        ends: Mapping[int, Index] = {},
        segments: Sequence[Segment] = (),
        tiles: Tiles | None = None,
    ) -> None:
        self.kernel = kernel
        self.tiles = tiles
        self.ends = ends
        self.segments = segments
        self.segment: Segment | None = None  # the one that is written
        self.shape = shape
        self.buffers = buffers
        self.phases = kernel.phases()
        self.pointers: dict[str, str] = {}
        self.scratch: dict[str, Place] = {}
        self.picks: dict[tuple[str, int], dict[int, Pick]] = {}
        self.heap: list[str] = []  # scratch of symbolic size, taken once a call
        self.writer = Writer(shape.vector, shape.lanes, self.place)
        self.accumulators = Accumulators(shape, self.writer)
        self.loops = Loops(shape, self.writer, self.accumulators)
        self.full = [n for n in kernel.nests if kernel.is_full(n) or not kernel.columns]

    def place(self, buffer: str) -> Place:
        """Where `buffer` is read or written: in memory, or in the copy of a row."""
        if buffer in self.scratch:
            place = self.scratch[buffer]
            if self.segment is None or place.index is None:
                return place
            # As in the segment's own nests: a variable of one value is that value, not a variable.
            return replace(place, index=self.segment.placed(place.index))
        if buffer not in self.pointers:
            self.pointers[buffer] = f"p{len(self.pointers)}"
        return Place(self.pointers[buffer])

    # --- the function -----------------------------------------------------------------------------

    def run(self) -> CppSource:
        w = self.writer
        w.open([v for v in self.shape.items if v is not self.shape.tile])
        if self.tiles is not None:
            TileWriter(self.tiles, w, self.place).run()
        elif self.kernel.columns:
            self._row_kernel()
        else:
            self._pass(self.full, [])
        body = w.close()
        loop = "  for (int64_t item = begin; item < end; ++item) {"
        item = without_unread([*decode_item(self.shape), *self._ends(), *body])
        text = "\n".join([*self.heap, loop, *(f"    {line}" for line in item), "  }", "}"])
        symbols = names_in(text)
        parts, text = name_parts(text)
        sizes = "const int64_t* sizes" if symbols else "const int64_t*"
        head = [
            f'extern "C" void @symbol@(void* const* pointers, {sizes}, int64_t begin, '
            "int64_t end) {"
        ]
        if symbols:
            head.insert(0, SIZE_FUNCTIONS)
        if self.accumulators.totals:
            head.insert(0, totals_source())
        for place, symbol in enumerate(symbols):
            head.append(f"  const int64_t size_{symbol} = sizes[{place}];")
        head += [f"  const int64_t {name} = {part};" for name, part in parts.items()]
        for place, (buffer, name) in enumerate(self.pointers.items()):
            kind = STORAGE[self.buffers[buffer].dtype]
            head.append(f"  auto {name} = ({kind}*)pointers[{place}];")
        return CppSource("\n".join([*head, text]) + "\n", tuple(self.pointers), symbols)

    def _ends(self) -> list[str]:
        """Where this item's loops over columns end."""
        lines = []
        sizes = {v.id: v.size for v in self.kernel.columns}
        for v, index in self.ends.items():
            end, name = index_text(index, lambda v: f"i{v.id}", lambda e: ""), f"end{v}"
            lines.append(f"int64_t {name} = {end};")
            lines.append(f"{name} = {name} < 0 ? 0 : {name} < {sizes[v]} ? {name} : {sizes[v]};")
        return lines

    # --- kernels with columns ---------------------------------------------------------------------

    def _row_kernel(self) -> None:
        kernel = self.kernel
        last = max(self.phases.values())
        for phase in range(last + 1):
            mine = [n for n in kernel.nests if self.phases[n.buffer] == phase]
            rows = [n for n in mine if n.reduction is None and not kernel.is_full(n)]
            reductions = [n for n in mine if n.reduction is not None]
            if rows:
                self._rows(rows)
            passing = [n for n in mine if n.reduction is not None or kernel.is_full(n)]
            if passing:
                self._pass(passing, reductions)

    def _rows(self, nests: Sequence[LoopNest]) -> None:
        """Nests over rows alone."""
        if self.shape.by_row:
            self.loops.vector([], lambda: self._row_nests(nests))
        else:
            self._row_nests(nests)

    def _row_nests(self, nests: Sequence[LoopNest]) -> None:
        w = self.writer
        self._forward_rows()
        for nest in nests:
            value = interpret([nest.body], w, w.memo)[0]
            self._keep_row(nest, value)

    def _forward_rows(self) -> None:
        """Within a loop over a block of rows, the earlier rows' values are read from arrays."""
        if not self.shape.by_row:
            return
        w = self.writer
        for buffer, array in self.accumulators.names.items():
            w.forwarded[buffer] = Name(f"{array}[u]", True, len(w.scopes) - 1)

    def _keep_row(self, nest: LoopNest, value: Name) -> None:
        """Remember (and store, if others read it) one row's value."""
        w = self.writer
        names = self.accumulators.names
        if self.shape.by_row:
            if nest.buffer not in names:
                names[nest.buffer] = f"row{len(names)}"
                self.accumulators.array(names[nest.buffer], nest.body.dtype)
            array = names[nest.buffer]
            w.line(f"{array}[u] = {w.as_vector(value)};")
        w.forwarded[nest.buffer] = Name(value.text, value.vector, len(w.scopes) - 1)
        if nest.buffer not in self.kernel.internal:
            w.store(self.place(nest.buffer), nest.index, value)

    # --- one pass over the columns ----------------------------------------------------------------

    def _pass(self, nests: Sequence[LoopNest], reductions: Sequence[LoopNest]) -> None:
        for nest in nests:
            if nest.reduction is None and self._read_later(nest):
                self._declare_scratch(nest)
            if nest.scan is not None:
                self.accumulators.declare_totals(nest)
        for nest in reductions:
            self.accumulators.declare(nest)
        loops = self.shape.column_loops
        if self.shape.vector is None:
            self.loops.scalar(loops, lambda: self._inner(nests))
        elif self.shape.tile is not None:
            self._tiled(nests)
        else:
            parts = [(one, partial(self._in_segment, one, nests)) for one in self.segments]
            self.loops.vector(loops, lambda: self._inner(nests), bool(reductions), parts)
        self._finish(reductions)

    def _in_segment(self, segment: Segment, nests: Sequence[LoopNest]) -> None:
        """The body of a pass, as it is in a segment."""
        names = [nest.buffer for nest in nests]
        self.segment, self.writer.vector = segment, segment.var
        self._inner([nest for nest in segment.nests if nest.buffer in names])
        self.segment, self.writer.vector = None, self.shape.vector

    def _tiled(self, nests: Sequence[LoopNest]) -> None:
        """Transpose what lies across into tiles, for a stripe of vectors; then use them."""
        w, shape = self.writer, self.shape
        tile, vector, n = shape.tile, shape.vector, shape.lanes
        assert tile is not None and vector is not None
        inside = self.kernel.writes()
        loads = {
            load.uid: load
            for nest in nests
            for load in nest.loads
            if is_transposed(load, vector) and load.index.coefficient(tile) == 1
            if load.buffer not in inside
        }
        types = [self.buffers[load.buffer].dtype for load in loads.values()]
        height = shape.tile_height
        stripe = max(1, TILE_BYTES // (height * n * sum(t.itemsize for t in types))) * n
        names = {uid: f"tile{position}" for position, uid in enumerate(loads)}

        def transpose() -> None:
            count = "n" if w.tail else str(n)
            for uid, load in loads.items():
                address = index_text(
                    load.index, lambda v: "top" if v.id == tile.id else f"i{v.id}", lambda e: ""
                )
                w.line(
                    f"transpose<{n}, {height}>({names[uid]} + {height} * (i{vector.id} - first), "
                    f"{self.place(load.buffer).pointer} + {address}, "
                    f"{load.index.coefficient(vector)}, {count}, height);"
                )

        w.tiles = {
            uid: f"{name} + {height} * (i{vector.id} - first) + {n} * (i{tile.id} - top)"
            for uid, name in names.items()
        }
        for name, dtype in zip(names.values(), types, strict=True):
            w.line(f"alignas(64) {STORAGE[dtype]} {name}[{stripe * height}];")
        self.loops.tiles(stripe, transpose, lambda: self._inner(nests))
        w.tiles = {}

    def _inner(self, nests: Sequence[LoopNest]) -> None:
        """The body of a pass, at one point (or vector of points)."""
        w = self.writer
        self._forward_rows()
        for nest in nests:
            # A store may change what memory holds, and so what a load gives, only where this kernel
            # itself is the reader; those reads are forwarded.
            for uid, pick in self._picks(nest).items():
                picked = emit_pick(pick, w)
                if picked is not None:
                    w.memo[uid] = picked
            value = interpret(nest.values, w, w.memo)[0]
            if nest.reduction is not None:
                self.accumulators.update(nest, value)
                continue
            if nest.scatter is not None:
                w.scatter(self.place(nest.buffer), nest.index, nest.scatter, value)
                continue
            if nest.scan is not None:
                value = self.accumulators.total(nest, value)
            if nest.buffer not in self.kernel.internal:
                w.store(self.place(nest.buffer), nest.index, value)
            w.forwarded[nest.buffer] = Name(value.text, value.vector, len(w.scopes) - 1)
            if nest.buffer in self.scratch:
                place = self.place(nest.buffer)
                assert place.index is not None
                w.store(place, place.index, value)

    def _picks(self, nest: LoopNest) -> dict[int, Pick]:
        """The choices among loads that are a choice among pointers; those not made yet."""
        if self.writer.vector is None:
            return {}
        key = (nest.buffer, 0 if self.segment is None else self.segment.start)
        if key not in self.picks:
            inside = self.kernel.writes()
            outside = {name: b for name, b in self.buffers.items() if name not in inside}
            self.picks[key] = find_picks(nest.values, self.writer.vector, outside)
        found = self.picks[key]
        return {uid: pick for uid, pick in found.items() if uid not in self.writer.memo}

    # --- values that a later pass reads again -----------------------------------------------------

    def _read_later(self, nest: LoopNest) -> bool:
        if nest.buffer not in self.kernel.internal or not self.kernel.columns:
            return False
        own = self.phases[nest.buffer]
        return any(
            self.phases[other.buffer] > own and nest.buffer in other.reads()
            for other in self.kernel.nests
        )

    def _declare_scratch(self, nest: LoopNest) -> None:
        """An array on the stack that holds one row (or block of rows) of a value."""
        name = f"scratch{len(self.scratch)}"
        shape = self.shape
        loops = list(shape.loops)
        block = shape.block if shape.by_row and shape.block is not None else 1
        columns = [v for v in loops if not (shape.by_row and v is shape.vector)]
        strides: list[int] = []
        step = block
        for v in reversed(columns):
            strides.insert(0, step)
            step *= v.size
        index = linear([variable(v) for v in columns], strides)
        pointer = name
        if shape.by_row:
            assert shape.vector is not None
            index = index + variable(shape.vector)
            pointer = f"({name} - first)"
        self.scratch[nest.buffer] = Place(pointer, index)
        dtype = nest.body.dtype
        kind = "bool8" if dtype is torch.bool else ARITHMETIC[dtype]
        if is_symbolic(step):
            self.heap.append(f"  Scratch {name}_memory({step} * (int64_t)sizeof({kind}));")
            self.heap.append(f"  {kind}* const {name} = ({kind}*){name}_memory.data;")
            return
        self.writer.scopes[0].lines.append(f"alignas(64) {kind} {name}[{max(step, 1)}];")

    # --- after a pass -----------------------------------------------------------------------------

    def _finish(self, reductions: Sequence[LoopNest]) -> None:
        """The reductions' results become rows' values."""
        if not reductions:
            return
        if not self.shape.by_row:
            for nest in reductions:
                self._keep_row(nest, self.accumulators.result(nest))
            return
        self.accumulators.finish_cascades()
        for nest in reductions:
            self.accumulators.keep_positions(nest)
        stored = [n for n in reductions if n.buffer not in self.kernel.internal]
        if stored:
            self.loops.vector([], lambda: self._store_rows(stored))

    def _store_rows(self, nests: Sequence[LoopNest]) -> None:
        w = self.writer
        for nest in nests:
            array = self.accumulators.names[nest.buffer]
            w.store(
                self.place(nest.buffer), nest.index, Name(f"{array}[u]", True, len(w.scopes) - 1)
            )
