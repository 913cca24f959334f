"""Gradients that lie in memory as eager's do.

Some of autograd's derivatives go another way where a tensor's data cannot be read (a mask instead
of indices, a copy instead of a write), and what they give lies otherwise in memory. While a graph
is traced, hooks of their nodes lay it out as the way would that eager goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dovetail_autograd_aot.values import hint

Gradients = tuple[Tensor | None, ...]


Pattern = Callable[[Any, Tensor], Tensor | None]


def _in_order(node: Any, gradient: Tensor) -> None:
    """Zeros that are filled by the mask of what was chosen: contiguous."""


def _as(saved: str) -> Pattern:
    """Zeros like a saved tensor, which are filled."""
    return lambda node, _: getattr(node, saved)


def _quotient(node: Any, gradient: Tensor) -> Tensor:
    """A product's derivative where no factor is zero; that of others depends on how many are."""
    x, result = node._saved_self, node._saved_result
    dim: int | None = getattr(node, "_saved_dim", None)
    if dim is not None and not node._saved_keepdim:
        dim = dim if dim < 1 << 63 else dim - (1 << 64)  # (C++ says it without a sign)
        gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
    like: Tensor = gradient * (result / x)
    return like


# Of the first gradients of a node of autograd, by its name: from the node and the gradient that it
# was given, what they lie in memory like. (Only its layout is taken: nothing computes it.)
_LAYOUTS: Mapping[str, tuple[Pattern, ...]] = {
    "MaxBackward1": (_in_order,),
    "MinBackward1": (_in_order,),
    "MedianBackward0": (_in_order,),
    "NanmedianBackward0": (_in_order,),
    "ProdBackward0": (_quotient,),
    "ProdBackward1": (_quotient,),
    "LinalgHouseholderProductBackward0": (_as("_saved_input"), _as("_saved_tau")),
    "OrmqrBackward0": (_as("_saved_self"),),
}

# Nodes that fill their gradient by a mask in place, and copy it first when it is traced.
_FILL_IN_PLACE = frozenset(
    {
        "ClampBackward0", "ClampMinBackward1", "ClampMaxBackward1", "MaximumBackward0",
        "MinimumBackward0", "FmaxBackward0", "FminBackward0",
    }
)  # fmt: skip


def fills_in_place() -> bool:
    """Whether a `masked_fill` that is being called is one that eager writes in place."""
    node: Any = torch._C._current_autograd_node()
    return node is not None and node.name() in _FILL_IN_PLACE


class GradientLayouts:
    """Hooks on the nodes of autograd of one trace. Each node is visited once."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def visit(self, node: Any) -> None:
        """Hook onto what leads to `node` (a `grad_fn`, or None) and was not visited before."""
        seen = self._seen
        stack = [node]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            layouts = _LAYOUTS.get(node.name())
            if layouts is not None:
                _lay_out(node, layouts)
            stack += [following for following, _ in node.next_functions]


def _lay_out(node: Any, layouts: tuple[Pattern, ...]) -> None:
    def hook(gradients: Gradients, given: Gradients) -> Gradients:
        pairs = zip(gradients, layouts, strict=False)
        first = (laid_out(gradient, layout, given[0]) for gradient, layout in pairs)
        return *first, *gradients[len(layouts) :]

    def laid_out(gradient: Tensor | None, layout: Pattern, given: Tensor | None) -> Tensor | None:
        if gradient is None or given is None:
            return gradient
        with torch.no_grad():
            pattern = layout(node, given)
        return gradient.contiguous() if pattern is None else _like(gradient, pattern)

    node.register_hook(hook)


def _like(gradient: Tensor, pattern: Tensor) -> Tensor:
    """The gradient with its dimensions in memory in the order of a pattern's, without gaps."""
    strides = pattern.stride()
    order = sorted(range(pattern.dim()), key=lambda d: (-hint(strides[d]), d))
    inverse = [order.index(d) for d in range(len(order))]
    return gradient.permute(order).contiguous().permute(inverse)
