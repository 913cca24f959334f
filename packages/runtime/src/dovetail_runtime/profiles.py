"""What PyTorch's profilers see of calls that the native executor does not run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

_UNSEEN: AbstractContextManager[None] = nullcontext()


def in_profile(label: str) -> AbstractContextManager[object]:
    """A block that profiles call `label`; nothing where no profiler looks."""
    if not profiler._is_profiler_enabled:
        return _UNSEEN
    return profiler.record_function(label)
