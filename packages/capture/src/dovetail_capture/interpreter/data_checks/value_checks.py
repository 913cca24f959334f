"""What a program checks of the data of tensors: `if not valid.all(): raise ...`, `assert x.any()`.

Where one way of a branch on a tensor only raises, capture takes the other way, and the graph gives,
besides its results, whether it was the right one. The replacement code reads that before anything
of the frame is seen outside: before effects are replayed and the frame returns. If a check does not
hold, or the graph raises, the frame is run again, by Python, from its beginning: it raises what the
program raises, with its message. So the graph must have changed nothing by then: what it writes to
of what it was given is saved before, and put back (`written_inputs`). Where that cannot be, the
branch breaks the graph, as all others on tensors do.

The checks of one device are combined; reading them waits for the device once, at the end.

So is a frame whose graph raises for what is in its arguments (an index that is no place, a matrix
that has no factors), where that lies in a `try` of the program's: Python goes to its handler.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from dovetail_guards.torch_state import READERS
from dovetail_prims.graphs.gradient_hooks import GradientHook
from dovetail_prims.sizes.size_nodes import STATE
from torch.fx import Graph

from dovetail_capture.captured_frame import ValueChecks
from dovetail_capture.interpreter.data_checks import try_blocks
from dovetail_capture.interpreter.graph.aliasing import written_by
from dovetail_capture.interpreter.graph.random_tensors import may_draw
from dovetail_capture.interpreter.library.torch_functions.data_dependence import truth_number
from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.objects import ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue, TruthOf

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.session.session import Session


def truth_of(vm: Interpreter, value: Value) -> TruthOf | None:
    """The truth of what only data tells, to be asked later; None if that cannot be."""
    if isinstance(value, TruthOf):
        return value
    tensor = value.tensor if isinstance(value, ArrayValue) else value
    session = vm.session
    recorder, pending = session.recorder, session.checks
    if not isinstance(tensor, TensorValue) or tensor.answer is not None:
        return None
    if tensor.cls not in (torch.Tensor, torch.nn.Parameter) or vm.data_of(tensor) is not UNKNOWN:
        return None
    if not pending.allowed or isinstance(recorder, InnerRecorder) or _is_watched(session):
        return None
    if any(type(size) is not int or size != 1 for size in tensor.sizes):
        return None
    holds = recorder.aside(torch.ne, [tensor, Constant(0)])  # (it may be written to later)
    if holds.sizes:
        holds = recorder.aside(torch.reshape, [holds, Constant(())])

    def ask(truth: TruthOf) -> Any:
        if recorder.data_env is None:
            raise GraphBreakSignal(
                "a branch on a tensor's value",
                "use torch.where, or make the condition a Python value",
            )
        number = cast(SymbolicNumber, truth_number(vm, holds)).value
        return torch.sym_not(number) if truth.negated else number

    return TruthOf(holds, False, ask, vm.frames[0].steps)


def opposite(truth: TruthOf) -> TruthOf:
    """What `not` makes of it."""
    found = TruthOf(truth.tensor, not truth.negated, truth.ask, truth.born)
    found.known = None if truth.known is None else torch.sym_not(truth.known)
    return found


def check_later(vm: Interpreter, *conditions: tuple[Value, bool]) -> bool:
    """Let it be checked at the graph's end that one of these conditions is as wanted; False if that
    cannot be."""
    if isinstance(vm.session.recorder, InnerRecorder) or vm.handles_exceptions():
        return False
    truths = [(truth_of(vm, condition), wanted) for condition, wanted in conditions]
    session, recorder = vm.session, vm.session.recorder
    holds: TensorValue | None = None
    for truth, wanted in truths:
        if truth is None or truth.known is not None:
            return False
        one = truth.tensor
        if wanted == truth.negated:
            one = recorder.aside(torch.logical_not, [one])
        if holds is not None and holds.fake.device != one.fake.device:
            return False
        holds = one if holds is None else recorder.aside(torch.logical_or, [holds, one])
    assert holds is not None
    session.guards.state("function_transforms", False)
    device, pending = holds.fake.device, session.checks
    known = pending.holds.get(device)
    if known is not None:
        holds = recorder.aside(torch.logical_and, [known, holds])
    pending.holds[device] = holds
    frame = vm.frames[-1]
    file, line = frame.code.co_filename, frame.line()
    pending.places.append(f"`{linecache.getline(file, line).strip()}` ({file}:{line})")
    if device.type != "cpu":
        recorder.checked[device] = holds
    if len(truths) == 1 and truths[0][0] is not None:
        truths[0][0].known = truths[0][1]
    return True


# By name, what raises for what is in its arguments, not only for their shapes and types.
_FAILS = frozenset(
    {"take", "take_along_dim", "gather", "index_select", "embedding", "embedding_bag", "one_hot",
     "nll_loss", "cross_entropy", "multinomial", "bernoulli", "binary_cross_entropy", "normal",
     "bincount", "repeat_interleave", "masked_scatter", "ctc_loss", "cholesky", "inverse", "svd",
     "cholesky_inverse", "assert_async", "scatter", "scatter_add", "scatter_reduce", "index_add",
     "index_copy", "index_fill", "index_put", "index_reduce", "put", "histc", "poisson", "logdet",
     "segment_reduce"}
)  # fmt: skip
_ANY_NUMBERS = frozenset(
    {"linalg_vector_norm", "linalg_vecdot", "linalg_cross", "linalg_diagonal", "linalg_matmul",
     "linalg_multi_dot", "linalg_vander"}
)  # fmt: skip
_DIVIDES = frozenset({"floordiv", "mod", "floor_divide", "remainder", "fmod", "ifloordiv", "imod"})


def _may_fail(name: str, args: Sequence[Value]) -> bool:
    """May an operation raise for what is in its arguments?"""
    name = name.strip("_")
    if name in _FAILS or (name.startswith("linalg_") and name not in _ANY_NUMBERS):
        return True
    if name in ("getitem", "setitem"):
        parts = args[1].items if isinstance(args[1], TupleValue) else args[1:2]
        return any(_is_whole(part) for part in parts)
    return name in _DIVIDES and all(map(_is_whole, args))


def _is_whole(value: Any) -> bool:
    if not isinstance(value, TensorValue):
        return False
    dtype = value.fake.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def note_operation(vm: Interpreter, name: str, args: Sequence[Value]) -> None:
    """An operation is recorded: where it may raise what the program handles, the frame has to run
    again if the graph raises. Breaks the graph if it could not. (Any operation may raise, for want
    of memory or of a kernel for its types: there the frame runs again if it can.)"""
    pending = vm.session.checks
    if pending.raised is not None:
        raise GraphBreakSignal("an operation in a `finally`")
    if not _may_fail(name, args):
        if pending.allowed and not pending.raising and try_blocks.any_around(vm):
            pending.raising = "perhaps"
        return
    around = try_blocks.handler_around(vm)
    if pending.allowed:
        pending.raising = try_blocks.worst(pending.raising, around)
        if around == "noticed":
            _row_here(vm)
    elif around == "noticed" and not vm.session.exports and _passes(vm):
        return
    elif around in _must_run(vm.session):
        raise GraphBreakSignal(
            f"`{name}`, which may raise for its data, in a `try` that may handle it",
            "call it outside of the `try`",
        )


_MOST_ROWS = 4  # of `finally` blocks that are looked at, each by an attempt of its own


def _row_here(vm: Interpreter) -> int:
    """The number of the row of blocks around this operation, in the order of the program."""
    rows, row = vm.session.checks.rows, try_blocks.row_around(vm)
    if row not in rows:
        rows.append(row)
    return rows.index(row)


def _passes(vm: Interpreter) -> bool:
    """Can it be said what leaving the `finally` blocks around here does? Where that is yet to be
    seen, an error is raised in the program: this attempt is to show it."""
    pending, row = vm.session.checks, _row_here(vm)
    if row >= _MOST_ROWS:
        return False
    if row < len(pending.attempt_options.leaves):
        return pending.attempt_options.admits(row)
    pending.raised = vm.held(pending.error)
    raise ProgramException(pending.raised)


def notices(session: Session) -> bool:
    """Would only `finally` blocks see that the graph raises, and the frame could not run again?"""
    pending = session.checks
    if session.exports or pending.holds or pending.raising != "noticed":
        return False
    if len(pending.rows) > _MOST_ROWS:
        return False
    return not may_run_again(session) or not _leaves_no_mode(session.recorder.graph)


def _must_run(session: Session) -> tuple[str, ...]:
    """What handles an exception so that the graph rather breaks than that it does not run. (With
    `fullgraph` a `finally` is not worth an error: the exception leaves the frame either way.)"""
    if session.exports:
        return ()
    return ("caught",) if session.fullgraph else ("noticed", "caught")


def _is_watched(session: Session) -> bool:
    """Would somebody see that the check is read, or not be able to read it?"""
    modes = (
        session.modes.function_modes
        or session.modes.first_function_modes
        or session.modes.functions_off
    )
    return bool(modes) or bool(READERS["function_transforms"]())


def finished(session: Session, first: int) -> ValueChecks | None:
    """The checks of the graph, whose results are its outputs from number `first` on; None if it has
    none, or if the frame could not be run again."""
    graph, pending = session.recorder.graph, session.checks
    stated = [node for node in graph.nodes if node.target is STATE]
    raising = pending.raising
    if raising == "perhaps" and may_draw(graph):  # not worth it to keep the state of each call
        raising = ""
    if not (pending.holds or stated or raising) or not may_run_again(session):
        return None
    inputs = [value for _, value in session.inputs.entries if isinstance(value, TensorValue)]
    used = {value.fake.device for value in inputs} | pending.holds.keys()
    devices = {str(device) for device in used if device.type != "meta"}  # which draws nothing
    return ValueChecks(
        tuple(range(first, first + len(pending.holds))),
        (*pending.places, *(str(node.args[1]) for node in stated if len(node.args) > 1)),
        _leaves_no_mode(graph),
        tuple(sorted({"cpu", *devices})) if may_draw(graph) else (),
        bool(raising),
        tuple(value.source for value in written_inputs(session) if value.source is not None),
    )


def cannot_check(session: Session) -> bool:
    """Does the frame need to run again where a check fails or the graph raises, and could not?"""
    pending = session.checks
    handled = pending.raising in _must_run(session)
    if handled and not _leaves_no_mode(session.recorder.graph):
        return True
    return bool(pending.holds or handled) and not may_run_again(session)


def may_run_again(session: Session) -> bool:
    """Would a second run of the frame, after its graph has run, find all as it was?"""
    if session.draws.calls or session.effects.kernel_settings.before or session.exports:
        return False
    return can_run_again(session)


def _leaves_no_mode(graph: Graph) -> bool:
    """Whether torch is in the state that it was in (but for its grad mode) where a graph raises."""
    harmless = (torch._C._set_grad_enabled, STATE)
    return all(
        "val" in node.meta or node.op in ("output", "get_attr") or node.target in harmless
        for node in graph.nodes
    )


_MOST_BYTES = 1 << 20  # of all copies
_MOST_COPIES = 32


def written_inputs(session: Session) -> list[TensorValue]:
    """The inputs that the graph may write to, or that share memory with one."""
    inputs = [value for _, value in session.inputs.entries if isinstance(value, TensorValue)]
    places = {_place(value.fake) for value in inputs}
    written = {_place(v.fake) for v in inputs if not v.fake.is_inference() and v.fake._version}
    for node in session.recorder.graph.nodes:
        parts = (part.meta.get("val") for part in written_by(node))
        written |= {_place(part) for part in parts} & places
    return [value for value in inputs if _place(value.fake) in written]


def can_run_again(session: Session) -> bool:
    """Does the graph leave nothing behind that cannot be put back?"""
    if any(isinstance(node.target, GradientHook) for node in session.recorder.graph.nodes):
        return False
    written = written_inputs(session)
    if not written:
        return True
    if not session.checks.holds or len(written) > _MOST_COPIES:
        return False
    if session.recorder.has_other_layouts() or not all(map(_can_be_saved, written)):
        return False
    return bool(sum(value.real.nbytes for value in written) <= _MOST_BYTES)


def _can_be_saved(value: TensorValue) -> bool:
    """Is the input, as it is in each call, all of its memory, and does no gradient flow into it?"""
    real, fake = value.real, value.fake
    if value.cls not in (torch.Tensor, torch.nn.Parameter) or type(real) is not value.cls:
        return False
    if fake.requires_grad or real.requires_grad or real.is_inference():
        return False
    if any(type(number) is not int for number in (*fake._sizes, *fake._strides)):
        return False
    return bool(real.untyped_storage().nbytes() == real.nbytes and real.is_contiguous())


def _place(fake: object) -> int:
    return id(getattr(fake, "_storage", fake))
