"""CPython's own tests pass with every frame swapped by the hook (those that pass without it)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "swap_every_frame.py"

# A hooked call uses C stack where a plain one does not: these recurse on purpose.
DEEP_RECURSION = {"test_super_deep", "test_lru_recursion", "test_repr_deep"}
COUNTS_TUPLES = {"test_slots"}  # all that there are, among them our entries

MODULES = [
    "test_call",
    "test_class",
    "test_contextlib",
    "test_coroutines",
    "test_dataclasses",
    "test_decorators",
    "test_descr",
    "test_dict",
    "test_exceptions",
    "test_extcall",
    "test_functools",
    "test_generators",
    "test_iter",
    "test_itertools",
    "test_list",
    "test_named_expressions",
    "test_patma",
    "test_property",
    "test_raise",
    "test_scope",
    "test_super",
    "test_traceback",
    "test_types",
    "test_unpack",
    "test_weakref",
    "test_with",
    "test_yield_from",
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
    assert failures(name) - DEEP_RECURSION - COUNTS_TUPLES <= failures(name, "--plain")
