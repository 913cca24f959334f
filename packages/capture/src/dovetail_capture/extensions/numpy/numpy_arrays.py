"""What NumPy says of arrays of the graph: asked on arrays of ones of the same dtype and shape.

An array is a tensor of the graph (`ArrayValue`); here it is turned into what torch takes, and what
torch gives into the array, or the scalar, that NumPy says it is.
"""

from __future__ import annotations

from typing import Any

import torch

from dovetail_capture.interpreter.machine.handler_types import Args, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue, check_dtype

try:
    import numpy as np
except ImportError:  # torch works without it, and so do we
    np = None  # type: ignore[assignment]

HINT = "write it with torch functions, or do it outside of the compiled function"
_MOST_ELEMENTS = 1 << 24  # arrays of ones are made to ask NumPy: not of giants


def torch_dtype(dtype: Any) -> torch.dtype:
    """torch's dtype for one of NumPy's, or a graph break."""
    try:
        return check_dtype(torch.from_numpy(np.empty((), dtype)).dtype)
    except TypeError as error:
        raise GraphBreakSignal(f"a numpy array of dtype {dtype}", HINT) from error


def numpy_dtype(dtype: torch.dtype) -> Any:
    """NumPy's dtype for one of torch's, or a graph break."""
    try:
        return torch.empty((), dtype=check_dtype(dtype)).numpy().dtype
    except TypeError as error:
        raise GraphBreakSignal(f"a numpy array of {dtype}", HINT) from error


def dtype_of(value: ArrayValue) -> Any:
    """NumPy's dtype of an array."""
    return numpy_dtype(value.tensor.fake.dtype)


def sample(value: ArrayValue) -> Any:
    """An array of ones like the one that the value stands for."""
    shape = tuple(int(size) for size in value.tensor.sizes)
    dtype = dtype_of(value)
    if value.is_scalar:
        return dtype.type(1)
    found = np.ones(shape, dtype)
    if found.size > _MOST_ELEMENTS:
        raise GraphBreakSignal(f"a numpy array of {found.size} elements", HINT)
    return found


def known(vm: Interpreter, value: Value) -> Any:
    """The Python object, with arrays of ones for arrays."""
    if isinstance(value, ArrayValue):
        return sample(value)
    if isinstance(value, TensorValue):
        return torch.from_numpy(np.asarray(sample(ArrayValue(value, np.ndarray))))
    if isinstance(value, (TupleValue, ListValue)):
        return value.cls([known(vm, item) for item in vm.iterate(value)])
    real = vm.as_python(value)
    if real is UNKNOWN:
        raise GraphBreakSignal(f"a numpy function called with {value.describe()}", HINT)
    return real


def holds_array(vm: Interpreter, value: Value) -> bool:
    """Is it an array, or a tuple or list with one inside?"""
    if isinstance(value, (TupleValue, ListValue)):
        return any(holds_array(vm, item) for item in vm.iterate(value))
    return isinstance(value, ArrayValue)


def holds_tensor(vm: Interpreter, value: Value) -> bool:
    """Is it a tensor of the graph, or a tuple or list with one inside? (What NumPy is asked of
    ones tells nothing of its data.)"""
    if isinstance(value, (TupleValue, ListValue)):
        return any(holds_tensor(vm, item) for item in vm.iterate(value))
    return isinstance(value, TensorValue)


def ask(vm: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """What `fn` gives for arrays of ones, or its exception raised in the program. Whether an index
    is one that there is depends on the number: Python is to tell."""
    given = [known(vm, arg) for arg in args]
    named = {name: known(vm, arg) for name, arg in kwargs.items()}
    try:
        with np.errstate(all="ignore"):
            return fn(*given, **named)
    except IndexError as error:
        raise GraphBreakSignal(f"an index of a numpy array: {error}", HINT) from None
    except Exception as error:
        return vm.raise_real(error)


def as_tensors(vm: Interpreter, value: Value, dtype: torch.dtype | None) -> Value:
    """What torch takes for the value: arrays as tensors, of `dtype` if that is given."""
    if isinstance(value, ArrayValue):
        tensor: Value = value.tensor
        if dtype is not None and value.tensor.fake.dtype != dtype:
            tensor = vm.record("call_method", "to", [tensor, Constant(dtype)], {})
        return tensor
    if isinstance(value, (TupleValue, ListValue)):
        return type(value)([as_tensors(vm, item, dtype) for item in vm.iterate(value)])
    if isinstance(value, Constant) and isinstance(value.value, np.generic):
        return Constant(value.value.item())
    return value


def as_array(vm: Interpreter, name: str, tensor: Value, like: Any) -> Value:
    """The array (or scalar) that `tensor` is, which NumPy says is like `like`."""
    if isinstance(like, (tuple, list)) and isinstance(tensor, (TupleValue, ListValue)):
        if len(like) == len(tensor.items):
            pairs = zip(vm.iterate(tensor), like, strict=True)
            found_parts = [as_array(vm, name, part, wanted) for part, wanted in pairs]
            made_of = TupleValue if isinstance(like, tuple) else ListValue
            return made_of(found_parts)
    if not isinstance(tensor, TensorValue) or not isinstance(like, (np.ndarray, np.generic)):
        raise GraphBreakSignal(f"the numpy function `{name}` in this form", HINT)
    if tuple(tensor.sizes) != like.shape:
        raise GraphBreakSignal(f"the numpy function `{name}` in this form", HINT)
    dtype = torch_dtype(like.dtype)
    found: Value = tensor
    if tensor.fake.dtype != dtype:
        found = vm.record("call_method", "to", [tensor, Constant(dtype)], {})
    assert isinstance(found, TensorValue)
    return ArrayValue(found, type(like))
