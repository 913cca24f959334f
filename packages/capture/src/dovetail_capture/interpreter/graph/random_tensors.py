"""Random numbers in a graph: what draws them, and the known ranges of uniform samplers.

`if torch.rand([]) < layerdrop` with `layerdrop` 0.0 takes one branch whatever is drawn. The range
decides it; the sampler stays in the graph, so the generator moves as it does in eager.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from dovetail_prims.conditionals import graphs_of
from dovetail_prims.sizes.size_nodes import STATE
from torch.fx import Graph, Node

from dovetail_capture.interpreter.values.tensors import TensorValue

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_SYMBOLS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_FACTORIES = frozenset({"rand", "rand_like"})
SAMPLERS = _FACTORIES | {"random_"}
_RANDOM = (
    "rand", "drop", "bernoulli", "multinomial", "normal", "uniform", "exponential", "poisson",
    "geometric", "cauchy", "gamma", "dirichlet", "binomial", "gumbel", "rrelu", "attention",
    "fractional", "lstm", "gru", "rnn", "sample",
)  # fmt: skip
_TORCH = ("torch", "_operator", "math", "builtins")


def note_sampler(name: str, node: Node, value: TensorValue, args: list[Any]) -> None:
    """Give the result of a uniform sampler its range. `args` are the sampler's arguments."""
    dtype = value.fake.dtype
    if name in _FACTORIES and dtype.is_floating_point and value.node is node:
        # Below float32 the largest drawn number may round up to 1.
        exact = dtype in (torch.float32, torch.float64)
        value.drawn = (node, 0.0, math.nextafter(1.0, 0.0) if exact else 1.0)
        return
    bounds = args[1:]
    if name != "random_" or dtype.is_floating_point or not _is_fresh(value, node):
        return
    if len(bounds) in (1, 2) and all(type(bound) is int for bound in bounds):
        low, high = (0, bounds[0]) if len(bounds) == 1 else bounds
        value.drawn = (node, float(low), float(high - 1))


def _is_fresh(value: TensorValue, sampler: Node) -> bool:
    """Was the tensor made in the frame and only just filled: can nothing else be a view of it?"""
    source = value.node
    return (
        source.op == "call_function"
        and not source.all_input_nodes
        and list(source.users) == [sampler]
    )


def decided(symbol: str, tensor: TensorValue, number: Any, mirrored: bool) -> bool | None:
    """What `tensor <symbol> number` is for all values that may have been drawn, or None.

    The range holds as long as nothing but comparisons has used the tensor since it was drawn."""
    if tensor.drawn is None or type(number) not in (int, float):
        return None
    sampler, low, high = tensor.drawn
    for user in tensor.node.users:
        if user is not sampler and getattr(user.target, "__name__", None) not in _COMPARISONS:
            return None
    name = _SYMBOLS[symbol]
    compare = _COMPARISONS[_MIRRORED[name] if mirrored else name]
    if name in ("eq", "ne"):
        return (name == "ne") if number < low or number > high else None
    at_low, at_high = compare(low, number), compare(high, number)
    return at_low if at_low == at_high else None


def may_draw(graph: Graph) -> bool:
    """May a graph draw random numbers? By the names of functions of torch; of others, yes."""
    return any(_may_draw(node) for node in graph.nodes)


def _may_draw(node: Node) -> bool:
    if node.op == "call_method":
        return any(word in str(node.target) for word in _RANDOM)
    if node.op != "call_function":
        return False
    if any(may_draw(inner.graph) for inner in graphs_of(node)):
        return True
    target: Any = node.target
    name = str(getattr(target, "__name__", target))
    if any(word in name for word in _RANDOM):
        return True
    if isinstance(target, torch._ops.OpOverload):
        return bool(target.namespace not in ("aten", "prims"))
    module = str(getattr(target, "__module__", None) or "torch").partition(".")[0]
    return not (module in _TORCH or target is STATE or graphs_of(node))
