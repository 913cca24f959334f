"""Symbolic sizes as numbers: read off the values of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor


class SizeReader:
    """What a graph's inputs tell of its symbols. `examples` are what is known of each input: a
    fake, a symbolic number, or anything else, which tells nothing."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self.examples = examples

    def tell(self, sizes: Iterable[Any], count: int | None = None) -> bool:
        """Whether the first `count` inputs (all, if None) tell these sizes in every call."""
        told: set[str] = set()
        for example in self.examples[:count]:
            parts = example._sizes if isinstance(example, FakeTensor) else (example,)
            told.update(name for name in map(_symbol, parts) if name is not None)
        return all(expr_of(size).free_symbols() <= told for size in sizes)

    def read(self, actual: Sequence[Any]) -> dict[str, int]:
        """The symbols' values in a call with these inputs."""
        known: dict[str, int] = {}
        for example, value in zip(self.examples, actual, strict=True):
            if isinstance(example, FakeTensor) and isinstance(value, Tensor):
                pairs = zip(map(_symbol, example._sizes), value.shape, strict=True)
                known.update((name, size) for name, size in pairs if name is not None)
            elif (name := _symbol(example)) is not None:
                known[name] = value
        return known


def as_numbers(sizes: Iterable[Any], known: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes where the symbols have these values."""
    return tuple(s if type(s) is int else expr_of(s).evaluate(known) for s in sizes)


def _symbol(value: Any) -> str | None:
    """The name of the symbol that this is, if it is one."""
    return expr_of(value).symbol_name if isinstance(value, torch.SymInt) else None
