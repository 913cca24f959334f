"""What hooks and backwards read when they run, after the frame has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_capture.interpreter.values.hooks import LateState
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_prims.late_reads import LateRead

    from dovetail_capture.interpreter.changes.late_reads import LateReads


class LateLedger:
    """Reads of backwards and hooks, asked for again when they run."""

    def __init__(self) -> None:
        self.watch: LateReads | None = None  # over what the one that is captured now reads
        self.found: list[LateRead] = []
        self.states: list[LateState] = []  # the state that they take for granted
        self.tensors: list[TensorValue] = []  # what backwards read without a save
