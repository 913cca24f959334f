"""Values that only the data of tensors decides: their truth, and what `min` and `max` choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from dovetail_capture.captured_frame import AttemptOptions
from dovetail_capture.interpreter.signals import MustEndBefore
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue


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

    def __repr__(self) -> str:
        return f"TruthOf({self.tensor})"


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
