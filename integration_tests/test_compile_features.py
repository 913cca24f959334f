"""What users of torch.compile do, with only the names replaced, and with `install()` and nothing
replaced at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import compile_features
import pytest

import dovetail

_FOLDER = Path(__file__).parent


@pytest.mark.parametrize("name", compile_features.FEATURES)
def test_with_the_names_replaced(name: str) -> None:
    failed = compile_features.run([name], dovetail.compile, dovetail.compiler)
    assert not failed


@pytest.mark.long
def test_with_nothing_replaced() -> None:
    command = [sys.executable, str(_FOLDER / "compile_features.py"), "installed"]
    run = subprocess.run(command, capture_output=True, text=True)
    count = len(compile_features.FEATURES)
    assert run.stdout.endswith(f"installed: {count} of {count} run\n"), run.stdout + run.stderr
