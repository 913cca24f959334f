"""Parts of tensors that only data tells: `narrow`, `tensor_split`, `unique` of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from dovetail_prims.shape_rules.data_bounds import wrapped

from dovetail_capture.interpreter.library.torch_functions.truth_checks import require_relation
from dovetail_capture.interpreter.machine.handler_types import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def _given(names: tuple[str, ...], args: Args, kwargs: Kwargs) -> dict[str, Value] | None:
    """The arguments by name; None if they are not those (PyTorch says what is wrong)."""
    found = dict(zip(names, args, strict=False))
    if len(args) > len(names) or found.keys() & kwargs.keys():
        return None
    found.update(kwargs)
    return found if found.keys() <= set(names) else None


def narrow(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.narrow(dim, start, length)` from where only data tells: a slice of a known length, which
    the program checks to lie within."""
    given = _given(("input", "dim", "start", "length"), args, kwargs)
    if given is None or len(given) != 4:
        return PASS
    tensor, start, length = given["input"], given["start"], given["length"]
    dim = vm.as_python(given["dim"])
    if not isinstance(tensor, TensorValue) or not -len(tensor.sizes) <= dim < len(tensor.sizes):
        return PASS
    if isinstance(start, TensorValue) and not start.fake.dim():
        start = vm.call(vm.get_attr(start, "item"), [], {})
    if not isinstance(start, SymbolicNumber) or not vm.depends_on_data(start):
        return PASS
    if not isinstance(length, (Constant, SymbolicNumber)):
        return PASS
    size = tensor.sizes[dim]
    position = wrapped(start.value, size)
    end = position + length.value
    for holds, message in (
        (start.value >= -size, "narrow: start is out of range"),
        (start.value <= size, "narrow: start is out of range"),
        (position >= 0, "narrow: start is out of range"),
        (end >= 0, "narrow(): length must be non-negative."),
        (end <= size, "narrow: start + length exceeds the dimension's size"),
    ):
        if isinstance(holds, torch.SymBool) and require_relation(vm, holds, message) is None:
            return PASS
    bounds = [Constant(dim), vm.constant(position), vm.constant(end)]
    return vm.record("call_function", torch.ops.aten.slice.Tensor, [tensor, *bounds], {})


def tensor_split(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.tensor_split(places)`: places in a tensor are numbers, as many as it has. (A number of
    parts in a tensor breaks the graph: how many results there are depends on data.)"""
    named = kwargs.get("tensor_indices_or_sections")
    places = args[1] if len(args) > 1 else named
    if not isinstance(places, TensorValue) or places.fake.dim() != 1:
        return PASS
    numbers = vm.call(vm.get_attr(places, "tolist"), [], {})
    if named is None:
        args = [args[0], numbers, *args[2:]]
    else:
        kwargs = {**kwargs, "indices": numbers}
        del kwargs["tensor_indices_or_sections"]
    return vm.record("call_function", torch.tensor_split, args, kwargs)


def unique_slices(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What `torch.unique` with a `dim` calls, which has no name that a graph can hold."""
    return vm.record("call_function", torch.ops.aten.unique_dim.default, args, kwargs)


HANDLERS: dict[object, Handler] = {
    torch.narrow: narrow,
    torch.Tensor.narrow: narrow,
    torch._VF.unique_dim: unique_slices,
    torch.tensor_split: tensor_split,
    torch.Tensor.tensor_split: tensor_split,
}
