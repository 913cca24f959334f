"""What belongs to one pass of autograd's engine through one call of a compiled graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import torch

Kept = TypeVar("Kept")


class OfPass(Generic[Kept]):
    """Values by pass and context. The pass keeps them: they are gone when it is, failed or not."""

    def __init__(self) -> None:
        self.values: WeakValueDictionary[tuple[int, int], Kept] = WeakValueDictionary()

    def get(self, ctx: Any) -> Kept | None:
        """The value of the pass that runs."""
        return self.values.get(_key(ctx)) if self.values else None

    def pop(self, ctx: Any) -> Kept | None:
        """The same, which is not asked for any more."""
        return self.values.pop(_key(ctx), None) if self.values else None

    def keep(self, ctx: Any, value: Kept) -> None:
        """Keep a value for the rest of the pass that runs."""
        self.values[_key(ctx)] = value
        torch.autograd.Variable._execution_engine.queue_callback(_Holder(value))


@dataclass
class _Holder:
    """Called by the engine at the end of a pass: what it holds lives until then."""

    value: Any

    def __call__(self) -> None:
        """Nothing is left to do."""


def _key(ctx: Any) -> tuple[int, int]:
    return torch._C._current_graph_task_id(), id(ctx)
