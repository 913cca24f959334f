"""Capture as its users get it: three wheels in an empty environment, and no compiler beside them.

Slow: builds native parts and fills an environment. The index (or uv's cache of it) must hold torch
and transformers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WHEELS = ("guards", "prims", "capture")

OUR_PACKAGES = """
from importlib.metadata import distributions
print(sorted(d.name for d in distributions() if d.name.startswith("dovetail")))
"""

EXPORT_BERT = """
import torch
from dovetail_capture import export
from transformers import BertConfig, BertModel

config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=64)
torch.manual_seed(0)
model = BertModel(config).eval()
ids = torch.randint(3, 99, (2, 8))
exported = export(model, (ids,))
fresh = torch.randint(3, 99, (2, 8))
expected = model(fresh)
got = exported(fresh)
assert torch.equal(got.last_hidden_state, expected.last_hidden_state)
assert torch.equal(got.pooler_output, expected.pooler_output)
calls = sum(node.op.startswith("call") for node in exported.gm.graph.nodes)
assert calls > 50, exported.gm.code
print("exported", calls, "calls")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The command's output; its errors in the failure."""
    # Nothing of this checkout may reach the new environment by a path variable.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_wheels_export_bert(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    assert uv is not None, "this test builds wheels and an environment with uv: install uv"
    wheels, environment = tmp_path / "wheels", tmp_path / "environment"
    for package in WHEELS:
        # A copy, so that a wheel holds neither what an earlier build left nor a file by its path.
        source = tmp_path / "source" / package
        left_out = shutil.ignore_patterns("build", "*.so", "*.egg-info", "__pycache__", "tests")
        shutil.copytree(ROOT / "packages" / package, source, ignore=left_out)
        run(
            uv, "build", "--no-config", "--no-build-isolation", "--wheel", "--python",
            sys.executable, "--out-dir", wheels, source, cwd=tmp_path,
        )  # fmt: skip
    built = sorted(wheels.glob("*.whl"))
    assert [w.name.split("-")[0] for w in built] == sorted(f"dovetail_{p}" for p in WHEELS)

    python = environment / "bin" / "python"
    run(uv, "venv", "--no-config", "--python", sys.executable, environment, cwd=tmp_path)
    pins = [f"{name}=={version(name)}" for name in ("torch", "sympy", "transformers")]
    run(uv, "pip", "install", "--no-config", "--python", python, *built, *pins, cwd=tmp_path)
    names = run(python, "-c", OUR_PACKAGES, cwd=tmp_path)
    assert names.strip() == str(sorted(f"dovetail-{p}" for p in WHEELS))
    assert "exported" in run(python, "-c", EXPORT_BERT, cwd=tmp_path)
