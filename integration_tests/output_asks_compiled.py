"""Random questions to autograd about outputs of compiled programs: `output_asks.py` of
`packages/autograd_aot/tests`, through capture and kernels.

`python integration_tests/output_asks_compiled.py FIRST LAST [--backend aot_eager]` runs seeds and
prints what differs from eager.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from pathlib import Path

import dovetail

sys.path.append(str(Path(__file__).parents[1] / "packages" / "autograd_aot" / "tests"))

from output_asks import Run, run_seeds
from view_programs import Program, as_function, make_inputs


def compiled(program: Program, first: Program, backend: str) -> Run:
    """The program, compiled as a user's function is, and first called with the inputs of
    `first`."""
    run = dovetail.compile(as_function(program), backend=backend, dynamic=False)
    if first != program:
        run(*make_inputs(first)[0])
    return run


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="dovetail")
    given = parser.parse_args()
    program_of = functools.partial(compiled, backend=given.backend)
    print(dict(run_seeds(given.first, given.last, program_of)))
