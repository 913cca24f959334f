"""NumPy arrays and functions as torch code.

An array is a tensor of the graph (`ArrayValue`). A mapped function runs as its twin in
`numpy_on_tensors`; what dtype, shape and kind its result has is asked of NumPy itself, on arrays of
ones. Nothing here needs NumPy to be installed: without it the tables are empty.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from dovetail_capture.interpreter.library import numpy_on_tensors as twins
from dovetail_capture.interpreter.library.handlers import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.library.tensor_creation import inlined, stacked
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.arrays import ArrayValue, check_dtype
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.functions import IteratorValue
from dovetail_capture.interpreter.values.tensors import TensorValue

try:
    import numpy as np
except ImportError:  # torch works without it, and so do we
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_HINT = "write it with torch functions, or do it outside of the compiled function"
_MOST_ELEMENTS = 1 << 24  # arrays of ones are made to ask NumPy: not of giants


def _torch_dtype(dtype: Any) -> torch.dtype:
    try:
        return check_dtype(torch.from_numpy(np.empty((), dtype)).dtype)
    except TypeError as error:
        raise GraphBreakSignal(f"a numpy array of dtype {dtype}", _HINT) from error


def _numpy_dtype(dtype: torch.dtype) -> Any:
    try:
        return torch.empty((), dtype=check_dtype(dtype)).numpy().dtype
    except TypeError as error:
        raise GraphBreakSignal(f"a numpy array of {dtype}", _HINT) from error


def dtype_of(value: ArrayValue) -> Any:
    """NumPy's dtype of an array."""
    return _numpy_dtype(value.tensor.fake.dtype)


def sample(value: ArrayValue) -> Any:
    """An array of ones like the one that the value stands for."""
    shape = tuple(int(size) for size in value.tensor.sizes)
    dtype = dtype_of(value)
    if value.is_scalar:
        return dtype.type(1)
    found = np.ones(shape, dtype)
    if found.size > _MOST_ELEMENTS:
        raise GraphBreakSignal(f"a numpy array of {found.size} elements", _HINT)
    return found


def _known(vm: Interpreter, value: Value) -> Any:
    """The Python object, with arrays of ones for arrays."""
    if isinstance(value, ArrayValue):
        return sample(value)
    if isinstance(value, TensorValue):
        return torch.from_numpy(np.asarray(sample(ArrayValue(value, np.ndarray))))
    if isinstance(value, (TupleValue, ListValue)):
        return value.cls([_known(vm, item) for item in vm.iterate(value)])
    real = vm.as_python(value)
    if real is UNKNOWN:
        raise GraphBreakSignal(f"a numpy function called with {value.describe()}", _HINT)
    return real


def _holds_array(vm: Interpreter, value: Value) -> bool:
    if isinstance(value, (TupleValue, ListValue)):
        return any(_holds_array(vm, item) for item in vm.iterate(value))
    return isinstance(value, ArrayValue)


def _ask(vm: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """What `fn` gives for arrays of ones, or its exception raised in the program. Whether an index
    is one that there is depends on the number: Python is to tell."""
    known = [_known(vm, arg) for arg in args]
    named = {name: _known(vm, arg) for name, arg in kwargs.items()}
    try:
        with np.errstate(all="ignore"):
            return fn(*known, **named)
    except IndexError as error:
        raise GraphBreakSignal(f"an index of a numpy array: {error}", _HINT) from None
    except Exception as error:
        return vm.raise_real(error)


def _as_tensors(vm: Interpreter, value: Value, dtype: torch.dtype | None) -> Value:
    if isinstance(value, ArrayValue):
        tensor: Value = value.tensor
        if dtype is not None and value.tensor.fake.dtype != dtype:
            tensor = vm.record("call_method", "to", [tensor, Constant(dtype)], {})
        return tensor
    if isinstance(value, (TupleValue, ListValue)):
        return type(value)([_as_tensors(vm, item, dtype) for item in vm.iterate(value)])
    if isinstance(value, Constant) and isinstance(value.value, np.generic):
        return Constant(value.value.item())
    return value


def _result(vm: Interpreter, name: str, tensor: Value, like: Any) -> Value:
    """The array (or scalar) that `tensor` is, which NumPy says is like `like`."""
    if isinstance(like, (tuple, list)) and isinstance(tensor, (TupleValue, ListValue)):
        if len(like) == len(tensor.items):
            pairs = zip(vm.iterate(tensor), like, strict=True)
            found_parts = [_result(vm, name, part, wanted) for part, wanted in pairs]
            made_of = TupleValue if isinstance(like, tuple) else ListValue
            return made_of(found_parts)
    if not isinstance(tensor, TensorValue) or not isinstance(like, (np.ndarray, np.generic)):
        raise GraphBreakSignal(f"the numpy function `{name}` in this form", _HINT)
    if tuple(tensor.sizes) != like.shape:
        raise GraphBreakSignal(f"the numpy function `{name}` in this form", _HINT)
    dtype = _torch_dtype(like.dtype)
    found: Value = tensor
    if tensor.fake.dtype != dtype:
        found = vm.record("call_method", "to", [tensor, Constant(dtype)], {})
    assert isinstance(found, TensorValue)
    return ArrayValue(found, type(like))


def _number_as_tensor(vm: Interpreter, value: Value, dtype: torch.dtype) -> Value:
    if not isinstance(value, Constant) or not isinstance(value.value, (bool, int, float)):
        return value
    full = [TupleValue([]), value]
    return vm.record("call_function", torch.full, full, {"dtype": Constant(dtype)})


def mapped(
    fn: Any,
    twin: Callable[..., Any],
    computes_in_result: bool = True,
    needs_tensors: bool = False,
) -> Handler:
    """A NumPy function that runs as `twin` on tensors. `computes_in_result`: its arguments are
    first brought to the dtype of the result, as NumPy's loops do; truth values tell nothing, then
    it is the arguments' common dtype."""
    try:
        takes = inspect.signature(twin)
    except ValueError:  # a C function of torch: positional only
        takes = inspect.signature(lambda x1, x2=None: None)
    name = getattr(fn, "__name__", str(fn))

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not any(_holds_array(vm, arg) for arg in (*args, *kwargs.values())):
            return PASS  # type: ignore[no-any-return]
        try:
            takes.bind(*args, **kwargs)
        except TypeError as error:
            raise GraphBreakSignal(f"the numpy function `{name}`: {error}", _HINT) from None
        like = _ask(vm, fn, args, kwargs)
        if computes_in_result and any(_is_complex(vm, arg) for arg in args):
            raise GraphBreakSignal(f"the numpy function `{name}` of complex numbers", _HINT)
        dtype = None
        if computes_in_result and isinstance(like, (np.ndarray, np.generic)):
            computed = like.dtype
            if computed == np.bool_:
                numbers = [_known(vm, arg) for arg in args]
                numbers = [
                    n for n in numbers if isinstance(n, (np.ndarray, np.generic, int, float))
                ]
                if not numbers:
                    raise GraphBreakSignal(f"the numpy function `{name}` in this form", _HINT)
                computed = np.result_type(*numbers)
            dtype = _torch_dtype(computed)
            if computed.kind in "iu":
                _check_whole_numbers(name, args, np.iinfo(computed))
        tensors = [_as_tensors(vm, arg, dtype) for arg in args]
        if tensors and (needs_tensors or isinstance(tensors[0], Constant)) and dtype is not None:
            tensors = [_number_as_tensor(vm, arg, dtype) for arg in tensors]
        named = {key: _as_tensors(vm, arg, dtype) for key, arg in kwargs.items() if key != "dtype"}
        _try(vm, name, twin, tensors, named)
        found = vm.call(Constant(twin), tensors, named)
        return _result(vm, name, found, like)

    return handler


def _check_whole_numbers(name: str, args: Args, limits: Any) -> None:
    """Refuse what NumPy and torch do differently with some whole numbers: a zero that divides, a
    negative exponent, a number beyond the dtype that is compared with."""
    second = args[1].value if len(args) > 1 and isinstance(args[1], Constant) else None
    least = {"floor_divide": 1, "remainder": 1, "power": 0}.get(name)
    if least is not None and (second is None or second < least):
        raise GraphBreakSignal(f"the numpy function `{name}` of any whole numbers", _HINT)
    for arg in args:
        number = arg.value if isinstance(arg, Constant) else 0
        if isinstance(number, int) and not limits.min <= number <= limits.max:
            raise GraphBreakSignal(f"`{name}` of {number} and {limits.dtype} numbers", _HINT)


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
        raise GraphBreakSignal(f"the numpy function `{name}`: {error}", _HINT) from None


def made(fn: Any) -> Handler:
    """A function that makes an array of numbers alone: made anew by each call."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], (ArrayValue, TensorValue)) and fn in _CONVERT:
            return _converted(vm, fn, args, kwargs)
        holds = any(_holds_array(vm, arg) for arg in (*args, *kwargs.values()))
        if holds and (fn not in _CONVERT or not set(kwargs) <= {"dtype"}):
            raise GraphBreakSignal(f"`{fn.__name__}` of numpy arrays", _HINT)
        like = _ask(vm, fn, args, kwargs)
        if holds:
            wanted = _torch_dtype(like.dtype)
            parts = [_as_tensors(vm, args[0], wanted), Constant(wanted)]
            return _result(vm, fn.__name__, inlined(vm, stacked, parts, {}), like)
        if like.size > 4096 and not np.all(like == like.flat[0]):
            raise GraphBreakSignal(f"a numpy array of {like.size} different numbers", _HINT)
        dtype: dict[str, Value] = {"dtype": Constant(_torch_dtype(like.dtype))}
        if like.size and np.all(like == like.flat[0]):
            shape = TupleValue([Constant(size) for size in like.shape])
            fill = Constant(like.flat[0].item())
            tensor = vm.record("call_function", torch.full, [shape, fill], dtype)
        elif like.size:
            tensor = vm.record("call_function", torch.tensor, [vm.constant(like.tolist())], dtype)
        else:
            shape = TupleValue([Constant(size) for size in like.shape])
            tensor = vm.record("call_function", torch.zeros, [shape], dtype)
        return _result(vm, fn.__name__, tensor, like)

    return handler


def _converted(vm: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """`np.array(x)` and `np.asarray(x)` of an array or a tensor."""
    if kwargs or len(args) > 1:
        raise GraphBreakSignal(f"`{fn.__name__}` with further arguments", _HINT)
    array = args[0] if isinstance(args[0], ArrayValue) else tensor_numpy(vm, args, {})
    assert isinstance(array, ArrayValue)
    if fn is np.asarray:
        return array
    tensor = vm.record("call_method", "clone", [array.tensor], {})
    assert isinstance(tensor, TensorValue)
    return ArrayValue(tensor, np.ndarray)


# --- between tensors and arrays ------------------------------------------------------------------


def tensor_numpy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.numpy()`: the same memory, seen as an array."""
    tensor = args[0]
    assert isinstance(tensor, TensorValue)
    force = args[1] if len(args) > 1 else kwargs.get("force")
    if isinstance(force, Constant) and len(args) + len(kwargs) == 2:
        if force.value:
            found = inlined(vm, twins.forced, [tensor], {})
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
    _numpy_dtype(fake.dtype)
    return ArrayValue(tensor, np.ndarray)


def tensor_of(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.from_numpy(array)`, `torch.as_tensor(array)`: the same memory."""
    if not args or not isinstance(args[0], ArrayValue):
        return PASS  # type: ignore[no-any-return]
    if len(args) > 1 or args[0].is_scalar or not set(kwargs) <= {"dtype"}:
        raise GraphBreakSignal("a conversion of a numpy array with further arguments", _HINT)
    if kwargs:
        return vm.call(vm.get_attr(args[0].tensor, "to"), [], kwargs)
    return args[0].tensor


def tolist(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`array.tolist()`."""
    if not isinstance(args[0], ArrayValue) or args[0].tensor.fake.dtype is torch.bool:
        return PASS  # type: ignore[no-any-return]
    return vm.call(vm.get_attr(args[0].tensor, "tolist"), [], {})


def astype(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`array.astype(dtype)`."""
    array = args[0]
    if not isinstance(array, ArrayValue):  # of a subclass
        return PASS  # type: ignore[no-any-return]
    like = _ask(vm, lambda a, *rest, **named: a.astype(*rest, **named), args, kwargs)
    dtype = Constant(_torch_dtype(like.dtype))
    tensor = vm.record("call_method", "to", [array.tensor, dtype], {"copy": Constant(True)})
    return _result(vm, "astype", tensor, like)


def array_attr(vm: Interpreter, obj: ArrayValue, name: str) -> Value | None:
    """An attribute that is no method; None for any other."""
    if name == "T":
        return vm.call(Constant(np.transpose), [obj], {})
    if name == "imag" and not obj.tensor.fake.dtype.is_complex and not obj.is_scalar:
        return vm.call(Constant(np.zeros_like), [obj], {})
    if name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"):
        found = getattr(sample(obj), name)
        if name in ("strides", "nbytes") and not obj.tensor.fake.is_contiguous():
            raise GraphBreakSignal(f"the `{name}` of a numpy array that is not contiguous", _HINT)
        return vm.constant(found)
    return None


# --- operators -----------------------------------------------------------------------------------


def binary(vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool) -> Value:
    """`left <symbol> right` where one is an array."""
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        if inplace:
            raise GraphBreakSignal(f"`{symbol}=` of a tensor and a numpy array", _HINT)
        return _with_tensor(vm, symbol, left, right)
    if inplace and isinstance(left, ArrayValue) and not left.is_scalar:
        _refuse_input(left)
        total = vm.call(Constant(UFUNC_OF[symbol]), [left, right], {})
        assert isinstance(total, ArrayValue)
        fakes = left.tensor.fake, total.tensor.fake
        if fakes[0].dtype != fakes[1].dtype or tuple(fakes[0]._sizes) != tuple(fakes[1]._sizes):
            raise GraphBreakSignal(
                f"`{symbol}=` that changes a numpy array's dtype or shape", _HINT
            )
        vm.record("call_method", "copy_", [left.tensor, total.tensor], {})
        return left
    return vm.call(Constant(UFUNC_OF[symbol]), [left, right], {})


def _with_tensor(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """An operator between a tensor and an array, which NumPy computes. Whether that gives a
    tensor or an array is asked of both libraries."""
    sides = [
        tensor_numpy(vm, [side], {}) if isinstance(side, TensorValue) else side
        for side in (left, right)
    ]
    like = _ask(vm, OPERATORS[symbol], [left, right], {})
    found = vm.call(Constant(UFUNC_OF[symbol]), sides, {})
    if not isinstance(found, ArrayValue):
        raise GraphBreakSignal(f"`{symbol}` of a tensor and a numpy array", _HINT)
    if not isinstance(like, torch.Tensor):
        return _result(vm, symbol, found.tensor, like)
    if like.dtype != found.tensor.fake.dtype or tuple(like.shape) != tuple(found.tensor.sizes):
        raise GraphBreakSignal(f"`{symbol}` of a tensor and a numpy array", _HINT)
    return found.tensor


def compare(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left <symbol> right` where one is an array."""
    return binary(vm, symbol, left, right, False)


def unary(vm: Interpreter, symbol: str, operand: Value) -> Value:
    """`-a`, `+a`, `~a`."""
    names = {"-": "negative", "+": "positive", "~": "invert"}
    return vm.call(Constant(getattr(np, names[symbol])), [operand], {})


_VIEWS = frozenset(
    {"getitem", "permute", "reshape", "squeeze", "unsqueeze", "swapaxes", "moveaxis",
     "broadcast_to"}
)  # fmt: skip


def _refuse_input(array: ArrayValue) -> None:
    """No write to an array that was given, or to a view of one: another array of the caller's may
    share its memory, and no guard tells."""
    node = array.tensor.node
    while getattr(node.target, "__name__", node.target) in _VIEWS and node.args:
        assert isinstance(node.args[0], Node)
        node = node.args[0]
    if array.source is not None or (node.op == "placeholder" and "_as_tensor" in node.name):
        raise GraphBreakSignal(
            "a write to a numpy array from outside of the graph", "copy it first"
        )


def _as_index(vm: Interpreter, key: Value) -> Value:
    """What torch takes for an index: of bytes, it would make a mask."""
    if isinstance(key, ArrayValue):
        return _as_tensors(vm, key, None if key.tensor.fake.dtype == torch.bool else torch.int64)
    if isinstance(key, TupleValue):
        return TupleValue([_as_index(vm, item) for item in vm.iterate(key)])
    return _as_tensors(vm, key, None)


def getitem(vm: Interpreter, obj: ArrayValue, key: Value) -> Value:
    """`array[key]`."""
    like = _ask(vm, lambda a, k: a[k], [obj, key], {})
    found = vm.getitem(obj.tensor, _as_index(vm, key))
    return _result(vm, "__getitem__", found, like)


def setitem(vm: Interpreter, obj: ArrayValue, key: Value, value: Value) -> None:
    """`array[key] = value`."""
    _refuse_input(obj)

    def assign(array: Any, index: Any, item: Any) -> None:
        array[index] = item

    _ask(vm, assign, [obj, key, value], {})
    dtype = obj.tensor.fake.dtype
    parts = [obj.tensor, _as_index(vm, key), _as_tensors(vm, value, dtype)]
    vm.call(Constant(_set), parts, {})


def _set(tensor: Any, key: Any, value: Any) -> None:
    tensor[key] = value


def iterate(vm: Interpreter, obj: ArrayValue) -> Value:
    """`iter(array)`."""
    if obj.is_scalar or not obj.tensor.fake.dim():
        vm.raise_error(TypeError, "iteration over a 0-d array")

    def rows() -> Iterator[Value]:
        for index in range(int(obj.tensor.sizes[0])):
            yield getitem(vm, obj, Constant(index))

    return IteratorValue(rows(), type(iter(np.zeros(1))), True)


# --- tables --------------------------------------------------------------------------------------

UFUNC_OF: dict[str, Any] = {}
HANDLERS: dict[Any, Handler] = {}
_CONVERT: set[Any] = set()

_SAME_NAMES = (
    "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "square", "sin", "cos", "tan",
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc",
    "reciprocal", "negative", "positive", "absolute", "maximum", "minimum", "add", "subtract",
    "multiply", "true_divide", "floor_divide", "power", "greater", "greater_equal", "less",
    "less_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_xor",
    "logical_not", "isnan", "isinf", "isfinite", "matmul", "arctan2", "hypot", "exp2",
)  # fmt: skip
_TORCH_NAMES = {
    "power": "pow", "equal": "eq", "not_equal": "ne", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arctan2": "atan2", "absolute": "abs",
}  # fmt: skip
_NEED_TENSORS = (
    "maximum", "minimum", "hypot", "arctan2", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
_SYMBOLS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "true_divide", "//": "floor_divide",
    "%": "remainder", "**": "power", "@": "matmul", "&": "bitwise_and", "|": "bitwise_or",
    "^": "bitwise_xor", "<<": "left_shift", ">>": "right_shift", "<": "less", "<=": "less_equal",
    "==": "equal", "!=": "not_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "@": operator.matmul,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# name -> (twin, does it compute in the result's dtype); None: the same as the function of the name.
_FUNCTIONS: dict[str, tuple[Any, bool]] = {
    "sum": (twins.sum_, True), "mean": (twins.mean, True), "std": (twins.std, True),
    "var": (twins.var, True), "prod": (twins.prod, True), "max": (twins.max_, True),
    "min": (twins.min_, True), "argmax": (twins.argmax, False), "argmin": (twins.argmin, False),
    "all": (twins.all_, False), "any": (twins.any_, False), "cumsum": (twins.cumsum, True),
    "cumprod": (twins.cumprod, True), "transpose": (twins.transpose, False),
    "reshape": (twins.reshape, False), "ravel": (twins.ravel, False), "copy": (twins.copy, False),
    "squeeze": (twins.squeeze, False), "expand_dims": (twins.expand_dims, False),
    "swapaxes": (twins.swapaxes, False), "moveaxis": (twins.moveaxis, False),
    "concatenate": (twins.concatenate, True), "stack": (twins.stack, True),
    "vstack": (twins.vstack, True), "hstack": (twins.hstack, True), "clip": (twins.clip, True),
    "dot": (twins.dot, True), "outer": (twins.outer, True), "einsum": (twins.einsum, True),
    "tile": (twins.tile, False), "flip": (twins.flip, False), "roll": (twins.roll, False),
    "tril": (twins.tril, False), "triu": (twins.triu, False), "sort": (twins.sort, False),
    "broadcast_to": (twins.broadcast_to, False), "zeros_like": (twins.zeros_like, False),
    "empty_like": (twins.zeros_like, False),
    "ones_like": (twins.ones_like, False), "full_like": (twins.full_like, True),
    "trace": (twins.trace, True), "diff": (twins.diff, True), "amax": (twins.max_, True),
    "amin": (twins.min_, True), "meshgrid": (twins.meshgrid, False),
    "take_along_axis": (twins.take_along_axis, False), "repeat": (twins.repeat, False),
    "split": (twins.split, False), "fliplr": (twins.fliplr, False),
    "flipud": (twins.flipud, False), "rot90": (twins.rot90, False), "diag": (twins.diag, False),
    "atleast_1d": (twins.atleast_1d, False), "atleast_2d": (twins.atleast_2d, False),
    "column_stack": (twins.column_stack, True), "dstack": (twins.dstack, True),
    "nan_to_num": (twins.nan_to_num, True), "kron": (twins.kron, True),
    "count_nonzero": (twins.count_nonzero, False), "inner": (twins.inner, True),
    "ptp": (twins.ptp, True),
}  # fmt: skip
_METHODS: dict[str, tuple[Any, bool]] = {
    **{name: _FUNCTIONS[name] for name in (
        "sum", "mean", "std", "var", "prod", "max", "min", "argmax", "argmin", "all", "any",
        "cumsum", "cumprod", "ravel", "copy", "squeeze", "swapaxes", "dot", "trace",
    )},
    "transpose": (twins.transpose_method, False), "reshape": (twins.reshape_method, False),
    "repeat": (twins.repeat, False),
    "clip": (twins.clip_method, True), "flatten": (twins.flatten, False),
}  # fmt: skip


def _where(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`np.where(condition, x, y)`: the condition keeps its dtype."""
    if not any(isinstance(arg, ArrayValue) for arg in args):
        return PASS  # type: ignore[no-any-return]
    if len(args) != 3 or kwargs:
        raise GraphBreakSignal("`where` whose result's shape depends on data", _HINT)
    like = _ask(vm, np.where, args, kwargs)
    condition = _as_tensors(vm, args[0], torch.bool)
    parts = [_as_tensors(vm, arg, _torch_dtype(like.dtype)) for arg in args[1:]]
    return _result(vm, "where", vm.call(Constant(torch.where), [condition, *parts], {}), like)


def _about_dtypes(fn: Any) -> Handler:
    """A question about dtypes: run at capture."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if any(_holds_array(vm, arg) for arg in (*args, *kwargs.values())):
            return PASS  # type: ignore[no-any-return]
        return vm.fold(fn, args, kwargs)

    return handler


def _fill_tables() -> None:
    for name in _SAME_NAMES:
        twin = getattr(torch, _TORCH_NAMES.get(name, name))
        needs = name in _NEED_TENSORS
        HANDLERS[getattr(np, name)] = mapped(getattr(np, name), twin, needs_tensors=needs)
    HANDLERS[np.sign] = mapped(np.sign, twins.sign)
    HANDLERS[np.remainder] = mapped(np.remainder, twins.remainder)
    HANDLERS[np.rint] = mapped(np.rint, torch.round)
    for symbol, name in (("&", "and"), ("|", "or"), ("^", "xor")):
        ufunc = getattr(np, _SYMBOLS[symbol])
        HANDLERS[ufunc] = mapped(ufunc, getattr(torch, f"bitwise_{name}"))
    HANDLERS[np.invert] = mapped(np.invert, torch.bitwise_not)
    UFUNC_OF.update({symbol: getattr(np, name) for symbol, name in _SYMBOLS.items()})
    for name, (twin, computes) in _FUNCTIONS.items():
        HANDLERS[getattr(np, name)] = mapped(getattr(np, name), twin, computes)
    for name, (twin, computes) in _METHODS.items():
        HANDLERS[getattr(np.ndarray, name)] = mapped(getattr(np.ndarray, name), twin, computes)
    _CONVERT.update((np.array, np.asarray))
    HANDLERS[np.linalg.norm] = mapped(np.linalg.norm, twins.norm)
    HANDLERS[np.where] = _where
    for fn in (np.zeros, np.ones, np.full, np.arange, np.linspace, np.eye, np.array, np.asarray):
        HANDLERS[fn] = made(fn)
    HANDLERS[np.empty] = made(np.zeros)  # whatever is in it
    HANDLERS[np.ndarray.astype] = astype
    HANDLERS[torch.Tensor.numpy] = tensor_numpy
    HANDLERS[np.ndarray.tolist] = tolist
    for question in (np.issubdtype, np.dtype, np.result_type, np.can_cast):
        HANDLERS[question] = _about_dtypes(question)
    HANDLERS[torch.from_numpy] = tensor_of
    HANDLERS[torch.as_tensor] = tensor_of


if np is not None:
    _fill_tables()
