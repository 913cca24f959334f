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
class LocalSource(Source):
    """An argument of the frame, by its name in `co_varnames` (also `*args` and `**kwargs`). One
    that no name can be given to has a dot first, and a text that tells what it is after a space:
    what a continuation finds on its stack."""

    name: str

    def __str__(self) -> str:
        return self.name.partition(" ")[2] or self.name if self.name[0] == "." else self.name


@dataclass(frozen=True)
class ClosureSource(Source):
    """The contents of the frame function's closure cell called `name`."""

    name: str
    text = "{0.name}"


@dataclass(frozen=True)
class ClosureCellSource(Source):
    """The closure cell itself of the frame function's free variable `name`: for rebuilding
    closures and writing `nonlocal` names. Guards speak of its contents (`ClosureSource`)."""

    name: str
    text = "closure_cell.{0.name}"


@dataclass(frozen=True)
class GlobalSource(Source):
    """`name` in the frame's globals."""

    name: str
    text = "{0.name}"


@dataclass(frozen=True)
class BuiltinSource(Source):
    """`name` in the frame's builtins; guarded together with its absence from the globals."""

    name: str
    text = "{0.name}"


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
class AttrSource(Source):
    """`getattr(base, name)`, with descriptors and `__getattr__`."""

    base: Source
    name: str
    text = "{0.base}.{0.name}"


@dataclass(frozen=True)
class InstanceAttrSource(Source):
    """`base.__dict__[name]`, read straight from the instance dictionary: no descriptor runs."""

    base: Source
    name: str
    text = "{0.base}.{0.name}"


@dataclass(frozen=True)
class ItemSource(Source):
    """`base[key]` of an exact or subclassed list, tuple or dict, read with the base class's
    own `__getitem__`; `key` is an int, a string or another hashable constant."""

    base: Source
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
class DictKeySource(Source):
    """The key at position `index` of the dict `base`, in insertion order."""

    base: Source
    index: int
    text = "list({0.base})[{0.index}]"


@dataclass(frozen=True)
class TypeSource(Source):
    """`type(base)`."""

    base: Source
    text = "type({0.base})"


@dataclass(frozen=True)
class CellContentsSource(Source):
    """`base.cell_contents` of a cell object."""

    base: Source
    text = "{0.base}.cell_contents"


@dataclass(frozen=True)
class SizeSource(Source):
    """`base.size(dim)` of a tensor: the source of a size symbol."""

    base: Source
    dim: int
    text = "{0.base}.size({0.dim})"


@dataclass(frozen=True)
class StrideSource(Source):
    """`base.stride(dim)` of a tensor: a relation says how it follows from the sizes."""

    base: Source
    dim: int
    text = "{0.base}.stride({0.dim})"


@dataclass(frozen=True)
class FlattenSource(Source):
    """`base.__tensor_flatten__()`: what a tensor subclass says of the tensors that it wraps, the
    names of the attributes that hold them and a context."""

    base: Source
    text = "{0.base}.__tensor_flatten__()"


@dataclass(frozen=True)
class IteratorSource(Source):
    """A part of a built-in iterator, read without moving it, of a view of a dictionary, or of a
    tensor's storage: `part` is a name of `iterators.READERS`."""

    base: Source
    part: str
    text = "{0.part}({0.base})"


def _remember_hash(class_: type[Source]) -> None:
    """Sources nest deeply and are dict keys all the time: hash each object once."""
    plain: Callable[[Source], int] = class_.__hash__

    def remembered(self: Source) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = plain(self)
            self.__dict__["_hash"] = found
        return found

    class_.__hash__ = remembered  # type: ignore[method-assign,assignment]


for _class in Source.__subclasses__():
    _remember_hash(_class)
