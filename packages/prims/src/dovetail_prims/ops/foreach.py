"""The `_foreach_` ops of optimizers: a list of the plain op, one for each tensor.

The variants differ in what goes with each tensor: nothing, one number for all, one each, another
list of tensors, or one 0-dim tensor for all. A factory makes each variant's function with that
variant's signature; the plain op is looked up once, when the table is built.

The `_fused_` steps of optimizers: plain arithmetic on each parameter, which fuses by itself.

All that a step computes is computed in float32 where parameters are narrower, as by PyTorch's
kernels; what depends on the count of steps, in float64. Gradients are given back as they came, or
divided by `grad_scale`; where `found_inf` says so, nothing else changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from dovetail_prims.ops.card import Card, Form, Kind, also, composed
from dovetail_prims.ops.common import _LOW, Family, Number, aten, lookup
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


# --- shapes ---------------------------------------------------------------------------------------


def only_written(*args: Any, **kwargs: Any) -> None:
    """Steps of optimizers, which give nothing and change the shape of nothing."""


# --- decompositions -------------------------------------------------------------------------------


Lists = tuple[list[Tensor], ...]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in _LOW else x


def _scaled(grad: Tensor, grad_scale: Tensor | None) -> Tensor:
    return grad if grad_scale is None else aten.div.Tensor(_wide(grad), grad_scale)


def _kept(old: Tensor, new: Tensor, found_inf: Tensor | None) -> Tensor:
    """The new value in the old one's dtype; the old one where an infinite gradient was found."""
    new = new.to(old.dtype)
    if found_inf is None:
        return new
    return aten.where.self(aten.eq.Scalar(found_inf, 1), old, new)


def _direction(
    grad: Tensor, param: Tensor, scale: Tensor | None, maximize: bool, weight_decay: Number
) -> Tensor:
    """The gradient to go down along, with the parameter's decay."""
    grad = _wide(_scaled(grad, scale))
    grad = aten.neg.default(grad) if maximize else grad
    if weight_decay == 0:
        return grad
    return aten.add.Tensor(grad, aten.mul.Tensor(param, weight_decay))


def _missing(before: Number, step: Tensor) -> Tensor:
    """What an average that starts at zero lacks: 1 - before^step, in float64."""
    power = aten.pow.Scalar(before, step.to(torch.float64))
    return aten.rsub.Scalar(power, 1)


def _as(number: Tensor, like: Tensor) -> Tensor:
    return number.to(like.dtype)


def _adam(decoupled: bool) -> Callable[..., Lists]:
    """Adam; with `decoupled` decay of weights, AdamW."""

    def step_all(
        self: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        """m and v are running averages of g and g^2; p falls by lr m / (sqrt(v) + eps), both
        averages corrected for their start at zero"""
        results: Lists = ([], [], [], [], [])
        rows = zip(self, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True)
        for i, (p, grad, first, second, step) in enumerate(rows):
            param = _wide(p)
            decay = 0 if decoupled else weight_decay
            g = _direction(grad, param, grad_scale, maximize, decay)
            if decoupled and weight_decay != 0:
                param = aten.sub.Tensor(param, aten.mul.Tensor(param, lr * weight_decay))
            m, v = _wide(first), _wide(second)
            m = aten.add.Tensor(m, aten.mul.Tensor(aten.sub.Tensor(g, m), 1 - beta1))
            square = aten.mul.Tensor(aten.mul.Tensor(g, g), 1 - beta2)
            v = aten.add.Tensor(aten.mul.Tensor(v, beta2), square)
            largest = v
            if amsgrad:
                largest = aten.maximum.default(_wide(max_exp_avg_sqs[i]), v)
                results[4].append(_kept(max_exp_avg_sqs[i], largest, found_inf))
            length = aten.reciprocal.default(_missing(beta1, step)) * lr
            spread = aten.sqrt.default(_missing(beta2, step))
            root = aten.div.Tensor(aten.sqrt.default(largest), _as(spread, largest))
            change = aten.div.Tensor(aten.mul.Tensor(m, _as(length, m)), aten.add.Scalar(root, eps))
            results[0].append(_kept(p, aten.sub.Tensor(param, change), found_inf))
            results[1].append(_scaled(grad, grad_scale).to(grad.dtype))
            results[2].append(_kept(first, m, found_inf))
            results[3].append(_kept(second, v, found_inf))
        return results

    return step_all


def sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    """p falls by lr times the gradient, or its average that forgets by `momentum`"""
    results: Lists = ([], [], [])
    for i, (p, grad) in enumerate(zip(self, grads, strict=True)):
        param = _wide(p)
        g = _direction(grad, param, grad_scale, maximize, weight_decay)
        if momentum_buffer_list:
            held = momentum_buffer_list[i]
            average = g
            if not is_first_step:
                kept = aten.mul.Tensor(_wide(held), momentum)
                average = aten.add.Tensor(kept, aten.mul.Tensor(g, 1 - dampening))
            g = aten.add.Tensor(g, aten.mul.Tensor(average, momentum)) if nesterov else average
            results[2].append(_kept(held, average, found_inf))
        new = aten.sub.Tensor(param, aten.mul.Tensor(g, lr))
        results[0].append(_kept(p, new, found_inf))
        results[1].append(_scaled(grad, grad_scale).to(grad.dtype))
    return results


def adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    """p falls by the gradient over the root of the sum of all its squares"""
    results: Lists = ([], [], [], list(state_steps))
    for p, grad, held, step in zip(self, grads, state_sums, state_steps, strict=True):
        param = _wide(p)
        g = _direction(grad, param, grad_scale, maximize, weight_decay)
        total = aten.add.Tensor(_wide(held), aten.mul.Tensor(g, g))
        slower = aten.mul.Tensor(aten.sub.Tensor(step.to(torch.float64), 1), lr_decay)
        rate = aten.reciprocal.default(aten.add.Scalar(slower, 1)) * lr
        root = aten.add.Scalar(aten.sqrt.default(total), eps)
        change = aten.div.Tensor(aten.mul.Tensor(g, _as(rate, g)), root)
        results[0].append(_kept(p, aten.sub.Tensor(param, change), found_inf))
        results[1].append(_scaled(grad, grad_scale).to(grad.dtype))
        results[2].append(_kept(held, total, found_inf))
    return results


@functools.wraps(adagrad, assigned=())
def adagrad_by_tensor(*args: Any, **kwargs: Any) -> Lists:
    """Adagrad by a rate that is a tensor gives no steps back"""
    return adagrad(*args, **kwargs)[:3]


# --- cards ----------------------------------------------------------------------------------------

CARDS = (
    composed(
        "_fused_adam", None, _adam(decoupled=False), also("tensor_lr", None, _adam(decoupled=False))
    ),
    composed(
        "_fused_adamw", None, _adam(decoupled=True), also("tensor_lr", None, _adam(decoupled=True))
    ),
    composed("_fused_sgd", None, sgd, also("tensor_lr", None, sgd)),
    composed("_fused_adagrad", None, adagrad, also("tensor_lr", None, adagrad_by_tensor)),
    *(
        composed(name, only_written, None, also("tensor_lr", only_written))
        # (Adam's have meta kernels where the learning rate is a number only.)
        for name in ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")
    ),
)
