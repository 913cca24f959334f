"""Weights that never change, packed for a CPU's library: a pass over a functional graph.

At each call the library puts a weight in the order in which it reads it, which takes as long as a
convolution of one small image. A packed weight is an opaque tensor that only the library's own
calls take. These add a bias for nothing. (They would add a shortcut, which was no faster, and
compute a ReLU, but of NaN that gives 0.)
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from dovetail_prims.shape_rules.layout import is_channels_last, is_contiguous
from torch.fx import Graph, Node

from dovetail_inductor.fx_nodes import call_at, fake_of
from dovetail_inductor.graph_passes.channels_last import has_onednn
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.lowering.convolutions import has_few_taps, is_by_pixel
from dovetail_inductor.lowering.values import shape_of
from dovetail_inductor.targets import CPU

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

# Calls with a weight, and where their operands begin.
_CALLS = {aten.convolution.default: 0, aten.mm.default: 0, aten.addmm.default: 1}


def packs(node: Node) -> bool:
    """Whether a packed weight would do for a call: a float32 convolution of images in channels-last
    or a product, on a CPU, of more than a quarter of the multiplications that go unpacked where
    packing takes a part of each call."""
    if node.target not in _CALLS or node.kwargs or not has_onednn():
        return False
    x, weight = (fake_of(n) for n in node.args[_CALLS[node.target] :][:2])
    if x._device.type != "cpu" or x._dtype is not torch.float32:
        return False
    convolves = node.target is aten.convolution.default
    sizes, by = ([hint_of(n) for n in shape_of(t, node.name)] for t in (x, weight))
    large = 4 * prod(sizes) * by[not convolves] > CPU.library.multiplications_without_packing
    if not convolves:
        return large and is_contiguous(x._sizes, x._strides)
    pixels = len(sizes) == 4 and is_channels_last(x._sizes, x._strides)
    return pixels and not node.args[6] and (large or any(n != 1 for n in by[2:]))


def pack_weights(graph: Graph, constant: set[Node]) -> None:
    """Have the calls of a graph whose weights and biases are among the nodes `constant` take packed
    weights, which become some of these. Every node needs `meta["val"]`."""
    for node in list(graph.nodes):
        if has_few_taps(node) or is_by_pixel(node):
            _lay_out_taps(graph, constant, node)
            continue
        if node in constant or not packs(node):
            continue
        begin = _CALLS[node.target]
        x, weight = node.args[begin : begin + 2]
        bias: Any = node.args[0] if begin else (*node.args, None)[2]
        known = bias is None or (bias in constant and len(fake_of(bias)._sizes) == 1)
        if weight in constant and known:
            _pack(graph, constant, node, (x, weight, bias))


def _lay_out_taps(graph: Graph, constant: set[Node], node: Node) -> None:
    """Have a convolution by loops read a weight with its channels side by side."""
    weight: Any = node.args[1]
    if weight not in constant:
        return
    with graph.inserting_before(node):
        turned = call_at(node, graph, aten.permute.default, weight, [1, 2, 3, 0])
        rows = {"memory_format": torch.contiguous_format}
        laid_out = call_at(node, graph, aten.clone.default, turned, **rows)
        made = call_at(node, graph, aten.permute.default, laid_out, [3, 0, 1, 2])
    constant.update((turned, laid_out, made))
    node.update_arg(1, made)


def _pack(graph: Graph, constant: set[Node], node: Node, operands: tuple[Any, Any, Any]) -> None:
    """Put a call with a packed weight in a node's place."""
    x, weight, bias = operands
    sizes: Any = [hint_of(n) for n in shape_of(fake_of(x), node.name)]
    with graph.inserting_before(node):
        if node.target is aten.convolution.default:
            stride, padding, dilation, *_, groups = node.args[3:]
            windows: tuple[Any, ...] = (padding, stride, dilation, groups)
            pack, call = mkldnn._reorder_convolution_weight, mkldnn._convolution_pointwise
        else:
            weight = call_at(node, graph, aten.permute.default, weight, [1, 0])
            windows, sizes = (), sizes[0]  # of which the library asks the number of rows
            pack, call = mkldnn._reorder_linear_weight, mkldnn._linear_pointwise
        packed = graph.call_function(pack.default, (weight, *windows, sizes))
        made = graph.call_function(call.default, (x, packed, bias, *windows, "none", [], ""))
    packed.meta["val"] = fake_of(weight)  # of what is opaque sizes and type are known
    constant.update((weight, packed))
    made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
