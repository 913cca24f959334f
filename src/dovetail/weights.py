"""What is computed of a model's weights alone, kept between calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import torch
from dovetail_guards.process_lock import ProcessLock
from dovetail_inductor import PreparedGraph
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor


@dataclass(frozen=True)
class SeenWeights:
    """Weights as they were at one time: the tensors, and how often each was written to. (Weakly: an
    address, or an id, may come to be that of another tensor.)"""

    seen: tuple[tuple[weakref.ref[Tensor], int], ...] = ()

    @staticmethod
    def of(weights: Sequence[Tensor]) -> SeenWeights:
        """These weights as they are now."""
        return SeenWeights(tuple((weakref.ref(w), _version(w)) for w in weights))

    def are(self, weights: Sequence[Tensor]) -> bool:
        """Are these the same, not written to since?"""
        return len(self.seen) == len(weights) and all(
            seen() is weight and version == _version(weight)
            for (seen, version), weight in zip(self.seen, weights, strict=True)
        )


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
    _seen: SeenWeights = SeenWeights()
    _lock: ProcessLock = field(default_factory=ProcessLock)

    def __call__(self, *inputs: Any) -> Any:
        """Run the rest, with what was computed before unless a weight has changed since."""
        weights = [inputs[i] for i in self.split.weights]
        if not self._seen.are(weights):
            self._prepare(weights)
        return self.run(*inputs, *self.prepared)

    def forget(self) -> None:
        """Compute everything again at the next call."""
        self._seen = SeenWeights()

    def as_text(self) -> str:
        """What is kept, for people."""
        size = sum(t.numel() * t.itemsize for t in self.prepared) / 2**20
        return (
            f"constant weights: {len(self.prepared)} tensors ({size:.1f} MiB) computed of "
            f"{len(self.split.weights)} weights, {self.computed} times so far"
        )

    def _prepare(self, weights: list[Tensor]) -> None:
        with self._lock, torch.no_grad(), torch._C._DisableAutocast():
            if self._seen.are(weights):
                return  # another thread has done it
            seen = SeenWeights.of(weights)
            fakes, before = self.split.prepared, self.prepared or repeat(None)
            made = zip(self.split.prepare(*weights), before, fakes, strict=False)
            self.prepared = tuple(map(_keep, *zip(*made, strict=True)))
            self._seen = seen
            self.computed += 1


def _keep(new: Tensor, kept: Tensor | None, fake: FakeTensor) -> Tensor:
    """What was computed anew, in the memory that is kept. (What is packed is on a CPU, where none
    needs to stay.)"""
    if new.is_mkldnn:
        return new
    if kept is None:
        sizes, strides = fake._sizes, fake._strides
        kept = torch.empty_strided(sizes, strides, dtype=fake._dtype, device=fake._device)
    return kept.copy_(new)


def _version(weight: Tensor) -> int:
    """How often a weight was written to. (In inference mode it is not counted.)"""
    return -1 if weight.is_inference() else weight._version
