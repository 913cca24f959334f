"""Random sequences of views and in-place writes through capture, autograd and kernels.

`python integration_tests/view_programs_compiled.py FIRST LAST [BACKEND]` runs seeds against eager
and prints what differs, cut down. (`packages/autograd_aot/tests/view_programs.py` makes the
programs, and runs them through autograd_aot alone.)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from dovetail_autograd_aot import TraceError
from dovetail_capture.errors import BackendError

import dovetail

sys.path.append(str(Path(__file__).parents[1] / "packages" / "autograd_aot" / "tests"))

from view_programs import (
    Program,
    as_function,
    compare_call,
    eager_refuses,
    random_program,
    run_seeds,
)

__all__ = ["check_compiled", "random_program"]


def check_compiled(program: Program, backend: str = "dovetail") -> str:
    """Compare with eager; "ok", "eager refuses" or "refused: why". Raises `Difference`."""
    refusal = eager_refuses(program)
    if refusal:
        return f"eager refuses: {refusal}"
    fn = as_function(program)
    torch.manual_seed(0)
    try:
        compare_call(program, fn, dovetail.compile(fn, backend=backend))
    except BackendError as error:
        if not isinstance(error.__cause__, TraceError):
            raise
        return f"refused: {str(error.__cause__)[:90]}"
    return "ok"


def main() -> None:
    """As the module says."""
    first, last, *rest = sys.argv[1:]
    backend = rest[0] if rest else "dovetail"
    run_seeds(int(first), int(last), lambda program: check_compiled(program, backend))


if __name__ == "__main__":
    main()
