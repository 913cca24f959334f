"""A looping function: its text, what it calls, its coefficients."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Function:
    """A function's text; the functions that it calls; the names and values of its coefficients.

    The scalar ops have a last parameter, `limit`: the largest finite number of the type that their
    result is rounded to.
    """

    name: str
    text: str
    callees: tuple[str, ...] = ()
    tables: Callable[[], dict[str, Any]] = dict

    def tree(self) -> ast.FunctionDef:
        """The text, parsed."""
        (found,) = ast.parse(self.text).body
        assert isinstance(found, ast.FunctionDef) and found.name == self.name
        return found
