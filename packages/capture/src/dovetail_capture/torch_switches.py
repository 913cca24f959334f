"""torch.compile's own switches, where the program has set them: its stance, `reset`,
`error_on_graph_break`, and the environment's word that nothing is compiled.

Nothing is imported for it: what the program has not imported, it has not set. A call of a compiled
function looks whether the stance is still the one that was seen (`_frame_hook.watch_names`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from dovetail_capture._frame_hook import watch_names

_DISABLED = any(
    os.environ.get(name) == "1" for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
)
_FRONT_END = "torch._dynamo.eval_frame"


def torch_stance() -> str:
    """The stance of `torch.compiler.set_stance`; "force_eager" where torch.compile is disabled."""
    if _DISABLED or _setting("torch._dynamo.config", "disable") is True:
        return "force_eager"
    return str(getattr(_setting(_FRONT_END, "_stance"), "stance", "default"))


def torch_breaks_are_errors() -> bool:
    """Is a graph break an error by `torch._dynamo.error_on_graph_break`?"""
    return _setting("torch._dynamo.utils", "_error_on_graph_break") is True


def _setting(module: str, name: str) -> Any:
    """What a module that the program has imported holds under a name, or None."""
    return getattr(sys.modules.get(module), name, None)


class TorchFollower:
    """Does what torch.compile is told: `changed` is called when its stance may have changed,
    `reset` when it was reset.

    `torch._dynamo.reset` resets every backend that it knows, by this very method, and forgets it.
    """

    def __init__(self, changed: Callable[[], object], reset: Callable[[], object]) -> None:
        self._changed = changed
        self._reset = reset

    def reset(self) -> None:
        """Called by torch.compile's own `reset`."""
        self._reset()

    def follow(self) -> None:
        """Watch for what may change from here on; also once more, after a reset."""
        backends = _setting(_FRONT_END, "cached_backends")
        if backends is None:
            watch_names(self.follow, ((vars(torch), "_dynamo"),))
            self._changed()
        elif id(self) not in backends:
            backends[id(self)] = self
            self._look()

    def _look(self) -> None:
        """Take the stance that is set now, and watch whether it is set again."""
        front_end = sys.modules.get(_FRONT_END)
        if hasattr(front_end, "cached_backends"):
            watch_names(self._look, ((vars(front_end), "_stance"),))
        self._changed()
