"""Sources of what replacement code computes before the graph: tensors without their class, random
numbers of Python's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dovetail_guards.source import Source
from dovetail_prims.fake_tensor import FakeTensor

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value


@dataclass(frozen=True)
class PlainSource(Source):
    """`base.as_subclass(torch.Tensor)`: how such a tensor comes into the graph. No guard speaks of
    it."""

    base: Source

    def __str__(self) -> str:
        return f"{self.base}_as_plain"


def is_asked(cls: type) -> bool:
    """Does torch ask this class of tensors about operations? (Not classes that switch that off, as
    `Parameter` does. One without a `__torch_function__` of its own has `Tensor`'s.)"""
    if not issubclass(cls, torch.Tensor) or cls in (torch.Tensor, FakeTensor):
        return False
    answer: object = cls.__torch_function__
    return answer is not torch._C._disabled_torch_function_impl


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its class, over the same memory; gradients pass."""
    if is_asked(type(tensor)) and not torch._C._is_torch_function_enabled():
        raise RuntimeError(
            "a compiled function that was given a tensor with its own __torch_function__ is called "
            "where torch functions are switched off: call it outside of that block"
        )
    return as_class(tensor, torch.Tensor)


def as_class(tensor: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
    """The tensor as one of a class, over the same memory; gradients pass."""
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        return tensor.as_subclass(cls)


@dataclass(frozen=True)
class DrawSource(Source):
    """What draw number `index` of a `CapturedFrame` gave, or `item` of the list that it gave. No
    guard speaks of it."""

    index: int
    item: int | None = None

    def __str__(self) -> str:
        return f"draw{self.index}" + ("" if self.item is None else f"[{self.item}]")


class GeneratorState(Value):
    """What `getstate()` gave: known when the program runs only, and handed on as it is. Without a
    source, a part of the state that follows from a draw."""

    __slots__ = ()

    def __init__(self, source: DrawSource | None) -> None:
        self.source = source

    def python_type(self) -> type:
        # Whoever asks is about to look into it.
        raise GraphBreakSignal(f"a look at {self.describe()}", "look at it outside")

    def describe(self) -> str:
        return "the state of a random number generator"
