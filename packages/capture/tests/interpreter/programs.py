"""How the interpreter's tests compare a program run by Python with the same program captured."""

from __future__ import annotations

import collections
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dovetail_capture.api import optimize
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent.parent))
from construct_cases import CountingBackend  # its DEBUG switch checks every step's stack depth


def flat(value: Any) -> list[Any]:
    return pytree.tree_leaves(value)


def same(left: Any, right: Any) -> bool:
    """Equal in type and content, tensors bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.stride() == right.stride()
            and left.requires_grad == right.requires_grad
            and torch.equal(left, right)
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if hasattr(left, "__dict__") and not callable(left):
        return same(vars(left), vars(right))
    if hasattr(type(left), "__slots__") and not isinstance(left, torch.device):
        names = type(left).__slots__
        missing = object()
        return all(
            getattr(left, name, missing) is getattr(right, name, missing)
            or same(getattr(left, name, missing), getattr(right, name, missing))
            for name in names
        )
    return bool(left == right)


def check(
    function: Callable[..., Any],
    *args: Any,
    graphs: int = 1,
    fullgraph: bool = True,
    calls: int = 2,
) -> list[torch.fx.GraphModule]:
    """`function(*args)` eager and captured, `calls` times each: results and arguments agree."""
    backend = CountingBackend()
    captured = optimize(function, backend, fullgraph=fullgraph)
    eager_args, captured_args = copy.deepcopy(args), copy.deepcopy(args)
    for _ in range(calls):
        torch.manual_seed(0)
        expected = function(*eager_args)
        torch.manual_seed(0)
        actual = captured(*captured_args)
        assert same(expected, actual), (expected, actual)
        assert same(list(eager_args), list(captured_args)), (eager_args, captured_args)
    assert len(backend.graphs) == graphs, [gm.code for gm in backend.graphs]
    return backend.graphs
