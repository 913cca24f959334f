"""Errors inside the compiler are raised: a frame that runs uncompiled for one would pass."""

import os

os.environ.setdefault("DOVETAIL_ON_ERROR", "raise")
