"""Guard clauses: what a compiled frame relied on, as data.

A clause is a frozen dataclass. `GuardSet` sorts and compiles them to one native check; the slow
evaluator reads the very same data and is the oracle and the explainer of the fast one.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from dovetail_guards.relations import BoolExpr
from dovetail_guards.source import Source


@dataclass(frozen=True)
class Clause:
    """Base of all clauses."""


@dataclass(frozen=True)
class OfSource(Clause):
    """One that speaks of what a source gives."""

    source: Source


@dataclass(frozen=True)
class OfSources(Clause):
    """One that speaks of what several sources give."""

    sources: tuple[Source, ...]


@dataclass(frozen=True)
class TypeIs(OfSource):
    """`type(source) is type_`."""

    type_: type


class _Dead:
    def __repr__(self) -> str:
        return "an object that is gone"


DEAD = _Dead()
"""Stands for an object that has died."""


class _Unknown:
    def __repr__(self) -> str:
        return "the same object as before"


UNKNOWN = _Unknown()
"""Stands for an object of which only the address is known."""


def _reference(obj: Any) -> tuple[Callable[[], Any], bool]:
    """What gives an object, and whether it does so without keeping it alive."""
    # (What has no `__dict__` may stand for an object of C++, and be made anew when asked for.)
    own = type(obj).__dictoffset__ != 0 or isinstance(obj, torch.Tensor)
    # (`Module.to` swaps wrapping tensors, which PyTorch refuses of those with weak references.)
    wraps = hasattr(type(obj), "__tensor_flatten__")
    if own and not wraps and not isinstance(obj, (type, ModuleType)):
        try:
            weak = weakref.ref(obj)
        except TypeError:
            pass
        else:
            return (lambda: DEAD if (found := weak()) is None else found), True
    return (lambda: obj), False


@dataclass(frozen=True, init=False)
class IdIs(OfSource):
    """`source is obj`. Use it for modules, functions, classes and other long-lived objects.

    Tensors and what has a `__dict__`, but classes, Python's modules and tensors that wrap others,
    are referred to weakly: a guard keeps no model alive. Where such an object has died, the clause
    never holds again. One that is compared `by_address` is not referred to at all (PyTorch swaps no
    tensors that have weak references): if it has died, another one of its type may be found there,
    of which other clauses on `source` must say all that matters."""

    kind: type
    code: CodeType | None
    """What else is remembered of the object: its type, and the code of a function."""
    key: int
    _referred: Callable[[], Any] = field(hash=False, compare=False, repr=False)
    is_weak: bool = field(compare=False)
    by_address: bool

    def __init__(self, source: Source, obj: Any, by_address: bool = False) -> None:
        referred, is_weak = (lambda: UNKNOWN, False) if by_address else _reference(obj)
        code = obj.__code__ if isinstance(obj, FunctionType) else None
        for name, value in (
            ("source", source),
            ("kind", type(obj)),
            ("code", code),
            ("key", id(obj)),
            ("_referred", referred),
            ("is_weak", is_weak),
            ("by_address", by_address),
        ):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # (An address means nothing to another process: what is found there is of no known type.)
        return IdIs, (self.source, None if self.by_address else self.obj, self.by_address)

    @property
    def obj(self) -> Any:
        """The object; `DEAD` if it has died, `UNKNOWN` if it is compared by its address."""
        return self._referred()

    def is_met_by(self, value: Any) -> bool:
        """Whether a value is the object, for all that is known."""
        if self.by_address:
            return id(value) == self.key and type(value) is self.kind
        return value is self.obj


@dataclass(frozen=True)
class ConstantIs(OfSource):
    """`type(source) is type(value) and source == value` (nan equals nan, 0.0 differs from -0.0)."""

    value: Any


@dataclass(frozen=True)
class LengthIs(OfSource):
    """`len(source) == length` of a list, tuple, dict, set or a subclass of one."""

    length: int


@dataclass(frozen=True)
class DictKeysAre(OfSource):
    """`list(source) == list(keys)`: same keys, in the same insertion order."""

    keys: tuple[Any, ...]


@dataclass(frozen=True)
class HasKey(OfSource):
    """`(key in source) == present` for a dict."""

    key: Any
    present: bool


@dataclass(frozen=True)
class HasInstanceAttr(OfSource):
    """`(name in source.__dict__) == present`: an attribute looked up on the class stays there."""

    name: str
    present: bool


MRO = "<mro>"
"""A name that no attribute has: of a class's `__mro__` in `ClassAttrsAre`."""


@dataclass(frozen=True)
class SlotIsEmpty(OfSource):
    """The `__slots__` member `name` of an object of a class that has it holds nothing."""

    name: str


@dataclass(frozen=True)
class ClassAttrsAre(OfSource):
    """What a class and its bases hold under these names, descriptors not run: (name, attribute,
    present) each, the attribute None where it is absent. For methods and properties of classes.
    Under the name `MRO` it is the class's `__mro__` itself."""

    attrs: tuple[tuple[str, Any, bool], ...]

    def __hash__(self) -> int:
        return hash((self.source, tuple((name, id(attr)) for name, attr, _ in self.attrs)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassAttrsAre) or self.source != other.source:
            return False
        mine, theirs = self.attrs, other.attrs
        return len(mine) == len(theirs) and all(
            a[0] == b[0] and a[1] is b[1] and a[2] == b[2]
            for a, b in zip(mine, theirs, strict=True)
        )


@dataclass(frozen=True)
class FunctionIs(OfSource):
    """The code, the defaults and the keyword defaults of a function are these very objects."""

    code: Any
    defaults: Any
    kwdefaults: Any

    def __hash__(self) -> int:
        return hash((self.source, id(self.code), id(self.defaults), id(self.kwdefaults)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FunctionIs)
            and self.source == other.source
            and self.code is other.code
            and self.defaults is other.defaults
            and self.kwdefaults is other.kwdefaults
        )


@dataclass(frozen=True)
class GlobalPresent(Clause):
    """`(name in frame globals) == present`."""

    name: str
    present: bool


@dataclass(frozen=True)
class TensorIs(OfSource):
    """The metadata of a tensor: exact type, dtype, device, requires_grad, sizes and strides.

    `sizes`/`strides` hold None in a place that is dynamic (a `ShapeRelation` may speak of it).
    `layout` is always checked; `is_leaf_parameter` says that the type is `nn.Parameter`.
    `strides` is None for a layout without strides.
    """

    type_: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    layout: torch.layout = torch.strided
    is_conj: bool = False
    is_neg: bool = False


class NoAccumulatorHooks(OfSource):
    """No hook is on the node of autograd that accumulates the gradient of this tensor. (Hooks of
    the tensor itself are read from its attributes.)"""


class SameObject(OfSources):
    """All these sources give one object (`is`)."""


class DistinctObjects(OfSources):
    """These sources give pairwise different objects: no two inputs became aliases."""


class DistinctStorage(OfSources):
    """These tensors' storages are pairwise different (inputs that are mutated rely on it)."""


@dataclass(frozen=True)
class TorchState(Clause):
    """A global torch setting: `name` is one of the keys of `torch_state.READERS`
    (grad_mode, inference_mode, autocast, default_dtype, default_device, deterministic, ...)."""

    name: str
    value: Any


@dataclass(frozen=True)
class AbstractAnswers(Clause):
    """Whether `cls` counts as a subclass for each (cls, abstract class, answer): classes may be
    registered with abstract ones at any time."""

    answers: tuple[tuple[type, abc.ABCMeta, bool], ...]


@dataclass(frozen=True)
class ShapeRelation(Clause):
    """A relation over input sizes, e.g. `x.size(0)*2 <= y.size(1)`.

    The symbols of `expr` are bound by `symbols`: (symbol name, `SizeSource` or `StrideSource`, or
    the source of an integer).
    """

    expr: BoolExpr
    symbols: tuple[tuple[str, Source], ...]
