"""Which functions of torch are operations over tensors: those become nodes of the graph."""

from __future__ import annotations

import types
from typing import Any

import torch

from dovetail_capture.interpreter.protocols import class_attributes

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
