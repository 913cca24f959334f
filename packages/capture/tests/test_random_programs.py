"""Random programs: captured equals CPython. `random_programs.py` runs as many as one likes."""

from __future__ import annotations

import pytest
from random_programs import check, program_of


@pytest.mark.parametrize("seed", range(30))
def test_captured_equals_eager(seed: int) -> None:
    difference = check(seed)
    assert difference is None, f"{difference}\n{program_of(seed)}"
