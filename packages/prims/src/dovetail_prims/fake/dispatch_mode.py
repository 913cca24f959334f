"""`DispatchMode`: a `TorchDispatchMode` that leaves PyTorch's own compiler unloaded."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The base of all our dispatch modes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True (the default) makes PyTorch import its own compiler on the first dispatch.
        return False
