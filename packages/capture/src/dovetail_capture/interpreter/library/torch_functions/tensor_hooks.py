"""Hooks on the gradients of tensors that the graph makes.

A hook that is a function of the gradient and nothing else is captured as a graph of its own, and
its registration is a node: whoever differentiates the graph applies it to the whole gradient of the
tensor, as autograd does. Such a hook runs later than where it is captured. So it may read nothing
that might be something else by then (`late_reads`), but numbers and tensors that it closes over,
variables of the frame that are not written to after. Every other hook breaks the
graph. So does one whose tensor leaves the graph: there others could ask for its gradient.

A hook on an input is registered as the program does it, but after the graph has run: it is
Python's, and is called with what comes to the input whenever it was registered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.graphs.gradient_hooks import GradientHook, GraphInBackward, remove_hook
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

from dovetail_capture.captured_frame import GraphBreak
from dovetail_capture.errors import NotCapturable
from dovetail_capture.interpreter.changes import late_reads
from dovetail_capture.interpreter.graph.aliasing import may_write
from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import dicts, sequences
from dovetail_capture.interpreter.protocols.attributes import resolve
from dovetail_capture.interpreter.session.ledgers import CallForEffect
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import functions
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, is_none
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

_WAY = "register it outside of the compiled function, or say it as a torch.autograd.Function"
_ESCAPES = "a hook whose tensor, or what it closes over, is needed outside of the graph"
_LOCALS = "let the hook close over local variables that hold the tensors and numbers it takes"


class _HookRecorder(InnerRecorder):
    """Records a hook."""

    transforms = False


@dataclass(frozen=True)
class _Captured:
    """A hook: its graph, or None for one that changes nothing, and what that takes besides."""

    code: GraphInBackward | None
    taken: list[Value]


# --- what a hook may read -------------------------------------------------------------------------


def _check_lasts(
    vm: Interpreter, hook: Value, cells: list[tuple[functions.CellValue, Any]]
) -> None:
    """Break if a hook is made of what may be something else when it runs. `cells` become those that
    it closes over, with what they hold."""
    if isinstance(hook, (TensorValue, SymbolicNumber)):
        return
    if isinstance(hook, Constant) and isinstance(
        hook.value, (*late_reads.LASTING, *late_reads.NUMBERS)
    ):
        return
    if isinstance(hook, functions.NativeMethod) and isinstance(hook.receiver, TensorValue):
        return
    if isinstance(hook, TupleValue):
        parts = sequences.items(vm, hook)
    elif isinstance(hook, functions.FunctionValue) and hook.attributes is None:
        parts = [resolve(vm, default) for default in hook.defaults]
        if hook.kwdefaults is not None:
            parts += [value for _, value in dicts.items(vm, hook.kwdefaults)]
        for cell in hook.closure:
            if cell.content is None:
                raise GraphBreakSignal(
                    "a hook that closes over a variable without a value", _LOCALS
                )
            if cell.real is not None:
                continue  # (what may change in it is refused when it is read)
            if not any(known is cell for known, _ in cells):
                parts.append(vm.resolve_cell(cell))
                cells.append((cell, cell.content))
    elif isinstance(hook, functions.BoundMethod) and hook.receiver.source is not None:
        parts = [hook.function]  # (what it reads of what it is bound to is refused when it is read)
    elif isinstance(hook, ObjectValue) and hook.base_new.__name__ == "partial":
        parts = [vm.get_attr(hook, name) for name in ("func", "args", "keywords")]
        parts[-1] = TupleValue([value for _, value in dicts.items(vm, vm.native(parts[-1]))])  # type: ignore[arg-type]
    else:
        raise GraphBreakSignal(f"a hook made of {hook.describe()}, which may change", _LOCALS)
    for part in parts:
        _check_lasts(vm, part, cells)


# --- capture --------------------------------------------------------------------------------------


def _capture(vm: Interpreter, tensor: TensorValue, hook: Value) -> _Captured:
    graph, taken, late = _graph_of(vm, tensor, hook, [], False)
    count, reads, recording = len(taken), late.reads, None
    if late.asks_grad_mode:
        recording, taken, late = _graph_of(vm, tensor, hook, taken, True)
        if (graph is None) != (recording is None):
            raise GraphBreakSignal("a hook that gives nothing, in one mode of gradients")
        reads = [*reads, *late.reads]
    if graph is None:
        return _Captured(None, taken)
    vm.session.late_reads.found.extend(reads)
    return _Captured(GraphInBackward(graph, count, tuple(reads), recording), taken)


def _graph_of(
    vm: Interpreter, tensor: TensorValue, hook: Value, taken: list[Value], records: bool
) -> tuple[GraphModule | None, list[Value], late_reads.LateReads]:
    """The graph of a hook, None if it changes nothing, in a backward that autograd `records` or
    does not; what it takes, first what is `taken` anyway; and what it reads."""
    session = vm.session
    outer = session.recorder
    inner = _HookRecorder(outer)
    with inner.fake_mode, torch.no_grad():
        fake = torch.empty_like(tensor.fake, memory_format=torch.contiguous_format)
    gradient = inner.bind(TensorValue(inner.argument_placeholder(0, fake), fake))
    inner.capture_first(taken)
    session.recorder = inner
    try:
        changes = "a hook that changes what is not its own"
        with torch.set_grad_enabled(records), late_reads.no_changes(vm, [hook], changes):
            with late_reads.watching(vm, "a hook", _LOCALS) as late:
                result = vm.call(hook, [gradient], {})
        if is_none(result):
            changed: Any = None
        elif not _is_like(result, gradient):
            raise GraphBreakSignal(f"a hook that gives {result.describe()} for a gradient")
        else:
            changed = inner.argument(result)[0]
        inner.graph.output((changed,))
    except ProgramException as error:
        name = error.value.python_type().__name__
        raise GraphBreakSignal(f"a hook that raises {name}") from None
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"a hook that gives {error}") from None
    finally:
        session.recorder = outer
    if fake._version or any(map(may_write, inner.graph.nodes)):
        raise GraphBreakSignal("a hook that writes to tensors", "let it give a new one")
    return (None if changed is None else inner.module()), inner.captured, late


def _is_like(value: Value, gradient: TensorValue) -> bool:
    if not isinstance(value, TensorValue) or tuple(value.sizes) != tuple(gradient.sizes):
        return False
    return bool(
        value.fake.dtype is gradient.fake.dtype and value.fake.device == gradient.fake.device
    )


def _refuse(vm: Interpreter, tensor: TensorValue) -> None:
    """Break where a hook is more than a part of the graph."""
    recorder = vm.session.recorder
    if isinstance(recorder, InnerRecorder):
        raise GraphBreakSignal("a hook inside of a transformed function", _WAY)
    if vm.session.exports:
        raise GraphBreakSignal("a hook in a graph that is exported", _WAY)
    if tensor.source is not None or tensor.fake.is_leaf or tensor.cls is not torch.Tensor:
        raise GraphBreakSignal("a hook on the gradient of a tensor that others see, too", _WAY)


def _register(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.register_hook(hook)`."""
    tensor = args[0]
    if not isinstance(tensor, TensorValue) or len(args) + len(kwargs) != 2:
        return PASS
    hook = args[1] if len(args) > 1 else kwargs["hook"]
    if _is_input(vm, tensor):
        return _register_late(vm, torch.Tensor.register_hook, tensor, hook)
    used = is_used(tensor)
    try:
        if not tensor.fake.requires_grad:
            raise GraphBreakSignal("a hook on a tensor that requires no gradient")
        _refuse(vm, tensor)
        cells: list[tuple[functions.CellValue, Any]] = []
        _check_lasts(vm, hook, cells)
        captured = _capture(vm, tensor, hook)
    except GraphBreakSignal as signal:
        if used:
            raise too_late(vm, signal.reason) from None
        raise
    return _record(vm, tensor, hook, captured, cells, used)


def _is_input(vm: Interpreter, tensor: TensorValue) -> bool:
    """Is it what the frame was given, as it was, and does it require a gradient?"""
    if tensor.source is None or not isinstance(tensor.real, torch.Tensor):
        return False
    fake, real = tensor.fake, tensor.real
    return (
        bool(real.requires_grad and fake.requires_grad)
        and fake.is_leaf == real.is_leaf
        and type(real) in (torch.Tensor, torch.nn.Parameter)
        and not vm.session.exports
        and not isinstance(vm.session.recorder, InnerRecorder)
    )


def _register_late(vm: Interpreter, method: Any, tensor: TensorValue, hook: Value) -> Value:
    """Register a hook on an input, after the graph. The graph may not write to an input that has a
    history: what is written to has another."""
    session, born = vm.session, vm.frames[0].steps
    call: CallForEffect = (method, [tensor, hook], {})
    session.effects.register_on_input(call)
    if not tensor.fake.is_leaf:
        session.late_reads.states.append(functions.LateState("a hook", born, [], [(tensor, 0)]))
    return functions.HandleValue(None, None, born, call)


def _register_post_accumulate(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.register_post_accumulate_grad_hook(hook)`: of leaves, which others see."""
    tensor = args[0]
    if not isinstance(tensor, TensorValue) or len(args) + len(kwargs) != 2:
        return PASS
    if not _is_input(vm, tensor) or not tensor.fake.is_leaf:
        raise GraphBreakSignal(
            "a hook on what is accumulated in a leaf: it outlives the graph", _WAY
        )
    hook = args[1] if len(args) > 1 else kwargs["hook"]
    return _register_late(vm, torch.Tensor.register_post_accumulate_grad_hook, tensor, hook)


def is_used(tensor: TensorValue) -> bool:
    """Has the graph, which made this tensor, computed something from it?"""
    made = tensor.source is None and tensor.fake.requires_grad
    return made and any(node.op != "output" for node in tensor.node.users)


def too_late(vm: Interpreter, reason: str) -> NotCapturable:
    """A hook that is not part of the graph would miss the gradient of uses before: then the frame
    runs as it is."""
    code, line = vm.frames[-1].code, vm.frames[-1].code.co_firstlineno
    text = f"{reason} (a hook on a tensor that the graph made and has used before)"
    return NotCapturable(GraphBreak(text, code.co_filename, line, "", "register it first"))


def _record(
    vm: Interpreter,
    tensor: TensorValue,
    hook: Value,
    captured: _Captured,
    cells: list[tuple[functions.CellValue, Any]],
    used: bool,
) -> Value:
    recorder = vm.session.recorder
    born = vm.frames[0].steps
    if captured.code is None:
        return functions.HandleValue(None, None, born)
    target = GradientHook(captured.code, getattr(hook, "name", ""))
    pairs = [recorder.argument(value) for value in captured.taken]
    node = recorder.state_change(target, tensor.node, *(pair[0] for pair in pairs))
    # (Whether a gradient requires one is for the hook to say, also of the fakes.)
    real = target(tensor.fake, *(pair[1] for pair in pairs))
    handle = functions.HandleValue(node, real, born)
    late = too_late(vm, _ESCAPES) if used else None
    vm.session.effects.hooks.append(functions.Hooked(tensor, handle, captured.taken, cells, late))
    return handle


def _remove(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`handle.remove()`."""
    handle = args[0]
    if not isinstance(handle, functions.HandleValue):
        return PASS
    calls = vm.session.effects.calls
    if handle.late is not None and not handle.removed:
        calls[:] = [call for call in calls if call is not handle.late]
    if handle.node is not None and not handle.removed:
        vm.session.recorder.state_change(remove_hook, handle.node)
        handle.real.remove()
    handle.removed = True
    return NONE


def hooks_of(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """`tensor._backward_hooks` and its like: what was registered before the frame."""
    if obj.source is None or obj.real is None:
        if getattr(obj.fake, name):
            raise GraphBreakSignal(f"the tensor attribute `{name}`")
        return NONE
    if any(given and given[0] is obj for _, given, _ in vm.session.effects.calls):
        raise GraphBreakSignal(f"`{name}` of a tensor that was given a hook")
    return vm.wrap(getattr(obj.real, name), vm.session.sources.attr(obj.source, name))


HANDLERS: dict[Any, Handler] = {
    torch.Tensor.register_hook: _register,
    torch.Tensor.register_post_accumulate_grad_hook: _register_post_accumulate,
    RemovableHandle.remove: _remove,
    RemovableHandle.__enter__: (
        lambda vm, args, kw: args[0] if isinstance(args[0], functions.HandleValue) else PASS
    ),
}
