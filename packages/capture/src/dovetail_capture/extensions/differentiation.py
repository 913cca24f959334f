"""`torch.autograd.grad` and `backward` of what the frame computes: part of the graph.

The engine is run on fakes, which tells what gradients there are, and its call is a node: a backend
traces through it. What `backward` does with the gradients of leaves (hooks, `.grad`) is said in
Python and captured like the program's own code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from dovetail_guards import clauses as c
from dovetail_guards.native import accumulator_has_hooks
from dovetail_guards.torch_state import READERS
from dovetail_prims.node_facts import CHECKPOINT

from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.library.torch_functions.tensor_hooks import is_used, too_late
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, is_none
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import HandleValue, Hooked
from dovetail_capture.interpreter.values.tensors import TensorValue

# --- interpreted ---------------------------------------------------------------------------------


def leaf_gradients(
    tensors: Any, grad_tensors: Any, retain_graph: Any, create_graph: Any, inputs: Any
) -> Any:
    """The leaves (or `inputs`) and their gradients. (What the interpreter does here is below.)"""
    raise NotImplementedError


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """`torch.autograd.backward`: as the engine's AccumulateGrad does it, leaf by leaf."""
    if grad_tensors is None:
        grad_tensors = grad_variables
    found = leaf_gradients(tensors, grad_tensors, retain_graph, create_graph, inputs)
    with torch.set_grad_enabled(create_graph):
        for leaf, gradient in found:
            hooks: Any = leaf._backward_hooks
            for hook in list(hooks.values()) if hooks else ():
                changed = hook(gradient)
                if changed is not None:
                    gradient = changed
            if leaf.grad is None:
                leaf.grad = torch.empty_like(leaf).copy_(gradient)
            elif create_graph:
                leaf.grad = leaf.grad + gradient
            else:
                leaf.grad.add_(gradient)
            hooks = leaf._post_accumulate_grad_hooks
            for hook in list(hooks.values()) if hooks else ():
                if hook(leaf) is not None:
                    raise RuntimeError("Tensor post accumulate grad hooks should return None.")


_RETAINED = "retain_grad() of a tensor that is no leaf"
_OUTSIDE = "return the tensor, and ask for its gradient outside of the compiled function"

# --- what is asked of the engine -----------------------------------------------------------------


def _tensors(vm: Interpreter, value: Value) -> list[TensorValue]:
    """A tensor, or tensors in a container."""
    if isinstance(value, TensorValue):
        return [value]
    if isinstance(value, DictValue):
        value = vm.call(vm.get_attr(value, "values"), [], {})
    items = list(vm.iterate(value))
    if not all(isinstance(item, TensorValue) for item in items):
        raise GraphBreakSignal("gradients of what is no tensor")
    return cast(list[TensorValue], items)


def _tangents(vm: Interpreter, roots: list[TensorValue], given: Value) -> list[Value]:
    """The gradients of the roots: those given, and ones for scalars."""
    if isinstance(given, TensorValue):
        items: list[Value] = [given]
    elif is_none(given):
        items = [NONE] * len(roots)
    else:
        items = list(vm.iterate(given))
    if len(items) != len(roots):
        raise GraphBreakSignal("another number of gradients than of tensors")
    found: list[Value] = []
    for root, item in zip(roots, items, strict=True):
        if isinstance(item, TensorValue):
            same = tuple(item.sizes) == tuple(root.sizes)
            if not same or item.fake.is_complex() != root.fake.is_complex():
                raise GraphBreakSignal("a gradient of another shape than its tensor")
            found.append(item)
        elif not root.fake.requires_grad:
            found.append(NONE)
        else:
            if root.fake.numel() != 1 or not root.fake.is_floating_point():
                raise GraphBreakSignal("a gradient made for what is no floating-point scalar")
            found.append(vm.record("call_function", torch.ones_like, [root], {}))
    return found


def _reached(roots: Iterable[TensorValue], stop: Iterable[TensorValue] = ()) -> list[Any]:
    """The fakes of the leaves that the gradient comes to, not looking past `stop`."""
    ends = {value.fake.grad_fn for value in stop if value.source is not None}
    stack = [root.fake.grad_fn for root in roots]
    seen: set[Any] = set()
    found = []
    while stack:
        node = stack.pop()
        if node is None or node in seen or node in ends:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        stack += [following for following, _ in node.next_functions]
    return found


def _check(vm: Interpreter, roots: list[TensorValue], inputs: list[TensorValue]) -> None:
    """Break where the frame does not know all that the engine would do."""
    recorder = vm.session.recorder
    if isinstance(recorder, InnerRecorder) and not recorder.differentiates:
        raise GraphBreakSignal("a derivative inside of a transformed function")
    if vm.session.effects.hooks_on_inputs:
        raise GraphBreakSignal("a backward behind a hook on an input, which is Python's")
    if vm.session.effects.retains:
        raise GraphBreakSignal(f"a backward behind {_RETAINED}", _OUTSIDE)
    anomaly_mode = READERS["anomaly_mode"]()
    vm.session.guards.state("anomaly_mode", anomaly_mode)
    if all(anomaly_mode):
        raise GraphBreakSignal("a backward in anomaly mode, which looks at every gradient")
    if any(CHECKPOINT.is_told(node) for node in recorder.graph.nodes):
        raise GraphBreakSignal(
            "a backward through a checkpointed region: one graph would keep what is in it",
            "leave it: the backward runs compiled code, and computes the region again",
        )
    for fake in _reached(roots, inputs):
        if id(fake) not in recorder.values:
            raise GraphBreakSignal(
                "a backward that goes on past the inputs of the compiled function",
                "compile the whole of what is differentiated, or detach the input",
            )
    given = {id(v): v for v in inputs if v.source is not None and v.fake.requires_grad}
    if len(given) > 1 and not all(v.fake.is_leaf for v in given.values()):
        # (What one has from before the frame may lead to another: no guard tells.)
        raise GraphBreakSignal(
            "gradients of several inputs of the compiled function, of which one was computed "
            "from something: from another, perhaps",
            "compile the whole of what is differentiated, or detach the inputs",
        )


def gradients_of(
    inputs: Sequence[torch.Tensor],
    roots: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
    keep_graph: bool,
    create_graph: bool,
    allow_unused: bool,
) -> tuple[torch.Tensor | None, ...]:
    """What the node calls: the gradients of `inputs`, given those of the `roots`. Hooks of leaves
    among the inputs are left to the caller."""
    hooks = [(t, t._backward_hooks) for t in inputs if t._backward_hooks and t.is_leaf]
    for tensor, _ in hooks:
        tensor._backward_hooks = None
    try:
        found: tuple[torch.Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
            tuple(roots),
            tuple(tangents),
            keep_graph,
            create_graph,
            tuple(inputs),
            allow_unreachable=allow_unused,
            accumulate_grad=False,
        )
    finally:
        for tensor, before in hooks:
            tensor._backward_hooks = before
    return found


def _on_fakes(*args: Any) -> Any:
    with torch.autograd.set_multithreading_enabled(False), torch.autograd.set_detect_anomaly(False):
        return gradients_of(*args)


def _differentiated(
    vm: Interpreter,
    roots: list[TensorValue],
    tangents: list[Value],
    inputs: list[TensorValue],
    flags: tuple[bool, bool, bool],
) -> list[Value]:
    """The gradients of `inputs`. `flags`: keep the graph, create one, allow what is unused."""
    for value in inputs:
        if value.source is not None and value.real.is_leaf and _converts(value.real):
            raise GraphBreakSignal("gradients of a tensor that has a `grad_dtype` of its own")
    arguments: Args = [
        TupleValue(list(inputs)),
        TupleValue(list(roots)),
        TupleValue(tangents),
        *map(Constant, flags),
    ]
    found = vm.session.recorder.record("call_function", gradients_of, arguments, {}, _on_fakes)
    return list(vm.iterate(found))


def _converts(leaf: torch.Tensor) -> bool:
    """Does the engine convert what it gives to this leaf? (No guard: a leaf that comes to do so
    refuses another dtype as its gradient, with an error.)"""
    return leaf.requires_grad and getattr(leaf, "grad_dtype", leaf.dtype) is not leaf.dtype


def _flag(vm: Interpreter, value: Value, default: bool) -> bool:
    return default if vm.as_python(value) is None else vm.truth(value)


def _leaf_gradients(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    tensors, given, retain, create, wanted = args
    roots = _tensors(vm, tensors)
    every = vm.as_python(wanted) is None
    inputs = [] if every else _tensors(vm, wanted)
    _check(vm, roots, inputs)
    values = vm.session.recorder.values
    if every:
        inputs = [values[id(fake)] for fake in _reached(roots)]
        inputs.sort(key=lambda value: value.node)
    elif not all(value.fake.is_leaf for value in inputs):
        raise GraphBreakSignal("gradients that are accumulated in what is no leaf")
    if not inputs:
        raise GraphBreakSignal("a backward() that reaches no leaf")
    for value in inputs:
        if value.source is None:
            continue
        if accumulator_has_hooks(value.real):
            raise GraphBreakSignal(
                "a backward() to a leaf whose node of autograd, which accumulates its gradient, "
                "has hooks",
                "register them on the leaf: register_hook, register_post_accumulate_grad_hook",
            )
        vm.session.guards.add(c.NoAccumulatorHooks, value.source)
    tangents = _tangents(vm, roots, given)
    creates = vm.truth(create)
    flags = (_flag(vm, retain, creates), creates, True)
    found = _differentiated(vm, roots, tangents, inputs, flags)
    pairs = zip(inputs, found, strict=True)
    return TupleValue([TupleValue([a, b]) for a, b in pairs if isinstance(b, TensorValue)])


def _backward(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return inlining.inline(vm, backward, args, kwargs)


_GRAD_SIGNATURE = inspect.signature(torch.autograd.grad)


def _grad(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autograd.grad(outputs, inputs, ...)`."""
    bound = _GRAD_SIGNATURE.bind(*args, **kwargs).arguments
    option = {name: bound.get(name, NONE) for name in _GRAD_SIGNATURE.parameters}
    if _flag(vm, option["is_grads_batched"], False):
        return PASS
    roots, inputs = _tensors(vm, option["outputs"]), _tensors(vm, option["inputs"])
    _check(vm, roots, inputs)
    for value in inputs:
        if value.source is not None:
            if value.real._backward_hooks:
                raise GraphBreakSignal("the gradient of a tensor with a hook")
            vm.get_attr(value, "_backward_hooks")  # guarded
    tangents = _tangents(vm, roots, option["grad_outputs"])
    create = _flag(vm, option["create_graph"], False)
    zeros = _flag(vm, option["materialize_grads"], False)
    if zeros and not _flag(vm, option["allow_unused"], True):
        return PASS  # a ValueError
    unused = _flag(vm, option["allow_unused"], zeros) or zeros
    flags = (_flag(vm, option["retain_graph"], create), create, unused)
    found = _differentiated(vm, roots, tangents, inputs, flags)
    if zeros:
        for i, gradient in enumerate(found):
            if not isinstance(gradient, TensorValue):
                # (Of zeros that belong to a graph further derivatives can be asked.)
                flag: Kwargs = {"requires_grad": Constant(create)}
                found[i] = vm.call(Constant(torch.zeros_like), [inputs[i]], flag)
    return TupleValue(found)


def _retain_grad(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.retain_grad()`: of a leaf, nothing; nor of a tensor that nobody has but the graph."""
    tensor = args[0]
    if not isinstance(tensor, TensorValue) or not tensor.fake.requires_grad:
        raise GraphBreakSignal("retain_grad() of what requires no gradient")
    if tensor.fake.is_leaf:
        return NONE
    late = too_late(vm, _RETAINED) if is_used(tensor) else None
    if tensor.source is not None or isinstance(vm.session.recorder, InnerRecorder):
        if late is not None:
            raise late
        raise GraphBreakSignal(_RETAINED, _OUTSIDE)
    handle = HandleValue(None, None, vm.frames[0].steps)
    hook = Hooked(tensor, handle, [], [], late, "a tensor with retain_grad()")
    vm.session.effects.retain_gradient(hook)
    return NONE


HANDLERS: dict[Any, Handler] = {
    torch.autograd.backward: _backward,
    torch.autograd.grad: _grad,
    leaf_gradients: _leaf_gradients,
    torch.Tensor.retain_grad: _retain_grad,
}
