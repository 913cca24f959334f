"""Lets tests import the helper modules beside them, and raises errors inside the compiler: a frame
that runs uncompiled for one would pass."""

import os
import sys
from pathlib import Path

os.environ.setdefault("DOVETAIL_ON_ERROR", "raise")
sys.path.insert(0, str(Path(__file__).parent))
