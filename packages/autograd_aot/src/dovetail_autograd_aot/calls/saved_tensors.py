"""Where a compiled call keeps what its backward reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_autograd_aot.boundary import OtherCounters, PartitionedGraph
from dovetail_autograd_aot.trace.node_values import example_values
from dovetail_autograd_aot.trace.version_counters import give_counter


class SavedValues:
    """Keeps what the backward reads: tensors with autograd (which notices in-place writes and
    frees them), numbers on the context. So are masks that the graph made where the user's hooks
    pack and unpack what is saved: eager has none, and hooks that make numbers smaller take none."""

    def __init__(self, parts: PartitionedGraph, counters: OtherCounters) -> None:
        assert parts.backward is not None
        saved = example_values(parts.backward)[: len(parts.saved)]
        self.count = len(saved)
        self.primals = parts.saved_primals
        reshaped = {r.index for r in parts.signature.reshaped}
        self.reshaped = [n for n, i in enumerate(self.primals) if i in reshaped]
        self.apart = [n for n, i in enumerate(self.primals) if i in counters.primals]
        self.watched = counters.watched
        self.numbers = {i for i, v in enumerate(saved) if not isinstance(v, Tensor)}
        own = range(len(self.primals), len(saved))
        self.masks = {i for i in own if i not in self.numbers and not _is_inexact(saved[i])}

    def store(self, ctx: Any, inputs: tuple[Any, ...], values: list[Any]) -> None:
        everything = [inputs[i] for i in self.primals] + values
        for number in self.reshaped:  # (the input itself is about to get another shape)
            everything[number] = everything[number].detach()
        for number in self.apart:  # (which has a counter of its own)
            everything[number] = everything[number].data
        beside = self.numbers
        if self.masks and hooks_take_saved_tensors():
            beside = self.numbers | self.masks
        ctx.beside = {i: everything[i] for i in beside}
        if beside:
            everything = [v for i, v in enumerate(everything) if i not in beside]
        ctx.save_for_backward(*everything)
        if self.watched:
            ctx.watched = []

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


def _is_inexact(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()
