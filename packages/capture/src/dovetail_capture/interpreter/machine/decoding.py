"""Decoding of code objects into lists of instructions, cached per code object.

Written for speed: `dis.get_instructions` costs several microseconds an instruction. The list
follows `dis` order (EXTENDED_ARG entries are kept, caches are not), so a position in it is the
`break_index` of a `FrameEnd`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

VERSION = sys.version_info[:2]


class Instruction:
    """One instruction: its handler, raw argument, resolved argument and jump target (an index)."""

    __slots__ = ("arg", "argval", "cached", "handler", "index", "offset", "opname", "target")

    def __init__(self, index: int, offset: int, opname: str, arg: int) -> None:
        self.index = index
        self.offset = offset
        self.opname = opname
        self.arg = arg
        self.argval: Any = None
        self.target = -1
        self.handler: Callable[[Any, Instruction], int | None] = _no_handler
        self.cached: Any = None  # the shared constant of a LOAD_CONST

    def __repr__(self) -> str:
        return f"<{self.index}: {self.opname} {self.arg} {self.argval!r}>"


def _no_handler(frame: Any, inst: Instruction) -> int | None:
    raise AssertionError(f"no handler bound for {inst.opname}")


@dataclass(frozen=True)
class ExceptionEntry:
    """A row of the exception table, in instruction indices; `end` is exclusive."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


class DecodedCode:
    """A code object's instructions, exception table and layout of its local slots. It does not
    hold the code itself: it is kept for as long as that lives."""

    __slots__ = ("entries", "instructions", "lines", "slot_names", "slot_of")

    def __init__(
        self, code: CodeType, instructions: list[Instruction], entries: list[ExceptionEntry]
    ) -> None:
        self.instructions = instructions
        self.entries = entries
        self.lines: list[int] | None = None
        cells = [name for name in code.co_cellvars if name not in code.co_varnames]
        self.slot_names = (*code.co_varnames, *cells, *code.co_freevars)
        self.slot_of = {name: slot for slot, name in enumerate(self.slot_names)}

    def line_of(self, code: CodeType, index: int) -> int:
        """The source line of instruction `index` of `code`, which this is the decoded form of."""
        if self.lines is None:
            of_offset = {}
            first = last = code.co_firstlineno
            for start, end, lineno in code.co_lines():
                last = lineno or last  # what cleans up has no line of its own
                for offset in range(start, end, 2):
                    of_offset[offset] = last
            self.lines = [of_offset.get(inst.offset, first) for inst in self.instructions]
        return self.lines[index]

    def entry_for(self, index: int) -> ExceptionEntry | None:
        """The exception-table row that covers instruction `index`."""
        for entry in self.entries:
            if entry.start <= index < entry.end:
                return entry
        return None


_EXTENDED_ARG = dis.EXTENDED_ARG
_HAS_JUMP = frozenset(dis.hasjrel)
_HAS_NAME = frozenset(dis.hasname)
_HAS_LOCAL = frozenset(dis.haslocal)
_HAS_FREE = frozenset(dis.hasfree)
_HAS_CONST = frozenset(dis.hasconst)


def _cache_sizes() -> dict[int, int]:
    if VERSION >= (3, 13):
        by_name = dis._inline_cache_entries  # type: ignore[attr-defined]
        return {op: by_name.get(name, 0) for name, op in dis.opmap.items()}
    by_code = dis._inline_cache_entries  # type: ignore[attr-defined]
    return dict(enumerate(by_code))


_CACHES = _cache_sizes()


def _name_index(opname: str, arg: int) -> int:
    """Index into `co_names` that the argument of a name instruction stands for."""
    if opname == "LOAD_GLOBAL" or (opname == "LOAD_ATTR" and VERSION >= (3, 12)):
        return arg >> 1
    if opname == "LOAD_SUPER_ATTR":
        return arg >> 2
    return arg


def decode(code: CodeType, handler_of: dict[str, Callable[[Any, Any], int | None]]) -> DecodedCode:
    """Decode `code` and bind each instruction to its handler."""
    raw = code.co_code
    opname_of = dis.opname
    instructions: list[Instruction] = []
    index_of_offset: dict[int, int] = {}
    jumps: list[tuple[Instruction, int]] = []
    offset, extended, size = 0, 0, len(raw)
    names, consts = code.co_names, code.co_consts
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    slots = (*code.co_varnames, *cells, *code.co_freevars)
    while offset < size:
        op = raw[offset]
        arg = raw[offset + 1] | extended
        opname = opname_of[op]
        inst = Instruction(len(instructions), offset, opname, arg)
        inst.handler = handler_of[opname]
        index_of_offset[offset] = inst.index
        instructions.append(inst)
        extended = arg << 8 if op == _EXTENDED_ARG else 0
        if op in _HAS_NAME:
            inst.argval = names[_name_index(opname, arg)]
        elif op in _HAS_CONST:
            inst.argval = consts[arg]
        elif opname in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"):
            inst.argval = (slots[arg >> 4], slots[arg & 15])
        elif op in _HAS_LOCAL or op in _HAS_FREE:
            inst.argval = slots[arg]
        elif opname == "KW_NAMES":
            inst.argval = consts[arg]
        following = offset + 2 + 2 * _CACHES.get(op, 0)
        if op in _HAS_JUMP:
            jumps.append((inst, following + (-2 * arg if "BACKWARD" in opname else 2 * arg)))
        offset = following
    for inst, target in jumps:
        inst.target = index_of_offset[target]
    index_of_offset[size] = len(instructions)
    entries = [
        ExceptionEntry(
            index_of_offset[start], index_of_offset[end], index_of_offset[target], depth, lasti
        )
        for start, end, target, depth, lasti in _exception_table(code.co_exceptiontable)
    ]
    return DecodedCode(code, instructions, entries)


def _exception_table(table: bytes) -> list[tuple[int, int, int, int, bool]]:
    """Parse the variable-length rows (start, end, target, depth, lasti) in byte offsets."""
    rows = []
    position = 0

    def varint() -> int:
        nonlocal position
        byte = table[position]
        position += 1
        value = byte & 63
        while byte & 64:
            byte = table[position]
            position += 1
            value = (value << 6) | (byte & 63)
        return value

    while position < len(table):
        start = varint() * 2
        end = start + varint() * 2
        target = varint() * 2
        depth = varint()
        rows.append((start, end, target, depth >> 1, bool(depth & 1)))
    return rows


Handler = Callable[[Any, Any], "int | None"]

ALWAYS = ((3, 11), (3, 13))
FROM_312 = ((3, 12), (3, 13))
FROM_313 = ((3, 13), (3, 13))
UNTIL_311 = ((3, 11), (3, 11))
UNTIL_312 = ((3, 11), (3, 12))


class Row(NamedTuple):
    """`name` is handled by `handler` on the Python versions `versions[0]..versions[1]`."""

    name: str
    versions: tuple[tuple[int, int], tuple[int, int]]
    handler: Handler
