"""Hooks that are part of the graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor

from dovetail_capture.errors import NotCapturable
from dovetail_capture.interpreter.signals import CannotRebuild
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.functions import CellValue, HandleValue
from dovetail_capture.interpreter.values.tensors import TensorValue


@dataclass(frozen=True)
class Hooked:
    """A tensor with a hook of the graph's; `taken` are the tensors and numbers that the hook takes
    besides, `cells` what it closes over, with what they held; `late` what to raise if the hook
    cannot be part of the graph after all."""

    tensor: TensorValue
    handle: HandleValue
    taken: list[Value]
    cells: list[tuple[CellValue, Any]]
    late: NotCapturable | None
    kind: str = "a tensor with a hook"

    def takes_what_changes(self, inputs: Iterable[Any], outputs: Iterable[Any]) -> bool:
        """May a tensor that the hook takes be written to between the graph and the hook? One of
        the graph's `outputs` may, and one of its `inputs` that it writes to. (Of other inputs
        autograd's counters tell.)"""
        given, taken = _storages(outputs), _storages(inputs)
        for one in self.taken:
            if isinstance(one, TensorValue):
                storage = id(one.fake._storage)
                if one.fake._version if storage in taken else storage in given:
                    return True
        return False

    def refuse(self, what: str) -> None:
        """Let the capture end before the hook, which was not removed; or the frame run as it is."""
        if self.handle.removed:
            return
        if self.late is not None:
            raise self.late
        raise CannotRebuild(what, self.handle.born)


@dataclass(frozen=True)
class LateState:
    """What a backward of a function of autograd, or a hook (`what`), takes for granted of what the
    frame has made (`before`, each value with its state) and of `tensors`, which the frame may not
    write to, with their versions. It was captured in step `born` of the top frame."""

    what: str
    born: int
    before: list[tuple[Value, Any]]
    tensors: list[tuple[TensorValue, int]]

    def check(self, made: Container[int], state_of: Callable[[Value], Any]) -> None:
        """Let the capture end before the function if any of it is `made` again for others, or is
        written to."""
        for value, before in self.before:
            if id(value) in made or state_of(value) != before:
                raise CannotRebuild(f"{value.describe()} that {self.what} reads", self.born)
        for tensor, version in self.tensors:
            if tensor.fake._version != version:
                raise CannotRebuild(f"a tensor of {self.what} that is written to", self.born)


def _storages(fakes: Iterable[Any]) -> set[int]:
    return {id(fake._storage) for fake in fakes if isinstance(fake, FakeTensor)}
