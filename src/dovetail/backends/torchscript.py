"""Graphs run by TorchScript: the captured one (`ts`), or AOT autograd's two (`aot_ts`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from dovetail_autograd_aot import aot_compile
from torch._ops import OpOverload
from torch.fx import GraphModule


def ts(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The captured graph, scripted. Its code has to be TorchScript; each size is a graph."""
    return _scripted(gm)


def aot_ts(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOT autograd's forward and backward graphs of ATen operators, scripted."""
    return aot_compile(gm, example_inputs, forward_compiler=_scripted_operators)


def _scripted(gm: GraphModule) -> Callable[..., Any]:
    plain = GraphModule(gm, gm.graph)  # (without a lazily compiled one's methods)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, as a whole
        scripted: Callable[..., Any] = torch.jit.script(plain)
    return scripted


def _scripted_operators(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph of operators, scripted: TorchScript finds overloads by the arguments."""
    for node in gm.graph.nodes:
        if isinstance(node.target, OpOverload):
            if node.target is torch.ops.aten._to_copy.default:
                node.target = torch.ops.aten.to
                node.kwargs = {"copy": True, **node.kwargs}
            else:
                node.target = node.target.overloadpacket
    gm.recompile()
    return _scripted(gm)
