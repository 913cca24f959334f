"""What the kernels of attention with a function of its scores have in common: how operands are
read, how scores are made something of, and how a program goes through the tiles that count."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar

from dovetail_inductor.loop_ir import attention_loops
from dovetail_inductor.loop_ir.expr import Constant, Expr, Load, walk
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.index import Var
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, Strided
from dovetail_inductor.scheduler.kernels import covering
from dovetail_inductor.targets.cuda.assemble import EmittedKernel, KernelBody, assemble
from dovetail_inductor.targets.cuda.body import Lines, Reads, ScoreEmitter
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES

LOG2_E = "1.4426950408889634"
_LARGE = 1e30  # a moderate score is smaller
_Turn = Callable[[attention_loops.ScoreBody], None]  # writes what is done with a tile of scores
_NAMES = ("b", "h", "i", "j")  # of the loop variables in the text


@dataclass
class AttentionText:
    """The text of one kernel while it is written; a kind of kernel writes its `body`."""

    call: ExternCall
    buffers: Mapping[str, Buffer]
    number: int  # among the kernels of the call
    lines: Lines = field(default_factory=Lines)
    parameters: dict[str, str] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    whole: bool = False  # the tile of the loop does not hang over the end
    kind: ClassVar[str] = "attention"
    across: ClassVar[bool] = False  # keys go down the tile of scores, and queries across

    def __post_init__(self) -> None:
        self.starts: dict[str, str] = {}  # of positions
        names = _ARGUMENTS["forward" if self.loops.body.gradient is None else "backward"]
        self.args = dict(zip(names, self.call.args, strict=True))
        self.q, self.k, self.v = (self.tensor(name) for name in "qkv")
        self.batch, self.heads, self.m, self.d = self.q.shape
        self.n, self.e = self.v.shape[2:]
        self.groups = self.heads // self.k.shape[1]
        self.wide_d, self.wide_e = (covering(n) for n in (self.d, self.e))

    @property
    def loops(self) -> attention_loops.AttentionLoops:
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

    @property
    def told(self) -> str | None:
        """Where a kernel before this one says in which tiles something is seen."""
        if self.loops.mask is None:
            return None
        results = len(self.call.outputs) - len(self.loops.tiles)
        return self.call.outputs[results + self.number]

    def blocks(self, position: str) -> int:
        """How many tiles there are along queries or keys."""
        size, block = self.size_of(position)
        return -(-size // block)

    def written(self, number: int) -> Strided | None:
        """A result, by its number; None if nobody reads it."""
        name = self.call.outputs[number]
        if name is None:
            return None
        buffer = self.buffers[name]
        return Strided(name, buffer.shape, buffer.stride, 0)

    # --- the kernel -------------------------------------------------------------------------------

    def emit(self, dependent: bool) -> EmittedKernel:
        """The kernel."""
        self.lines.add("pid = tl.program_id(0)")
        programs = self.body()
        parameters = tuple((name, buffer) for buffer, name in self.parameters.items())
        text = "\n".join(self.lines.text)
        few = self.tiles.parts > 0
        body = KernelBody(text, parameters, self.tiling, self.kind, scatters=few)
        made = assemble(self.kind, body, programs, self.buffers, dependent=dependent)
        return replace(made, evenly=few)

    def body(self) -> int:
        """Write the statements; how many programs there are."""
        raise NotImplementedError

    @property
    def tiling(self) -> Tiling:
        """The axes of a tile of scores."""
        _, _, i, j = self.loops.vars
        y = Axis("y", (i,), self.tiles.queries, not self.hangs("i"))
        x = Axis("x", (j,), self.tiles.keys, not self.hangs("j"))
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

    @property
    def tiles(self) -> attention_loops.AttentionTiles:
        """The sides of a tile of scores."""
        return self.loops.tiles[self.number]

    def size_of(self, position: str) -> tuple[int, int]:
        """How many queries (i) or keys (j) there are, and how many a tile has."""
        return (self.m, self.tiles.queries) if position == "i" else (self.n, self.tiles.keys)

    def hangs(self, position: str) -> bool:
        """Whether a tile may hang over the end along queries or keys."""
        size, block = self.size_of(position)
        loops_over = "i" if self.across else "j"
        return size % block != 0 and not (self.whole and position == loops_over)

    def along(self, name: str, start: str, axis: str, down: bool) -> None:
        """Positions along an axis of the tile of scores, and their mask."""
        size, block = self.size_of(name)
        self.starts[name] = start
        spread = "[:, None]" if down else "[None, :]"
        wide = ".to(tl.int64)" if self.wide else ""
        self.lines.add(f"{name} = ({start} + tl.arange(0, {block})){spread}{wide}")
        if self.hangs(name):
            self.lines.add(f"{axis}mask = {name} < {size}")

    def address(
        self, operand: Strided, head: str, position: str, width: str | None
    ) -> tuple[str, str]:
        """The pointer to a program's part of an operand, and what is added for positions and for
        the elements of rows."""
        by_batch, by_head, *rest = operand.stride
        offset = f" + {operand.offset}" if operand.offset else ""
        start = f"{_times('b', by_batch)} + {_times(head, by_head)}{offset}"
        base = f"{self.parameter(operand.buffer)} + ({start})"
        within = _times(position, rest[0])
        if width is not None:
            within += f" + {_times(width, rest[1])}"
        return base, within

    def rows(self, operand: Strided, head: str, position: str, down: bool = True) -> str:
        """A load of rows of q, k, v or a gradient: down the tile, or (turned) across it."""
        size, block = self.size_of(position)
        wide = covering(operand.shape[-1])
        width = f"tl.arange(0, {wide}){'[None, :]' if down else '[:, None]'}"
        at, mask = position, "ymask" if position == "i" else "xmask"
        if ((position == "i") != self.across) != down:  # it stands the other way round
            spread = "[:, None]" if down else "[None, :]"
            at = f"({self.starts[position]} + tl.arange(0, {block})){spread}"
            mask = f"({at} < {size})"
        base, within = self.address(operand, head, at, width)
        masks = [mask] if self.hangs(position) else []
        if wide != operand.shape[-1]:
            masks.append(f"({width} < {operand.shape[-1]})")
        masked = f", {' & '.join(masks)}, other=0" if masks else ""
        return f"tl.load({base} + ({within}){masked})"

    def one_a_query(self, operand: Strided, head: str) -> str:
        """A load of one number for each query."""
        base, within = self.address(operand, head, "i", None)
        masked = ", ymask, other=0" if self.hangs("i") else ""
        return f"tl.load({base} + ({within}){masked})"

    def store(self, result: Strided | None, head: str, position: str, value: str) -> None:
        """A store of rows, which go down the tile."""
        if result is None:
            return
        real = result.shape[-1]
        wide = covering(real)
        width = f"tl.arange(0, {wide})[None, :]"
        base, within = self.address(result, head, position, width)
        masks = ["ymask" if position == "i" else "xmask"] if self.hangs(position) else []
        if wide != real:
            masks.append(f"({width} < {real})")
        masked = f", {' & '.join(masks)}" if masks else ""
        kind = TRITON_TYPES[self.buffers[result.buffer].dtype]
        self.lines.add(f"tl.store({base} + ({within}), {value}.to({kind}){masked})")

    def store_number(self, result: Strided | None, head: str, value: str) -> None:
        """A store of one number for each query."""
        if result is None:
            return
        base, within = self.address(result, head, "i", None)
        masked = ", ymask" if self.hangs("i") else ""
        self.lines.add(f"tl.store({base} + ({within}), {value}{masked})")

    @property
    def kind_of_rows(self) -> str:
        """The type of rows, in which products are made."""
        return TRITON_TYPES[self.buffers[self.q.buffer].dtype]

    # --- scores -----------------------------------------------------------------------------------

    def emitter(self) -> ScoreEmitter:
        """What writes the bodies of loops."""
        return ScoreEmitter(
            lines=self.lines,
            tiling=self.tiling,
            buffers=self.buffers,
            wide=self.wide,
            reads=Reads(self.parameter, lambda load: self.registers.get(load.buffer)),
            narrow=True,
            names={var.id: name for var, name in zip(self.loops.vars, _NAMES, strict=True)},
        )

    def same_for_all(self, changing: Var) -> dict[int, str]:
        """Write what does not depend on a variable; its values by uid."""
        own = (self.loops.scores, self.loops.slopes)
        memo: dict[int, str] = {}
        invariant = [
            node
            for node in walk((*self.loops.body.roots, *self.loops.inside.roots))
            if not node.free >> changing.id & 1
            and not isinstance(node, Constant)
            # What reads a score depends on no variable where each counts nothing but one.
            and not any(isinstance(p, Load) and p.buffer in own for p in walk([node]))
        ]
        interpret(invariant, self.emitter(), memo)
        return memo

    def value(self, body: Expr, memo: dict[int, str] | None = None) -> str:
        """A value for each score of a tile, or for each of its rows or columns."""
        (value,) = interpret([body], self.emitter(), {} if memo is None else memo)
        return value

    def made(self, body: Expr, memo: dict[int, str]) -> str:
        """A tile of what is made of scores."""
        value = self.value(body, memo)
        shape = f"[{', '.join(str(a.block) for a in self.tiling.axes)}]"
        return self.lines.define(f"tl.broadcast_to({value}, {shape}).to(tl.float32)")

    def go_through(self, position: str, at: str, block: int, turn: _Turn) -> None:
        """Loops over the tiles along keys or queries for `block` of the others, which begin at
        `at`. `turn` writes what is done with a tile that begins at `start`, with a body."""
        size, step = self.size_of(position)
        seen = self.loops.seen
        bounds = seen.of_keys if position == "j" else seen.of_queries
        lower = [b for b in bounds if not b.upper]
        upper = [b for b in bounds if b.upper]
        begin, end = "0", str(size)
        if lower:
            widest = [_extreme(b, at, block, True) for b in lower]
            begin = self.lines.define(_folded("tl.maximum", ["0", *widest]), "begin")
            begin = self.lines.define(f"{begin} // {step} * {step}", "begin")
        if upper:
            widest = [f"{_extreme(b, at, block, True)} + 1" for b in upper]
            end = self.lines.define(_folded("tl.minimum", [str(size), *widest]), "end")
        if self.told is not None:
            begin, end = self._within_seen(position, step, begin, end)
        if not bounds:
            self._loop(f"tl.range({begin}, {end}, {step})", False, turn)
            return
        # The tiles inside of all bounds are those from `first` on and before `last`.
        first = begin
        if lower:
            narrow = [_extreme(b, at, block, False) for b in lower]
            first = self.lines.define(_folded("tl.maximum", ["0", *narrow]), "first")
            first = self.lines.define(f"({first} + {step - 1}) // {step} * {step}", "first")
            first = self.lines.define(f"tl.maximum({first}, {begin})", "first")
        narrow = [f"{_extreme(b, at, block, False)} + 1" for b in upper]
        last = self.lines.define(_folded("tl.minimum", [end, *narrow]), "last")
        last = self.lines.define(f"tl.maximum({last}, 0) // {step} * {step}", "last")
        last = self.lines.define(f"tl.maximum({last}, {first})", "last")
        self._loop(f"tl.range({first}, {last}, {step})", True, turn)
        if not lower:
            self._loop(f"tl.range({last}, {end}, {step})", False, turn)
            return
        jump = f"start = tl.where(turn < {first}, turn, turn + ({last} - {first}))"
        over = f"tl.range({begin}, {end} - ({last} - {first}), {step})"
        self._loop(over, False, turn, jump)

    def _within_seen(self, position: str, step: int, begin: str, end: str) -> tuple[str, str]:
        """The range of a loop without the tiles before the first, and after the last, in which
        something is seen."""
        assert self.told is not None and self.loops.mask is not None
        line, count = "block", self.blocks(position)
        if self.loops.mask.free >> self.loops.vars[0].id & 1:
            line = f"(b * {self.blocks('j' if position == 'i' else 'i')} + block)"
        at = self.lines.define(f"tl.arange(0, {covering(count)})", "tile")
        place = f"{self.parameter(self.told)} + ({line} * {count} + {at})"
        some = self.lines.define(f"tl.load({place}, {at} < {count}, other=0) != 0", "some")
        first = self.lines.define(f"tl.min(tl.where({some}, {at}, {count}), 0) * {step}", "first")
        last = self.lines.define(f"tl.max(tl.where({some}, {at} + 1, 0), 0) * {step}", "last")
        begin = self.lines.define(f"tl.maximum({begin}, {first})", "begin")
        return begin, self.lines.define(f"tl.minimum({end}, {last})", "end")

    def _loop(self, over: str, inside: bool, turn: _Turn, jump: str = "") -> None:
        """A loop over tiles that lie `inside` of all bounds, or may not; `jump` is the statement
        that gives the `start` of each `turn` where turns are counted."""
        self.lines.add(f"for {'turn' if jump else 'start'} in {over}:")
        self.lines.indent += 1
        if jump:
            self.lines.add(jump)
        self.whole = inside
        turn(self.loops.inside if inside else self.loops.body)
        self.whole = False
        self.lines.indent -= 1

    def share(self, made: str, sums: str) -> str:
        """A tile of shares, from what is made of scores and `exponent` of what is taken from it."""
        if self.bounded:
            return self.lines.define(f"tl.exp2({made} * {LOG2_E} - {sums})", "share")
        return self.lines.define(f"tl.exp2(({made} - {sums}) * {LOG2_E})", "share")

    def exponent(self, sums: str) -> str:
        """What is to be taken from scores: as an exponent of 2, if none of them is so large that it
        would have none."""
        return self.lines.define(f"{sums} * {LOG2_E}", "level") if self.bounded else sums

    @property
    def bounded(self) -> bool:
        """Whether what is made of scores is of moderate size, or -inf."""
        return not any(
            abs(node.value) > _LARGE and not math.isinf(node.value)
            if isinstance(node, Constant)
            else isinstance(node, Load)
            and node.dtype.is_floating_point
            and node.buffer != self.loops.scores
            for node in walk([self.loops.body.score])
        )

    def start(self, sums: str) -> str:
        """What is taken from scores before they are exponents."""
        if not math.isnan(self.empty):
            sums = self.lines.define(f"tl.where({sums} == float('-inf'), 0.0, {sums})", "sums")
        return self.exponent(sums)


_ARGUMENTS = {
    "forward": ("q", "k", "v", "captured", "score", "empty"),
    "backward": ("grad", "q", "k", "v", "sums", "delta", "captured", "score", "empty"),
}


def _times(text: str, factor: int) -> str:
    return text if factor == 1 else f"{text} * {factor}"


def _extreme(bound: attention_loops.Bound, start: str, block: int, widest: bool) -> str:
    """A bound where it is widest, or narrowest, for a block that begins at `start`."""
    falls = (bound.slope < 0) == bound.upper
    at = start if falls == widest else f"{start} + {block - 1}"
    return f"{bound.slope} * ({at}) + {bound.offset}"


def _folded(function: str, values: Sequence[str]) -> str:
    return reduce(lambda text, value: f"{function}({text}, {value})", values)
