"""Tensors: a node of the graph and a fake tensor that answers questions about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dovetail_guards.source import Source
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

from dovetail_capture.interpreter.values.base import Value


class TensorValue(Value):
    """A tensor of the graph. `attributes` are Python attributes set on it in the frame; `data` is
    what `tensor.data = ...` gave it, of equal metadata. One that wraps tensors and was made in the
    frame has no node until one is asked for: `make_node` gives it."""

    __slots__ = ("_node", "answer", "attributes", "cls", "data", "drawn", "fake", "inference",
                 "make_node", "overrides", "real", "rebuilt")  # fmt: skip

    def __init__(
        self,
        node: Node | None,
        fake: Any,
        cls: type = torch.Tensor,
        source: Source | None = None,
        real: Any = None,
    ) -> None:
        self._node = node
        self.make_node: Callable[[TensorValue], Node] | None = None
        # Attributes that what the graph gives has by itself.
        self.rebuilt: frozenset[str] = frozenset()
        self.fake = fake
        self.cls = cls
        self.source = source
        self.real = real  # the user's tensor for a graph input; only its metadata may be read
        self.attributes: dict[str, Value] = {}
        self.data: TensorValue | None = None
        self.inference = False  # made in a block of inference mode, of the frame's own
        self.drawn: tuple[Node, float, float] | None = None  # sampler, least and greatest value
        self.overrides = False  # has its class a `__torch_function__` of its own?
        self.answer: bool | None = None  # what each element is known to be, of a comparison

    @property
    def node(self) -> Node:
        """The node of the graph that gives it."""
        found = self._node
        if found is None:
            assert self.make_node is not None
            found = self._node = self.make_node(self)
        return found

    @node.setter
    def node(self, node: Node) -> None:
        self._node = node

    @property
    def has_node(self) -> bool:
        """Is it a part of the graph already?"""
        return self._node is not None

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"a tensor of shape {tuple(self.sizes)}"

    @property
    def sizes(self) -> Any:
        """The sizes, symbolic ones as such."""
        fake = self.fake
        return fake._sizes if type(fake) is FakeTensor else tuple(fake.shape)

    def __repr__(self) -> str:
        return f"TensorValue({self.node})"
