"""Convolutions in channels-last memory: a pass over a functional graph.

The vendor's kernels for tensor cores work in channels-last; given the other layout they convert
every operand and result, which costs about as much as the convolution. A CPU's library, whose
vectors are of channels, does so, too. So the operands are copied once where a run of convolutions
begins, and what follows keeps their layout, as eager's operators do for a user who writes
`.to(memory_format=torch.channels_last)`. Outputs of the graph, and what would see the difference,
get the layout that they had.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, propagate
from dovetail_prims.shape_rules import layout
from torch.fx import Graph, GraphModule, Node

from dovetail_inductor.fx_nodes import call_at, fake_of, is_view
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.lowering.values import shape_of

aten = torch.ops.aten

# The arguments that are laid out.
CONVOLUTIONS: Mapping[Any, tuple[int, ...]] = {
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}
_GROUPS: Mapping[Any, int] = {aten.convolution.default: 8, aten.convolution_backward.default: 9}

# Channels-last of tensors of so many dimensions.
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

# Of a float32 convolution over three dimensions: 8 channels to 32 took 7% longer in channels-last
# (on an H100), and the copies come on top; 32 to 64, and more, took 3 to 55% less.
_FEW_CHANNELS = 16

# Single images of no more elements PyTorch leaves to kernels that know no channels-last, but for
# those of groups: a copy takes longer than what it saves.
_SMALL_IMAGES = 20480

# What these do depends on the strides of what they get.
_STRIDED = {
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    aten.view.dtype,
    aten.sym_stride.int,
    aten.sym_storage_offset.default,
}


class _CannotRestore(Exception):
    """A tensor whose layout changed had one that no copy makes."""


def prefer_channels_last(gm: GraphModule, machine: str | None = None) -> GraphModule:
    """The graph with its convolutions in channels-last where that pays, else the graph itself: on
    the devices where they are, or on a `machine` of that type wherever they are.

    Every node needs `meta["val"]` (fakes of `dovetail_prims`); so has every node of the result.
    Inputs and outputs keep their layouts.
    """
    if not _pays(gm.graph, machine):
        return gm
    try:
        return _Relayout(gm, machine).run()
    except _CannotRestore:
        return gm


def _pays(graph: Graph, machine: str | None) -> bool:
    """Whether nearly all the work of convolutions is done faster in channels-last: each that is
    not wants its operands copied back."""
    gains = losses = 0.0
    converted = restored = 0
    for node in graph.nodes:
        if node.target not in CONVOLUTIONS:
            continue
        if _is_candidate(node, machine):
            if any(n != 1 for n in _sizes(node, -1)[2:]):  # of one pixel nothing is converted
                gains += _work(node)
                converted += _elements(node)
        elif _is_oddly_grouped(node, machine):
            restored += _elements(node)  # of little work, but it has to be reached
        else:
            losses += _work(node)
    return gains > 10 * losses and converted > restored


def _elements(node: Node) -> int:
    """How many elements go into a convolution and come out of it, but for its weight."""
    images, weight = _sizes(node, -2), _sizes(node, -1)
    return prod(images) + prod(images[:1]) * prod(images[2:]) * weight[0]


def _work(node: Node) -> float:
    """Multiplications of a convolution, but for a factor that all share."""
    first = _sizes(node, 0)
    return float(prod((*first[:1], *first[2:], *_sizes(node, -1))))


def _sizes(node: Node, operand: int) -> list[int]:
    """The sizes of one of a convolution's operands, in the call that is compiled."""
    argument = node.args[CONVOLUTIONS[node.target][operand]]
    return [hint_of(n) for n in shape_of(fake_of(argument), node.name)]


def _is_candidate(node: Node, machine: str | None) -> bool:
    """Whether a convolution is faster in channels-last."""
    x = fake_of(node.args[CONVOLUTIONS[node.target][-2]])
    if len(x._sizes) not in _FORMATS:
        return False
    by_type = {"cuda": _gains_on_gpu, "cpu": _gains_on_cpu}
    gains = by_type.get(machine or x._device.type)
    return gains is not None and gains(node, x)


def _gains_on_gpu(node: Node, x: FakeTensor) -> bool:
    """Whether the vendor is faster in channels-last (measured on an H100).

    In 4 bytes those of one channel a group are not: their gradients take twice as long. Over three
    dimensions groups take up to 65 times as long, in 2 bytes, too; over two such groups as
    `_is_oddly_grouped` says.
    """
    flat, ungrouped = len(x._sizes) == 4, _groups(node) == 1
    if x._dtype.itemsize == 2:
        return ungrouped or (flat and not _is_oddly_grouped(node, "cuda"))
    many = flat or min(_sizes(node, -1)[:2]) >= _FEW_CHANNELS
    return x._dtype is torch.float32 and ungrouped and many


def has_onednn() -> bool:
    """Whether PyTorch calls a CPU's library of convolutions."""
    onednn = torch.backends.mkldnn
    return bool(onednn.is_available() and onednn.enabled)  # type: ignore[no-untyped-call]


def _gains_on_cpu(node: Node, x: FakeTensor) -> bool:
    """Whether oneDNN is faster in channels-last (measured with AVX-512).

    Of one channel a group it is 1.3 to 5 times as fast, with few channels up to 2 times, else about
    as fast; but for several results of one channel in bfloat16, which take 1.8 times as long.
    """
    if not has_onednn():
        return False
    if x._dtype is torch.bfloat16:
        channels, own = _sizes(node, -1)[:2]
        several = own == 1 and channels > _groups(node) > 1
        if several or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
    elif x._dtype is not torch.float32:
        return False
    channels, *window = _sizes(node, -1)[1:]
    own = channels == 1 and _groups(node) > 1
    # (By one pixel a small convolution is a product.)
    return own or prod(_sizes(node, -2)) > _SMALL_IMAGES or all(n == 1 for n in window)


def _is_oddly_grouped(node: Node, machine: str | None) -> bool:
    """Whether a convolution of half types has groups for which the vendor has no kernel in
    channels-last: of 2, 3, 24 or 29 channels they take 1.5 to 7 times as long as in rows, of 1
    with gaps in the window 5 times, those of other sizes than their results up to a hundred times.
    (Of 1, 4, 8, 16, 32 and 64 channels, 0.2 to 1.2 of the time, on an H100;
    `convolution_layouts.py` measures it.)"""
    x = fake_of(node.args[CONVOLUTIONS[node.target][-2]])
    groups, weight = _groups(node), _sizes(node, -1)
    if (machine or x._device.type) != "cuda" or x._dtype.itemsize != 2 or groups == 1:
        return False
    own, results = weight[1], weight[0] // groups
    dilation: Any = node.args[_GROUPS[node.target] - 3]
    odd = own == 2 or own & (own - 1) != 0 or (own == 1 and any(gap != 1 for gap in dilation))
    return len(weight) == 4 and (own != results or odd)


def _groups(node: Node) -> int:
    """The number of groups, in the call that is compiled."""
    groups: Any = node.args[_GROUPS[node.target]]
    return int(groups.meta["val"].node.hint_or_guess() if isinstance(groups, Node) else groups)


class _Relayout:
    """One walk over a copy of the graph that inserts copies and computes layouts anew."""

    def __init__(self, gm: GraphModule, machine: str | None) -> None:
        self.source = gm
        self.machine = machine
        self.graph = Graph()
        self.copied: dict[Node, Node] = {}  # node of the source -> its node here
        self.values: dict[Node, Any] = {}  # of nodes of several results, which have no `val`
        self.changed: set[Node] = set()  # nodes of the source whose layout differs here
        self.laid_out: dict[Node, Node] = {}  # node here -> its channels-last copy
        self.restored: dict[Node, Node] = {}  # node of the source -> it in its former layout

    def run(self) -> GraphModule:
        for node in self.source.graph.nodes:
            self._visit(node)
        result = GraphModule(self.source, self.graph)
        result.meta.update(self.source.meta)
        return result

    def _visit(self, node: Node) -> None:
        if node.op != "call_function":
            # Outputs, and whatever else takes tensors, get them as they were.
            self._copy(node, self._as_before)
            return
        if node.target is operator.getitem:
            self._visit_result(node)
            return
        if node.target in CONVOLUTIONS:
            if _is_candidate(node, self.machine):
                self._visit_convolution(node)
            else:
                self._copy(node, self._as_before)
            return
        if not any(a in self.changed for a in node.all_input_nodes):
            self._copy(node, self.copied.__getitem__)
            return
        if _sees_strides(node):
            self._copy(node, self._as_before)
            return
        copy = self._copy(node, self.copied.__getitem__)
        try:
            self._propagate(node, copy)
            if _takes_pixels(copy):
                self.copied[node] = self._channels_last(copy)
                self._note(node, self.copied[node])
        except RuntimeError:  # a view that this layout does not allow
            self.graph.erase_node(copy)
            self._copy(node, self._as_before)

    def _copy(self, node: Node, argument: Any) -> Node:
        copy = self.graph.node_copy(node, argument)
        self.copied[node] = copy
        return copy

    def _visit_result(self, node: Node) -> None:
        copy = self._copy(node, self.copied.__getitem__)
        (source,) = copy.all_input_nodes
        if source in self.values:
            copy.meta["val"] = self.values[source][node.args[1]]
            self._note(node, copy)
            if node in self.changed and is_view(node):
                self.changed.update(node.all_input_nodes)

    def _visit_convolution(self, node: Node) -> None:
        operands = CONVOLUTIONS[node.target]
        copy = self._copy(node, self.copied.__getitem__)
        for position in operands:
            copy.update_arg(position, self._channels_last(copy.args[position], copy))
        self._propagate(node, copy)

    def _propagate(self, node: Node, copy: Node) -> None:
        """Compute what a copied node gives, from the layouts of what it gets."""
        args, kwargs = torch.fx.node.map_arg((copy.args, copy.kwargs), lambda n: n.meta["val"])
        value = propagate(copy.target, tuple(args), dict(kwargs))
        if isinstance(value, (tuple, list)):
            self.values[copy] = value
            if "val" in copy.meta:
                copy.meta["val"] = value
        else:
            copy.meta["val"] = value
            self._note(node, copy)

    def _note(self, node: Node, copy: Node) -> None:
        before, after = node.meta.get("val"), copy.meta.get("val")
        if isinstance(before, FakeTensor) and isinstance(after, FakeTensor):
            if not layout.same_strides(before._strides, after._strides):
                self.changed.add(node)

    def _channels_last(self, operand: Any, user: Node | None = None) -> Node:
        """A tensor of pixels of the new graph in channels-last, for a node that is there or for
        what comes next."""
        value = fake_of(operand)
        if layout.is_channels_last(value._sizes, value._strides):
            return operand  # type: ignore[no-any-return]
        if operand not in self.laid_out:
            with nullcontext() if user is None else self.graph.inserting_before(user):
                made = {"memory_format": _FORMATS[len(value._sizes)]}
                self.laid_out[operand] = call_at(
                    operand, self.graph, aten.clone.default, operand, **made
                )
        return self.laid_out[operand]

    def _as_before(self, node: Node) -> Node:
        """A node of the source, in the new graph and in its former layout."""
        if node not in self.changed:
            return self.copied[node]
        if node not in self.restored and is_view(node):
            # The view of a restored tensor: it may be one that is not dense.
            self.restored[node] = self.graph.node_copy(node, self._as_before)
        if node not in self.restored:
            before = fake_of(node)
            order = layout.dense_order(before._sizes, before._strides)
            if order is None:
                raise _CannotRestore
            if layout.is_contiguous(before._sizes, before._strides):
                order = list(range(len(order)))  # also where dimensions of size 1 are
            made, rows = self.copied[node], {"memory_format": torch.contiguous_format}
            turned = call_at(made, self.graph, aten.permute.default, made, order)
            dense = call_at(made, self.graph, aten.clone.default, turned, **rows)
            back = [order.index(d) for d in range(len(order))]
            self.restored[node] = call_at(made, self.graph, aten.permute.default, dense, back)
        return self.restored[node]


def _takes_pixels(copy: Node) -> bool:
    """Whether this is `x[picks]` of a tensor in channels-last (upsampling is). It becomes loops,
    unless there is a mask among the picks, and loops write any layout at no cost."""
    if copy.target is not aten.index.Tensor or len(fake_of(copy)._sizes) not in _FORMATS:
        return False
    x, picks = fake_of(copy.args[0]), copy.args[1]
    assert isinstance(picks, Sequence)
    masks = any(p is not None and fake_of(p)._dtype in (torch.bool, torch.uint8) for p in picks)
    return layout.is_channels_last(x._sizes, x._strides) and not masks


def _sees_strides(node: Node) -> bool:
    """Whether the numbers a node gives may depend on how its inputs lie in memory: by what it is
    for, because it draws random numbers in their order, or because it is not PyTorch's own."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return True
    return target in _STRIDED or torch.Tag.nondeterministic_seeded in target.tags
