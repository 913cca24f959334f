"""The autograd engine under the tracer: run, asked what it reaches, and how it is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from dovetail_guards.torch_state import no_hooks_on_saved_tensors
from torch import Tensor
from torch.autograd import grad_mode


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


def reached_roots(leaves: Sequence[Any], roots: Sequence[Tensor]) -> tuple[int, ...]:
    """For each leaf, which roots autograd has a way from to it, as a bit set."""
    index_of = {id(leaf): i for i, leaf in enumerate(leaves) if leaf is not None}
    below: dict[Any, int] = {}  # the leaves below a node of autograd, as bits
    for root in roots:
        stack = [root.grad_fn]
        while stack:
            node = stack[-1]
            next_nodes = [n for n, _ in node.next_functions if n is not None]  # type: ignore[union-attr]
            missing = [n for n in next_nodes if n not in below]
            if node not in below and missing:
                below[node] = 0  # (seen; made whole when what is below it is known)
                stack += missing
                continue
            stack.pop()
            bits = 0
            if type(node).__name__ == "AccumulateGrad":
                index = index_of.get(id(node.variable))  # type: ignore[union-attr]
                bits = 0 if index is None else 1 << index
            for n in next_nodes:
                bits |= below[n]
            below[node] = bits
    masks = [below[root.grad_fn] for root in roots]
    return tuple(
        sum(1 << r for r, mask in enumerate(masks) if mask >> i & 1) for i in range(len(leaves))
    )


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
