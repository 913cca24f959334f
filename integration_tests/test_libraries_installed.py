"""Libraries that compile by themselves, under `install()` alone: what they compute is eager's, with
at most as many graphs as under torch.compile. Those that are not installed are left out."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import library_runs
import pytest

_SCRIPT = Path(library_runs.__file__)


def _outcome(system: str, name: str) -> dict[str, Any]:
    command = [sys.executable, str(_SCRIPT), system, name]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    outcome: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("name", library_runs.RUNS)
def test_library(name: str) -> None:
    library = name.partition("_")[0]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed (the extra `integrations`)")
    eager, torch, ours = (_outcome(system, name) for system in ("eager", "torch", "installed"))
    assert ours["values"] == pytest.approx(eager["values"], rel=1e-4, abs=1e-5)
    assert 0 < ours["graphs"] <= torch["graphs"]
