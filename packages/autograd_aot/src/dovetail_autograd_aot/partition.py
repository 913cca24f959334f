"""Cutting a joint graph into forward and backward: what to save, what to compute again.

A minimum cut decides: an edge's capacity is the bytes of the value, so the saved set is the
smallest that the backward can be computed from, given which operators may run twice. Cheap
operators (pointwise, views, factories) may; matrix products, convolutions, attention, reductions
and random numbers may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

import torch
from dovetail_guards.sym_node import expr_of
from dovetail_prims.conditionals import COND, WHILE
from dovetail_prims.exact_comparisons import compared_in_calls, exact_comparisons
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.opsets import POINTWISE_BINARY, POINTWISE_OTHER, POINTWISE_UNARY
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils.checkpoint import CheckpointPolicy

from dovetail_autograd_aot.copies import can_be_read_from_input, is_copy_of_input
from dovetail_autograd_aot.fast_graph import FastGraph, copy_node
from dovetail_autograd_aot.graphs import GIVEN_WITH, JointGraph, PartitionedGraph, SavedAlias, hold
from dovetail_autograd_aot.max_flow import INFINITE, FlowNetwork
from dovetail_autograd_aot.op_info import draws_in_backward, draws_random_numbers
from dovetail_autograd_aot.outputs import is_view_node, view_root
from dovetail_autograd_aot.recompute import may_run_twice, work_for_a_byte
from dovetail_autograd_aot.values import value_bytes

aten = torch.ops.aten

Partitioner = Callable[[JointGraph], PartitionedGraph]

# What the forward returns counts for so much less among what may be saved.
RETURNED_DISCOUNT = 8
# A rate or a count is written to between steps, where eager has kept what it computed from it: a
# number among the inputs is no cheaper to save than some numbers that are computed from it.
NUMBER_COST = 64
_CHEAP_NAMES = frozenset(POINTWISE_UNARY + POINTWISE_BINARY + POINTWISE_OTHER)
_CHEAP = frozenset(
    {
        aten.full.default, aten.arange.start_step, aten.arange.default, aten.arange.start,
        aten.scalar_tensor.default, aten.zeros.default, aten.ones.default, aten.full_like.default,
        aten.zeros_like.default, aten.ones_like.default, aten.sym_size.int, aten.sym_stride.int,
        aten.sym_numel.default, aten.sym_storage_offset.default,
    }
)  # fmt: skip


def default_partition(joint: JointGraph) -> PartitionedGraph:
    """Save exactly the values the backward uses; compute only views again."""
    return _cut(joint, _used_by_backward)


def min_cut_partition(
    joint: JointGraph, *, activation_memory_budget: float = 1.0
) -> PartitionedGraph:
    """Save the fewest bytes that the backward can be computed from cheaply.

    With an `activation_memory_budget` below one, only that part of the bytes between the least
    there can be (budget 0: all that may run twice does) and those is saved, and so more is
    computed again. What the user tagged as checkpointed regions stays as it is.
    """
    if not 0 <= activation_memory_budget <= 1:
        raise ValueError(f"an activation_memory_budget of {activation_memory_budget}, not 0 to 1")
    return _cut(joint, lambda roles: _within(roles, activation_memory_budget))


def _within(roles: _Roles, budget: float) -> set[Node]:
    """The minimum cut that keeps to the budget, with as little as possible computed again."""
    best = _min_cut(roles)
    if budget >= 1:
        return best
    costly = [
        n for n in roles.nodes
        if not roles.tangent_bits[n] and not roles.may_recompute(n) and may_run_twice(n)
        and n not in roles.regions
    ]  # fmt: skip
    costly.sort(key=work_for_a_byte)
    least = _min_cut(roles, frozenset(costly))
    allowed = _bytes(roles, least) + budget * (_bytes(roles, best) - _bytes(roles, least))
    # The more may run twice, the fewer bytes a cut has.
    low, high, found = 0, len(costly), least
    while low < high:
        middle = (low + high) // 2
        cut = _min_cut(roles, frozenset(costly[:middle]))
        if _bytes(roles, cut) <= allowed:
            high, found = middle, cut
        else:
            low = middle + 1
    return found


def _bytes(roles: _Roles, saved: set[Node]) -> int:
    """The bytes kept beyond the primals."""
    own = (n for n in saved if n in roles.mutated or n.op != "placeholder")
    return sum(value_bytes(n.meta["val"]) for n in own)


class _Roles:
    """Which nodes belong where."""

    def __init__(self, joint: JointGraph) -> None:
        signature = joint.signature
        self.nodes: list[Node] = list(joint.gm.graph.nodes)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.primals = placeholders[: signature.num_primals]
        self.tangents = placeholders[signature.num_primals :]
        outputs: tuple[Any, ...] = self.nodes[-1].args[0]  # type: ignore[assignment]
        self.forward_outputs = outputs[: signature.num_forward_outputs]
        self.gradients = outputs[signature.num_forward_outputs :]
        self.mutated = {self.primals[m.index] for m in signature.mutated}
        self.numbers = {  # inputs of one element that get no gradient
            node
            for node, graded in zip(self.primals, signature.primals_require_grad, strict=True)
            if not graded
            and isinstance(node.meta["val"], FakeTensor)
            and not node.meta["val"]._sizes
        }
        self.returned = {
            view_root(o) if is_view_node(o) else o
            for o in self.forward_outputs
            if isinstance(o, Node)
        }
        # Which tangents each node depends on, as bits; 0 for the nodes of the forward.
        self.tangent_bits: dict[Node, int] = {t: 1 << i for i, t in enumerate(self.tangents)}
        for node in self.nodes:
            bits = self.tangent_bits.get(node, 0)
            for source in node.all_input_nodes:
                bits |= self.tangent_bits.get(source, 0)
            if draws_in_backward(node):
                bits |= 1 << len(self.tangents)  # it waits for the backward as if for a tangent
            bits |= node.meta.get(GIVEN_WITH, 0)
            self.tangent_bits[node] = bits
        self.backward = self._ancestors(
            [g for g in self.gradients if isinstance(g, Node)]
            + [n for n in self.nodes if n.meta.get("checked") or draws_in_backward(n)],
            self.tangent_bits,
        )
        self.in_memory = self._in_memory()
        self.regions = self._regions()
        self.kept = self._kept()
        self.inside = self._inside()
        # A comparison with a reduction's result holds for the value that the reduction saw.
        self.exact = {node for node, _ in exact_comparisons(self.nodes)}
        self.exact |= compared_in_calls(self.nodes)

    def _in_memory(self) -> set[Node]:
        """The values of the forward that are made or read, themselves or through views, by what
        is not computed twice: products, reductions, calls. The rest may never leave a kernel."""
        found: set[Node] = set()
        for node in reversed(self.nodes):
            if self.tangent_bits[node]:
                continue
            if not may_recompute(node):
                found.add(node)
                found.update(node.all_input_nodes)
            elif node in found and is_view_node(node):
                found.update(node.all_input_nodes)
        return found

    def _kept(self) -> dict[Node, CheckpointPolicy]:
        """What a policy selected of the regions: of a view, what it shows."""
        kept: dict[Node, CheckpointPolicy] = {}
        for node in self.nodes:
            policy = node.meta.get("kept")
            root = view_root(node)
            if policy is not None and root in self.regions:
                if kept.get(root) is not CheckpointPolicy.MUST_SAVE:
                    kept[root] = policy
        return kept

    def _inside(self) -> set[Node]:
        """The values that the user wants computed again: those of a checkpointed region that are
        used in it only, are not random, and are not selected to be kept."""
        outputs = set(self.forward_outputs)
        inside: set[Node] = set()
        for node, region in self.regions.items():
            if node in outputs or draws_random_numbers(node) or node in self.kept:
                continue
            users = node.users
            if all(self.regions.get(u) == region or self.tangent_bits[u] for u in users):
                inside.add(node)
        return inside

    def may_recompute(self, node: Node) -> bool:
        """Whether the backward may compute a value again; a region is computed from what goes in,
        so what comes out of one is not."""
        if node in self.regions and not is_view_node(node):
            if self.kept.get(node) is not CheckpointPolicy.PREFER_SAVE:
                return node in self.inside
        return node not in self.exact and not is_copy_of_input(node) and may_recompute(node)

    def _regions(self) -> dict[Node, int]:
        """The checkpointed region that each node belongs to; what the backward makes of values of
        a region alone belongs to it too."""
        regions: dict[Node, int] = {}
        for node in self.nodes:
            found = {node.meta["checkpoint"]} if "checkpoint" in node.meta else set()
            if "in_backward" in node.meta and not self.tangent_bits[node]:
                found = {regions[n] for n in node.all_input_nodes if n in regions}
            if len(found) == 1:
                regions[node] = found.pop()
        return regions

    def _ancestors(self, nodes: Iterable[Node], bits: dict[Node, int]) -> set[Node]:
        """What the backward must compute: ancestors of gradients that depend on a tangent."""
        found: set[Node] = set()
        stack = [n for n in nodes if bits[n]]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack.extend(n for n in node.all_input_nodes if bits[n] and n not in found)
        return found

    def used(self) -> list[Node]:
        """Forward values the backward reads, in graph order."""
        used: set[Node] = set()
        for node in self.backward:
            used.update(n for n in node.all_input_nodes if not self.tangent_bits[n])
        used.update(g for g in self.gradients if isinstance(g, Node) and not self.tangent_bits[g])
        return sorted(used, key=self.order.__getitem__)


# --- what to save ---------------------------------------------------------------------------------


def _used_by_backward(roles: _Roles) -> set[Node]:
    saved: set[Node] = set()
    stack = roles.used()
    while stack:
        node = stack.pop()
        if is_view_node(node):
            # A view's sizes may be inputs too.
            stack.extend(node.all_input_nodes)
        elif node.op == "get_attr" or _is_free(node):
            stack.extend(node.all_input_nodes)
        else:
            saved.add(node)
    return saved


def _is_free(node: Node) -> bool:
    """A factory: nothing to save."""
    return node.op == "call_function" and node.target in _CHEAP and not _reads_tensor(node)


def _reads_tensor(node: Node) -> bool:
    return any(isinstance(n.meta.get("val"), Tensor) for n in node.all_input_nodes)


def _min_cut(roles: _Roles, costly: frozenset[Node] = frozenset()) -> set[Node]:
    """The minimum cut between what may not be computed again (`costly` may) and what the backward
    uses. Only the neighbourhood of those uses matters: the search stops at what must not run
    twice."""
    network = FlowNetwork(2)
    source, sink = 0, 1
    entry: dict[Node, int] = {}

    def vertex(node: Node) -> int:
        """The vertex where `node` is not yet available; the next one is where it is."""
        if node not in entry:
            entry[node] = network.add_vertex()
            network.add_vertex()
            stack.append(node)
        return entry[node]

    stack: list[Node] = []
    for node in roles.used():
        network.add_edge(vertex(node) + 1, sink, INFINITE)
    while stack:
        node = stack.pop()
        at = entry[node]
        network.add_edge(at, at + 1, _save_cost(node, roles))
        if node.op == "get_attr":
            continue  # a constant: both graphs hold it
        if node.op == "placeholder" or not (roles.may_recompute(node) or node in costly):
            network.add_edge(source, at, INFINITE)
        else:
            for read in node.all_input_nodes:
                network.add_edge(vertex(read) + 1, at, INFINITE)
    network.max_flow(source, sink)
    reaches = network.reaches_sink(sink)
    return {node for node, at in entry.items() if reaches[at + 1] and not reaches[at]}


def _save_cost(node: Node, roles: _Roles) -> int:
    value = node.meta.get("val")
    if node.op == "placeholder" and node not in roles.mutated:
        # Almost free; but a size alone is better than the input it is read from.
        if node in roles.numbers:
            return NUMBER_COST
        return 1 if isinstance(value, Tensor) else 0
    if isinstance(value, (torch.SymInt, torch.SymFloat, int, float)):
        # Arithmetic on sizes is done again from the sizes themselves.
        return 0 if isinstance(node.target, OpOverload) else INFINITE
    if is_view_node(node) or isinstance(value, (list, tuple)) or node.op == "get_attr":
        return INFINITE
    if node in roles.inside:
        return INFINITE
    size = value_bytes(value)
    if node in roles.returned:
        # It leaves the call anyway, and most callers hold it until the backward is over.
        return size - size // RETURNED_DISCOUNT
    # Of equal cuts the one with fewer values is taken; then the one that saves what has to be in
    # memory anyway: the forward writes less, and half types are not rounded once more.
    return size + (2 if node in roles.in_memory else 3)


def may_recompute(node: Node) -> bool:
    """Whether an operator is cheap and repeatable."""
    target = node.target
    if node.op != "call_function":
        return node.op == "get_attr"
    if target is COND or target is WHILE:
        return False
    if not isinstance(target, OpOverload):
        # getitem of a tuple costs nothing; arithmetic on sizes neither.
        return callable(target)
    if target in _CHEAP or is_view_node(node):
        return True
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return target.__name__ in _CHEAP_NAMES or torch.Tag.pointwise in target.tags


# --- cutting --------------------------------------------------------------------------------------


def _cut(joint: JointGraph, choose: Callable[[_Roles], set[Node]]) -> PartitionedGraph:
    signature = joint.signature
    sizes = _size_nodes(joint) if signature.needs_backward else {}
    roles = _Roles(joint)
    if not signature.needs_backward:
        forward = _forward_graph(joint, roles, [])
        return PartitionedGraph(forward, None, (), signature)
    saved = choose(roles)
    saved |= _sizes_not_told(roles, saved, sizes)
    chosen = sorted(saved, key=roles.order.__getitem__)
    saved_primals = [n for n in chosen if n in roles.primals and n not in roles.mutated]
    saved_values = [n for n in chosen if n not in saved_primals]
    forward = _forward_graph(joint, roles, saved_values)
    backward = _backward_graph(joint, roles, saved_primals, saved_values)
    index = {n: i for i, n in enumerate(roles.primals)}
    return PartitionedGraph(
        forward=forward,
        backward=backward,
        saved=tuple(n.name for n in (*saved_primals, *saved_values)),
        signature=signature,
        saved_primals=tuple(index[n] for n in saved_primals),
        saved_aliases=_aliases(roles, saved_values),
        saved_bytes=sum(value_bytes(n.meta["val"]) for n in saved_values),
        gradient_tangents=tuple(
            (roles.tangent_bits[g] & ~(1 << len(roles.tangents)) | reached)
            if isinstance(g, Node)
            else 0
            for g, reached in zip_longest(roles.gradients, joint.reached, fillvalue=0)
        ),
    )


def _told(value: Any) -> set[str]:
    """The symbols that can be read off a value: it is that size, or has it."""
    sizes: tuple[Any, ...] = value._sizes if isinstance(value, FakeTensor) else (value,)
    names = {expr_of(s).symbol_name for s in sizes if isinstance(s, torch.SymInt)}
    return {name for name in names if name is not None}


def _size_nodes(joint: JointGraph) -> dict[str, Node]:
    """A node for each size symbol of the inputs, in the joint graph."""
    found: dict[str, Node] = {}
    graph = joint.gm.graph
    primals = list(graph.nodes)[: joint.signature.num_primals]
    first = next((n for n in graph.nodes if n.op != "placeholder"), None)
    for node in primals:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            for name in _told(value):
                found.setdefault(name, node)
        if not isinstance(value, FakeTensor) or first is None:
            continue
        for dim, size in enumerate(value._sizes):
            symbol = expr_of(size).symbol_name if isinstance(size, torch.SymInt) else None
            if symbol is not None and symbol not in found:
                with graph.inserting_before(first):
                    read = graph.call_function(aten.sym_size.int, (node, dim))
                read.meta["val"] = size
                found[symbol] = read
    return found


def _sizes_not_told(roles: _Roles, saved: set[Node], sizes: dict[str, Node]) -> set[Node]:
    """Size nodes that the backward needs besides what is saved: its tensors' sizes are made of
    symbols, each of which it must be able to read off an input."""
    known: set[str] = set()
    for node in (*saved, *roles.tangents):
        known |= _told(node.meta.get("val"))
    return {node for name, node in sizes.items() if name not in known}


def _aliases(roles: _Roles, saved: list[Node]) -> tuple[SavedAlias, ...]:
    """Forward outputs that are views of a saved value."""
    position = {n: i for i, n in enumerate(saved)}
    aliases = []
    for i, output in enumerate(roles.forward_outputs):
        if isinstance(output, Node) and is_view_node(output):
            root = view_root(output)
            if root in position and root.meta["val"]._dtype == output.meta["val"]._dtype:
                aliases.append(SavedAlias(i, position[root]))
    return tuple(aliases)


def _copy_node(graph: Graph, node: Node, env: dict[Node, Node], kept: set[Node]) -> None:
    """Put a node of the joint graph into `graph`. A copy of an input that nobody keeps is read from
    the input, if it can."""
    if node not in kept and can_be_read_from_input(node):
        env[node] = env[node.args[0]]  # type: ignore[index]
    else:
        env[node] = copy_node(graph, node, env)


def _forward_graph(joint: JointGraph, roles: _Roles, saved: list[Node]) -> GraphModule:
    """Primals -> forward outputs, saved values."""
    outputs = [*roles.forward_outputs, *saved]
    needed: set[Node] = set()
    stack = [n for n in outputs if isinstance(n, Node)]
    stays = [n for n in roles.nodes if draws_random_numbers(n) or n.meta.get("checked")]
    stack += [n for n in stays if not roles.tangent_bits[n]]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    graph = FastGraph()
    env: dict[Node, Node] = {}
    primals = set(roles.primals)
    kept = roles.returned.union(saved)
    for node in roles.nodes:
        if node in primals or node in needed:
            _copy_node(graph, node, env, kept)
    results = []
    for i, node in enumerate(outputs):
        result = env[node] if isinstance(node, Node) else node
        if i >= len(roles.forward_outputs) and node in roles.mutated:
            # The input is about to be overwritten: the backward needs its old contents.
            kwargs: dict[str, Any] = {"memory_format": torch.preserve_format}
            result = graph.call_function(aten.clone.default, (result,), kwargs)
            result.meta.update(node.meta)
        results.append(result)
    return _module(joint, graph, results, "Forward")


def _backward_graph(
    joint: JointGraph, roles: _Roles, saved_primals: list[Node], saved_values: list[Node]
) -> GraphModule:
    """Saved values, tangents -> gradients. A value that is computed again is placed just before
    its first use, so that it lives no longer than it must."""
    graph = FastGraph()
    env: dict[Node, Node] = {}
    own = {n for n in saved_values if n not in roles.forward_outputs}  # nobody else holds them
    for node in (*saved_primals, *saved_values, *roles.tangents):
        placeholder = graph.placeholder(node.name)
        placeholder.meta.update(node.meta)
        if node in own:
            placeholder.meta["owned"] = True
        env[node] = placeholder

    def place(wanted: Node) -> None:
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in env:
                stack.pop()
                continue
            missing = [n for n in node.all_input_nodes if n not in env]
            if missing:
                stack.extend(missing)
            else:
                _copy_node(graph, node, env, set())
                stack.pop()

    for node in roles.nodes:
        if node in roles.backward and node not in env:
            place(node)
    results: list[Any] = []
    for gradient in roles.gradients:
        if isinstance(gradient, Node):
            place(gradient)
            results.append(env[gradient])
        else:
            results.append(None)
    return _module(joint, graph, results, "Backward")


def _module(joint: JointGraph, graph: Graph, results: list[Any], name: str) -> GraphModule:
    output = graph.output(tuple(results))
    output.meta["val"] = tuple(r.meta["val"] if isinstance(r, Node) else r for r in results)
    attributes = {n.target for n in graph.nodes if n.op == "get_attr"}
    root = torch.nn.Module()
    for attribute in attributes:
        hold(root, attribute, getattr(joint.gm, attribute))
    return _LazyGraphModule(root, graph, name)


__all__ = ["default_partition", "may_recompute", "min_cut_partition"]
