"""One fused kernel to C++ source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dovetail_inductor.codegen_cpp import scans
from dovetail_inductor.codegen_cpp.accumulators import Accumulators
from dovetail_inductor.codegen_cpp.functions import source_of
from dovetail_inductor.codegen_cpp.picks import Pick, emit_pick, find_picks
from dovetail_inductor.codegen_cpp.shape import KernelShape, is_transposed
from dovetail_inductor.codegen_cpp.syntax import ARITHMETIC, STORAGE, index_text
from dovetail_inductor.codegen_cpp.writer import Name, Place, Writer
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.index import Index, Var, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.sizes import is_multiple, is_symbolic, names_in
from dovetail_inductor.scheduler.kernels import FusedKernel

# What the text of symbolic sizes uses; and memory for rows whose length is known at run time only.
SIZE_FUNCTIONS = """\
static inline int64_t floor_div(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
static inline int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greatest(int64_t a, int64_t b) { return a < b ? b : a; }
struct Scratch {
  void* whole;
  char* data;
  explicit Scratch(int64_t bytes) : whole(__builtin_malloc(bytes + 64)) {
    if (!whole) std::__throw_bad_alloc();
    data = (char*)(((uintptr_t)whole + 63) & ~(uintptr_t)63);
  }
  ~Scratch() { __builtin_free(whole); }
};"""


@dataclass(frozen=True)
class CppSource:
    """A kernel's function body, and the buffers whose pointers it takes, in order. The function's
    name stands as `@symbol@`, so that equal kernels have equal text."""

    text: str
    pointers: tuple[str, ...]
    sizes: tuple[str, ...] = ()  # the symbols whose values it takes, in order


def emit(kernel: FusedKernel, shape: KernelShape, buffers: Mapping[str, Buffer]) -> CppSource:
    """C++ for `kernel` with the loops of `shape`."""
    return _Emitter(kernel, shape, buffers).run()


class _Emitter:
    def __init__(
        self, kernel: FusedKernel, shape: KernelShape, buffers: Mapping[str, Buffer]
    ) -> None:
        self.kernel = kernel
        self.shape = shape
        self.buffers = buffers
        self.phases = kernel.phases()
        self.pointers: dict[str, str] = {}
        self.scratch: dict[str, Place] = {}
        self.picks: dict[str, dict[int, Pick]] = {}
        self.heap: list[str] = []  # scratch of symbolic size, taken once a call
        self.writer = Writer(shape.vector, shape.lanes, self.place)
        self.accumulators = Accumulators(shape, self.writer)
        self.full = [n for n in kernel.nests if kernel.is_full(n) or not kernel.columns]

    def place(self, buffer: str) -> Place:
        """Where `buffer` is read or written: in memory, or in the copy of a row."""
        if buffer in self.scratch:
            return self.scratch[buffer]
        if buffer not in self.pointers:
            self.pointers[buffer] = f"p{len(self.pointers)}"
        return Place(self.pointers[buffer])

    # --- the function -----------------------------------------------------------------------------

    def run(self) -> CppSource:
        w = self.writer
        w.open(self.shape.items)
        if self.kernel.columns:
            self._row_kernel()
        else:
            self._pass(self.full, [])
        body = w.close()
        head = ["  for (int64_t item = begin; item < end; ++item) {"]
        decode = [f"    {line}" for line in self._decode()]
        lines = [*self.heap, *head, *decode, *(f"    {line}" for line in body), "  }", "}"]
        symbols = names_in("\n".join(lines))
        sizes = "const int64_t* sizes" if symbols else "const int64_t*"
        head = [
            f'extern "C" void @symbol@(void* const* pointers, {sizes}, int64_t begin, '
            "int64_t end) {"
        ]
        if symbols:
            head.insert(0, SIZE_FUNCTIONS)
        if w.functions:
            head.insert(0, source_of(frozenset(w.functions)))
        if self.accumulators.totals:
            head.insert(0, scans.source())
        for place, symbol in enumerate(symbols):
            head.append(f"  const int64_t size_{symbol} = sizes[{place}];")
        for buffer, name in self.pointers.items():
            head.append(
                f"  auto {name} = ({STORAGE[self.buffers[buffer].dtype]}*)"
                f"pointers[{list(self.pointers).index(buffer)}];"
            )
        return CppSource("\n".join([*head, *lines]) + "\n", tuple(self.pointers), symbols)

    def _decode(self) -> list[str]:
        """The item's variables from its number."""
        lines = []
        sizes = [(f"i{v.id}", v.size) for v in self.shape.items]
        if self.shape.block is not None:
            assert self.shape.vector is not None
            sizes.append(("block", -(-self.shape.vector.size // self.shape.block)))
        tile = self.shape.tile
        if tile is not None:
            sizes.append(("block", -(-tile.size // self.shape.tile_height)))
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
            n = self.shape.tile_height
            lines.append(f"const int64_t top = block * {n};")
            rows = (
                str(n)
                if is_multiple(tile.size, n)
                else f"top + {n} < {tile.size} ? {n} : {tile.size} - top"
            )
            lines.append(f"const int64_t height = {rows};")
        if self.shape.block is not None:
            assert self.shape.vector is not None
            block, size = self.shape.block, self.shape.vector.size
            lines.append(f"const int64_t first = block * {block};")
            if is_multiple(size, block):
                lines.append(f"const int64_t last = first + {block};")
            else:
                lines.append(
                    f"const int64_t last = first + {block} < {size} ? first + {block} : {size};"
                )
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
            self._vector_loop([], lambda: self._row_nests(nests))
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
            self._scalar_loops(loops, lambda: self._inner(nests))
        elif self.shape.tile is not None:
            self._vector_loop(loops, lambda: self._tiled(nests))
        else:
            self._vector_loop(loops, lambda: self._inner(nests), bool(reductions))
        self._finish(reductions)

    def _scalar_loops(self, loops: Sequence[Var], body: Callable[[], None]) -> None:
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
            self._scalar_loops(rest, body)
        else:
            body()
        self._wrap(f"for (int64_t i{v.id} = 0; i{v.id} < {v.size}; ++i{v.id})", w.close())

    def _wrap(self, head: str, lines: Sequence[str]) -> None:
        out = self.writer.scopes[-1].lines
        out.append(head + " {")
        out.extend(f"  {line}" for line in lines)
        out.append("}")

    def _vector_loop(
        self, loops: Sequence[Var], body: Callable[[], None], reducing: bool = False
    ) -> None:
        """Loops over `loops`, then over the vectorised variable: whole vectors, then the rest."""
        w = self.writer
        if loops:
            v = loops[0]
            w.open([v])
            self._vector_loop(loops[1:], body, reducing)
            step = self.accumulators.cascade_step(v) if reducing else None
            if step is None:
                self._wrap(f"for (int64_t i{v.id} = 0; i{v.id} < {v.size}; ++i{v.id})", w.close())
            else:
                self._in_steps(v, step, w.close(), self.accumulators.cascade())
            return
        vector, n = self.shape.vector, self.shape.lanes
        assert vector is not None
        block = self.shape.block
        name = f"i{vector.id}"
        size = vector.size
        whole = is_symbolic(size) or block is not None or size >= n
        unrolled = 0
        if reducing and self.shape.unroll > 1 and block is None:
            step = n * self.shape.unroll
            unrolled = size // step * step
            w.open([vector])
            body()
            lines = w.close()
            self._wrap(
                f"for (int64_t base = 0; base < {unrolled}; base += {step})",
                [
                    f"for (int64_t u = 0, {name} = base; u < {self.shape.unroll}; "
                    f"++u, {name} += {n}) {{",
                    *(f"  {line}" for line in lines),
                    "}",
                ],
            )
            w.line("{ constexpr int64_t u = 0;")
            whole = is_symbolic(size) or size - unrolled >= n
        if whole:
            w.open([vector])
            body()
            if block is not None and is_multiple(size, block):
                head = f"for (int64_t u = 0, {name} = first; u < {block // n}; ++u, {name} += {n})"
            elif block is not None:
                head = (
                    f"for (int64_t u = 0, {name} = first; {name} + {n} <= last; ++u, {name} += {n})"
                )
            else:
                last = size // n * n
                head = f"for (int64_t {name} = {unrolled}; {name} < {last}; {name} += {n})"
            self._wrap(head, w.close())
        if not is_multiple(size, n):
            w.open([vector])
            w.tail = True
            body()
            w.tail = False
            lines = w.close()
            if block is not None:
                start = f"last - {size % n}"
                lines = [f"const int64_t u = ({name} - first) / {n};", *lines]
                head = f"if (last == {size})"
            else:
                start, head = str(size // n * n), ""
            if is_symbolic(size):  # there may be no rest
                head = f"if ({f'last == {size} && ' if block is not None else ''}{size % n} != 0)"
            lines = [f"const int64_t {name} = {start};", f"const int n = {size % n};", *lines]
            self._wrap(head, lines)
        if reducing and self.shape.unroll > 1 and block is None:
            w.line("}")

    def _in_steps(self, v: Var, step: int, body: Sequence[str], after: Sequence[str]) -> None:
        """A loop that does `after` every `step` times; what it does in between stays a nest of
        plain loops, which the compiler takes several turns of at a time."""
        end = f"base{v.id} + {step}"
        if not is_multiple(v.size, step):
            end = f"({end} < {v.size} ? {end} : {v.size})"
        lines = [f"for (int64_t i{v.id} = base{v.id}; i{v.id} < {end}; ++i{v.id}) {{"]
        lines += [f"  {line}" for line in body]
        head = f"for (int64_t base{v.id} = 0; base{v.id} < {v.size}; base{v.id} += {step})"
        self._wrap(head, [*lines, "}", *after])

    def _tiled(self, nests: Sequence[LoopNest]) -> None:
        """At one vector: transpose what lies across into tiles, then go down the tile."""
        w, shape = self.writer, self.shape
        tile, vector, n = shape.tile, shape.vector, shape.lanes
        assert tile is not None and vector is not None
        inside = self.kernel.writes()
        w.tiles = {}
        for nest in nests:
            for load in nest.loads:
                strides = (load.index.coefficient(vector), load.index.coefficient(tile))
                if load.buffer in inside or not is_transposed(load, vector) or strides[1] != 1:
                    continue
                if load.uid in w.tiles:
                    continue
                dtype = self.buffers[load.buffer].dtype
                name = f"tile{len(w.tiles)}"
                at = load.index.substitute(
                    lambda v: Index(0, ()) if v.id == tile.id else variable(v), lambda e: e
                )
                address = index_text(at, lambda v: f"i{v.id}", lambda e: "")
                count = "n" if w.tail else str(n)
                w.line(f"alignas(64) {STORAGE[dtype]} {name}[{n * shape.tile_height}];")
                source = f"{self.place(load.buffer).pointer} + top + {address}"
                w.line(
                    f"transpose<{n}, {shape.tile_height}>({name}, {source}, {strides[0]}, "
                    f"{count}, height);"
                )
                w.tiles[load.uid] = f"{name} + {n} * (i{tile.id} - top)"
        w.open([tile])
        self._inner(nests)
        head = f"for (int64_t i{tile.id} = top; i{tile.id} < top + height; ++i{tile.id})"
        self._wrap(head, w.close())
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
                w.scatter(self.place(nest.buffer), nest.index, nest.scatter.combine, value)
                continue
            if nest.scan is not None:
                value = self.accumulators.total(nest, value)
            if nest.buffer not in self.kernel.internal:
                w.store(self.place(nest.buffer), nest.index, value)
            w.forwarded[nest.buffer] = Name(value.text, value.vector, len(w.scopes) - 1)
            if nest.buffer in self.scratch:
                place = self.scratch[nest.buffer]
                assert place.index is not None
                w.store(place, place.index, value)

    def _picks(self, nest: LoopNest) -> dict[int, Pick]:
        """The choices among loads that are a choice among pointers; those not made yet."""
        if self.shape.vector is None:
            return {}
        if nest.buffer not in self.picks:
            inside = self.kernel.writes()
            outside = {name: b for name, b in self.buffers.items() if name not in inside}
            self.picks[nest.buffer] = find_picks(nest.values, self.shape.vector, outside)
        found = self.picks[nest.buffer]
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
            self._vector_loop([], lambda: self._store_rows(stored))

    def _store_rows(self, nests: Sequence[LoopNest]) -> None:
        w = self.writer
        for nest in nests:
            array = self.accumulators.names[nest.buffer]
            w.store(
                self.place(nest.buffer), nest.index, Name(f"{array}[u]", True, len(w.scopes) - 1)
            )
