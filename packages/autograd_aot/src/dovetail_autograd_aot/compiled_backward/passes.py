"""`PassCache`: the passes that were recorded and compiled, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from dovetail_guards.process_lock import ProcessLock
from torch import Tensor

from dovetail_autograd_aot.aot_log import BackwardReport
from dovetail_autograd_aot.calls.graph_calls import run_consuming
from dovetail_autograd_aot.compiled_backward import sizes
from dovetail_autograd_aot.compiled_backward.description import (
    Description,
    EngineCall,
    NotCapturable,
    Slot,
    describe,
)
from dovetail_autograd_aot.compiled_backward.node_state import as_key
from dovetail_autograd_aot.compiled_backward.program import (
    Deviation,
    Frame,
    LeafAction,
    Program,
    accumulate,
    running,
)
from dovetail_autograd_aot.compiled_backward.recorder import record, replaced
from dovetail_autograd_aot.native import nodes_module

Engine = Callable[..., Any]
Scalars = tuple[Any, ...]

# Passes of one structure that are known, each with other numbers; the last used are kept.
MAX_PASSES = 256
# Structures (graphs of autograd that differ in more than numbers) that are known.
MAX_STRUCTURES = 64
# Compilations of one structure; from then on passes with new numbers run on the engine.
MAX_GRAPHS = 8
# Records with the same sizes that are compared for scalars that change.
MAX_RECORDS = 3
# So often the engine takes over before passes of a structure are its own for good.
MAX_DEVIATIONS = 3


@dataclass
class Pass:
    """A recorded pass: `compiled.run` takes the description's tensors and `numbers`. Without it the
    engine runs such passes, because of `reason`."""

    program: Program | None = None
    compiled: sizes.Compiled | None = None
    numbers: tuple[Any, ...] = ()
    reason: str = ""


@dataclass
class Structure:
    """What is known of the passes of one structure."""

    passes: dict[Any, Pass] = field(default_factory=dict)  # by numbers and scalars, newest last
    by_sizes: dict[Any, ScalarPasses] = field(default_factory=dict)  # by numbers
    records: dict[Any, list[tuple[Scalars, sizes.Recorded]]] = field(
        default_factory=dict
    )  # by numbers
    graphs: int = 0
    deviations: int = 0
    reason: str = ""  # why the engine runs all such passes from now on

    def find(self, described: Description) -> Pass | None:
        """The pass that computes what is described."""
        if self.reason:
            return Pass(reason=self.reason)
        key = described.numbers, tuple(map(as_key, described.scalars))
        known = self.passes.pop(key, None)
        if known is not None:
            self.passes[key] = known
            return known
        for_scalars = self.by_sizes.get(described.numbers)
        if for_scalars is not None:
            numbers = for_scalars.numbers(described.scalars)
            if numbers is not None:
                return Pass(for_scalars.program, for_scalars.compiled, numbers)
        return None

    def add(self, described: Description, made: Pass, recorded: sizes.Recorded | None) -> None:
        """Keep a pass for calls like this one, and for others if it tells about them."""
        self.passes[described.numbers, tuple(map(as_key, described.scalars))] = made
        if len(self.passes) > MAX_PASSES:
            del self.passes[next(iter(self.passes))]
        if recorded is None or not described.scalars:
            return
        records = _last_used(self.records, described.numbers, MAX_PASSES, list)
        records.append((described.scalars, recorded))
        del records[:-MAX_RECORDS]
        if made.program is not None and made.compiled is not None:
            found = scalar_passes(made.program, made.compiled, records)
            if found is not None:
                _last_used(self.by_sizes, described.numbers, MAX_PASSES, lambda: found)
                self.by_sizes[described.numbers] = found


class PassCache:
    """Runs backward passes: the first of its kind is recorded and compiled, others are replayed."""

    def __init__(self, compiler: sizes.Compiler) -> None:
        self.compiler = compiler
        self.report = BackwardReport()
        self.structures: dict[Any, Structure] = {}  # the last used last
        self.families: dict[Any, sizes.Family] = {}  # by skeleton, the last used last
        self._lock = ProcessLock()

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
            self.report.note_on_engine(str(error).split(":", 1)[0].split(". ", 1)[0])
            return call.run(engine)
        with self._lock:
            structure = _last_used(self.structures, described.structure, MAX_STRUCTURES, Structure)
            known = structure.find(described)
        if known is None:
            return self._record(call, described, structure, engine)
        if known.compiled is None:
            self.report.note_on_engine(known.reason)
            return call.run(engine)
        return self._replay(call, described, known, structure, engine)

    # --- recording --------------------------------------------------------------------------------

    def _record(
        self, call: EngineCall, described: Description, structure: Structure, engine: Engine
    ) -> Any:
        result, program = record(call, described, engine)
        if isinstance(program, str):
            self.report.note_on_engine(program)
            with self._lock:
                structure.add(described, Pass(reason=program), None)
            return result
        self.report.recorded += 1
        with self._lock:
            found = sizes.take_apart(program, described.tensors)
            family = _last_used(
                self.families, found.skeleton, MAX_STRUCTURES, lambda: sizes.Family(found.skeleton)
            )
            found = replace(found, skeleton=family.skeleton)  # (one object for all)
            made = self._compile(program, found, family, described, structure)
            structure.add(described, made, found)
        return result

    def _compile(
        self,
        program: Program,
        found: sizes.Recorded,
        family: sizes.Family,
        described: Description,
        structure: Structure,
    ) -> Pass:
        known = family.find(found)
        if known is not None:
            return Pass(program.replayed(), known, known.match(found) or ())
        if structure.graphs >= MAX_GRAPHS or len(family.compiled) >= MAX_GRAPHS:
            return Pass(reason=f"more than {MAX_GRAPHS} graphs for backwards of one kind")
        structure.graphs += 1
        try:
            with torch.no_grad(), torch._C._DisableAutocast():
                made, module = family.compile(program, found, described.tensors, self.compiler)
        except Exception as error:
            text = (str(error).splitlines() or [""])[0]
            reason = f"the compiler refused: {type(error).__name__}: {text}"
            self.report.note_refused(reason)
            return Pass(reason=reason)
        self.report.note_compiled(module.code, made.env is not None, len(program.opaque))
        return Pass(program.replayed(), made, made.match(found) or ())

    # --- replaying --------------------------------------------------------------------------------

    def _replay(
        self,
        call: EngineCall,
        described: Description,
        known: Pass,
        structure: Structure,
        engine: Engine,
    ) -> Any:
        program, compiled = known.program, known.compiled
        assert program is not None and compiled is not None
        frame = Frame(described.calls, program.opaque)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if program.opaque:
                    stack.enter_context(running(frame))
                stack.enter_context(torch._C._DisableAutocast())
                arguments = [*described.tensors, *known.numbers]
                if not program.opaque and not call.keep_graph:
                    # Nothing can ask for the saved tensors again: they are freed as it runs.
                    described.tensors.clear()
                    _release(described, program)
                outputs = run_consuming(compiled.run, arguments)
        except Exception as error:
            deviation = _deviation(error)
            if deviation is None:
                raise
            structure.deviations += 1
            if structure.deviations >= MAX_DEVIATIONS:
                structure.reason = str(deviation)
            self.report.note_taken_over(str(deviation))
            return _finish_on_engine(call, described, frame, engine)
        self.report.compiled += 1
        with torch.no_grad():
            _leaves(program, described, outputs)
        if program.opaque and not call.keep_graph:
            _release(described, program)
        if program.returned is None:
            return ()
        return tuple(None if i is None else outputs[i] for i in program.returned)


def _release(described: Description, program: Program) -> None:
    """Let the nodes go of what they saved, as the engine does node by node."""
    for node, passed in zip(described.inlined, program.passed, strict=True):
        node._forward_cls.put_aside(node, *passed)
    release = nodes_module().release
    for node in described.nodes:
        release(node)


def _check_mode(call: EngineCall) -> None:
    if call.create_graph:
        raise NotCapturable("create_graph=True")
    if torch.is_anomaly_enabled():
        raise NotCapturable("anomaly mode")
    if call.accumulate and any(_keeps_gradient(value) for value in call.inputs):
        raise NotCapturable("inputs of backward() that are no leaves")


def _keeps_gradient(value: Any) -> bool:
    """Whether `backward(inputs=...)` makes a tensor keep its gradient, as `retain_grad()` does."""
    return isinstance(value, Tensor) and value.grad_fn is not None


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


# --- passes that differ in scalars alone ---------------------------------------------------------
# A scalar of the forward (`beta` in `a + beta * b`) reaches the backward as a number of some
# operator. Two records of one structure with the same sizes and other scalars tell which numbers
# those are: each number that changed has, in every record, the very value of one scalar.


@dataclass(frozen=True)
class ScalarPasses:
    """A graph for all values of some scalars. `sources` gives for numbers of the program the scalar
    that each is; the scalars in `same` must have the values that they had, and those of one group
    in `groups` equal values."""

    program: Program
    compiled: sizes.Compiled
    recorded: sizes.Recorded
    sources: dict[int, int]
    same: dict[int, Any]
    groups: tuple[tuple[int, ...], ...]

    def numbers(self, scalars: Scalars) -> tuple[Any, ...] | None:
        """What the graph is to be called with for these scalars, if it is for them."""
        if any(as_key(scalars[i]) != key for i, key in self.same.items()):
            return None
        if any(len({as_key(scalars[i]) for i in group}) > 1 for group in self.groups):
            return None
        numbers = list(self.recorded.numbers)
        for position, scalar in self.sources.items():
            if type(scalars[scalar]) is not type(numbers[position]):
                return None
            numbers[position] = scalars[scalar]
        return self.compiled.match(replace(self.recorded, numbers=tuple(numbers)))


def scalar_passes(
    program: Program, compiled: sizes.Compiled, records: Sequence[tuple[Scalars, sizes.Recorded]]
) -> ScalarPasses | None:
    """From records of one structure with equal sizes (the last that of `program`), if they tell."""
    recorded = records[-1][1]
    alike = [(scalars, r) for scalars, r in records if r.skeleton == recorded.skeleton]
    if len(alike) < 2:
        return None
    by_value: dict[Any, list[int]] = {}  # scalars by their values in all records
    for i in range(len(alike[0][0])):
        by_value.setdefault(tuple(as_key(s[i]) for s, _ in alike), []).append(i)
    same = {i: key[0] for key, own in by_value.items() if len(set(key)) == 1 for i in own}
    sources: dict[int, int] = {}
    for position in range(len(recorded.numbers)):
        values = tuple(as_key(r.numbers[position]) for _, r in alike)
        if len(set(values)) > 1:
            if values not in by_value:
                return None
            sources[position] = by_value[values][0]
    groups = tuple(tuple(own) for key, own in by_value.items() if len(set(key)) > 1)
    return ScalarPasses(program, compiled, recorded, sources, same, groups)
