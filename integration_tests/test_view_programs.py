"""Random sequences of views and in-place writes through the whole pipeline (autograd_aot's own
tests run many more, without capture and kernels)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from dovetail_autograd_aot import TraceError
from dovetail_capture.errors import BackendError

import dovetail

sys.path.append(str(Path(__file__).parents[1] / "packages" / "autograd_aot" / "tests"))

from view_programs import as_function, compare_call, eager_refuses, random_program


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("first", range(500_000, 500_040, 10))
def test_programs(first: int, backend: str) -> None:
    compared = 0
    for seed in range(first, first + 10):
        program = random_program(seed)
        if program is None or eager_refuses(program):
            continue
        fn = as_function(program)
        print(f"seed {seed}: {program}")
        torch.manual_seed(0)
        try:
            compare_call(program, fn, dovetail.compile(fn, backend=backend))
        except BackendError as error:
            assert isinstance(error.__cause__, TraceError), "not a refusal"
            continue
        compared += 1
    assert compared >= 5
