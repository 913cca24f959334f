"""What all suites share: how threads wait, and random numbers of each test's own.

PyTorch's generator starts at the same place in every process, so that without this what a test
draws depends on which tests ran before it there, and a bound that is too tight fails now and then.
`--draw N` gives all tests other numbers: a test that fails at any of them has a fault or a bound to
mend.
"""

from __future__ import annotations

import os
import random
import zlib

# Before PyTorch loads OpenMP. Its threads spin while they wait, by default: two suites side by side
# on two cores, a thread of each a core, take ten times as long as one after the other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw", type=int, default=0, help="which random numbers the tests draw")


def pytest_report_header(config: pytest.Config) -> str:
    return f"random numbers: --draw {config.getoption('draw')}"


@pytest.fixture(autouse=True)
def _draws_its_own_numbers(request: pytest.FixtureRequest) -> None:
    """Seeds PyTorch and `random` from the test's name alone: no folder, so that a package's suite
    run by itself draws what it draws among all."""
    draw = request.config.getoption("draw")
    seed = zlib.crc32(f"{request.node.name} {draw}".encode())
    torch.manual_seed(seed)
    random.seed(seed)
