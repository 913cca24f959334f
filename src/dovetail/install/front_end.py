"""torch._dynamo's older entry points, by their own signatures, over `dovetail.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.compilation import compile

Wrap = Callable[[Any], Any]


def optimize(
    backend: Any = "inductor", *, nopython: bool = False, dynamic: bool | None = None,
    disable: bool = False, guard_filter_fn: Any = None, **unused: Any,
) -> Wrap:  # fmt: skip
    """`torch._dynamo.optimize(backend)(f)`. Its hooks for exports and errors are not ours."""
    options = None if guard_filter_fn is None else {"guard_filter_fn": guard_filter_fn}
    return lambda target: compile(
        target,
        backend=backend,
        fullgraph=nopython,
        dynamic=dynamic,
        disable=disable,
        options=options,
    )


def optimize_assert(backend: Any, *, dynamic: bool | None = None, **unused: Any) -> Wrap:
    """`torch._dynamo.optimize_assert(backend)(f)`: a graph break is an error."""
    return optimize(backend, nopython=True, dynamic=dynamic)
