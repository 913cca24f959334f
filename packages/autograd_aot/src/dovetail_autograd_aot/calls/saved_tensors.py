"""Where a compiled call keeps what its backward reads, and what that reads besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.graphs.gradient_hooks import BackwardRead, check_reads, check_unsaved
from torch import Tensor

from dovetail_autograd_aot.boundary import OtherCounters, PartitionedGraph
from dovetail_autograd_aot.trace.autograd_queries import give_counter
from dovetail_autograd_aot.trace.node_values import example_values

# How a saved value is kept (`csrc/training_calls.h`), if not with autograd as it is.
_DETACHED, _RECOUNTED, _ON_CONTEXT, _ON_CONTEXT_IF_HOOKED = range(1, 5)


class SavedValues:
    """Keeps what the backward reads: tensors with autograd (which notices in-place writes and
    frees them), numbers on the context. So are masks that the graph made where the user's hooks
    pack and unpack what is saved: eager has none, and hooks that make numbers smaller take none."""

    def __init__(self, parts: PartitionedGraph, counters: OtherCounters) -> None:
        assert parts.backward is not None
        saved = example_values(parts.backward)[: len(parts.saved)]
        self.primals = parts.saved_primals
        self.watched = counters.watched
        numbers = {i for i, v in enumerate(saved) if not isinstance(v, Tensor)}
        own = range(len(self.primals), len(saved))
        exact = (i for i in own if i not in numbers and not saved[i].is_floating_point())
        self.masks = {i for i in exact if not saved[i].is_complex()}
        how = dict.fromkeys(numbers, _ON_CONTEXT)
        how.update(dict.fromkeys(self.masks, _ON_CONTEXT_IF_HOOKED))
        reshaped = {r.index for r in parts.signature.changes.reshaped}
        for number, primal in enumerate(self.primals):
            if primal in counters.primals:
                how[number] = _RECOUNTED
            elif primal in reshaped:
                how[number] = _DETACHED
        self.kept = bytes(how.get(i, 0) for i in range(len(saved)))

    def watch(self, ctx: Any, outputs: Sequence[Any]) -> None:
        """Notice later writes to the outputs that have counters apart from all that is saved."""
        for i in self.watched:
            counter = outputs[i].new_empty(0)
            give_counter(counter, outputs[i])
            ctx.watched.append((counter, counter._version, outputs[i].shape))

    def check(self, ctx: Any) -> None:
        """Raise an error if an output that is watched was written to."""
        for counter, version, shape in ctx.watched:
            check_version(counter, version, shape)

    def load(self, ctx: Any) -> Sequence[Any]:
        tensors, beside = ctx.saved_tensors, ctx.beside
        if not beside:
            return tensors  # type: ignore[no-any-return]
        count = len(tensors) + len(beside)
        following = iter(tensors)
        return [beside[i] if i in beside else next(following) for i in range(count)]


@dataclass(frozen=True)
class UnsavedReads:
    """What the backward of a user takes for granted when it runs: what it `reads` outside of the
    graph, and the data of `inputs` and `outputs` of the graph that are not saved."""

    reads: tuple[BackwardRead, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reads or self.inputs or self.outputs)

    def remember(self, inputs: Sequence[Any]) -> list[tuple[Tensor, int]]:
        """The inputs at the time of the forward, with their versions."""
        return [(inputs[i], inputs[i]._version) for i in self.inputs]

    def remember_outputs(self, context: Any, outputs: Sequence[Any]) -> None:
        """The outputs, once nothing is written to them any more."""
        if self.outputs:
            given = (outputs[i] for i in self.outputs)
            context.unsaved += [(one.detach(), one._version) for one in given]

    def check(self, remembered: list[tuple[Tensor, int]]) -> None:
        """Raise an error if any of it has changed."""
        check_reads(self.reads)
        for tensor, version in remembered:
            check_unsaved(tensor, version)


def check_version(tensor: Tensor, version: int, shape: Sequence[int]) -> None:
    """Raise eager's error if a tensor was written to since it had this version."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: a tensor of size {tuple(shape)} is at version "
            f"{tensor._version}; expected version {version} instead."
        )


def hooks_take_saved_tensors() -> bool:
    """Whether the user's hooks pack and unpack what is saved now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
