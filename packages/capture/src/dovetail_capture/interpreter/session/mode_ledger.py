"""The blocks and modes that a program is in: of torch's functions, of gradients, of locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dovetail_capture.interpreter.values.base import NONE, Value


@dataclass(frozen=True)
class OpenMode:
    """A block of `torch.autocast` or `torch.inference_mode` that was entered: `leave(real)` leaves
    it, `node` is the graph's own entering, `manager` the program's context manager."""

    leave: Callable[[Any], Any]
    real: Any
    node: Any
    manager: Value
    inference: bool | None = None  # of a block of inference mode: on or off


class ModeLedger:
    """What is open at the instruction at hand, innermost last."""

    def __init__(self) -> None:
        # The program's stack of torch function modes; those at the frame's start; the one that
        # answers at this moment.
        self.function_modes: list[Value] = []
        self.first_function_modes: list[Value] = []
        self.function_mode_left: Value = NONE
        # Is there a tensor of a class that torch may ask about operations? The blocks without such
        # functions that the program is in: the steps of the top frame that entered them.
        self.own_functions = False
        self.functions_off: list[int] = []
        self.open_modes: list[OpenMode] = []
        self.error_blocks: list[tuple[Value, bool]] = []  # open ones of `error_on_graph_break`
        self.locks: list[Value] = []  # locks that were taken; effects are replayed under them
        self.open_locks: list[tuple[Value, int]] = []  # with the step that took them

    def begin_in(self, modes: list[Value]) -> None:
        """The frame starts in these torch function modes."""
        self.function_modes = list(modes)
        self.first_function_modes = modes
