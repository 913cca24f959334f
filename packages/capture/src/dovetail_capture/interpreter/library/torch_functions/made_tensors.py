"""Parameters and tensors that wrap tensors, made in the frame.

`Tensor._make_wrapper_subclass` gives the shell of one, a tensor without attributes; what its class
sets on it are attributes of its value. It is a part of the graph only when an operation is given
it, or when it leaves the frame: then a node makes it of the tensors inside, by the class's own
protocol.
"""

from __future__ import annotations

from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_prims.wrappers import MakeWrapper, is_wrapper_type, overrides_functions
from torch.fx import Node
from torch.nn import Parameter
from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import sequences
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.session.input_ledger import as_it_is
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue


def parameter(vm: Interpreter, data: Value, requires_grad: bool) -> Value:
    """A parameter with the memory of `data`: a leaf of its own. (It may leave the frame if nothing
    is computed with it that needs a gradient: `recipes`.)"""
    recorder = vm.session.recorder
    if isinstance(recorder, InnerRecorder) or recorder.checkpoint is not None:
        raise GraphBreakSignal("creation of a Parameter in a transformed function")
    plain = isinstance(data, TensorValue) and data.fake.layout == torch.strided
    if recorder.inference or not plain:
        raise GraphBreakSignal(f"creation of a Parameter of {data.describe()}")
    new = vm.record("call_method", "detach", [data], {})
    assert isinstance(new, TensorValue)
    new.cls = Parameter
    if requires_grad:
        vm.session.effects.make_leaf(new, vm.frames[0].steps)
        vm.record("call_method", "requires_grad_", [new], {})
    return new


def _make_shell(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor._make_wrapper_subclass(cls, sizes, ...)`."""
    cls = vm.as_python(args[0])
    if not is_wrapper_type(cls):
        raise GraphBreakSignal(f"creation of a {cls.__name__}, which does not tell what it wraps")
    recorder = vm.session.recorder
    if vm.session.exports:
        raise GraphBreakSignal(f"creation of a {cls.__name__} in what is exported")
    for value in (*args, *kwargs.values()):
        vm.look_into(value)
    given = [recorder.argument(arg)[1] for arg in args[1:]]
    named = {name: recorder.argument(arg)[1] for name, arg in kwargs.items()}
    if named.get("requires_grad"):
        raise GraphBreakSignal(
            f"creation of a {cls.__name__} that asks for gradients",
            "create it before the compiled function runs",
        )
    make: Any = torch.Tensor._make_wrapper_subclass
    try:
        with recorder.fake_mode:
            shell = make(cls, *given, **named)
    except Exception as error:
        raise GraphBreakSignal(f"creation of a {cls.__name__}: {error}") from error
    made = TensorValue(None, shell, cls)
    made.overrides = overrides_functions(cls)
    made.make_node = lambda value: _node_of(vm, value)
    vm.session.modes.own_functions |= made.overrides
    return recorder.bind(made)


def _node_of(vm: Interpreter, value: TensorValue) -> Node:
    """The node that makes a tensor of what its class has set on it."""
    recorder, shell, cls = vm.session.recorder, value.fake, value.cls
    for name, attribute in value.attributes.items():
        setattr(shell, name, _stand_in(vm, cls, name, attribute))
    try:
        with recorder.fake_mode:
            names, context = shell.__tensor_flatten__()
            sizes, strides = tuple(shell.shape), tuple(shell.stride())
            inner = [value.attributes[name] for name in names]
            make = MakeWrapper(cls, tuple(names), context)
            again = make(sizes, strides, *(getattr(shell, name) for name in names))
    except Exception as error:
        raise GraphBreakSignal(f"a {cls.__name__} that cannot be taken apart: {error}") from error
    if any(isinstance(leaf, torch.SymInt) for leaf in pytree.tree_leaves(context)):
        raise GraphBreakSignal(f"a {cls.__name__} that knows sizes which are not fixed")
    if not all(isinstance(tensor, TensorValue) for tensor in inner):
        raise GraphBreakSignal(f"a {cls.__name__} around what is no tensor of the graph")
    kinds = [
        (type(t), t.dtype, t.device, tuple(t.shape), tuple(t.stride())) for t in (again, shell)
    ]
    if kinds[0] != kinds[1]:
        raise GraphBreakSignal(f"a {cls.__name__} that `__tensor_unflatten__` makes another of")
    value.rebuilt = frozenset(name for name in value.attributes if hasattr(again, name))
    numbers = tuple(
        tuple(recorder.argument(vm.constant(n))[0] for n in group) for group in (sizes, strides)
    )
    nodes = tuple(tensor.node for tensor in inner if isinstance(tensor, TensorValue))
    return recorder.make_wrapper(make, (*numbers, *nodes), shell)


def _stand_in(vm: Interpreter, cls: type, name: str, attribute: Value) -> Any:
    """What is set on the stand-in of a tensor as an attribute."""
    if isinstance(attribute, TensorValue):
        if not attribute.has_node:
            _ = attribute.node
        return attribute.fake
    if isinstance(attribute, SymbolicNumber):
        return attribute.value
    vm.look_into(attribute)
    known = vm.as_python(attribute)
    if known is UNKNOWN and isinstance(attribute, ObjectValue) and attribute.real is not None:
        known = _unchanged(vm, attribute)
    if known is UNKNOWN and isinstance(attribute, (ListValue, TupleValue)):
        if attribute.cls in (list, tuple, torch.Size):
            items = sequences.items(vm, attribute)
            known = attribute.cls([_stand_in(vm, cls, name, item) for item in items])
    if known is UNKNOWN:
        raise GraphBreakSignal(
            f"a {cls.__name__} with the attribute `{name}`, {attribute.describe()}",
            "create it before the compiled function runs",
        )
    return known


def _unchanged(vm: Interpreter, value: ObjectValue) -> Any:
    """An object of the program's, of which guards say that it is what it is now."""
    session, real = vm.session, value.real
    if value.source is None or id(real) in session.effects.attribute_writes:
        return UNKNOWN
    session.guards.pin(value.source, real)
    session.guards.add(c.ConstantIs, value.source, as_it_is(real))
    return real


HANDLERS: dict[Any, Handler] = {torch.Tensor._make_wrapper_subclass: _make_shell}
