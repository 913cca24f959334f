"""Attention with a function of its scores, to Triton source text.

Forward: a program has a block of queries and goes through the keys that they may see, block by
block. The largest score so far and the sum of exponentials are kept beside the rows, which are
scaled down where a larger score comes (an online softmax); so no scores are in memory.

Backward: one kernel has a block of keys and goes through the queries, for the gradients of keys and
values; another has a block of queries, for theirs. Both compute scores again, and the shares with
the logarithms of sums that the forward has left.

What is made of a score is emitted as the bodies of loops are, at tiles of scores in registers. What
is the same for all turns of a loop is computed before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail_inductor.codegen_triton.assemble import EmittedKernel, assemble
from dovetail_inductor.codegen_triton.body import BodyEmitter, Lines
from dovetail_inductor.codegen_triton.ops import TRITON_TYPES
from dovetail_inductor.codegen_triton.tiling import Axis, Tiling, power_of_two
from dovetail_inductor.loop_ir.attention import AttentionLoops, AttentionTiles
from dovetail_inductor.loop_ir.bounds import Bound, seen_within
from dovetail_inductor.loop_ir.expr import Constant, Expr, Load, walk
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.index import Var
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, Strided

LOG2_E = "1.4426950408889634"
_NAMES = ("b", "h", "i", "j")  # of the loop variables in the text


def emit_attention(call: ExternCall, buffers: Mapping[str, Buffer]) -> list[EmittedKernel]:
    """The kernels of a call. Needs known sizes.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    loops = call.attention
    assert loops is not None
    if loops.gradient is None:
        return [_Forward(call, buffers, loops.tiles[0]).emit()]
    return [
        _OfKeys(call, buffers, loops.tiles[0]).emit(),
        _OfQueries(call, buffers, loops.tiles[1]).emit(),
    ]


@dataclass
class _ScoreEmitter(BodyEmitter):
    """Emits what is made of a score: variables have names of their own, and what stands in
    registers is read from there."""

    names: Mapping[int, str] = field(default_factory=dict)

    def _atom(self, atom: object, read: object) -> str:
        if isinstance(atom, Var):
            return self.names[atom.id]
        return super()._atom(atom, read)  # type: ignore[arg-type]


@dataclass
class _Attention:
    """The text of one kernel while it is written."""

    call: ExternCall
    buffers: Mapping[str, Buffer]
    tiles: AttentionTiles
    lines: Lines = field(default_factory=Lines)
    parameters: dict[str, str] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    registers: dict[str, str] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)  # of positions
    kind = "attention"
    across = False  # keys go down the tile of scores, and queries across

    def __post_init__(self) -> None:
        names = _ARGUMENTS["forward" if self.loops.gradient is None else "backward"]
        self.args = dict(zip(names, self.call.args, strict=True))
        self.q, self.k, self.v = (self.tensor(name) for name in "qkv")
        self.batch, self.heads, self.m, self.d = self.q.shape
        self.n, self.e = self.v.shape[2:]
        self.groups = self.heads // self.k.shape[1]
        self.wide_d, self.wide_e = (max(16, power_of_two(n)) for n in (self.d, self.e))

    @property
    def loops(self) -> AttentionLoops:
        """What is made of scores."""
        assert self.call.attention is not None
        return self.call.attention

    @property
    def empty(self) -> float:
        """What rows get of whose scores nothing is left."""
        value = self.args["empty"]
        assert isinstance(value, float)
        return value

    def tensor(self, name: str) -> Strided:
        """An operand by its name."""
        value = self.args[name]
        assert isinstance(value, Strided)
        return value

    def written(self, number: int) -> Strided | None:
        """A result, by its number; None if nobody reads it."""
        name = self.call.outputs[number]
        if name is None:
            return None
        buffer = self.buffers[name]
        return Strided(name, buffer.shape, buffer.stride, 0)

    # --- the kernel -------------------------------------------------------------------------------

    def emit(self) -> EmittedKernel:
        """The kernel."""
        self.lines.add("pid = tl.program_id(0)")
        programs = self.body()
        return assemble(
            self.kind,
            "",
            "\n".join(self.lines.text),
            [(name, buffer) for buffer, name in self.parameters.items()],
            self.helpers,
            self.tiling,
            programs,
            self.buffers,
        )

    def body(self) -> int:
        """Write the statements; how many programs there are."""
        raise NotImplementedError

    @property
    def tiling(self) -> Tiling:
        """The axes of a tile of scores."""
        _, _, i, j = self.loops.vars
        y, x = Axis("y", (i,), self.tiles.queries), Axis("x", (j,), self.tiles.keys)
        axes = (x, y) if self.across else (y, x)
        return Tiling(axes, False, False, self.tiles.warps, self.tiles.stages)

    @property
    def wide(self) -> bool:
        """True when an offset may pass 2**31."""
        names = {*self.call.reads(), *(name for name in self.call.outputs if name is not None)}
        return max(self.buffers[name].extent for name in names) >= 2**31 - 2**16

    def parameter(self, buffer: str) -> str:
        """The name of a buffer's pointer in the text."""
        if buffer not in self.parameters:
            self.parameters[buffer] = f"p{len(self.parameters)}"
        return self.parameters[buffer]

    def place(self, blocks: int, heads: int, head: str, last_first: bool = False) -> None:
        """The batch, the head and the number of the block that a program has. Those of one head are
        neighbours; with `last_first` the last of them begins."""
        add = self.lines.add
        number = f"pid % {blocks}"
        add(f"block = {blocks - 1} - {number}" if last_first else f"block = {number}")
        wide = ".to(tl.int64)" if self.wide else ""
        add(f"{head} = (pid // {blocks} % {heads}){wide}")
        add(f"b = (pid // {blocks * heads}){wide}")

    # --- memory -----------------------------------------------------------------------------------

    def along(self, name: str, start: str, block: int, size: int, axis: str, down: bool) -> None:
        """Positions along an axis of the tile of scores, and their mask."""
        self.starts[name] = start
        spread = "[:, None]" if down else "[None, :]"
        wide = ".to(tl.int64)" if self.wide else ""
        self.lines.add(f"{name} = ({start} + tl.arange(0, {block})){spread}{wide}")
        if size % block:
            self.lines.add(f"{axis}mask = {name} < {size}")

    def address(
        self, operand: Strided, head: str, position: str, width: str | None
    ) -> tuple[str, str]:
        """The pointer to a program's part of an operand, and what is added for positions and for
        the elements of rows."""
        by_batch, by_head, *rest = operand.stride
        base = (
            f"{self.parameter(operand.buffer)} + ({_times('b', by_batch)} + {_times(head, by_head)}"
        )
        base += f" + {operand.offset})" if operand.offset else ")"
        within = _times(position, rest[0])
        if width is not None:
            within += f" + {_times(width, rest[1])}"
        return base, within

    def rows(self, operand: Strided, head: str, position: str, size: int, down: bool = True) -> str:
        """A load of rows of q, k, v or a gradient: down the tile, or (turned) across it."""
        block = self.tiles.queries if position == "i" else self.tiles.keys
        wide = max(16, power_of_two(operand.shape[-1]))
        width = f"tl.arange(0, {wide}){'[None, :]' if down else '[:, None]'}"
        at, mask = position, "ymask" if position == "i" else "xmask"
        if ((position == "i") != self.across) != down:  # it stands the other way round
            spread = "[:, None]" if down else "[None, :]"
            at = f"({self.starts[position]} + tl.arange(0, {block})){spread}"
            mask = f"({at} < {size})"
        base, within = self.address(operand, head, at, width)
        masks = [mask] if size % block else []
        if wide != operand.shape[-1]:
            masks.append(f"({width} < {operand.shape[-1]})")
        masked = f", {' & '.join(masks)}, other=0" if masks else ""
        return f"tl.load({base} + ({within}){masked})"

    def number(self, operand: Strided, head: str, size: int) -> str:
        """A load of one number for each query."""
        base, within = self.address(operand, head, "i", None)
        masked = ", ymask, other=0" if size % self.tiles.queries else ""
        return f"tl.load({base} + ({within}){masked})"

    def store(
        self, result: Strided | None, head: str, position: str, value: str, size: int
    ) -> None:
        """A store of rows, which go down the tile."""
        if result is None:
            return
        axis = "y" if position == "i" else "x"
        block = self.tiles.queries if position == "i" else self.tiles.keys
        real = result.shape[-1]
        wide = max(16, power_of_two(real))
        width = f"tl.arange(0, {wide})[None, :]"
        base, within = self.address(result, head, position, width)
        masks = [f"{axis}mask"] if size % block else []
        if wide != real:
            masks.append(f"({width} < {real})")
        masked = f", {' & '.join(masks)}" if masks else ""
        kind = TRITON_TYPES[self.buffers[result.buffer].dtype]
        self.lines.add(f"tl.store({base} + ({within}), {value}.to({kind}){masked})")

    # --- scores -----------------------------------------------------------------------------------

    def emitter(self) -> _ScoreEmitter:
        """What writes the bodies of loops."""
        return _ScoreEmitter(
            lines=self.lines,
            tiling=self.tiling,
            buffers=self.buffers,
            wide=self.wide,
            parameter=self.parameter,
            by_value=lambda name: False,
            forward=lambda load: self.registers.get(load.buffer),
            use=self.helpers.add,
            policy=lambda load: None,
            paired=lambda load: None,
            narrow=True,
            names={var.id: name for var, name in zip(self.loops.vars, _NAMES, strict=True)},
        )

    def same_for_all(self, bodies: Sequence[Expr], changing: Sequence[Var]) -> dict[int, str]:
        """Write what does not depend on some variables; its values by uid."""
        free = sum(1 << var.id for var in changing)
        own = (self.loops.scores, self.loops.slopes)
        memo: dict[int, str] = {}
        invariant = [
            node
            for node in walk(bodies)
            if not node.free & free
            and not isinstance(node, Constant)
            and not (isinstance(node, Load) and node.buffer in own)
        ]
        # What reads a score depends on no variable where each counts nothing but one.
        invariant = [n for n in invariant if not any(_reads(p, own) for p in walk([n]))]
        interpret(invariant, self.emitter(), memo)
        return memo

    def made(self, body: Expr, memo: dict[int, str]) -> str:
        """A tile of what is made of scores."""
        (value,) = interpret([body], self.emitter(), memo)
        shape = f"[{', '.join(str(a.block) for a in self.tiling.axes)}]"
        return self.lines.define(f"tl.broadcast_to({value}, {shape}).to(tl.float32)")

    def bounds(
        self, position: str, block: int, size: int, step: int, other: str
    ) -> tuple[str, str]:
        """Where a loop over keys (or queries) begins and ends, for a block of the others at
        `other`: what is hidden from all of them is left out."""
        found = seen_within(self.loops.score, self.loops.vars)
        low, high = ["0"], [str(size)]
        for bound in found.of_keys if position == "j" else found.of_queries:
            at = _extreme(bound, other, block)
            (high if bound.upper else low).append(f"{at} + 1" if bound.upper else at)
        begin = end = ""
        if len(low) > 1:
            begin = self.lines.define(_folded("tl.maximum", low), "begin")
            begin = self.lines.define(f"{begin} // {step} * {step}", "begin")
        if len(high) > 1:
            end = self.lines.define(_folded("tl.minimum", high), "end")
        return begin or "0", end or str(size)

    def share(self, made: str, sums: str, memo: str | None = None) -> str:
        """A tile of shares, from what is made of scores."""
        return self.lines.define(f"tl.exp2(({made} - {sums}) * {LOG2_E})", "share")

    def start(self, sums: str) -> str:
        """What is taken from scores before they are exponents."""
        if math.isnan(self.empty):
            return sums
        return self.lines.define(f"tl.where({sums} == float('-inf'), 0.0, {sums})", "sums")


@dataclass
class _Forward(_Attention):
    """Rows, and the logarithms of sums."""

    def body(self) -> int:
        add, tiles = self.lines.add, self.tiles
        blocks = -(-self.m // tiles.queries)
        kind = TRITON_TYPES[self.buffers[self.v.buffer].dtype]
        self.place(blocks, self.heads, "h", last_first=True)
        key_head = self._key_head()
        self.along("i", f"block * {tiles.queries}", tiles.queries, self.m, "y", True)
        add(f"q = {self.rows(self.q, 'h', 'i', self.m)}")
        add(f"top = tl.full([{tiles.queries}, 1], float('-inf'), tl.float32)")
        add(f"total = tl.zeros([{tiles.queries}, 1], tl.float32)")
        add(f"acc = tl.zeros([{tiles.queries}, {self.wide_e}], tl.float32)")
        memo = self.same_for_all([self.loops.score], self.loops.vars[3:])
        begin, end = self.bounds("j", tiles.queries, self.n, tiles.keys, f"block * {tiles.queries}")
        add(f"for start in range({begin}, {end}, {tiles.keys}):")
        self.lines.indent += 1
        self.along("j", "start", tiles.keys, self.n, "x", False)
        add(f"k = {self.rows(self.k, key_head, 'j', self.n, down=False)}")
        add("s = tl.dot(q, k)")
        self.registers[self.loops.scores] = "s"
        made = self.made(self.loops.score, dict(memo))
        if self.n % tiles.keys:
            made = self.lines.define(f"tl.where(xmask, {made}, float('-inf'))")
        add(f"above = tl.maximum(top, tl.max({made}, 1)[:, None])")
        add("level = tl.where(above == float('-inf'), 0.0, above)")
        share = self.share(made, "level")
        add(f"less = tl.exp2((top - level) * {LOG2_E})")
        add(f"total = total * less + tl.sum({share}, 1)[:, None]")
        add(f"v = {self.rows(self.v, key_head, 'j', self.n)}")
        add(f"acc = tl.dot({share}.to({kind}), v, acc * less)")
        add("top = above")
        self.lines.indent -= 1
        empty = "float('nan')" if math.isnan(self.empty) else repr(self.empty)
        add("some = total != 0.0")
        add(f"acc = tl.where(some, acc / tl.where(some, total, 1.0), {empty})")
        self.store(self.written(0), "h", "i", "acc", self.m)
        add("sums = tl.where(some, top + tl.log(total), float('-inf'))")
        self._store_sums()
        return blocks * self.heads * self.batch

    def _key_head(self) -> str:
        return "h" if self.groups == 1 else self.lines.define(f"h // {self.groups}", "key_head")

    def _store_sums(self) -> None:
        result = self.written(1)
        if result is None:
            return
        base, within = self.address(result, "h", "i", None)
        masked = ", ymask" if self.m % self.tiles.queries else ""
        self.lines.add(f"tl.store({base} + ({within}), sums{masked})")


@dataclass
class _OfQueries(_Attention):
    """The gradients of queries."""

    kind = "attention_of_queries"

    def body(self) -> int:
        add, tiles, loops = self.lines.add, self.tiles, self.loops
        assert loops.gradient is not None
        blocks = -(-self.m // tiles.queries)
        kind = TRITON_TYPES[self.buffers[self.q.buffer].dtype]
        self.place(blocks, self.heads, "h", last_first=True)
        key_head = "h"
        if self.groups > 1:
            key_head = self.lines.define(f"h // {self.groups}", "key_head")
        self.along("i", f"block * {tiles.queries}", tiles.queries, self.m, "y", True)
        add(f"q = {self.rows(self.q, 'h', 'i', self.m)}")
        add(f"grad = {self.rows(self.tensor('grad'), 'h', 'i', self.m)}")
        add(f"sums = {self.number(self.tensor('sums'), 'h', self.m)}")
        add(f"delta = {self.number(self.tensor('delta'), 'h', self.m)}")
        sums = self.start("sums")
        add(f"acc = tl.zeros([{tiles.queries}, {self.wide_d}], tl.float32)")
        memo = self.same_for_all([loops.score, loops.gradient], loops.vars[3:])
        begin, end = self.bounds("j", tiles.queries, self.n, tiles.keys, f"block * {tiles.queries}")
        add(f"for start in range({begin}, {end}, {tiles.keys}):")
        self.lines.indent += 1
        self.along("j", "start", tiles.keys, self.n, "x", False)
        add(f"k = {self.rows(self.k, key_head, 'j', self.n, down=False)}")
        add(f"v = {self.rows(self.v, key_head, 'j', self.n, down=False)}")
        add("s = tl.dot(q, k)")
        add("slope = tl.dot(grad, v)")
        own = dict(memo)
        self.registers[loops.scores] = "s"
        share = self.share(self.made(loops.score, own), sums)
        self.registers[loops.slopes] = self.lines.define(f"{share} * (slope - delta)")
        of_score = self.made(loops.gradient, own)
        if self.n % tiles.keys:
            of_score = self.lines.define(f"tl.where(xmask, {of_score}, 0.0)")
        add(f"acc = tl.dot({of_score}.to({kind}), tl.trans(k), acc)")
        self.lines.indent -= 1
        self.store(self.written(0), "h", "i", "acc", self.m)
        return blocks * self.heads * self.batch


@dataclass
class _OfKeys(_Attention):
    """The gradients of keys and values."""

    kind = "attention_of_keys"
    across = True

    def body(self) -> int:
        add, tiles, loops = self.lines.add, self.tiles, self.loops
        blocks = -(-self.n // tiles.keys)
        key_heads = self.heads // self.groups
        self.place(blocks, key_heads, "key_head")
        self.along("j", f"block * {tiles.keys}", tiles.keys, self.n, "x", True)
        add(f"k = {self.rows(self.k, 'key_head', 'j', self.n)}")
        add(f"v = {self.rows(self.v, 'key_head', 'j', self.n)}")
        add(f"of_k = tl.zeros([{tiles.keys}, {self.wide_d}], tl.float32)")
        add(f"of_v = tl.zeros([{tiles.keys}, {self.wide_e}], tl.float32)")
        assert loops.gradient is not None
        if self.groups == 1:
            add("h = key_head")
        else:
            add(f"for group in range({self.groups}):")
            self.lines.indent += 1
            add(f"h = key_head * {self.groups} + group")
        memo = self.same_for_all([loops.score, loops.gradient], loops.vars[2:3])
        begin, end = self.bounds("i", tiles.keys, self.m, tiles.queries, f"block * {tiles.keys}")
        add(f"for start in range({begin}, {end}, {tiles.queries}):")
        self.lines.indent += 1
        self._turn(memo)
        self.lines.indent -= 1 if self.groups == 1 else 2
        self.store(self.written(1), "key_head", "j", "of_k", self.n)
        self.store(self.written(2), "key_head", "j", "of_v", self.n)
        return blocks * key_heads * self.batch

    def _turn(self, memo: Mapping[int, str]) -> None:
        add, tiles, loops = self.lines.add, self.tiles, self.loops
        assert loops.gradient is not None
        kind = TRITON_TYPES[self.buffers[self.q.buffer].dtype]
        self.along("i", "start", tiles.queries, self.m, "y", False)
        add(f"q = {self.rows(self.q, 'h', 'i', self.m, down=False)}")
        add(f"grad = {self.rows(self.tensor('grad'), 'h', 'i', self.m, down=False)}")
        add(f"sums = {self.number(self.tensor('sums'), 'h', self.m)}")
        add(f"delta = {self.number(self.tensor('delta'), 'h', self.m)}")
        sums = self.start("sums")
        add("s = tl.dot(k, q)")
        own = dict(memo)
        self.registers[loops.scores] = "s"
        share = self.share(self.made(loops.score, own), sums)
        if self.m % tiles.queries:
            share = self.lines.define(f"tl.where(ymask, {share}, 0.0)", "share")
        add(f"of_v = tl.dot({share}.to({kind}), tl.trans(grad), of_v)")
        add("slope = tl.dot(v, grad)")
        self.registers[loops.slopes] = self.lines.define(f"{share} * (slope - delta)")
        of_score = self.made(loops.gradient, own)
        if self.m % tiles.queries:
            of_score = self.lines.define(f"tl.where(ymask, {of_score}, 0.0)")
        add(f"of_k = tl.dot({of_score}.to({kind}), tl.trans(q), of_k)")


_ARGUMENTS = {
    "forward": ("q", "k", "v", "captured", "score", "empty"),
    "backward": ("grad", "q", "k", "v", "sums", "delta", "captured", "score", "empty"),
}


def _reads(node: Expr, names: Sequence[str]) -> bool:
    return isinstance(node, Load) and node.buffer in names


def _times(text: str, factor: int) -> str:
    return text if factor == 1 else f"{text} * {factor}"


def _extreme(bound: Bound, start: str, block: int) -> str:
    """A bound where it is widest for a block that begins at `start`."""
    at = start if (bound.slope < 0) == bound.upper else f"{start} + {block - 1}"
    return f"{bound.slope} * ({at}) + {bound.offset}"


def _folded(function: str, values: Sequence[str]) -> str:
    text = values[0]
    for value in values[1:]:
        text = f"{function}({text}, {value})"
    return text


__all__ = ["emit_attention"]
