"""What a frame changes of what outlives it: done by the replacement code, after the graph."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from dovetail_capture.environment.torch_settings import KernelSettings
from dovetail_capture.interpreter.values.arrays import CopiedView
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import DictValue
from dovetail_capture.interpreter.values.hooks import Hooked
from dovetail_capture.interpreter.values.objects import ContextWrite

CallForEffect = tuple[Any, list[Value], dict[str, Value]]


@dataclass(frozen=True)
class Message:
    """A call that is made after the graph, in its order among others. `shown` has the state of what
    it was given when the program made it, in step `born` of the top frame."""

    call: CallForEffect
    born: int
    shown: dict[int, tuple[Value, Any]]


class EffectLedger:
    """Writes to globals, attributes, context variables and settings; messages; hooks."""

    def __init__(self) -> None:
        self.global_writes: dict[tuple[int, str], Value | None] = {}
        self.global_dicts: dict[int, dict[str, Any]] = {}  # by the ids in `global_writes`
        self.attribute_writes: dict[int, tuple[Value, DictValue]] = {}
        self.context_writes: dict[contextvars.ContextVar[Any], ContextWrite] = {}
        self.settings: dict[Any, Any] = {}  # settings of torch that were changed -> what they were
        self.kernel_settings = KernelSettings()
        # (function, arguments, keyword arguments): messages, written after the graph has run
        self.calls: list[CallForEffect] = []
        self.messages: list[Message] = []  # those of them that show something
        self.copied_views: list[CopiedView] = []  # of NumPy arrays
        self.hooks: list[Hooked] = []  # on tensors of the graph
        self.hooks_on_inputs = 0  # those that are registered after the graph
        self.retains = False  # is there a tensor of the graph's that retains its gradient?
        self.made_leaves: dict[int, int] = {}  # ids of values -> the step that made them leaves
        # Of those whose data was replaced: what they were before.
        self.left_nodes: dict[int, list[Node]] = {}

    def write_global(self, globals_: dict[str, Any], name: str, value: Value | None) -> None:
        """Let a variable of a module have a value; None: let it be gone."""
        self.global_dicts[id(globals_)] = globals_
        self.global_writes[id(globals_), name] = value

    def change_setting(self, setting: Any, before: Any) -> None:
        """Remember what a setting of torch was before it is changed for the first time."""
        self.settings.setdefault(setting, before)

    def make_leaf(self, value: Value, step: int) -> None:
        """A tensor of the graph's was made a leaf, in a step of the top frame."""
        self.made_leaves[id(value)] = step

    def register_on_input(self, call: CallForEffect) -> None:
        """Register a hook on an input, after the graph."""
        self.calls.append(call)
        self.hooks_on_inputs += 1

    def retain_gradient(self, hook: Hooked) -> None:
        """Let a tensor of the graph's retain its gradient, which a hook does."""
        self.hooks.append(hook)
        self.retains = True
