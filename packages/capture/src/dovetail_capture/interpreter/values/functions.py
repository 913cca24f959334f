"""Functions made in the frame, bound methods, cells, `super` objects, iterators and hooks."""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from dovetail_guards.source import Source
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node
from torch.utils.hooks import RemovableHandle

from dovetail_capture.errors import NotCapturable
from dovetail_capture.interpreter.signals import CannotRebuild
from dovetail_capture.interpreter.values.base import Lazy, Value
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.values.containers import DictValue


class CellValue(Value):
    """A closure cell; `real` is the pre-existing one it stands for. `set_aside` is the step of the
    top frame in which a comprehension took it out of its slot."""

    __slots__ = ("content", "mutated", "real", "set_aside")

    def __init__(self, content: Any = None, source: Source | None = None, real: Any = None) -> None:
        self.content = content  # a Value, a Lazy, or None if empty
        self.source = source
        self.real = real
        self.mutated = False
        self.set_aside = 0

    def python_type(self) -> type:
        return types.CellType


class FunctionValue(Value):
    """A function made in the frame by MAKE_FUNCTION, or one that is given (then it has a source)
    and known by its code: `given`, whose `__dict__` is empty."""

    __slots__ = ("annotations", "attributes", "closure", "code", "defaults", "given",
                 "globals_", "kwdefaults", "name", "special", "top_globals")  # fmt: skip

    def __init__(self, code: CodeType, globals_: dict[str, Any]) -> None:
        self.code = code
        self.globals_ = globals_
        self.name = code.co_name
        self.defaults: tuple[Value, ...] = ()
        self.kwdefaults: DictValue | None = None
        self.closure: tuple[CellValue, ...] = ()
        self.annotations: Value | None = None
        self.attributes: DictValue | None = None
        self.given: types.FunctionType | None = None
        self.special: dict[str, Value] = {}  # attributes that are not in its `__dict__`
        self.source = None

    def python_type(self) -> type:
        return types.FunctionType


class BoundMethod(Value):
    """A Python-level bound method: `function` called with `receiver` in front."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Value, receiver: Value, source: Source | None = None) -> None:
        self.function = function
        self.receiver = receiver
        self.source = source

    def python_type(self) -> type:
        return types.MethodType


class NativeMethod(Value):
    """A method of a C type bound to its receiver: `[].append`, `tensor.view`."""

    __slots__ = ("descriptor", "name", "receiver")

    def __init__(self, descriptor: Any, receiver: Value, name: str) -> None:
        self.descriptor = descriptor
        self.receiver = receiver
        self.name = name
        self.source = None

    def python_type(self) -> type:
        if isinstance(self.descriptor, types.WrapperDescriptorType):
            return types.MethodWrapperType
        return types.BuiltinMethodType


class SuperValue(Value):
    """`super(cls, receiver)`."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: type, receiver: Value) -> None:
        self.cls = cls
        self.receiver = receiver
        self.source = None

    def python_type(self) -> type:
        return super


class IteratorValue(Value):
    """An iterator over values that the interpreter drives.

    `plain` says that running it early is invisible to the program, so that what is left of it can
    be rebuilt as an iterator over a tuple. Otherwise `remake` makes it of `over`: other iterators
    and functions, or the container that it goes through, which had `size` items when it began
    (`members`: their hash keys and values, of a set or dictionary; `left`: what had left it).
    `taken` counts its steps; it has `ended` for good when one gave nothing. `born` is the step of
    the top frame that made it.
    """

    __slots__ = ("born", "cls", "ended", "iterator", "left", "members", "over", "plain", "remake",
                 "size", "taken")  # fmt: skip

    def __init__(
        self,
        iterator: Iterator[Value],
        cls: type,
        plain: bool = False,
        over: list[Value] | None = None,
        size: int | None = None,
        remake: Callable[..., Any] | None = None,
    ) -> None:
        self.iterator = iterator
        self.cls = cls
        self.plain = plain
        self.over = over
        self.size = size
        self.members: list[tuple[Any, Value]] | None = None
        self.left = 0
        self.remake = remake or (cls if size is None else iter)
        self.taken = 0
        self.ended = False
        self.source = None
        self.born = 0

    def python_type(self) -> type:
        return self.cls


class HeldIterator(Value):
    """A built-in iterator that existed before the frame ran; `step` gives its next item, None at
    the end (see `protocols.held_iterators`, which makes it)."""

    __slots__ = ("origin", "real", "step")

    def __init__(self, real: Any, source: Source) -> None:
        self.real = real
        self.source = self.origin = source
        self.step: Callable[[], Value | Lazy | None] | None = None

    def python_type(self) -> type:
        return type(self.real)


class HandlerMark(Value):
    """What the value stack holds inside an exception handler: the exception that was handled
    before. `active` until the handler is left."""

    __slots__ = ("active", "previous")

    def __init__(self, previous: Value | None) -> None:
        self.previous = previous
        self.active = True
        self.source = None

    def python_type(self) -> type:
        return types.NoneType if self.previous is None else self.previous.python_type()


class TracebackValue(Value):
    """The traceback of an exception raised in the frame: the code objects it passed through, with
    offsets in them, outermost first, from the frame that handles it (`first`) on."""

    __slots__ = ("error", "first", "places")

    def __init__(self, error: Value, places: tuple[tuple[CodeType, int], ...]) -> None:
        self.error = error
        self.places = places
        self.first = len(places)
        self.source = None

    def python_type(self) -> type:
        return types.TracebackType


class TransformValue(Value):
    """`transform(function, **options)`: `torch.vmap` and its like, applied to a function, and what
    a call of it does.

    `inner`: the function was captured already, with its arguments; what is called is given further
    ones (what `torch.func.vjp` returns). `born` is the step of the top frame that made it.
    """

    __slots__ = ("born", "called", "function", "inner", "options", "transform")

    def __init__(
        self,
        called: Callable[..., Value],  # (vm, the value itself, args, kwargs)
        transform: Any,
        function: Value,
        options: dict[str, Any],
        inner: Any = None,
    ) -> None:
        self.called = called
        self.transform = transform
        self.function = function
        self.options = options
        self.inner = inner
        self.born = 0
        self.source = None

    def python_type(self) -> type:
        return types.FunctionType


class HandleValue(Value):
    """The handle of a hook of the graph's: `node` registers it (None for one that does nothing),
    and `real` is the handle of the same hook on the fake. Or that of a hook on an input, which the
    call `late` registers after the graph. `born` is the step of the top frame that made it."""

    __slots__ = ("born", "late", "node", "real", "removed")

    def __init__(self, node: Node | None, real: Any, born: int, late: Any = None) -> None:
        self.node = node
        self.real = real
        self.late = late
        self.removed = False
        self.born = born
        self.source = None

    def python_type(self) -> type:
        return RemovableHandle


@dataclass(frozen=True)
class Hooked:
    """A tensor with a hook of the graph's; `taken` are the tensors and numbers that the hook takes
    besides, `cells` what it closes over, with what they held; `late` what to raise if the hook
    cannot be part of the graph after all."""

    tensor: TensorValue
    handle: HandleValue
    taken: list[Value]
    cells: list[tuple[CellValue, Any]]
    late: NotCapturable | None
    kind: str = "a tensor with a hook"

    def takes_what_changes(self, inputs: Iterable[Any], outputs: Iterable[Any]) -> bool:
        """May a tensor that the hook takes be written to between the graph and the hook? One of
        the graph's `outputs` may, and one of its `inputs` that it writes to. (Of other inputs
        autograd's counters tell.)"""
        given, taken = _storages(outputs), _storages(inputs)
        for one in self.taken:
            if isinstance(one, TensorValue):
                storage = id(one.fake._storage)
                if one.fake._version if storage in taken else storage in given:
                    return True
        return False

    def refuse(self, what: str) -> None:
        """Let the capture end before the hook, which was not removed; or the frame run as it is."""
        if self.handle.removed:
            return
        if self.late is not None:
            raise self.late
        raise CannotRebuild(what, self.handle.born)


@dataclass(frozen=True)
class LateState:
    """What a backward of a function of autograd, or a hook (`what`), takes for granted of what the
    frame has made (`before`, each value with its state) and of `tensors`, which the frame may not
    write to, with their versions. It was captured in step `born` of the top frame."""

    what: str
    born: int
    before: list[tuple[Value, Any]]
    tensors: list[tuple[TensorValue, int]]

    def check(self, made: Container[int], state_of: Callable[[Value], Any]) -> None:
        """Let the capture end before the function if any of it is `made` again for others, or is
        written to."""
        for value, before in self.before:
            if id(value) in made or state_of(value) != before:
                raise CannotRebuild(f"{value.describe()} that {self.what} reads", self.born)
        for tensor, version in self.tensors:
            if tensor.fake._version != version:
                raise CannotRebuild(f"a tensor of {self.what} that is written to", self.born)


def _storages(fakes: Iterable[Any]) -> set[int]:
    return {id(fake._storage) for fake in fakes if isinstance(fake, FakeTensor)}
