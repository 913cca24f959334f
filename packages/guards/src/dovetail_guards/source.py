"""Where a value came from: small frozen dataclasses, one type for guards and for rebuilding values.

A `Source` is a path from a frame's roots (its arguments, its closure, its globals, or an object
held by the compiler) to a value. Guards evaluate it natively; capture turns it into Python
source text that fetches the same value again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Source:
    """Base of all sources. `str(source)` reads as its user writes it: `self.layers[0].weight`."""

    text: ClassVar[str] = "{0!r}"
    """How it reads, a format of the source itself."""

    def __str__(self) -> str:
        return self.text.format(self)

    def __getstate__(self) -> dict[str, Any]:
        # A remembered hash holds in one process only.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}


@dataclass(frozen=True)
class _Named(Source):
    """One that the frame knows by a name."""

    name: str
    text = "{0.name}"


@dataclass(frozen=True)
class PartSource(Source):
    """A part of what another source, `base`, gives."""

    base: Source


class LocalSource(_Named):
    """An argument of the frame, by its name in `co_varnames` (also `*args` and `**kwargs`). One
    that no name can be given to has a dot first, and a text that tells what it is after a space:
    what a continuation finds on its stack."""

    def __str__(self) -> str:
        return self.name.partition(" ")[2] or self.name if self.name[0] == "." else self.name


class ClosureSource(_Named):
    """The contents of the frame function's closure cell called `name`."""


class ClosureCellSource(_Named):
    """The closure cell itself of the frame function's free variable `name`: for rebuilding
    closures and writing `nonlocal` names. Guards speak of its contents (`ClosureSource`)."""

    text = "closure_cell.{0.name}"


class GlobalSource(_Named):
    """`name` in the frame's globals."""


class BuiltinSource(_Named):
    """`name` in the frame's builtins; guarded together with its absence from the globals."""


@dataclass(frozen=True)
class ObjectSource(Source):
    """An object that the compiler itself holds (say another module's `__dict__`).

    Compared by identity. `label` is how it is printed.
    """

    obj: Any = field(compare=False, hash=False)
    label: str = field(compare=False)
    key: int = field(init=False)
    text = "{0.label}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", id(self.obj))


@dataclass(frozen=True)
class AttrSource(PartSource):
    """`getattr(base, name)`, with descriptors and `__getattr__`."""

    name: str
    text = "{0.base}.{0.name}"


@dataclass(frozen=True)
class InstanceAttrSource(PartSource):
    """`base.__dict__[name]`, read straight from the instance dictionary: no descriptor runs."""

    name: str
    text = "{0.base}.{0.name}"


@dataclass(frozen=True)
class ItemSource(PartSource):
    """`base[key]` of an exact or subclassed list, tuple or dict, read with the base class's
    own `__getitem__`; `key` is an int, a string or another hashable constant."""

    key: Any

    def __str__(self) -> str:
        known = self._as_attribute()
        return f"{self.base}[{_key_text(self.key)}]" if known is None else known

    def _as_attribute(self) -> str | None:
        """What is read from a table that objects keep their attributes in, as an attribute."""
        base, key = self.base, self.key
        if not isinstance(key, str):
            return None
        if isinstance(base, ObjectSource) and base.label == _BUILTINS:
            return key
        if isinstance(base, ObjectSource) and base.label.startswith(_MODULE):
            return f"{base.label.removeprefix(_MODULE)}.{key}"
        if isinstance(base, (AttrSource, InstanceAttrSource)) and base.name in _TABLES:
            return f"{base.base}[{key}]" if key.isdigit() else f"{base.base}.{key}"
        return None


_BUILTINS = "builtins"
_MODULE = "module "  # so are the `__dict__`s of modules labelled
_TABLES = ("_modules", "_parameters", "_buffers")  # of an nn.Module


def _key_text(key: Any) -> str:
    """A key as a person knows it. Objects are not asked for their text: that of a tensor takes its
    values, which change, from its device."""
    if isinstance(key, tuple):
        return f"({', '.join(map(_key_text, key))},)"
    if key is None or isinstance(key, str | bytes | int | float | complex | type):
        return repr(key)
    return f"<{type(key).__name__} at {id(key):#x}>"


@dataclass(frozen=True)
class DictKeySource(PartSource):
    """The key at position `index` of the dict `base`, in insertion order."""

    index: int
    text = "list({0.base})[{0.index}]"


class TypeSource(PartSource):
    """`type(base)`."""

    text = "type({0.base})"


class CellContentsSource(PartSource):
    """`base.cell_contents` of a cell object."""

    text = "{0.base}.cell_contents"


@dataclass(frozen=True)
class SizeSource(PartSource):
    """`base.size(dim)` of a tensor: the source of a size symbol."""

    dim: int
    text = "{0.base}.size({0.dim})"


@dataclass(frozen=True)
class StrideSource(PartSource):
    """`base.stride(dim)` of a tensor: a relation says how it follows from the sizes."""

    dim: int
    text = "{0.base}.stride({0.dim})"


class FlattenSource(PartSource):
    """`base.__tensor_flatten__()`: what a tensor subclass says of the tensors that it wraps, the
    names of the attributes that hold them and a context."""

    text = "{0.base}.__tensor_flatten__()"


@dataclass(frozen=True)
class IteratorSource(PartSource):
    """A part of a built-in iterator, read without moving it, of a view of a dictionary, or of a
    tensor's storage: `part` is a name of `iterators.READERS`."""

    part: str
    text = "{0.part}({0.base})"


def _remember_hash(class_: type[Source]) -> None:
    """Sources nest deeply and are dict keys all the time: hash each object once."""
    plain: Callable[[Source], int] = class_.__hash__

    def remembered(self: Source) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = plain(self)
        return found

    class_.__hash__ = remembered  # type: ignore[method-assign,assignment]


for _class in (*Source.__subclasses__(), *PartSource.__subclasses__()):
    if "__hash__" in vars(_class):  # others have their base's
        _remember_hash(_class)
