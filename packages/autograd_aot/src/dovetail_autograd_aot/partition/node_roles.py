"""What each node of a joint graph is to its forward and its backward.

Which tangents it depends on, whether the backward needs it, which checkpointed region it belongs
to, and whether the backward may compute it again: for nothing, or although it costs. An
`activation_memory_budget` below one lets operators run twice that otherwise do not: those first
that cost least for each byte of their result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from dovetail_prims.conditionals import COND, WHILE
from dovetail_prims.dialects.exact_comparisons import compared_in_calls, exact_comparisons
from dovetail_prims.dialects.opsets import POINTWISE_BINARY, POINTWISE_OTHER, POINTWISE_UNARY
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import CHECKED, CHECKPOINT, IN_BACKWARD, SAVED_BY_POLICY, STATIC
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from dovetail_autograd_aot.boundary import JointGraph
from dovetail_autograd_aot.graph.fast_graph import ASKED_BY_BACKWARD, GIVEN_WITH
from dovetail_autograd_aot.graph.op_info import draws_in_backward, draws_random_numbers
from dovetail_autograd_aot.outputs.output_aliasing import is_view_node, view_root
from dovetail_autograd_aot.trace.node_values import hint, is_copy_of_input, value_bytes

aten = torch.ops.aten

_CHEAP_NAMES = frozenset(POINTWISE_UNARY + POINTWISE_BINARY + POINTWISE_OTHER)
_CHEAP = frozenset(
    {
        aten.full.default, aten.arange.start_step, aten.arange.default, aten.arange.start,
        aten.scalar_tensor.default, aten.zeros.default, aten.ones.default, aten.full_like.default,
        aten.zeros_like.default, aten.ones_like.default, aten.sym_size.int, aten.sym_stride.int,
        aten.sym_numel.default, aten.sym_storage_offset.default,
    }
)  # fmt: skip


_HALF = (torch.bfloat16, torch.float16)


class Roles:
    """Which nodes belong where. With `holds_inputs` the backward may need the contents of inputs
    that eager does not keep for it."""

    def __init__(self, joint: JointGraph, *, holds_inputs: bool = False) -> None:
        signature = joint.signature
        self.nodes: list[Node] = list(joint.gm.graph.nodes)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.primals = placeholders[: signature.num_primals]
        self.tangents = placeholders[signature.num_primals :]
        outputs: tuple[Any, ...] = self.nodes[-1].args[0]  # type: ignore[assignment]
        self.forward_outputs = outputs[: signature.num_forward_outputs]
        self.gradients = outputs[signature.num_forward_outputs :]
        # (Of one with the same version counter autograd would say that it was written to, too; one
        # that was `set_` is another tensor.)
        changes = signature.changes
        written = [*(m.index for m in changes.mutated), *changes.counted, *changes.set_inputs]
        # Inputs of which a copy is saved, if any: they will have other contents.
        self.copied = {self.primals[i] for i in written}
        # A storage has no version counter that would tell of a later write by the caller.
        end = len(self.primals) - joint.added.carriers
        self.copied |= set(self.primals[end - len(joint.added.storages) : end])
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
            bits |= GIVEN_WITH.of(node) or 0
            self.tangent_bits[node] = bits
        self.backward = self._ancestors(
            [g for g in self.gradients if isinstance(g, Node)]
            + [n for n in self.nodes if CHECKED.holds(n) or draws_in_backward(n)],
            self.tangent_bits,
        )
        self.in_memory = self._in_memory()
        self.regions = self._regions()
        kept = filter(self._is_kept_by_eager, self.nodes)
        self.kept_by_eager = {view_root(node) for node in kept}
        if not holds_inputs:
            self.copied |= self._lent()
        self.kept = self._kept()
        self.inside = self._inside()
        # A comparison with a reduction's result holds for the value that the reduction saw.
        self.exact = {node for node, _ in exact_comparisons(self.nodes)}
        self.exact |= compared_in_calls(self.nodes)
        self.exact |= self._around_rounded_means()

    def _lent(self) -> set[Node]:
        """The inputs that a caller may write to before the backward, as eager lets him: it keeps
        others for it. Parameters and buffers stay what they are until an optimizer's step; but not
        rates and counts, which are numbers."""
        return {
            node
            for node in self.primals
            if node not in self.kept_by_eager
            and isinstance(value := node.meta["val"], FakeTensor)
            and not (STATIC.holds(node) and value._sizes)
        }

    def _around_rounded_means(self) -> set[Node]:
        """The values of half types of which the mean is kept in their type, too, as eager's norms
        on a CPU do. Where all elements are equal the mean is exactly what each was rounded to: of
        what is computed again, and is not rounded, deviations from it would not be zero."""
        found: set[Node] = set()
        for node in self.nodes:
            if node.target is not aten.var_mean.correction or self.tangent_bits[node]:
                continue
            source: Any = node.args[0]
            if source.target is not aten._to_copy.default:
                continue
            source = source.args[0]
            dtype = source.meta["val"]._dtype
            means = [n for n in node.users if n.target is operator.getitem and n.args[1] == 1]
            copies = [n for mean in means for n in mean.users if n.op == "call_function"]
            if dtype in _HALF and any(
                n.target is aten._to_copy.default and n.meta["val"]._dtype is dtype for n in copies
            ):
                found.add(view_root(source))
        return found

    def _is_kept_by_eager(self, node: Node) -> bool:
        """Whether a value of the forward is read by what eager computes in the backward, or by a
        checkpointed region, which eager runs again."""
        if self.tangent_bits[node] or ASKED_BY_BACKWARD.is_told(node):
            return False
        return any(
            self.tangent_bits[user] or ASKED_BY_BACKWARD.is_told(user) or user in self.regions
            for user in node.users
            if user.op != "output"
        )

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
            policy = SAVED_BY_POLICY.of(node)
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
        if node in self.exact or is_copy_of_input(node):
            return False
        return may_recompute(node) or is_backwards_own(node) or self._gathers_rows(node)

    def _gathers_rows(self, node: Node) -> bool:
        """Whether a node gathers rows of what is in memory. Not of inputs: eager keeps none of
        them, and so lets weights, or a bank of what was seen, be written to before the backward."""
        if not gathers_rows(node):
            return False
        source = view_root(node.args[0])  # type: ignore[arg-type]
        return source.op != "placeholder" and not may_recompute(source)

    def _regions(self) -> dict[Node, int]:
        """The checkpointed region that each node belongs to; what the backward makes of values of
        a region alone belongs to it too."""
        regions: dict[Node, int] = {}
        for node in self.nodes:
            region = CHECKPOINT.of(node)
            found = set() if region is None else {region}
            if IN_BACKWARD.is_told(node) and not self.tangent_bits[node]:
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


def is_free(node: Node) -> bool:
    """A factory: nothing to save."""
    return node.op == "call_function" and node.target in _CHEAP and not _reads_tensor(node)


def _reads_tensor(node: Node) -> bool:
    return any(isinstance(n.meta.get("val"), Tensor) for n in node.all_input_nodes)


_NEVER = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_NUMBERS = (torch.int64, torch.int32)
SECTOR = 32  # bytes that memory gives at least
LARGE_BYTES = 1 << 16
# The dimension that a product sums over, of its first factor; and which argument that is.
_PRODUCTS: dict[Any, int] = {
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.addmm.default: 1,
    aten.baddbmm.default: 1,
}


def may_run_twice(node: Node) -> bool:
    """Whether a second run gives the same: no random numbers, nothing that data decides the shape
    of, no operator of the user's (it may do more than it tells)."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    if target.namespace not in ("aten", "prims") or any(t in target.tags for t in _NEVER):
        return False
    return not draws_random_numbers(node) and not CHECKED.is_told(node)


def gathers_rows(node: Node) -> bool:
    """Whether a node reads whole rows by their numbers, as a graph network does its nodes' for each
    edge: read from where they lie, they cost what reading a copy of them would."""
    found = _gathered(node)
    if found is None:
        return False
    source, numbers = found
    value = source.meta["val"]
    row = math.prod(hint(n) for n in value._sizes[len(numbers) :]) * value.dtype.itemsize
    return row >= SECTOR and bool(value.is_contiguous())


def _gathered(node: Node) -> tuple[Node, list[Node | None]] | None:
    """What a node reads elements of by their numbers, and these, for each dimension."""
    arguments: Any = node.args
    if node.target is aten.index.Tensor:
        source, numbers = arguments[:2]
    elif node.target is aten.index_select.default:
        source, numbers = arguments[0], [*[None] * arguments[1], arguments[2]]
    else:
        return None
    if any(isinstance(i, Node) and i.meta["val"].dtype not in _NUMBERS for i in numbers):
        return None  # how many are true is known on the way only
    return source, numbers


def is_backwards_own(node: Node) -> bool:
    """Whether eager's backward computes a node, of some size, and what may run twice: no other
    needs it, or it gathers what the forward has gathered, as the gradient of an interpolation
    does. (To save the smaller ones is a launch less.)"""
    if not ASKED_BY_BACKWARD.is_told(node) or value_bytes(node.meta.get("val")) < LARGE_BYTES:
        return False
    return _gathered(node) is not None or (IN_BACKWARD.is_told(node) and may_run_twice(node))


def work_for_a_byte(node: Node) -> float:
    """About how many multiplications an operator does for each byte of its result."""
    return _work(node) / max(1, value_bytes(node.meta.get("val")))


def _work(node: Node) -> int:
    read = [
        n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), FakeTensor)
    ]
    made = _elements(node.meta.get("val"))
    position = _PRODUCTS.get(node.target)
    if position is not None:
        factor: Any = node.args[position]
        return made * hint(factor.meta["val"]._sizes[-1])
    if node.target is aten.convolution.default:
        weight: Any = node.args[1]
        sizes = weight.meta["val"]._sizes
        return made * math.prod(hint(s) for s in sizes[1:])
    if "scaled_dot_product" in str(node.target) and len(read) >= 2:
        return _elements(read[0]) * hint(read[1]._sizes[-2]) * 2
    return made + sum(map(_elements, read))


def _elements(value: Any) -> int:
    if isinstance(value, FakeTensor):
        return math.prod(hint(s) for s in value._sizes)
    if isinstance(value, (tuple, list)):
        return sum(map(_elements, value))
    return 0
