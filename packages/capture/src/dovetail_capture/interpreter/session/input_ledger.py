"""The inputs of the graph of one capture attempt."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.expr import Expr
from dovetail_guards.source import (
    InstanceAttrSource,
    ItemSource,
    ObjectSource,
    Source,
    StrideSource,
)
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import STATIC
from dovetail_prims.wrappers import is_wrapper, overrides_functions
from torch.fx import Node
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from dovetail_capture.captured_frame import GraphInput
from dovetail_capture.interpreter.graph.recorder import Recorder
from dovetail_capture.interpreter.session.guard_ledger import GuardLedger, SourceTable
from dovetail_capture.interpreter.session.input_shapes import InputShapes
from dovetail_capture.interpreter.session.ledgers import ModeLedger, ObjectLedger
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.computed_sources import PlainSource, as_class, is_asked
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.options import CaptureOptions

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]+")
_PLACE = re.compile(r" at 0x[0-9a-f]+>")  # another one in each process
_SINGLETONS = (type(None), type(Ellipsis), type(NotImplemented))  # types of one object each
_PINNED_DICTS = ("_parameters", "_buffers")


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


class InputLedger:
    """The inputs of the graph: tensors and numbers that existed before, and computed numbers."""

    def __init__(
        self,
        options: CaptureOptions,
        recorder: Recorder,
        shapes: InputShapes,
        sources: SourceTable,
        guards: GuardLedger,
        objects: ObjectLedger,
        modes: ModeLedger,
    ) -> None:
        self.entries: list[tuple[GraphInput, TensorValue | NumberInput]] = []
        self.numbers: dict[Source, NumberInput] = {}
        self.computed: list[NumberInput] = []  # inputs that are computed of others
        # ids of the tensors inside of wrapping inputs: their sizes are fixed, as these tensors' are
        self._inner: set[int] = set()
        self._exports = options.exports
        self._replaced = options.learned.replaced
        self._recorder = recorder
        self._shapes = shapes
        self._sources = sources
        self._guards = guards
        self._objects = objects
        self._modes = modes
        if not options.exports:  # what is exported takes what it was given
            # Weakly: what a program leaves behind must go when its capture does, not when Python's
            # collector runs.
            shapes.env.make_input = _held_weakly(self.computed_number)

    def is_replaced(self, source: Source | None) -> bool:
        """Was the object there, or a module that it belongs to, another in another call?"""
        while self._replaced and source is not None:
            if str(source) in self._replaced:
                return True
            source = getattr(source, "base", None)
        return False

    def constant(self, real: Any, source: Source) -> Constant:
        """The value of a pre-existing object that is known by its value: its type is guarded now,
        and its value once something asks for it."""
        if type(source) is ObjectSource:
            return Constant(real, source)
        related = self._guards.can_relate(source, source)
        if self._exports or type(real) in _SINGLETONS or not related:
            self._guards.add(c.ConstantIs, source, real)
            return Constant(real, source)
        return self._guards.constant(real, source, partial(self._number_of, real, source))

    def _number_of(self, scalar: Any, source: Source) -> Value | None:
        """The symbolic number that a scalar of NumPy's is, if it was another in another call."""
        if not self._shapes.changed or type(scalar).__module__ != "numpy":
            return None
        place = self._sources.iterator_part(source, "number")
        if not self._shapes.has_changed(place):
            return None
        found = self.number(scalar.item(), place)
        return found if isinstance(found, SymbolicNumber) else None

    def tensor(self, real: torch.Tensor, source: Source) -> TensorValue:
        """The value of a pre-existing tensor: an input of the graph."""
        static = (
            type(source) is ItemSource
            and type(source.base) is InstanceAttrSource
            and source.base.name in _PINNED_DICTS
            and not self.is_replaced(source)
        )
        # (All that matters of it is guarded besides.)
        by_address = static and type(real) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        known = self._objects.known.get(id(real))
        if known is not None:
            assert isinstance(known, TensorValue) and known.source is not None
            if static:
                self._guards.pin(source, real, by_address)
            else:
                self._guards.same(known.source, source)
            return known
        if type(real) not in (torch.Tensor, torch.nn.Parameter) and self._is_to_be_plain(real):
            return self._plain_input(real, source)
        if static:
            self._guards.pin(source, real, by_address)
        wraps = is_wrapper(real)
        if wraps and real.is_nested:
            raise GraphBreakSignal(
                "a nested tensor as an input, whose rows differ in length",
                "pass its values and offsets (`values()`, `offsets()`), or a padded tensor",
            )
        fixed = static or wraps or id(real) in self._inner
        sizes = None if fixed else self._shapes.sizes_of(real, source)
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
        self._guards.append(clause)
        if wraps:
            self._guard_inside(real, source)
        node = self._placeholder(source, fake)
        STATIC.tell(node, static)
        value = TensorValue(node, fake, type(real), source, real)
        if wraps and overrides_functions(type(real)):
            self._let_class_answer(value)
        self._modes.own_functions |= value.overrides
        self._recorder.bind(value)
        self._objects.bind(real, value)
        self.entries.append((GraphInput(node.name, source, real, static), value))
        self._take_strides(fake, source)
        return value

    def _fake(self, real: torch.Tensor, sizes: Any, source: Source) -> FakeTensor:
        """What stands for an input in the graph, of these sizes (None: those that it has)."""
        symbol = None if sizes is None else self._shapes.stride_symbol(real, source)
        fake: FakeTensor = self._recorder.from_real(real, sizes, symbol)
        return fake

    def _take_strides(self, fake: FakeTensor, source: Source) -> None:
        """Let the strides of an input that are symbols of their own be inputs of the graph, too."""
        if is_wrapper(fake):
            return
        for dim, stride in enumerate(fake._strides):
            place = StrideSource(source, dim)
            if isinstance(stride, torch.SymInt) and self._shapes.is_loose(stride, place):
                expr = expr_of(stride)
                example = self._shapes.env.hint(expr)
                assert example is not None
                self.computed_number(place, example, expr)

    def _let_class_answer(self, value: TensorValue) -> None:
        """What operations with an input are, its class says, where torch asks it: as it does now,
        or no frame would be captured."""
        value.overrides = True
        self._guards.state("asks_classes", True)

    def _of_symbols(
        self, clause: c.TensorIs, fake: FakeTensor, sizes: Any, source: Source
    ) -> c.TensorIs:
        """The guard of a tensor whose `sizes` hold symbols (None: they do not)."""
        if sizes is None:
            return clause
        fixed = tuple(size if type(size) is int else None for size in fake._sizes)
        return replace(clause, sizes=fixed, strides=self._shapes.relate_strides(fake, source))

    def _placeholder(self, source: Source, value: Any) -> Node:
        return self._recorder.placeholder(_input_name(source, len(self.entries)), value)

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
        if self._exports:
            raise GraphBreakSignal(
                f"a {type(real).__name__} as an input of what is exported",
                "pass `x.as_subclass(torch.Tensor)`",
            )
        plain = as_class(real, torch.Tensor)
        leaf = plain.detach().requires_grad_(plain.requires_grad)
        with torch._C.DisableTorchFunctionSubclass():
            try:
                sizes = self._shapes.sizes_of(real, source)
                clause = tensor_clause(real, source)
                fake = self._fake(leaf, sizes, source)
            except (RuntimeError, NotImplementedError) as error:  # it is sparse, say
                raise GraphBreakSignal(f"a {type(real).__name__} as an input: {error}") from error
            clause = self._of_symbols(clause, fake, sizes, source)
        self._guards.append(clause)
        node = self._placeholder(source, fake)
        STATIC.tell(node, False)
        value = TensorValue(node, fake, type(real), source, real)
        if is_asked(type(real)):
            self._let_class_answer(value)
        self._modes.own_functions = True
        self._recorder.bind(value)
        self._objects.bind(real, value)
        self.entries.append((GraphInput(node.name, PlainSource(source), plain, False), value))
        self._take_strides(fake, source)
        return value

    def _guard_inside(self, real: Any, source: Source) -> None:
        """Guard what a tensor wraps, and what it says of itself."""
        flattened = real.__tensor_flatten__()
        self._guards.append(c.ConstantIs(self._sources.flattened(source), as_it_is(flattened)))
        for name in flattened[0]:
            inner, place = getattr(real, name), self._sources.attr(source, name)
            self._inner.add(id(inner))
            self._guards.append(tensor_clause(inner, place))
            if is_wrapper(inner):
                self._guard_inside(inner, place)

    def number(self, real: int | float, source: Source) -> Value:
        """The value of a pre-existing int or float: a constant, or an input of the graph if
        symbolic."""
        size = self._shapes.number(real, source)
        if isinstance(size, (int, float)):
            return self.constant(real, source)
        known = self.numbers.get(source)
        if known is None:
            self._guards.add(c.TypeIs, source, type(real))
            known = self.numbers[source] = self.symbol(size, source, real)
        return known

    def computed_number(self, source: Source, example: int, expr: Expr) -> None:
        """Let a whole number that no argument gives be an input of the graph: one that is rounded
        from a float, or a stride."""
        size = self._shapes.env.symint(expr)
        if not isinstance(size, torch.SymInt):
            return
        self.computed.append(self.symbol(size, source, example))

    def symbol(self, size: Any, source: Source, example: int | float) -> NumberInput:
        """A symbolic number as an input of the graph."""
        node = self._placeholder(source, size)
        value = NumberInput(node, size, source)
        self.entries.append((GraphInput(node.name, source, example, False), value))
        return value

    def array(self, tensor: torch.Tensor, source: Source) -> TensorValue:
        """The tensor over the memory of a pre-existing array: an input of fixed sizes."""
        fake = self._recorder.from_real(tensor)
        node = self._placeholder(source, fake)
        value = self._recorder.bind(TensorValue(node, fake, torch.Tensor, source, tensor))
        self.entries.append((GraphInput(node.name, source, tensor, False), value))
        return value

    def takes_numbers(self) -> bool:
        """Does the graph take a number?"""
        numbers = [value for _, value in self.entries if isinstance(value, NumberInput)]
        return bool(self.computed) or any(value.node.users for value in numbers)


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
