"""Code that leaves the blocks which a continuation starts in, for an error that is not the
program's.

Where a continuation cannot be compiled, or its graph raises, the `with` blocks around its start,
and the `try` blocks that have a `finally`, are left as the error passes: nothing of the program
stays half changed. The code is the original body, which raises the error where the continuation
starts. The program cannot stop it: clauses of `except` are passed by, and what `__exit__` returns
is not asked, as it is not known which of the program's instructions would have raised.
"""

from __future__ import annotations

from dataclasses import replace
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn

from dovetail_capture.bytecode.assembler import Body, Handler, Instruction
from dovetail_capture.bytecode.continuation_code import CodeMaker
from dovetail_capture.bytecode.continuation_state import Start, row_around

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


def unwinding_code(code: CodeType, start: Start, place: int) -> CodeType | None:
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
    row = row_around(body, index)
    while row is not None:
        assert row.target.origin is not None
        found.append(row)
        row = row_around(body, row.target.origin)
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
