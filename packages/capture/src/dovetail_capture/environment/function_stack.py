"""Torch's stack of torch function modes, set aside while a frame is captured, compiled or run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_C: Any = torch._C


@contextmanager
def no_function_modes() -> Iterator[None]:
    """Run without the modes that are entered; others may be."""
    aside = [_C._pop_torch_function_stack() for _ in range(_C._len_torch_function_stack())]
    try:
        with _C._EnableTorchFunction():
            yield
    finally:
        for mode in reversed(aside):
            _C._push_on_torch_function_stack(mode)


def outside_of_modes(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, into which the modes that are entered were captured: they do not see its run."""

    def run(*args: Any) -> Any:
        with no_function_modes():
            return compiled(*args)

    return run
