"""How the replacement code of a frame rebuilds Python values and replays effects, as data.

The interpreter produces recipes; `replacement/` turns them into Python source text. Two places
that hold the *same recipe object* get the same Python object (`y is x` survives); recipes are
therefore compared by identity (`eq=False`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dovetail_guards.source import Source


@dataclass(frozen=True, eq=False)
class Recipe:
    """Base of all recipes."""


@dataclass(frozen=True, eq=False)
class Fetch(Recipe):
    """A value that existed before the frame ran, fetched by its source before the graph runs."""

    source: Source


@dataclass(frozen=True, eq=False)
class GraphOutput(Recipe):
    """Output number `index` of the compiled graph."""

    index: int


@dataclass(frozen=True, eq=False)
class Const(Recipe):
    """Any object known at capture, embedded in the code's constants."""

    value: Any


@dataclass(frozen=True, eq=False)
class Build(Recipe):
    """A new exact list, tuple, set, frozenset, slice or dict.

    `kind` names the type; for a dict `items` alternates key, value.
    """

    kind: str
    items: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class NewEmpty(Recipe):
    """A new, empty list, dict or set that effects fill later (cycles, or growth by replay)."""

    kind: str


@dataclass(frozen=True, eq=False)
class NewObject(Recipe):
    """`base.__new__(cls, *args)` without `__init__`; `SetAttr`/`SetItem` effects fill it.

    `base` is the class whose `__new__` is called (`object`, `dict`, `OrderedDict`, `tuple` ...).
    """

    cls: type
    base: type
    args: tuple[Recipe, ...] = ()


@dataclass(frozen=True, eq=False)
class CallFunction(Recipe):
    """`fn(*args, **kwargs)`: e.g. a `functools.partial`, an iterator, a bound method, a tensor's
    `.item()`; evaluated once, where it is first needed."""

    fn: Recipe
    args: tuple[Recipe, ...] = ()
    kwargs: tuple[tuple[str, Recipe], ...] = ()


@dataclass(frozen=True, eq=False)
class GetAttr(Recipe):
    """`base.name` read when the value is rebuilt."""

    base: Recipe
    name: str


@dataclass(frozen=True, eq=False)
class NewCell(Recipe):
    """A new closure cell; `content` is None for an empty one, a `SetCell` effect may fill it."""

    content: Recipe | None = None


@dataclass(frozen=True, eq=False)
class NewFunction(Recipe):
    """A new function object made from a code object, as MAKE_FUNCTION does."""

    code: Any
    globals_: Recipe
    name: str
    defaults: Recipe | None = None
    kwdefaults: Recipe | None = None
    closure: tuple[Recipe, ...] = ()
    annotations: Recipe | None = None


@dataclass(frozen=True, eq=False)
class HandledHere(Recipe):
    """A place of the value stack inside an exception handler, where CPython keeps the exception
    that was handled before: `error` is the one handled here. None: a copy of the place below."""

    error: Recipe | None


# --- effects: replayed after the graph, in order, each exactly once ------------------------------


@dataclass(frozen=True, eq=False)
class Effect:
    """Base of all effects."""


@dataclass(frozen=True, eq=False)
class SetAttr(Effect):
    """`object.__setattr__`-like when `raw` (straight into the instance), else `setattr`."""

    target: Recipe
    name: str
    value: Recipe
    raw: bool = False


@dataclass(frozen=True, eq=False)
class DelAttr(Effect):
    """`del target.name`; `raw`: past the class's `__delattr__`."""

    target: Recipe
    name: str
    raw: bool = False


@dataclass(frozen=True, eq=False)
class ReplaceContents(Effect):
    """Give an existing list, dict, set or deque its final contents in place.

    `kind` is its base type's name; for a dict `items` alternates key, value; to a "grown list" they
    are appended, to a "grown dict" added. Base-class methods are used (`list.__setitem__`,
    `dict.update`), so that overrides do not run.
    """

    target: Recipe
    kind: str
    items: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class SetGlobal(Effect):
    """Write `name` into a globals dictionary."""

    globals_: Recipe
    name: str
    value: Recipe | None  # None deletes it


@dataclass(frozen=True, eq=False)
class SetCell(Effect):
    """Write a closure cell; `value` None empties it."""

    cell: Recipe
    value: Recipe | None


@dataclass(frozen=True, eq=False)
class RunCall(Effect):
    """A call made for its effect: e.g. `torch.set_grad_enabled(False)`, `next(iterator)`."""

    call: CallFunction


@dataclass(frozen=True, eq=False)
class UnderLock(Effect):
    """Effects replayed while a lock is held, which is released even if one of them raises."""

    lock: Recipe
    effects: tuple[Effect, ...]


@dataclass(frozen=True, eq=False)
class FrameEnd:
    """How a captured stretch of a frame ends.

    Either the frame returns (`returns` is set) or a graph break at instruction `break_index`
    (index into `dis` order of the original code, caches not counted) with the value stack and the
    locals as they are *before* that instruction. `break_exits` is true when the instruction leaves
    the frame.
    """

    returns: Recipe | None = None
    break_index: int | None = None
    stack: tuple[Recipe | None, ...] = ()  # None is a NULL on the value stack
    locals_: tuple[tuple[str, Recipe], ...] = ()
    cells: tuple[tuple[str, Recipe], ...] = field(default=())  # cellvars: name, recipe of the cell


def parts_of(owner: Any) -> Iterator[Any]:
    """Recipes directly inside a recipe, an effect or a frame end."""
    for f in fields(owner):
        pending = [getattr(owner, f.name)]
        while pending:
            part = pending.pop()
            if isinstance(part, Recipe):
                yield part
            elif isinstance(part, Effect):
                yield from parts_of(part)
            elif isinstance(part, tuple) and not isinstance(owner, Const):
                pending.extend(reversed(part))


def below(roots: Sequence[Any], uses: dict[int, int]) -> list[Recipe]:
    """All recipes below `roots`, each once, in order of first need; counts their uses."""
    found: list[Recipe] = []
    stack = [part for root in roots for part in parts_of(root)][::-1]
    while stack:
        recipe = stack.pop()
        uses[id(recipe)] = uses.get(id(recipe), 0) + 1
        if uses[id(recipe)] == 1:
            found.append(recipe)
            stack.extend(list(parts_of(recipe))[::-1])
    return found
