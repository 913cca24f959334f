"""Backends by name: ours, the debugging ladder, and what third parties publish as entry points.

A backend is what PyTorch's users know: `(gm, example_inputs) -> callable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from dovetail_capture import takes_symbolic_graphs
from dovetail_prims.conditionals import run_plainly
from torch.fx import GraphModule

from dovetail.options import Options, unknown_name
from dovetail.pipeline import CompilerBackend, aot_eager

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]

_ENTRY_POINT_GROUPS = ("dovetail_backends", "torch_dynamo_backends")
_OURS = ("dovetail", "inductor")  # the second is the name that torch.compile's users pass


@takes_symbolic_graphs
def eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the captured graph as it is: capture without a compiler."""
    return run_plainly(gm)


def list_backends() -> list[str]:
    """The names that `backend=` accepts."""
    published = {point.name for group in _ENTRY_POINT_GROUPS for point in entry_points(group=group)}
    return sorted({*_OURS, "eager", "aot_eager", *published})


def lookup_backend(backend: str | Backend, options: Options) -> Backend:
    """The backend called `backend` (a callable is returned as it is).

    Raises ValueError naming the near ones for an unknown name.
    """
    if not isinstance(backend, str):
        if not callable(backend):
            raise TypeError(f"backend must be a name or a callable, got {type(backend).__name__}")
        return backend
    if backend in _OURS:
        return CompilerBackend(options)
    if backend == "eager":
        return eager
    if backend == "aot_eager":
        return aot_eager
    for group in _ENTRY_POINT_GROUPS:
        for point in entry_points(group=group, name=backend):
            loaded: Backend = point.load()
            return loaded
    raise ValueError(unknown_name("backend", backend, list_backends()))
