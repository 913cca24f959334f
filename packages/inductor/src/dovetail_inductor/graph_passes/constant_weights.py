"""A graph whose weights never change, as what is computed of them once and the rest.

Two steps over a functional graph. First, what scales and shifts the channels of a product or a
convolution by numbers that come from weights alone (a batch norm in inference) becomes part of the
product's own weights. Then all that depends on weights alone moves to a graph of its own: scaled
weights, casts of autocast, layouts that are chosen for convolutions.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

from dovetail_inductor.fx_nodes import call_at, fake_of, is_view
from dovetail_inductor.graph_passes.packed_weights import pack_weights, packs

aten = torch.ops.aten

# What tells of a node where it belongs.
# The positions of a product's weight and of its bias, and the dimension of its channels in both
# the weight and the result.
_PRODUCTS: Mapping[Any, tuple[int, int | None, int, int]] = {
    aten.convolution.default: (1, 2, 0, 1),
    aten.mm.default: (1, None, 1, 1),
    aten.addmm.default: (2, 0, 1, 1),
}
_TRANSPOSED = 6  # argument of a convolution


@dataclass(frozen=True)
class PreparedGraph:
    """A graph in two. `prepare` takes the inputs at the positions `weights` and gives what `rest`
    takes after all inputs of the whole graph, where its results lie as `prepared` does; these share
    no memory with the inputs."""

    weights: tuple[int, ...]
    prepare: GraphModule
    rest: GraphModule
    prepared: tuple[FakeTensor, ...]


def prepare_weights(gm: GraphModule, constant: Collection[int]) -> PreparedGraph | None:
    """Cut a functional graph whose inputs at the positions `constant` never change; None where
    nothing is computed of them alone. Every node needs `meta["val"]`. `gm` is left as it is."""
    graph, env = Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
    known = _constants(graph, constant)
    _absorb(graph, known)  # which adds to them, as the next does
    pack_weights(graph, known)
    return _split(gm, graph, known)


def _constants(graph: Graph, positions: Collection[int]) -> set[Node]:
    """The inputs at the positions, and all that is computed of nothing else."""
    found: set[Node] = set()
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    found.update(placeholders[i] for i in positions)
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if inputs and _is_pure(node) and all(n in found for n in inputs):
            found.add(node)
    return found


def _is_pure(node: Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace == "aten"
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


# --- scales and shifts that products take in ------------------------------------------------------

Factor = Node | float


@dataclass
class _Chain:
    """What follows a product: `product * scale + shift`, by channel, in the type `dtype`."""

    nodes: list[Node]
    dtype: torch.dtype
    scale: Factor | None = None
    shift: Factor | None = None


def _absorb(graph: Graph, constant: set[Node]) -> None:
    for node in list(graph.nodes):
        places = _PRODUCTS.get(node.target)
        if places is None:
            continue
        weight, bias = node.args[places[0]], None
        if places[1] is not None:
            bias = node.args[places[1]]
        if node in constant or weight not in constant or not (bias is None or bias in constant):
            continue
        if node.target is aten.convolution.default and node.args[_TRANSPOSED]:
            continue
        if node.kwargs or (bias is not None and len(fake_of(bias)._sizes) != 1):
            continue
        _Absorber(graph, constant, node).run(bias)


class _Absorber:
    """Takes what follows one product into its weights."""

    def __init__(self, graph: Graph, constant: set[Node], product: Node) -> None:
        self.graph = graph
        self.constant = constant
        self.product = product
        self.weight_at, _, self.weight_dim, self.channel_dim = _PRODUCTS[product.target]

    def run(self, bias: Node | None) -> None:
        value = fake_of(self.product)
        chain = _Chain([], value._dtype, shift=bias)
        last = self.product
        while len(last.users) == 1 and (user := next(iter(last.users))):
            if not self._takes(chain, user, last):
                break
            chain.nodes.append(user)
            last = user
            if fake_of(last)._dtype.itemsize < chain.dtype.itemsize:
                break  # rounded: what comes now is another computation
            chain.dtype = fake_of(last)._dtype
        if chain.scale is None:
            return
        self._replace(chain, last)

    def _takes(self, chain: _Chain, user: Node, last: Node) -> bool:
        """Whether the chain goes on with this node; if so, its scale and shift are computed."""
        before, after = fake_of(last), user.meta.get("val")
        if not isinstance(after, FakeTensor) or not after._dtype.is_floating_point:
            return False
        if after._sizes != before._sizes or after._strides != before._strides:
            return False
        if after._device != before._device:
            return False
        if user.target is aten._to_copy.default:
            return set(user.kwargs) <= {"dtype"} and (
                after._dtype.itemsize >= before._dtype.itemsize
                or after._dtype is fake_of(self.product)._dtype
            )
        if user.target not in _STEPS or user.kwargs or after._dtype is not before._dtype:
            return False
        first, second = user.args
        if first is not last:
            if user.target not in (aten.mul.Tensor, aten.add.Tensor):
                return False
            first, second = second, first
        factor = self._factor(second, user)
        if factor is None:
            return False
        with self.graph.inserting_before(user):
            self._step(chain, user.target, factor)
        return True

    def _factor(self, other: Any, user: Node) -> Factor | None:
        """A number, or one for each channel, that comes from weights alone."""
        if isinstance(other, bool | complex):
            return None
        if isinstance(other, int | float):
            return float(other)
        if not isinstance(other, Node) or other not in self.constant:
            return None
        value, whole = fake_of(other), fake_of(user)
        if value._device != whole._device or not value._dtype.is_floating_point:
            return None
        sizes = (1,) * (len(whole._sizes) - len(value._sizes)) + tuple(value._sizes)
        if any(n != 1 for d, n in enumerate(sizes) if d != self.channel_dim):
            return None
        with self.graph.inserting_before(user):
            return self._call(aten.view.default, other, [sizes[self.channel_dim]])

    def _step(self, chain: _Chain, target: Any, factor: Factor) -> None:
        if target in (aten.mul.Tensor, aten.div.Tensor):
            if target is aten.div.Tensor:
                inverse = aten.reciprocal.default
                if isinstance(factor, Node):
                    factor = self._call(inverse, factor)
                else:
                    factor = 1.0 / factor if factor else float("inf")
            chain.scale = self._combined(aten.mul.Tensor, chain.scale, factor)
            if chain.shift is not None:
                chain.shift = self._combined(aten.mul.Tensor, chain.shift, factor)
            return
        if target is aten.sub.Tensor:
            factor = self._combined(aten.mul.Tensor, factor, -1.0)
        chain.shift = self._combined(aten.add.Tensor, chain.shift, factor)

    def _combined(self, target: Any, first: Factor | None, second: Factor) -> Factor:
        if first is None:
            return second
        if isinstance(first, float) and isinstance(second, float):
            return first * second if target is aten.mul.Tensor else first + second
        if isinstance(first, float):
            first, second = second, first
        return self._call(target, first, second)

    def _replace(self, chain: _Chain, last: Node) -> None:
        narrow, shift = fake_of(last)._dtype, chain.shift
        with self.graph.inserting_before(last):
            args: list[Any] = list(self.product.args)
            args[self.weight_at] = self._scaled(args[self.weight_at], chain.scale)
            # The shift is for the kernels that read the product: unless weights are packed, the
            # library adds it in a pass of its own, or is slower to convolve (measured on a CPU).
            if self.product.target is aten.convolution.default:
                args[2] = None
                if isinstance(shift, Node) and packs(self.product):
                    args[2], shift = shift, None
                new = self._call(aten.convolution.default, *args)
            else:
                new = self._call(aten.mm.default, *args[-2:])
            if chain.dtype is not fake_of(new)._dtype:
                new = self._call(aten._to_copy.default, new, dtype=chain.dtype)
            if isinstance(shift, Node):
                ones = [1] * (len(fake_of(last)._sizes) - self.channel_dim - 1)
                shift = self._call(aten.view.default, shift, [-1, *ones])
            if shift is not None:
                new = self._call(aten.add.Tensor, new, shift)
            if narrow is not fake_of(new)._dtype:
                new = self._call(aten._to_copy.default, new, dtype=narrow)
        last.replace_all_uses_with(new)
        for node in (*reversed(chain.nodes), self.product):
            self.graph.erase_node(node)

    def _scaled(self, weight: Node, scale: Factor | None) -> Node:
        """The weight times the scale of its channels, in its own type."""
        if isinstance(scale, Node):
            ones = [1] * (len(fake_of(weight)._sizes) - self.weight_dim - 1)
            scale = self._call(aten.view.default, scale, [-1, *ones])
        assert scale is not None
        product = self._call(aten.mul.Tensor, weight, scale)
        if fake_of(product)._dtype is fake_of(weight)._dtype:
            return product
        return self._call(aten._to_copy.default, product, dtype=fake_of(weight)._dtype)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = call_at(self.product, self.graph, target, *args, **kwargs)
        if all(n in self.constant for n in node.all_input_nodes):
            self.constant.add(node)
        return node


_STEPS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)


# --- two graphs -----------------------------------------------------------------------------------


def _split(gm: GraphModule, graph: Graph, constant: set[Node]) -> PreparedGraph | None:
    """What the rest needs of the constants: views stay where they are, as they cost nothing, and so
    does what the graph returns, which the caller may write to."""
    nodes = list(graph.nodes)
    kept = {node for node in nodes if node not in constant or node.op == "placeholder"}
    returned: set[Node] = {node for node in nodes if node.op == "output"}
    wanted: set[Node] = set()  # results of `prepare`
    for node in reversed(nodes):
        if node not in kept:
            continue
        for operand in node.all_input_nodes:
            if operand in kept:
                if node in returned and operand in constant:
                    returned.add(operand)
            elif node in returned:
                kept.add(operand)
                returned.add(operand)
            elif is_view(operand):
                kept.add(operand)
            else:
                wanted.add(operand)
    results = [node for node in nodes if node in wanted and node not in kept]
    if not results:
        return None
    placeholders = [n for n in nodes if n.op == "placeholder"]
    weights = tuple(i for i, n in enumerate(placeholders) if n in constant)
    prepare, env = Graph(), dict[Node, Node]()
    for node in nodes:
        if node in constant:
            env[node] = prepare.node_copy(node, env.__getitem__)
    prepare.output(tuple(env[n] for n in results))
    prepare.eliminate_dead_code()
    for node in reversed(results):
        with graph.inserting_after(placeholders[-1]):
            given = graph.placeholder(f"prepared_{node.name}")
        given.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(given)
    for node in reversed(nodes):
        if node not in kept:
            graph.erase_node(node)
    rest = GraphModule(gm, graph)
    rest.meta.update(gm.meta)
    prepared = tuple(fake_of(node) for node in results)
    return PreparedGraph(weights, GraphModule(gm, prepare), rest, prepared)
