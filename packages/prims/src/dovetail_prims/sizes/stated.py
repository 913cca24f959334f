"""What a graph states of its sizes and numbers: `torch._check` with a text for a message.

PyTorch 2.11 takes only a function that makes the message, which a graph cannot hold; 2.15 a text.
"""

from __future__ import annotations

from typing import Any, LiteralString, get_args

import torch
from torch.fx.node import has_side_effect


@has_side_effect
def check(condition: Any, message: str = "") -> None:
    """`torch._check`: raises RuntimeError with `message` where `condition` does not hold."""
    torch._check(condition, (lambda: message) if message else None)


def _takes_text() -> bool:
    """By its annotations: a call would import sympy, a second of each process's start."""
    kinds = get_args(torch._check.__annotations__.get("message"))
    return LiteralString in kinds or str in kinds


STATE = torch._check if _takes_text() else check
"""The target of the node that states a condition."""

STATES = (torch._check, check)
"""The targets that state one, in graphs that others made, too."""
