"""`wrap_numpy`: a function of NumPy arrays as one of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

F = TypeVar("F", bound=Callable[..., Any])


def array_of(tensor: torch.Tensor) -> Any:
    """The tensor's memory as an array. Captured, it stands for the tensor itself, which may be on
    another device and have gradients."""
    return tensor.numpy()


def wrap_numpy(fn: F) -> F:
    """A function of tensors made from one of NumPy arrays, to be compiled.

    Compiled, its NumPy calls are operators of the graph: they run on the tensors' device and have
    gradients. Uncompiled, NumPy itself computes on the tensors' memory.
    """
    try:
        import numpy as np
    except ImportError:
        return fn

    @functools.wraps(fn)
    def wrap(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, array_of, (args, kwargs))
        return pytree.tree_map_only(np.ndarray, torch.as_tensor, fn(*args, **kwargs))

    return wrap  # type: ignore[return-value]
