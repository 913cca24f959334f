"""torch.compile's own switches, where the program has set them: its stance, `reset`,
`error_on_graph_break`, and the environment's word that nothing is compiled.

Nothing is imported for it: what the program has not imported, it has not set. A call of a compiled
function looks whether the stance is still the one that was seen (`_frame_hook.watch_names`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from dovetail_capture._frame_hook import call_here, on_foreign_hook, watch_names
from dovetail_capture.knobs import DISABLED

_FRONT_END = "torch._dynamo.eval_frame"
_HOOK = "torch._C._dynamo.eval_frame"
# What runs while compiled functions are called, or a backward is compiled. (Not `dovetail` as a
# whole: it has models that torch.compile is measured on.)
_RUNS_PLAINLY = (
    *("dovetail_autograd_aot", "dovetail_capture", "dovetail_guards", "dovetail_inductor"),
    *("dovetail_prims", "dovetail_runtime"),
    *("dovetail.pipeline", "dovetail.per_size", "dovetail.weights"),
)


def torch_stance() -> str:
    """The stance of `torch.compiler.set_stance`; "force_eager" where compiling is disabled."""
    if DISABLED or _Own.switches.disabled or _setting("torch._dynamo.config", "disable") is True:
        return "force_eager"
    return str(getattr(_setting(_FRONT_END, "_stance"), "stance", "default"))


def torch_breaks_are_errors() -> bool:
    """Is a graph break an error by `torch._dynamo.error_on_graph_break`?"""
    return _setting("torch._dynamo.utils", "_error_on_graph_break") is True


def torch_config(name: str) -> Any:
    """A setting of `torch._dynamo.config` that the program has changed; else None."""
    config = sys.modules.get("torch._dynamo.config")
    is_default: Callable[[str], bool] | None = getattr(config, "_is_default", None)
    if is_default is None or is_default(name):
        return None
    return getattr(config, name)


@dataclass(frozen=True)
class Switches:
    """What holds for every compiled function of the process. `captures_data`: `.item()` and sizes
    that data tells stay in graphs; `suppress_errors`: what a backend fails on runs uncompiled;
    `disabled`: everything runs as it is."""

    captures_data: bool = False
    suppress_errors: bool = False
    disabled: bool = False


class _Own:
    switches = Switches()


def set_switches(switches: Switches) -> None:
    """What holds from here on, beside what torch.compile is told."""
    _Own.switches = switches


def captures_data() -> bool:
    """Do `.item()`, and sizes that data tells, stay in graphs: by our switch, or by torch's?"""
    names = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
    return _Own.switches.captures_data or any(torch_config(name) is True for name in names)


def suppresses_errors() -> bool:
    """Does what a backend fails on run uncompiled: by our switch, or by torch's?"""
    return _Own.switches.suppress_errors or torch_config("suppress_errors") is True


def _setting(module: str, name: str) -> Any:
    """What a module that the program has imported holds under a name, or None."""
    return getattr(sys.modules.get(module), name, None)


def keep_out_torch() -> None:
    """Let torch.compile's front end neither capture our compiler nor what it compiled: where a
    function that it compiles calls a compiled function of ours, it breaks its graph."""
    disable = _setting("torch._dynamo.decorators", "disable")
    if disable is None:
        return
    on_foreign_hook(disable(call_here), _setting(_HOOK, "get_eval_frame_callback"))
    add = _setting("torch._dynamo.trace_rules", "add")
    for name in _RUNS_PLAINLY if add is not None else ():
        if find_spec(name.partition(".")[0]) is not None:
            add(name)


class TorchFollower:
    """Does what torch.compile is told: `changed` is called when its stance may have changed,
    `reset` when it was reset.

    `torch._dynamo.reset` resets every backend that it knows, by this very method, and forgets it.
    """

    def __init__(self, changed: Callable[[], object], reset: Callable[[], object]) -> None:
        self._changed = changed
        self._reset = reset
        self._keeps_out = False
        self._watched: ModuleType | None = None  # the front end whose stance is

    def reset(self) -> None:
        """Called by torch.compile's own `reset`."""
        self._reset()

    def follow(self) -> None:
        """Watch for what may change from here on; also once more, after a reset."""
        backends = _setting(_FRONT_END, "cached_backends")
        if backends is None:
            self._watched = None
            watch_names(self.follow, ((vars(torch), "_dynamo"),))
            self._changed()
        elif id(self) not in backends or self._watched is not sys.modules.get(_FRONT_END):
            backends[id(self)] = self
            self._look()

    def _look(self) -> None:
        """Take the stance that is set now, and watch whether it is set again."""
        front_end = sys.modules.get(_FRONT_END)
        if front_end is not None and hasattr(front_end, "cached_backends"):
            self._watched = front_end
            if not self._keeps_out:
                self._keeps_out = True
                keep_out_torch()
            watch_names(self._look, ((vars(front_end), "_stance"),))
        self._changed()
