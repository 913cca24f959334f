"""The interpreter as protocols, library models and opcode handlers see it; what a handler of a
library function is, and what an extension adds to the tables of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.session.session import Session
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Value, boolean
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue, TruthOf
from dovetail_capture.options import CaptureOptions

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine.decoding import DecodedCode
    from dovetail_capture.interpreter.machine.frame import Frame


class Interpreter(Protocol):
    """One capture attempt's machine. Functions of `protocols/`, `library/` and `opcodes/` take it
    as their first argument; `bytecode_interpreter` joins them."""

    # The models of C functions and classes (`library.function_table`).
    handlers: Mapping[Any, Handler]
    code_handlers: Mapping[CodeType, Callable[..., Value | None]]  # (vm, function, args, kwargs)
    named_handlers: Mapping[tuple[str, str], Handler]
    new_handlers: Mapping[Any, Callable[..., Value]]  # (vm, class, args, kwargs)
    pure_classes: frozenset[type]
    arrays: Any  # what operators, subscripts and attributes of NumPy arrays do

    session: Session
    options: CaptureOptions
    debug: bool
    frames: list[Frame]
    generators: list[GeneratorValue]
    class_attributes: dict[tuple[type, str], tuple[Any, Any]]
    # What was read of classes before the frame changed any: (class, name) -> raw attribute
    class_reads: dict[tuple[type, str], Any]
    classes_read: dict[type, None]
    function_defaults: dict[Any, tuple[list[Any], dict[str, Any]]]
    global_values: dict[tuple[int, str], Value]
    copied: set[int]  # the containers that `as_python` is in
    class_attribute_values: dict[tuple[type, str], Value]

    def wrap(self, real: Any, source: Any) -> Value:
        """The value of a pre-existing object, guarded."""

    def held(self, real: Any) -> Value:
        """The value of an object reached from one that is pinned already."""

    def constant(self, real: Any) -> Value:
        """The value of plain data."""

    def set_stand_in_attr(self, cls: type, name: str, value: Value) -> None:
        """Set an attribute of a class made in the frame."""

    def wrap_class_attr(self, owner: type, name: str, attr: Any) -> Value:
        """The value of a raw class attribute. That the class holds it is guarded (`class_reads`);
        what is in it is guarded here."""

    def as_python(self, value: Any) -> Any:
        """The real object a value stands for, or `constants.UNKNOWN`."""

    def native(self, value: Value) -> Value:
        """The built-in container inside an instance of a subclass of one; else the value."""

    def raise_exception(self, cls: type, args: list[Value]) -> NoReturn:
        """Raise `cls(*args)` in the program."""

    def raise_error(
        self, cls: type, text: str, name: str | None = None, obj: Value | None = None
    ) -> NoReturn:
        """Raise `cls(text)` in the program, with what is set of the fields `name` and `obj`."""

    def raise_real(self, error: Exception) -> NoReturn:
        """Raise an exception that a folded call gave."""

    def note_context(self, error: ObjectValue) -> None:
        """Set what an exception knows when it is raised: the exception being handled, the place."""

    def as_exception(self, value: Value, what: str = "exceptions") -> ObjectValue:
        """What `raise value` raises."""

    def handled_exception(self) -> Value | None:
        """`sys.exception()`: the innermost exception being handled."""

    def get_attr(self, obj: Value, name: str) -> Value:
        """`obj.name`."""

    def find_attr(self, obj: Value, name: str) -> Value | None:
        """`getattr(obj, name, None)` that tells absence by None."""

    def set_attr(self, obj: Value, name: str, value: Value) -> None:
        """`obj.name = value`."""

    def del_attr(self, obj: Value, name: str) -> None:
        """`del obj.name`."""

    def call(self, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`fn(*args, **kwargs)`."""

    def call_method(self, obj: Value, name: str, args: list[Value]) -> Value:
        """`type(obj).name(obj, *args)`."""

    def getitem(self, obj: Value, key: Value) -> Value:
        """`obj[key]`."""

    def truth(self, value: Value) -> bool:
        """`bool(value)`."""

    def depends_on_data(self, value: Value) -> bool:
        """Does only the data of tensors tell the truth of this value?"""

    def decided(self, truth: SymbolicNumber) -> Value:
        """A comparison of random numbers is decided at once, or by Python: no graph hands it on."""

    def data_of(self, value: Value) -> Any:
        """The real object that a value stands for, which may be a tensor with known data, or
        `constants.UNKNOWN`."""

    def require(self, condition: Value, wanted: bool) -> bool:
        """Let the graph check that the condition is as wanted; False if it cannot."""

    def handles_exceptions(self) -> bool:
        """Does a frame of the program handle what is raised here?"""

    def check_later(self, *conditions: tuple[Value, bool]) -> bool:
        """Let it be read behind the graph whether one of the conditions is as wanted; False if that
        cannot be."""

    def truth_of(self, value: Value) -> TruthOf | None:
        """The truth of a tensor, if it may yet be checked behind the graph."""

    def behind_proxy(self, value: Value) -> Value:
        """The mapping that a mapping proxy shows; any other value itself."""

    def get_iter(self, value: Value) -> Value:
        """`iter(value)`."""

    def next_value(self, iterator: Value) -> Value | None:
        """The next item of an iterator; None at its end."""

    def iterate(self, value: Value) -> Iterator[Value]:
        """The items of an iterable."""

    def is_instance(self, value: Value, classinfo: Value) -> bool:
        """`isinstance(value, classinfo)`."""

    def to_text(self, value: Value, how: str) -> str:
        """`str(value)` or `repr(value)`, as `how` names it."""

    def resolve_cell(self, cell: CellValue) -> Value:
        """The content of a cell that is not empty."""

    def set_global(self, globals_: dict[str, Any], name: str, value: Value | None) -> None:
        """Write a global (recorded; replayed as an effect)."""

    def is_operation(self, fn: Any) -> bool:
        """Is `fn` a torch function that becomes a graph node?"""

    def record_whole(self, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Record a call of a function that the user allows in the graph."""

    def record(
        self,
        kind: str,
        target: Any,
        args: list[Value],
        kwargs: dict[str, Value],
        run: Callable[..., Any] | None = None,
    ) -> Value:
        """Record a tensor operation (`run` on fakes, if given); lazy children of its arguments are
        looked at first."""

    def look_into(self, value: Value) -> None:
        """Look at the lazy children of a container."""

    def answer_of_modes(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Any:
        """What the program's function modes make of an operation that has a handler; None if
        there are none, or none does anything."""

    def tensor_property(self, obj: TensorValue, name: str) -> Value:
        """A C attribute of a tensor: metadata is folded, tensors are recorded."""

    def tensor_of_class(self, tensor: Value, cls: type) -> Value:
        """`tensor.as_subclass(cls)`."""

    def is_pure(self, fn: Any) -> bool:
        """May `fn` be run at capture when all its arguments are known?"""

    def fold(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Run a pure function on known arguments."""

    def decode(self, code: CodeType) -> DecodedCode:
        """The decoded form of a code object, cached for as long as the code lives."""

    def run_frame(self, frame: Frame) -> Value:
        """Run an inlined call to its end (or to the making of its generator)."""

    def resume(self, generator: GeneratorValue, sent: Value | None) -> Value | None:
        """Run a generator to its next value; None when it ends."""

    def throw_into(self, generator: GeneratorValue, error: ObjectValue) -> Value | None:
        """`generator.throw(error)`."""

    def note_break(self, signal: GraphBreakSignal) -> None:
        """Remember where a break arose, the first time it passes by."""

    def stack_trace(self) -> str:
        """The interpreted stack, as text for a node."""


Args = list[Value]
Kwargs = dict[str, Value]
Handler = Callable[["Interpreter", Args, Kwargs], Value]
# What a handler returns to leave the call to the general rules.
PASS = cast(Value, NotImplemented)


def answering(function: Callable[..., Value]) -> Handler:
    """A handler that gives what `function(vm, *args)` gives."""
    return lambda vm, args, kwargs: function(vm, *args)


def telling(function: Callable[..., bool]) -> Handler:
    """A handler that gives the truth value that `function(vm, *args)` tells."""
    return lambda vm, args, kwargs: boolean(function(vm, *args))


def doing(function: Callable[..., None]) -> Handler:
    """A handler that calls `function(vm, *args)` for its effect, and gives None."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        function(vm, *args)
        return NONE

    return handler


@dataclass(frozen=True)
class Substitute:
    """What Python runs in place of a library function that cannot be captured as one graph."""

    code: CodeType  # takes what the function takes, and calls what stands in for it
    reason: str  # why a graph ends before a call
    hint: str = "leave the step out of the compiled function"


@dataclass(frozen=True)
class Extension:
    """What a part of capture that the core does not import adds to `function_table`."""

    name: str
    handlers: Mapping[Any, Handler] = field(default_factory=dict)
    code_handlers: Mapping[CodeType, Callable[..., Value | None]] = field(default_factory=dict)
    named_handlers: Mapping[tuple[str, str], Handler] = field(default_factory=dict)
    substitutes: Mapping[CodeType, Substitute] = field(default_factory=dict)
    # Code of functions whose frames are not worth capturing: what calls them is.
    without_frame: Collection[CodeType] = ()
    arrays: Any = None  # operators, subscripts and attributes of NumPy arrays
