"""Images extended by their own elements, mirrored or repeated, with the gradients.

Padding is a gather along each padded dimension; its gradient adds each place's values back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dovetail_prims.ops import common
from dovetail_prims.ops.card import Card, Kind, composed
from dovetail_prims.ops.common import aten
from dovetail_prims.shape_rules.copies import in_format

# (positions along the padded dimension, size of the unpadded one) -> positions read there
Fold = Callable[[Tensor, int], Tensor]


def _reflect(place: Tensor, size: int) -> Tensor:
    """Mirrored at the first and the last element: |last - |last - |p|||"""
    last = size - 1
    inner = aten.abs.default(aten.sub.Tensor(last, aten.abs.default(place)))
    return aten.sub.Tensor(last, inner)


def _replicate(place: Tensor, size: int) -> Tensor:
    """Held at the first and the last element"""
    low = aten.relu.default(place)
    return aten.minimum.default(low, common.constant(size - 1, place))


def _places(like: Tensor, size: int, before: int, after: int, fold: Fold) -> Tensor:
    """For each padded position along a dimension, the position it reads"""
    shifted = aten.sub.Tensor(common.iota(size + before + after, like), before)
    return fold(shifted, size)


def _sides(padding: Sequence[int], rank: int) -> list[tuple[int, int, int]]:
    """(dimension, before, after) of each pair; the last dimension's pair comes first"""
    pairs = zip(padding[::2], padding[1::2], strict=True)
    return [(rank - 1 - i, before, after) for i, (before, after) in enumerate(pairs)]


def _pad(self: Tensor, padding: Sequence[int], fold: Fold) -> Tensor:
    out = self
    for dim, before, after in _sides(padding, self.dim()):
        place = _places(self, self.shape[dim], before, after, fold)
        out = aten.index.Tensor(out, [*[None] * dim, place])
    return common.formatted(out, common.format_on_cpu(self))


# (gradient, dimension, positions before, after) -> what the first and the last get from beyond
Edges = Callable[[Tensor, int, int, int], tuple[Tensor, Tensor]]


def _laid(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Zeros before and after along a dimension; a negative number of them cuts off"""
    sides = [0, 0] * (x.dim() - 1 - dim) + [before, after]
    return aten.constant_pad_nd.default(x, sides)


def _mirrored(grad: Tensor, dim: int, before: int, after: int) -> tuple[Tensor, Tensor]:
    """The margins turned round, beside the edge elements"""
    total = grad.shape[dim]
    size = total - before - after
    low = aten.flip.default(aten.slice.Tensor(grad, dim, 0, before), [dim])
    high = aten.flip.default(aten.slice.Tensor(grad, dim, total - after, total), [dim])
    return _laid(low, dim, 1, size - 1 - before), _laid(high, dim, size - 1 - after, 1)


def _gathered(grad: Tensor, dim: int, before: int, after: int) -> tuple[Tensor, Tensor]:
    """The margins' sums, on the edge elements"""
    total = grad.shape[dim]
    size = total - before - after
    low = aten.sum.dim_IntList(aten.slice.Tensor(grad, dim, 0, before), [dim], True)
    high = aten.sum.dim_IntList(aten.slice.Tensor(grad, dim, total - after, total), [dim], True)
    return _laid(low, dim, 0, size - 1), _laid(high, dim, size - 1, 0)


def _pad_backward(
    grad: Tensor, self: Tensor, padding: Sequence[int], fold: Fold, edges: Edges
) -> Tensor:
    out = common.wide(common.contiguous(grad))
    for dim, before, after in _sides(padding, self.dim()):
        if all(type(n) is int and n >= 0 for n in (before, after)):
            low, high = edges(out, dim, before, after)
            out = _laid(out, dim, -before, -after)
            out = aten.add.Tensor(aten.add.Tensor(out, low), high)
            continue
        place = _places(self, self.shape[dim], before, after, fold)
        size = list(out.shape)
        size[dim] = self.shape[dim]
        out = aten.index_put.default(common.zeros(size, out), [*[None] * dim, place], out, True)
    return common.formatted(common.cast(out, grad.dtype), common.format_on_cpu(self))


def reflection_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    """Mirrored over each edge, the edge itself not repeated"""
    return _pad(self, padding, _reflect)


def reflection_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """Each place's gradients summed"""
    return _pad_backward(grad_output, self, padding, _reflect, _mirrored)


def replication_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    """The edge repeated"""
    return _pad(self, padding, _replicate)


def replication_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """Each place's gradients summed"""
    return _pad_backward(grad_output, self, padding, _replicate, _gathered)


def _both(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> tuple[Card, Card]:
    """A padding and its gradient: they look at no element."""
    shape = None if "1d" in name else in_format(name)
    return (
        composed(name, shape, forward, kind=Kind.MOVED),
        composed(f"{name}_backward", None, backward, kind=Kind.MOVED),
    )


# --- cards ----------------------------------------------------------------------------------------

CARDS = (
    *(
        card
        for kind, forward, backward in (
            ("reflection", reflection_pad, reflection_pad_backward),
            ("replication", replication_pad, replication_pad_backward),
        )
        for rank in (1, 2, 3)
        for card in _both(f"{kind}_pad{rank}d", forward, backward)
    ),
)
