"""NumPy arrays: tensors of the graph that the program sees as `numpy.ndarray`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.source import Source
from dovetail_prims.fake_tensor import FakeTensor

from dovetail_capture.interpreter.signals import CannotRebuild, GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.tensors import TensorValue


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
