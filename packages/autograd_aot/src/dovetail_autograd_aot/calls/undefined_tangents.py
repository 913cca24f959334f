"""The backward for a call in which some tangents are undefined.

An output that the loss does not use has no gradient: eager computes nothing for it. Zeros in its
place would cost their memory, and the work of everything that is linear in them. So the backward
is specialised: what is zero because a tangent is missing is not computed. (Models that return a
loss beside other outputs are trained so: to run the captured graph again would double their cost.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from dovetail_prims.fake_tensor import make
from dovetail_prims.node_facts import CHECKED
from dovetail_prims.shape_rules.layout import contiguous, sorted_by_stride
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg

from dovetail_autograd_aot.graph.fast_graph import GIVEN_WITH, WHOLE_GRADIENT, FastGraph, hold
from dovetail_autograd_aot.graph.op_info import draws_in_backward
from dovetail_autograd_aot.outputs.output_aliasing import is_view_node
from dovetail_autograd_aot.trace.node_values import same_size, same_sizes

aten = torch.ops.aten

# Zero if their first argument is zero; so is what takes a gradient first, by its schema.
_LINEAR_IN_FIRST = frozenset({aten.neg, aten.clone, aten._to_copy, aten.sum, aten.mean, aten.div})
_GRADIENT_NAMES = frozenset({"grad", "grad_out", "grad_output", "grad_out_"})
# Zero if any of their tensors is zero.
_PRODUCTS = frozenset({aten.mul, aten.mm, aten.bmm})
# Zero if all their floating-point tensors are, and, of the first, the numbers beside them.
_TERMS = frozenset({aten.add, aten.sub, aten.where})
_PARTS = frozenset({aten.cat, aten.slice_scatter, aten.select_scatter})
_FACTORIES = frozenset({aten.full, aten.scalar_tensor, aten.zeros})


class UncutError(Exception):
    """A backward's graph cannot end at an output."""


def backward_without(
    gm: GraphModule,
    saved: int,
    missing: frozenset[int],
    unreached: frozenset[int],
    present: int = -1,
    ends: Collection[int] = (),
) -> tuple[GraphModule, list[bool]]:
    """`gm`, a backward graph of so many saved values, with the placeholders number `missing` taken
    for zero and the gradients number `unreached` left out (None). So is taken what the user's code
    gives only with other tangents than those `present` (a bit set).

    Where an operator needs the zeros as a tensor, the placeholder stays. The second result tells
    for each placeholder whether it is left. With `ends`, tangents by their number, the graph ends
    at their outputs, whose gradients come first among its results; UncutError where it cannot.
    """
    nodes: list[Node] = list(gm.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    found = _Zeros({placeholders[i] for i in missing}, present, _before_users(nodes))
    found.reached = {n: i not in missing for i, n in enumerate(placeholders) if i >= saved}
    for node in nodes:
        if node.op == "call_function":
            found.visit(node)
            found.end_at(node, ends)
    results: tuple[Any, ...] = nodes[-1].args[0]  # type: ignore[assignment]
    if not found.ends.keys() >= set(ends):
        raise UncutError("the gradient of an output is not in the graph")
    gone = [i in unreached or (ends and not found.reached.get(g)) for i, g in enumerate(results)]
    gradients = [
        None if g is None or gone[i] else found.stands_for.get(g, g) for i, g in enumerate(results)
    ]
    gradients[:0] = [found.ends[end] for end in ends]
    dispensable = {placeholders[i] for i in missing}
    return _rebuilt(gm, nodes, gradients, found, dispensable)


class _Zeros:
    """Which nodes are zero, and which are equal to another one for that.

    `copies` are those of the latter that lie in memory otherwise than their sum would: it is a
    contiguous copy. `absent` are those that computing them would not make zero.
    """

    def __init__(self, zero: set[Node], present: int, unsure: set[Node]) -> None:
        self.zero = zero
        self.present = present
        self.unsure = unsure  # what the user's own code may compute, of which it is read off the op
        # Of what is computed from tangents: whether one of these is there. What autograd computes
        # is linear in them, and zero without; but zeros times what is infinite would be NaN.
        self.reached: dict[Node, bool] = {}
        self.absent: set[Node] = set()
        self.constants: set[Node] = set()  # zeros by their nature
        self.stands_for: dict[Node, Node] = {}
        self.copies: dict[Node, Node] = {}
        self.ends: dict[int, Node] = {}

    def visit(self, node: Node) -> None:
        """Learn what `node` is; its inputs were visited."""
        packet = getattr(node.target, "overloadpacket", None)
        if packet in _FACTORIES:
            # the value of aten.zeros, whose arguments are sizes, is its name
            value = 0 if packet is aten.zeros else node.args[packet is aten.full]
            if type(value) in (int, float) and value == 0:
                self.constants.add(node)
            return
        inputs = [self.stands_for.get(n, n) for n in node.all_input_nodes]
        given = GIVEN_WITH.of(node)
        if given is not None:
            self.reached[node] = bool(given & self.present)
        if given is not None and not self.reached[node]:
            self.zero.add(node)
            if inputs[0] not in self.zero:
                self.absent.add(node)
            return
        reached = [self.reached[n] for n in node.all_input_nodes if n in self.reached]
        if reached and given is None and not _reads_shape_only(node):
            self.reached[node] = any(reached)
            if not self.reached[node] and node not in self.unsure and _is_gradient(node):
                self.zero.add(node)
                if _can_be_filled(node):
                    self.absent.add(node)
                return
        if not any(n in self.zero for n in inputs):
            return
        if self._is_zero(node, packet, inputs):
            self.zero.add(node)
            return
        term = self._other_term(node, packet)
        if term is None:
            return
        if not same_sizes(_sizes(term), _sizes(node)):
            return
        if same_sizes(_strides(term), _strides(node)):
            self.stands_for[node] = term
        elif _is_contiguous(node):
            self.copies[node] = term

    def end_at(self, node: Node, ends: Collection[int]) -> None:
        """Let the whole gradient of one of `ends` be a result, and zero for what reads it."""
        number = WHOLE_GRADIENT.of(node)
        if number is not None and number in ends:
            result = self.stands_for.pop(node, node)
            if self.reached.get(node):
                self.ends[number] = result
            self.reached[node] = False
            self.zero.add(node)

    def _is_zero(self, node: Node, packet: Any, inputs: list[Node]) -> bool:
        first = node.args[0] if node.args else None
        first_is_zero = isinstance(first, Node) and self.stands_for.get(first, first) in self.zero
        if packet is None:  # an item of several results
            return first_is_zero
        if is_view_node(node) or packet in _LINEAR_IN_FIRST:
            return first_is_zero
        if packet in _TERMS and any(type(a) in (int, float) and a != 0 for a in node.args):
            return False
        if packet in _TERMS or packet in _PARTS:
            return all(n in self.zero or n in self.constants or not _is_floating(n) for n in inputs)
        if packet in _PRODUCTS:
            return any(n in self.zero for n in inputs)
        schema = node.target._schema  # type: ignore[union-attr]
        return bool(schema.arguments) and (
            schema.arguments[0].name in _GRADIENT_NAMES and first_is_zero
        )

    def _other_term(self, node: Node, packet: Any) -> Node | None:
        """What is left of a sum with a zero."""
        if packet not in (aten.add, aten.sub) or len(node.args) < 2:
            return None
        left, right = node.args[0], node.args[1]
        if not isinstance(left, Node) or not isinstance(right, Node):
            return None
        left, right = self.stands_for.get(left, left), self.stands_for.get(right, right)
        if right in self.zero:
            term = left
        elif packet is aten.add and not node.kwargs:
            term = right
        else:
            return None
        x, y = term.meta["val"], node.meta["val"]
        return term if x._dtype == y._dtype and x._device == y._device else None


def _before_users(nodes: Sequence[Node]) -> set[Node]:
    """What the gradients that the user's own code gives are computed from."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if node in found or GIVEN_WITH.is_told(node):
            found.update(node.all_input_nodes)
    return found


def _reads_shape_only(node: Node) -> bool:
    """Whether no element of an operator's result depends on those of its arguments."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return name.endswith("_like") or name.startswith(("new_", "sym_"))


def _is_gradient(node: Node) -> bool:
    """Whether a value may be a gradient: floating-point, or several results."""
    return isinstance(node.meta.get("val"), tuple | list) or _is_floating(node)


def _can_be_filled(node: Node) -> bool:
    """Whether zeros can be made that lie as a value does: it is dense, and of known size."""
    if is_view_node(node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if not _is_fixed(node):
        return False
    order = sorted_by_stride(_sizes(node), _strides(node))
    dense = contiguous(tuple(_sizes(node)[d] for d in order))
    return tuple(_strides(node)[d] for d in order) == tuple(dense)


def _is_fixed(node: Node) -> bool:
    return all(type(s) is int for s in (*_sizes(node), *_strides(node)))


def _zeros_like(graph: Graph, node: Node, env: Mapping[Node, Node]) -> Node:
    """Zeros that lie in memory as `node`, which is dense."""
    if not _is_fixed(node):
        (pattern,) = node.all_input_nodes
        return graph.call_function(aten.zeros_like.default, (env[pattern],))
    val = node.meta["val"]
    order = sorted_by_stride(val._sizes, val._strides)
    sizes = tuple(val._sizes[d] for d in order)
    options = {"dtype": val._dtype, "device": val._device}
    zeros = graph.call_function(aten.full.default, (sizes, 0), options)
    zeros.meta["val"] = make(sizes, contiguous(sizes), val._dtype, val._device)
    if order == sorted(order):
        return zeros
    dims = [order.index(d) for d in range(len(order))]
    return graph.call_function(aten.permute.default, (zeros, dims))


def _sizes(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"]._sizes)


def _strides(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"]._strides)


def _is_contiguous(node: Node) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(_sizes(node)), reversed(_strides(node)), strict=True):
        if not same_size(size, 1) and not same_size(stride, expected):
            return False
        expected = expected * size
    return True


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _rebuilt(
    gm: GraphModule,
    nodes: list[Node],
    gradients: list[Node | None],
    found: _Zeros,
    dispensable: set[Node],
) -> tuple[GraphModule, list[bool]]:
    """The graph of what `gradients` need; of the placeholders, `dispensable` ones only if used."""
    stands_for = found.stands_for

    def inputs(node: Node) -> list[Node]:
        if node in found.absent and _is_fixed(node):
            return []
        copied = found.copies.get(node)
        read = node.all_input_nodes if copied is None else [copied]
        if any(WHOLE_GRADIENT.of(n) in found.ends for n in read):
            raise UncutError(f"{node.name} needs zeros in place of a gradient")
        return [stands_for.get(n, n) for n in read]

    needed: set[Node] = set()
    stack = [g for g in gradients if g is not None]
    stack += [n for n in nodes if CHECKED.holds(n) or draws_in_backward(n)]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(inputs(node))
    graph: Graph = FastGraph()
    env: dict[Node, Node] = {}
    kept: list[bool] = []
    for node in nodes[:-1]:
        if node.op == "placeholder":
            kept.append(node in needed or node not in dispensable)
            if not kept[-1]:
                continue
        elif node not in needed:
            continue
        if node in found.absent:
            env[node] = _zeros_like(graph, node, env)
        elif node in found.copies:
            (source,) = inputs(node)
            contiguous: dict[str, Any] = {"memory_format": torch.contiguous_format}
            env[node] = graph.call_function(aten.clone.default, (env[source],), contiguous)
        else:
            args = map_arg(node.args, lambda n: env[stands_for.get(n, n)])
            kwargs = map_arg(node.kwargs, lambda n: env[stands_for.get(n, n)])
            env[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        env[node].meta.update(node.meta)
    results = tuple(None if g is None else env[g] for g in gradients)
    output = graph.output(results)
    output.meta["val"] = tuple(None if r is None else r.meta["val"] for r in results)
    root = torch.nn.Module()
    for name in {str(n.target) for n in graph.nodes if n.op == "get_attr"}:
        hold(root, name, getattr(gm, name))
    return _LazyGraphModule(root, graph, "Backward"), kept
