"""Operations that stop a GPU for what their arguments hold: indices that are no places, say.

A kernel cannot raise, and after such a fault the process cannot use the GPU at all. A program that
checks its arguments before never comes to that; a graph whose checks are read at its end would. So
the graph gives such operations harmless arguments where a check does not hold.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Container
from typing import Any

import torch
from dovetail_prims.ops.catalog import POINTWISE

# Functions that take whole numbers for what they are. All others may take them for places: of such
# that are none a GPU's kernel stops the process from using the GPU at all.
_HARMLESS = frozenset(card.name for card in POINTWISE) | frozenset(
    {"truediv", "floordiv", "mod", "and_", "or_", "xor", "invert", "sum", "prod", "amax", "amin",
     "max", "min", "all", "any", "to", "long", "int", "float", "double", "half", "bfloat16", "bool",
     "type_as", "view", "reshape", "unsqueeze", "squeeze", "expand", "expand_as",
     "broadcast_tensors", "broadcast_to", "clone", "contiguous", "detach", "cat", "stack",
     "transpose", "permute", "flatten", "zeros_like", "ones_like", "_is_all_true", "cumsum",
     "argmax", "argmin", "sort", "topk", "is_floating_point", "getattr", "select", "narrow",
     "chunk", "split", "unbind", "movedim", "t", "repeat", "flip", "numel", "diff", "mean", "norm",
     "eq_", "empty_like", "new_zeros", "new_ones"}
)  # fmt: skip
# Which arguments (by place and name) of well-known functions must be places, or probabilities.
_ARGUMENTS: dict[str, tuple[tuple[int, str], ...]] = {
    "gather": ((2, "index"),), "take_along_dim": ((1, "indices"),), "index_select": ((2, "index"),),
    "embedding": ((0, "input"),), "nll_loss": ((1, "target"),), "cross_entropy": ((1, "target"),),
    "scatter": ((2, "index"),), "scatter_": ((2, "index"),), "scatter_add": ((2, "index"),),
    "scatter_add_": ((2, "index"),), "index_add": ((2, "index"),), "index_add_": ((2, "index"),),
    "getitem": ((1, "key"),), "multinomial": ((0, "input"),), "bernoulli": ((0, "input"),),
    "binary_cross_entropy": ((0, "input"), (1, "target")),
}  # fmt: skip
_PROBABILITIES = frozenset({"multinomial", "bernoulli", "binary_cross_entropy"})


def places_of(name: str) -> tuple[tuple[int, str], ...]:
    """The arguments of a function, by place and name, that it may not be given otherwise."""
    return _ARGUMENTS.get(name, ())


def harmless_number(name: str, tensor: Any) -> int | None:
    """What such an argument may be anywhere: the place 0, the probability 1. None if it may be
    what it is (a mask, say)."""
    if name in _PROBABILITIES:
        return 1 if tensor.dtype.is_floating_point else None
    return 0 if _is_whole(tensor.dtype) else None


def may_fault(name: str, arguments: list[Any], safe: Container[int]) -> bool:
    """May an operation stop the GPU for what its arguments hold? (On a CPU it raises.) Those whose
    ids are in `safe` are harmless."""
    if name in _HARMLESS or name.strip("_") in _HARMLESS:
        return False
    if name == "getitem":  # of what it may be a view is no place
        arguments = arguments[1:]
    tensors: list[Any] = [a for a in _flat(arguments) if isinstance(a, torch.Tensor)]
    tensors = [t for t in tensors if t.device.type != "cpu" and id(t) not in safe]
    return bool(tensors) and (
        (name.strip("_") in _PROBABILITIES and any(t.dtype.is_floating_point for t in tensors))
        or any(_is_whole(tensor.dtype) for tensor in tensors)
    )


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return functools.reduce(operator.iadd, map(_flat, value), [])
    return [value]
