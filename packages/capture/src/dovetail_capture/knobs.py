"""The package's settings, read from the environment here and nowhere else."""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

OnError = Literal["run_uncompiled", "raise"]
"""What becomes of an error inside the compiler: see `CaptureOptions.on_error`."""

ON_ERROR_CHOICES: tuple[str, ...] = get_args(OnError)


def _on_error() -> OnError:
    text = os.environ.get("DOVETAIL_ON_ERROR") or "run_uncompiled"
    if text not in ON_ERROR_CHOICES:
        choices = " or ".join(map(repr, ON_ERROR_CHOICES))
        raise ValueError(f"DOVETAIL_ON_ERROR must be {choices}, not {text!r}")
    return cast(OnError, text)


# DOVETAIL_CAPTURE_DEBUG: after each instruction, compare the depth of the interpreter's stack with
# what `dis.stack_effect` says.
DEBUG = bool(os.environ.get("DOVETAIL_CAPTURE_DEBUG"))

# DOVETAIL_FULL_TRACEBACKS: tracebacks of what capture refuses show capture's own frames, too.
FULL_TRACEBACKS = bool(os.environ.get("DOVETAIL_FULL_TRACEBACKS"))

# DOVETAIL_ON_ERROR: what becomes of an error inside the compiler where no option tells: with
# "run_uncompiled", the default, a graph or a frame runs uncompiled, with a warning.
ON_ERROR = _on_error()

# TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE: 1 lets everything run as it is, as with torch.compile.
DISABLED = "1" in map(os.environ.get, ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"))
