"""The `_foreach_` ops of optimizers: a list of the plain op, one for each tensor.

The variants differ in what goes with each tensor: nothing, one number for all, one each, another
list of tensors, or one 0-dim tensor for all. A factory makes each variant's function with that
variant's signature; the plain op is looked up once, when the table is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from dovetail_prims.ops.card import Card, Form, Kind, also
from dovetail_prims.ops.common import Family, Number, aten, lookup
from dovetail_prims.ops.reductions import linalg_vector_norm

Tensors = Sequence[Tensor]

# What goes by a card's name but takes numbers, or tensors, as another operator.
_BOUNDED = {"maximum": "clamp_min", "minimum": "clamp_max"}


def _op(name: str) -> OpOverload:
    found = lookup(name)
    assert found is not None, name
    return found


def _unary(name: str) -> Callable[..., Any]:
    op = _op(f"{name}.default")

    def each(self: Tensors) -> list[Tensor]:
        """Each of the list"""
        return [op(x) for x in self]

    return each


def _binary(number: str, tensor: str) -> dict[str, Callable[..., Any]]:
    number_op, tensor_op = _op(number), _op(tensor)

    def with_number(self: Tensors, scalar: Number) -> list[Tensor]:
        """One number for all"""
        return [number_op(x, scalar) for x in self]

    def with_numbers(self: Tensors, scalars: Sequence[Number]) -> list[Tensor]:
        """A number each"""
        return [number_op(x, n) for x, n in zip(self, scalars, strict=True)]

    def with_list(self: Tensors, other: Tensors) -> list[Tensor]:
        """A tensor each"""
        return [tensor_op(x, y) for x, y in zip(self, other, strict=True)]

    def with_tensor(self: Tensors, other: Tensor) -> list[Tensor]:
        """One 0-dim tensor for all"""
        return [tensor_op(x, other) for x in self]

    return {
        "Scalar": with_number,
        "ScalarList": with_numbers,
        "List": with_list,
        "Tensor": with_tensor,
    }


def _additive(name: str) -> dict[str, Callable[..., Any]]:
    """add and sub: a list or tensor comes with alpha"""
    op = _op(f"{name}.Tensor")

    def with_list(self: Tensors, other: Tensors, *, alpha: Number = 1) -> list[Tensor]:
        """A tensor each"""
        return [op(x, y, alpha=alpha) for x, y in zip(self, other, strict=True)]

    def with_tensor(self: Tensors, other: Tensor, *, alpha: Number = 1) -> list[Tensor]:
        """One 0-dim tensor for all"""
        return [op(x, other, alpha=alpha) for x in self]

    numbers = _binary(f"{name}.Tensor", f"{name}.Tensor")
    return {**numbers, "List": with_list, "Tensor": with_tensor}


def _pairs(card: Card) -> dict[str, Callable[..., Any]]:
    """The variants of an operator of two operands."""
    numbers = _BOUNDED.get(card.name, card.name)
    if lookup(f"{numbers}.Scalar") is None:  # (its overload for a number is `default`)
        return _binary(f"{numbers}.default", f"{numbers}.Tensor")
    takes_alpha = any(a.name == "alpha" for a in _op(f"{card.name}.Tensor")._schema.arguments)
    return _additive(card.name) if takes_alpha else _binary(*(f"{card.name}.Tensor",) * 2)


def _three(name: str) -> dict[str, Callable[..., Any]]:
    """addcmul and addcdiv"""
    op = _op(f"{name}.default")

    def with_number(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, value: Number = 1
    ) -> list[Tensor]:
        """One number for all"""
        triples = zip(self, tensor1, tensor2, strict=True)
        return [op(x, a, b, value=value) for x, a, b in triples]

    def with_numbers(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Sequence[Number]
    ) -> list[Tensor]:
        """A number each"""
        rows = zip(self, tensor1, tensor2, scalars, strict=True)
        return [op(x, a, b, value=n) for x, a, b, n in rows]

    return {"Scalar": with_number, "ScalarList": with_numbers}


def lerp_number(self: Tensors, tensors1: Tensors, weight: Number) -> list[Tensor]:
    """One weight for all"""
    return [aten.lerp.Scalar(x, y, weight) for x, y in zip(self, tensors1, strict=True)]


def lerp_list(self: Tensors, tensors1: Tensors, weights: Tensors) -> list[Tensor]:
    """A tensor of weights each"""
    rows = zip(self, tensors1, weights, strict=True)
    return [aten.lerp.Tensor(x, y, w) for x, y, w in rows]


def norm(self: Tensors, ord: Number = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The norm of each"""
    return [linalg_vector_norm(x, ord, dtype=dtype) for x in self]


def zero(self: Tensors) -> list[Tensor]:
    """Zeros in the shape of each"""
    return [aten.full_like.default(x, 0) for x in self]


def pow_of_number(self: Number, exponent: Tensors) -> list[Tensor]:
    """One number to the power of each"""
    return [aten.pow.Scalar(self, x) for x in exponent]


def pow_number(self: Tensors, exponent: Number) -> list[Tensor]:
    """Each to one number"""
    return [aten.pow.Tensor_Scalar(x, exponent) for x in self]


def pow_numbers(self: Tensors, exponent: Sequence[Number]) -> list[Tensor]:
    """Each to its number"""
    return [aten.pow.Tensor_Scalar(x, n) for x, n in zip(self, exponent, strict=True)]


def pow_list(self: Tensors, exponent: Tensors) -> list[Tensor]:
    """Each to its tensor"""
    return [aten.pow.Tensor_Tensor(x, y) for x, y in zip(self, exponent, strict=True)]


def lerp_numbers(self: Tensors, tensors1: Tensors, weight: Sequence[Number]) -> list[Tensor]:
    """A weight each"""
    rows = zip(self, tensors1, weight, strict=True)
    return [aten.lerp.Scalar(x, y, w) for x, y, w in rows]


def cards(pointwise: tuple[Card, ...]) -> tuple[Card, ...]:
    """The operators on lists of tensors, among them those of these pointwise operators."""
    forms: dict[str, list[Form]] = {}
    for name, entry in _family(pointwise).items():
        operator, overload = name.split(".")
        forms.setdefault(operator, []).append(also(overload, None, entry))
    return tuple(
        Card(operator, 1, "", tuple(own), kind=Kind.COMPOSED) for operator, own in forms.items()
    )


def _family(pointwise: tuple[Card, ...]) -> Family:
    table: dict[str, Callable[..., Any]] = {
        "_foreach_lerp.Scalar": lerp_number,
        "_foreach_lerp.List": lerp_list,
        "_foreach_norm.Scalar": norm,
        "_foreach_zero.default": zero,
        "_foreach_lerp.ScalarList": lerp_numbers,
        "_foreach_pow.Scalar": pow_number,
        "_foreach_pow.ScalarList": pow_numbers,
        "_foreach_pow.List": pow_list,
        "_foreach_pow.ScalarAndTensor": pow_of_number,
    }
    for card in pointwise:
        each = f"_foreach_{card.name}"
        if not hasattr(torch.ops.aten, each) or f"{each}.Scalar" in table:
            continue
        if card.arity == 1:
            table[f"{each}.default"] = _unary(card.name)
            continue
        variants = _three(card.name) if card.arity == 3 else _pairs(card)
        table |= {f"{each}.{kind}": function for kind, function in variants.items()}
    return table
