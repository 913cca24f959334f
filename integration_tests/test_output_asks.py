"""Random questions to autograd about outputs of compiled programs; `output_asks_compiled.py` runs
any number."""

from __future__ import annotations

import functools

import pytest
from output_asks_compiled import compiled, run_seeds


@pytest.mark.parametrize("first", [0, 100, 200])
def test_answers_are_eagers(first: int) -> None:
    counts = run_seeds(first, first + 100, functools.partial(compiled, backend="aot_eager"))
    assert counts["different"] == 0 and counts["equal"] > 5, dict(counts)
