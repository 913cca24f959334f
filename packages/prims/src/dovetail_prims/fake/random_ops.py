"""Which calls of operators advance the random generator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

# What tells of a random operator whether it drops anything, or is in training.
_SWITCHES = ("dropout_p", "dropout", "train", "training")


@functools.lru_cache(maxsize=4096)
def _switches(func: Any) -> tuple[tuple[int, str, Any], ...] | None:
    """The place, name and default of such arguments of a random operator; None of another."""
    # (Attention's backward is tagged as random too, but takes its seed as an argument.)
    if not isinstance(func, OpOverload) or torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    if func._schema.name.endswith("_backward"):
        return None
    return tuple(
        (place, argument.name, argument.default_value)
        for place, argument in enumerate(func._schema.arguments)
        if argument.name in _SWITCHES
    )


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call advances the generator: one of a random operator, other than attention or
    dropout that drops nothing."""
    switches = _switches(func)
    if switches is None:
        return False
    for place, name, default in switches:
        given = args[place] if place < len(args) else kwargs.get(name, default)
        if given is not None and given == 0:
            return False
    return True
