"""NumPy arrays and functions as torch code.

An array is a tensor of the graph (`ArrayValue`). A mapped function runs as its twin in
`numpy_on_tensors`; what dtype, shape and kind its result has is asked of NumPy itself (see
`numpy_arrays`). Nothing here needs NumPy to be installed: without it the tables are empty.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from dovetail_prims.ops.catalog import POINTWISE

from dovetail_capture.extensions.numpy import numpy_on_tensors as twins
from dovetail_capture.extensions.numpy.array_operators import COPIED, array_attr, note_copy
from dovetail_capture.extensions.numpy.numpy_arrays import (
    HINT,
    array_of,
    as_array,
    as_tensors,
    ask,
    astype,
    converted,
    holds_array,
    holds_tensor,
    item,
    known,
    over_memory,
    tensor_numpy,
    tensor_of,
    tolist,
    torch_dtype,
    wrapped_array,
)
from dovetail_capture.interpreter.library.torch_functions.tensor_creation import inlined, stacked
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import numpy_scalars
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue

try:
    import numpy as np
except ImportError:  # torch works without it, and so do we
    np = None  # type: ignore[assignment]


def _number_as_tensor(vm: Interpreter, value: Value, dtype: torch.dtype) -> Value:
    if not isinstance(value, Constant) or not isinstance(value.value, (bool, int, float)):
        return value
    full = [TupleValue([]), value]
    return vm.record("call_function", torch.full, full, {"dtype": Constant(dtype)})


def mapped(
    fn: Any,
    function: Callable[..., Any] | str,
    computes_in_result: bool = True,
    needs_tensors: bool = False,
) -> Handler:
    """A NumPy function that runs as another on tensors (a name is that of a translation of
    torch's), which it may also be called with: whether that gives tensors or arrays, NumPy tells.
    `computes_in_result`: its arguments are first brought to the dtype of the result, as NumPy's
    loops do; truth values tell nothing, then it is the arguments' common dtype."""

    @functools.cache
    def resolved() -> tuple[Callable[..., Any], inspect.Signature]:
        twin = twins.translated(function) if isinstance(function, str) else function
        return twin, _signature(twin)

    name = getattr(fn, "__name__", str(fn))

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        of_tensors = any(holds_tensor(vm, arg) for arg in (*args, *kwargs.values()))
        if not of_tensors and not any(holds_array(vm, arg) for arg in (*args, *kwargs.values())):
            return PASS
        if numpy_scalars.note(vm.session):
            raise GraphBreakSignal(f"`{name}` where numpy.seterr lets errors be raised", HINT)
        twin, takes = resolved()
        bound = _bound(vm, name, takes, args, kwargs)
        like = ask(vm, fn, args, kwargs)
        told = like
        if of_tensors:
            args = [over_memory(vm, arg) for arg in args]
            kwargs = {key: over_memory(vm, arg) for key, arg in kwargs.items()}
            like = ask(vm, fn, args, kwargs)
            bound = _bound(vm, name, takes, args, kwargs)
        args, kwargs = list(bound.args), bound.kwargs
        if computes_in_result and any(_is_complex(vm, arg) for arg in args):
            raise GraphBreakSignal(f"the numpy function `{name}` of complex numbers", HINT)
        dtype = None
        if computes_in_result and isinstance(like, (np.ndarray, np.generic)):
            computed = like.dtype
            if computed == np.bool_:
                numbers = [known(vm, arg) for arg in args]
                numbers = [
                    n for n in numbers if isinstance(n, (np.ndarray, np.generic, int, float))
                ]
                if not numbers:
                    raise GraphBreakSignal(f"the numpy function `{name}` in this form", HINT)
                computed = np.result_type(*numbers)
            dtype = torch_dtype(computed)
            if computed.kind in "iu":
                _check_whole_numbers(name, args, np.iinfo(computed))
        tensors = [as_tensors(vm, arg, dtype) for arg in args]
        if tensors and (needs_tensors or isinstance(tensors[0], Constant)) and dtype is not None:
            tensors = [_number_as_tensor(vm, arg, dtype) for arg in tensors]
        named = {key: as_tensors(vm, arg, dtype) for key, arg in kwargs.items()}
        _try(vm, name, twin, tensors, named)
        found = as_array(vm, name, vm.call(Constant(twin), tensors, named), like)
        if name in COPIED:
            note_copy(vm, args[0] if args else next(iter(kwargs.values())), found)
        return _as_tensor(vm, name, found, told) if isinstance(told, torch.Tensor) else found

    return handler


def _signature(twin: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(twin)
    except ValueError:  # a C function of torch: positional only
        return inspect.signature(lambda x1, x2=None: None)


# What the functions of `torch._numpy` leave to what is around them, by the parameters' annotations.
_NOT_DONE = ("NotImplementedType", "OutArray", "CastingModes", "KeepDims")


def _bound(
    vm: Interpreter, name: str, takes: inspect.Signature, args: Args, kwargs: Kwargs
) -> inspect.BoundArguments:
    """The arguments but for `dtype`, which is seen to around the twin."""
    try:
        bound = takes.bind(*args, **kwargs)
    except TypeError as error:
        raise GraphBreakSignal(f"the numpy function `{name}`: {error}", HINT) from None
    for key in list(bound.arguments):
        parameter = takes.parameters[key]
        if any(word in str(parameter.annotation) for word in _NOT_DONE):
            if vm.as_python(bound.arguments[key]) != parameter.default:
                raise GraphBreakSignal(f"the numpy function `{name}` with `{key}`", HINT)
            del bound.arguments[key]
    bound.arguments.pop("dtype", None)
    return bound


def _as_tensor(vm: Interpreter, name: str, array: Value, like: torch.Tensor) -> Value:
    """The tensor that NumPy makes of what it computed of tensors."""
    if not isinstance(array, ArrayValue) or tuple(array.tensor.sizes) != tuple(like.shape):
        raise GraphBreakSignal(f"the numpy function `{name}` of tensors", HINT)
    if array.tensor.fake.dtype == like.dtype:
        return array.tensor
    return vm.record("call_method", "to", [array.tensor, Constant(like.dtype)], {})


def _check_whole_numbers(name: str, args: Args, limits: Any) -> None:
    """Refuse what NumPy and torch do differently with some whole numbers: a zero that divides, a
    negative exponent, a number beyond the dtype that is compared with."""
    second = args[1].value if len(args) > 1 and isinstance(args[1], Constant) else None
    least = {"floor_divide": 1, "remainder": 1, "power": 0}.get(name)
    if least is not None and (second is None or second < least):
        raise GraphBreakSignal(f"the numpy function `{name}` of any whole numbers", HINT)
    for arg in args:
        number = arg.value if isinstance(arg, Constant) else 0
        if isinstance(number, int) and not limits.min <= number <= limits.max:
            raise GraphBreakSignal(f"`{name}` of {number} and {limits.dtype} numbers", HINT)


def _is_complex(vm: Interpreter, value: Value) -> bool:
    if isinstance(value, (TupleValue, ListValue)):
        return any(_is_complex(vm, item) for item in vm.iterate(value))
    return isinstance(value, ArrayValue) and bool(value.tensor.fake.dtype.is_complex)


def _try(vm: Interpreter, name: str, twin: Callable[..., Any], args: Args, named: Kwargs) -> None:
    """Call the twin on tensors of ones: torch has no kernels for some dtypes, and tells when one
    is called."""

    def real(value: Value) -> Any:
        if isinstance(value, TensorValue):
            return torch.ones(tuple(map(int, value.sizes)), dtype=value.fake.dtype)
        if isinstance(value, (TupleValue, ListValue)):
            return value.cls([real(item) for item in vm.iterate(value)])
        return vm.as_python(value)

    try:
        twin(*map(real, args), **{key: real(value) for key, value in named.items()})
    except Exception as error:
        raise GraphBreakSignal(f"the numpy function `{name}`: {error}", HINT) from None


def made(fn: Any) -> Handler:
    """A function that makes an array of numbers alone: made anew by each call."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], (ArrayValue, TensorValue)) and fn in _CONVERT:
            return converted(vm, fn, args, kwargs)
        holds = any(holds_array(vm, arg) for arg in (*args, *kwargs.values()))
        if any(holds_tensor(vm, arg) for arg in (*args, *kwargs.values())):
            raise GraphBreakSignal(f"`{fn.__name__}` of numbers that are tensors", HINT)
        if holds and (fn not in _CONVERT or not set(kwargs) <= {"dtype"}):
            raise GraphBreakSignal(f"`{fn.__name__}` of numpy arrays", HINT)
        like = ask(vm, fn, args, kwargs)
        if holds:
            wanted = torch_dtype(like.dtype)
            parts = [as_tensors(vm, args[0], wanted), Constant(wanted)]
            return as_array(vm, fn.__name__, inlined(vm, stacked, parts, {}), like)
        if like.size > 4096 and not np.all(like == like.flat[0]):
            raise GraphBreakSignal(f"a numpy array of {like.size} different numbers", HINT)
        dtype: dict[str, Value] = {"dtype": Constant(torch_dtype(like.dtype))}
        if like.size and np.all(like == like.flat[0]):
            shape = TupleValue([Constant(size) for size in like.shape])
            fill = Constant(like.flat[0].item())
            tensor = vm.record("call_function", torch.full, [shape, fill], dtype)
        elif like.size:
            tensor = vm.record("call_function", torch.tensor, [vm.constant(like.tolist())], dtype)
        else:
            shape = TupleValue([Constant(size) for size in like.shape])
            tensor = vm.record("call_function", torch.zeros, [shape], dtype)
        return as_array(vm, fn.__name__, tensor, like)

    return handler


# --- tables --------------------------------------------------------------------------------------

HANDLERS: dict[Any, Handler] = {}
_CONVERT: set[Any] = set()


def _where(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`np.where(condition, x, y)`: the condition keeps its dtype."""
    if not any(holds_array(vm, arg) or holds_tensor(vm, arg) for arg in args):
        return PASS
    if len(args) != 3 or kwargs:
        raise GraphBreakSignal("`where` whose result's shape depends on data", HINT)
    args = [_array_of(vm, over_memory(vm, arg)) for arg in args]
    like = ask(vm, np.where, args, kwargs)
    condition = as_tensors(vm, args[0], torch.bool)
    parts = [as_tensors(vm, arg, torch_dtype(like.dtype)) for arg in args[1:]]
    return as_array(vm, "where", vm.call(Constant(torch.where), [condition, *parts], {}), like)


def _array_of(vm: Interpreter, value: Value, numbers: bool = False) -> Value:
    """The array of a tuple or list, and of a number, if asked for."""
    number = isinstance(value, Constant) and isinstance(value.value, (bool, int, float))
    if not isinstance(value, (TupleValue, ListValue)) and not (numbers and number):
        return value
    if not holds_tensor(vm, value):
        return HANDLERS[np.asarray](vm, [value], {})
    like = ask(vm, np.asarray, [value], {})
    found = _array_of(vm, over_memory(vm, value))
    return as_array(vm, "asarray", found.tensor if isinstance(found, ArrayValue) else found, like)


def _of_arrays(fn: Any, count: int, numbers: bool = False) -> Handler:
    """A function that first makes arrays of its arguments, of so many; of a `count` of 0, of what
    its first argument holds. Of `numbers`, too, if these are arrays like others there."""
    of_arrays = HANDLERS[fn]

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not any(holds_array(vm, arg) or holds_tensor(vm, arg) for arg in args):
            return of_arrays(vm, args, kwargs)
        if count:
            given = [_array_of(vm, arg, numbers) for arg in args[:count]]
            return of_arrays(vm, [*given, *args[count:]], kwargs)
        if isinstance(args[0], (TupleValue, ListValue)):
            parts = TupleValue([_array_of(vm, item, numbers) for item in vm.iterate(args[0])])
            args = [parts, *args[1:]]
        return of_arrays(vm, args, kwargs)

    return handler


def _like(fn: Any) -> Handler:
    """`np.ones_like` and its kind, which take a tensor for the array over its memory."""
    of_arrays = HANDLERS[fn]

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], TensorValue):
            args = [over_memory(vm, args[0]), *args[1:]]
        return of_arrays(vm, args, kwargs)

    return handler


def _part(fn: Any) -> Handler:
    """`np.real(a)`, `np.imag(a)`: the attribute."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        found = None
        if len(args) == 1 and not kwargs and isinstance(args[0], ArrayValue):
            found = array_attr(vm, args[0], fn.__name__)
        return PASS if found is None else found

    return handler


def _about_shapes(fn: Any) -> Handler:
    """A question that the dtype or the shape of an array answers."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not any(isinstance(arg, ArrayValue) for arg in (*args, *kwargs.values())):
            return PASS
        return vm.constant(ask(vm, fn, args, kwargs))

    return handler


def _about_dtypes(fn: Any) -> Handler:
    """A question about dtypes: run at capture."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if any(holds_array(vm, arg) for arg in (*args, *kwargs.values())):
            return PASS
        return vm.fold(fn, args, kwargs)

    return handler


def _fill_tables() -> None:
    for card in POINTWISE:
        if card.numpy:
            ufunc, own = getattr(np, card.numpy), getattr(torch, card.name)
            needs = card.arity == 2 and len(card.forms) == 1  # (no overload for a number)
            HANDLERS[ufunc] = mapped(ufunc, own, needs_tensors=needs)
    HANDLERS[np.matmul] = mapped(np.matmul, torch.matmul)
    HANDLERS[np.sign] = mapped(np.sign, twins.sign)
    HANDLERS[np.remainder] = mapped(np.remainder, twins.remainder)
    HANDLERS[np.rint] = mapped(np.rint, torch.round)
    for symbol, name in (("&", "and"), ("|", "or"), ("^", "xor")):
        ufunc = getattr(np, twins.UFUNCS[symbol])
        HANDLERS[ufunc] = mapped(ufunc, getattr(torch, f"bitwise_{name}"))
    HANDLERS[np.invert] = mapped(np.invert, torch.bitwise_not)
    for ufunc in [fn for fn in HANDLERS if isinstance(fn, np.ufunc)]:
        HANDLERS[ufunc] = _of_arrays(ufunc, ufunc.nin)
    for name, (twin, computes) in twins.FUNCTIONS.items():
        fn = getattr(np, name)
        HANDLERS[fn] = mapped(fn, twin, computes)
        if name not in twins.OF_SEQUENCES and name not in twins.OF_SEVERAL:
            HANDLERS[fn] = _of_arrays(fn, 2 if name in twins.OF_TWO else 1)
    likes: tuple[Any, ...] = (np.zeros_like, np.ones_like, np.full_like, np.empty_like)
    for like in likes:
        HANDLERS[like] = _like(like)
    HANDLERS[np.interp] = mapped(np.interp, twins.interp)
    HANDLERS[np.interp] = _of_arrays(np.interp, 3, numbers=True)
    for name in twins.OF_SEQUENCES:
        HANDLERS[getattr(np, name)] = _of_arrays(getattr(np, name), 0, numbers=True)
    for name, (twin, computes) in twins.METHODS.items():
        HANDLERS[getattr(np.ndarray, name)] = mapped(getattr(np.ndarray, name), twin, computes)
    _CONVERT.update((np.array, np.asarray))
    HANDLERS[np.linalg.norm] = mapped(np.linalg.norm, twins.norm)
    HANDLERS[np.where] = _where
    HANDLERS[np.fft.fftshift] = mapped(np.fft.fftshift, twins.fftshift)
    HANDLERS[np.fft.ifftshift] = mapped(np.fft.ifftshift, twins.ifftshift)
    HANDLERS[np.real], HANDLERS[np.imag] = _part(np.real), _part(np.imag)
    for fn in (np.zeros, np.ones, np.full, np.arange, np.linspace, np.eye, np.array, np.asarray):
        HANDLERS[fn] = made(fn)
    HANDLERS[np.empty] = made(np.zeros)  # whatever is in it
    HANDLERS[np.ndarray.astype] = astype
    HANDLERS[torch.Tensor.numpy] = tensor_numpy
    HANDLERS[array_of] = wrapped_array
    HANDLERS[np.ndarray.tolist] = tolist
    HANDLERS[np.ndarray.item] = HANDLERS[np.generic.item] = item
    questions: tuple[Any, ...] = (np.iscomplexobj, np.isrealobj, np.ndim, np.shape, np.size)
    for question in questions:
        HANDLERS[question] = _about_shapes(question)
    questions = (np.issubdtype, np.dtype, np.result_type, np.can_cast)
    for question in questions:
        HANDLERS[question] = _about_dtypes(question)
    HANDLERS[torch.from_numpy] = tensor_of
    HANDLERS[torch.as_tensor] = tensor_of


if np is not None:
    _fill_tables()
