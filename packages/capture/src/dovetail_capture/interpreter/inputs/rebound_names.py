"""Which names of a module may be bound again once it has been imported, by what its text says.

A global that no function declares `global`, that nobody sets as an attribute, and whose name is no
string in the file, is what a program takes for a constant. So is a variable of a function that is
bound in one place, and that no inner function declares `nonlocal`.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

# Packages whose names are not bound again: of Python itself, and those behind every program.
_SETTLED = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# Where such files are, whose functions do not bind again what others close over.
_PLACES = (torch.__path__[0] + os.sep,)
LOCALS = ".<locals>."
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class _Names:
    """Of one file: what functions declare `global`, attributes that are set, strings, what the
    module's own statements bind more than once, and what functions do, or inner ones of theirs
    (the function's qualified name, and the name that it binds)."""

    declared: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]
    repeated: frozenset[str]
    rebound: frozenset[tuple[str, str]]


def _bound_by(node: ast.AST, looped: bool = False) -> Iterator[tuple[str, bool]]:
    """The names that a module or a function assigns to, outside of functions and classes in it; is
    it in a loop?"""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            yield child.id, looped
        elif isinstance(child, ast.arg):
            yield child.arg, looped
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child.name, looped
        if not isinstance(child, _SCOPES):
            yield from _bound_by(child, looped or isinstance(child, _LOOPS))


def _several_times(node: ast.AST) -> set[str]:
    """What a module or a function binds more than once."""
    bound = list(_bound_by(node))
    counts = Counter(name for name, _ in bound)
    looped = {name for name, in_a_loop in bound if in_a_loop}
    return looped | {name for name, count in counts.items() if count > 1}


def _lists_names(node: ast.AST) -> bool:
    """Is it `__all__ = [...]`?"""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets)


@functools.lru_cache(maxsize=256)
def _read(path: str, modified: float) -> _Names | None:
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None
    declared: set[str] = set()
    attributes: set[str] = set()
    strings: set[str] = set()
    rebound: set[tuple[str, str]] = set()
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, within = pending.pop()
        if isinstance(node, ast.Global):
            declared.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            around = within.removesuffix(LOCALS)
            while LOCALS in around:
                around = around.rpartition(LOCALS)[0]
                rebound.update((around, name) for name in node.names)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own = within + node.name
            rebound.update((own, name) for name in _several_times(node))
            within = own + LOCALS
        elif isinstance(node, ast.ClassDef):
            within += node.name + "."
        elif isinstance(node, ast.Lambda):
            within += "<lambda>" + LOCALS
        if not _lists_names(node):
            pending += [(child, within) for child in ast.iter_child_nodes(node)]
    return _Names(
        frozenset(declared),
        frozenset(attributes),
        frozenset(strings),
        frozenset(_several_times(tree)),
        frozenset(rebound),
    )


def _names_in(path: Any) -> _Names | None:
    if not isinstance(path, str):
        return None
    try:
        return _read(path, os.stat(path).st_mtime)
    except OSError:
        return None


def is_settled(module: str) -> bool:
    """Does a module's name say that nobody binds its names again?"""
    return module.partition(".")[0] in _SETTLED


def may_be_bound_again(namespace: dict[str, Any], name: str, real: Any, reader: str) -> bool:
    """May `name`, which is `real` in a module's `namespace` or in one of its classes, be bound
    again? `reader` is the file of the code that reads it. (A function's name may well be a
    string.)"""
    if is_settled(str(namespace.get("__name__"))):
        return False
    own, other = _names_in(namespace.get("__file__")), _names_in(reader)
    if own is None or other is None:
        return True
    if name in own.declared:
        return True
    spec = namespace.get("__spec__")
    running = namespace.get("__name__") == "__main__" or getattr(spec, "_initializing", False)
    if running and name in own.repeated:
        return True
    if callable(real):
        return False
    return any(name in found.attributes or name in found.strings for found in (own, other))


def may_be_rebound(code: types.CodeType, name: str) -> bool:
    """May a variable of a function around this code, which it closes over, be bound again once the
    code is a function?"""
    if any(code.co_filename.startswith(place) for place in _PLACES):
        return False
    found = _names_in(code.co_filename)
    if found is None or "cell_contents" in found.attributes | found.strings:
        return True
    around = code.co_qualname
    while LOCALS in around:
        around = around.rpartition(LOCALS)[0]
        if (around, name) in found.rebound:
            return True
    return False
