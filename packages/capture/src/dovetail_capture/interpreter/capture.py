"""`capture_frame`: interpret a frame; at a construct that cannot be captured, start again and end
the capture just before it."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.source import ClosureCellSource
from dovetail_guards.torch_state import FUNCTION_MODES, READERS
from dovetail_prims.late_reads import INPUTS, OUTPUTS, READS
from dovetail_prims.node_facts import FUNCTION
from torch.autograd import forward_ad
from torch.fx import Node

from dovetail_capture.captured_frame import CapturedFrame, GraphBreak, GraphInput, Way
from dovetail_capture.environment.collector import collector_paused
from dovetail_capture.environment.function_stack import no_function_modes
from dovetail_capture.errors import GraphBreakError, NotCapturable
from dovetail_capture.interpreter.bytecode_interpreter import BytecodeInterpreter
from dovetail_capture.interpreter.changes.counters import counters
from dovetail_capture.interpreter.changes.late_reads import share_memory
from dovetail_capture.interpreter.data_checks import value_checks
from dovetail_capture.interpreter.data_checks.try_blocks import handlers_of
from dovetail_capture.interpreter.graph.aliasing import storage_guards, writes, writes_to_inputs
from dovetail_capture.interpreter.graph.recorder import UNKNOWN_SIZE_HINT, Recorder
from dovetail_capture.interpreter.inputs.input_relations import relate_inputs
from dovetail_capture.interpreter.inputs.wrap import cell_value
from dovetail_capture.interpreter.machine import Interpreter
from dovetail_capture.interpreter.machine.frame import BreakHere, Frame
from dovetail_capture.interpreter.protocols import generators
from dovetail_capture.interpreter.protocols.class_attributes import MISSING, guard_number
from dovetail_capture.interpreter.recipes import effect_recipes, iterator_recipes
from dovetail_capture.interpreter.recipes.rebuilder import Rebuilder
from dovetail_capture.interpreter.session.covered_lines import visits
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.signals import (
    CannotRebuild,
    GraphBreakSignal,
    InnerTensor,
    MustEndBefore,
)
from dovetail_capture.interpreter.values.arrays import ArraySource
from dovetail_capture.interpreter.values.base import NONE, Lazy, Value
from dovetail_capture.interpreter.values.functions import CellValue, HandlerMark
from dovetail_capture.interpreter.values.objects import ProgramException
from dovetail_capture.interpreter.values.plain import PlainSource
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.knobs import DEBUG
from dovetail_capture.options import CaptureOptions
from dovetail_capture.recipe import Const, FrameEnd, HandledHere, Recipe
from dovetail_capture.reporting.operator_warnings import OperatorWarnings
from dovetail_capture.skip import skipped_directories

# Settings that tensor operations and folded torch functions read.
_GUARDED_STATE = (
    "grad_mode", "inference_mode", "autocast", "default_dtype", "default_device",
    "torch_function_modes", "torch_dispatch_modes", "deterministic", "function_transforms",
)  # fmt: skip


# What fills the stack of a continuation, besides the loads of its parameters.
_PROLOGUE = ("PUSH_NULL", "EXTENDED_ARG", "PUSH_EXC_INFO", "POP_TOP", "COPY", "DELETE_FAST")
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class written in C
_ALIVE = " is alive where the captured stretch ends"
_DEFAULTS = CaptureOptions()
_MOST_ROUNDS = 3  # in which ints are found that the frame both reads and writes


def capture_frame(
    code: CodeType,
    func: FunctionType,
    args: tuple[Any, ...],
    *,
    options: CaptureOptions = _DEFAULTS,
) -> CapturedFrame:
    """Capture the frame of a call of `func` (whose code is `code`).

    `args` are the raw arguments in `co_varnames` order: positional, keyword-only, then the
    `*args` tuple and the `**kwargs` dict where the code has them. Nothing of the user's is
    changed, whether capture succeeds or fails.
    """
    attempts: list[_Attempt] = []

    def attempt(stop_at: int, way: Way) -> _Attempt:
        attempts.append(_Attempt(code, func, args, options, stop_at, way))
        return attempts[-1]

    with collector_paused():
        try:
            return _with_counters(attempt, options.exports)
        finally:
            for one in attempts:
                one.let_go()


def leave_frame(
    code: CodeType,
    func: FunctionType,
    args: tuple[Any, ...],
    error: BaseException,
    *,
    way: Way,
    options: CaptureOptions = _DEFAULTS,
) -> CapturedFrame | None:
    """What a frame of which the graph raised `error` does as it passes: that of its `finally`
    blocks, and what it did before, as effects without a graph; None if that is nothing."""
    with collector_paused():
        for row, _ in enumerate(way.leaves):
            asked = replace(way, checks=False, leaves=way.leaves[:row])
            attempt = _Attempt(code, func, args, options, -1, asked, error)
            try:
                outcome = attempt.run()
                if way.admits(row) and attempt.leaves_by(outcome) == "effects":
                    assert isinstance(outcome, _End)
                    effects_, end = tuple(outcome.rebuilder.effects), FrameEnd(returns=Const(None))
                    return CapturedFrame(code, None, (), GuardSet(()), effects_, end)
            finally:
                attempt.let_go()
    return None


def _with_counters(new_attempt: Callable[[int, Way], _Attempt], exports: bool) -> CapturedFrame:
    """Capture a frame; again with the ints symbolic that it both reads and writes, if that does
    not end it earlier, nor gives the graph a number that it may not have."""
    best = _capture(new_attempt, exports, Way())
    for _ in range(_MOST_ROUNDS):
        found = counters(best.attempt.session)
        if not found:
            break
        try:
            other = _capture(new_attempt, exports, Way(counters=best.counters | found))
        except NotCapturable:
            break
        session = other.attempt.session
        if other.stop_at != best.stop_at or (
            session.shapes.static and session.inputs.takes_numbers()
        ):
            break
        best = other
    finished = best.attempt.finish(best.end, best.break_)
    best.attempt.recorder.warned.say()
    return finished


def _capture(new_attempt: Callable[[int, Way], _Attempt], exports: bool, way: Way) -> _Captured:
    stop_at = -1
    break_: GraphBreak | None = None
    while True:
        attempt = new_attempt(stop_at, way)
        outcome = attempt.run()
        if attempt.session.checks.raised is not None:  # to see what the program makes of that
            way = replace(way, leaves=(*way.leaves, attempt.leaves_by(outcome)))
            continue
        if attempt.notices:  # which changes no graph, if leaving the blocks can be replayed
            asked = _leaves(new_attempt, stop_at, way, len(attempt.session.checks.rows))
            if all(map(asked.admits, range(len(asked.leaves)))):
                attempt.way, attempt.cannot_check = replace(way, leaves=asked.leaves), False
        if attempt.cannot_check:  # from the beginning: what was left to the end breaks the graph
            stop_at, break_, way = -1, None, replace(way, checks=False)
            continue
        if attempt.raises and attempt.session.asked_compiling and way.compiling:
            # What raises only because it was told that it is compiled is told that it is not.
            other = new_attempt(stop_at, replace(way, compiling=False))
            found = other.run()
            if not other.raises:
                attempt, outcome, way = other, found, other.way
        if attempt.leaks and attempt.session.applied_functions and not exports:
            # What a forward that nothing differentiates keeps elsewhere is the graph's to give,
            # which guards keep to such calls. (The node of a function would refuse others.)
            other = new_attempt(stop_at, replace(way, inlines=True))
            found = other.run()
            if not other.leaks:
                attempt, outcome, way = other, found, other.way
        if isinstance(outcome, _Break):
            if 0 <= stop_at <= attempt.first_step:
                raise NotCapturable(outcome.graph_break)
            if stop_at >= 0 and outcome.step >= stop_at:
                raise AssertionError(f"capture does not repeat itself: {outcome.graph_break}")
            if break_ is None or not outcome.moves_back:
                break_ = outcome.graph_break
            stop_at = outcome.step
            continue
        return _Captured(attempt, outcome, break_ if stop_at >= 0 else None, stop_at)


def _leaves(new_attempt: Callable[[int, Way], _Attempt], stop_at: int, way: Way, rows: int) -> Way:
    """The way with what leaving so many rows of blocks does."""
    way = replace(way, checks=False)
    for _ in range(rows):
        attempt = new_attempt(stop_at, way)
        way = replace(way, leaves=(*way.leaves, attempt.leaves_by(attempt.run())))
        if not way.admits(len(way.leaves) - 1):
            break
    return way


class _Break:
    """An attempt met something it cannot capture, at `step` of the top frame; `moves_back` if an
    earlier break lies where the frame cannot be left."""

    def __init__(self, step: int, graph_break: GraphBreak, moves_back: bool = False) -> None:
        self.step = step
        self.graph_break = graph_break
        self.moves_back = moves_back


class _End:
    """An attempt came to its end: the pieces of the captured frame."""

    def __init__(self, rebuilder: Rebuilder, end: FrameEnd) -> None:
        self.rebuilder = rebuilder
        self.end = end


class _Captured:
    """An attempt that came to its end, and the break where that was, at `stop_at`."""

    def __init__(
        self, attempt: _Attempt, end: _End, break_: GraphBreak | None, stop_at: int
    ) -> None:
        self.attempt = attempt
        self.end = end
        self.break_ = break_
        self.stop_at = stop_at

    @property
    def counters(self) -> frozenset[str]:
        """The ints that were symbolic from the start."""
        return self.attempt.way.counters


class _Attempt:
    """One run over the frame. `stop_at` is the step of the top frame to end before, or -1; `error`
    is what an operation raises where it is asked what leaving its blocks does."""

    def __init__(
        self,
        code: CodeType,
        func: FunctionType,
        args: tuple[Any, ...],
        options: CaptureOptions,
        stop_at: int,
        way: Way,
        error: BaseException | None = None,
    ) -> None:
        self.code = code
        self.stop_at = stop_at
        self.way = way
        # An exception of the program's leaves the frame, or is handled where the graph breaks.
        self.raises = False
        self.leaks = False  # a tensor left the function that it is inside of
        self.cannot_check = False  # the frame could not be run again if a check did not hold
        self.notices = False  # ... nor if the graph raises, which blocks of `finally` see
        self.recorder = Recorder(lambda: self.vm.stack_trace(), options.learned.refused)
        self.recorder.warned = OperatorWarnings(lambda: self.vm.frames[-1].place())
        self.session = Session(code, func.__globals__, self.recorder, options)
        self.session.compiling = way.compiling
        self.session.shapes.counters = way.counters
        self.session.inlines_functions = way.inlines
        self.session.checks.allowed = way.checks and not self.session.exports
        self.session.checks.way = way
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

    def run(self) -> _Break | _End:
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

    def _run(self, grad_mode: bool) -> _Break | _End:
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
            generators.check_generators(vm)
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
            iterator_recipes.replay_steps(rebuilder)
            iterator_recipes.check_iterators(rebuilder)
            rebuilder.check_caches()
            rebuilder.check_hooks()
            rebuilder.check_late_reads()
            rebuilder.check_copied_views()
            rebuilder.check_messages()
            self._check_made_leaves(rebuilder)
            effect_recipes.under_locks(rebuilder)
            effect_recipes.modes(rebuilder)
            effect_recipes.settings(rebuilder)
            effect_recipes.grad_mode(rebuilder, grad_mode, torch.is_grad_enabled())
            self.cannot_check = value_checks.cannot_check(self.session)
            self.notices = value_checks.notices(self.session)
        except GraphBreakSignal as signal:
            vm.note_break(signal)
            self.raises |= any(one.handled is not None for one in vm.frames)
            graph_break = _graph_break(signal)
            if self.session.modes.error_blocks:
                if self.session.modes.error_blocks[-1][1]:
                    raise GraphBreakError(graph_break) from None
                graph_break = replace(graph_break, allowed=True)
            return _Break(max(frame.steps - 1, self.first_step), graph_break)
        except CannotRebuild as error:
            alive = "" if isinstance(error, MustEndBefore) else _ALIVE
            reason = GraphBreakSignal(f"{error}{alive}")
            vm.note_break(reason)
            self.leaks = isinstance(error, InnerTensor)
            step = max(error.born - 1, self.first_step)
            if 0 <= self.stop_at <= step:
                step = self.first_step
            return _Break(step, _graph_break(reason), moves_back=True)
        return _End(rebuilder, end)

    def leaves_by(self, outcome: _Break | _End) -> str:
        """What the frame does as an error leaves it, see `Way`."""
        if not self.left or isinstance(outcome, _Break):
            return "no"
        made_before = self.session.draws.calls or self.session.effects.kernel_settings.before
        if outcome.rebuilder.outputs or made_before:
            return "no"
        return "effects" if outcome.rebuilder.effects else "nothing"

    def _check_made_leaves(self, rebuilder: Rebuilder) -> None:
        """A compiler differentiates a graph for the inputs that require a gradient; if none does
        of those that the graph takes, what only requires_grad_() or `requires_grad=True` makes
        require one would come out without."""
        made = self.session.effects.made_leaves
        taken = [
            v for _, v in self.session.inputs.entries if isinstance(v, TensorValue) and v.node.users
        ]
        if not made or any(value.fake.requires_grad for value in taken):
            return
        for node in rebuilder.outputs:
            fake = node.meta.get("val")
            if isinstance(fake, torch.Tensor) and fake.requires_grad:
                raise CannotRebuild("what needs a gradient of a leaf made here", min(made.values()))

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

    def _guard_code_read(self) -> None:
        """Guard what was read of classes, and the parts of the functions that were inlined."""
        clauses, held = self.session.guards.clauses, self.session.sources.held
        by_class: dict[type, list[tuple[str, Any, bool]]] = {}
        for (cls, name), attr in self.vm.class_reads.items():
            if (
                not cls.__flags__ & _IMMUTABLE_TYPE
                and id(cls) not in self.session.objects.stand_ins
            ):
                present = attr is not MISSING
                if type(attr) in (int, float) and guard_number(self.vm, cls, name):
                    continue
                row = (name, attr if present else None, present)
                by_class.setdefault(cls, []).append(row)
        for cls, rows in by_class.items():
            clauses.append(c.ClassAttrsAre(held(cls), tuple(rows)))
        asked = self.session.objects.abstract_answers
        if asked:
            clauses.append(c.AbstractAnswers(tuple((*pair, said) for pair, said in asked.items())))
        for real in self.vm.function_defaults:
            parts = (real.__code__, real.__defaults__, real.__kwdefaults__)
            clauses.append(c.FunctionIs(held(real), *parts))

    def finish(self, outcome: _End, break_: GraphBreak | None) -> CapturedFrame:
        """The captured frame of a successful attempt."""
        rebuilder = outcome.rebuilder
        graph = self.recorder.graph
        used: list[GraphInput] = []
        nodes: list[Node] = rebuilder.outputs
        pending = self.session.checks
        checks = value_checks.finished(self.session, len(nodes))
        nodes += [value.node for value in pending.holds.values()]
        graph.output(tuple(nodes))
        for graph_input, value in self.session.inputs.entries:
            if (
                value.node.users or value in self.session.inputs.computed
            ):  # sizes may be made of these
                used.append(graph_input)
            else:
                graph.erase_node(value.node)
        module = None
        if self.recorder.operations or pending.holds:
            module = self.recorder.module()
            FUNCTION.tell(module, self.code.co_qualname)
            if self.session.late.found:
                module.meta[READS] = tuple(self.session.late.found)
            late = self.session.late.tensors
            if late:
                fakes = {
                    g.name: value.node.meta.get("val") for g, value in self.session.inputs.entries
                }
                module.meta[INPUTS] = share_memory([fakes[g.name] for g in used], late)
                module.meta[OUTPUTS] = share_memory([n.meta.get("val") for n in nodes], late)
        relate_inputs(
            self.session, [i for i in used if not i.static and isinstance(i.example, torch.Tensor)]
        )
        kept = set(map(id, used))
        tensors = [
            (graph_input, value.fake)
            for graph_input, value in self.session.inputs.entries
            if id(graph_input) in kept and isinstance(value, TensorValue)
        ]
        if writes(graph, (fake for _, fake in tensors)):
            pairs = [
                (s.base if isinstance(s, PlainSource) else s, graph_input.example)
                for graph_input, _ in tensors
                for s in (graph_input.source,)
            ]
            tensors_only = [pair for pair in pairs if not isinstance(pair[0], ArraySource)]
            if len(tensors_only) < len(pairs) and writes_to_inputs(graph, tensors):
                reason = "a write to an input of a graph that takes numpy arrays, too"
                raise NotCapturable(_graph_break(GraphBreakSignal(reason, "copy it first")))
            self.session.guards.append(*storage_guards(tensors_only))
        shapes = self.session.shapes
        shapes.check_marks()
        shapes.env.make_input = None
        shapes.env.keep_undecided = False  # what the backend decides is guarded
        self._guard_code_read()
        self.session.guards.seal()
        return CapturedFrame(
            self.code,
            module,
            tuple(used) if module is not None else (),
            GuardSet(self.session.guards.clauses),
            (*rebuilder.effects, *visits(self.session.covered or {})),
            outcome.end,
            break_,
            shapes.env if shapes.env.hints else None,
            tuple(self.session.draws.calls),
            checks,
            self.session.asked_compiling and self.session.compiling,
            self.way,
            self.session.effects.kernel_settings.of_graph(),
        )


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


def _graph_break(signal: GraphBreakSignal) -> GraphBreak:
    where = signal.where or []
    own = [place for place in where if not place[0].startswith(skipped_directories())] or where
    filename, lineno, _ = own[-1] if own else ("?", 0, "?")
    frames = tuple(f"{name} ({file}:{line})" for file, line, name in where)
    line = linecache.getline(filename, lineno)
    return GraphBreak(
        signal.reason, filename, lineno, line, signal.hint, frames, raises=signal.raises
    )
