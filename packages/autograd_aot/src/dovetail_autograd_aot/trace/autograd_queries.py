"""What autograd says of a traced tensor, also where it says so by an error."""

from __future__ import annotations

import functools
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction


def grad_flags(tensor: FakeTensor) -> tuple[bool, bool]:
    """`requires_grad` and `is_leaf`. A view that autograd lost track of (made under no_grad, or one
    of several, its base written to after) says nothing but errors: it is taken for one without
    gradient."""
    try:
        return tensor.requires_grad, tensor.is_leaf
    except RuntimeError:
        return False, True


def why_lost(tensor: FakeTensor) -> str:
    """The error of a view that autograd lost track of, or nothing."""
    try:
        tensor.grad_fn  # noqa: B018 (it is asked whether it can be asked)
    except RuntimeError as error:
        return str(error)
    return ""


def grad_fn_of(tensor: torch.Tensor) -> Any:
    """`tensor.grad_fn`; None of a view that autograd lost track of."""
    try:
        if type(tensor) is FakeTensor:
            return tensor.grad_fn
        with torch._C.DisableTorchFunctionSubclass():  # its class may have a method for this
            return tensor.grad_fn
    except RuntimeError:
        return None


def has_history(value: Any) -> bool:
    """Whether it is a tensor that autograd may be asked for a gradient of."""
    try:
        return isinstance(value, torch.Tensor) and value.requires_grad
    except RuntimeError:  # it lost track of it
        return False


def one_of_several(tensor: FakeTensor) -> bool:
    """Whether it is a view that an operator made together with others (split, unbind)."""
    several = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
    return tensor._is_view() and bool(torch._C._autograd._get_creation_meta(tensor) == several)


def saves_nothing(node: Any) -> bool:
    """Whether a node of autograd's graph has nothing to save for its backward."""
    kind: Any = type(node)
    return not issubclass(kind, BackwardCFunction) and _kind_saves_nothing(kind)


@functools.cache
def _kind_saves_nothing(kind: Any) -> bool:
    of_others = kind.__name__ == "CopySlices"  # (the operator that wrote saves)
    return not of_others and not any(name.startswith("_raw_saved") for name in dir(kind))


def made_by_user(tensor: FakeTensor) -> bool:
    """Whether it is a view that an `autograd.Function` of the user's made, or a view of one."""
    in_function = torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION
    return tensor._is_view() and bool(torch._C._autograd._get_creation_meta(tensor) == in_function)


def seen_base(tensor: torch.Tensor) -> Any:
    """What autograd takes for the base of views of a tensor."""
    return tensor if tensor._base is None else tensor._base
