"""Random numbers of all suites: each test draws its own, whatever ran before it or beside it.

PyTorch's generator starts at the same place in every process, so that without this what a test
draws depends on which tests ran before it there, and a bound that is too tight fails now and then.
`--draw N` gives all tests other numbers: a test that fails at any of them has a fault or a bound to
mend.
"""

from __future__ import annotations

import random
import zlib

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
