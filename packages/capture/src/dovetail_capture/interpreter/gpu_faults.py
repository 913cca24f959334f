"""Operations that stop a GPU for what their arguments hold: indices that are no places, say.

A kernel cannot raise, and after such a fault the process cannot use the GPU at all. A program that
checks its arguments before never comes to that; a graph whose checks are read at its end would.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

# Functions that take whole numbers for what they are. All others may take them for places: of such
# that are none a GPU's kernel stops the process from using the GPU at all.
_HARMLESS = frozenset(
    {"add", "sub", "mul", "div", "truediv", "floordiv", "mod", "neg", "eq", "ne", "lt", "le", "gt",
     "ge", "and_", "or_", "xor", "invert", "logical_and", "logical_or", "logical_not", "where",
     "sum", "prod", "amax", "amin", "max", "min", "all", "any", "to", "long", "int", "float",
     "double", "half", "bfloat16", "bool", "type_as", "view", "reshape", "unsqueeze", "squeeze",
     "expand", "expand_as", "broadcast_tensors", "broadcast_to", "clone", "contiguous", "detach",
     "cat", "stack", "transpose", "permute", "flatten", "clamp", "abs", "isfinite", "isnan",
     "zeros_like", "ones_like", "_is_all_true", "cumsum", "argmax", "argmin", "sort", "topk",
     "maximum", "minimum", "pow", "sign", "lgamma", "exp", "log", "xlogy", "is_floating_point"}
)  # fmt: skip
_MAY_FAULT = frozenset({"multinomial", "bernoulli", "bernoulli_", "binary_cross_entropy"})


def may_fault(name: str, arguments: list[Any]) -> bool:
    """May an operation stop the GPU for what its arguments hold? (On a CPU it raises.)"""
    tensors: list[Any] = [a for a in _flat(arguments) if isinstance(a, torch.Tensor)]
    tensors = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if not tensors or name in _HARMLESS or name.strip("_") in _HARMLESS:
        return False
    if name in _MAY_FAULT:
        return True
    return any(_is_whole(tensor.dtype) for tensor in tensors)


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return functools.reduce(operator.iadd, map(_flat, value), [])
    return [value]
