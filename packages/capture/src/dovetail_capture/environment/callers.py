"""Who calls a compiled function: their line, and what they see of a traceback."""

from __future__ import annotations

import inspect
import warnings
from types import TracebackType

from dovetail_capture.skip import is_skipped_file, our_directories


def caller() -> tuple[str, int]:
    """File and line of the innermost code that is the user's."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back and is_skipped_file(frame.f_code.co_filename):
        frame = frame.f_back
    return ("?", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def users_part(entry: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this compiler."""
    kept: list[TracebackType] = []
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(our_directories()):
            kept.append(entry)
        entry = entry.tb_next
    rest: TracebackType | None = None
    for one in reversed(kept):
        # (An instruction that no line made has none.)
        line = one.tb_lineno or one.tb_frame.f_code.co_firstlineno
        rest = TracebackType(rest, one.tb_frame, one.tb_lasti, line)
    return rest


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the user's line."""
    filename, line = caller()
    warnings.warn_explicit(message, category, filename, line)


def place_of_caller() -> str:
    """`file:line` of the innermost code that is the user's."""
    filename, line = caller()
    return f"{filename}:{line}"
