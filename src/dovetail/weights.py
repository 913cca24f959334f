"""What is computed of a model's weights alone, kept between calls."""

from __future__ import annotations

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
    _state: list[tuple[int, int]] = field(default_factory=list)
    _lock: ProcessLock = field(default_factory=ProcessLock)

    def __call__(self, *inputs: Any) -> Any:
        """Run the rest, with what was computed before unless a weight has changed since."""
        weights = [inputs[i] for i in self.split.weights]
        if self._state != _state_of(weights):
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

    def _prepare(self, weights: list[Tensor]) -> None:
        with self._lock, torch.no_grad(), torch._C._DisableAutocast():
            state = _state_of(weights)
            if state == self._state:
                return  # another thread has done it
            if not self.prepared:
                self.prepared = tuple(
                    torch.empty_strided(f._sizes, f._strides, dtype=f._dtype, device=f._device)
                    for f in self.split.prepared
                )
            for kept, new in zip(self.prepared, self.split.prepare(*weights), strict=True):
                kept.copy_(new)
            self._state = state
            self.computed += 1


def _state_of(weights: list[Tensor]) -> list[tuple[int, int]]:
    """Which tensors these are, and how often each was written to. (That of inference mode is not
    counted.)"""
    return [(id(w), -1 if w.is_inference() else w._version) for w in weights]
