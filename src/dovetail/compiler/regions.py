"""Marks of `torch.compiler` on functions and on places of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def nested_compile_region(
    fn: Any = None,
    *,
    options: Any = None,
    max_reuse_entries: int = 8,
    reuse_hash_fn: Callable[..., int] | None = None,
) -> Any:
    """Mark a function as a region that a program repeats. Gives the function as it is.

    Repeated layers need no mark: kernels that are alike are found, and compiled once. So
    `max_reuse_entries` and `reuse_hash_fn`, which bound and steer what a mark shares, change
    nothing.

    Raises:
        NotImplementedError: `options` are given: a region has those of the whole program.
    """
    if options is not None:
        raise NotImplementedError(
            "nested_compile_region takes no options of a region's own: give them to "
            "dovetail.compile, or compile the region on its own and call it"
        )
    return (lambda function: function) if fn is None else fn


def cudagraph_mark_step_begin() -> None:
    """Tell that a new iteration begins. Does nothing: what a recorded graph gives is never
    overwritten while somebody may still hold it, so iterations need not be told apart."""


def cudagraph_mark_warmup_incomplete() -> None:
    """Ask for another call that runs without being recorded. Does nothing: no code of the program's
    runs while a graph is warmed up."""


def set_enable_guard_collectives(enabled: bool) -> bool:
    """Let all ranks agree at each call whether they compile; gives what was set before.

    Raises:
        NotImplementedError: `enabled`: no collective is run for a compiled function's guards.
    """
    if enabled:
        raise NotImplementedError(
            "guards do not run collectives: let every rank see the same sizes, or mark those that "
            "differ with dovetail.mark_dynamic, so that no rank compiles alone"
        )
    return False
