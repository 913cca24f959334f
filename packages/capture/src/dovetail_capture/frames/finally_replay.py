"""The program's `finally` blocks where a graph raises that cannot be run again.

The graph of a frame that changes what it was given may hold operations that raise for their data in
a `try` with a `finally`, where capture has seen that Python is not needed to leave it (see
`AttemptOptions`). If the graph raises, the frame is interpreted once more, up to the first of them,
which raises that error: what the program then does, up to the end of the frame, is replayed. (Which
one raised is not known, as it is not for the blocks that a continuation starts in, see
`unwinding.py`.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch

from dovetail_capture.captured_frame import AttemptOptions
from dovetail_capture.environment.torch_state import torch_state_kept
from dovetail_capture.frames.frame_versions import FrameVersions
from dovetail_capture.options import CaptureOptions
from dovetail_capture.replacement.replacement_code import build_replacement


def replay_of(
    code: CodeType,
    attempt_options: AttemptOptions,
    options: CaptureOptions,
    error: BaseException,
    globals_: dict[str, Any],
    closure: tuple[Any, ...],
    *args: Any,
) -> Callable[[], Any]:
    """What is to be called where the graph of a frame, captured that way, has raised `error`."""
    from dovetail_capture.interpreter.capture import leave_frame

    func = FunctionType(code, globals_, None, None, closure or None)
    found = leave_frame(code, func, args, error, attempt_options=attempt_options, options=options)
    if found is None:
        return _nothing
    replacement = build_replacement(found, None).code
    return partial(FunctionType(replacement, globals_, None, None, closure or None), *args)


def _nothing() -> None:
    """Leaving the blocks changes nothing."""


def leave_blocks_of(
    region: weakref.ref[FrameVersions],
    code: CodeType,
    attempt_options: AttemptOptions,
    error: BaseException,
    *frame: Any,
) -> None:
    """Do what a frame's `finally` blocks do where its graph has raised `error`. (Code that a region
    owns calls this: it refers to the region weakly.)"""
    alive = region()
    if alive is None:
        return
    with alive.lock, torch._C.DisableTorchFunction(), torch_state_kept():
        try:
            replay = replay_of(code, attempt_options, alive.options_for(code), error, *frame)
        except Exception as failure:
            alive.log.add("error", code, f"leaving its blocks: {failure!r}")
            return
    replay()
