"""Attributes of tensors, and methods that ask about one: answered without a node where they can be;
and what a tensor tells of its storage: where it begins in it, and how large it is.

An input is guarded for its storage only where the program asks: pieces of one tensor share a graph.
What is not guarded of an input (its history, say) breaks the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.iterators import READERS
from dovetail_guards.source import IteratorSource
from dovetail_prims.fake_tensor import FakeTensor

from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.library.torch_functions.own_functions import ask_about
from dovetail_capture.interpreter.library.torch_functions.tensor_hooks import hooks_of
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols.truth_and_length import length
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.computed_sources import PlainSource
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import ArraySource, TensorValue

_TENSOR_VALUED = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


def tensor_property(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """A C attribute of a tensor."""
    if name == "grad":
        if obj.source is None:
            return NONE
        if obj.overrides:
            raise GraphBreakSignal("the gradient of a tensor with a `__torch_function__`")
        source = vm.session.sources.attr(obj.source, "grad")
        return vm.wrap(obj.real.grad, source)
    if name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        return hooks_of(vm, obj, name)
    if name in (
        "__dict__",
        "grad_fn",
        "output_nr",
        "_version",
        "_base",
        "_cdata",
        "_python_dispatch",
    ):
        if name == "grad_fn" and _has_no_node(vm, obj):
            return NONE
        raise GraphBreakSignal(f"the tensor attribute `{name}`")
    if name in ("is_leaf", "retains_grad", "grad_dtype") and obj.source is not None:
        return _told_by_autograd(vm, obj, name)
    if name == "shape":
        return TupleValue([vm.constant(size) for size in obj.sizes], torch.Size)
    recorder = vm.session.recorder
    if name == "data" and obj.data is not None:
        obj = obj.data
    if name in _TENSOR_VALUED:
        return recorder.record(
            "call_function", getattr, [obj, Constant(name)], {}, lambda t, n: getattr(t, n)
        )
    try:
        with recorder.fake_mode:
            found = getattr(obj.fake, name)
    except AttributeError:  # a real tensor may have it
        raise GraphBreakSignal(f"the tensor attribute `{name}`") from None
    if isinstance(found, torch.Tensor):
        return recorder.record(
            "call_function", getattr, [obj, Constant(name)], {}, lambda t, n: getattr(t, n)
        )
    return recorder.fold(found)


def _has_no_node(vm: Interpreter, obj: TensorValue) -> bool:
    """Has no node of autograd made this tensor?"""
    if not obj.fake.requires_grad or (obj.source is None and obj.fake.is_leaf):
        return True
    if obj.source is None or obj.fake.grad_fn is not None:
        return False
    return vm.truth(_told_by_autograd(vm, obj, "is_leaf"))


def _told_by_autograd(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """What autograd knows of an input, with a guard; not once the frame has changed that."""
    if obj.fake.grad_fn is not None or obj.fake.requires_grad is not obj.real.requires_grad:
        raise GraphBreakSignal(f"`{name}` of an input whose history changed")
    assert obj.source is not None
    return vm.wrap(getattr(obj.real, name), vm.session.sources.attr(obj.source, name))


def tensor_len(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    own = ask_about(vm, torch.Tensor.__len__, args)
    if own is not None:
        return own
    return vm.constant(length(vm, args[0]))


def tensor_size(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.size()` and `x.size(dim)`."""
    obj = args[0]
    if not isinstance(obj, TensorValue):
        return PASS
    dim = args[1] if len(args) > 1 else kwargs.get("dim", NONE)
    shape = tuple(obj.sizes)
    if not isinstance(dim, Constant):
        return PASS
    if dim.value is None:
        return TupleValue([vm.constant(size) for size in shape], torch.Size)
    if not -len(shape) <= dim.value < len(shape):
        vm.raise_error(IndexError, "Dimension out of range")
    return vm.constant(shape[dim.value])


def tensor_of_storage(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x._is_view()` and `x.is_shared()`: nothing of that is guarded of an input."""
    obj = args[0]
    if isinstance(obj, TensorValue):
        inputs = [value for _, value in vm.session.inputs.entries if isinstance(value, TensorValue)]
        if obj.source is not None or any(obj.fake._storage is v.fake._storage for v in inputs):
            raise GraphBreakSignal("a question about the storage of an input or of a view of one")
    return PASS


def tensor_data(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Methods that read the memory of a tensor where they are called: a stand-in has none."""
    raise GraphBreakSignal("a method that reads the memory of a tensor")


# (torch 2.11 has no `const_data_ptr`.)
_READ_MEMORY = [
    getattr(torch.Tensor, name)
    for name in ("data_ptr", "const_data_ptr", "apply_", "map_", "map2_")
    if hasattr(torch.Tensor, name)
]


def tensor_detach(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.detach()`, which no gradient goes through: that of data that was replaced, too."""
    obj = args[0]
    if isinstance(obj, TensorValue) and obj.data is not None:
        return vm.record("call_method", "detach", [obj.data], {})
    return PASS


def tensor_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.new(sizes)`: a graph's text has tuples for sizes, and in these `new` sees data."""
    if len(args) == 2 and isinstance(args[1], TupleValue) and args[1].cls is torch.Size:
        return vm.call(Constant(torch.Tensor.new_empty), args, kwargs)
    return PASS


def tensor_iter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return vm.get_iter(args[0])


def tensor_hash(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreakSignal("hash of a tensor")


def tensor_requires_grad_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    obj = args[0]
    assert isinstance(obj, TensorValue)
    given = args[1:] or list(kwargs.values())
    wanted = vm.truth(given[0]) if given else True
    if obj.fake.requires_grad == wanted:
        return obj
    if not wanted or obj.source is not None or not obj.fake.dtype.is_floating_point:
        raise GraphBreakSignal("requires_grad_() that changes a tensor")
    if obj.inference:
        raise GraphBreakSignal("requires_grad_() of an inference tensor")
    # A tensor made in the frame becomes a leaf. The graph's outputs are no leaves: if it leaves the
    # frame, a leaf is made of what the graph gives.
    vm.session.effects.make_leaf(obj, vm.frames[0].steps)
    return vm.record("call_method", "requires_grad_", [obj], {})


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CHANGING = ("resize_", "resize_as_", "set_", "as_strided_")


def storage_offset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.storage_offset()`: a number like an argument, for an input as it was given; a view of one
    has its own, for as long as the input begins where it does now."""
    obj = args[0]
    found = _input_of(vm, obj, "storage_offset()")
    if found is None:
        return PASS
    assert isinstance(obj, TensorValue) and found.source is not None
    source = vm.session.sources.iterator_part(found.source, "storage_offset")
    begins = READERS["storage_offset"](found.real)
    if obj is found and type(obj.fake._offset) is int and obj.fake._offset == begins:
        return vm.wrap(begins, source)
    vm.session.guards.add(c.ConstantIs, source, begins)
    return PASS


def untyped_storage(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.untyped_storage()` of an input or of a view of one."""
    found = _input_of(vm, args[0], "the storage")
    if found is None:
        return PASS
    assert found.source is not None
    source = vm.session.sources.iterator_part(found.source, "storage")
    return vm.wrap(READERS["storage"](found.real), source)


def storage_bytes(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.untyped_storage().nbytes()`: a number like an argument."""
    obj = args[0]
    source = obj.source
    if (
        not isinstance(obj, ObjectValue)
        or not isinstance(source, IteratorSource)
        or source.part != "storage"
    ):
        return PASS
    _refuse_changed(vm, "the size of the storage")
    return vm.wrap(
        obj.real.nbytes(), vm.session.sources.iterator_part(source.base, "storage_bytes")
    )


def _input_of(vm: Interpreter, obj: Value, what: str) -> TensorValue | None:
    """The input of the graph whose storage a tensor has; None if the frame made that."""
    if not isinstance(obj, TensorValue):
        return None
    inputs = [value for _, value in vm.session.inputs.entries if isinstance(value, TensorValue)]
    found = [value for value in inputs if value.fake._storage is obj.fake._storage]
    if obj.source is None and not found:
        return None
    _refuse_changed(vm, what)
    given = obj if obj.source is not None else found[0]
    if (
        (given is not obj and len(found) > 1)  # they may come to share none
        or given not in found
        or vm.session.exports
        or vm.session.recorder.mapped
        or isinstance(given.source, (ArraySource, PlainSource))
        or any(value.cls not in _PLAIN or value.data is not None for value in (given, obj))
        or any(type(value.fake) is not FakeTensor for value in (given, obj))
    ):
        raise GraphBreakSignal(f"{what} of an input or of a view of one")
    return given


def _refuse_changed(vm: Interpreter, what: str) -> None:
    """What is read of a storage is what it was when the frame began."""
    recorder = vm.session.recorder
    changes = any(
        "out" in node.kwargs
        or str(getattr(node.target, "__name__", node.target)).split(".")[0] in _CHANGING
        for node in recorder.graph.nodes
    )
    if changes or isinstance(recorder, InnerRecorder):
        raise GraphBreakSignal(f"{what} of an input or of a view of one, which may have changed")


HANDLERS: dict[Any, Handler] = {
    torch.Tensor.__len__: tensor_len,
    torch.Tensor.__iter__: tensor_iter,
    torch.Tensor.__hash__: tensor_hash,
    torch.Tensor.size: tensor_size,
    torch.Tensor._is_view: tensor_of_storage,
    torch.Tensor.is_shared: tensor_of_storage,
    **dict.fromkeys(_READ_MEMORY, tensor_data),
    torch.Tensor.detach: tensor_detach,
    torch.Tensor.new: tensor_new,
    torch.Tensor.requires_grad_: tensor_requires_grad_,
    torch.Tensor.storage_offset: storage_offset,
    torch.Tensor.untyped_storage: untyped_storage,
    torch.UntypedStorage.nbytes: storage_bytes,
}
