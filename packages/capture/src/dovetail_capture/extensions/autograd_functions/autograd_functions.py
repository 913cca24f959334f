"""`torch.autograd.Function`: one node, whose forward and backward were captured as well.

Both are interpreted, forward on the arguments and backward on what forward has left in its context,
and recorded into graphs of their own. The node applies a function of autograd that runs these
graphs. So all that they read from around them is guarded, tensors that they close over are
arguments of the node, and functions may be among the arguments. What backward needs is saved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from dovetail_prims.graphs.gradient_hooks import GraphInBackward
from torch.autograd.function import _SingleLevelFunction
from torch.fx import GraphModule

from dovetail_capture.extensions.autograd_functions import autograd_function_nodes as nodes
from dovetail_capture.extensions.autograd_functions.autograd_function_nodes import Backward, Pieces
from dovetail_capture.interpreter.changes import late_reads
from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.library.torch_functions import inner_graphs
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, is_none
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import LateState
from dovetail_capture.interpreter.values.objects import ProgramException
from dovetail_capture.interpreter.values.tensors import TensorValue

_WAY = "keep it on the context in forward (ctx.name = ...)"


class _Context:
    """What `forward` and `backward` are given."""

    def __init__(self, needs_input_grad: Any) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: Any = ()
        self.materialize_grads = True
        self.dirty_tensors: Any = ()
        self.non_differentiable: Any = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


def _run_forward(function: Any, needs_input_grad: Any, *args: Any) -> Any:
    ctx = _Context(needs_input_grad)
    if function.setup_context is _SingleLevelFunction.setup_context:
        return ctx, function.forward(ctx, *args)
    result = function.forward(*args)
    function.setup_context(ctx, args, result)
    return ctx, result


def _run_undifferentiated(function: Any, needs_input_grad: Any, *args: Any) -> Any:
    with torch.no_grad():
        return _run_forward(function, needs_input_grad, *args)[1]


def _run_backward(function: Any, ctx: Any, *gradients: Any) -> Any:
    return function.backward(ctx, *gradients)


class _FunctionRecorder(inner_graphs.InnerRecorder):
    """Records a forward, or a backward inside of what its forward recorded."""

    differentiates = True
    transforms = False


def _inside(inner: inner_graphs.InnerRecorder, args: Args) -> Args:
    """The arguments as forward sees them: tensors are its own."""
    inside: Args = []
    for arg in args:
        if isinstance(arg, TensorValue):
            with inner.fake_mode, torch.no_grad():
                fake = arg.fake.detach().requires_grad_(arg.fake.requires_grad)
            node = inner.argument_placeholder(len(inside), fake)
            arg = inner.bind(TensorValue(node, fake, arg.cls))
        inside.append(arg)
    return inside


def _attribute(vm: Interpreter, ctx: Value, name: str) -> list[Value]:
    return list(vm.iterate(vm.get_attr(ctx, name)))


def _results_of(result: Value) -> tuple[list[Value], bool]:
    """What a forward gives, and whether it is several."""
    returned, many = [result], False
    if isinstance(result, TupleValue) and result.cls is tuple:
        returned, many = list(result.items), True
    if not any(isinstance(one, TensorValue) for one in returned):
        raise GraphBreakSignal("a function of autograd that gives no tensor")
    if not all(isinstance(one, (TensorValue, Constant)) for one in returned):
        raise GraphBreakSignal("a function of autograd whose results are not tensors, or constants")
    return returned, many


def _with_constants(vm: Interpreter, pieces: Pieces, found: Value) -> Value:
    """The results that the node gives, and the constants among them."""
    if len(pieces.returned) == len(pieces.results):
        return found
    results = iter(list(vm.iterate(found)))
    parts = (next(results) if isinstance(r, TensorValue) else r for r in pieces.returned)
    return TupleValue(list(parts))


def _capture(
    vm: Interpreter, fn: Value, cls: Any, args: Args, wanted: bool, everything: bool = False
) -> Pieces:
    """The pieces of a function on its arguments; with its backward if it is `wanted`, for
    `everything` or for what requires a gradient."""
    session = vm.session
    outer = session.recorder
    inner = _FunctionRecorder(outer)
    given = _inside(inner, args)
    tensors = [arg for arg in given if isinstance(arg, TensorValue)]
    needs = TupleValue(
        [
            Constant(wanted and (_needs_gradient(arg) or (everything and _is_real(arg))))
            for arg in args
        ]
    )
    session.recorder = inner
    try:
        with torch.no_grad():
            pair = vm.call(Constant(_run_forward), [fn, needs, *given], {})
        assert isinstance(pair, TupleValue)
        ctx, result = pair.items
        returned, many = _results_of(result)
        results = [one for one in returned if isinstance(one, TensorValue)]
        dirty, plain = (
            tuple(_place(marked, among) for marked in _attribute(vm, ctx, name))
            for name, among in (("dirty_tensors", tensors), ("non_differentiable", results))
        )
        backward: Backward | None = None
        if wanted:
            if len(results) > 1 and not vm.truth(vm.get_attr(ctx, "materialize_grads")):
                raise GraphBreakSignal("a function of autograd that tells absent gradients apart")
            backward = _capture_backward(vm, fn, cls, ctx, given, returned)
        saved = [] if backward is None else backward.saved
        outputs = tuple(inner.argument(value)[0] for value in (*results, *saved))
        inner.graph.output(outputs)
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"a function of autograd that gives {error}") from None
    finally:
        session.recorder = outer
    return Pieces(
        cls,
        forward=inner.module(),
        backward=backward,
        captured=list(inner.captured),
        original=_original(vm, cls, args),
        given=len(tensors),
        many=many,
        dirty=dirty,
        plain=plain,
        returned=returned,
    )


def _original(vm: Interpreter, cls: Any, args: Args) -> Callable[[Any], Any]:
    """The function itself, applied to the tensors among the arguments and the others as they are
    now."""
    others = {
        place: vm.as_python(arg)
        for place, arg in enumerate(args)
        if not isinstance(arg, TensorValue)
    }
    apply = cls.apply

    def original(tensors: Any) -> Any:
        if any(other is UNKNOWN for other in others.values()):
            raise RuntimeError(f"{cls.__qualname__}.apply was captured without its backward")
        rest = iter(tensors)
        return apply(*(others[i] if i in others else next(rest) for i in range(len(args))))

    return original


def _needs_gradient(arg: Value) -> bool:
    return isinstance(arg, TensorValue) and bool(arg.fake.requires_grad)


def _is_real(arg: Value) -> bool:
    """Is it a tensor of what has derivatives?"""
    dtype = arg.fake.dtype if isinstance(arg, TensorValue) else torch.bool
    return dtype.is_floating_point or dtype.is_complex


def _place(value: Value, among: list[Any]) -> int:
    for place, one in enumerate(among):
        if one is value:
            return place
    raise GraphBreakSignal("a function of autograd that marks another tensor than one of its own")


def _capture_backward(
    vm: Interpreter, fn: Value, cls: Any, ctx: Value, given: Args, results: list[Value]
) -> Backward:
    """What backward is."""
    session = vm.session
    graph, taken, late = _backward_graph(vm, fn, ctx, given, results, [], False)
    count, reads, recording = len(taken), late.reads, None
    if late.asks_grad_mode and not nodes.is_once_differentiable(cls.backward):
        recording, taken, late = _backward_graph(vm, fn, ctx, given, results, taken, True)
        reads = [*reads, *late.reads]
    saved = _attribute(vm, ctx, "saved_tensors")
    unsaved = [value for value in taken if value not in saved]
    session.late_reads.found += reads
    return Backward(GraphInBackward(graph, count, tuple(reads), recording), taken, unsaved)


def _backward_graph(
    vm: Interpreter,
    fn: Value,
    ctx: Value,
    given: Args,
    results: list[Value],
    taken: list[Value],
    records: bool,
) -> tuple[GraphModule, list[Value], late_reads.LateReads]:
    """The graph of a backward, which autograd `records` or does not; what it takes of forward's
    tensors, first those that are `taken` anyway; and what it reads."""
    session = vm.session
    name = vm.as_python(fn).__name__
    forward = session.recorder
    inner = _FunctionRecorder(forward)
    gradients: Args = []
    for place, result in enumerate(results):
        if not isinstance(result, TensorValue):
            gradients.append(NONE)
            continue
        with inner.fake_mode, torch.no_grad():
            fake = torch.empty_like(result.fake, memory_format=torch.contiguous_format)
        node = inner.argument_placeholder(place, fake)
        gradients.append(inner.bind(TensorValue(node, fake)))
    inner.capture_first(taken)
    leaves = dict(session.effects.made_leaves)
    session.recorder = inner
    try:
        changes = "a backward that changes what it does not own"
        with torch.set_grad_enabled(records), late_reads.no_changes(vm, [ctx, *given], changes):
            with late_reads.watching(vm, "a backward", _WAY) as late:
                found = vm.call(Constant(_run_backward), [fn, ctx, *gradients], {})
    except ProgramException as error:
        kind = error.value.python_type().__name__
        raise GraphBreakSignal(f"a backward that raises {kind}") from None
    finally:
        session.recorder = forward
        session.effects.made_leaves = leaves
    parts = list(found.items) if isinstance(found, TupleValue) else [found]
    while len(parts) > len(given) and is_none(parts[-1]):
        parts.pop()
    if len(parts) != len(given):
        raise GraphBreakSignal("a backward that gives not as many gradients as there are arguments")
    outputs = []
    for arg, part in zip(given, parts, strict=True):
        absent = is_none(part)
        if not absent and not (isinstance(arg, TensorValue) and isinstance(part, TensorValue)):
            raise GraphBreakSignal(f"a backward that gives {part.describe()} as a gradient")
        if isinstance(arg, TensorValue):
            outputs.append(None if absent else inner.argument(part)[0])
    inner.graph.output(tuple(outputs))
    born, what = vm.frames[0].steps, f"the backward of {name}"
    session.late_reads.states.append(LateState(what, born, late.state(), []))
    return inner.module(), inner.captured, late


def _inlined(vm: Interpreter, fn: Value, given: Args) -> Value:
    """What forward gives, as part of the graph around it."""
    needs = TupleValue([Constant(False) for _ in given])
    result = vm.call(Constant(_run_undifferentiated), [fn, needs, *given], {})
    if any(one is arg for one in _results_of(result)[0] for arg in given):
        raise GraphBreakSignal("a function of autograd that gives what it was given")
    return result


def _defaults(vm: Interpreter, cls: Any, given: int) -> Args:
    """What `setup_context` sees, and `backward` gives a gradient for, besides `given` arguments:
    the defaults of those of `forward` that are left out."""
    if cls.setup_context is _SingleLevelFunction.setup_context:
        return []
    left: Args = []
    for parameter in list(inspect.signature(cls.forward).parameters.values())[given:]:
        plain = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if not plain or parameter.default is parameter.empty:
            break
        left.append(vm.held(parameter.default))
    return left


def _apply_in_transform(
    vm: Interpreter, fn: Value, cls: Any, given: Args, transforms: set[str]
) -> Value:
    """Inside of `torch.vmap`, `torch.func.grad` and their like: forward and `setup_context` apart,
    a backward, and a rule for `vmap` that torch generates are what can be captured."""
    what = f"{cls.__name__}.apply inside of a transformed function"
    if cls.setup_context is _SingleLevelFunction.setup_context:
        raise GraphBreakSignal(f"{what}, without a setup_context")
    if "forward" in transforms:
        raise GraphBreakSignal(f"{what} whose derivative is taken forward, by its own jvp")
    if "vmap" in transforms and not cls.generate_vmap_rule:
        raise GraphBreakSignal(
            f"{what}, with a vmap of its own or none", "set generate_vmap_rule = True"
        )
    pieces = _capture(vm, fn, cls, given, True, everything=True)
    if pieces.dirty:
        raise GraphBreakSignal(f"{what}, which writes to what it is given")
    places = nodes.places_of_saved(pieces)
    if places is None:
        raise GraphBreakSignal(f"{what}, which saves other tensors than its inputs and results")
    tensors = [arg for arg in given if isinstance(arg, TensorValue)]
    target = nodes.target_in_transform(pieces, places)
    found = vm.record("call_function", target, [*tensors, *pieces.captured], {})
    return _with_constants(vm, pieces, found)


def apply(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`MyFunction.apply(...)`."""
    fn, given = args[0], list(args[1:])
    cls = vm.as_python(fn)
    if kwargs:
        raise GraphBreakSignal(f"{cls.__name__}.apply with keyword arguments")
    given += _defaults(vm, cls, len(given))
    for arg in given:
        if issubclass(arg.python_type(), torch.Tensor) and not isinstance(arg, TensorValue):
            raise GraphBreakSignal(f"{cls.__name__}.apply with {arg.describe()}")
    transforms = inner_graphs.transforms_around(vm.session.recorder)
    if transforms:
        return _apply_in_transform(vm, fn, cls, given, transforms)
    wanted = torch.is_grad_enabled() and any(map(_needs_gradient, given))
    if wanted and not nodes.has_one_backward(cls):
        raise GraphBreakSignal(
            f"{cls.__name__}.apply, which has both a backward and a vjp: autograd refuses its "
            "backward"
        )
    if not wanted:
        if vm.session.inlines_functions:
            return _inlined(vm, fn, given)
        vm.session.applied_functions = True
    pieces = _capture(vm, fn, cls, given, wanted)
    tensors = [arg for arg in given if isinstance(arg, TensorValue)]
    found = vm.record("call_function", nodes.target_of(pieces), [*tensors, *pieces.captured], {})
    _watch(vm, cls, pieces, found)
    return _with_constants(vm, pieces, found)


def _watch(vm: Interpreter, cls: Any, pieces: Pieces, found: Value) -> None:
    """Nobody may write to what backward reads that forward did not save: it would read what has
    been written (of what is saved, autograd says so)."""
    if pieces.backward is None:
        return
    session = vm.session
    results = list(vm.iterate(found)) if pieces.many else [found]
    inner = [pieces.results.index(v) for v in pieces.backward.unsaved if v in pieces.results]
    unsaved = [*pieces.backward.unsaved, *(results[place] for place in inner)]
    inputs = [value for _, value in session.inputs.entries if isinstance(value, TensorValue)]
    shared = [inputs[i] for i in late_reads.share_memory([value.fake for value in inputs], unsaved)]
    tensors = [value for value in unsaved if isinstance(value, TensorValue)]
    versions = [(t, 0) for t in shared] + [(t, t.fake._version) for t in tensors]
    what = f"the backward of {cls.__name__}"
    session.late_reads.states.append(LateState(what, vm.frames[0].steps, [], versions))
    session.late_reads.tensors += tensors


# `apply` as the classes behind autograd.Function define it: in Python or in C.
_APPLIES = [vars(cls)["apply"] for cls in torch.autograd.Function.__mro__ if "apply" in vars(cls)]

HANDLERS: dict[Any, Handler] = {getattr(method, "__func__", method): apply for method in _APPLIES}
