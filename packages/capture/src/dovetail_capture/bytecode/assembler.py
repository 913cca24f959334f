"""A small assembler for CPython 3.11 to 3.13: code object <-> list of instructions.

Instructions hold their jump target as an instruction, their source positions, and (through
`Handler` entries) the exception table, so that inserting instructions keeps everything right.
Inline caches and EXTENDED_ARG prefixes exist only in the encoded form.
"""

from __future__ import annotations

import dis
import opcode
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

Positions = tuple[int | None, int | None, int | None, int | None]
"""line, end line, column, end column, as `co_positions` gives them."""

NO_POSITIONS: Positions = (None, None, None, None)

_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]


def _cache_units() -> list[int]:
    table: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if sys.version_info >= (3, 13):
        return [table.get(name, 0) for name in dis.opname]
    return [*table]


_CACHE_UNITS = _cache_units()  # by opcode: how many inline cache units follow it
_UNITS = {name: 1 + _CACHE_UNITS[op] for name, op in dis.opmap.items() if op < len(_CACHE_UNITS)}
_CACHES = [bytes(2 * units) for units in range(max(_UNITS.values()))]
_JUMPS = frozenset(dis.hasjrel)


@dataclass(eq=False)
class Instruction:
    """One instruction. `origin` is its index in the code it was decoded from."""

    name: str
    arg: int = 0
    target: Instruction | None = None
    positions: Positions = NO_POSITIONS
    origin: int | None = None

    @property
    def op(self) -> int:
        """The opcode's number in this version of Python."""
        return dis.opmap[self.name]

    @property
    def is_backward(self) -> bool:
        """Does it jump backwards?"""
        return "BACKWARD" in self.name

    def __repr__(self) -> str:
        arrow = "" if self.target is None else f" -> {self.target.name}@{self.target.origin}"
        return f"<{self.name} {self.arg}{arrow}>"


@dataclass(eq=False)
class Handler:
    """An exception table entry: instructions from `start` up to, not including, `end` (None: the
    end of the code) are handled at `target` with the stack cut to `depth`."""

    start: Instruction
    end: Instruction | None
    target: Instruction
    depth: int
    push_lasti: bool


@dataclass
class Body:
    """A decoded code object: instructions and handlers."""

    instructions: list[Instruction]
    handlers: list[Handler] = field(default_factory=list)


# --- decoding ------------------------------------------------------------------------------------


def decode(code: CodeType) -> Body:
    """The instructions of a code object, EXTENDED_ARG merged, and its exception table."""
    raw, opname_of = code.co_code, dis.opname
    positions = list(code.co_positions())
    instructions: list[Instruction] = []
    at_offset: dict[int, Instruction] = {}
    jumps: list[tuple[Instruction, int]] = []
    offset, start, arg = 0, 0, 0
    while offset < len(raw):
        op, arg = raw[offset], arg << 8 | raw[offset + 1]
        if op == _EXTENDED_ARG:
            offset += 2
            continue
        name = opname_of[op]
        instruction = Instruction(name, arg, None, positions[offset // 2], len(instructions))
        after = offset + 2 * _UNITS[name]
        if op in _JUMPS:
            distance = -arg if instruction.is_backward else arg
            jumps.append((instruction, after + 2 * distance))
            instruction.arg = 0
        instructions.append(instruction)
        for prefix in range(start, offset + 2, 2):  # a jump lands on the EXTENDED_ARG prefix
            at_offset[prefix] = instruction
        offset = start = after
        arg = 0
    for instruction, target in jumps:
        instruction.target = at_offset[target]
    handlers = [
        Handler(
            at_offset[2 * first],
            at_offset.get(2 * (first + size)),
            at_offset[2 * goal],
            depth,
            push_lasti,
        )
        for first, size, goal, depth, push_lasti in _parse_exception_table(code.co_exceptiontable)
    ]
    return Body(instructions, handlers)


def _dis_opcodes(code: CodeType) -> Iterator[int]:
    """Opcodes in `dis` order: EXTENDED_ARG prefixes counted, caches not."""
    raw, offset = code.co_code, 0
    while offset < len(raw):
        yield raw[offset]
        offset += 2 + 2 * _CACHE_UNITS[raw[offset]]


def origin_of_dis_index(code: CodeType, index: int) -> int:
    """The position in `decode(code)` of instruction `index` in `dis` order."""
    position = 0
    for number, op in enumerate(_dis_opcodes(code)):
        if number == index:
            return position
        position += op != _EXTENDED_ARG
    raise IndexError(f"{code.co_qualname} has no instruction {index}")


def _parse_exception_table(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    stream = iter(table)

    def number(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(stream)
            value = value << 6 | first & 63
        return value

    for byte in stream:
        start, size, target, depth = number(byte), *(number(next(stream)) for _ in range(3))
        yield start, size, target, depth >> 1, bool(depth & 1)


# --- encoding ------------------------------------------------------------------------------------


def encode(body: Body, first_line: int) -> dict[str, bytes]:
    """`co_code`, `co_linetable` and `co_exceptiontable`, as keywords for `code.replace`."""
    offsets, total = _layout(body.instructions)
    opmap = dis.opmap
    units = bytearray()
    line_units: list[tuple[Positions, int]] = []
    begin, positions = 0, NO_POSITIONS  # of the run of instructions that lie at one place
    for instruction in body.instructions:
        if instruction.positions != positions:
            line_units.append((positions, len(units) // 2 - begin))
            begin, positions = len(units) // 2, instruction.positions
        name = instruction.name
        arg = instruction.arg if instruction.target is None else _distance(instruction, offsets)
        if arg > 255:
            for prefix in _prefixes(arg):
                units += bytes((_EXTENDED_ARG, prefix))
        units += bytes((opmap[name], arg & 255)) + _CACHES[_UNITS[name] - 1]
    line_units.append((positions, total - begin))
    table = bytearray()
    for handler in body.handlers:
        start = offsets[handler.start]
        end = total if handler.end is None else offsets[handler.end]
        if end > start:
            _write_exception_entry(table, start, end, offsets[handler.target], handler)
    return {
        "co_code": bytes(units),
        "co_linetable": encode_lines(line_units, first_line),
        "co_exceptiontable": bytes(table),
    }


def _prefixes(arg: int) -> list[int]:
    found = []
    while arg := arg >> 8:
        found.append(arg & 255)
    return found[::-1]


def _distance(instruction: Instruction, offsets: dict[Instruction, int]) -> int:
    """A jump's distance in units from after its caches. An offset is that of the first
    EXTENDED_ARG prefix."""
    assert instruction.target is not None
    end = offsets[instruction] + instruction.arg + _UNITS[instruction.name]
    distance = offsets[instruction.target] - end
    distance = -distance if instruction.is_backward else distance
    assert distance >= 0, f"{instruction!r} jumps the wrong way"
    return distance


def _layout(instructions: Sequence[Instruction]) -> tuple[dict[Instruction, int], int]:
    """Unit offsets. Jumps keep the number of their prefixes in `arg`; it only grows, so that the
    iteration ends."""
    jumps = [instruction for instruction in instructions if instruction.target is not None]
    for instruction in jumps:
        instruction.arg = 0
    while True:
        offsets: dict[Instruction, int] = {}
        position = 0
        for instruction in instructions:
            offsets[instruction] = position
            position += _UNITS[instruction.name]
            if instruction.target is not None:
                position += instruction.arg
            elif instruction.arg > 255:
                position += len(_prefixes(instruction.arg))
        changed = False
        for instruction in jumps:
            needed = len(_prefixes(_distance(instruction, offsets)))
            if needed > instruction.arg:
                instruction.arg, changed = needed, True
        if not changed:
            return offsets, position


def _write_exception_entry(
    table: bytearray, start: int, end: int, target: int, handler: Handler
) -> None:
    marker = 128
    for value in (start, end - start, target, handler.depth << 1 | handler.push_lasti):
        digits = [value & 63]
        while value := value >> 6:
            digits.append(value & 63)
        for place, digit in enumerate(reversed(digits)):
            more = 64 if place < len(digits) - 1 else 0
            table.append(marker | more | digit)
            marker = 0


def encode_lines(entries: Iterable[tuple[Positions, int]], first_line: int) -> bytes:
    """A line table from (positions, number of code units) entries."""
    table = bytearray()
    line = first_line
    for positions, units in entries:
        while units > 0:
            length = min(units, 8)
            units -= length
            line = _write_location(table, positions, length, line)
    return bytes(table)


def _varint(table: bytearray, value: int) -> None:
    while value >= 64:
        table.append(64 | value & 63)
        value >>= 6
    table.append(value)


def _signed_varint(table: bytearray, value: int) -> None:
    _varint(table, -value << 1 | 1 if value < 0 else value << 1)


def _write_location(table: bytearray, positions: Positions, length: int, line: int) -> int:
    """One entry: 15 no location, 13 line only, 14 everything. Returns the line reached."""
    start, end, column, end_column = positions
    if start is None:
        table.append(128 | 15 << 3 | length - 1)
        return line
    if end is None or column is None or end_column is None:
        table.append(128 | 13 << 3 | length - 1)
        _signed_varint(table, start - line)
        return start
    table.append(128 | 14 << 3 | length - 1)
    _signed_varint(table, start - line)
    _varint(table, end - start)
    _varint(table, column + 1)
    _varint(table, end_column + 1)
    return start


# --- control flow --------------------------------------------------------------------------------

_NO_FALL_THROUGH = frozenset(
    {
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
    }
)

EXITS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})


def successors(body: Body, index: int) -> list[int]:
    """Positions that may run right after instruction `index`, exceptions aside."""
    instruction = body.instructions[index]
    found = []
    if instruction.name not in _NO_FALL_THROUGH and index + 1 < len(body.instructions):
        found.append(index + 1)
    if instruction.target is not None:
        assert instruction.target.origin is not None
        found.append(instruction.target.origin)
    return found


def reachable(body: Body, starts: Iterable[int], *, through_handlers: bool) -> set[int]:
    """Positions reachable from `starts` (included) in a body just decoded."""
    handler_of: dict[int, list[int]] = {}
    if through_handlers:
        for handler in body.handlers:
            first = handler.start.origin or 0
            last = len(body.instructions) if handler.end is None else handler.end.origin or 0
            for covered in range(first, last):
                handler_of.setdefault(covered, []).append(handler.target.origin or 0)
    seen: set[int] = set()
    work = list(starts)
    while work:
        index = work.pop()
        if index not in seen:
            seen.add(index)
            work += successors(body, index)
            work += handler_of.get(index, ())
    return seen
