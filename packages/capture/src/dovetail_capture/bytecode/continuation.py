"""Code objects that go on after a graph break.

A break at instruction `i` of a code object makes two kinds of code from it, both the *whole*
original body behind a prologue `RESUME; push the stack; JUMP to an instruction`:

- the **step** starts at `i`, runs that instruction natively (with the original handlers, so an
  exception it raises lands in the user's own `except` or `with`), and then, where control would go
  on, returns a `Resume`: a continuation and its arguments;
- a **continuation** starts after `i`. It is an ordinary function for the frame hook, so it is
  captured in turn. If it breaks, it returns a `Resume` as well.

The replacement of the user's own frame calls continuations for as long as it gets a `Resume`. So
a break in a loop, which is met anew in each iteration, does not nest calls.

Live locals and stack values are parameters. Cells (of cell variables and of free variables alike)
come in through the closure: a cell variable of the original is a free variable here.

Inside an `except` or `finally` block the value stack holds, where PUSH_EXC_INFO left it, the
exception that was handled before, and the thread knows the one being handled now. The latter is
what travels: the prologue makes it the handled one again, which leaves the former on the stack.
An exception that the native instructions of a step raise, where the user's code handles it, is
taken to a continuation that starts at the handler.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn

from dovetail_capture._frame_hook import skip_code
from dovetail_capture.bytecode import continuation_state as state
from dovetail_capture.bytecode.assembler import (
    NO_POSITIONS,
    Body,
    Handler,
    Instruction,
    Positions,
    decode,
    origin_of_dis_index,
)
from dovetail_capture.bytecode.continuation_code import PACKED, CodeMaker
from dovetail_capture.recipe import FrameEnd

_EXCEPT = ("CHECK_EXC_MATCH", "CHECK_EG_MATCH")


def place_of_errors(body: Body, broken: int, start: int) -> int:
    """As which instruction a continuation from `start`, which goes on after the break at `broken`,
    raises an error of ours.

    Where the break was the last of a block, what follows it, the call of `__exit__` or the copy of
    `finally` for the way without exceptions, lies outside of what the block's handler covers, and
    the block is not left yet: then it is the break.
    """
    known = {row.target.origin for row in _rows_around(body, start)}
    left = any(row.target.origin not in known for row in _rows_around(body, broken))
    return broken if left else start


def unwinding_code(code: CodeType, start: state.Start, place: int) -> CodeType | None:
    """The code of a function that takes a continuation's arguments and an error, which it raises
    as if instruction `place` did; None where no block is to be left."""
    maker = CodeMaker(code, start)
    body = Body(maker.original, maker.body.handlers)
    rows = _rows_around(body, place)
    passed = [row for row in rows if _is_except(body, row)]
    leaving = [row for row in rows if row not in passed]
    if not any(row.target.name == "PUSH_EXC_INFO" for row in leaving):
        return None
    outer: dict[Instruction, Handler | None] = {}
    for row in passed:  # the row behind it, which ends its handling, is passed by with it
        behind = rows[rows.index(row) + 2 :]
        outer[row.target] = next((row for row in behind if row in leaving), None)
    first = replace(leaving[0])
    for row in leaving:
        _ask_no_exit(body, row)
    kept = [_past_clauses(row, outer) for row in body.handlers]
    body.handlers[:] = [row for row in kept if row is not None]
    return maker.finish(raises_into=first)


def _past_clauses(row: Handler, outer: dict[Instruction, Handler | None]) -> Handler | None:
    """What handles the instructions of a row when clauses of `except` are passed by."""
    if row.target not in outer:
        return row
    to = outer[row.target]
    return to and replace(to, start=row.start, end=row.end)


def leave_blocks(
    error: BaseException,
    unwinding: CodeType,
    globals_: dict[str, Any],
    closure: tuple[CellType, ...] | None,
    *arguments: object,
) -> NoReturn:
    """Leave the blocks around the start of a continuation, by its unwinding code and the arguments
    it was called with. `error` is raised again, or what leaving the blocks raises instead."""
    FunctionType(unwinding, globals_, None, None, closure or None)(*arguments, error)
    raise error  # a `return` in a `finally` stops no error of ours


def _rows_around(body: Body, index: int) -> list[Handler]:
    """The rows of the exception table that an exception comes by which the instruction raises and
    nothing stops."""
    found = []
    row = state.row_around(body, index)
    while row is not None:
        assert row.target.origin is not None
        found.append(row)
        row = state.row_around(body, row.target.origin)
    return found


def _is_except(body: Body, row: Handler) -> bool:
    """Does control go to clauses of `except`? (Else to a `with`, a `finally` or a clean-up.)"""
    assert row.target.origin is not None
    if row.target.name != "PUSH_EXC_INFO":
        return False
    following = body.instructions[row.target.origin + 1 :]
    if following[0].name == "POP_TOP":  # a bare `except:`
        return True
    ends = (*_EXCEPT, "PUSH_EXC_INFO", "RERAISE")
    return next(i.name for i in following if i.name in ends) in _EXCEPT


def _ask_no_exit(body: Body, row: Handler) -> None:
    """Where the handler calls `__exit__`, let it go on raising whatever that returns."""
    assert row.target.origin is not None
    following = body.instructions[row.target.origin + 1 :]
    if following[0].name == "WITH_EXCEPT_START":
        jump = next(i for i in following if i.target is not None)
        assert jump.name.endswith("IF_TRUE")
        jump.name, jump.target = "POP_TOP", None


class Resume(tuple[Any, ...]):
    """A continuation and its arguments, returned by a step that goes on."""

    __slots__ = ()


@dataclass(frozen=True)
class Resumption:
    """How replacement code goes on after a break.

    It calls a function of code `step` with the live locals named `locals_`, then the stack values
    that are not NULL. The function gets the closure `free` (names; those in `from_cells` are cell
    variables of the broken frame). A `nested` resumption is that of a continuation, which leaves
    it to its caller to call what it resumes with.
    """

    step: CodeType
    locals_: tuple[str, ...]
    free: tuple[str, ...]
    from_cells: frozenset[str]
    line: int
    nested: bool = False


@dataclass(frozen=True)
class _Root:
    """Where a continuation came from: the user's code, and which of its instructions each
    instruction of the continuation is; where it starts, and as which instruction it raises what
    is no error of the program's."""

    code: CodeType
    origins: tuple[int | None, ...]
    start: state.Start
    place: int


class ContinuationCache:
    """Makes steps and continuations, each once, and remembers what they were made from."""

    def __init__(self) -> None:
        self._roots: dict[int, _Root] = {}
        self._resumptions: dict[tuple[int, state.Start], Resumption] = {}
        self._continuations: dict[tuple[int, state.Start, int], CodeType] = {}
        self._unwindings: dict[int, CodeType | None] = {}
        self._keep: list[CodeType] = []  # the codes whose ids the tables use

    def root_code(self, code: CodeType) -> CodeType:
        """The user's code that `code` (maybe a continuation) goes back to."""
        root = self._roots.get(id(code))
        return code if root is None else root.code

    def is_continuation(self, code: CodeType) -> bool:
        """Was this code made here?"""
        return id(code) in self._roots

    def unwinding(self, code: CodeType) -> CodeType | None:
        """The code that leaves the blocks which a continuation starts in, see `unwinding.py`."""
        root = self._roots.get(id(code))
        if root is None or not root.code.co_exceptiontable:
            return None
        if id(code) not in self._unwindings:
            found = unwinding_code(root.code, root.start, root.place)
            if found is not None:
                skip_code(found)
            self._unwindings[id(code)] = found
        return self._unwindings[id(code)]

    def resume(self, code: CodeType, end: FrameEnd) -> Resumption:
        """How to go on after `end`, a break in a frame of `code`; raises `CannotResume`."""
        assert end.break_index is not None
        origin: int | None = origin_of_dis_index(code, end.break_index)
        root = self._roots.get(id(code))
        if root is not None:
            assert origin is not None
            origin, code = root.origins[origin], root.code
        if origin is None:
            raise state.CannotResume("the break lies in the prologue of a continuation")
        known = {name for name, _ in end.locals_}
        live = tuple(name for name in code.co_varnames if name in known)
        live = tuple(name for name in live if name not in code.co_cellvars)
        start = state.Start(origin, tuple(state.kind_of(item) for item in end.stack), live)
        key = (id(code), start)
        found = self._resumptions.get(key)
        if found is None:
            self._keep.append(code)
            found = self._resumptions[key] = _make_resumption(self, code, start)
        if root is not None:  # a continuation's cells already came in through its closure
            found = replace(found, from_cells=frozenset(), nested=True)
        return found

    def continuation(self, code: CodeType, start: state.Start, broken: int) -> CodeType:
        """The code that goes on in `code` (a user's) from `start`, after the break at `broken`."""
        body = decode(code)
        place = place_of_errors(body, broken, start.index)
        key = (id(code), start, place)
        found = self._continuations.get(key)
        if found is None:
            maker = CodeMaker(code, start)
            found = self._continuations[key] = maker.finish()
            origins = tuple(instruction.origin for instruction in maker.body.instructions)
            self._roots[id(found)] = _Root(code, origins, start, place)
        return found


def _make_resumption(cache: ContinuationCache, code: CodeType, start: state.Start) -> Resumption:
    body = decode(code)
    first, last = state.instruction_group(body, start.index)
    name = body.instructions[last].name
    if name in state.UNSUPPORTED:
        raise state.CannotResume(f"a break at {name} is not resumed")
    if name == "LOAD_FAST_AND_CLEAR" and not state.slot_name(code, body.instructions[last].arg):
        raise state.CannotResume(
            "a comprehension sets a cell aside, as a function closes over its variable"
        )
    start = state.Start(first, start.kinds, start.locals_)
    exits = state.exits_after(code, body, start, last)
    caught = state.exit_to_handler(body, start)
    maker = CodeMaker(code, start)
    positions = maker.original[last].positions
    tails: list[Instruction] = []
    for leaving in exits:
        tail = _tail(maker, cache.continuation(code, leaving.start, last), leaving.start, positions)
        if leaving.is_jump and maker.original[last].name == "FOR_ITER":
            tail = [*(Instruction(name, 0, None, positions) for name in state.AFTER_LOOP), *tail]
        tails += tail
        if not leaving.is_jump:
            if maker.original[last].name in state.JUMPS:  # the tail takes its place
                maker.original[last].name, maker.original[last].target = "NOP", None
            native = [] if last > first else _as_plain_load(maker.original[last])
            jump = Instruction("JUMP_FORWARD", 0, tail[0], positions)
            end = last + state.stores_loop_variable(body, last)
            where = maker.body.instructions.index(maker.original[end]) + 1
            where += body.instructions[last].name in PACKED  # it was split in two
            maker.body.instructions[where:where] = [*native, jump]
        else:
            branch = maker.original[last]
            branch.name = branch.name.replace("_BACKWARD", "_FORWARD")
            branch.target = tail[0]
    if caught is not None:
        tail = _tail(maker, cache.continuation(code, caught.start, last), caught.start, positions)
        tails += tail
        assert caught.handler is not None
        _catch(maker, caught.handler, first, last, tail[0])
    step = maker.finish(tails)
    line = positions[0] or code.co_firstlineno
    cells = frozenset(code.co_cellvars)
    return Resumption(step, start.locals_, maker.free, cells, line)


def _catch(maker: CodeMaker, row: Handler, first: int, last: int, target: Instruction) -> None:
    """Let `target` handle what the user's instructions from `first` to `last` raise, instead of
    the handler of the exception table's `row`."""
    instructions = maker.body.instructions
    place = next(i for i, known in enumerate(maker.body.handlers) if _same_row(known, row))
    old = maker.body.handlers[place]
    after = instructions[instructions.index(maker.original[last]) + 1]
    begin = maker.original[first]
    parts = [Handler(begin, after, target, old.depth, old.push_lasti)]
    if old.start is not begin:
        parts.insert(0, Handler(old.start, begin, old.target, old.depth, old.push_lasti))
    if old.end is not after:
        parts.append(Handler(after, old.end, old.target, old.depth, old.push_lasti))
    maker.body.handlers[place : place + 1] = parts


def _same_row(left: Handler, right: Handler) -> bool:
    """Are these one row of the exception table, decoded twice?"""
    return left.start.origin == right.start.origin


def _as_plain_load(instruction: Instruction) -> list[Instruction]:
    """Make a method load a plain attribute load, and give what pushes its NULL after it: only
    then is it known beforehand which of the two slots is NULL."""
    if not state.pushes_pair(instruction) or instruction.name == "LOAD_GLOBAL":
        return []
    if instruction.name == "LOAD_METHOD":
        instruction.name = "LOAD_ATTR"
    else:
        instruction.arg &= ~1
    extra = [Instruction("PUSH_NULL", 0, None, instruction.positions)]
    if sys.version_info < (3, 13):
        extra.append(Instruction("SWAP", 2, None, instruction.positions))
    return extra


def _tail(
    maker: CodeMaker, continuation: CodeType, start: state.Start, positions: Positions
) -> list[Instruction]:
    """Take the stack apart and return `Resume((continuation, *locals, *stack))`. (The class and
    the continuation are constants: as locals, `dir()` would name them to the user's code.)"""
    code: list[Instruction] = []

    def emit(name: str, arg: int = 0) -> None:
        code.append(Instruction(name, arg, None, positions or NO_POSITIONS))

    for place, kind in reversed(list(enumerate(start.kinds))):
        if kind == state.HANDLER_COPY:
            emit("POP_TOP")
            continue
        if kind == state.HANDLER:  # exchange the exception being handled with None, to get at it
            emit("LOAD_CONST", maker.constant(None))
            emit("PUSH_EXC_INFO")
            emit("POP_TOP")
        emit("STORE_FAST", maker.slot(f".n{place}"))  # of a NULL this only unbinds the name
        if kind == state.HANDLER:
            emit("POP_EXCEPT")
    marker = maker.constant(Resume)
    if sys.version_info >= (3, 13):
        emit("LOAD_CONST", marker)
        emit("PUSH_NULL")
    else:
        emit("PUSH_NULL")
        emit("LOAD_CONST", marker)
    code += maker.function(continuation, positions or NO_POSITIONS)
    for name in start.locals_:
        emit("LOAD_FAST", maker.slot(name))
    stack = [
        place for place, kind in enumerate(start.kinds) if kind in (state.VALUE, state.HANDLER)
    ]
    for place in stack:
        emit("LOAD_FAST", maker.slot(f".n{place}"))
        emit("DELETE_FAST", maker.slot(f".n{place}"))
    emit("BUILD_TUPLE", 1 + len(start.locals_) + len(stack))
    if sys.version_info < (3, 12):
        emit("PRECALL", 1)
    emit("CALL", 1)
    emit("RETURN_VALUE")
    return code
