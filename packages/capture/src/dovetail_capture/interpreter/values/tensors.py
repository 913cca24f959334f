"""Tensors: a node of the graph and a fake tensor that answers questions about it. NumPy arrays:
tensors of the graph that the program sees as `numpy.ndarray`. And values that only the data of
tensors decides: their truth, and what `min` and `max` choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from dovetail_guards.source import Source
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

from dovetail_capture.captured_frame import AttemptOptions
from dovetail_capture.interpreter.signals import CannotRebuild, GraphBreakSignal, MustEndBefore
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber


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


class TruthOf(SymbolicNumber):
    """The bool that a tensor's truth is, as long as nobody asks what it is: it may yet be checked
    at the graph's end. `tensor` is one truth value; of the `negated` it is the opposite. `ask`
    gives a symbolic bool, or breaks the graph. `born` is the step it was made in."""

    __slots__ = ("ask", "born", "known", "negated", "tensor")

    def __init__(
        self, tensor: TensorValue, negated: bool, ask: Callable[[TruthOf], Any], born: int
    ) -> None:
        self.tensor, self.negated, self.ask, self.born = tensor, negated, ask, born
        self.known: Any = None
        self.source = None

    @property
    def value(self) -> Any:
        """What it is: a bool that was checked to be, else a symbolic one."""
        if self.known is None:
            self.known = self.ask(self)
        return self.known

    def python_type(self) -> type:
        return bool

    def describe(self) -> str:
        return "a tensor's truth"


@dataclass
class PendingChecks:
    """By device whether all hold, and where they are made. None is `allowed` where the frame could
    not be run again. `raising`: what the graph may raise is "caught" by the program, or "noticed",
    or is caught where none of its operations raises but for want of a kernel: "perhaps".
    """

    allowed: bool = True
    holds: dict[torch.device, TensorValue] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)
    raising: str = ""
    attempt_options: AttemptOptions = field(default_factory=AttemptOptions)
    rows: list[Any] = field(default_factory=list)  # of `finally` blocks around what may raise
    error: BaseException | None = None  # is raised in the next one, to see what it does, ...
    raised: Value | None = None  # ... and was
    handlers: dict[tuple[int, int, int], str] = field(default_factory=dict)  # what `try`s do


class Chosen(Value):
    """One of several tensors without dimensions and numbers: `min` or `max` gives the very object,
    and only data tells which.

    `tensor` holds its number either way, in the dtype that all the tensors have. Where neither the
    type nor the identity of the object matters, as in arithmetic with other tensors, it stands for
    the object. Elsewhere, and once one of the tensors `among` which it is was written to, the graph
    ends before step `born`, which chose.
    """

    __slots__ = ("among", "born", "tensor", "versions")

    def __init__(self, tensor: TensorValue, among: tuple[TensorValue, ...], born: int) -> None:
        self.tensor = tensor
        self.among = among
        self.versions = [one.fake._version for one in among]
        self.born = born
        self.source = None

    def number(self) -> TensorValue:
        """A tensor of its number."""
        if self.versions != [one.fake._version for one in self.among]:
            self.refuse()
        return self.tensor

    def python_type(self) -> type:
        self.refuse()

    def describe(self) -> str:
        return "the tensor or number that `min` or `max` of tensors gives"

    def refuse(self) -> NoReturn:
        """Which object it is matters: the graph is to end before the choice."""
        raise MustEndBefore(f"{self.describe()}, as more than an operand", self.born)
