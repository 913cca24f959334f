"""An attempt: one run over a frame, which ends at a break or with recipes of what it leaves."""

from __future__ import annotations

import linecache
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.source import ClosureCellSource
from dovetail_guards.torch_state import FUNCTION_MODES, READERS
from torch.autograd import forward_ad

from dovetail_capture.captured_frame import AttemptOptions, GraphBreak
from dovetail_capture.environment.torch_state import no_function_modes
from dovetail_capture.errors import GraphBreakError
from dovetail_capture.interpreter.attempts.bytecode_interpreter import BytecodeInterpreter
from dovetail_capture.interpreter.data_checks import value_checks
from dovetail_capture.interpreter.data_checks.try_blocks import handlers_of
from dovetail_capture.interpreter.graph.recorder import UNKNOWN_SIZE_HINT, Recorder
from dovetail_capture.interpreter.inputs.wrap import cell_value
from dovetail_capture.interpreter.machine import Interpreter
from dovetail_capture.interpreter.machine.frame import BreakHere, Frame
from dovetail_capture.interpreter.protocols import resumed_iterators
from dovetail_capture.interpreter.recipes import effect_recipes, object_recipes
from dovetail_capture.interpreter.recipes.rebuilder import Rebuilder
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.signals import (
    CannotRebuild,
    GraphBreakSignal,
    InnerTensor,
    MustEndBefore,
)
from dovetail_capture.interpreter.values.base import NONE, Lazy, Value
from dovetail_capture.interpreter.values.functions import CellValue, HandlerMark
from dovetail_capture.interpreter.values.objects import ProgramException
from dovetail_capture.knobs import DEBUG
from dovetail_capture.options import CaptureOptions
from dovetail_capture.recipe import FrameEnd, HandledHere, Recipe
from dovetail_capture.reporting.program_warnings import OperatorWarnings
from dovetail_capture.skip import skipped_directories

# Settings that tensor operations and folded torch functions read.
_GUARDED_STATE = (
    "grad_mode", "inference_mode", "autocast", "default_dtype", "default_device",
    "torch_function_modes", "torch_dispatch_modes", "deterministic", "function_transforms",
)  # fmt: skip


# What fills the stack of a continuation, besides the loads of its parameters.
_PROLOGUE = ("PUSH_NULL", "EXTENDED_ARG", "PUSH_EXC_INFO", "POP_TOP", "COPY", "DELETE_FAST")
_ALIVE = " is alive where the captured stretch ends"


class Break:
    """An attempt met something it cannot capture, at `step` of the top frame; `moves_back` if an
    earlier break lies where the frame cannot be left."""

    def __init__(self, step: int, graph_break: GraphBreak, moves_back: bool = False) -> None:
        self.step = step
        self.graph_break = graph_break
        self.moves_back = moves_back


class End:
    """An attempt came to its end: the pieces of the captured frame."""

    def __init__(self, rebuilder: Rebuilder, end: FrameEnd) -> None:
        self.rebuilder = rebuilder
        self.end = end


class Attempt:
    """One run over the frame. `stop_at` is the step of the top frame to end before, or -1; `error`
    is what an operation raises where it is asked what leaving its blocks does."""

    def __init__(
        self,
        code: CodeType,
        func: FunctionType,
        args: tuple[Any, ...],
        options: CaptureOptions,
        stop_at: int,
        attempt_options: AttemptOptions,
        error: BaseException | None = None,
    ) -> None:
        self.code = code
        self.stop_at = stop_at
        self.attempt_options = attempt_options
        # An exception of the program's leaves the frame, or is handled where the graph breaks.
        self.raises = False
        self.leaks = False  # a tensor left the function that it is inside of
        self.cannot_check = False  # the frame could not be run again if a check did not hold
        self.notices = False  # ... nor if the graph raises, which blocks of `finally` see
        self.recorder = Recorder(lambda: self.vm.stack_trace(), options.learned.refused)
        self.recorder.warned = OperatorWarnings(lambda: self.vm.frames[-1].place())
        self.session = Session(code, func.__globals__, self.recorder, options)
        self.session.compiling = attempt_options.compiling
        self.session.shapes.counters = attempt_options.counters
        self.session.inlines_functions = attempt_options.inlines
        self.session.checks.allowed = attempt_options.checks and not self.session.exports
        self.session.checks.attempt_options = attempt_options
        self.session.checks.error = error or RuntimeError("an operation's")
        self.left = False  # by the error of an operation
        self.vm = BytecodeInterpreter(self.session, options, DEBUG)
        sources = self.session.sources
        slots: list[Any] = [
            Lazy(real, sources.root("local", name))
            for name, real in zip(code.co_varnames, args, strict=False)
        ]
        self.frame = Frame(self.vm, code, func.__globals__, slots, self._closure(func))
        self.frame.is_top = True
        self.frame.stop_at = stop_at
        self.first_step = _prologue_length(self.frame)
        if options.unwinds:
            self.frame.begun_in = _handlers_at_start(self.frame, self.first_step)

    def let_go(self) -> None:
        """End the attempt. What it holds of the program's (arguments, generators that wait for
        their end) then lives no longer than the program has it: the cycles, which would keep it
        until the next garbage collection, are cut."""
        self.vm.frames.clear()
        self.vm.generators.clear()
        self.session.let_go()
        self.__dict__.clear()

    def _closure(self, func: FunctionType) -> tuple[CellValue, ...]:
        cells = []
        for name, real in zip(self.code.co_freevars, func.__closure__ or (), strict=True):
            content = self.session.sources.root("closure", name)
            cell = cell_value(self.session, real, ClosureCellSource(name), content)
            cells.append(self.session.objects.bind(real, cell))
        return tuple(cells)

    def run(self) -> Break | End:
        """Interpret and rebuild, with torch's state put back at the end."""
        grad_mode = torch.is_grad_enabled()
        for name in _GUARDED_STATE:
            self.session.guards.state(name, READERS[name]())
        sources = self.session.sources
        # (Within a level of forward-mode derivatives frames are not compiled.)
        level = sources.item(sources.held(vars(forward_ad), "forward_ad"), "_current_level")
        self.session.guards.append(c.ConstantIs(level, -1))
        stack = sources.held(FUNCTION_MODES, "torch function mode")
        modes = [
            self.vm.wrap(mode, sources.item(stack, place))
            for place, mode in enumerate(FUNCTION_MODES)
        ]
        self.session.modes.begin_in(modes)
        try:
            # (What a class of tensors makes of functions is captured: what is done here asks none.)
            with no_function_modes(), torch._C.DisableTorchFunctionSubclass():
                return self._run(grad_mode)
        finally:
            while self.session.modes.open_modes:
                mode = self.session.modes.open_modes.pop()
                mode.leave(mode.real)
            for setting, before in self.session.effects.settings.items():
                setting.write(before)
            torch._C._set_grad_enabled(grad_mode)

    def _run(self, grad_mode: bool) -> Break | End:
        frame, vm = self.frame, self.vm
        try:
            returned: Value | None = None
            try:
                vm.frames.append(frame)
                frame.run()
                returned = frame.result
            except BreakHere:
                pass
            except RecursionError:
                raise GraphBreakSignal("what nests deeper than capture follows") from None
            except DataDependentError as error:
                if self.session.draws.calls:
                    what = (
                        "a scalar of NumPy's"
                        if self.session.draws.computes_scalars
                        else "a random number"
                    )
                    text = f"{what} (or what follows from it) as a Python value: {error}"
                    raise GraphBreakSignal(text, "draw it outside, or use torch.where") from error
                raise GraphBreakSignal(str(error), UNKNOWN_SIZE_HINT) from error
            except ProgramException as error:
                if error.value is not self.session.checks.raised:
                    name, self.raises = error.value.python_type().__name__, True
                    text = f"the frame raises {name}: {_message(vm, error)}"
                    raise GraphBreakSignal(text) from None
                self.left, returned = True, NONE
            resumed_iterators.check_generators(vm)
            if self.session.modes.functions_off:
                raise CannotRebuild(
                    "a block without torch functions", self.session.modes.functions_off[0]
                )
            if self.session.modes.open_locks:
                raise CannotRebuild("a lock that is held", self.session.modes.open_locks[0][1])
            rebuilder = Rebuilder(vm)
            if returned is not None:
                end = FrameEnd(returns=rebuilder.returned(returned))
            else:
                end = self._broken_end(rebuilder)
            effect_recipes.changes(rebuilder)
            object_recipes.replay_steps(rebuilder)
            object_recipes.check_iterators(rebuilder)
            rebuilder.check_caches()
            rebuilder.check_hooks()
            rebuilder.check_late_reads()
            rebuilder.check_copied_views()
            rebuilder.check_messages()
            effect_recipes.check_made_leaves(rebuilder)
            effect_recipes.under_locks(rebuilder)
            effect_recipes.modes(rebuilder)
            effect_recipes.settings(rebuilder)
            effect_recipes.grad_mode(rebuilder, grad_mode, torch.is_grad_enabled())
            self.cannot_check = value_checks.cannot_check(self.session)
            self.notices = value_checks.notices(self.session)
        except GraphBreakSignal as signal:
            vm.note_break(signal)
            self.raises |= any(one.handled is not None for one in vm.frames)
            graph_break = graph_break_of(signal)
            if self.session.modes.error_blocks:
                if self.session.modes.error_blocks[-1][1]:
                    raise GraphBreakError(graph_break) from None
                graph_break = replace(graph_break, allowed=True)
            return Break(max(frame.steps - 1, self.first_step), graph_break)
        except CannotRebuild as error:
            alive = "" if isinstance(error, MustEndBefore) else _ALIVE
            reason = GraphBreakSignal(f"{error}{alive}")
            vm.note_break(reason)
            self.leaks = isinstance(error, InnerTensor)
            step = max(error.born - 1, self.first_step)
            if 0 <= self.stop_at <= step:
                step = self.first_step
            return Break(step, graph_break_of(reason), moves_back=True)
        return End(rebuilder, end)

    def leaves_by(self, outcome: Break | End) -> str:
        """What the frame does as an error leaves it, see `AttemptOptions`."""
        if not self.left or isinstance(outcome, Break):
            return "no"
        made_before = self.session.draws.calls or self.session.effects.kernel_settings.before
        if outcome.rebuilder.outputs or made_before:
            return "no"
        return "effects" if outcome.rebuilder.effects else "nothing"

    def _broken_end(self, rebuilder: Rebuilder) -> FrameEnd:
        frame = self.frame
        locals_: list[tuple[str, Recipe]] = []
        cells: list[tuple[str, Recipe]] = []
        for name, item in zip(frame.decoded.slot_names, frame.slots, strict=True):
            if item is None:
                continue
            if isinstance(item, CellValue):
                if name in self.code.co_cellvars:
                    cells.append((name, rebuilder.recipe(item)))
            else:
                locals_.append((name, rebuilder.recipe(item)))
        return FrameEnd(
            break_index=frame.next_index,
            stack=self._stack(rebuilder),
            locals_=tuple(locals_),
            cells=tuple(cells),
        )

    def _stack(self, rebuilder: Rebuilder) -> tuple[Recipe | None, ...]:
        """Recipes of the value stack. The mark of a handler stands for the exception that it
        handles, which is what the next mark calls the previous one."""
        stack = self.frame.stack
        marks = list(dict.fromkeys(m for m in stack if isinstance(m, HandlerMark) and m.active))
        errors = [mark.previous for mark in marks[1:]] + [self.frame.handled]
        error_of = dict(zip(marks, errors, strict=False))
        recipes: list[Recipe | None] = []
        for item in stack:
            if isinstance(item, CellValue) and item.set_aside and item not in self.frame.slots:
                # The code behind a break finds its cells in its closure: it has no way to put one
                # of them aside. So the whole comprehension goes behind the break.
                raise CannotRebuild("a cell set aside by a comprehension", item.set_aside - 1)
            if not isinstance(item, HandlerMark):
                recipes.append(None if item is None else rebuilder.recipe(item))
            elif not item.active:
                recipes.append(None)
            else:  # a second place with the same mark is a copy of the first
                error = error_of.pop(item, None)
                recipes.append(HandledHere(None if error is None else rebuilder.recipe(error)))
        return tuple(recipes)


def _prologue_length(frame: Frame) -> int:
    """How many steps a frame takes to make its cells, and a continuation to fill its stack. A
    capture does not end within them: there a frame is not yet what the user wrote."""
    instructions = frame.decoded.instructions
    place = next(i.index for i in instructions if i.opname == "RESUME") + 1
    end = place
    while instructions[end].opname in _PROLOGUE or (
        instructions[end].opname == "LOAD_FAST" and instructions[end].argval.startswith(".s")
    ):
        end += 1
    return end + 1 if instructions[end].opname == "JUMP_FORWARD" else place


def _handlers_at_start(frame: Frame, first_step: int) -> frozenset[int]:
    """The handlers of the blocks that a continuation starts in, which are left by other code."""
    jump = frame.decoded.instructions[first_step - 1]
    return frozenset(target for target, _ in handlers_of(frame.decoded, jump.target))


def _message(vm: Interpreter, error: ProgramException) -> str:
    try:
        return vm.to_text(error.value, "str")
    except (GraphBreakSignal, ProgramException):
        return "..."


def graph_break_of(signal: GraphBreakSignal) -> GraphBreak:
    """What users are told of a break, with their line and the calls that lead there."""
    where = signal.where or []
    own = [place for place in where if not place[0].startswith(skipped_directories())] or where
    filename, lineno, _ = own[-1] if own else ("?", 0, "?")
    frames = tuple(f"{name} ({file}:{line})" for file, line, name in where)
    line = linecache.getline(filename, lineno)
    return GraphBreak(
        signal.reason, filename, lineno, line, signal.hint, frames, raises=signal.raises
    )
