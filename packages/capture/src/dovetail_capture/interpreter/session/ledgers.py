"""Ledgers of effects, of what is read after the frame has ended, and of modes."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dovetail_guards.source import Source
from torch.fx import Node

from dovetail_capture.environment.torch_settings import KernelSettings
from dovetail_capture.interpreter.values.base import NONE, Value
from dovetail_capture.interpreter.values.containers import DictValue
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.hooks import Hooked, LateState
from dovetail_capture.interpreter.values.objects import ContextWrite
from dovetail_capture.interpreter.values.tensors import CopiedView, TensorValue

if TYPE_CHECKING:
    from dovetail_prims.graphs.gradient_hooks import BackwardRead


CallForEffect = tuple[Any, list[Value], dict[str, Value]]


@dataclass(frozen=True)
class Message:
    """A call that is made after the graph, in its order among others. `shown` has the state of what
    it was given when the program made it, in step `born` of the top frame."""

    call: CallForEffect
    born: int
    shown: dict[int, tuple[Value, Any]]


class EffectLedger:
    """Changes of what outlives the frame, which the replacement code makes after the graph: writes
    to globals, attributes, context variables and settings; messages; hooks."""

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


class Watch(Protocol):
    """What is told of reads while a backward or a hook is captured (`changes.late_reads`)."""

    asks_grad_mode: bool

    def note(self, real: Any, source: Source, value: Value) -> None:
        """What existed before the frame is looked at."""

    def see(self, value: Any) -> None:
        """A value is on the stack."""

    def cell(self, cell: CellValue, name: str) -> None:
        """What the cell of a variable holds is read."""

    def written(self, name: str) -> None:
        """A name is read that the frame has written to."""


class LateReadLedger:
    """Reads of backwards and hooks, asked for again when they run."""

    def __init__(self) -> None:
        self.watch: Watch | None = None  # over what the one that is captured now reads
        self.found: list[BackwardRead] = []
        self.states: list[LateState] = []  # the state that they take for granted
        self.tensors: list[TensorValue] = []  # what backwards read without a save


@dataclass(frozen=True)
class OpenMode:
    """A block of `torch.autocast` or `torch.inference_mode` that was entered: `leave(real)` leaves
    it, `node` is the graph's own entering, `manager` the program's context manager."""

    leave: Callable[[Any], Any]
    real: Any
    node: Any
    manager: Value
    inference: bool | None = None  # of a block of inference mode: on or off


class ModeLedger:
    """What is open at the instruction at hand, innermost last."""

    def __init__(self) -> None:
        # The program's stack of torch function modes; those at the frame's start; the one that
        # answers at this moment.
        self.function_modes: list[Value] = []
        self.first_function_modes: list[Value] = []
        self.function_mode_left: Value = NONE
        # Is there a tensor of a class that torch may ask about operations? The blocks without such
        # functions that the program is in: the steps of the top frame that entered them.
        self.own_functions = False
        self.functions_off: list[int] = []
        self.open_modes: list[OpenMode] = []
        self.error_blocks: list[tuple[Value, bool]] = []  # open ones of `error_on_graph_break`
        self.locks: list[Value] = []  # locks that were taken; effects are replayed under them
        self.open_locks: list[tuple[Value, int]] = []  # with the step that took them

    def begin_in(self, modes: list[Value]) -> None:
        """The frame starts in these torch function modes."""
        self.function_modes = list(modes)
        self.first_function_modes = modes
