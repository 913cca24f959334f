"""Compiled modules in data-parallel training: two processes, on the CPU."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from data_parallel_training import work

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="torch was built without gloo",
    ),
]


def test_parameters_are_those_of_eager(tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    results = tmp_path / "parameters.pt"
    mp.spawn(work, args=(port, str(results)), nprocs=2)
    found = torch.load(results)
    for way, parameters in found.items():
        for mine, theirs in zip(parameters, found["eager"], strict=True):
            torch.testing.assert_close(mine, theirs, msg=lambda text, way=way: f"{way}: {text}")


def test_sharded_parameters_are_not_saved() -> None:
    """A layer's parameters are gone between its forward and its backward: a forward leaves no more
    than eager's. And no backward runs uncompiled for the hooks on a loss and on logits."""
    pytest.importorskip("transformers")
    benchmark = Path(__file__).parent / "benchmarks" / "fsdp.py"
    sizes = ["--layers", "2", "--hidden", "128", "--length", "16", "--vocabulary", "128"]
    systems = ["--systems", "eager", "dovetail"]
    done = subprocess.run(
        [sys.executable, benchmark, "--device", "cpu", *sizes, *systems],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("dovetail: saved") == 2, done.stdout + done.stderr
    assert "uncompiled" not in done.stderr
