"""The package's settings, read from the environment here and nowhere else."""

from __future__ import annotations

import os

# DOVETAIL_CAPTURE_DEBUG: after each instruction, compare the depth of the interpreter's stack with
# what `dis.stack_effect` says.
DEBUG = bool(os.environ.get("DOVETAIL_CAPTURE_DEBUG"))
