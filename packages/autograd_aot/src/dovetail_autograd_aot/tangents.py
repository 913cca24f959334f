"""The gradients that come from outside, brought into the form a compiled backward wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dovetail_guards.sym_node import expr_of
from torch import Tensor

from dovetail_autograd_aot.graphs import PartitionedGraph
from dovetail_autograd_aot.values import example_values, hint


class Tangents:
    """Brings gradients from outside into the layout the backward was compiled for."""

    def __init__(self, parts: PartitionedGraph) -> None:
        assert parts.backward is not None
        self.values = example_values(parts.backward)[len(parts.saved) :]
        self.strides = [v._strides for v in self.values]
        self.static = [all(type(s) is int for s in (*v._sizes, *v._strides)) for v in self.values]
        self.sizes = _SizeReader(parts)

    def prepare(
        self, found: list[Any], saved: Sequence[Any], wanted: Sequence[bool]
    ) -> list[Tensor]:
        """The tangents that are `wanted`: undefined ones become zeros, others get the expected
        strides and dtype."""
        ready = []
        for i, gradient in enumerate(found):
            if not wanted[i]:
                continue
            if gradient is not None and (gradient.is_conj() or gradient.is_neg()):
                gradient = gradient.resolve_conj().resolve_neg()
            if self.static[i] and gradient is not None:
                if gradient.stride() == self.strides[i]:
                    ready.append(gradient)
                    continue
                sizes, strides = self.values[i]._sizes, self.strides[i]
            elif gradient is None:
                sizes, strides = self.sizes.layout(self.values[i], saved, found)
            else:
                sizes, strides = gradient.shape, _contiguous_like(self.values[i], gradient)
                if gradient.stride() == strides:
                    ready.append(gradient)
                    continue
            ready.append(_laid_out(gradient, sizes, strides, self.values[i]))
        return ready


def _laid_out(gradient: Tensor | None, sizes: Any, strides: Any, like: Any) -> Tensor:
    new = torch.empty_strided(sizes, strides, dtype=like._dtype, device=like._device)
    return new.zero_() if gradient is None else new.copy_(gradient)


def _contiguous_like(value: Any, gradient: Tensor) -> tuple[int, ...]:
    """The strides of `gradient`'s sizes in the dimension order of `value`."""
    order = sorted(
        range(len(value._sizes)),
        key=lambda d: (
            hint(value._strides[d]),
            -d,
        ),
    )
    strides = [0] * len(order)
    expected = 1
    for d in order:
        strides[d] = expected
        expected *= max(1, gradient.shape[d])
    return tuple(strides)


class _SizeReader:
    """Finds the run-time sizes of an undefined tangent: read off the values at hand."""

    def __init__(self, parts: PartitionedGraph) -> None:
        assert parts.backward is not None
        self.known = example_values(parts.backward)

    def layout(
        self, value: Any, saved: Sequence[Any], tangents: list[Any]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides of `value` as numbers."""
        known: dict[str, int] = {}

        def learn(symbolic: Any, actual: int) -> None:
            name = None if type(symbolic) is int else expr_of(symbolic).symbol_name
            if name is not None:
                known[name] = actual

        for example, actual in zip(self.known, [*saved, *tangents], strict=True):
            if isinstance(actual, Tensor):
                for symbolic, size in zip(example._sizes, actual.shape, strict=True):
                    learn(symbolic, size)
            elif isinstance(example, torch.SymInt):
                learn(example, actual)
        sizes = []
        for size in value._sizes:
            expr = expr_of(size)
            if not expr.free_symbols() <= known.keys():
                raise RuntimeError(
                    f"the size {size} of an output without gradient is not known in the backward"
                )
            sizes.append(expr.evaluate(known))
        return tuple(sizes), _contiguous_like(value, torch.empty(sizes, device="meta"))
