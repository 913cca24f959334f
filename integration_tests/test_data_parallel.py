"""Compiled modules in data-parallel training: two processes, on the CPU."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from data_parallel_training import work


@pytest.mark.long
@pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)
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
