"""Which names of a module may be bound again once it has been imported, by what its text says.

A global that no function declares `global`, that nobody sets as an attribute, and whose name is no
string in the file, is what a program takes for a constant.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Packages whose names are not bound again: of Python itself, and those behind every program.
_SETTLED = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class _Names:
    """Of one file: what functions declare `global`, attributes that are set, strings, and what the
    module's own statements bind more than once."""

    declared: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]
    repeated: frozenset[str]


def _of_module(node: ast.AST, looped: bool = False) -> Iterator[tuple[str, bool]]:
    """The names that are assigned to outside of functions and classes; is it in a loop?"""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            yield child.id, looped
        if not isinstance(child, _SCOPES):
            yield from _of_module(child, looped or isinstance(child, _LOOPS))


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
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Global):
            declared.update(node.names)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
        if not _lists_names(node):
            pending += ast.iter_child_nodes(node)
    bound = list(_of_module(tree))
    repeated = {name for name, looped in bound if looped}
    names = [name for name, _ in bound]
    repeated.update(name for name in set(names) if names.count(name) > 1)
    return _Names(*map(frozenset, (declared, attributes, strings, repeated)))


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


__all__ = ["is_settled", "may_be_bound_again"]
