"""The interpreter of one capture attempt, joined of protocols, library models and opcodes."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import nn

from dovetail_capture.interpreter.data_checks import try_blocks, value_checks
from dovetail_capture.interpreter.data_checks.try_blocks import handles
from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.inputs import wrap as wrapping
from dovetail_capture.interpreter.library import function_table as library
from dovetail_capture.interpreter.library.torch_functions import allowed_calls
from dovetail_capture.interpreter.machine import Interpreter, decoding
from dovetail_capture.interpreter.machine.frame import Frame, GeneratorValue
from dovetail_capture.interpreter.opcodes.table import HANDLERS as OPCODE_HANDLERS
from dovetail_capture.interpreter.protocols import (
    assignment,
    attributes,
    calls,
    choices,
    constants,
    dicts,
    folding,
    iteration,
    raising,
    resumed_iterators,
    sequences,
    subscripts,
    truth_and_length,
)
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import Chosen, TensorValue
from dovetail_capture.options import CaptureOptions

_DECODED: dict[int, tuple[weakref.ref[CodeType], decoding.DecodedCode]] = {}
MAX_DEPTH = 150


class BytecodeInterpreter(Interpreter):
    """Joins the protocols over values, and keeps the stack of interpreted frames."""

    handlers = library.HANDLERS
    code_handlers = library.CODE_HANDLERS
    named_handlers = library.NAMED_HANDLERS
    new_handlers = library.NEW_HANDLERS
    pure_classes = library.PURE_CLASSES

    def __init__(self, session: Session, options: CaptureOptions, debug: bool = False) -> None:
        self.session = session
        self.options = options
        self.arrays = library.arrays()
        # An interpreted call takes several of the interpreter's own.
        self.debug = debug
        self.frames: list[Frame] = []
        self.generators: list[GeneratorValue] = []
        self.class_attributes: dict[tuple[type, str], tuple[Any, Any]] = {}
        # What was read of classes before the frame changed any: (class, name) -> raw attribute
        self.class_reads: dict[tuple[type, str], Any] = {}
        self.classes_read: dict[type, None] = {}
        self.function_defaults: dict[Any, tuple[list[Any], dict[str, Any]]] = {}
        self.global_values: dict[tuple[int, str], Value] = {}
        self.copied: set[int] = set()  # the containers that `as_python` is in
        self.class_attribute_values: dict[tuple[type, str], Value] = {}

    # --- values of real objects ----------------------------------------------------------------

    def wrap(self, real: Any, source: Any) -> Value:
        return wrapping.wrap(self.session, real, source)

    def held(self, real: Any) -> Value:
        if real is None:
            return NONE
        return wrapping.wrap(self.session, real, self.session.sources.held(real))

    constant = constants.from_python
    set_stand_in_attr = library.set_class_attr

    def wrap_class_attr(self, owner: type, name: str, attr: Any) -> Value:
        key = (owner, name)
        known = self.class_attribute_values.get(key)
        if known is None:
            sources = self.session.sources
            made_here = id(owner) in self.session.objects.stand_ins
            if owner.__module__ == "builtins" or callable(attr) or made_here:
                known = self.held(attr)
            else:
                known = self.wrap(attr, sources.attr(sources.held(owner), name))
            self.class_attribute_values[key] = known
        return known

    as_python = constants.as_python

    def native(self, value: Value) -> Value:
        if isinstance(value, ObjectValue) and value.native is not None:
            return value.native
        return value

    # --- exceptions of the program -------------------------------------------------------------

    raise_exception = raising.raise_exception
    raise_error = raising.raise_error

    def raise_real(self, error: Exception) -> NoReturn:
        raising.raise_exception(self, type(error), [self.constant(arg) for arg in error.args])

    note_context = raising.note_context
    as_exception = raising.as_exception
    handled_exception = raising.handled_exception

    # --- protocols -----------------------------------------------------------------------------

    get_attr = attributes.get_attr
    find_attr = attributes.find_attr
    set_attr = assignment.set_attr
    del_attr = assignment.del_attr
    call = calls.call

    def call_method(self, obj: Value, name: str, args: list[Value]) -> Value:
        return calls.call(self, attributes.get_attr(self, obj, name), args, {})

    getitem = subscripts.getitem
    truth = truth_and_length.truth

    def depends_on_data(self, value: Value) -> bool:
        if self.session.recorder.data_env is None:
            return False
        if isinstance(value, SymbolicNumber):
            return not isinstance(value.value, int) and value.value.node.hint is None
        return isinstance(value, TensorValue) and value.answer is None

    def decided(self, truth: SymbolicNumber) -> Value:
        if self.session.recorder.data_env is None and truth.value.node.hint is None:
            return self.constant(bool(truth.value))
        return truth

    def data_of(self, value: Value) -> Any:
        if isinstance(value, TensorValue):
            known = self.session.recorder.data.of(value.fake)
            return constants.UNKNOWN if known is None else known
        return self.as_python(value)

    require = library.require_truth

    def handles_exceptions(self) -> bool:
        return any(map(try_blocks.handles, self.frames))

    check_later = value_checks.check_later
    truth_of = value_checks.truth_of
    behind_proxy = library.mapping_of
    get_iter = iteration.get_iter
    next_value = iteration.next_value
    iterate = iteration.iterate
    is_instance = library.is_instance
    to_text = library.to_text

    # --- variables ------------------------------------------------------------------------------

    def resolve_cell(self, cell: CellValue) -> Value:
        if self.session.late_reads.watch is not None:
            self.session.late_reads.watch.cell(cell, str(self.frames[-1].current.argval))
        content = cell.content
        if content.__class__ is Lazy:
            content = cell.content = self.wrap(content.real, content.source)
        return content  # type: ignore[no-any-return]

    def set_global(self, globals_: dict[str, Any], name: str, value: Value | None) -> None:
        self.session.effects.write_global(globals_, name, value)

    # --- tensor operations and folding ---------------------------------------------------------

    is_operation = staticmethod(library.is_operation)
    record_whole = allowed_calls.record_whole

    def record(
        self,
        kind: str,
        target: Any,
        args: list[Value],
        kwargs: dict[str, Value],
        run: Callable[..., Any] | None = None,
    ) -> Value:
        for value in (*args, *kwargs.values()):
            if value.__class__ is not TensorValue and value.__class__ is not Constant:
                if value.__class__ is Chosen:
                    args = choices.settled(getattr(target, "__name__", target), args, kwargs)
                else:
                    self.look_into(value)
        if self.session.modes.function_modes or self.session.modes.own_functions:
            function = getattr(torch.Tensor, target) if kind == "call_method" else target
            kwargs = dict(kwargs)
            answer = library.through_modes(self, function, args, kwargs)
            if answer is not None:
                return answer
            library.check_input_stays(target, args)
        value_checks.note_operation(self, getattr(target, "__name__", target), args)
        try:
            result = self.session.recorder.record(kind, target, args, kwargs, run)
        except NotAGraphArgument:
            function = getattr(torch.Tensor, target) if kind == "call_method" else target
            answer = library.ask_objects(self, function, args, kwargs)
            if answer is None:
                raise
            return answer
        asked = kwargs.get("requires_grad")
        if asked is not None and isinstance(result, TensorValue) and result.fake.requires_grad:
            self.session.effects.make_leaf(result, self.frames[0].steps)
        return result

    def look_into(self, value: Value) -> None:
        value = self.native(value)
        if isinstance(value, (ListValue, TupleValue)):
            children = sequences.items(self, value)
        elif isinstance(value, DictValue):
            children = [child for _, child in dicts.items(self, value)]
        else:
            return
        for child in children:
            if child.__class__ is not TensorValue and child.__class__ is not Constant:
                self.look_into(child)

    def answer_of_modes(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Any:
        asks = self.session.modes.function_modes or self.session.modes.own_functions
        if not asks or not library.is_operation(fn):
            return None
        return library.through_modes(self, fn, args, kwargs)

    def tensor_property(self, obj: TensorValue, name: str) -> Value:
        if self.session.modes.function_modes or self.session.modes.own_functions:
            answer = library.through_modes(self, operator.attrgetter(name), [obj], {})
            if answer is not None:
                return answer
        return library.tensor_property(self, obj, name)

    def tensor_of_class(self, tensor: Value, cls: type) -> Value:
        return library.as_subclass(self, [tensor, Constant(cls)], {})

    is_pure = staticmethod(library.is_pure)
    fold = folding.fold

    # --- frames --------------------------------------------------------------------------------

    def decode(self, code: CodeType) -> decoding.DecodedCode:
        key = id(code)
        known = _DECODED.get(key)
        if known is None:
            owner = weakref.ref(code, lambda _: _DECODED.pop(key, None))
            known = _DECODED[key] = (owner, decoding.decode(code, OPCODE_HANDLERS))
        return known[1]

    def run_frame(self, frame: Frame) -> Value:
        frames = self.frames
        if len(frames) > MAX_DEPTH:
            raise GraphBreakSignal(f"calls nested more than {MAX_DEPTH} deep")
        frames.append(frame)
        try:
            frame.run()
        except GraphBreakSignal as signal:
            self.note_break(signal)
            raise
        except RecursionError:  # ours: an interpreted call takes several of the interpreter's own
            raise GraphBreakSignal("calls nested deeper than capture follows") from None
        finally:
            frames.pop()
        assert frame.result is not None
        return frame.result

    resume = resumed_iterators.resume
    throw_into = resumed_iterators.throw_into

    def note_break(self, signal: GraphBreakSignal) -> None:
        if signal.where is None:
            signal.where = [
                (frame.code.co_filename, frame.line(), _function_of(frame)) for frame in self.frames
            ]
            if signal.raises is not None and any(map(handles, self.frames)):
                signal.raises = None

    def stack_trace(self) -> str:
        lines = []
        for frame in self.frames:
            code = frame.code
            lines.append(f'File "{code.co_filename}", line {frame.line()}, in {code.co_name}')
        return "\n".join(lines)


def _function_of(frame: Frame) -> str:
    """The name of a frame's function, for people; of a module's method, which module's."""
    name = frame.code.co_qualname
    module = frame.slots[0] if frame.code.co_varnames[:1] == ("self",) else None
    if frame.is_top or not isinstance(module, Value) or module.source is None:
        return name
    return f"{name} of {module.source}" if issubclass(module.python_type(), nn.Module) else name
