"""What `min` and `max` give of tensors."""

from __future__ import annotations

from typing import NoReturn

from dovetail_capture.interpreter.signals import MustEndBefore
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.tensors import TensorValue


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
