"""Tests keep their kernels in a cache of their own and compile on one core."""

import os
import tempfile

_directory = tempfile.TemporaryDirectory(prefix="dovetail-test-cache-")
os.environ["DOVETAIL_CACHE_DIR"] = _directory.name
