"""Tensors: a node of the graph and a fake tensor that answers questions about it. NumPy arrays:
tensors of the graph that the program sees as `numpy.ndarray`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.source import Source
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

from dovetail_capture.interpreter.signals import CannotRebuild, GraphBreakSignal
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


@dataclass(frozen=True)
class ArraySource(Source):
    """`torch.from_numpy(base)`: how an array comes into the graph. No guard speaks of it."""

    base: Source

    def __str__(self) -> str:
        return f"{self.base}_as_tensor"


class ArrayValue(Value):
    """An array, or (`cls` is a scalar type, not `ndarray`) one of NumPy's scalars."""

    __slots__ = ("cls", "tensor")

    def __init__(self, tensor: TensorValue, cls: type, source: Source | None = None) -> None:
        self.tensor = tensor
        self.cls = cls
        self.source = source

    def python_type(self) -> type:
        return self.cls

    @property
    def is_scalar(self) -> bool:
        """Is it a scalar, as `array.sum()` gives?"""
        return self.cls.__name__ != "ndarray"

    def describe(self) -> str:
        kind = "scalar" if self.is_scalar else "array"
        return f"a numpy {kind} of shape {tuple(self.tensor.sizes)}"

    def __repr__(self) -> str:
        return f"ArrayValue({self.tensor!r})"


@dataclass(frozen=True)
class CopiedView:
    """A tensor of the graph that is a copy where NumPy gives a view, and what it shows: right as
    long as nobody writes to either. `parts` are both, with their versions when the copy was made,
    in step `born` of the top frame."""

    born: int
    parts: tuple[tuple[TensorValue, int], ...]

    def check(self, outside: Iterable[Any]) -> None:
        """Let the capture end before the copy if one of both was written to, or may be later:
        the graph's inputs and outputs are `outside`."""
        storages = {id(fake._storage) for fake in outside if isinstance(fake, FakeTensor)}
        written = any(part.fake._version != version for part, version in self.parts)
        if written or all(id(part.fake._storage) in storages for part, _ in self.parts):
            raise CannotRebuild("a view of a numpy array that torch cannot make", self.born)


FEW_KERNELS = (torch.uint16, torch.uint32, torch.uint64)


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of an array, if torch computes with it as NumPy does."""
    if dtype in FEW_KERNELS:
        raise GraphBreakSignal(f"a numpy array of {dtype}, for which torch has few functions")
    return dtype


def array_parts(real: Any) -> tuple[tuple[str, Any], ...]:
    """What must be equal of two arrays for one graph to take both: paths of attributes, values."""
    return (
        ("dtype.str", real.dtype.str),
        ("shape", real.shape),
        ("strides", real.strides),
        ("flags.writeable", real.flags.writeable),
    )
