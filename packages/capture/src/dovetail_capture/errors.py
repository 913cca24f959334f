"""What capture raises."""

from __future__ import annotations

from types import CodeType
from typing import Any

from dovetail_capture.captured_frame import GraphBreak


class CaptureError(RuntimeError):
    """Capture could not do what was asked; the message names the user's file and line."""


class GraphBreakError(CaptureError):
    """A graph break where one whole graph was asked for; `break_` says what and where."""

    def __init__(self, break_: GraphBreak) -> None:
        super().__init__(f"cannot capture one whole graph: {break_.as_text()}")
        self.break_ = break_


def error_of_break(break_: GraphBreak) -> Exception:
    """What a graph break is where one whole graph was asked for: eager mode's own error, if the
    program raises one there, with the place of it."""
    error = break_.raises
    if error is None:
        return GraphBreakError(break_)
    return OfProgram(type(error)(f"{error}\n{break_.place()}"))


class NotCapturable(CaptureError):
    """Nothing of a frame can be captured: it runs plainly. `break_` says why."""

    def __init__(self, break_: GraphBreak) -> None:
        super().__init__(f"nothing of this frame can be captured: {break_.as_text()}")
        self.break_ = break_


class InternalError(CaptureError):
    """A mistake of capture itself; without `fullgraph` the frame runs plainly, with a warning (see
    `CaptureOptions.on_error`)."""


class ModuleToInitialise(Exception):
    """A lazy module that the captured frame calls for the first time: its parameters are to be made
    before a graph takes them. `args` of the call are known by their sizes."""

    def __init__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(module)
        self.module = module
        self.given = args, kwargs

    def initialise(self) -> None:
        """What eager's first call does before the module's forward."""
        args, kwargs = self.given
        try:
            self.module._infer_parameters(self.module, args, kwargs)
        except Exception as error:
            raise OfProgram(error) from error


class OfProgram(Exception):
    """Carries `error`, which a function of the program's raised, past what is made of errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class BackendError(CaptureError):
    """The backend raised, or did not return a callable."""


class RecompileError(CaptureError):
    """A call fitted nothing compiled, which the stance "fail_on_recompile" forbids."""


class RecompileLimitError(CaptureError):
    """A `fullgraph` function was recompiled more often than the limit allows."""


def place_of(code: CodeType) -> str:
    """`name (file:line)` of a code object, for messages."""
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
