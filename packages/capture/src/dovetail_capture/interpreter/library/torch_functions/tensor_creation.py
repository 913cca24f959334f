"""Tensors and named results that the program makes of Python's values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, is_none, is_numpy
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue


def inlined(vm: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    """A call of a function of ours, interpreted in place of what the program called."""
    return inlining.inline(vm, function, args, kwargs)


def make_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.tensor(data)`: of Python numbers and of tensors."""
    data = args[0] if args else kwargs.get("data", NONE)
    told, kwargs = kwargs, with_dtype_of_scalars(vm, data, kwargs)
    if _holds_tensor(data) and set(kwargs) <= {"data", "dtype", "device"}:
        named = {name: value for name, value in kwargs.items() if name != "data"}
        if isinstance(data, TensorValue):
            return inlined(vm, _copied, [data], named)
        if set(named) <= {"dtype"}:
            return _tensor_of_parts(vm, data, named.get("dtype", NONE))
    if isinstance(data, ArrayValue) and set(kwargs) <= {"data", "dtype", "device"}:
        named = {name: value for name, value in kwargs.items() if name != "data"}
        return inlined(vm, _copied, [data.tensor], named)
    if _is_found_in_data(vm, data) and set(kwargs) <= {"data", "dtype", "device"}:
        named = {name: value for name, value in kwargs.items() if name != "data"}
        return _tensor_of_numbers(vm, data, named)
    if len(args) == 1 and set(kwargs) <= {"dtype", "device"}:
        if isinstance(args[0], SymbolicNumber) and args[0].python_type() is float:
            options = {"dtype": Constant(torch.get_default_dtype()), **kwargs}
            return vm.record("call_function", torch.full, [TupleValue([]), args[0]], options)
    if kwargs is not told:
        return vm.record("call_function", torch.tensor, args, kwargs)
    return PASS


def with_dtype_of_scalars(vm: Interpreter, data: Value, kwargs: Kwargs) -> Kwargs:
    """The options of `torch.tensor(data)`, with the dtype that NumPy's scalars in it give: a graph
    has Python's numbers for these."""
    if not is_none(kwargs.get("dtype", NONE)):
        return kwargs
    kinds = set(_kinds(vm, data))
    if not any(is_numpy(kind, "generic") for kind in kinds):
        return kwargs
    if not all(is_numpy(kind, "generic") or kind in _NUMBERS for kind in kinds):
        raise GraphBreakSignal("`tensor` of NumPy's scalars and of others")
    try:
        dtypes = [torch.tensor(kind()).dtype for kind in kinds]  # of zeros
    except (TypeError, RuntimeError) as error:  # of dates, texts, wider numbers
        raise GraphBreakSignal(f"`tensor` of NumPy's scalars: {error}") from error
    return {**kwargs, "dtype": Constant(functools.reduce(torch.promote_types, dtypes))}


_NUMBERS = (bool, int, float, complex)


def _holds_tensor(data: Value) -> bool:
    if isinstance(data, (ListValue, TupleValue)):
        return any(isinstance(item, Value) and _holds_tensor(item) for item in data.items)
    return isinstance(data, TensorValue)


def _is_found_in_data(vm: Interpreter, data: Value) -> bool:
    """Is a number among these which only the data of tensors tells?"""
    if isinstance(data, (ListValue, TupleValue)):
        return any(isinstance(item, Value) and _is_found_in_data(vm, item) for item in data.items)
    return isinstance(data, SymbolicNumber) and vm.depends_on_data(data)


def _tensor_of_numbers(vm: Interpreter, data: Value, named: Kwargs) -> Value:
    """`torch.tensor` of numbers that data tells: what takes no such number is built of what
    does."""
    kinds = set(_kinds(vm, data))
    if not kinds <= {int, float}:  # (the truth of a condition is no number that a graph hands on)
        raise GraphBreakSignal("`tensor` of numbers that data tells, and of others")
    usual = torch.get_default_dtype() if float in kinds else torch.int64
    dtype = named.get("dtype", NONE)
    if is_none(dtype):
        dtype = Constant(usual)
    return inlined(vm, stacked, [data, dtype, named.get("device", NONE)], {})


def new_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.new_tensor(numbers)`."""
    given = args[1] if len(args) > 1 else kwargs.get("data", NONE)
    if set(kwargs) - {"data", "dtype", "device"} or not _is_found_in_data(vm, given):
        return PASS
    assert isinstance(args[0], TensorValue)
    fake = args[0].fake
    named: Kwargs = {"dtype": Constant(fake.dtype), "device": Constant(fake.device)}
    named.update({name: kwargs[name] for name in named if not is_none(kwargs.get(name, NONE))})
    return _tensor_of_numbers(vm, given, named)


def _copied(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """Interpreted: `torch.tensor(tensor)`."""
    return data.detach().to(device=device, dtype=dtype, copy=True)


def _tensor_of_parts(vm: Interpreter, data: Value, dtype: Value) -> Value:
    """`torch.tensor` of lists with tensors of no dimension in them."""
    parts = list(_dtypes(vm, data))
    widest = functools.reduce(torch.promote_types, parts)
    kind = vm.as_python(dtype) or widest
    too_large = kind is torch.float16 and not all(part.is_floating_point for part in parts)
    if torch.promote_types(widest, kind) is not kind or too_large:
        raise GraphBreakSignal(f"`tensor` of {widest} tensors in {kind}, which may not hold them")
    return inlined(vm, stacked, [data, Constant(kind)], {})


def _dtypes(vm: Interpreter, data: Value) -> Iterator[torch.dtype]:
    if isinstance(data, (ListValue, TupleValue)):
        for item in vm.iterate(data):
            yield from _dtypes(vm, item)
    elif isinstance(data, TensorValue):
        if data.fake.dim() or data.fake.device != torch.get_default_device():
            raise GraphBreakSignal("`tensor` of tensors with dimensions, or of another device")
        yield data.fake.dtype
    else:
        yield _DTYPE_OF.get(data.python_type()) or torch.get_default_dtype()


_DTYPE_OF = {bool: torch.bool, int: torch.int64}


def stacked(data: Any, dtype: Any, device: Any = None) -> Any:
    """Interpreted: the tensor of numbers and of tensors in lists within lists."""
    if isinstance(data, (list, tuple)):
        return torch.stack([stacked(part, dtype, device) for part in data])
    if isinstance(data, torch.Tensor):
        return data.detach().to(dtype)
    return torch.full((), data, dtype=dtype, device=device)


def as_array(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.asarray(data)` of NumPy's scalars."""
    data = args[0] if args else kwargs.get("obj", NONE)
    named = with_dtype_of_scalars(vm, data, kwargs)
    if named is kwargs:
        return PASS
    return vm.record("call_function", torch.asarray, args, named)


def shape_as_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch._shape_as_tensor(x)`."""
    assert isinstance(args[0], TensorValue)
    sizes = ListValue([vm.constant(size) for size in args[0].sizes])
    options: Kwargs = {"dtype": Constant(torch.int64), "device": Constant("cpu")}
    return vm.call(Constant(torch.tensor), [sizes], options)


def legacy_class(cls: Any) -> Handler:
    """`torch.FloatTensor(...)`, `torch.Tensor(...)`: of sizes, or of numbers of that kind."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        default = cls is torch.Tensor
        dtype = torch.get_default_dtype() if default else cls.dtype
        if kwargs or torch.get_default_device().type != "cpu":
            raise GraphBreakSignal(f"creation of a {cls.__name__} with options, or not on a CPU")
        options: Kwargs = {"dtype": Constant(dtype), "device": Constant("cpu")}
        only = args[0] if len(args) == 1 else None
        is_size = isinstance(only, TupleValue) and only.cls is torch.Size
        if is_size or all(arg.python_type() is int for arg in args):
            sizes: Args = args if args else [TupleValue([Constant(0)])]
            return vm.call(Constant(torch.empty), sizes, options)
        kinds = set(_kinds(vm, only)) if isinstance(only, (ListValue, TupleValue)) else {None}
        allowed: set[type] = {bool} if dtype is torch.bool else {bool, int}
        if dtype.is_floating_point:
            allowed.add(float)
        if not kinds <= allowed:
            raise GraphBreakSignal(f"creation of a {cls.__name__} of anything but numbers")
        return vm.call(Constant(torch.tensor), args, options)

    return handler


def _kinds(vm: Interpreter, data: Value) -> Iterator[type]:
    if isinstance(data, (ListValue, TupleValue)):
        for item in vm.iterate(data):
            yield from _kinds(vm, item)
    elif isinstance(data, Value):
        yield data.python_type()


def tensor_type(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.type(torch.HalfTensor)`: a graph's text has names for these classes."""
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if not isinstance(wanted, Constant) or not isinstance(wanted.value, type):
        return PASS
    if wanted.value not in _LEGACY:
        return PASS
    name = Constant(f"torch.{wanted.value.__name__}")
    others = {key: value for key, value in kwargs.items() if key != "dtype"}
    return vm.record("call_method", "type", [args[0], name, *args[2:]], others)


def new_result(vm: Interpreter, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    """`torch.return_types.max(items)` and its like."""
    items = list(vm.iterate(args[0])) if len(args) == 1 and not kwargs else []
    if len(items) != cls.n_sequence_fields:
        raise GraphBreakSignal(f"creation of a {cls.__name__} of unusual parts")
    return TupleValue(items, cls)


def of_numbers(fn: Callable[..., Any]) -> Handler:
    """A function of tensors that is also called with nothing but numbers."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not args or not all(isinstance(arg, (Constant, SymbolicNumber)) for arg in args):
            return PASS
        if isinstance(kwargs.get("out"), TensorValue):
            first = vm.call(Constant(torch.tensor), [Constant(vm.as_python(args[0]))], {})
            return vm.call(Constant(fn), [first, *args[1:]], kwargs)
        symbols = [arg.symbolic() if isinstance(arg, Constant) else arg for arg in args]
        if any(symbols) and not kwargs and fn is not torch.remainder:  # (which takes no two)
            numbers = [known or arg for known, arg in zip(symbols, args, strict=True)]
            first = vm.call(Constant(torch.tensor), [numbers[0]], {})
            return vm.record("call_function", fn, [first, *numbers[1:]], {})
        real_kwargs = {name: vm.as_python(arg) for name, arg in kwargs.items()}
        try:
            real = fn(*[vm.as_python(arg) for arg in args], **real_kwargs)
        except (TypeError, RuntimeError) as error:
            vm.raise_real(error)
        options: Kwargs = {"dtype": Constant(real.dtype)}
        return vm.record("call_function", torch.tensor, [Constant(real.item())], options)

    return handler


_OF_NUMBERS: tuple[Any, ...] = (
    torch.div, torch.floor_divide, torch.true_divide, torch.remainder, torch.add, torch.sub,
    torch.mul,
)  # fmt: skip

# Whose overload packets give tensors of numbers, too.
_OF_NUMBERS_IN_ATEN: tuple[Any, ...] = (
    torch.div, torch.floor_divide, torch.add, torch.sub, torch.mul,
)  # fmt: skip

_LEGACY: tuple[Any, ...] = (
    torch.Tensor, torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor,
    torch.LongTensor, torch.IntTensor, torch.ShortTensor, torch.CharTensor, torch.ByteTensor,
    torch.BoolTensor,
)  # fmt: skip

HANDLERS: dict[Any, Handler] = {
    torch.tensor: make_tensor,
    torch.asarray: as_array,
    torch._shape_as_tensor: shape_as_tensor,
    torch.Tensor.type: tensor_type,
    torch.Tensor.new_tensor: new_tensor,
    **{cls: legacy_class(cls) for cls in _LEGACY},
    **{fn: of_numbers(fn) for fn in _OF_NUMBERS},
    **{getattr(torch.ops.aten, fn.__name__): of_numbers(fn) for fn in _OF_NUMBERS_IN_ATEN},
}
NEW_HANDLERS: dict[Any, Any] = {
    cls: new_result for cls in vars(torch.return_types).values() if isinstance(cls, type)
}
