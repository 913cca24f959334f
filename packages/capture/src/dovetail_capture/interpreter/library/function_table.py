"""All that the interpreter knows of library functions, in one table."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import torch

from dovetail_capture.interpreter.library.builtins import (
    builtin_functions,
    conversions,
    iteration_functions,
    local_classes,
    type_functions,
)
from dovetail_capture.interpreter.library.containers import (
    dict_methods,
    list_methods,
    sized_methods,
)
from dovetail_capture.interpreter.library.standard_library import (
    c_objects,
    copying,
    itertools_functions,
    polyfills,
    stdlib,
)
from dovetail_capture.interpreter.library.torch_functions import (
    data_dependence,
    function_modes,
    made_tensors,
    module_forwards,
    own_functions,
    random_draws,
    settings,
    tensor_attributes,
    tensor_creation,
    tensor_hooks,
    torch_functions,
    torch_modes,
    torch_polyfills,
)
from dovetail_capture.interpreter.machine.machine import Extension, Handler, Substitute
from dovetail_capture.interpreter.protocols import class_attributes
from dovetail_capture.interpreter.values.base import Value

_MODULES: tuple[Any, ...] = (
    list_methods, dict_methods, sized_methods, conversions, type_functions,
    builtin_functions, iteration_functions, stdlib, c_objects, itertools_functions,
    torch_functions, torch_modes, tensor_attributes, settings, own_functions, made_tensors,
    tensor_creation, polyfills, torch_polyfills, tensor_hooks, random_draws, copying,
    data_dependence, local_classes, function_modes,
)  # fmt: skip
HANDLERS: dict[Any, Handler] = {
    function: handler for module in _MODULES for function, handler in module.HANDLERS.items()
}
as_subclass = own_functions.as_subclass
check_input_stays = own_functions.check_input_stays
through_modes = function_modes.through_modes
ask_objects = own_functions.ask_objects
to_text = conversions.to_text
is_instance = type_functions.is_instance
tensor_property = tensor_attributes.tensor_property
require_truth = data_dependence.require_truth
mapping_of = dict_methods.mapping_of
set_class_attr = local_classes.set_class_attr
CODE_HANDLERS: dict[CodeType, Callable[..., Value | None]] = {
    **polyfills.CODE_HANDLERS,
    **module_forwards.CODE_HANDLERS,
}
# By module and qualified name: of what is never imported or named here.
NAMED_HANDLERS: dict[tuple[str, str], Handler] = {**torch_polyfills.BY_NAME}
NEW_HANDLERS = {
    **builtin_functions.NEW_HANDLERS,
    **tensor_creation.NEW_HANDLERS,
    **own_functions.NEW_HANDLERS,
    functools.partial: c_objects.partial_of_class,
}
# Code of functions whose frames are not worth capturing: what calls them is.
WITHOUT_FRAME: set[CodeType] = set()
PURE_CLASSES: frozenset[type] = stdlib.PURE_CLASSES | torch_functions.PURE_CLASSES

# --- operations: functions of torch over tensors, which become nodes of the graph -----------------

_C: Any = torch._C

# Python functions of these modules are recorded whole when all their arguments can be.
_PYTHON_OPERATION_MODULES = frozenset(
    {
        "torch.nn.functional",
        "torch.functional",
        "torch._tensor",
        "torch.nn.init",
        "torch.masked._ops",
    }
)
_NOT_OPERATIONS: set[Any] = {
    torch.Tensor.__iter__, torch.Tensor.__len__, torch.Tensor.__contains__,
    torch.Tensor.__format__, torch.Tensor.__repr__, torch.Tensor.__reduce_ex__,
    torch.Tensor.__deepcopy__, torch.Tensor.__hash__, torch.Tensor.backward,
    torch.Tensor.register_hook, torch.Tensor.share_memory_, torch.Tensor.__setstate__,
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
}  # fmt: skip
_C_OWNERS = (
    _C._VariableFunctions, _C._nn, _C._special, _C._linalg, _C._fft, _C._sparse, _C._nested,
)  # fmt: skip
_OPERATIONS: dict[int, Any] = {}  # those met so far; what is none of torch's is not held


def is_operation(fn: Any) -> bool:
    """Is `fn` a torch function over tensors, to be recorded as a node?"""
    if _OPERATIONS.get(id(fn)) is fn:
        return True
    found = _decide(fn)
    if found and type(fn) is not types.MethodType:
        _OPERATIONS[id(fn)] = fn
    return found


def _decide(fn: Any) -> bool:
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if isinstance(fn, types.FunctionType):
        if fn.__module__ not in _PYTHON_OPERATION_MODULES or fn in _NOT_OPERATIONS:
            return False
        return not fn.__name__.startswith("_") or fn.__module__ == "torch._tensor"
    if isinstance(fn, types.BuiltinFunctionType):
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, type):
            return owner.__name__ == "_VariableFunctionsClass"
        if any(owner is module for module in _C_OWNERS):
            return True
        # What stands beside the operations in `torch` reads or sets what torch is set to.
        return any(getattr(owner, fn.__name__, None) is fn for owner in _C_OWNERS)
    if isinstance(fn, class_attributes.C_METHODS):
        return issubclass(fn.__objclass__, _C.TensorBase) and fn not in _NOT_OPERATIONS
    return False


# --- pure functions -------------------------------------------------------------------------------

_NUMPY_EFFECTS = frozenset({"copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal",
                            "save", "savetxt", "savez", "savez_compressed"})  # fmt: skip
_PURE_TYPES = stdlib.PURE_TYPES + torch_functions.PURE_TYPES

_extensions: list[Extension] = []
_substitutes: dict[int, Substitute] = {}  # by the id of code: equal code is no other's


def install(extensions: Iterable[Extension]) -> None:
    """Add what extensions know to the tables; the package does so once, when it is imported."""
    for extension in extensions:
        _extensions.append(extension)
        HANDLERS.update(extension.handlers)
        CODE_HANDLERS.update(extension.code_handlers)
        NAMED_HANDLERS.update(extension.named_handlers)
        _substitutes.update((id(code), s) for code, s in extension.substitutes.items())
        WITHOUT_FRAME.update(extension.without_frame)


def arrays() -> Any:
    """What operators, subscripts and attributes of NumPy arrays do, as an extension gives it."""
    return next((e.arrays for e in _extensions if e.arrays is not None), None)


def substitute_of(code: CodeType) -> Substitute | None:
    """What runs in place of the function of this code, if anything does."""
    return _substitutes.get(id(code))


def is_pure(fn: Any) -> bool:
    """Is `fn` known to have no effect and to depend on its arguments only?"""
    if isinstance(fn, class_attributes.C_METHODS):
        return issubclass(fn.__objclass__, _PURE_TYPES) or fn in stdlib.PURE_FUNCTIONS
    if type(fn).__name__ == "_ArrayFunctionDispatcher" and type(fn).__module__ == "numpy":
        return fn.__name__ not in _NUMPY_EFFECTS
    if isinstance(fn, types.BuiltinFunctionType):
        if fn in stdlib.PURE_FUNCTIONS or fn.__module__ in stdlib.PURE_MODULES:
            return True
        return isinstance(fn.__self__, _PURE_TYPES)
    try:
        return fn in stdlib.PURE_FUNCTIONS
    except TypeError:
        return False
