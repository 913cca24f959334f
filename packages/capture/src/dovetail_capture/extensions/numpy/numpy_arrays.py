"""What NumPy says of arrays of the graph: asked on arrays of ones of the same dtype and shape.
Between tensors and NumPy's arrays, and between arrays of several dtypes; `wrap_numpy`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from dovetail_capture.extensions.numpy import numpy_on_tensors as twins
from dovetail_capture.interpreter.library.torch_functions import tensor_creation
from dovetail_capture.interpreter.machine.machine import PASS, Args, Interpreter, Kwargs
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


try:
    import numpy as np
except ImportError:  # torch works without it, and so do we
    np = None  # type: ignore[assignment]

F = TypeVar("F", bound=Callable[..., Any])


def converted(vm: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """`np.array(x)` and `np.asarray(x)` of an array or a tensor."""
    if len(args) > 1 or not kwargs.keys() <= {"dtype", "copy", "ndmin"}:
        raise GraphBreakSignal(f"`{fn.__name__}` with further arguments", HINT)
    array = args[0] if isinstance(args[0], ArrayValue) else tensor_numpy(vm, args, {})
    assert isinstance(array, ArrayValue)
    like = ask(vm, fn, [array], kwargs)
    copies = vm.as_python(kwargs["copy"]) if "copy" in kwargs else fn is np.array
    tensor: Value = array.tensor
    dtype = torch_dtype(like.dtype)
    if array.tensor.fake.dtype != dtype:
        tensor = vm.record("call_method", "to", [tensor, Constant(dtype)], {})
    elif copies or array.is_scalar:
        tensor = vm.record("call_method", "clone", [tensor], {})
    elif tuple(array.tensor.sizes) == like.shape:
        return array
    if tuple(array.tensor.sizes) != like.shape:
        tensor = vm.call(vm.get_attr(tensor, "view"), [vm.constant(like.shape)], {})
    return as_array(vm, fn.__name__, tensor, like)


def tensor_numpy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.numpy()`: the same memory, seen as an array."""
    tensor = args[0]
    assert isinstance(tensor, TensorValue)
    force = args[1] if len(args) > 1 else kwargs.get("force")
    if isinstance(force, Constant) and len(args) + len(kwargs) == 2:
        if force.value:
            found = tensor_creation.inlined(vm, twins.forced, [tensor], {})
            return tensor_numpy(vm, [found], {})
        return tensor_numpy(vm, [tensor], {})
    fake = tensor.fake
    if (
        fake.requires_grad
        or fake.device.type != "cpu"
        or fake.is_conj()
        or len(args) + len(kwargs) > 1
    ):
        raise GraphBreakSignal("`numpy()` of a tensor that has no array", "detach it first")
    numpy_dtype(fake.dtype)
    return ArrayValue(tensor, np.ndarray)


def array_of(tensor: torch.Tensor) -> Any:
    """The tensor's memory as an array. Captured, it stands for the tensor itself, which may be on
    another device and have gradients."""
    return tensor.numpy()


def wrap_numpy(fn: F) -> F:
    """A function of tensors made from one of NumPy arrays, to be compiled.

    Compiled, its NumPy calls are operators of the graph: they run on the tensors' device and have
    gradients. Uncompiled, NumPy itself computes on the tensors' memory.
    """
    if np is None:
        return fn

    @functools.wraps(fn)
    def wrap(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, array_of, (args, kwargs))
        return pytree.tree_map_only(np.ndarray, torch.as_tensor, fn(*args, **kwargs))

    return wrap  # type: ignore[return-value]


def wrapped_array(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """A tensor that `wrap_numpy` passes as an array: one with gradients, or on a GPU, too."""
    tensor = args[0]
    if not isinstance(tensor, TensorValue) or tensor.fake.is_conj():
        return PASS
    numpy_dtype(tensor.fake.dtype)
    return ArrayValue(tensor, np.ndarray)


def over_memory(vm: Interpreter, value: Value) -> Value:
    """The value with arrays over their memory in place of tensors."""
    if isinstance(value, TensorValue):
        return tensor_numpy(vm, [value], {})
    if holds_tensor(vm, value):
        assert isinstance(value, (TupleValue, ListValue))
        return type(value)([over_memory(vm, item) for item in vm.iterate(value)])
    return value


def tensor_of(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.from_numpy(array)`, `torch.as_tensor(array)`: the same memory."""
    if not args or not isinstance(args[0], ArrayValue):
        named = tensor_creation.with_dtype_of_scalars(vm, args[0], kwargs) if args else kwargs
        if named is kwargs:
            return PASS
        return vm.record("call_function", torch.as_tensor, args, named)
    if len(args) > 1 or args[0].is_scalar or not set(kwargs) <= {"dtype"}:
        raise GraphBreakSignal("a conversion of a numpy array with further arguments", HINT)
    if kwargs:
        return vm.call(vm.get_attr(args[0].tensor, "to"), [], kwargs)
    return args[0].tensor


def tolist(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`array.tolist()`."""
    if not isinstance(args[0], ArrayValue) or args[0].tensor.fake.dtype is torch.bool:
        return PASS
    return vm.call(vm.get_attr(args[0].tensor, "tolist"), [], {})


def item(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`array.item()` of one element."""
    array = args[0]
    if not isinstance(array, ArrayValue) or len(args) > 1 or kwargs:
        return PASS
    return vm.call(vm.get_attr(array.tensor, "item"), [], {})


def astype(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`array.astype(dtype)`."""
    array = args[0]
    if not isinstance(array, ArrayValue):  # of a subclass
        return PASS
    like = ask(vm, lambda a, *rest, **named: a.astype(*rest, **named), args, kwargs)
    dtype = Constant(torch_dtype(like.dtype))
    if _is_uncopied(vm, kwargs) and array.tensor.fake.dtype is dtype.value:
        return array
    tensor = vm.record("call_method", "to", [array.tensor, dtype], {"copy": Constant(True)})
    return as_array(vm, "astype", tensor, like)


def _is_uncopied(vm: Interpreter, kwargs: Kwargs) -> bool:
    copy = kwargs.get("copy")
    return copy is not None and not vm.as_python(copy)
