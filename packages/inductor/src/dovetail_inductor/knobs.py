"""The package's settings, read from the environment here and nowhere else."""

from __future__ import annotations

import os

# DOVETAIL_VERIFY_LOOPS: verify what each pass over loops gives (the tests do).
VERIFY_LOOPS = bool(os.environ.get("DOVETAIL_VERIFY_LOOPS"))
