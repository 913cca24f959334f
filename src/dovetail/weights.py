"""What is computed of a model's weights alone, kept between calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from dovetail_guards.process_lock import ProcessLock
from dovetail_inductor import PreparedGraph
from torch import Tensor


@dataclass
class ConstantWeights:
    """Calls like the graph that `split` was cut from. `run` is its compiled rest.

    The tensors that are kept stay where they are: when a weight was written to, what depends on it
    is computed again into the same memory.
    """

    split: PreparedGraph
    run: Callable[..., Any]
    prepared: tuple[Tensor, ...] = ()
    computed: int = 0  # how often
    _state: list[tuple[weakref.ref[Tensor], int]] = field(default_factory=list)
    _lock: ProcessLock = field(default_factory=ProcessLock)

    def __call__(self, *inputs: Any) -> Any:
        """Run the rest, with what was computed before unless a weight has changed since."""
        weights = [inputs[i] for i in self.split.weights]
        if not self._is_of(weights):
            self._prepare(weights)
        return self.run(*inputs, *self.prepared)

    def forget(self) -> None:
        """Compute everything again at the next call."""
        self._state = []

    def as_text(self) -> str:
        """What is kept, for people."""
        size = sum(t.numel() * t.itemsize for t in self.prepared) / 2**20
        return (
            f"constant weights: {len(self.prepared)} tensors ({size:.1f} MiB) computed of "
            f"{len(self.split.weights)} weights, {self.computed} times so far"
        )

    def _is_of(self, weights: list[Tensor]) -> bool:
        """Are these the weights that were computed from, not written to since?"""
        known = self._state
        return len(known) == len(weights) and all(
            seen() is weight and version == _version(weight)
            for (seen, version), weight in zip(known, weights, strict=True)
        )

    def _prepare(self, weights: list[Tensor]) -> None:
        with self._lock, torch.no_grad(), torch._C._DisableAutocast():
            if self._is_of(weights):
                return  # another thread has done it
            state = [(weakref.ref(w), _version(w)) for w in weights]
            if not self.prepared:
                self.prepared = tuple(
                    torch.empty_strided(f._sizes, f._strides, dtype=f._dtype, device=f._device)
                    for f in self.split.prepared
                )
            for kept, new in zip(self.prepared, self.split.prepare(*weights), strict=True):
                kept.copy_(new)
            self._state = state
            self.computed += 1


def _version(weight: Tensor) -> int:
    """How often a weight was written to. (In inference mode it is not counted.)"""
    return -1 if weight.is_inference() else weight._version
