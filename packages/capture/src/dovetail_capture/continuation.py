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

import dis
import sys
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from dovetail_capture.bytecode import (
    EXITS,
    NO_POSITIONS,
    Body,
    Handler,
    Instruction,
    Positions,
    decode,
    encode,
    origin_of_dis_index,
    reachable,
)
from dovetail_capture.recipe import FrameEnd, HandledHere, Recipe

_CALL_ENDINGS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "CALL_METHOD")
_PACKED = ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")
# What a place of the value stack holds: a value, NULL, the exception that was handled before the
# one being handled now, or a copy of the latter for POP_EXCEPT to take.
VALUE, NULL, HANDLER, HANDLER_COPY = "value", "null", "handler", "handler copy"
Kinds = tuple[str, ...]
_UNSUPPORTED = frozenset({"SEND", "YIELD_VALUE", "RETURN_GENERATOR"})
_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_RESUME = ".resume"  # the parameter of a step that holds the class `Resume`
# FOR_ITER, at the end, pops the iterator and goes on after these instructions at its target.
_AFTER_LOOP: tuple[str, ...] = {
    (3, 11): (),
    (3, 12): ("END_FOR",),
    (3, 13): ("END_FOR", "POP_TOP"),
}[sys.version_info[:2]]
_CODE_SHAPE = 0x04 | 0x08  # CO_VARARGS, CO_VARKEYWORDS


class CannotResume(Exception):
    """A break after which no continuation is made; the frame runs plainly. Says why."""


class Resume(tuple[Any, ...]):
    """A continuation and its arguments, returned by a step that goes on."""

    __slots__ = ()


@dataclass(frozen=True)
class Resumption:
    """How replacement code goes on after a break.

    It calls a function of code `step` with the live locals named `locals_`, then the stack values
    that are not NULL, then one function per code in `continuations`, then the class `Resume`. All
    these functions get the closure `free` (names; those in `from_cells` are cell variables of the
    broken frame). A `nested` resumption is that of a continuation, which leaves it to its caller
    to call what it resumes with.
    """

    step: CodeType
    continuations: tuple[CodeType, ...]
    locals_: tuple[str, ...]
    free: tuple[str, ...]
    from_cells: frozenset[str]
    line: int
    nested: bool = False


@dataclass(frozen=True)
class _Root:
    """Where a continuation came from: the user's code, and which of its instructions each
    instruction of the continuation is."""

    code: CodeType
    origins: tuple[int | None, ...]


@dataclass(frozen=True)
class _Start:
    """The state a piece of code starts from: instruction, what the stack places hold, locals."""

    index: int
    kinds: Kinds
    locals_: tuple[str, ...]


@dataclass(frozen=True)
class _Exit:
    """Where control goes after the native instructions of a step, and the state there."""

    start: _Start
    is_jump: bool = False
    handler: Handler | None = None  # the exception table's row, if control goes to a handler


def kind_of(item: Recipe | None) -> str:
    """What a place of the value stack holds, of which `item` is the recipe."""
    if item is None:
        return NULL
    if isinstance(item, HandledHere):
        return HANDLER_COPY if item.error is None else HANDLER
    return VALUE


class ContinuationCache:
    """Makes steps and continuations, each once, and remembers what they were made from."""

    def __init__(self) -> None:
        self._roots: dict[int, _Root] = {}
        self._resumptions: dict[tuple[int, _Start], Resumption] = {}
        self._continuations: dict[tuple[int, _Start], CodeType] = {}
        self._blocks: dict[int, tuple[str, ...]] = {}
        self._keep: list[CodeType] = []  # the codes whose ids the tables use

    def root_code(self, code: CodeType) -> CodeType:
        """The user's code that `code` (maybe a continuation) goes back to."""
        root = self._roots.get(id(code))
        return code if root is None else root.code

    def is_continuation(self, code: CodeType) -> bool:
        """Was this code made here?"""
        return id(code) in self._roots

    def open_blocks(self, code: CodeType) -> tuple[str, ...]:
        """The parameters of a continuation that hold the `__exit__` of the `with` blocks it starts
        in, innermost first."""
        return self._blocks.get(id(code), ())

    def resume(self, code: CodeType, end: FrameEnd) -> Resumption:
        """How to go on after `end`, a break in a frame of `code`; raises `CannotResume`."""
        assert end.break_index is not None
        origin: int | None = origin_of_dis_index(code, end.break_index)
        root = self._roots.get(id(code))
        if root is not None:
            assert origin is not None
            origin, code = root.origins[origin], root.code
        if origin is None:
            raise CannotResume("the break lies in the prologue of a continuation")
        known = {name for name, _ in end.locals_}
        live = tuple(name for name in code.co_varnames if name in known)
        live = tuple(name for name in live if name not in code.co_cellvars)
        start = _Start(origin, tuple(kind_of(item) for item in end.stack), live)
        key = (id(code), start)
        found = self._resumptions.get(key)
        if found is None:
            self._keep.append(code)
            found = self._resumptions[key] = _make_resumption(self, code, start)
        if root is not None:  # a continuation's cells already came in through its closure
            found = replace(found, from_cells=frozenset(), nested=True)
        return found

    def continuation(self, code: CodeType, start: _Start) -> CodeType:
        """The code that goes on in `code` (a user's) from `start`."""
        key = (id(code), start)
        found = self._continuations.get(key)
        if found is None:
            maker = _Maker(code, start, ())
            found = self._continuations[key] = maker.finish()
            origins = tuple(instruction.origin for instruction in maker.body.instructions)
            self._roots[id(found)] = _Root(code, origins)
            self._blocks[id(found)] = _open_blocks(decode(code), start)
        return found


class _Maker:
    """One new code object: the prologue, the whole original body, and room for tails."""

    def __init__(self, code: CodeType, start: _Start, extra: tuple[str, ...]) -> None:
        self.code, self.start = code, start
        self.body = decode(code)
        self.original = list(self.body.instructions)
        self.stack_names = {
            place: f".s{place}"
            for place, kind in enumerate(start.kinds)
            if kind in (VALUE, HANDLER)
        }
        self.parameters = (*start.locals_, *self.stack_names.values(), *extra)
        self.free = (*code.co_cellvars, *code.co_freevars)
        rest = [n for n in code.co_varnames if n not in start.locals_ and n not in self.free]
        self.varnames = [*self.parameters, *rest]
        constants = code.co_consts
        self.constants = constants if None in constants else (*constants, None)
        self._expand_packed()

    def slot(self, name: str) -> int:
        """The index of a local or free variable in the new frame; new locals are added."""
        if name in self.free:
            raise AssertionError("free slots are known only at the end")
        if name not in self.varnames:
            self.varnames.append(name)
        return self.varnames.index(name)

    def _expand_packed(self) -> None:
        """3.13's two-in-one local instructions cannot always hold the new indices: split them."""
        result: list[Instruction] = []
        for instruction in self.body.instructions:
            if instruction.name not in _PACKED:
                result.append(instruction)
                continue
            names = instruction.name.split("_")
            pair = ["_".join(names[:2]), "_".join(names[2:])]
            args = (instruction.arg >> 4, instruction.arg & 15)
            second = Instruction(pair[1], args[1], None, instruction.positions, None)
            instruction.name, instruction.arg = pair[0], args[0]
            result += [instruction, second]
        self.body.instructions[:] = result

    def finish(self, tails: list[Instruction] | None = None) -> CodeType:
        """Put prologue, body and tails together."""
        code = self.code
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
        prologue.append(Instruction("JUMP_FORWARD", 0, target))
        for instruction in prologue:
            instruction.positions = (target.positions[0], None, None, None)
        self.body.instructions[:0] = prologue
        if tails:
            for row in self.body.handlers:  # the user's handlers end where the user's code does
                row.end = row.end or tails[0]
        self.body.instructions += tails or []
        return code.replace(
            co_consts=self.constants,
            co_argcount=len(self.parameters),
            co_posonlyargcount=0,
            co_kwonlyargcount=0,
            co_nlocals=len(self.varnames),
            co_varnames=tuple(self.varnames),
            co_cellvars=(),
            co_freevars=self.free,
            co_flags=code.co_flags & ~_CODE_SHAPE,
            co_stacksize=code.co_stacksize + len(self.varnames) + 8,
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


def _open_blocks(body: Body, start: _Start) -> tuple[str, ...]:
    """Where a continuation that starts here has the `__exit__` of each `with` block around it."""
    found: list[str] = []
    place: int | None = start.index
    while place is not None:
        row = _row_around(body, place)
        place = None if row is None else row.target.origin
        if row is not None and place is not None:
            if body.instructions[place + 1].name == "WITH_EXCEPT_START":
                found.append(f".s{row.depth - 1}")
    return tuple(found)


def _row_around(body: Body, index: int) -> Handler | None:
    """The row of the exception table that an instruction lies in."""
    for row in body.handlers:
        end = len(body.instructions) if row.end is None else row.end.origin
        assert row.start.origin is not None and end is not None
        if row.start.origin <= index < end:
            return row
    return None


def _make_resumption(cache: ContinuationCache, code: CodeType, start: _Start) -> Resumption:
    body = decode(code)
    first, last = _group(body, start.index)
    name = body.instructions[last].name
    if name in _UNSUPPORTED:
        raise CannotResume(f"a break at {name} is not resumed")
    if name == "LOAD_FAST_AND_CLEAR" and not _slot_name(code, body.instructions[last].arg):
        raise CannotResume(
            "a comprehension sets a cell aside, as a function closes over its variable"
        )
    start = _Start(first, start.kinds, start.locals_)
    exits = _exits_after(code, body, start, last)
    caught = _caught(body, start)
    extra = tuple(f".k{place}" for place in range(len(exits) + (caught is not None)))
    maker = _Maker(code, start, (*extra, _RESUME))
    positions = maker.original[last].positions
    tails: list[Instruction] = []
    for place, leaving in enumerate(exits):
        tail = _tail(maker, extra[place], leaving.start, positions)
        if leaving.is_jump and maker.original[last].name == "FOR_ITER":
            tail = [*(Instruction(name, 0, None, positions) for name in _AFTER_LOOP), *tail]
        tails += tail
        if not leaving.is_jump:
            if maker.original[last].name in _JUMPS:  # the tail takes its place
                maker.original[last].name, maker.original[last].target = "NOP", None
            native = [] if last > first else _as_plain_load(maker.original[last])
            jump = Instruction("JUMP_FORWARD", 0, tail[0], positions)
            end = last + _stores_loop_variable(body, last)
            where = maker.body.instructions.index(maker.original[end]) + 1
            where += body.instructions[last].name in _PACKED  # it was split in two
            maker.body.instructions[where:where] = [*native, jump]
        else:
            branch = maker.original[last]
            branch.name = branch.name.replace("_BACKWARD", "_FORWARD")
            branch.target = tail[0]
    if caught is not None:
        tail = _tail(maker, extra[-1], caught.start, positions)
        tails += tail
        assert caught.handler is not None
        _catch(maker, caught.handler, first, last, tail[0])
        exits = [*exits, caught]
    step = maker.finish(tails)
    continuations = tuple(cache.continuation(code, leaving.start) for leaving in exits)
    line = positions[0] or code.co_firstlineno
    cells = frozenset(code.co_cellvars)
    return Resumption(step, continuations, start.locals_, maker.free, cells, line)


def _caught(body: Body, start: _Start) -> _Exit | None:
    """Where an exception that the instructions of a step raise goes, if to an `except` or `with`
    after which the function may go on; what only cleans up runs in the step."""
    index = start.index
    for row in body.handlers:
        assert row.start.origin is not None
        end = len(body.instructions) if row.end is None else row.end.origin
        assert end is not None and row.target.origin is not None
        if not row.start.origin <= index < end:
            continue
        if row.target.name != "PUSH_EXC_INFO" or not _goes_on(body, row.target.origin):
            return None
        kinds = (*start.kinds[: row.depth], *(VALUE,) * (1 + row.push_lasti))
        return _Exit(_Start(row.target.origin, kinds, start.locals_), handler=row)
    return None


def _goes_on(body: Body, target: int) -> bool:
    """May the function go on after this handler, or after one around it?"""
    places = reachable(body, [target], through_handlers=True)
    return any(
        body.instructions[place].name == "POP_EXCEPT"
        and body.instructions[place - 1].name != "COPY"
        for place in places
    )


def _catch(maker: _Maker, row: Handler, first: int, last: int, target: Instruction) -> None:
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


def _group(body: Body, index: int) -> tuple[int, int]:
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


def _stores_loop_variable(body: Body, last: int) -> bool:
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
        return [index + 1, target.origin + len(_AFTER_LOOP)]
    return [index + 1, target.origin]


def _exits_after(code: CodeType, body: Body, start: _Start, last: int) -> list[_Exit]:
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
                kinds = (*kinds[:-1], VALUE if _slot_name(code, member.arg) in bound else NULL)
        if not jump and _stores_loop_variable(body, last):
            live = _live_after(code, body.instructions[last + 1], live, kinds)
            target, kinds = target + 1, kinds[:-1]
        found.append(_Exit(_Start(target, kinds, live), is_jump=jump))
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
            names.discard(_slot_name(code, instruction.arg))
    for slot, kind in stored:
        (names.discard if kind == NULL else names.add)(_slot_name(code, slot))
    return tuple(name for name in code.co_varnames if name in names)


def _slot_name(code: CodeType, arg: int) -> str:
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
    elif _pushes_pair(instruction):
        # LOAD_METHOD and friends are run as plain loads: the second slot is then always NULL.
        kinds[-2:] = [VALUE, NULL] if sys.version_info >= (3, 13) else [NULL, VALUE]
    return tuple(kinds)


def _pushes_pair(instruction: Instruction) -> bool:
    """Does it push a value and a NULL (or a method and its self)?"""
    name, bit = instruction.name, bool(instruction.arg & 1)
    if name == "LOAD_METHOD" or (name in ("LOAD_GLOBAL", "LOAD_SUPER_ATTR") and bit):
        return True
    return name == "LOAD_ATTR" and bit and sys.version_info >= (3, 12)


def _as_plain_load(instruction: Instruction) -> list[Instruction]:
    """Make a method load a plain attribute load, and give what pushes its NULL after it: only
    then is it known beforehand which of the two slots is NULL."""
    if not _pushes_pair(instruction) or instruction.name == "LOAD_GLOBAL":
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
    maker: _Maker, continuation: str, start: _Start, positions: Positions
) -> list[Instruction]:
    """Take the stack apart and return `Resume((continuation, *locals, *stack))`."""
    code: list[Instruction] = []

    def emit(name: str, arg: int = 0) -> None:
        code.append(Instruction(name, arg, None, positions or NO_POSITIONS))

    for place, kind in reversed(list(enumerate(start.kinds))):
        if kind == HANDLER_COPY:
            emit("POP_TOP")
            continue
        if kind == HANDLER:  # exchange the exception being handled with None, to get at it
            emit("LOAD_CONST", maker.constants.index(None))
            emit("PUSH_EXC_INFO")
            emit("POP_TOP")
        emit("STORE_FAST", maker.slot(f".n{place}"))  # of a NULL this only unbinds the name
        if kind == HANDLER:
            emit("POP_EXCEPT")
    marker = maker.slot(_RESUME)
    if sys.version_info >= (3, 13):
        emit("LOAD_FAST", marker)
        emit("PUSH_NULL")
    else:
        emit("PUSH_NULL")
        emit("LOAD_FAST", marker)
    parts = [maker.slot(continuation), *(maker.slot(name) for name in start.locals_)]
    for part in parts:
        emit("LOAD_FAST", part)
    stack = [place for place, kind in enumerate(start.kinds) if kind in (VALUE, HANDLER)]
    for place in stack:
        emit("LOAD_FAST", maker.slot(f".n{place}"))
        emit("DELETE_FAST", maker.slot(f".n{place}"))
    emit("BUILD_TUPLE", len(parts) + len(stack))
    if sys.version_info < (3, 12):
        emit("PRECALL", 1)
    emit("CALL", 1)
    emit("RETURN_VALUE")
    return code
