"""One compilation of a graph for each kind of inputs that guards do not tell apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule

from dovetail_autograd_aot.aot_log import AotLog

# Graphs that are kept of one captured graph, each for another way in which inputs share memory.
MAX_PLACEMENTS = 8
MAX_DROPPED = 8  # compilations that gave way, after which nothing is compiled any more

Run = Callable[..., tuple[Any, ...]]


@dataclass(eq=False)
class InputVariants:
    """One compilation for each key of a call's inputs, the last used last; the oldest give way. If
    too many have, new ones are run by what `otherwise` gives, if it gives anything."""

    key_of: Callable[[Sequence[Any]], tuple[Any, ...]]
    compiled_for: Callable[[Sequence[Any]], Run]
    log: AotLog
    otherwise: Callable[[], Run | None]
    known: dict[tuple[Any, ...], Run] = field(default_factory=dict)
    dropped: int = 0

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        key = self.key_of(inputs)
        chosen = self.known.pop(key, None)
        if chosen is None:
            instead = self.otherwise() if self.dropped >= MAX_DROPPED else None
            if instead is not None:
                return instead(*inputs)
            chosen = self.compiled_for(inputs)
            if len(self.known) >= MAX_PLACEMENTS:
                del self.known[next(iter(self.known))]
                self.log.placements_dropped += 1
                self.dropped += 1
        self.known[key] = chosen
        return chosen(*inputs)


def run_by_eager(gm: GraphModule, log: AotLog, reason: str) -> Run:
    """The captured operators as they are. (The graph cannot end before one of them any more: the
    program was captured when its inputs lay otherwise.)"""

    def run(*inputs: Any) -> tuple[Any, ...]:
        log.note_eager_call(reason)
        return tuple(gm(*inputs))

    return run
