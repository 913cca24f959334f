"""The gradients that come from outside, brought into the form a compiled backward wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from dovetail_prims.conditionals import PlainControlFlow
from torch import Tensor

from dovetail_autograd_aot.boundary import PartitionedGraph
from dovetail_autograd_aot.calls.lazy_backward import Laid
from dovetail_autograd_aot.trace import node_values

_LARGE_BYTES = 1 << 20  # of a gradient, of which a copy takes longer than to look at it
_FEW_NODES = 64  # of a backward, beside which such a copy takes some of the time


class Tangents:
    """Brings gradients from outside into the layout the backward was compiled for."""

    def __init__(self, parts: PartitionedGraph) -> None:
        assert parts.backward is not None
        known = node_values.example_values(parts.backward)
        self.is_short = len(parts.backward.graph.nodes) <= _FEW_NODES
        self.values = known[len(parts.saved) :]
        self.strides = [v._strides for v in self.values]
        self.static = [all(type(s) is int for s in (*v._sizes, *v._strides)) for v in self.values]
        self.orders: dict[int, list[int]] = {}  # `_order_of` the values that calls asked for
        self.sizes = node_values.SizeReader(known)
        count = len(parts.saved)
        # Outputs whose sizes nothing that is saved tells: zeros for them need those kept.
        self.kept = [i for i, v in enumerate(self.values) if not self.sizes.tell(v._sizes, count)]

    def shapes(self, outputs: Sequence[Tensor]) -> dict[int, torch.Size]:
        """What `prepare` needs to know of one call's differentiable outputs."""
        return {i: outputs[i].shape for i in self.kept}

    def repeating(self, found: list[Any]) -> Laid:
        """Those that repeat elements along dimensions, if copies of them would take some time."""
        large = enumerate(found) if self.is_short else ()
        return tuple((i, g.stride()) for i, g in large if self.static[i] and _repeats(g))

    def layouts(self) -> list[tuple[Any, Any, torch.dtype, torch.device]]:
        """What each is laid out as: sizes, strides, dtype and device; where those are not known,
        None and the order of dimensions from the innermost to the outermost."""
        return [
            (tuple(v._sizes), tuple(v._strides), v._dtype, v._device)
            if static
            else (None, tuple(self._order(i)), v._dtype, v._device)
            for i, (v, static) in enumerate(zip(self.values, self.static, strict=True))
        ]

    def prepare(
        self,
        found: list[Any],
        saved: Sequence[Any],
        wanted: Sequence[bool],
        shapes: Mapping[int, Sequence[int]],
    ) -> list[Tensor]:
        """The tangents that are `wanted`: undefined ones become zeros, others get the expected
        strides and dtype. `shapes` are those of the outputs that are `kept`."""
        ready = []
        for i, gradient in enumerate(found):
            if not wanted[i]:
                continue
            if gradient is None:
                read = self.sizes.read([*saved, *found])
                sizes = shapes.get(i) or node_values.as_numbers(self.values[i]._sizes, read)
                strides = _contiguous(sizes, self._order(i))
            else:
                gradient = gradient.resolve_conj().resolve_neg()
                sizes = gradient.shape
                strides = self.strides[i] if self.static[i] else _contiguous(sizes, self._order(i))
            if gradient is None or gradient.stride() != strides:
                gradient = _laid_out(gradient, sizes, strides, self.values[i])
            ready.append(gradient)
        return ready

    def _order(self, index: int) -> list[int]:
        order = self.orders.get(index)
        if order is None:
            order = self.orders[index] = _order_of(self.values[index])
        return order


class BatchedBackward(PlainControlFlow):
    """Runs a backward on gradients of which each stands for several."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.aten.alias.default:  # (for which there is no rule of batches)
            return args[0]
        return super().call_function(target, args, kwargs)


def is_batched(gradient: Any) -> bool:
    """Whether a gradient stands for several, of which autograd makes one pass (`is_grads_batched`,
    or a pass inside of `vmap`, which see to it that each operator computes them all), or is
    otherwise of a transform of `torch.func`: a compiled graph does not know of that."""
    native = torch._C._functorch
    return gradient is not None and (
        native.is_legacy_batchedtensor(gradient) or native.is_functorch_wrapped_tensor(gradient)
    )


def _repeats(gradient: Tensor | None) -> bool:
    if gradient is None or gradient.layout != torch.strided or gradient.nbytes < _LARGE_BYTES:
        return False
    return 0 in gradient.stride() and not (gradient.is_conj() or gradient.is_neg())


def _laid_out(gradient: Tensor | None, sizes: Any, strides: Any, like: Any) -> Tensor:
    if is_batched(gradient):
        assert gradient is not None
        order = sorted(range(len(strides)), key=lambda d: -strides[d])
        dense = gradient.permute(order).contiguous().to(like._dtype)
        return dense.permute([order.index(d) for d in range(len(order))])
    new = torch.empty_strided(sizes, strides, dtype=like._dtype, device=like._device)
    return new.zero_() if gradient is None else new.copy_(gradient)


def _contiguous(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor whose dimensions lie in this order, the innermost first."""
    strides = [0] * len(order)
    expected = 1
    for d in order:
        strides[d] = expected
        expected *= max(1, sizes[d])
    return tuple(strides)


def _order_of(value: Any) -> list[int]:
    """The dimensions of a dense tensor from the innermost to the outermost: by what their strides
    are, or where that tells nothing, by how large they are in the example."""
    rest = list(range(len(value._sizes)))[::-1]
    order: list[int] = []
    expected: Any = 1
    while rest:
        following = next(
            (d for d in rest if node_values.same_size(value._strides[d], expected)), None
        )
        if following is None:
            strides = value._strides
            return sorted(range(len(strides)), key=lambda d: (node_values.hint(strides[d]), -d))
        rest.remove(following)
        order.append(following)
        expected = expected * value._sizes[following]
    return order
