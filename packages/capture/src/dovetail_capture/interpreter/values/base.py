"""`Value`: what stands for a Python object while a frame is interpreted."""

from __future__ import annotations

import enum
import functools
import operator
import re
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from dovetail_guards.source import Source


class Value:
    """Stands for one Python object.

    `source` tells where the object came from if it existed before the frame ran, and is None for
    an object made in the frame. Two places hold the same `Value` exactly if they hold the same
    object. `hashed` is set once it was a key, or a member of a set, by its identity: then whether
    two such objects are one decided what the container held.
    """

    __slots__ = ("hashed", "source")

    hashed: bool
    source: Source | None

    def python_type(self) -> type:
        """The type of the object this stands for."""
        raise NotImplementedError

    def describe(self) -> str:
        """A short text for graph-break messages."""
        return f"a {self.python_type().__name__}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe():.60})"


class Constant(Value):
    """An object known at capture: a number, string, None, dtype or device, or a function, class,
    module or other long-lived object.

    One that existed before is pinned by a guard: at once, or (`unread`) when its `value` is first
    asked for. Until then only its type is guarded, and a program that passes it on may be given
    another.
    """

    __slots__ = ("unread", "value")

    unread: Unread | None

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source
        self.unread = None

    @staticmethod
    def guarded_when_read(source: Source, unread: Unread) -> Constant:
        """The constant of a pre-existing object whose value nothing has asked for yet."""
        made = Constant.__new__(Constant)
        made.source = source
        made.unread = unread
        return made

    def symbolic(self) -> Value | None:
        """The input of the graph for a scalar of NumPy's that was another in another call: torch's
        functions take it for the Python number. None where it is a constant for them."""
        return None if self.unread is None else self.unread.number()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called where an attribute is not set, as `value` is not before it is first read."""
            unread = self.unread if name == "value" else None
            if unread is None:
                raise AttributeError(name)
            unread.guard(unread.real, self.source)
            self.value, self.unread = unread.real, None
            return self.value

    @property
    def example(self) -> Any:
        """An object of its type, which may be another in another call: for questions that the type
        answers."""
        return self.value if self.unread is None else self.unread.real

    def python_type(self) -> type:
        return type(self.value if self.unread is None else self.unread.real)

    def describe(self) -> str:
        real = self.example
        tells = type(type(real).__repr__) is not types.FunctionType
        try:
            if tells or type(real).__repr__.__module__ == "enum":
                return f"{real!r:.80}"
        except Exception:  # an object that is not finished yet may not be able to tell
            pass
        return f"an object of type {type(real).__qualname__}"


class Unread(NamedTuple):
    """The object of a constant whose value nothing has asked for, and what guards it."""

    real: Any
    guard: Callable[[Any, Source], None]
    number: Callable[[], Value | None]  # gives the number that it is in the graph, if one is to be


class Lazy:
    """A pre-existing child object that has not been looked at: no guard speaks of it yet.

    `wrap` looks at it where no interpreter is at hand: at the members of a tuple that is a key."""

    __slots__ = ("real", "source", "wrap")

    def __init__(
        self, real: Any, source: Source, wrap: Callable[[Any, Source], Value] | None = None
    ) -> None:
        self.real = real
        self.source = source
        self.wrap = wrap

    def looked_at(self) -> Value:
        """The value of it, with the guards that this needs."""
        return Constant(self.real) if self.wrap is None else self.wrap(self.real, self.source)


NONE = Constant(None)
TRUE = Constant(True)
FALSE = Constant(False)


def is_none(value: Value) -> bool:
    """Is it None, whichever place it came from?"""
    return isinstance(value, Constant) and value.unread is None and value.value is None


def is_not_implemented(value: Value) -> bool:
    """Is it what a special method answers that leaves an operation to the other operand?"""
    known = isinstance(value, Constant) and value.unread is None
    return known and value.value is NotImplemented  # type: ignore[attr-defined]


def boolean(flag: bool) -> Constant:
    """The shared constant for a truth value."""
    return TRUE if flag else FALSE


# --- types whose objects are known by their value or by their identity ----------------------------

# Compared by value in a guard.
EQUALITY_TYPES: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format, type(Ellipsis), type(NotImplemented), range,
)  # fmt: skip

# The kinds of names in `typing`, without parameters and with.
_BARE = [vars(typing)[name] for name in ("Sized", "Tuple", "Callable", "Optional", "Literal")]
_GIVEN = (typing.Iterable[int], _BARE[3][int], typing.Callable[[int], int], typing.Literal[1])
_TYPING_KINDS = {type(name) for name in (*_BARE, *_GIVEN)}

# Pinned by identity in a guard.
IDENTITY_TYPES: tuple[type, ...] = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType, types.CodeType,
    types.GenericAlias, types.UnionType, type, functools._lru_cache_wrapper, property, staticmethod,
    classmethod, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    torch.Generator, re.Pattern, re.Match, torch.torch_version.TorchVersion, typing.TypeVar,
    typing.ParamSpec, typing.TypeVarTuple,
    operator.itemgetter, operator.attrgetter, operator.methodcaller, *_TYPING_KINDS,
)  # fmt: skip


def is_numpy(cls: type, name: str) -> bool:
    """Is `cls` numpy's class of this name, or a subclass? (numpy need not be installed.)"""
    return any(base.__module__ == "numpy" and base.__name__ == name for base in cls.__mro__)


def is_fixed_member(item: Any) -> bool:
    """Is it the same in each program that meets it? (A closure is known by its parts.)"""
    if type(item) in (tuple, frozenset):
        return all(map(is_fixed_member, item))
    if isinstance(item, types.FunctionType):
        return "<locals>" not in item.__code__.co_qualname
    functions = (
        types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        types.MethodWrapperType, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    )  # fmt: skip
    return isinstance(item, (*EQUALITY_TYPES, type, enum.Enum, *functions))
