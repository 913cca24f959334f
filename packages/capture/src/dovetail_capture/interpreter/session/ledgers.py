"""Ledgers of effects, of what is read after the frame has ended, of modes, of random numbers (drawn
before the graph runs), and of the objects that existed before the frame."""

from __future__ import annotations

import abc
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dovetail_guards.float_expr import key_of
from dovetail_guards.ranges import Range
from dovetail_guards.source import Source
from torch.fx import Node

from dovetail_capture.environment.torch_state import KernelSettings
from dovetail_capture.interpreter.session.cached_calls import Kept
from dovetail_capture.interpreter.values.base import NONE, Value
from dovetail_capture.interpreter.values.computed_sources import DrawSource
from dovetail_capture.interpreter.values.containers import DictValue
from dovetail_capture.interpreter.values.functions import CellValue, HeldIterator, Hooked, LateState
from dovetail_capture.interpreter.values.objects import ContextWrite, ObjectValue
from dovetail_capture.interpreter.values.tensors import CopiedView, TensorValue
from dovetail_capture.recipe import CallFunction

if TYPE_CHECKING:
    from dovetail_prims.graphs.gradient_hooks import BackwardRead

    from dovetail_capture.interpreter.session.input_ledger import InputLedger
    from dovetail_capture.interpreter.session.input_shapes import InputShapes
    from dovetail_capture.interpreter.session.session import Session


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


class DrawLedger:
    """Calls for random numbers, in their order, and the symbols of what they give."""

    def __init__(self, shapes: InputShapes, inputs: InputLedger) -> None:
        self.calls: list[CallFunction] = []
        self.computes_scalars = False  # are calls for NumPy's arithmetic among them?
        self.symbols: dict[str, Source] = {}  # of the ints among what they give
        self.examples: dict[str, int] = {}
        self._shapes = shapes
        self._inputs = inputs

    def draw(self, call: CallFunction) -> DrawSource:
        """Let the replacement code make a call for a random number."""
        self.calls.append(call)
        return DrawSource(len(self.calls) - 1)

    def number(
        self, example: int | float, source: DrawSource, limits: tuple[float, float] | None
    ) -> Value:
        """A random number: an input of the graph of which only the limits are known."""
        env = self._shapes.env
        size: Any
        if isinstance(example, int):
            bounds = Range() if limits is None else Range(int(limits[0]), int(limits[1]))
            expr = env.create_unbacked(bounds)
            assert expr.symbol_name is not None
            env.unchecked.add(expr.symbol_name)  # the graph may not even take it
            self.symbols[expr.symbol_name] = source
            self.examples[expr.symbol_name] = example
            size = env.symint(expr)
        else:
            keys = None if limits is None else Range(*map(key_of, limits))
            size = env.symfloat(env.create_unbacked_float(keys))
        return self._inputs.symbol(size, source, example)


V = TypeVar("V", bound=Value)


class ObjectLedger:
    """One value for each object that existed before, and what was asked of classes."""

    def __init__(self) -> None:
        self.known: dict[int, Value] = {}  # id of a pre-existing object -> its value
        # ids of the instance dictionaries of known objects -> their values
        self.instance_dicts: dict[int, DictValue] = {}
        self.keep_alive: list[Any] = []  # the objects whose ids `known` speaks of
        # What makes the values of the objects of a class, of those met (`wrap`)
        self.wrappers: dict[type, Callable[[Session, Any, Source], Value]] = {}
        self.cached_calls: dict[Any, Kept] = {}  # of what `functools.cache` wraps
        self.abstract_answers: dict[tuple[type, abc.ABCMeta], bool] = {}  # what was asked of ABCs
        self.symbolic_keys = False  # is a symbolic int a key of a dictionary?
        # ids of classes, and of parts of classes, made for this capture only -> the step they were
        # made in (see `library.local_classes`); `keep_alive` holds them
        self.stand_ins: dict[int, int] = {}
        # Weak references and proxies made in the frame, by the id of their target's value: Python
        # makes one of each kind
        self.weak_references: dict[tuple[int, type], Value] = {}
        # Of such classes, those that a call with constants makes anew where the frame returns them
        self.class_recipes: dict[int, CallFunction] = {}

    def bind(self, real: Any, value: V) -> V:
        """Let `value` stand for a pre-existing object, which is kept alive."""
        self.known[id(real)] = value
        self.keep_alive.append(real)
        return value

    def bind_instance_dict(self, attributes: dict[str, Any], value: DictValue) -> None:
        """Let `value` stand for the instance dictionary of a pre-existing object."""
        self.instance_dicts[id(attributes)] = value
        self.keep_alive.append(attributes)

    def note_stand_in(self, made: Any, step: int) -> None:
        """Remember that an object was made for this capture only, in a step of the top frame."""
        self.stand_ins[id(made)] = step
        self.keep_alive.append(made)

    def real_of(self, value: Value) -> Any:
        """The object that existed before and that `value` stands for; None if it is not known."""
        key = next((key for key, known in self.known.items() if known is value), None)
        return next((obj for obj in self.keep_alive if id(obj) == key), None)

    def let_go(self) -> None:
        """Part the values from the objects they stand for: values refer to one another in
        cycles."""
        for value in self.known.values():
            if hasattr(value, "real"):
                value.real = None
            if isinstance(value, ObjectValue):
                value.fields.holder = None
        self.known.clear()
        self.keep_alive.clear()


class IteratorLedger:
    """Which iterators the replacement code steps, and how often."""

    def __init__(self) -> None:
        # (iterator, how many in a row), in their order; what a step takes steps of itself is not
        # among them.
        self.steps: list[tuple[HeldIterator, int]] = []
        self.steps_within = 0
        self.stepped: dict[int, HeldIterator] = {}  # all that were stepped, by their ids

    def note_step(self, iterator: HeldIterator) -> None:
        """Let the replacement code take a step of an iterator that existed before."""
        self.stepped[id(iterator)] = iterator
        if self.steps_within:
            return
        steps = self.steps
        count = steps.pop()[1] if steps and steps[-1][0] is iterator else 0
        steps.append((iterator, count + 1))
