"""What may be assumed of a backend, and what tells whether its result fits all sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from dovetail_prims.fake_tensor import FakeTensor

B = TypeVar("B", bound=Callable[..., Any])

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class BackendTraits:
    """What a backend declares in its attribute `backend_traits`.

    `symbolic`: it compiles graphs whose sizes and numbers are symbolic (`meta["val"]` tells) for
    all values of these, not for those of the example inputs.
    `compiler`: it is a part of this compiler. An exception that it raises is an internal error, not
    the user's: the graph runs uncompiled (see `CaptureOptions.on_error`).
    """

    symbolic: bool = False
    compiler: bool = False


class AsWritten(functools.partial[Any]):
    """What a backend returns for a graph whose operators cost no more called one by one: it may be
    called, but a frame that does nothing else may go on with the program's own code."""


def traits_of(backend: Callable[..., Any]) -> BackendTraits:
    """What a backend declares; of one that declares nothing, nothing is assumed."""
    while isinstance(backend, functools.partial):
        backend = backend.func
    traits = getattr(backend, "backend_traits", None)
    return traits if isinstance(traits, BackendTraits) else BackendTraits()


def takes_symbolic_graphs(backend: B) -> B:
    """Declare (a decorator) that a backend compiles a graph of symbolic sizes and numbers for all
    their values.

    A backend that does not say so, and returns something else than the graph's own `forward`, is
    given a graph for each size and number: it may trace the graph at its example inputs, whose
    sizes would then be constants.
    """
    backend.backend_traits = replace(traits_of(backend), symbolic=True)  # type: ignore[attr-defined]
    return backend


def runs_graph_itself(compiled: Callable[..., Any], gm: GraphModule) -> bool:
    """Whether what a backend returned is the graph, a method of it, or an interpreter's of it:
    right for all sizes, whatever the backend is."""
    owner = getattr(compiled, "__self__", None)
    if isinstance(owner, Interpreter):
        owner = owner.module
    return compiled is gm or owner is gm


def first_symbolic_node(gm: GraphModule) -> Node | None:
    """The first node whose value has a symbolic size or stride, or is a symbolic number."""
    return next((node for node in gm.graph.nodes if _is_symbolic(node.meta.get("val"))), None)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, FakeTensor):
        return any(type(size) is not int for size in (*value._sizes, *value._strides))
    if isinstance(value, tuple | list | dict):
        return any(map(_is_symbolic, pytree.tree_leaves(value)))
    return isinstance(value, _SYMBOLIC)
