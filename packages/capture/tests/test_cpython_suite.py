"""CPython's own tests pass with every frame swapped by the hook (those that pass without it)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "swap_every_frame.py"

# A hooked call uses C stack where a plain one does not: these recurse on purpose.
DEEP_RECURSION = {"test_super_deep", "test_lru_recursion"}

MODULES = [
    "test_call",
    "test_contextlib",
    "test_coroutines",
    "test_exceptions",
    "test_extcall",
    "test_functools",
    "test_generators",
    "test_scope",
    "test_super",
    "test_traceback",
    "test_weakref",
    "test_with",
]


def failures(name, *flags):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), name, *flags], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("test.test_call"), reason="no CPython tests")
@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    assert failures(name) - DEEP_RECURSION <= failures(name, "--plain")
