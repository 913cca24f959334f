"""Operations with tensors that wrap tensors: whom torch asks about them, and when.

Capture interprets what a class's `__torch_function__` makes of a function. The operations that are
left stand in the graph as ones that ask no class again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.wrappers import MakeWrapper, Unasked, is_wrapper, overrides_functions


def wrappers_in(fakes: Iterable[Any]) -> tuple[bool, bool]:
    """Are there tensors that wrap others among these, and such whose class is asked about
    functions?"""
    wraps = asked = False
    for fake in fakes:
        kind = type(fake)
        if kind in (tuple, list):
            found = wrappers_in(fake)
            wraps, asked = wraps or found[0], asked or found[1]
        elif kind is not FakeTensor and isinstance(fake, torch.Tensor) and is_wrapper(fake):
            wraps, asked = True, asked or overrides_functions(kind)
    return wraps, asked


def asking(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, where torch asks classes about functions."""
    enabled: Any = torch._C

    def call(*args: Any, **kwargs: Any) -> Any:
        with enabled._EnableTorchFunction():
            return run(*args, **kwargs)

    return call


def unasked(kind: str, target: Any) -> tuple[str, Any]:
    """What a node calls whose classes were asked when it was captured."""
    if isinstance(target, (Unasked, MakeWrapper)):
        return kind, target
    return "call_function", Unasked(
        getattr(torch.Tensor, target) if kind == "call_method" else target
    )
