"""Inputs that are views, and are written to.

A view that has a history gets another place in autograd's graph whenever its version counter tells
of a write, or of a change of its shape: autograd takes it anew of its base, and leaves the old
place to what was computed before. If autograd saw the write, the base has moved, too. A compiled
graph knows one place of each input, from before it runs. So such a write is left to eager: the
graph is to end before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail_autograd_aot.boundary import (
    MovedInput,
    MutatedInput,
    OutputInfo,
    OutputKind,
    ReshapedInput,
)
from dovetail_autograd_aot.joint.primals import Primals
from dovetail_autograd_aot.trace.autograd_queries import grad_fn_of
from dovetail_autograd_aot.trace.storage import refusal

_TAKEN_ANEW = (
    "input {} is a view that autograd takes anew of its base after a write: gradients asked for at "
    "it, or at the base, would not be eager's"
)
_RETAINED = (
    "input {} retains its gradient, is written to and changes its shape in place: eager retains "
    "that of before the change"
)


def moved_inputs(
    primals: Primals,
    paths: Sequence[bool],
    mutated: Sequence[MutatedInput],
    reshaped: Sequence[ReshapedInput],
    infos: Sequence[OutputInfo],
) -> tuple[MovedInput, ...]:
    """The inputs of a trace that would get other places if they were such views; TraceError if one
    is. `paths` tell which autograd has a path to from an output."""
    graded = {m.index for m in mutated if not m.data_only}
    changed = {m.index for m in mutated if m.reshaped}
    viewed = {
        info.base
        for info in infos
        if info.kind is OutputKind.VIEW_OF_INPUT and info.requires_grad and not info.is_leaf
    }
    whatever_is_used = graded | {r.index for r in reshaped}
    found = []
    for index, primal in primals.counted():
        used = index in viewed or bool(paths and paths[index])
        example = primals.examples[index]
        if isinstance(example, torch.nn.Parameter):
            continue  # (of which types are guarded: never a view with a history)
        if index in whatever_is_used or (used and primal.writes):
            moved = MovedInput(index, index in graded, index in viewed, index in changed)
            if gets_other_places(moved, example):
                why = _TAKEN_ANEW if example._is_view() else _RETAINED
                raise refusal(why.format(index), _writer(primals, index))
            found.append(moved)
    return tuple(found)


def _writer(primals: Primals, index: int) -> str | None:
    """The captured graph's node that wrote first to what an input shares its counter with, or
    changed the input's shape."""
    tracer = primals.tracer
    reshaper = tracer.reshapers.get(id(primals[index].value))
    if reshaper is not None:
        return reshaper
    sharing = (index, *primals.sharing_counter(index))
    writers = [storage.writer for i in sharing if (storage := primals[i].storage) is not None]
    writers += [tracer.shape_changes.get(i) for i in sharing]
    return next((writer for writer in writers if writer is not None), None)


def gets_other_places(moved: MovedInput, value: torch.Tensor) -> bool:
    """Whether this input of a call is a view that the write gives places in autograd's graph which
    no compiled graph knows. (One without a history has no old place. But where autograd sees the
    write, views of it that are older are taken of its base then, and not of it. What retains its
    gradient, is written to and changes its shape does so at the place between the two.)"""
    if moved.reshaped and value.retains_grad:
        return True
    if not value._is_view():
        return False
    return grad_fn_of(value) is not None or (moved.graded and moved.with_views)


def with_other_places(moved: Sequence[MovedInput], inputs: Sequence[Any]) -> tuple[int, ...]:
    """Those inputs of a call that a compiled graph does not hold for."""
    found: tuple[int, ...] = ()
    for one in moved:
        if (one.reshaped or inputs[one.index]._is_view()) and gets_other_places(
            one, inputs[one.index]
        ):
            found = (*found, one.index)
    return found
