"""Attention of few queries over many keys, as in generating text, to Triton source text.

The time is that of reading keys and values once. So one program has all queries that read a head of
keys, and programs share the keys of a head (as in Flash-Decoding, Dao et al., 2023). Each leaves
what it finds of its part in memory and counts itself; the last one to come puts the parts together
in the same launch. Keys before the first and after the last one that a mask lets see are not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dovetail_inductor.loop_ir.loops import Strided
from dovetail_inductor.scheduler.kernels import power_of_two
from dovetail_inductor.targets.cuda.attention_text import LOG2_E, AttentionText
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling

ROWS = 16  # of a product of tiles, at least; those that are none are computed as the last one is
MOST_SEEN = 4096  # elements of a mask that a program looks at before it reads keys


@dataclass
class OfFewQueries(AttentionText):
    """A program has a head of keys, or a part of it, and all queries that read it."""

    kind = "attention_of_few"
    span: int = 0  # positions of keys that are spoken of at once, if those are not a tile's

    @property
    def tiling(self) -> Tiling:
        """Down the queries of all heads that share the keys, across the keys."""
        _, h, i, j = self.loops.vars
        x = Axis("x", (j,), self.size_of("j")[1], not self.hangs("j"))
        return Tiling(
            (Axis("y", (h, i), ROWS, True), x), False, False, self.tiles.warps, self.tiles.stages
        )

    def size_of(self, position: str) -> tuple[int, int]:
        """How many there are, and how many are spoken of at once."""
        if position == "i":
            return self.m, ROWS
        return self.n, self.span or self.tiles.keys

    def hangs(self, position: str) -> bool:
        """Whether positions may lie beyond the keys: those of queries do not."""
        return position == "j" and super().hangs("j")

    def body(self) -> int:
        add, parts = self.lines.add, self.tiles.parts
        key_heads = self.heads // self.groups
        self.place(parts, key_heads, "key_head")
        self._queries(ROWS)
        add(f"q = {self.rows(self.q, 'h', 'i')}")
        memo = self.same_for_all(self.loops.vars[3])
        if self._length == self.tiles.keys:
            # What a mask says would be known later than the keys are there.
            self._scores(f"block * {self._length}", memo)
            add("top = tl.max(s, 1)[:, None]")
            self._shares("top")
            add("total = tl.sum(share, 1)[:, None]")
            add(f"acc = tl.dot(share.to({self.kind_of_rows}), v)")
        else:
            self._loop_over_keys(memo)
        if parts == 1:
            self._finish("total", "top")
        else:
            self._put_together(key_heads)
        return self.batch * key_heads * parts

    @property
    def _length(self) -> int:
        """How many keys a program has: whole tiles."""
        return -(-self.n // (self.tiles.parts * self.tiles.keys)) * self.tiles.keys

    def _loop_over_keys(self, memo: dict[int, str]) -> None:
        """An online softmax over the tiles of a program's keys."""
        add = self.lines.add
        add(f"top = tl.full([{ROWS}, 1], float('-inf'), tl.float32)")
        add(f"total = tl.zeros([{ROWS}, 1], tl.float32)")
        add(f"acc = tl.zeros([{ROWS}, {self.wide_e}], tl.float32)")
        begin, end = self._range()
        add(f"for start in tl.range({begin}, {end}, {self.tiles.keys}):")
        self.lines.indent += 1
        self._scores("start", memo)
        add("above = tl.maximum(top, tl.max(s, 1)[:, None])")
        self._shares("above")
        add(f"less = tl.exp2((top - level) * {LOG2_E})")
        add("total = total * less + tl.sum(share, 1)[:, None]")
        add(f"acc = tl.dot(share.to({self.kind_of_rows}), v, acc * less)")
        add("top = above")
        self.lines.indent -= 1

    def _scores(self, start: str, memo: dict[int, str]) -> None:
        """A tile of what is made of scores, `s`, and the values."""
        add = self.lines.add
        self.along("j", start, "x", False)
        add(f"k = {self.rows(self.k, 'key_head', 'j', down=False)}")
        add(f"v = {self.rows(self.v, 'key_head', 'j')}")
        add("s = tl.dot(q, k)")
        self.registers[self.loops.scores] = "s"
        made = self.made(self.loops.body.score, dict(memo))
        if self.hangs("j"):
            made = f"tl.where(xmask, {made}, float('-inf'))"
        add(f"s = {made}")

    def _shares(self, top: str) -> None:
        """The shares of a tile, beside the largest score."""
        self.lines.add(f"level = tl.where({top} == float('-inf'), 0.0, {top})")
        self.lines.add(f"share = tl.exp2((s - level) * {LOG2_E})")

    def _queries(self, count: int) -> None:
        """The heads and numbers of the queries, down a tile of so many."""
        last = self.groups * self.m - 1
        row = f"tl.minimum(tl.arange(0, {count}), {last})"
        self.lines.add(f"row = {row}[:, None]{'.to(tl.int64)' if self.wide else ''}")
        self.lines.add(f"h = key_head * {self.groups} + row // {self.m}")
        self.lines.add(f"i = row % {self.m}")

    def _range(self) -> tuple[str, str]:
        """Where a program's keys begin and end: at the first and the last that a mask lets see."""
        length = self._length
        begin = self.lines.define(f"block * {length}", "begin")
        end = self.lines.define(f"tl.minimum({begin} + {length}, {self.n})", "end")
        mask, span = self.loops.mask, power_of_two(length)
        down = self.m > 1 and mask is not None and mask.free >> self.loops.vars[2].id & 1
        if mask is None or span * (ROWS if down else 1) > MOST_SEEN:
            return begin, end
        self.span = span
        self.along("j", begin, "x", False)
        inside = f" & (j < {end})" if span != length or self.hangs("j") else ""
        seen = self.lines.define(f"{self.value(mask)}{inside}", "seen")
        first = f"tl.min(tl.min(tl.where({seen}, j, {self.n}), 1), 0)"
        first = self.lines.define(f"{first} // {self.tiles.keys} * {self.tiles.keys}", "first")
        last = self.lines.define(f"tl.max(tl.max(tl.where({seen}, j + 1, 0), 1), 0)", "last")
        self.span = 0
        self.along("j", first, "x", False)  # in a loop names keep their shapes
        return first, last

    def _put_together(self, key_heads: int) -> None:
        """Leave what was found of a part; and, if it is the last one, find what all say."""
        add, parts, rows, e = self.lines.add, self.tiles.parts, self.tiles.queries, self.wide_e
        programs = self.batch * key_heads * parts
        shared = self.call.outputs[-1]
        counters = self.call.kwargs[0][1]
        assert shared is not None and isinstance(counters, Strided)
        found, done = self.parameter(shared), self.parameter(counters.buffer)
        add(f"own = tl.arange(0, {ROWS})[:, None]")
        add(f"at = {found} + pid * {rows * e} + own * {e} + tl.arange(0, {e})[None, :]")
        add(f"tl.store(at, acc, own < {rows})")
        add(f"at = {found} + {programs * rows * e} + pid * {rows} + own")
        add(f"tl.store(at, top, own < {rows})")
        add(f"tl.store(at + {programs * rows}, total, own < {rows})")
        add("tl.debug_barrier()")
        add(f"before = tl.atomic_add({done} + pid // {parts}, 1)")
        add(f"if before != {parts - 1}:")
        add("    return")
        add(f"tl.store({done} + pid // {parts}, 0)")
        self._queries(rows)
        add(f"part = tl.arange(0, {power_of_two(parts)})")
        add(f"at = (pid // {parts} * {parts} + part[:, None]) * {rows} + tl.arange(0, {rows})")
        add(f"at = {found} + {programs * rows * e} + at")
        add(f"there = part[:, None] < {parts}")
        add("tops = tl.load(at, there, other=float('-inf'))")
        add(f"totals = tl.load(at + {programs * rows}, there, other=0.0)")
        add(f"at = (pid // {parts} * {parts} + part[:, None, None]) * {rows}")
        add(f"at = (at + tl.arange(0, {rows})[None, :, None]) * {e} + tl.arange(0, {e})")
        add(f"accs = tl.load({found} + at, there[:, :, None], other=0.0)")
        add("top = tl.max(tops, 0)")
        add("level = tl.where(top == float('-inf'), 0.0, top)")
        add(f"share = tl.exp2((tops - level[None, :]) * {LOG2_E})")
        add("total = tl.sum(totals * share, 0)")
        add("acc = tl.sum(accs * share[:, :, None], 0)")
        self._finish("total[:, None]", "top[:, None]")

    def _finish(self, total: str, top: str) -> None:
        """Rows and the logarithms of sums, to memory."""
        add = self.lines.add
        empty = "float('nan')" if math.isnan(self.empty) else repr(self.empty)
        add(f"total, top = {total}, {top}")
        add("some = total != 0.0")
        add(f"acc = tl.where(some, acc / tl.where(some, total, 1.0), {empty})")
        self.store(self.written(0), "h", "i", "acc")
        add("sums = tl.where(some, top + tl.log(total), float('-inf'))")
        self.store_number(self.written(1), "h", "sums")
