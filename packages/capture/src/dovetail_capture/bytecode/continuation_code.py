"""One new code object: a prologue, the whole original body, and tails behind it."""

from __future__ import annotations

import dis
import linecache
import sys
from types import CodeType
from typing import Any

from dovetail_capture.bytecode.assembler import Handler, Instruction, Positions, decode, encode
from dovetail_capture.bytecode.continuation_state import HANDLER, HANDLER_COPY, NULL, VALUE, Start

PACKED = ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")
_CODE_SHAPE = 0x04 | 0x08  # CO_VARARGS, CO_VARKEYWORDS
_CLOSURE = 0x08  # of MAKE_FUNCTION, later of SET_FUNCTION_ATTRIBUTE


def _text_of(code: CodeType, body: list[Instruction], start: Start, place: int) -> str:
    """What a user knows a value on the stack by: the expression that gave it, or its line."""
    before = body[start.index - 1].positions if start.index else None
    if before is None or before[0] is None:
        return f"<value {place} on the stack>"
    line, end_line, column, end_column = before
    assert line is not None
    text = linecache.getline(code.co_filename, line)
    if place != len(start.kinds) - 1 or not text or line != end_line or column is None:
        return f"<value {place} in line {line}>"
    return text.encode()[column:end_column].decode(errors="replace")


class CodeMaker:
    """One new code object: the prologue, the whole original body, and room for tails."""

    def __init__(self, code: CodeType, start: Start) -> None:
        self.code, self.start = code, start
        self.body = decode(code)
        self.original = list(self.body.instructions)
        self.stack_names = {
            place: f".s{place} {_text_of(code, self.original, start, place)}"
            for place, kind in enumerate(start.kinds)
            if kind in (VALUE, HANDLER)
        }
        self.parameters = (*start.locals_, *self.stack_names.values())
        self.free = (*code.co_cellvars, *code.co_freevars)
        rest = [n for n in code.co_varnames if n not in start.locals_ and n not in self.free]
        self.varnames = [*self.parameters, *rest]
        self.constants = list(code.co_consts)
        self._expand_packed()

    def slot(self, name: str) -> int:
        """The index of a local or free variable in the new frame; new locals are added."""
        if name in self.free:
            raise AssertionError("free slots are known only at the end")
        if name not in self.varnames:
            self.varnames.append(name)
        return self.varnames.index(name)

    def constant(self, value: Any) -> int:
        """The index of a constant, which is this very object."""
        for place, known in enumerate(self.constants):
            if known is value:
                return place
        self.constants.append(value)
        return len(self.constants) - 1

    def function(self, code: CodeType, positions: Positions) -> list[Instruction]:
        """Instructions that make a function of `code` with the closure of this one."""
        count, late = len(self.free), sys.version_info >= (3, 13)
        parts: list[tuple[str, int]] = []
        if count:
            parts += [*(("LOAD_CLOSURE", place) for place in range(count)), ("BUILD_TUPLE", count)]
        parts.append(("LOAD_CONST", self.constant(code)))
        parts.append(("MAKE_FUNCTION", _CLOSURE if count and not late else 0))
        if count and late:
            parts.append(("SET_FUNCTION_ATTRIBUTE", _CLOSURE))
        return [Instruction(name, arg, None, positions) for name, arg in parts]

    def _expand_packed(self) -> None:
        """3.13's two-in-one local instructions cannot always hold the new indices: split them."""
        result: list[Instruction] = []
        for instruction in self.body.instructions:
            if instruction.name not in PACKED:
                result.append(instruction)
                continue
            names = instruction.name.split("_")
            pair = ["_".join(names[:2]), "_".join(names[2:])]
            args = (instruction.arg >> 4, instruction.arg & 15)
            second = Instruction(pair[1], args[1], None, instruction.positions, None)
            instruction.name, instruction.arg = pair[0], args[0]
            result += [instruction, second]
        self.body.instructions[:] = result

    def finish(
        self, tails: list[Instruction] | None = None, raises_into: Handler | None = None
    ) -> CodeType:
        """Put prologue, body and tails together. With `raises_into`, the code raises its last
        parameter, an error, into that handler."""
        code = self.code
        count = len(self.parameters)
        if raises_into is not None:
            self.varnames.insert(count, ".error")
            count += 1
        self._rename_slots()
        target = self.original[self.start.index]
        prologue = []
        if self.free:
            prologue.append(Instruction("COPY_FREE_VARS", len(self.free)))
        prologue.append(Instruction("RESUME", 0))
        handler = 0  # the place of the innermost handler
        for place, kind in enumerate(self.start.kinds):
            if kind == NULL:
                prologue.append(Instruction("PUSH_NULL"))
            elif kind == HANDLER_COPY:
                prologue.append(Instruction("COPY", place - handler))
            else:
                local = self.varnames.index(self.stack_names[place])
                # An exception held by a frame that it passes through would be a cycle.
                prologue += [Instruction("LOAD_FAST", local), Instruction("DELETE_FAST", local)]
            if kind == HANDLER:
                handler = place
                prologue += [Instruction("PUSH_EXC_INFO"), Instruction("POP_TOP")]
        if raises_into is None:
            prologue.append(Instruction("JUMP_FORWARD", 0, target))
        else:
            error = Instruction("LOAD_FAST", count - 1)
            prologue += [error, Instruction("DELETE_FAST", count - 1)]
            prologue.append(Instruction("RAISE_VARARGS", 1))
            row, first = raises_into, self.body.instructions[0]
            self.body.handlers.insert(
                0, Handler(error, first, row.target, row.depth, row.push_lasti)
            )
        for instruction in prologue:
            instruction.positions = (target.positions[0], None, None, None)
        self.body.instructions[:0] = prologue
        if tails:
            for row in self.body.handlers:  # the user's handlers end where the user's code does
                row.end = row.end or tails[0]
        for instruction in tails or ():
            if instruction.name == "LOAD_CLOSURE":  # from 3.13 on, cells are loaded like locals
                instruction.name = "LOAD_FAST" if sys.version_info >= (3, 13) else "LOAD_CLOSURE"
                instruction.arg += len(self.varnames)
        self.body.instructions += tails or []
        return code.replace(
            co_consts=tuple(self.constants),
            co_argcount=count,
            co_posonlyargcount=0,
            co_kwonlyargcount=0,
            co_nlocals=len(self.varnames),
            co_varnames=tuple(self.varnames),
            co_cellvars=(),
            co_freevars=self.free,
            co_flags=code.co_flags & ~_CODE_SHAPE,
            co_stacksize=code.co_stacksize + len(self.varnames) + len(self.free) + 8,
            **encode(self.body, code.co_firstlineno),  # type: ignore[arg-type]
        )

    def _rename_slots(self) -> None:
        """Point local and free variable instructions at the new frame's slots."""
        code = self.code
        cells = [name for name in code.co_cellvars if name not in code.co_varnames]
        old = [*code.co_varnames, *cells, *code.co_freevars]
        new = {name: place for place, name in enumerate([*self.varnames, *self.free])}
        used = {*dis.haslocal, *dis.hasfree}
        start = next(i for i in self.body.instructions if i.name == "RESUME")
        prologue = self.body.instructions[: self.body.instructions.index(start)]
        for instruction in self.body.instructions:
            if instruction in prologue and instruction.name in ("MAKE_CELL", "COPY_FREE_VARS"):
                instruction.name, instruction.arg = "NOP", 0  # never reached
            elif instruction.op in used:
                instruction.arg = new[old[instruction.arg]]
