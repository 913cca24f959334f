"""Attention with a function of its scores, to Triton source text.

Forward: a program has a block of queries and goes through the keys that they may see, block by
block. The largest score so far and the sum of exponentials are kept beside the rows, which are
scaled down where a larger score comes (an online softmax); so no scores are in memory.

Backward: one kernel has a block of keys and goes through the queries, for the gradients of keys and
values; another has a block of queries, for theirs. Both compute scores again, and the shares with
the logarithms of sums that the forward has left.

What is made of a score is emitted as the bodies of loops are, at tiles of scores in registers. What
is the same for all turns of a loop is computed before it. Tiles in which masks of places hide
nothing are gone through in a loop of their own, those that they hide altogether in none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail_inductor.loop_ir.attention_loops import ScoreBody
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall
from dovetail_inductor.targets.cuda.assemble import EmittedKernel
from dovetail_inductor.targets.cuda.attention_of_few import OfFewQueries
from dovetail_inductor.targets.cuda.attention_text import LOG2_E, AttentionText


def emit_attention(
    call: ExternCall, buffers: Mapping[str, Buffer], dependent: bool = False
) -> list[EmittedKernel]:
    """The kernels of a call. Needs known sizes.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    loops = call.attention
    assert loops is not None
    if loops.tiles[0].parts:
        return [OfFewQueries(call, buffers, 0).emit(dependent)]
    kinds: tuple[type[AttentionText], ...] = (_Forward,)
    if loops.body.gradient is not None:
        kinds = (_OfKeys, _OfQueries)
    found = []
    for number, kind in enumerate(kinds):
        if loops.mask is not None:
            seen = _TilesSeenByKeys if kind.across else _TilesSeen
            found.append(seen(call, buffers, number).emit(dependent))
        found.append(kind(call, buffers, number).emit(dependent))
    return found


@dataclass
class _TilesSeen(AttentionText):
    """In which tiles something is seen, for the kernel that goes through them: a program for each
    tile."""

    kind = "attention_tiles"

    def body(self) -> int:
        add, loops = self.lines.add, self.loops
        assert loops.mask is not None and self.told is not None
        line, column = "ji" if self.across else "ij"
        lines, columns = self.blocks(line), self.blocks(column)
        batches = self.batch if loops.mask.free >> loops.vars[0].id & 1 else 1
        add(f"b = pid // {lines * columns}")
        numbers = {line: f"pid // {columns} % {lines}", column: f"pid % {columns}"}
        for position, axis in (("i", "y"), ("j", "x")):
            start = f"{numbers[position]} * {self.size_of(position)[1]}"
            self.along(position, start, axis, (position == "j") == self.across)
        masks = [f"{axis}mask" for axis, at in (("y", "i"), ("x", "j")) if self.hangs(at)]
        seen = " & ".join([self.value(loops.mask), *masks])
        shape = f"[{', '.join(str(a.block) for a in self.tiling.axes)}]"
        add(f"seen = tl.broadcast_to({seen}, {shape}).to(tl.int32)")
        place = f"{self.parameter(self.told)} + pid"
        add(f"tl.store({place}, tl.max(tl.max(seen, 1), 0).to(tl.uint8))")
        return batches * lines * columns


class _TilesSeenByKeys(_TilesSeen):
    """The same for one that goes through queries."""

    kind = "attention_tiles_by_keys"
    across = True


@dataclass
class _OfBlocksOfQueries(AttentionText):
    """A program has a block of queries."""

    memo: dict[int, str] = field(default_factory=dict)
    key_head: str = "h"

    def begin(self) -> int:
        """The place of a program, and what it keeps; how many programs there are."""
        queries = self.tiles.queries
        blocks = -(-self.m // queries)
        self.place(blocks, self.heads, "h", last_first=True)
        if self.groups > 1:
            self.key_head = self.lines.define(f"h // {self.groups}", "key_head")
        self.along("i", f"block * {queries}", "y", True)
        self.lines.add(f"q = {self.rows(self.q, 'h', 'i')}")
        return blocks * self.heads * self.batch

    def through_keys(self) -> None:
        """The loops."""
        self.memo = self.same_for_all(self.loops.vars[3])
        queries = self.tiles.queries
        self.go_through("j", f"block * {queries}", queries, self.turn)

    def turn(self, body: ScoreBody) -> None:
        """What is done with a tile of keys, which begins at `start`."""
        raise NotImplementedError


@dataclass
class _Forward(_OfBlocksOfQueries):
    """Rows, and the logarithms of sums."""

    def body(self) -> int:
        add, queries = self.lines.add, self.tiles.queries
        programs = self.begin()
        add(f"top = tl.full([{queries}, 1], float('-inf'), tl.float32)")
        add(f"total = tl.zeros([{queries}, 1], tl.float32)")
        add(f"acc = tl.zeros([{queries}, {self.wide_e}], tl.float32)")
        self.through_keys()
        empty = "float('nan')" if math.isnan(self.empty) else repr(self.empty)
        add("some = total != 0.0")
        add(f"acc = tl.where(some, acc / tl.where(some, total, 1.0), {empty})")
        self.store(self.written(0), "h", "i", "acc")
        add("sums = tl.where(some, top + tl.log(total), float('-inf'))")
        self.store_number(self.written(1), "h", "sums")
        return programs

    def turn(self, body: ScoreBody) -> None:
        add = self.lines.add
        self.along("j", "start", "x", False)
        add(f"k = {self.rows(self.k, self.key_head, 'j', down=False)}")
        add("s = tl.dot(q, k)")
        self.registers[self.loops.scores] = "s"
        made = self.made(body.score, dict(self.memo))
        if self.hangs("j"):
            made = self.lines.define(f"tl.where(xmask, {made}, float('-inf'))")
        add(f"above = tl.maximum(top, tl.max({made}, 1)[:, None])")
        add("level = tl.where(above == float('-inf'), 0.0, above)")
        share = self.share(made, self.exponent("level"))
        add(f"less = tl.exp2((top - level) * {LOG2_E})")
        add(f"total = total * less + tl.sum({share}, 1)[:, None]")
        add(f"v = {self.rows(self.v, self.key_head, 'j')}")
        add(f"acc = tl.dot({share}.to({self.kind_of_rows}), v, acc * less)")
        add("top = above")


@dataclass
class _OfQueries(_OfBlocksOfQueries):
    """The gradients of queries."""

    kind = "attention_of_queries"
    sums: str = ""

    def body(self) -> int:
        add = self.lines.add
        programs = self.begin()
        add(f"grad = {self.rows(self.tensor('grad'), 'h', 'i')}")
        add(f"sums = {self.one_a_query(self.tensor('sums'), 'h')}")
        add(f"delta = {self.one_a_query(self.tensor('delta'), 'h')}")
        self.sums = self.start("sums")
        add(f"acc = tl.zeros([{self.tiles.queries}, {self.wide_d}], tl.float32)")
        self.through_keys()
        self.store(self.written(0), "h", "i", "acc")
        return programs

    def turn(self, body: ScoreBody) -> None:
        add = self.lines.add
        assert body.gradient is not None
        self.along("j", "start", "x", False)
        add(f"k = {self.rows(self.k, self.key_head, 'j', down=False)}")
        add(f"v = {self.rows(self.v, self.key_head, 'j', down=False)}")
        add("s = tl.dot(q, k)")
        add("slope = tl.dot(grad, v)")
        own = dict(self.memo)
        self.registers[self.loops.scores] = "s"
        share = self.share(self.made(body.score, own), self.sums)
        self.registers[self.loops.slopes] = self.lines.define(f"{share} * (slope - delta)")
        of_score = self.made(body.gradient, own)
        if self.hangs("j"):
            of_score = self.lines.define(f"tl.where(xmask, {of_score}, 0.0)")
        add(f"acc = tl.dot({of_score}.to({self.kind_of_rows}), tl.trans(k), acc)")


@dataclass
class _OfKeys(AttentionText):
    """The gradients of keys and values: a program has a block of keys."""

    kind = "attention_of_keys"
    across = True
    memo: dict[int, str] = field(default_factory=dict)

    def body(self) -> int:
        add, keys = self.lines.add, self.tiles.keys
        blocks = -(-self.n // keys)
        key_heads = self.heads // self.groups
        self.place(blocks, key_heads, "key_head")
        self.along("j", f"block * {keys}", "x", True)
        add(f"k = {self.rows(self.k, 'key_head', 'j')}")
        add(f"v = {self.rows(self.v, 'key_head', 'j')}")
        add(f"of_k = tl.zeros([{keys}, {self.wide_d}], tl.float32)")
        add(f"of_v = tl.zeros([{keys}, {self.wide_e}], tl.float32)")
        if self.groups == 1:
            add("h = key_head")
        else:
            add(f"for group in range({self.groups}):")
            self.lines.indent += 1
            add(f"h = key_head * {self.groups} + group")
        self.memo = self.same_for_all(self.loops.vars[2])
        self.go_through("i", f"block * {keys}", keys, self.turn)
        self.lines.indent -= 0 if self.groups == 1 else 1
        self.store(self.written(1), "key_head", "j", "of_k")
        self.store(self.written(2), "key_head", "j", "of_v")
        return blocks * key_heads * self.batch

    def turn(self, body: ScoreBody) -> None:
        """What is done with a tile of queries, which begins at `start`."""
        add = self.lines.add
        assert body.gradient is not None
        self.along("i", "start", "y", False)
        add(f"q = {self.rows(self.q, 'h', 'i', down=False)}")
        add(f"grad = {self.rows(self.tensor('grad'), 'h', 'i', down=False)}")
        add(f"sums = {self.one_a_query(self.tensor('sums'), 'h')}")
        add(f"delta = {self.one_a_query(self.tensor('delta'), 'h')}")
        sums = self.start("sums")
        add("s = tl.dot(k, q)")
        own = dict(self.memo)
        self.registers[self.loops.scores] = "s"
        share = self.share(self.made(body.score, own), sums)
        if self.hangs("i"):
            share = self.lines.define(f"tl.where(ymask, {share}, 0.0)", "share")
        add(f"of_v = tl.dot({share}.to({self.kind_of_rows}), tl.trans(grad), of_v)")
        add("slope = tl.dot(v, grad)")
        self.registers[self.loops.slopes] = self.lines.define(f"{share} * (slope - delta)")
        of_score = self.made(body.gradient, own)
        if self.hangs("i"):
            of_score = self.lines.define(f"tl.where(ymask, {of_score}, 0.0)")
        add(f"of_k = tl.dot({of_score}.to({self.kind_of_rows}), tl.trans(q), of_k)")
