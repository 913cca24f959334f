"""The autograd engine under the tracer: run, asked what it reaches, and how it is set."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.torch_state import no_hooks_on_saved_tensors
from torch import Tensor
from torch.autograd import grad_mode

from dovetail_autograd_aot.trace.autograd_queries import saves_nothing


def run_engine(
    roots: Sequence[Tensor], tangents: Sequence[Tensor], wanted: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of `wanted`; the graph is kept."""
    found: tuple[Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
        tuple(roots),
        tuple(tangents),
        True,
        False,
        tuple(wanted),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


@dataclass(frozen=True)
class Paths:
    """The paths of autograd's graph from roots to leaves.

    `reached` tells for each leaf which roots lead to it, as a bit set. `freed` tells what a
    backward frees: of nodes that save something, the roots that lead to one, and the leaves that it
    leads to, as bit sets. A pass that comes to such a node closes all paths through it. (Of sets
    that lie within others there is no need.)
    """

    reached: tuple[int, ...]
    freed: tuple[tuple[int, int], ...]


def paths_between(roots: Sequence[Tensor], leaves: Sequence[Any]) -> Paths:
    """The paths of autograd's graph; None among the leaves stands for one that has no gradient."""
    nodes = nodes_below(roots)
    index_of = {id(leaf): i for i, leaf in enumerate(leaves) if leaf is not None}
    below: dict[Any, int] = {}  # the leaves that a node leads to
    above: dict[Any, int] = dict.fromkeys(nodes, 0)  # the roots that lead to it
    reached = [0] * len(leaves)
    for node, following in nodes.items():
        index = index_of.get(id(node.variable)) if _accumulates(node) else None
        own = 0 if index is None else 1 << index
        below[node] = functools.reduce(int.__or__, (below[n] for n in following), own)
    for number, root in enumerate(roots):
        above[root.grad_fn] |= 1 << number
    for node, following in reversed(nodes.items()):
        for n in following:
            above[n] |= above[node]
        if _accumulates(node):
            index = index_of.get(id(node.variable))
            if index is not None:
                reached[index] = above[node]
    saving = (n for n in nodes if below[n] and not _accumulates(n) and not saves_nothing(n))
    freed = {(above[node], below[node]) for node in saving}
    return Paths(tuple(reached), _largest(freed))


def nodes_below(roots: Sequence[Tensor]) -> dict[Any, list[Any]]:
    """The nodes of autograd's graph with those that each leads to, which come before it."""
    following: dict[Any, list[Any]] = {}
    found: dict[Any, list[Any]] = {}
    stack: list[Any] = [root.grad_fn for root in roots]
    while stack:
        node = stack[-1]
        if node in following:
            found.setdefault(stack.pop(), following[node])
            continue
        following[node] = [n for n, _ in node.next_functions if n is not None]
        stack += [n for n in following[node] if n not in following]
    return found


def _accumulates(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _largest(pairs: Collection[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Of pairs of sets, those that lie within no other one."""
    largest: list[tuple[int, int]] = []
    for one, other in sorted(pairs, key=lambda pair: sum(map(int.bit_count, pair)), reverse=True):
        if all(one & ~a or other & ~b for a, b in largest):
            largest.append((one, other))
    return tuple(largest)


@contextmanager
def trace_settings() -> Iterator[None]:
    """Views are replayed, not re-strided, by autograd; the engine stays on this thread, and looks
    for no NaN in what has no data; the user's hooks on saved tensors see none of that."""
    with (
        torch.autograd.set_detect_anomaly(False),
        grad_mode._force_original_view_tracking(True),
        torch.autograd.set_multithreading_enabled(False),
        no_hooks_on_saved_tensors(),
    ):
        yield


# What autograd says of a graph that cannot be differentiated.
ERRORS_OF_BACKWARDS = (
    "modified by an inplace operation", "derivative for", "Trying to backward through",
    "is not differentiable", "invalid gradient at index", "detached in-place",
    "isDifferentiableType", "is a view and its base or another view",
    "is a view of a view which was created in no_grad mode",
    "A view was created in no_grad mode", "isFloatingType(grad.scalar_type())",
)  # fmt: skip
