"""Tests keep their kernels in a cache of their own, unless the caller names one.

(Suites of other packages that run in the same process see it too: a cache that the caller named
must stay theirs.)
"""

import os
import sys
import tempfile
from pathlib import Path

_directory = tempfile.TemporaryDirectory(prefix="dovetail-test-cache-")
os.environ.setdefault("DOVETAIL_CACHE_DIR", _directory.name)
sys.path.insert(0, str(Path(__file__).parent))  # the helper modules beside the tests
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
