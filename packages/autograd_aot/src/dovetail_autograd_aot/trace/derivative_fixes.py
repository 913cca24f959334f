"""Derivatives of autograd's that are mended while a graph is traced, by hooks on its nodes.

Some compute otherwise where a tensor's data cannot be read (a mask instead of indices, a copy
instead of a write), and what they give lies otherwise in memory: it is laid out as eager's. Some
subtract what is nearly equal and was rounded: they are computed anew without that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dovetail_autograd_aot.trace.node_values import hint

Gradients = tuple[Tensor | None, ...]
Mend = Callable[[Any, Tensor, Tensor], Tensor]
"""Of a node, a gradient of its that comes out and the one that went in: what is to come out."""


# --- where gradients lie in memory ----------------------------------------------------------------


def _contiguous(node: Any, gradient: Tensor, given: Tensor) -> Tensor:
    """Zeros that are filled by the mask of what was chosen."""
    return gradient.contiguous()


def _as(saved: str) -> Mend:
    """Zeros like a saved tensor, which are filled."""

    def filled(node: Any, gradient: Tensor, given: Tensor) -> Tensor:
        with torch.no_grad():  # (only their layout is taken: nothing computes them)
            return _like(gradient, torch.empty_like(getattr(node, saved)))

    return filled


def _quotient(node: Any, gradient: Tensor, given: Tensor) -> Tensor:
    """A product's derivative where no factor is zero; that of others depends on how many are."""
    x, result = node._saved_self, node._saved_result
    if x.dim() == 0:
        return gradient
    dim: int | None = getattr(node, "_saved_dim", None)
    if dim is not None and not node._saved_keepdim:
        dim = dim if dim < 1 << 63 else dim - (1 << 64)  # (C++ says it without a sign)
        given, result = given.unsqueeze(dim), result.unsqueeze(dim)
    with torch.no_grad():  # (only its layout is taken: nothing computes it)
        pattern = given * (result / x)
    return _like(gradient, pattern)


def _like(gradient: Tensor, pattern: Tensor) -> Tensor:
    """The gradient with its dimensions in memory in the order of a pattern's, without gaps."""
    strides = pattern.stride()
    order = sorted(range(pattern.dim()), key=lambda d: (-hint(strides[d]), d))
    inverse = [order.index(d) for d in range(len(order))]
    return gradient.permute(order).contiguous().permute(inverse)


# --- how exact they are ---------------------------------------------------------------------------


def _scaled_bessel(node: Any, gradient: Tensor, given: Tensor) -> Tensor:
    """exp(-|x|) I_1(x): its derivative is exp(-|x|) I_0(x) less the function times sgn(x) + 1/x,
    both rounded to float32 and nearly equal for large x; here in float64, rounded once."""
    if gradient.dtype is not torch.float32:
        return gradient
    x = node._saved_self.double()
    zero = x == 0
    safe = torch.where(zero, 1.0, x)
    slope = torch.special.i0e(x) - torch.special.i1e(x) * (x.sgn() + safe.reciprocal())
    return (given * torch.where(zero, 0.5, slope)).to(gradient.dtype)


# --- hooks ----------------------------------------------------------------------------------------

# Of the first gradients of a node of autograd, by its name.
_MENDS: Mapping[str, tuple[Mend, ...]] = {
    "MaxBackward1": (_contiguous,),
    "MinBackward1": (_contiguous,),
    "MedianBackward0": (_contiguous,),
    "NanmedianBackward0": (_contiguous,),
    "ProdBackward0": (_quotient,),
    "ProdBackward1": (_quotient,),
    "LinalgHouseholderProductBackward0": (_as("_saved_input"), _as("_saved_tau")),
    "OrmqrBackward0": (_as("_saved_self"), _as("_saved_input2")),
    "SpecialI1EBackward0": (_scaled_bessel,),
}

# Nodes that fill what they computed by a mask in place, and copy it first when it is traced.
_FILL_IN_PLACE = frozenset(
    {
        "ClampBackward0", "ClampMinBackward1", "ClampMaxBackward1", "MaximumBackward0",
        "MinimumBackward0", "FmaxBackward0", "FminBackward0",
    }
)  # fmt: skip


_GIVEN = "the gradient it is given"


def fills_in_place(filled: Tensor) -> bool:
    """Whether a `masked_fill` that is being called is one that eager writes in place. (What a node
    was given is not its own to write to: that one is a copy in eager, too; `fmax` in PyTorch 2.11,
    which does not divide a gradient between equals, fills no other.)"""
    node: Any = torch._C._current_autograd_node()
    if node is None or type(node).__name__ not in _FILL_IN_PLACE:
        return False
    given = node.metadata.get(_GIVEN)
    return given is None or given() is not filled


def _note_given(node: Any) -> None:
    kept = node.metadata  # (a hook that held the node would keep it)

    def hook(given: Gradients) -> None:
        if given[0] is not None:
            kept[_GIVEN] = weakref.ref(given[0])

    node.register_prehook(hook)


class MendedDerivatives:
    """Hooks on the nodes of autograd of one trace. Each node is visited once; `watch` is told."""

    def __init__(self, watch: Callable[[Any], None]) -> None:
        self._watch = watch
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
            name = type(node).__name__
            mends = _MENDS.get(name)
            if mends is not None:
                _hook(node, mends)
            if name in _FILL_IN_PLACE:
                _note_given(node)
            self._watch(node)
            stack += [following for following, _ in node.next_functions]


def _hook(node: Any, mends: tuple[Mend, ...]) -> None:
    def hook(gradients: Gradients, given: Gradients) -> Gradients:
        pairs = zip(gradients, mends, strict=False)
        first = [
            gradient if gradient is None or given[0] is None else mend(node, gradient, given[0])
            for gradient, mend in pairs
        ]
        return *first, *gradients[len(mends) :]

    node.register_hook(hook)
