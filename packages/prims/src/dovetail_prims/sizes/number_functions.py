"""Functions of `math` that take symbolic floats as they are: what graphs call on their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

_NAMES = ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp",
          "log", "log2")  # fmt: skip


def _of_numbers(name: str) -> Callable[[Any], Any]:
    plain: Callable[[float], float] = getattr(math, name)

    def function(value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            value = torch.sym_float(value)
        if not isinstance(value, torch.SymFloat):
            return plain(value)
        node: Any = value.node
        return torch.SymFloat(getattr(node, f"sym_{name}")())

    function.__name__ = function.__qualname__ = f"number_{name}"
    function.__doc__ = f"`math.{name}`, also of a symbolic number."
    return function


NUMBER_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {name: _of_numbers(name) for name in _NAMES}
"""By the name that the function has in `math`."""

globals().update({f"number_{name}": function for name, function in NUMBER_FUNCTIONS.items()})
