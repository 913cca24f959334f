"""Statements of replacement code that fetch what existed before a frame and rebuild its values."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Sequence
from types import CellType, CodeType
from typing import Any

from dovetail_guards import source as s
from dovetail_guards.float_expr import ComputedSource
from dovetail_guards.iterators import READERS
from torch import from_numpy

from dovetail_capture import rebuild
from dovetail_capture import recipe as r
from dovetail_capture.interpreter.values.computed_sources import DrawSource, PlainSource, as_plain
from dovetail_capture.interpreter.values.tensors import ArraySource

_VARARGS, _VARKEYWORDS = 0x04, 0x08
PLACEHOLDER = "<dovetail constant {}: {}>"


class ValueWriter:
    """Writes statements that fetch sources and rebuild values; `lines` are the statements so far,
    and `constants` the objects whose placeholders they hold."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.lines: list[str] = []
        self.constants: list[Any] = []
        self._constant_names: dict[int, str] = {}
        self._source_names: dict[int, str] = {}
        self._source_keys: dict[Any, str] = {}
        self._sources: list[s.Source] = []  # keeps the ids alive
        self._values: dict[int, str] = {}
        self.uses: dict[int, int] = {}
        self._counter = 0
        self.indent = ""
        self.temporaries: list[str] = []  # locals that hold values of the program
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
        self.arguments = {
            name: name if _is_plain(name) else f"_dt_arg{place}"
            for place, name in enumerate(code.co_varnames[:count])
        }
        self.free = {name: f"_dt_free{i:05}" for i, name in enumerate(code.co_freevars)}

    # --- statements ------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """A name of our own, used nowhere else."""
        self._counter += 1
        return f"_dt_{stem}{self._counter}"

    def emit(self, line: str) -> None:
        """Write a statement at the present indentation."""
        self.lines.append(self.indent + line)

    def assign(self, expression: str, stem: str = "v") -> str:
        """The name of a new local that holds the value of an expression."""
        name = self.fresh(stem)
        self.emit(f"{name} = {expression}")
        if stem != "k":
            self.temporaries.append(name)
        return name

    def constant(self, value: Any, label: str | None = None) -> str:
        """An expression for an object known now. All but the simplest get a local name, assigned
        from a placeholder string, so that the compiler cannot fold what is done with them."""
        if value is None or value is True or value is False or value is Ellipsis:
            return repr(value)
        if type(value) is int and -5 <= value <= 256:
            return repr(value) if value >= 0 else f"({value})"
        name = self._constant_names.get(id(value))
        if name is None:
            text = PLACEHOLDER.format(len(self.constants), label or _label(value))
            self.constants.append(value)
            name = self._constant_names[id(value)] = self.assign(repr(text), "k")
        return name

    # --- sources ---------------------------------------------------------------------------------

    def source(self, source: s.Source) -> str:
        """An expression (a local name) for a value that existed before the frame ran."""
        name = self._source_names.get(id(source))
        if name is None:
            name = self._source_names[id(source)] = self._fetch(source)
            self._sources.append(source)
        return name

    def _fetch(self, source: s.Source) -> str:
        if isinstance(source, s.LocalSource):
            return self.arguments[source.name]
        if isinstance(source, s.ObjectSource):
            return self.constant(source.obj, source.label)
        if isinstance(source, DrawSource):
            return f"_dt_draw{source.index}" + ("" if source.item is None else f"[{source.item}]")
        expression = self._read(source)
        known = self._source_keys.get(expression)
        if known is None:
            known = self._source_keys[expression] = self.assign(expression)
        return known

    def _read(self, source: s.Source) -> str:
        match source:
            case s.ClosureSource(name):
                return self.free[name]
            case s.ClosureCellSource(name):
                return self.cell(name)
            case s.GlobalSource(name):
                if _is_plain(name) and name not in self.arguments:
                    return name
                return f"{self.constant(globals, 'globals')}()[{name!r}]"
            case s.BuiltinSource(name):
                return f"{self.constant(builtins.__dict__, 'builtins')}[{name!r}]"
            case s.AttrSource(base, name):
                return self.attribute(self.source(base), name)
            case s.InstanceAttrSource(base, name):
                return f"{self.source(base)}.__dict__[{name!r}]"
            case s.ItemSource(base, key):
                reader = self.constant(rebuild.get_item)
                return f"{reader}({self.source(base)}, {self.constant_key(key)})"
            case s.DictKeySource(base, index):
                return f"{self.constant(rebuild.get_key)}({self.source(base)}, {index})"
            case s.TypeSource(base):
                return f"{self.constant(type)}({self.source(base)})"
            case s.CellContentsSource(base):
                return f"{self.source(base)}.cell_contents"
            case s.SizeSource(base, dim):
                return f"{self.source(base)}.size({dim})"
            case s.IteratorSource(base, part):
                return f"{self.constant(READERS[part])}({self.source(base)})"
            case ArraySource(base):
                return f"{self.constant(from_numpy)}({self.source(base)})"
            case PlainSource(base):
                return f"{self.constant(as_plain)}({self.source(base)})"
            case s.StrideSource(base, dim):
                return f"{self.source(base)}.stride({dim})"
            case ComputedSource(_, _, symbols):
                values = ", ".join(self.source(part) for _, part in symbols)
                return f"{self.constant(source.of, str(source))}({values})"
        raise TypeError(f"replacement code cannot fetch a {type(source).__name__}: {source}")

    def constant_key(self, key: Any) -> str:
        """A dict key or index; short strings and ints are written out."""
        if type(key) in (str, int):
            return repr(key)
        return self.constant(key)

    def attribute(self, base: str, name: str) -> str:
        """An expression that reads an attribute of what the expression `base` gives."""
        if name.isidentifier() and not keyword.iskeyword(name):
            return f"{base}.{name}"
        return f"{self.constant(getattr)}({base}, {name!r})"

    def cell(self, name: str) -> str:
        """The frame function's own closure cell: read off a function that closes over it."""
        place = list(self.free).index(name)
        names = ", ".join(self.free.values())
        return f"(lambda: ({names},)).__closure__[{place}]"

    # --- values ----------------------------------------------------------------------------------

    def value(self, recipe: r.Recipe) -> str:
        """An expression for a rebuilt value; what is used twice is built once."""
        known = self._values.get(id(recipe))
        if known is not None:
            return known
        expression = self._rebuild(recipe)
        lasting = isinstance(recipe, (r.Const, r.Fetch, r.GraphOutput))
        in_order = isinstance(recipe, (r.GetAttr, r.CallFunction))  # what they run must not move
        if not lasting and (in_order or self.uses.get(id(recipe), 0) > 1):
            expression = self.assign(expression)
            lasting = True
        if lasting:
            self._values[id(recipe)] = expression
        return expression

    def values(self, recipes: Sequence[r.Recipe]) -> list[str]:
        """Expressions for several rebuilt values, in order."""
        return [self.value(recipe) for recipe in recipes]

    def _rebuild(self, recipe: r.Recipe) -> str:
        match recipe:
            case r.Const(value):
                return self.constant(value)
            case r.Fetch(source):
                return self.source(source)
            case r.GraphOutput(index):
                return f"_dt_out{index}"
            case r.Build(kind, items):
                return self.build(kind, self.values(items))
            case r.NewEmpty(kind):
                return f"{self.constant(rebuild_kind(kind))}()"
            case r.NewObject(cls, base, args):
                new = f"{self.constant(base)}.__new__"
                return f"{new}({', '.join([self.constant(cls), *self.values(args)])})"
            case r.CallFunction():
                return self.call(recipe)
            case r.GetAttr(base, name):
                return self.attribute(self.value(base), name)
            case r.NewCell(content):
                cell = self.constant(CellType)
                return f"{cell}()" if content is None else f"{cell}({self.value(content)})"
            case r.NewFunction():
                return self._function(recipe)
        raise TypeError(f"replacement code cannot rebuild a {type(recipe).__name__}")

    def build(self, kind: str, items: list[str]) -> str:
        """An expression for a new built-in container; of a dict, keys and values take turns."""
        inner = ", ".join(items)
        match kind:
            case "list":
                return f"[{inner}]"
            case "tuple":
                return f"({inner},)" if items else "()"
            case "set":
                return f"{{{inner}}}" if items else f"{self.constant(set)}()"
            case "frozenset":
                return f"{self.constant(frozenset)}({self.build('tuple', items)})"
            case "slice":
                return f"{self.constant(slice)}({inner})"
            case "dict":
                return "{" + ", ".join(in_pairs(items, ": ")) + "}"
        raise TypeError(f"replacement code cannot build a {kind!r}")

    def call(self, recipe: r.CallFunction) -> str:
        """An expression for a call."""
        parts = [self.value(recipe.fn), *self.values(recipe.args)]
        function, arguments = parts[0], parts[1:]
        odd = [(k, v) for k, v in recipe.kwargs if not k.isidentifier() or keyword.iskeyword(k)]
        arguments += [f"{k}={self.value(v)}" for k, v in recipe.kwargs if (k, v) not in odd]
        if odd:
            inner = ", ".join(f"{k!r}: {self.value(v)}" for k, v in odd)
            arguments.append(f"**{{{inner}}}")
        return f"{function}({', '.join(arguments)})"

    def _function(self, recipe: r.NewFunction) -> str:
        parts = [
            self.constant(recipe.code),
            self.value(recipe.globals_),
            repr(recipe.name),
            "None" if recipe.defaults is None else self.value(recipe.defaults),
            "None" if recipe.kwdefaults is None else self.value(recipe.kwdefaults),
            self.build("tuple", self.values(recipe.closure)),
            "None" if recipe.annotations is None else self.value(recipe.annotations),
        ]
        return f"{self.constant(rebuild.new_function)}({', '.join(parts)})"


def rebuild_kind(kind: str) -> type:
    """The type that `NewEmpty` names."""
    return {"list": list, "dict": dict, "set": set}[kind]


def _label(value: Any) -> str:
    """A short name of an object that cannot run user code for long."""
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return name if isinstance(name, str) else type(value).__qualname__


def _is_plain(name: str) -> bool:
    """Can the name be written in the text as it is, without meeting one of ours?"""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and name != "__debug__"
        and not name.startswith("_dt_")
    )


def in_pairs(items: list[str], between: str) -> list[str]:
    """Every two items as one, with `between` between them."""
    return [f"{k}{between}{v}" for k, v in zip(items[::2], items[1::2], strict=True)]
