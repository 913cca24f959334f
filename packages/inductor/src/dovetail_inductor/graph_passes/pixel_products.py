"""Small convolutions by one pixel as products of matrices: a pass over a functional graph.

A library's convolution first finds out how to do it, and packs its operands: of what squeeze and
excitation makes of a whole image that takes several times as long as the product itself.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dovetail_inductor.fx_nodes import call_at, fake_of
from dovetail_inductor.loop_ir.loops import same_strides
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.lowering.convolutions import is_by_pixel
from dovetail_inductor.lowering.values import shape_of, stride_of
from dovetail_inductor.options import InductorOptions

aten = torch.ops.aten

# Where the images are among the arguments (the weight follows), and what of the windows follows
# them: stride, padding, dilation, transposed, output padding, groups.
_IMAGES = {aten.convolution.default: (0, 3), aten.convolution_backward.default: (1, 4)}


class _NotAsRows(Exception):
    """A tensor does not lie as the rows of a matrix."""


def pixel_products(gm: GraphModule, options: InductorOptions) -> GraphModule:
    """The graph with its small convolutions by one pixel as products, where these are faster; `gm`
    itself where there are none. Every node needs `meta["val"]`."""
    if not any(_is_small(node, options) for node in gm.graph.nodes):
        return gm
    graph, env = Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
    for node in list(graph.nodes):
        if _is_small(node, options):
            _Rewriter(graph, node).run()
    result = GraphModule(gm, graph)
    result.meta.update(gm.meta)
    return result


def _is_small(node: Node, options: InductorOptions) -> bool:
    """Whether a node is a convolution of float32 by one pixel, of few multiplications."""
    if node.target not in _IMAGES:
        return False
    args: Any = node.args
    images, windows = _IMAGES[node.target]
    x, weight = fake_of(args[images]), fake_of(args[images + 1])
    most = options.target_of(x._device).library.multiplications_without_packing
    sizes, by = ([hint_of(n) for n in shape_of(t, node.name)] for t in (x, weight))
    if not most or x._dtype is not torch.float32 or any(n != 1 for n in by[2:]):
        return False
    stride, padding, _, transposed, _, groups = args[windows : windows + 6]
    if is_by_pixel(node) and stride_of(weight, node.name)[0] == 1:
        return False  # its loops are faster
    if transposed or groups != 1 or any(n != 1 for n in stride) or any(n != 0 for n in padding):
        return False
    return prod(sizes) > 0 and prod(sizes) * by[0] <= most


class _Rewriter:
    """Writes one convolution as products."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node
        self.made: list[Node] = []

    def run(self) -> None:
        """Replace the node; leave it where its operands or results lie otherwise."""
        with self.graph.inserting_before(self.node):
            try:
                forward = self.node.target is aten.convolution.default
                results = self._forward() if forward else self._backward()
            except _NotAsRows:
                for node in reversed(self.made):
                    self.graph.erase_node(node)
                return
        for node, result in results:
            node.replace_all_uses_with(result)
            self.graph.erase_node(node)
        if self.node.target is not aten.convolution.default:
            self.graph.erase_node(self.node)

    def _forward(self) -> list[tuple[Node, Node]]:
        args: Any = self.node.args
        x, weight, bias = args[:3]
        turned = self._call(aten.permute.default, self._rows(weight), [1, 0])
        if bias is None:
            rows = self._call(aten.mm.default, self._rows(x), turned)
        else:
            rows = self._call(aten.addmm.default, bias, self._rows(x), turned)
        return [(self.node, self._images(rows, self.node))]

    def _backward(self) -> list[tuple[Node, Node]]:
        args: Any = self.node.args
        gradient, x, weight = args[:3]
        rows = self._rows(gradient)
        results = []
        for part in self.node.users:
            if part.target is not operator.getitem:
                raise _NotAsRows
            if part.args[1] == 2:
                results.append((part, self._call(aten.sum.dim_IntList, rows, [0])))
                continue
            factors = (rows, weight)
            if part.args[1] == 1:
                factors = (self._call(aten.permute.default, rows, [1, 0]), x)
            product = self._call(aten.mm.default, factors[0], self._rows(factors[1]))
            results.append((part, self._images(product, part)))
        return results

    def _rows(self, images: Any) -> Node:
        """The channels of each pixel (of each result's, for a weight) as a row."""
        rank, channels = len(fake_of(images)._sizes), fake_of(images)._sizes[1]
        last = self._call(aten.permute.default, images, [0, *range(2, rank), 1])
        return self._call(aten.view.default, last, [-1, channels])

    def _images(self, rows: Node, like: Node) -> Node:
        """The inverse of `_rows`, if it lies as a node does."""
        _, channels, *pixels = fake_of(like)._sizes
        last = self._call(aten.view.default, rows, [-1, *pixels, channels])
        rank = len(pixels) + 2
        made = self._call(aten.permute.default, last, [0, rank - 1, *range(1, rank - 1)])
        before, after = (stride_of(fake_of(n), n.name) for n in (like, made))
        if not same_strides(shape_of(fake_of(like), like.name), before, after):
            raise _NotAsRows
        made.meta["val"] = like.meta["val"]  # whose strides users see, those of size 1, too
        return made

    def _call(self, target: Any, *args: Any) -> Node:
        if any(isinstance(n, torch.SymInt) for a in args if isinstance(a, Sequence) for n in a):
            raise _NotAsRows  # but for the images' number, sizes have to be known
        try:
            self.made.append(call_at(self.node, self.graph, target, *args))
        except RuntimeError:  # no such view
            raise _NotAsRows from None
        return self.made[-1]
