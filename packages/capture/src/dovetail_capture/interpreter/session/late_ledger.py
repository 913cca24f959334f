"""What hooks and backwards read when they run, after the frame has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from dovetail_guards.source import Source

from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.hooks import LateState
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_prims.graphs.backward_reads import BackwardRead


class Watch(Protocol):
    """What is told of reads while a backward or a hook is captured (`changes.late_reads`)."""

    asks_grad_mode: bool

    def note(self, real: Any, source: Source, value: Value) -> None:
        """What existed before the frame is looked at."""

    def see(self, value: Any) -> None:
        """A value is on the stack."""

    def cell(self, cell: CellValue, name: str) -> None:
        """What the cell of a variable holds is read."""

    def written(self, name: str) -> None:
        """A name is read that the frame has written to."""


class LateLedger:
    """Reads of backwards and hooks, asked for again when they run."""

    def __init__(self) -> None:
        self.watch: Watch | None = None  # over what the one that is captured now reads
        self.found: list[BackwardRead] = []
        self.states: list[LateState] = []  # the state that they take for granted
        self.tensors: list[TensorValue] = []  # what backwards read without a save
