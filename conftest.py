"""What all suites share: how they are run, how threads wait, and random numbers of each test's own.

The whole suite, `pytest` without a file, runs in a process a core, each file in one of them; the
kernels that it compiles are kept for the next run, in `~/.cache/dovetail-tests`. The order of files
is drawn anew in each run, so that no test comes to rely on what ran before it: `--order N`, which
the header tells, draws the same again.

PyTorch's generator starts at the same place in every process, so that without this what a test
draws depends on which tests ran before it there, and a bound that is too tight fails now and then.
`--draw N` gives all tests other numbers: a test that fails at any of them has a fault or a bound to
mend.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before PyTorch loads OpenMP. Its threads spin while they wait, by default: two suites side by side
# on two cores, a thread of each a core, take ten times as long as one after the other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# What each pass over loops gives is verified.
os.environ.setdefault("DOVETAIL_VERIFY_LOOPS", "1")

# Before the packages read it: what runs uncompiled, because the compiler failed, would pass.
os.environ.setdefault("DOVETAIL_ON_ERROR", "raise")

import pytest
import torch

MOST_PROCESSES = 8  # more need much memory

# Seeds wait for devices that are not there, each with the stack of its call for an error message,
# which takes half a millisecond.
for device in () if torch.cuda.is_available() else (torch.cuda, torch.xpu, torch.mtia):
    device.traceback = SimpleNamespace(format_stack=list)

# PyTorch's own testing modules, which some tests import, forbid to set its global flags from then
# on in their process. Tests here set such flags, and set them back.
torch.backends.disable_global_flags = lambda: None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw", type=int, default=0, help="which random numbers the tests draw")
    parser.addoption("--order", type=int, help="which order of files; drawn where it is not given")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Draws the order of files, and runs a suite of which no file is named on all cores."""
    option = config.option
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # a process of a run that was set up already
    if option.order is None:
        option.order = random.SystemRandom().randrange(1_000_000)
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not option.usepdb:
        if getattr(option, "numprocesses", 0) is None:
            option.numprocesses = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
            option.dist, option.loadscopereorder = "loadfile", False
            option.durations = 20
            # One cache for all processes, which a next run finds filled.
            kernels = Path("~/.cache/dovetail-tests").expanduser()
            os.environ.setdefault("DOVETAIL_CACHE_DIR", str(kernels))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a process of pytest-xdist the order, which all of them must have."""
    node.workerinput["order"] = node.config.option.order


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffles the files; the tests of a file stay in its order."""
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files)
    seed = getattr(config, "workerinput", vars(config.option))["order"]
    random.Random(seed).shuffle(order)
    items[:] = [item for file in order for item in files[file]]


def pytest_collection_finish() -> None:
    """Takes what is loaded by now out of the collector's sight: it stays until the end, and each
    of the many full collections, which tests of memory ask for and captures bring about, would
    look at 770,000 objects."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # the interpreter's end frees it


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def pytest_report_header(config: pytest.Config) -> str:
    order, draw = config.getoption("order"), config.getoption("draw")
    return f"order of files: --order {order}; random numbers: --draw {draw}"


@pytest.fixture(autouse=True)
def _draws_its_own_numbers(request: pytest.FixtureRequest) -> None:
    """Seeds PyTorch and `random` from the test's name alone: no folder, so that a package's suite
    run by itself draws what it draws among all."""
    draw = request.config.getoption("draw")
    seed = zlib.crc32(f"{request.node.name} {draw}".encode())
    torch.default_generator.manual_seed(seed)  # torch.manual_seed imports PyTorch's compiler
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)


@pytest.fixture(autouse=True)
def _compiles_afresh() -> Iterator[None]:
    """Lets each test compile anew what it compiles: calls for the same code share it otherwise."""
    yield
    if "dovetail_capture.api" in sys.modules:
        sys.modules["dovetail_capture.api"].reset()
