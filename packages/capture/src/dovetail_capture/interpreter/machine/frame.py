"""A frame under interpretation: its slots, its value stack, and the loop that runs it."""

from __future__ import annotations

import builtins
import dis
import types
from types import CodeType
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.machine.decoding import VERSION, DecodedCode, Instruction
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue
from dovetail_capture.interpreter.values.functions import CellValue, TracebackValue
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

# What a handler returns to leave the loop.
RETURN, YIELD, MAKE_GENERATOR = 1, 2, 3


class BreakHere(Exception):
    """The top frame has reached the instruction at which this attempt is to end."""


class Frame:
    """`slots` hold values, lazy arguments, cells, or None where nothing is bound; `stack` holds
    values, and None for the NULL that CPython pushes beside callables."""

    __slots__ = (
        "begun_in", "block_exit", "closure", "code", "current", "decoded", "globals_", "handled",
        "is_top", "kw_names", "namespace", "next_index", "result", "slots", "stack", "steps",
        "stop_at", "vm",
    )  # fmt: skip

    def __init__(
        self,
        vm: Interpreter,
        code: CodeType,
        globals_: dict[str, Any],
        slots: list[Any],
        closure: tuple[CellValue, ...],
    ) -> None:
        decoded: DecodedCode = vm.decode(code)
        self.vm = vm
        self.code = code
        self.decoded = decoded
        self.globals_ = globals_
        self.slots = slots + [None] * (len(decoded.slot_names) - len(slots))
        self.closure = closure
        self.stack: list[Any] = []
        self.next_index = 0
        self.current: Instruction = decoded.instructions[0]
        self.handled: Value | None = None  # the exception being handled
        self.result: Value | None = None
        self.kw_names: tuple[str, ...] = ()
        self.namespace: DictValue | None = None  # of a class body
        self.is_top = False
        self.begun_in: frozenset[int] = frozenset()  # handlers of blocks that other code leaves
        self.steps = 0
        self.stop_at = -1

    def run(self) -> int:
        """Interpret until the frame returns or yields; `result` then holds the value."""
        instructions = self.decoded.instructions
        while True:
            try:
                session = self.vm.session
                watched = session.late_reads.watch is not None or session.covered is not None
                if self.is_top or self.vm.debug or watched:
                    return self._run_watched()
                while True:
                    inst = instructions[self.next_index]
                    self.current = inst
                    self.next_index = inst.index + 1
                    left = inst.handler(self, inst)
                    if left is not None:
                        return left
            except ProgramException as error:
                if not self._unwind(error):
                    raise

    def _run_watched(self) -> int:
        """The loop of the top frame, which counts steps, and of what runs late, which may not read
        all there is; where coverage is measured, instructions are noted; in debug mode depths are
        checked."""
        instructions = self.decoded.instructions
        debug = self.vm.debug
        late, covered = self.vm.session.late_reads.watch, None
        if self.vm.session.covered is not None:
            _, covered = self.vm.session.covered.setdefault(id(self.code), (self.code, set()))
        while True:
            inst = instructions[self.next_index]
            if self.is_top:
                if self.steps == self.stop_at:
                    raise BreakHere
                self.steps += 1
            self.current = inst
            self.next_index = inst.index + 1
            depth = len(self.stack)
            if covered is not None:
                covered.add(inst.offset)
            left = inst.handler(self, inst)
            if left is not None:
                return left
            if late is not None:
                for value in self.stack[-2:]:  # (a NULL may be on top)
                    late.see(value)
            if debug:
                self._check_depth(inst, depth)

    def _check_depth(self, inst: Instruction, before: int) -> None:
        jumped = self.next_index != inst.index + 1
        opcode = dis.opmap[inst.opname]
        arg = inst.arg if opcode >= dis.HAVE_ARGUMENT else None
        if inst.opname in ("RETURN_GENERATOR", "EXTENDED_ARG", "CACHE", "FOR_ITER", "SEND"):
            return
        if VERSION < (3, 12) and inst.opname in ("PRECALL", "CALL"):
            # 3.11 books the arguments to PRECALL, though CALL is what pops them.
            expected = 0 if inst.opname == "PRECALL" else -inst.arg - 1
        else:
            expected = dis.stack_effect(opcode, arg, jump=jumped)
        if len(self.stack) - before != expected:
            raise AssertionError(
                f"{inst} changed the stack by {len(self.stack) - before}, not {expected}"
            )

    def _unwind(self, error: ProgramException) -> bool:
        """Go to the handler of the current instruction, if there is one."""
        entry = self.decoded.entry_for(self.current.index)
        if entry is None:
            return False
        if entry.target in self.begun_in and error.value is self.vm.session.checks.raised:
            return False
        del self.stack[entry.depth :]
        if entry.lasti:
            self.stack.append(Constant(self.current.offset // 2))  # in code units
        self.stack.append(error.value)
        self.next_index = entry.target
        self._note_passage(error.value)
        return True

    def _note_passage(self, error: Value) -> None:
        """A traceback begins at the frame that handles the exception."""
        traceback = error.slots.get("__traceback__") if isinstance(error, ObjectValue) else None
        if isinstance(traceback, TracebackValue):
            traceback.first = min(traceback.first, len(self.vm.frames) - 1)

    def delegation(self) -> Instruction | None:
        """The SEND of the `yield from` at which the generator waits, if it waits at one. What it
        waits for is on top of the stack."""
        instructions = self.decoded.instructions
        resume = instructions[self.next_index]
        if resume.opname != "RESUME" or resume.arg & 3 != 2:
            return None
        at = self.next_index
        while instructions[at].opname != "SEND":
            at -= 1
        return instructions[at]

    def end_delegation(self, send: Instruction) -> None:
        """Go on after a `yield from` whose generator, on top of the stack, has ended."""
        returned = self.stack[-1].frame.result or NONE
        if VERSION < (3, 12):
            self.stack[-1] = returned
        else:
            self.stack.append(returned)
        self.next_index = send.target

    def line(self) -> int:
        """The source line of the current instruction."""
        return self.decoded.line_of(self.code, self.current.index)

    def place(self) -> tuple[str, int, str]:
        """The file and line of the current instruction, and the name of its module."""
        module = self.globals_.get("__name__") or "<sys>"
        return self.code.co_filename, self.line(), str(module)


class GeneratorValue(Value):
    """A generator: a suspended frame. `born` is the step of the top frame that made it."""

    __slots__ = ("born", "finished", "frame", "running", "started")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.started = False
        self.finished = False
        self.running = False
        self.source = None
        self.born = 0

    def python_type(self) -> type:
        return types.GeneratorType


def lets_generator_exit_pass(frame: Frame, handler: int) -> bool:
    """True if the handler at an instruction consists of `except` clauses for built-in errors, none
    of which is a `GeneratorExit`: the end of a generator that waits there runs none of its code."""
    instructions = frame.decoded.instructions
    at = handler + 1
    while instructions[at].opname != "RERAISE":
        clause = instructions[at : at + 3]
        if [i.opname for i in clause[:2]] != ["LOAD_GLOBAL", "CHECK_EXC_MATCH"]:
            return False
        name = clause[0].argval
        caught = None if name in frame.globals_ else getattr(builtins, str(name), None)
        if not isinstance(caught, type) or issubclass(GeneratorExit, caught):
            return False
        if clause[2].target < 0:
            return False
        at = clause[2].target
    return True
