"""The loops of a generated function: an item's number taken apart, and loops within an item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dovetail_inductor.loop_ir.index import Var
from dovetail_inductor.loop_ir.sizes import is_multiple, is_symbolic
from dovetail_inductor.targets.cpu.segments import Segment
from dovetail_inductor.targets.cpu.shape import KernelShape
from dovetail_inductor.targets.cpu.vector_accumulators import Accumulators
from dovetail_inductor.targets.cpu.writer import Writer


def decode_item(shape: KernelShape) -> list[str]:
    """The item's variables from its number."""
    lines = []
    tile = shape.tile
    sizes = [
        ("block", -(-v.size // shape.tile_height)) if v is tile else (f"i{v.id}", v.size)
        for v in shape.items
    ]
    if shape.block is not None:
        assert shape.vector is not None
        sizes.append(("block", -(-shape.vector.size // shape.block)))
    rest = "item"
    for position, (name, size) in enumerate(reversed(sizes)):
        if position == len(sizes) - 1:
            lines.append(f"const int64_t {name} = {rest};")
        else:
            lines.append(f"const int64_t {name} = {rest} % {size};")
            if position < len(sizes) - 2:
                lines.append(f"const int64_t rest{position} = {rest} / {size};")
                rest = f"rest{position}"
            else:
                rest = f"{rest} / {size}"
    if tile is not None:
        n = shape.tile_height
        lines.append(f"const int64_t top = block * {n};")
        rows = (
            str(n)
            if is_multiple(tile.size, n)
            else f"top + {n} < {tile.size} ? {n} : {tile.size} - top"
        )
        lines.append(f"const int64_t height = {rows};")
    if shape.block is not None:
        assert shape.vector is not None
        block, size = shape.block, shape.vector.size
        lines.append(f"const int64_t first = block * {block};")
        end = f"first + {block}"
        if not is_multiple(size, block):
            end = f"{end} < {size} ? {end} : {size}"
        lines.append(f"const int64_t last = {end};")
    return lines


# Rows that are added to an accumulator at a time.
ROWS = 4
# What begins the block of what follows several vectors a turn.
_REST = "{ constexpr int64_t u = 0;"


@dataclass(frozen=True)
class Loops:
    """Writes loops around statements."""

    shape: KernelShape
    writer: Writer
    accumulators: Accumulators

    def scalar(self, loops: Sequence[Var], body: Callable[[], None]) -> None:
        """Loops over `loops`, one point at a time."""
        w = self.writer
        if not loops:
            w.open([])
            body()
            lines = w.close()
            w.line("{")
            w.scopes[-1].lines += [f"  {line}" for line in lines] + ["}"]
            return
        v, rest = loops[0], loops[1:]
        w.open([v])
        if rest:
            self.scalar(rest, body)
        else:
            body()
        self.wrap(self._head(v), w.close())

    def _head(self, v: Var) -> str:
        return f"for (int64_t i{v.id} = 0; i{v.id} < {self.shape.end(v)}; ++i{v.id})"

    def wrap(self, head: str, lines: Sequence[str]) -> None:
        """Statements under the head of a loop, or of a block."""
        out = self.writer.scopes[-1].lines
        out.append(f"{head} {{" if head else "{")
        out.extend(f"  {line}" for line in lines)
        out.append("}")

    def vector(
        self,
        loops: Sequence[Var],
        body: Callable[[], None],
        reducing: bool = False,
        segments: Sequence[tuple[Segment, Callable[[], None]]] = (),
    ) -> None:
        """Loops over `loops`, then over the vectorised variable: whole vectors, then the rest. With
        `segments`, one loop for each of these, in place of that over the variable."""
        w = self.writer
        if loops:
            v = loops[0]
            w.open([v])
            self.vector(loops[1:], body, reducing, segments)
            each = w.close()
            several: list[str] = []
            if reducing and self.shape.block is not None and len(loops) == 1:
                several = self._several_rows(v, body)
            step = self.accumulators.cascade_step(v) if reducing else None
            if step is not None:
                self._in_steps(v, step, each, self.accumulators.cascade(), several)
            elif several:
                w.scopes[-1].lines += self._rows(v, "0", str(self.shape.end(v)), each, several)
            else:
                self.wrap(self._head(v), each)
            return
        assert self.shape.vector is not None
        for segment, own in segments:
            if self.shape.block is None:
                self._along(segment.var, own, reducing)
            else:
                self._part_of_block(segment, own)
        if not segments:
            self._along(self.shape.vector, body, reducing)

    def tiles(self, stripe: int, transpose: Callable[[], None], body: Callable[[], None]) -> None:
        """One stripe of the vectorised variable after the other: `transpose` at each vector of it,
        then `body` at each vector of each row of the tile."""
        w, tile, vector = self.writer, self.shape.tile, self.shape.vector
        assert tile is not None and vector is not None
        within = replace(self, shape=replace(self.shape, block=stripe))
        w.open([])
        within.vector([], transpose)
        w.open([tile])
        within.vector([], body)
        head = f"for (int64_t i{tile.id} = top; i{tile.id} < top + height; ++i{tile.id})"
        self.wrap(head, w.close())
        last = f"const int64_t last = first + {stripe} < {vector.size} ? first + {stripe} : "
        head = f"for (int64_t first = 0; first < {vector.size}; first += {stripe})"
        self.wrap(head, [f"{last}{vector.size};", *w.close()])

    def _several_rows(self, v: Var, body: Callable[[], None]) -> list[str]:
        """The vectors of a stripe with a few rows of each at a time, whose accumulator then stays
        in a register from one to the next."""
        w, vector = self.writer, self.shape.vector
        assert vector is not None

        def rows() -> None:
            w.open([v])
            body()
            self.wrap(f"for (int64_t i{v.id} = row; i{v.id} < row + {ROWS}; ++i{v.id})", w.close())

        w.open([])
        self._along(vector, rows, True)
        return w.close()

    def _rows(
        self, v: Var, begin: str, end: str, each: Sequence[str], several: Sequence[str]
    ) -> list[str]:
        """Rows from `begin` to `end`, several at a time, then those that are left."""
        name = f"i{v.id}"
        return [
            f"{{ int64_t row = {begin};",
            f"for (; row + {ROWS} <= {end}; row += {ROWS}) {{",
            *(f"  {line}" for line in several),
            "}",
            f"for (int64_t {name} = row; {name} < {end}; ++{name}) {{",
            *(f"  {line}" for line in each),
            "} }",
        ]

    def _part_of_block(self, segment: Segment, body: Callable[[], None]) -> None:
        """What a block has of a segment."""
        w, n, v = self.writer, self.shape.lanes, segment.var
        name, start, size = f"i{v.id}", segment.start, v.size
        w.open([v])
        body()
        whole = w.close()
        w.open([v])
        w.tail = True
        body()
        w.tail = False
        tail = w.close()
        lines = [
            f"const int64_t begin = first > {start} ? first - {start} : 0;",
            f"const int64_t stop = last < {start + size} ? last - {start} : {size};",
            "int64_t at = begin;",
            f"for (; at + {n} <= stop; at += {n}) {{",
            f"  const int64_t {name} = at;",
            *(f"  {line}" for line in whole),
            "}",
            "if (at < stop) {",
            f"  const int64_t {name} = at;",
            "  const int n = (int)(stop - at);",
            *(f"  {line}" for line in tail),
            "}",
        ]
        self.wrap("", lines)

    def _along(self, vector: Var, body: Callable[[], None], reducing: bool) -> None:
        """Whole vectors along a variable, then the rest."""
        n = self.shape.lanes
        size, block = self.shape.end(vector), self.shape.block
        unrolls = reducing and self.shape.unroll > 1 and block is None
        unrolled = self._unrolled(vector, body) if unrolls else 0
        several = block is not None or isinstance(size, str) or is_symbolic(size)
        if several or isinstance(unrolled, str) or int(size) - unrolled >= n:
            self._whole_vectors(vector, body, unrolled)
        if isinstance(size, str) or not is_multiple(size, n):
            self._rest(vector, body)
        if unrolls:
            self._end_rest()

    def _end_rest(self) -> None:
        """End the block that `_unrolled` began, which is none if it has no statements."""
        lines = self.writer.scopes[-1].lines
        if lines[-1] == _REST:
            lines.pop()
        else:
            lines.append("}")

    def _unrolled(self, vector: Var, body: Callable[[], None]) -> int | str:
        """Several vectors a turn, each with accumulators of its own; gives where that ends. What
        follows it is a block in which there is one (`u` is 0)."""
        w, n, unroll = self.writer, self.shape.lanes, self.shape.unroll
        name, step = f"i{vector.id}", self.shape.lanes * self.shape.unroll
        size = self.shape.end(vector)
        end = f"{size} / {step} * {step}" if isinstance(size, str) else size // step * step
        w.open([vector])
        body()
        lines = w.close()
        self.wrap(
            f"for (int64_t base = 0; base < {end}; base += {step})",
            [
                f"for (int64_t u = 0, {name} = base; u < {unroll}; ++u, {name} += {n}) {{",
                *(f"  {line}" for line in lines),
                "}",
            ],
        )
        w.line(_REST)
        return end

    def _whole_vectors(self, vector: Var, body: Callable[[], None], start: int | str) -> None:
        w, n, block = self.writer, self.shape.lanes, self.shape.block
        name, size = f"i{vector.id}", self.shape.end(vector)
        w.open([vector])
        body()
        if block is not None and is_multiple(vector.size, block):
            head = f"for (int64_t u = 0, {name} = first; u < {block // n}; ++u, {name} += {n})"
        elif block is not None:
            head = f"for (int64_t u = 0, {name} = first; {name} + {n} <= last; ++u, {name} += {n})"
        else:
            end = f"{size} / {n} * {n}" if isinstance(size, str) else size // n * n
            head = f"for (int64_t {name} = {start}; {name} < {end}; {name} += {n})"
        self.wrap(head, w.close())

    def _rest(self, vector: Var, body: Callable[[], None]) -> None:
        """What does not fill a vector."""
        w, n, block = self.writer, self.shape.lanes, self.shape.block
        name, size = f"i{vector.id}", self.shape.end(vector)
        w.open([vector])
        w.tail = True
        body()
        w.tail = False
        lines = w.close()
        if isinstance(size, str):
            start, rest = f"{size} / {n} * {n}", f"(int)({size} % {n})"
            lines = [f"const int64_t {name} = {start};", f"const int n = {rest};", *lines]
            self.wrap(f"if ({size} % {n} != 0)", lines)
            return
        if block is not None:
            start = f"last - {size % n}"
            lines = [f"const int64_t u = ({name} - first) / {n};", *lines]
            head = f"if (last == {size})"
        else:
            start, head = str(size // n * n), ""
        if is_symbolic(size):  # there may be no rest
            head = f"if ({f'last == {size} && ' if block is not None else ''}{size % n} != 0)"
        lines = [f"const int64_t {name} = {start};", f"const int n = {size % n};", *lines]
        self.wrap(head, lines)

    def _in_steps(
        self, v: Var, step: int, body: Sequence[str], after: Sequence[str], several: Sequence[str]
    ) -> None:
        """A loop that does `after` every `step` times; what it does in between stays a nest of
        plain loops, which the compiler takes several turns of at a time."""
        end, size = f"base{v.id} + {step}", self.shape.end(v)
        if isinstance(size, str) or not is_multiple(size, step):
            end = f"({end} < {size} ? {end} : {size})"
        lines = [f"for (int64_t i{v.id} = base{v.id}; i{v.id} < {end}; ++i{v.id}) {{"]
        lines += [*(f"  {line}" for line in body), "}"]
        if several:
            lines = self._rows(v, f"base{v.id}", end, body, several)
        head = f"for (int64_t base{v.id} = 0; base{v.id} < {size}; base{v.id} += {step})"
        self.wrap(head, [*lines, *after])
