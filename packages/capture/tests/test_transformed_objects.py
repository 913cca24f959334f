"""Transforms of functions of objects whose classes `torch.utils._pytree` knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import optimize
from torch import Tensor
from torch.utils import _pytree as pytree

torch.manual_seed(0)
X, Y = torch.randn(3, 4), torch.randn(3, 4)
W, B = torch.randn(5, 4, 2), torch.randn(5, 2)


class Tensors(dict[str, Tensor]):
    """A dictionary of tensors with a batch size."""

    def __init__(self, entries: Any, batch: tuple[int, ...] = ()) -> None:
        super().__init__(entries)
        self.batch = batch

    def apply(self, function: Callable[[Tensor], Tensor]) -> Tensors:
        return Tensors({key: function(value) for key, value in self.items()}, self.batch)


@dataclass
class Pair:
    a: Any
    b: Any
    tag: str = "pair"


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __add__(self, other: Any) -> Box:
        return Box(self.inside + other)


pytree.register_pytree_node(
    Tensors,
    lambda t: (list(t.values()), (tuple(t.keys()), t.batch)),
    lambda values, of: Tensors(dict(zip(of[0], values, strict=True)), of[1]),
)
pytree.register_pytree_node(Pair, lambda p: ([p.a, p.b], p.tag), lambda v, tag: Pair(*v, tag))
pytree.register_pytree_node(Box, lambda b: ([b.inside], None), lambda v, _: Box(v[0]))


def product(p: Pair) -> Tensor:
    return (p.a * p.b).sum()


def cell(weights: Tensors, x: Tensor) -> Tensors:
    return Tensors({"out": torch.tanh(x @ weights["w"] + weights["b"])}, weights.batch)


def mapped(x: Tensor, y: Tensor) -> Any:
    return torch.vmap(lambda t: t["a"] * t["b"].sum())(Tensors({"a": x, "b": y}, (3,)))


def mapped_methods(x: Tensor, y: Tensor) -> Any:
    return torch.vmap(lambda t: t.apply(torch.sin))(Tensors({"a": x, "b": y}, (3,)))


def ensemble(x: Tensor, y: Tensor) -> Any:
    return torch.vmap(cell, in_dims=(0, None))(Tensors({"w": W, "b": B}), x)["out"]


def inside_others(x: Tensor, y: Tensor) -> Any:
    def both(arguments: Any) -> Any:
        return {"sum": Box(arguments[0].inside + arguments[1]["p"].a), "tag": arguments[1]["p"].b}

    return torch.vmap(both)([Box(x), {"p": Pair(y, Box(x), "inner")}])


def dimensions(x: Tensor, y: Tensor) -> Any:
    dims = (Pair(0, None, "t"), 1)
    return torch.vmap(lambda p, z: p.a + p.b + z, in_dims=dims)(Pair(x, y[0], "t"), y.T)


def gradients(x: Tensor, y: Tensor) -> Any:
    return torch.func.grad(product)(Pair(x, y)), torch.vmap(torch.func.grad(product))(Pair(x, y))


def with_values(x: Tensor, y: Tensor) -> Any:
    return torch.func.grad_and_value(lambda n, p: product(p) * n, argnums=1)(3.0, Pair(x, y))


def jacobians(x: Tensor, y: Tensor) -> Any:
    def scaled(p: Pair) -> Pair:
        return Pair(p.a * p.b, p.b.sum(), "scaled")

    return torch.func.jacrev(scaled)(Pair(x[0], y[0])), torch.func.jacfwd(scaled)(Pair(x[0], y[0]))


def pulled_and_pushed(x: Tensor, y: Tensor) -> Any:
    value, pull = torch.func.vjp(lambda p: Box(p.a * p.b), Pair(x, y))
    return value, pull(Box(y)), torch.func.jvp(lambda p: p + 1, (Box(x),), (Box(y),))


PROGRAMS = [mapped, mapped_methods, ensemble, inside_others, dimensions, gradients, with_values,
            jacobians, pulled_and_pushed]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[..., Any]) -> None:
    backend = CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    for _ in range(2):
        (wanted, of), (found, like) = map(pytree.tree_flatten, (program(X, Y), captured(X, Y)))
        assert of == like
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert len(backend.graphs) == 1


def test_an_object_that_is_passed() -> None:
    backend = CountingBackend()
    captured = optimize(lambda p: torch.vmap(product)(p), backend, fullgraph=True)
    for pair in (Pair(X, Y), Pair(Y, X), Pair(Y, X, "other")):
        assert torch.equal(captured(pair), torch.vmap(product)(pair))
    assert len(backend.graphs) == 2  # (the tag is part of the structure)


def test_a_branch_may_give_one() -> None:
    def program(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: Box(x + 1), lambda x: Box(x - 1), (x,)).inside

    captured = optimize(program, CountingBackend(), fullgraph=True)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(captured(-torch.ones(2)), torch.full((2,), -2.0))


def test_dimensions_of_another_structure() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return torch.vmap(product, in_dims=(Pair(0, 0, "other"),))(Pair(x, y))

    for function in (program, optimize(program, CountingBackend())):
        with pytest.raises(ValueError, match="in_dims"):
            function(X, Y)
