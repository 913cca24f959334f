"""Frames of libraries that show and log are run as they are, where a graph breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _pytest.capture
import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import optimize
from dovetail_capture.api import context_of
from dovetail_capture.skip import is_skipped_file


def test_what_is_skipped() -> None:
    assert is_skipped_file(str(_pytest.capture.__file__))
    assert is_skipped_file(str(Path(torch.__file__)))
    assert not is_skipped_file(__file__)


def test_a_progress_bar_is_not_captured() -> None:
    tqdm = pytest.importorskip("tqdm")

    def program(x: Any) -> Any:
        for _ in tqdm.tqdm(range(5), disable=False):
            x = x * 2
            float(x.sum())
        return x

    compiled = optimize(program, CountingBackend())
    x = torch.ones(3)
    for _ in range(2):
        assert torch.equal(compiled(x), x * 32)
    files = {Path(event.place.partition(":")[0].rpartition("(")[2]).name
             for event in context_of(compiled).log.events}  # fmt: skip
    assert files == {Path(__file__).name}
