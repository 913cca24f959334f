"""The state of one capture attempt: guards, graph inputs, and the values of known objects."""

from __future__ import annotations

import abc
import contextvars
import copy
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.expr import Expr
from dovetail_guards.float_expr import key_of
from dovetail_guards.ranges import Range
from dovetail_guards.source import (
    ClosureCellSource,
    InstanceAttrSource,
    ItemSource,
    ObjectSource,
    Source,
    StrideSource,
)
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.wrappers import is_wrapper, overrides_functions
from torch.fx import Node
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from dovetail_capture.captured_frame import GraphInput
from dovetail_capture.interpreter.cached_calls import Kept
from dovetail_capture.interpreter.recorder import Recorder
from dovetail_capture.interpreter.shapes import InputShapes
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.sources import SourceTable
from dovetail_capture.interpreter.values.arrays import CopiedView
from dovetail_capture.interpreter.values.base import NONE, Constant, Unread, Value
from dovetail_capture.interpreter.values.checks import PendingChecks
from dovetail_capture.interpreter.values.containers import DictValue
from dovetail_capture.interpreter.values.contexts import ContextWrite
from dovetail_capture.interpreter.values.draws import DrawSource
from dovetail_capture.interpreter.values.functions import HeldIterator
from dovetail_capture.interpreter.values.hooks import Hooked, LateState
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.plain import PlainSource, as_class, is_asked
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.recipe import CallFunction
from dovetail_capture.torch_settings import KernelSettings

if TYPE_CHECKING:
    from dovetail_prims.late_reads import LateRead

    from dovetail_capture.interpreter.late_reads import LateReads
    from dovetail_capture.interpreter.messages import Message

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]+")
_PLACE = re.compile(r" at 0x[0-9a-f]+>")  # another one in each process
_SINGLETONS = (type(None), type(Ellipsis), type(NotImplemented))  # types of one object each
_PINNED_DICTS = ("_parameters", "_buffers")


@dataclass(frozen=True)
class OpenMode:
    """A block of `torch.autocast` or `torch.inference_mode` that was entered: `leave(real)` leaves
    it, `node` is the graph's own entering, `manager` the program's context manager."""

    leave: Callable[[Any], Any]
    real: Any
    node: Any
    manager: Value
    inference: bool | None = None  # of a block of inference mode: on or off


CallForEffect = tuple[Any, list[Value], dict[str, Value]]


def _held_weakly(
    method: Callable[[Source, int, Expr], None],
) -> Callable[[Source, int, Expr], None]:
    """Call the method as long as its object is there."""
    held = weakref.WeakMethod(method)

    def call(source: Source, example: int, expr: Expr) -> None:
        alive = held()
        assert alive is not None, "a capture that has ended computes sizes"
        alive(source, example, expr)

    return call


class Session:
    """Everything one attempt gathers. A new attempt starts from a new session."""

    def __init__(
        self, code: CodeType, globals_: dict[str, Any], recorder: Recorder, options: Any = None
    ) -> None:
        self.code = code
        self.shapes = InputShapes(options)
        self.exports: bool = getattr(options, "exports", False)
        self.computed: list[NumberInput] = []  # inputs that are computed of others
        if not self.exports:  # what is exported takes what it was given
            # Weakly: what a program leaves behind must go when its capture does, not when Python's
            # collector runs.
            self.shapes.env.make_input = _held_weakly(self.computed_input)
        self._replaced: frozenset[str] = getattr(options, "replaced", frozenset())
        self.globals_ = globals_
        self.recorder = recorder
        self.fullgraph: bool = getattr(options, "fullgraph", False)
        if self.fullgraph or getattr(options, "captures_data", False):
            recorder.data_env = self.shapes.env
        self.sources = SourceTable()
        self.clauses: list[c.Clause] = []
        self._guarded: set[Any] = set()
        self.sealed = False  # have the guards been made?
        self._constants: dict[int, Constant] = {}  # by the ids of their sources
        self._types: dict[int, int] = {}  # by source: where in `clauses` the type is guarded
        # What makes the values of the objects of a class, of those met (`wrap`)
        self.wrappers: dict[type, Callable[[Session, Any, Source], Value]] = {}
        self.cached_calls: dict[Any, Kept] = {}  # of what `functools.cache` wraps
        self.abstract_answers: dict[tuple[type, abc.ABCMeta], bool] = {}  # what was asked of ABCs
        self.known: dict[int, Value] = {}  # id of a pre-existing object -> its value
        # ids of the instance dictionaries of known objects -> their values
        self.instance_dicts: dict[int, DictValue] = {}
        self.symbolic_keys = False  # is a symbolic int a key of a dictionary?
        self.keep_alive: list[Any] = []  # the objects whose ids `known` speaks of
        # What a program learns that asks whether it is compiled, and whether one did.
        self.compiling, self.asked_compiling = True, False
        # Are functions of autograd that nothing differentiates part of the graph around them, and
        # was one of them a node instead?
        self.inlines_functions, self.applied_functions = False, False
        self.inputs: list[tuple[GraphInput, TensorValue | NumberInput]] = []
        self.numbers: dict[Source, NumberInput] = {}
        # Steps of iterators that existed before: (iterator, how many in a row), in their order;
        # what a step takes steps of itself is not among them. All that were stepped, by their ids.
        self.iterator_steps: list[tuple[HeldIterator, int]] = []
        self.steps_within = 0
        self.stepped: dict[int, HeldIterator] = {}
        self.global_writes: dict[tuple[int, str], Value | None] = {}
        self.context_writes: dict[contextvars.ContextVar[Any], ContextWrite] = {}
        self.global_dicts: dict[int, dict[str, Any]] = {}
        self.attribute_writes: dict[int, tuple[Value, DictValue]] = {}
        # (function, arguments, keyword arguments): messages, written after the graph has run
        self.calls_for_effect: list[CallForEffect] = []
        self.messages: list[Message] = []  # those of them that show something
        # Calls for random numbers, made before the graph runs; the ints among what they give, by
        # their symbols
        self.draws: list[CallFunction] = []
        self.computes_scalars = False  # are calls for NumPy's arithmetic among them?
        self.drawn_symbols: dict[str, Source] = {}
        self.drawn_examples: dict[str, int] = {}
        self.checks = PendingChecks()  # of the data of tensors
        self.made_leaves: dict[int, int] = {}  # ids of values -> the step that made them leaves
        # Of those whose data was replaced: what they were before.
        self.left_nodes: dict[int, list[Node]] = {}
        # The program's stack of torch function modes, innermost last; those at the frame's start;
        # the one that answers at this moment.
        self.function_modes: list[Value] = []
        self.first_function_modes: list[Value] = []
        self.function_mode_left: Value = NONE
        # Is there a tensor of a class that torch may ask about operations? The blocks without such
        # functions that the program is in: the steps of the top frame that entered them.
        self.own_functions = False
        self.functions_off: list[int] = []
        recorder.functions_off = lambda off=self.functions_off: bool(off)  # type: ignore[misc]
        # ids of the tensors inside of wrapping inputs: their sizes are fixed, as these tensors' are
        self.inner: set[int] = set()
        self.settings: dict[Any, Any] = {}  # settings of torch that were changed -> what they were
        self.kernel_settings = KernelSettings()
        self.open_modes: list[OpenMode] = []  # of the blocks that the program is in
        self.global_hooks_guarded = False
        self.hooks: list[Hooked] = []  # on tensors of the graph
        self.hooks_on_inputs = 0  # those that are registered after the graph
        self.retains = False  # is there a tensor of the graph's that retains its gradient?
        # Of backwards and hooks: the watch over what the one at hand reads, if one is captured;
        # what they read, asked for again when they run; the state that they take for granted.
        self.late_reads: LateReads | None = None
        self.late_found: list[LateRead] = []
        self.late_states: list[LateState] = []
        self.late_tensors: list[TensorValue] = []  # what backwards read without a save
        self.copied_views: list[CopiedView] = []  # of NumPy arrays
        self.selects = False  # is a checkpoint's `context_fn` asked what it selects?
        self.error_blocks: list[tuple[Value, bool]] = []  # open ones of `error_on_graph_break`
        self.locks: list[Value] = []  # locks that were taken; effects are replayed under them
        self.open_locks: list[tuple[Value, int]] = []  # with the step that took them
        # ids of classes, and of parts of classes, made for this capture only -> the step they were
        # made in (see `library.local_classes`); `keep_alive` holds them
        self.stand_ins: dict[int, int] = {}

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
        self._constants.clear()

    # --- guards ------------------------------------------------------------------------------

    def guard(self, kind: type[Any], source: Source, *args: Any) -> None:
        """Add the clause `kind(source, *args)` once."""
        key = (kind, id(source), *args)
        try:
            if key in self._guarded:
                return
            self._guarded.add(key)
        except TypeError:  # an unhashable expected value
            pass
        self.clauses.append(kind(source, *args))

    def constant(self, real: Any, source: Source) -> Constant:
        """The value of a pre-existing object that is known by its value: its type is guarded now,
        and its value once something asks for it."""
        if type(source) is ObjectSource:
            return Constant(real, source)
        if self.exports or type(real) in _SINGLETONS or not self.can_relate(source, source):
            self.guard(c.ConstantIs, source, real)
            return Constant(real, source)
        found = self._constants.get(id(source))
        if found is None:
            number = partial(self._number_of, real, source)
            found = Constant.guarded_when_read(source, Unread(real, self._guard_value, number))
            self._constants[id(source)] = found
            self._types[id(source)] = len(self.clauses)
            self.clauses.append(c.TypeIs(source, type(real)))
        return found

    def _number_of(self, scalar: Any, source: Source) -> Value | None:
        """The symbolic number that a scalar of NumPy's is, if it was another in another call."""
        if not self.shapes.changed or type(scalar).__module__ != "numpy":
            return None
        place = self.sources.iterator_part(source, "number")
        if not self.shapes.has_changed(place):
            return None
        found = self.number_input(scalar.item(), place)
        return found if isinstance(found, SymbolicNumber) else None

    def _guard_value(self, real: Any, source: Source) -> None:
        """Guard the value in place of the type, which it tells, too."""
        if self.sealed:
            raise RuntimeError(f"{source} is asked for when the guards are made")
        self.clauses[self._types[id(source)]] = c.ConstantIs(source, real)

    def guarded_ints(self) -> dict[int, int]:
        """The ints that existed before and whose value is guarded, by the ids of their sources."""
        found = {}
        for place, constant in self._constants.items():
            if constant.unread is None and type(constant.value) is int:
                found[place] = constant.value
        return found

    def pin(self, source: Source, obj: Any, by_address: bool = False) -> None:
        """Guard that `source` gives this very object (`by_address`: see `IdIs`)."""
        if type(source) is ObjectSource:
            return
        key = (c.IdIs, id(source))
        if key not in self._guarded:
            self._guarded.add(key)
            self.clauses.append(c.IdIs(source, obj, by_address))

    def real_of(self, value: Value) -> Any:
        """The object that existed before and that `value` stands for; None if it is not known."""
        key = next((key for key, known in self.known.items() if known is value), None)
        return next((obj for obj in self.keep_alive if id(obj) == key), None)

    def is_replaced(self, source: Source | None) -> bool:
        """Was the object there, or a module that it belongs to, another in another call?"""
        while self._replaced and source is not None:
            if str(source) in self._replaced:
                return True
            source = getattr(source, "base", None)
        return False

    def guard_state(self, name: str, value: Any) -> None:
        """Guard a global setting (a reader of `torch_state`)."""
        if (c.TorchState, name) not in self._guarded:
            self._guarded.add((c.TorchState, name))
            self.clauses.append(c.TorchState(name, value))

    def can_relate(self, first: Source | None, second: Source | None) -> bool:
        """Can guards speak of both objects?"""
        made = (type(None), ClosureCellSource, DrawSource)
        return not isinstance(first, made) and not isinstance(second, made)

    def distinct(self, first: Source | None, second: Source | None) -> None:
        """Guard that two sources give different objects. An object without a source is made in
        the frame: it is no other."""
        if first is None or second is None or first is second:
            return
        if not self.can_relate(first, second):
            return
        key = (c.DistinctObjects, id(first), id(second))
        if key not in self._guarded:
            self._guarded.add(key)
            self.clauses.append(c.DistinctObjects((first, second)))

    def same(self, first: Source, second: Source) -> None:
        """Guard that two sources give one object."""
        if first is second:
            return
        key = (c.SameObject, id(first), id(second))
        if key not in self._guarded:
            self._guarded.add(key)
            self.clauses.append(c.SameObject((first, second)))

    # --- graph inputs ------------------------------------------------------------------------

    def tensor_input(self, real: torch.Tensor, source: Source) -> TensorValue:
        """The value of a pre-existing tensor: an input of the graph."""
        static = (
            type(source) is ItemSource
            and type(source.base) is InstanceAttrSource
            and source.base.name in _PINNED_DICTS
            and not self.is_replaced(source)
        )
        # (All that matters of it is guarded besides.)
        by_address = static and type(real) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        known = self.known.get(id(real))
        if known is not None:
            assert isinstance(known, TensorValue) and known.source is not None
            if static:
                self.pin(source, real, by_address)
            else:
                self.same(known.source, source)
            return known
        if type(real) not in (torch.Tensor, torch.nn.Parameter) and self._is_to_be_plain(real):
            return self._plain_input(real, source)
        if static:
            self.pin(source, real, by_address)
        wraps = is_wrapper(real)
        if wraps and real.is_nested:
            raise GraphBreakSignal(
                "a nested tensor as an input, whose rows differ in length",
                "pass its values and offsets (`values()`, `offsets()`), or a padded tensor",
            )
        fixed = static or wraps or id(real) in self.inner
        sizes = None if fixed else self.shapes.sizes_of(real, source)
        try:
            clause = tensor_clause(real, source)
            fake = self._fake(real, sizes, source)
            clause = self._of_symbols(clause, fake, sizes, source)
        except (RuntimeError, NotImplementedError) as error:  # a subclass, vmap's tensors, sparse
            raise GraphBreakSignal(f"a {type(real).__name__} as an input: {error}") from error
        except Exception as error:
            if not wraps:  # what a subclass of the user's raises
                raise
            raise GraphBreakSignal(f"a {type(real).__name__} as an input: {error}") from error
        self.clauses.append(clause)
        if wraps:
            self._guard_inside(real, source)
        node = self._placeholder(source, fake)
        node.meta["static"] = static
        value = TensorValue(node, fake, type(real), source, real)
        if wraps and overrides_functions(type(real)):
            self._let_class_answer(value)
        self.own_functions |= value.overrides
        self.recorder.bind(value)
        self.known[id(real)] = value
        self.keep_alive.append(real)
        self.inputs.append((GraphInput(node.name, source, real, static), value))
        self._take_strides(fake, source)
        return value

    def _fake(self, real: torch.Tensor, sizes: Any, source: Source) -> FakeTensor:
        """What stands for an input in the graph, of these sizes (None: those that it has)."""
        symbol = None if sizes is None else self.shapes.stride_symbol(real, source)
        fake: FakeTensor = self.recorder.from_real(real, sizes, symbol)
        return fake

    def _take_strides(self, fake: FakeTensor, source: Source) -> None:
        """Let the strides of an input that are symbols of their own be inputs of the graph, too."""
        if is_wrapper(fake):
            return
        for dim, stride in enumerate(fake._strides):
            place = StrideSource(source, dim)
            if isinstance(stride, torch.SymInt) and self.shapes.is_loose(stride, place):
                expr = expr_of(stride)
                example = self.shapes.env.hint(expr)
                assert example is not None
                self.computed_input(place, example, expr)

    def _let_class_answer(self, value: TensorValue) -> None:
        """What operations with an input are, its class says, where torch asks it: as it does now,
        or no frame would be captured."""
        value.overrides = True
        self.guard_state("asks_classes", True)

    def _of_symbols(
        self, clause: c.TensorIs, fake: FakeTensor, sizes: Any, source: Source
    ) -> c.TensorIs:
        """The guard of a tensor whose `sizes` hold symbols (None: they do not)."""
        if sizes is None:
            return clause
        fixed = tuple(size if type(size) is int else None for size in fake._sizes)
        return replace(clause, sizes=fixed, strides=self.shapes.relate_strides(fake, source))

    def _placeholder(self, source: Source, value: Any) -> Node:
        return self.recorder.placeholder(_input_name(source, len(self.inputs)), value)

    def _is_to_be_plain(self, real: torch.Tensor) -> bool:
        if is_wrapper(real):
            return False
        if overrides_functions(type(real)):
            return True
        return not isinstance(real, (torch.nn.Parameter, torch.nn.Buffer))

    def _plain_input(self, real: torch.Tensor, source: Source) -> TensorValue:
        """The value of a tensor of the program's own class: the graph's input is the plain tensor
        of it. To look at the tensor may call the program's `__torch_function__`."""
        if isinstance(real, UninitializedTensorMixin):
            raise GraphBreakSignal(
                "a parameter without a shape, of a lazy module, as an input",
                "call the module once before it is compiled: that gives its parameters shapes",
            )
        if type(real).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise GraphBreakSignal(
                f"a {type(real).__name__} as an input: a class with a __torch_dispatch__ that does "
                "not only wrap tensors"
            )
        if self.exports:
            raise GraphBreakSignal(
                f"a {type(real).__name__} as an input of what is exported",
                "pass `x.as_subclass(torch.Tensor)`",
            )
        plain = as_class(real, torch.Tensor)
        leaf = plain.detach().requires_grad_(plain.requires_grad)
        with torch._C.DisableTorchFunctionSubclass():
            try:
                sizes = self.shapes.sizes_of(real, source)
                clause = tensor_clause(real, source)
                fake = self._fake(leaf, sizes, source)
            except (RuntimeError, NotImplementedError) as error:  # it is sparse, say
                raise GraphBreakSignal(f"a {type(real).__name__} as an input: {error}") from error
            clause = self._of_symbols(clause, fake, sizes, source)
        self.clauses.append(clause)
        node = self._placeholder(source, fake)
        node.meta["static"] = False
        value = TensorValue(node, fake, type(real), source, real)
        if is_asked(type(real)):
            self._let_class_answer(value)
        self.own_functions = True
        self.recorder.bind(value)
        self.known[id(real)] = value
        self.keep_alive.append(real)
        self.inputs.append((GraphInput(node.name, PlainSource(source), plain, False), value))
        self._take_strides(fake, source)
        return value

    def _guard_inside(self, real: Any, source: Source) -> None:
        """Guard what a tensor wraps, and what it says of itself."""
        flattened = real.__tensor_flatten__()
        self.clauses.append(c.ConstantIs(self.sources.flattened(source), as_it_is(flattened)))
        for name in flattened[0]:
            inner, place = getattr(real, name), self.sources.attr(source, name)
            self.inner.add(id(inner))
            self.clauses.append(tensor_clause(inner, place))
            if is_wrapper(inner):
                self._guard_inside(inner, place)

    def number_input(self, real: int | float, source: Source) -> Value:
        """The value of a pre-existing int or float: a constant, or an input of the graph if
        symbolic."""
        size = self.shapes.number(real, source)
        if isinstance(size, (int, float)):
            return self.constant(real, source)
        known = self.numbers.get(source)
        if known is None:
            self.guard(c.TypeIs, source, type(real))
            node = self._placeholder(source, size)
            known = self.numbers[source] = NumberInput(node, size, source)
            self.inputs.append((GraphInput(node.name, source, real, False), known))
        return known

    def computed_input(self, source: Source, example: int, expr: Expr) -> None:
        """Let a whole number that no argument gives be an input of the graph: one that is rounded
        from a float, or a stride."""
        size = self.shapes.env.symint(expr)
        if not isinstance(size, torch.SymInt):
            return
        node = self._placeholder(source, size)
        value = NumberInput(node, size, source)
        self.computed.append(value)
        self.inputs.append((GraphInput(node.name, source, example, False), value))

    def draw(self, call: CallFunction) -> DrawSource:
        """Let the replacement code make a call for a random number."""
        self.draws.append(call)
        return DrawSource(len(self.draws) - 1)

    def drawn_number(
        self, example: int | float, source: DrawSource, limits: tuple[float, float] | None
    ) -> Value:
        """A random number: an input of the graph of which only the limits are known."""
        env = self.shapes.env
        size: Any
        if isinstance(example, int):
            bounds = Range() if limits is None else Range(int(limits[0]), int(limits[1]))
            expr = env.create_unbacked(bounds)
            assert expr.symbol_name is not None
            env.unchecked.add(expr.symbol_name)  # the graph may not even take it
            self.drawn_symbols[expr.symbol_name] = source
            self.drawn_examples[expr.symbol_name] = example
            size = env.symint(expr)
        else:
            keys = None if limits is None else Range(*map(key_of, limits))
            size = env.symfloat(env.create_unbacked_float(keys))
        node = self._placeholder(source, size)
        value = NumberInput(node, size, source)
        self.inputs.append((GraphInput(node.name, source, example, False), value))
        return value

    def array_input(self, tensor: torch.Tensor, source: Source) -> TensorValue:
        """The tensor over the memory of a pre-existing array: an input of fixed sizes."""
        fake = self.recorder.from_real(tensor)
        node = self._placeholder(source, fake)
        value = self.recorder.bind(TensorValue(node, fake, torch.Tensor, source, tensor))
        self.inputs.append((GraphInput(node.name, source, tensor, False), value))
        return value

    def takes_numbers(self) -> bool:
        """Does the graph take a number?"""
        numbers = [value for _, value in self.inputs if isinstance(value, NumberInput)]
        return bool(self.computed) or any(value.node.users for value in numbers)

    def note_iterator_step(self, iterator: HeldIterator) -> None:
        """Let the replacement code take a step of an iterator that existed before."""
        self.stepped[id(iterator)] = iterator
        if self.steps_within:
            return
        steps = self.iterator_steps
        count = steps.pop()[1] if steps and steps[-1][0] is iterator else 0
        steps.append((iterator, count + 1))


class NumberInput(SymbolicNumber):
    """A symbolic int or float that is an input of the graph."""

    __slots__ = ("node",)

    def __init__(self, node: Any, value: Any, source: Source) -> None:
        super().__init__(value, source)
        self.node = node


def as_it_is(real: Any) -> Any:
    """What is compared with an object to see that it has not changed: a copy, where that can be
    told to be equal."""
    try:
        copied = copy.deepcopy(real)
        return copied if bool(copied == real) else real
    except Exception:  # what the program's classes raise
        return real


def tensor_clause(real: torch.Tensor, source: Source) -> c.TensorIs:
    """The guard on a tensor's metadata, all sizes static."""
    strided = real.layout == torch.strided
    return c.TensorIs(
        source,
        type(real),
        real.dtype,
        real.device,
        real.requires_grad,
        tuple(int(size) for size in real.shape),
        tuple(int(stride) for stride in real.stride()) if strided else None,
        real.layout,
        real.is_conj(),
        real.is_neg(),
    )


def _input_name(source: Source, index: int) -> str:
    """A readable placeholder name for a source."""
    text = _NOT_IN_NAMES.sub("_", _PLACE.sub("", str(source))).strip("_")
    text = text[-40:].lstrip("_0123456789")
    return f"in{index}_{text}" if text else f"in{index}"
