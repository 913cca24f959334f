"""Sums of products whose operands many results share: several results at a time, in registers.

Each tap of a window by channel is read for every pixel, and neighbours read the same pixels. A tile
of neighbours is computed at a time: what they share is read once, and their sums stay in registers
until all that follows them is computed, too. Conditions of the images' borders are none: rows of
taps end where the image does, and columns of pixels fall into segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, rename
from dovetail_inductor.loop_ir.handlers import count, interpret
from dovetail_inductor.loop_ir.index import Index, Var, constant, variable
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cpu.segments import Segment, segments_of
from dovetail_inductor.targets.cpu.shape import GRAIN_COST, KernelShape, is_plain_along, lanes_of
from dovetail_inductor.targets.cpu.syntax import index_text
from dovetail_inductor.targets.cpu.writer import Name, Place, Writer

# Results of a tile at the most, and vectors side by side where these share operands, by the bytes
# of a vector: their sums and what they read have 32 registers, or 16.
_SIDES = {64: (7, 3), 32: (6, 2), 16: (6, 2)}


@dataclass(frozen=True)
class Tiles:
    """A kernel of sums of products in tiles of results.

    shape: its loops, of which the last two are along the tiles and along vectors.
    high, wide: how many results a tile has at the most, and vectors side by side.
    summed: the loop over a sum's terms within which those of the others are written out (None:
        all are), from the largest of `begins` to the least of `ends`.
    segments: the kernel along the tiles, in which a nest that reduces stands once for each term.
    """

    builder: Builder
    kernel: FusedKernel
    shape: KernelShape
    high: int
    wide: int
    summed: Var | None
    begins: tuple[Index, ...]
    ends: tuple[Index, ...]
    segments: tuple[Segment, ...]


def find_tiles(builder: Builder, kernel: FusedKernel, simd_bytes: int) -> Tiles | None:
    """How a kernel is computed in tiles; None of another than of sums of products with what follows
    them, side by side along one variable and next to one another along a second."""
    sums = [nest for nest in kernel.nests if nest.reduction is not None]
    if not sums or any(n.reduction is None or not n.reduction.of_products for n in sums):
        return None
    if any(n.scatter or n.scan or n.is_symbolic for n in kernel.nests):
        return None
    if (
        any(set(n.vars) != set(kernel.rows) for n in kernel.nests)
        or max(kernel.phases().values()) > 1
    ):
        return None
    vector = next((v for v in kernel.rows if sums[0].index.coefficient(v) == 1), None)
    others = [v for v in kernel.rows if v != vector]
    if vector is None or not others:
        return None
    for nest in kernel.nests:
        if nest.index.coefficient(vector) != 1 or not is_plain_along(nest, vector):
            return None
    along = min(others, key=lambda v: sums[0].index.coefficient(v) or 0)
    asks = isinstance(sums[0].body, Apply) and sums[0].body.op == "where"
    summed = None if asks and len(kernel.columns) == 1 else kernel.columns[0]
    high, wide = _SIDES[simd_bytes]
    wide = wide if any(_is_shared(nest, vector) for nest in sums) else 1
    limits = _limits(sums, summed, along)
    terms = [one for nest in kernel.nests for one in _terms(builder, nest, summed, limits)]
    written = replace(kernel, nests=tuple(terms))
    whole = (Segment(0, along, written.nests),)
    bounds = [(_bound(c, summed), c.op == "ge") for c in limits if summed is not None]
    return Tiles(
        builder,
        kernel,
        _shape(kernel, vector, along, wide, simd_bytes),
        high,
        wide,
        summed,
        tuple(index for index, begins in bounds if begins),
        tuple(index for index, begins in bounds if not begins),
        segments_of(builder, written, along, short=True) or whole,
    )


def _is_shared(nest: LoopNest, vector: Var) -> bool:
    """Whether vectors side by side read an operand in common."""
    return any(not load.free >> vector.id & 1 for load in nest.loads)


def _shape(kernel: FusedKernel, vector: Var, along: Var, wide: int, simd_bytes: int) -> KernelShape:
    """The loops of a kernel: an item is a row of tiles, or one across where there is but one."""
    lanes = lanes_of(kernel.nests, vector, vector.size, simd_bytes)
    items = tuple(v for v in kernel.rows if v not in (vector, along))
    block = None if items else lanes * _width(vector.size // lanes, wide)
    per_item = (block or vector.size) * along.size * kernel.column_points
    grain = max(1, GRAIN_COST // (per_item * sum(count(n.values).cost + 1 for n in kernel.nests)))
    return KernelShape(items, (along, vector), vector, lanes, block, False, grain)


def _width(vectors: int, most: int) -> int:
    """How many of these vectors are side by side in tiles as wide as one another, but the last."""
    return -(-vectors // -(-vectors // most)) if vectors else 1


def _limits(sums: Sequence[LoopNest], summed: Var | None, along: Var) -> list[Apply]:
    """The conditions on where a loop over terms is, but for how far `along` it is, outside of which
    every sum has none."""
    found: list[Apply] | None = None
    for nest in sums:
        body, own = nest.body, []
        if isinstance(body, Apply) and body.op == "where" and _is_zero(body.args[2]):
            own = [c for c in _conjuncts(body.args[0]) if _limits_loop(c, summed, along)]
        found = own if found is None else [c for c in found if c in own]
    return found or []


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.value == 0


def _conjuncts(condition: Expr) -> Iterator[Apply]:
    if isinstance(condition, Apply) and condition.op == "bitwise_and":
        for part in condition.args:
            yield from _conjuncts(part)
    elif isinstance(condition, Apply):
        yield condition


def _limits_loop(condition: Apply, summed: Var | None, along: Var) -> bool:
    if summed is None or condition.op not in ("ge", "lt"):
        return False
    place, bound = condition.args
    if not isinstance(place, IndexValue) or not isinstance(bound, Constant):
        return False
    plain = all(isinstance(atom, Var) for atom, _ in place.index.terms)
    return plain and place.index.coefficient(summed) == 1 and not place.free >> along.id & 1


def _bound(condition: Apply, summed: Var) -> Index:
    """Where a loop begins or ends by a condition on it."""
    place, bound = condition.args
    assert isinstance(place, IndexValue) and isinstance(bound, Constant)
    return (place.index - variable(summed)) * -1 + int(bound.value)


def _terms(
    builder: Builder, nest: LoopNest, summed: Var | None, limits: Sequence[Expr]
) -> Iterator[LoopNest]:
    """A nest for each term of a sum within the loop `summed`, and within its limits."""
    if nest.reduction is None:
        yield nest
        return
    known = {limit.uid: builder.constant(True, torch.bool) for limit in limits}
    points: list[dict[int, int]] = [{}]
    for v in nest.reduce_vars:
        if v != summed:
            points = [{**point, v.id: k} for point in points for k in range(v.size)]
    loops = () if summed is None else (summed,)
    for point in points:

        def at(v: Var, point: dict[int, int] = point) -> Index:
            return constant(point[v.id]) if v.id in point else variable(v)

        body = rename(builder, [nest.body], at, known=known)[0]
        yield replace(nest, reduce_vars=loops, body=body)


# --- text -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileWriter:
    """Writes the loops of a kernel in tiles; `place` says where buffers are."""

    tiles: Tiles
    writer: Writer
    place: Callable[[str], Place]

    def run(self) -> None:
        """The statements of one item."""
        w, tiles = self.writer, self.tiles
        for name, sign, given, limit in (
            ("from", ">", tiles.begins, "0"),
            ("to", "<", tiles.ends, str(tiles.summed.size if tiles.summed else 1)),
        ):
            w.line(f"int64_t {name} = {limit};")
            for index in given:
                text = index_text(index, lambda v: f"i{v.id}", lambda e: "")
                w.line(f"{name} = {text} {sign} {name} ? {text} : {name};")
        vector, n = tiles.shape.loops[-1], w.lanes
        name, (vectors, rest) = f"i{vector.id}", divmod(vector.size, n)
        start, whole = 0, n * vectors
        while start < whole:  # as many side by side as in the first turns, then what is left
            wide = min(_width(vectors, tiles.wide), (whole - start) // n)
            end = whole - (whole - start) % (n * wide)
            begin, till = str(start), f"{name} < {end}"
            if tiles.shape.block is not None:
                begin, till = f"first > {start} ? first : {start}", f"{till} && {name} < last"
            head = f"for (int64_t {name} = {begin}; {till}; {name} += {n * wide}) {{"
            self._block([vector], head, partial(self._segments, wide))
            start = end
        if rest:
            w.tail = True
            head = "{" if tiles.shape.block is None else f"if (last == {vector.size}) {{"
            head += f" const int64_t {name} = {whole}; const int n = {rest};"
            self._block([vector], head, partial(self._segments, 1))
            w.tail = False

    def _block(self, loops: Sequence[Var], head: str, body: Callable[[], None]) -> None:
        """Statements behind the head of a loop or of a block."""
        w = self.writer
        w.open(loops)
        body()
        lines = w.close()
        w.scopes[-1].lines += [head, *(f"  {line}" for line in lines), "}"]

    def _segments(self, wide: int) -> None:
        """The tiles of each segment: as few as can be, as high as one another, then what is left;
        each so many vectors wide."""
        for segment in self.tiles.segments:
            size = segment.var.size
            high = -(-size // -(-size // self.tiles.high))
            self._tiles(segment, 0, size // high, (high, wide))
            if size % high:
                self._tiles(segment, size - size % high, 1, (size % high, wide))

    def _tiles(self, segment: Segment, start: int, count: int, sides: tuple[int, int]) -> None:
        """So many tiles with sides of so many results and vectors."""
        v, vector, (high, wide) = Var(segment.var.id, count), self.tiles.shape.loops[-1], sides
        first = variable(v) * high + start if count > 1 else constant(start)

        def moved(k: int, across: int, at: Var) -> Index:
            if at.id == v.id:
                return first + k
            return variable(at) + across * self.writer.lanes if at == vector else variable(at)

        parts = [
            [nest.renamed(self.tiles.builder, partial(moved, k, u)) for nest in segment.nests]
            for k in range(high)
            for u in range(wide)
        ]
        head = f"for (int64_t i{v.id} = 0; i{v.id} < {count}; ++i{v.id}) {{"
        self._block([v], head, lambda: self._tile(parts))

    def _tile(self, parts: Sequence[Sequence[LoopNest]]) -> None:
        """The sums of a tile, then what follows them."""
        w, n = self.writer, self.writer.lanes
        names: dict[tuple[int, str], str] = {}
        for k, nests in enumerate(parts):
            for nest in nests:
                if nest.reduction is not None and (k, nest.buffer) not in names:
                    names[k, nest.buffer] = f"sum{len(names)}"
                    w.line(f"V<float, {n}> {names[k, nest.buffer]} = bc<{n}>(0.0f);")
        summed = self.tiles.summed
        head = "{"
        if summed is not None:
            head = f"for (int64_t i{summed.id} = from; i{summed.id} < to; ++i{summed.id}) {{"

        def add_up() -> None:
            for k, nests in enumerate(parts):
                for nest in nests:
                    if nest.reduction is not None and not _is_zero(nest.body):
                        self._add(names[k, nest.buffer], nest.body)

        self._block([] if summed is None else [summed], head, add_up)
        for k, nests in enumerate(parts):
            for buffer in dict.fromkeys(nest.buffer for nest in nests):
                if (k, buffer) in names:
                    w.forwarded[buffer] = Name(names[k, buffer], True, len(w.scopes) - 1)
            stored: set[str] = set()
            for nest in nests:
                if nest.reduction is None:
                    value = interpret([nest.body], w, w.memo)[0]
                    w.forwarded[nest.buffer] = Name(value.text, value.vector, len(w.scopes) - 1)
                if nest.buffer not in self.tiles.kernel.internal | stored:
                    stored.add(nest.buffer)
                    w.store(self.place(nest.buffer), nest.index, w.forwarded[nest.buffer])

    def _add(self, name: str, body: Expr) -> None:
        """One term more of a sum: a product is not rounded before it is added."""
        w = self.writer
        if isinstance(body, Apply) and body.op == "mul":
            a, b = (w.as_vector(value) for value in interpret(body.args, w, w.memo))
            w.line(f"{name} = fma_({a}, {b}, {name});")
        else:
            w.line(f"{name} = {name} + {w.as_vector(interpret([body], w, w.memo)[0])};")
