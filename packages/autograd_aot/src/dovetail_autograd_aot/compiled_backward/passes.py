"""`PassCache`: the passes that were recorded and compiled, and how one is run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.compiled_backward.description import (
    Description,
    EngineCall,
    NotCapturable,
    Slot,
    describe,
)
from dovetail_autograd_aot.compiled_backward.native import nodes_module
from dovetail_autograd_aot.compiled_backward.opaque import Deviation, Frame, running
from dovetail_autograd_aot.compiled_backward.program import LeafAction, Program, accumulate
from dovetail_autograd_aot.compiled_backward.recorder import record, replaced
from dovetail_autograd_aot.compiled_backward.report import BackwardReport
from dovetail_autograd_aot.compiled_backward.sizes import Family

Compiler = Callable[[GraphModule, list[Any]], Callable[..., Any]]
Engine = Callable[..., Any]

# Passes of one structure that are known, each with other numbers; the last used are kept.
MAX_PASSES = 256
# Structures (graphs of autograd that differ in more than numbers) that are known.
MAX_STRUCTURES = 64
# Compilations of one structure; from then on passes with new numbers run on the engine.
MAX_GRAPHS = 8
# So often the engine takes over before a pass is its own for good.
MAX_DEVIATIONS = 3


@dataclass
class Pass:
    """A recorded pass: `run` takes the description's tensors and `numbers`; without it, the engine
    runs such passes, because of `reason`."""

    program: Program | None
    run: Callable[..., Sequence[Any]] | None = None
    numbers: tuple[Any, ...] = ()
    reason: str = ""
    deviations: int = 0


@dataclass
class Structure:
    """What is known of the passes of one structure."""

    family: Family = field(default_factory=Family)
    passes: dict[Any, Pass] = field(default_factory=dict)  # by numbers, the last used last


class PassCache:
    """Runs backward passes: the first of its kind is recorded and compiled, others are replayed."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.report = BackwardReport()
        self.structures: dict[Any, Structure] = {}  # the last used last
        self._lock = threading.RLock()

    def run(self, call: EngineCall, engine: Engine) -> Any:
        """What the engine would do."""
        try:
            _check_mode(call)
            described = describe(call)
        except NotCapturable as error:
            self.report.note_on_engine(str(error))
            return call.run(engine)
        except RuntimeError as error:
            # Freed, or changed in place since: if that matters, the engine says so as ever.
            self.report.note_on_engine(str(error).split(".", 1)[0])
            return call.run(engine)
        with self._lock:
            structure = _last_used(self.structures, described.structure, MAX_STRUCTURES, Structure)
            known = structure.passes.pop(described.numbers, None)
            if known is not None:
                structure.passes[described.numbers] = known
        if known is None:
            return self._record(call, described, structure, engine)
        if known.run is None:
            self.report.note_on_engine(known.reason)
            return call.run(engine)
        return self._replay(call, described, known, engine)

    # --- recording --------------------------------------------------------------------------------

    def _record(
        self, call: EngineCall, described: Description, structure: Structure, engine: Engine
    ) -> Any:
        result, program = record(call, described, engine)
        if isinstance(program, str):
            self.report.note_on_engine(program)
            made = Pass(None, reason=program)
        else:
            self.report.recorded += 1
            with self._lock:
                made = self._compile(program, described, structure)
        with self._lock:
            structure.passes[described.numbers] = made
            if len(structure.passes) > MAX_PASSES:
                del structure.passes[next(iter(structure.passes))]
        return result

    def _compile(self, program: Program, described: Description, structure: Structure) -> Pass:
        family = structure.family
        found = family.find(program, described.tensors)
        if found is not None:
            return Pass(program, *found)
        if family.graphs >= MAX_GRAPHS:
            return Pass(None, reason=f"more than {MAX_GRAPHS} graphs for backwards of one kind")
        try:
            with torch.no_grad(), torch._C._DisableAutocast():
                made, numbers, module = family.compile(program, described.tensors, self.compiler)
        except Exception as error:
            text = (str(error).splitlines() or [""])[0]
            return Pass(None, reason=f"the compiler refused: {type(error).__name__}: {text}")
        self.report.graphs += 1
        self.report.symbolic += made.env is not None
        self.report.opaque_calls += len(program.opaque)
        self.report.codes.append(module.code)
        return Pass(program, made.run, numbers)

    # --- replaying --------------------------------------------------------------------------------

    def _replay(self, call: EngineCall, described: Description, known: Pass, engine: Engine) -> Any:
        program = known.program
        assert program is not None and known.run is not None
        frame = Frame(described.calls, program.opaque)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if program.opaque:
                    stack.enter_context(running(frame))
                stack.enter_context(torch._C._DisableAutocast())
                outputs = known.run(*described.tensors, *known.numbers)
        except Exception as error:
            deviation = _deviation(error)
            if deviation is None:
                raise
            known.deviations += 1
            if known.deviations >= MAX_DEVIATIONS:
                known.run, known.reason = None, str(deviation)
            self.report.note_taken_over(str(deviation))
            return _finish_on_engine(call, described, frame, engine)
        self.report.compiled += 1
        with torch.no_grad():
            _leaves(program, described, outputs)
        if not call.keep_graph:
            release = nodes_module().release
            for node in described.nodes:
                release(node)
        if program.returned is None:
            return ()
        return tuple(None if i is None else outputs[i] for i in program.returned)


def _check_mode(call: EngineCall) -> None:
    if call.create_graph:
        raise NotCapturable("create_graph=True")
    if torch.is_anomaly_enabled():
        raise NotCapturable("anomaly mode")


def _last_used(cache: dict[Any, Any], key: Any, limit: int, make: Callable[[], Any]) -> Any:
    """The entry for a key, made if there is none, as the last of the cache."""
    found = cache.pop(key, None)
    if found is None:
        found = make()
        if len(cache) >= limit:
            del cache[next(iter(cache))]
    cache[key] = found
    return found


def _leaves(program: Program, described: Description, outputs: Sequence[Any]) -> None:
    """Gradients of the leaves, and what is called with them, in the engine's order."""
    for step in program.leaves:
        variable = described.leaves[step.leaf].variable
        if step.action is LeafAction.SET or step.action is LeafAction.ADD:
            accumulate(variable, outputs[step.output])
        for slot in step.slots:
            if described.slots[slot].kind == "leaf post":
                given = None if step.given < 0 else outputs[step.given]
                described.calls[slot]((), (given,))
            else:
                described.calls[slot](variable)


def _deviation(error: BaseException) -> Deviation | None:
    """The deviation behind an error (a native executor may have wrapped it)."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, Deviation):
            return found
        found = found.__cause__ or found.__context__
    return None


def _finish_on_engine(
    call: EngineCall, described: Description, frame: Frame, engine: Engine
) -> Any:
    """The pass again, on the engine; functions that were called already give what they gave."""

    def stand_in(number: int, slot: Slot, function: Callable[..., Any]) -> Callable[..., Any]:
        def once(*args: Any) -> Any:
            if number not in frame.done:
                return function(*args)
            result, given = frame.done[number]
            for target, source in zip(_tensors(args), given, strict=True):
                if source._version and target is not source:
                    target.copy_(source)
            return result

        return once

    with replaced(described, stand_in):
        return call.run(engine)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in _tensors(v)]
    return [value] if isinstance(value, Tensor) else []
