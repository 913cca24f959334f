"""Memory of a recording's own that its small results are copied into, call after call."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from dovetail_runtime.native import executor_module

# While a caller looks at the results of one call, the next one writes others.
_SETS = 2


class ResultMemory:
    """Hands out copies of tensors without gaps, all of one stream and device.

    Each call's copies are a set, and the last two sets are kept: one that nobody else holds on to
    is written to again, instead of memory from the allocator. A set in use is left to its users.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self._outputs = tuple(outputs)
        self._positions = tuple(range(len(self._outputs)))
        self._used_by_nobody = (1,) * len(self._outputs)
        self._sets: deque[tuple[tuple[torch.Tensor, ...], tuple[int, ...]]] = deque(maxlen=_SETS)
        self._native = executor_module()

    def copies(self, raw_stream: int) -> list[torch.Tensor]:
        """What the outputs hold now, as tensors that are the caller's."""
        native = self._native
        for _ in range(len(self._sets)):
            places, addresses = self._sets[0]
            self._sets.rotate(-1)
            # (A caller may have given a storage other memory, or none.)
            if native.storage_uses(places) == self._used_by_nobody and native.lie_at(
                places, self._positions, addresses
            ):
                native.copy_into(places, self._positions, self._outputs, raw_stream)
                break
        else:
            places = tuple(native.copy_of(output, raw_stream) for output in self._outputs)
            self._sets.append((places, tuple(place.data_ptr() for place in places)))
        shared: list[torch.Tensor] = native.share_memory(places)
        return shared
