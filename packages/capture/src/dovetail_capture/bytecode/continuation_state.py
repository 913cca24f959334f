"""Where a continuation starts, and where control goes from there: stack, live locals, handlers."""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from types import CodeType

from dovetail_capture.bytecode.assembler import EXITS, Body, Handler, Instruction, reachable
from dovetail_capture.recipe import HandledHere, Recipe

_CALL_ENDINGS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "CALL_METHOD")
# What a place of the value stack holds: a value, NULL, the exception that was handled before the
# one being handled now, or a copy of the latter for POP_EXCEPT to take.
VALUE, NULL, HANDLER, HANDLER_COPY = "value", "null", "handler", "handler copy"
Kinds = tuple[str, ...]
UNSUPPORTED = frozenset({"SEND", "YIELD_VALUE", "RETURN_GENERATOR"})
JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
# FOR_ITER, at the end, pops the iterator and goes on after these instructions at its target.
AFTER_LOOP: tuple[str, ...] = {(3, 11): (), (3, 12): ("END_FOR",), (3, 13): ("END_FOR", "POP_TOP")}[
    sys.version_info[:2]
]


class CannotResume(Exception):
    """A break after which no continuation is made; the frame runs plainly. Says why."""


@dataclass(frozen=True)
class Start:
    """The state a piece of code starts from: instruction, what the stack places hold, locals."""

    index: int
    kinds: Kinds
    locals_: tuple[str, ...]


@dataclass(frozen=True)
class Exit:
    """Where control goes after the native instructions of a step, and the state there."""

    start: Start
    is_jump: bool = False
    handler: Handler | None = None  # the exception table's row, if control goes to a handler


def kind_of(item: Recipe | None) -> str:
    """What a place of the value stack holds, of which `item` is the recipe."""
    if item is None:
        return NULL
    if isinstance(item, HandledHere):
        return HANDLER_COPY if item.error is None else HANDLER
    return VALUE


def row_around(body: Body, index: int) -> Handler | None:
    """The row of the exception table that an instruction lies in."""
    for row in body.handlers:
        end = len(body.instructions) if row.end is None else row.end.origin
        assert row.start.origin is not None and end is not None
        if row.start.origin <= index < end:
            return row
    return None


def exit_to_handler(body: Body, start: Start) -> Exit | None:
    """Where an exception that the instructions of a step raise goes, if to an `except` or `with`
    after which the function may go on; what only cleans up runs in the step."""
    row = row_around(body, start.index)
    if row is None or row.target.name != "PUSH_EXC_INFO":
        return None
    assert row.target.origin is not None
    if not _goes_on(body, row.target.origin):
        return None
    kinds = (*start.kinds[: row.depth], *(VALUE,) * (1 + row.push_lasti))
    return Exit(Start(row.target.origin, kinds, start.locals_), handler=row)


def _goes_on(body: Body, target: int) -> bool:
    """May the function go on after this handler, or after one around it?"""
    places = reachable(body, [target], through_handlers=True)
    return any(
        body.instructions[place].name == "POP_EXCEPT"
        and body.instructions[place - 1].name != "COPY"
        for place in places
    )


def instruction_group(body: Body, index: int) -> tuple[int, int]:
    """The instructions that must run together: KW_NAMES, PRECALL and CALL are one call."""
    names = [instruction.name for instruction in body.instructions]
    first = last = index
    if names[last] == "KW_NAMES":
        last += 1
    if names[last] == "PRECALL":
        last += 1
    if names[last] == "CALL":
        if names[first] == "CALL" and names[first - 1] == "PRECALL":
            first -= 1
        if names[first] != "KW_NAMES" and first and names[first - 1] == "KW_NAMES":
            first -= 1
    falls_through = names[last] not in EXITS and body.instructions[last].target is None
    while falls_through and names[last + 1 : last + 2] == ["POP_TOP"]:
        last += 1  # a result that is thrown away need not travel through the continuation
    return first, last


def stores_loop_variable(body: Body, last: int) -> bool:
    """Is this a FOR_ITER whose item goes straight into a local? The step stores it then: as a
    local it is looked at, and guarded, only where the loop's body reads it."""
    following = body.instructions[last + 1 : last + 2]
    return body.instructions[last].name == "FOR_ITER" and [i.name for i in following] == [
        "STORE_FAST"
    ]


def _next_indices(body: Body, index: int) -> list[int]:
    instruction = body.instructions[index]
    if instruction.name in EXITS:
        return []
    target = instruction.target
    if target is None:
        return [index + 1]
    assert target.origin is not None
    if instruction.name.startswith("JUMP_") and "IF" not in instruction.name:
        return [target.origin]
    if instruction.name == "FOR_ITER":
        return [index + 1, target.origin + len(AFTER_LOOP)]
    return [index + 1, target.origin]


def exits_after(code: CodeType, body: Body, start: Start, last: int) -> list[Exit]:
    """Where control goes after the native instructions."""
    found = []
    members = body.instructions[start.index : last + 1]
    for jump, target in zip((False, True), _next_indices(body, last), strict=False):
        kinds, live, depth = start.kinds, start.locals_, len(start.kinds)
        for member in members:
            arg = member.arg if member.op >= dis.HAVE_ARGUMENT else None
            if jump and member.name == "FOR_ITER":
                depth -= 1
            else:
                depth += dis.stack_effect(member.op, arg, jump=jump)
            before, alive = kinds, live
            live = _live_after(code, member, live, kinds)
            if member.name not in ("KW_NAMES", "PRECALL"):  # one call together with their CALL
                kinds = _kinds_after(member, before, depth)
            if member.name == "LOAD_FAST_AND_CLEAR":
                bound = {*alive, *code.co_cellvars, *code.co_freevars, ""}
                kinds = (*kinds[:-1], VALUE if slot_name(code, member.arg) in bound else NULL)
        if not jump and stores_loop_variable(body, last):
            live = _live_after(code, body.instructions[last + 1], live, kinds)
            target, kinds = target + 1, kinds[:-1]
        found.append(Exit(Start(target, kinds, live), is_jump=jump))
    return found


def _live_after(
    code: CodeType, instruction: Instruction, live: tuple[str, ...], kinds: Kinds
) -> tuple[str, ...]:
    """The locals that are bound after the instruction; `kinds` is the stack before it."""
    names = set(live)
    stored: list[tuple[int, str]] = []
    match instruction.name:
        case "STORE_FAST":
            stored = [(instruction.arg, kinds[-1])]
        case "STORE_FAST_LOAD_FAST":
            stored = [(instruction.arg >> 4, kinds[-1])]
        case "STORE_FAST_STORE_FAST":
            stored = [(instruction.arg >> 4, kinds[-1]), (instruction.arg & 15, kinds[-2])]
        case "DELETE_FAST" | "LOAD_FAST_AND_CLEAR":
            names.discard(slot_name(code, instruction.arg))
    for slot, kind in stored:
        (names.discard if kind == NULL else names.add)(slot_name(code, slot))
    return tuple(name for name in code.co_varnames if name in names)


def slot_name(code: CodeType, arg: int) -> str:
    """The name of a local slot; cells have none here: they come in through the closure."""
    name = code.co_varnames[arg] if arg < len(code.co_varnames) else ""
    return "" if name in code.co_cellvars else name


def _kinds_after(instruction: Instruction, before: Kinds, depth: int) -> Kinds:
    """What the stack places hold after the instruction: those below what it touched stay."""
    kinds = [before[place] if place < len(before) else VALUE for place in range(depth)]
    name = instruction.name
    if name in _CALL_ENDINGS:
        kinds[-1] = VALUE  # the result takes the place of the callable or of its NULL
    elif name == "PUSH_NULL":
        kinds[-1] = NULL
    elif name == "PUSH_EXC_INFO":
        kinds[-2:] = [HANDLER, VALUE]
    elif name == "COPY" and before[-instruction.arg] in (HANDLER, HANDLER_COPY):
        kinds[-1] = HANDLER_COPY
    elif name == "SWAP":
        kinds[-1], kinds[-instruction.arg] = kinds[-instruction.arg], kinds[-1]
    elif name == "POP_EXCEPT" and before[-1] == HANDLER_COPY:
        place = max(place for place, kind in enumerate(kinds) if kind == HANDLER)
        kinds[place] = NULL  # what was handled before is handled again; this is never read
    elif pushes_pair(instruction):
        # LOAD_METHOD and friends are run as plain loads: the second slot is then always NULL.
        kinds[-2:] = [VALUE, NULL] if sys.version_info >= (3, 13) else [NULL, VALUE]
    return tuple(kinds)


def pushes_pair(instruction: Instruction) -> bool:
    """Does it push a value and a NULL (or a method and its self)?"""
    name, bit = instruction.name, bool(instruction.arg & 1)
    if name == "LOAD_METHOD" or (name in ("LOAD_GLOBAL", "LOAD_SUPER_ATTR") and bit):
        return True
    return name == "LOAD_ATTR" and bit and sys.version_info >= (3, 12)
