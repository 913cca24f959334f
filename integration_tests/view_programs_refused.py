"""Programs of views and writes whose last step eager refuses: compiled they are refused, too, and
leave their inputs as eager does.

`python integration_tests/view_programs_refused.py FIRST LAST [--backend aot_eager]` runs seeds and
prints what differs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail

sys.path.append(str(Path(__file__).parents[1] / "packages" / "autograd_aot" / "tests"))

from view_programs import Program, add_refused_step, as_function, make_inputs, random_program

# Of a view that autograd lost track of compiled programs raise where the gradient is asked for;
# nothing is written to what is empty; and graphs have no lazy conjugates.
ELSEWHERE = (
    "of its base has been modified inplace", "are out of bounds for storage of size",
    "elements into an empty tensor", "mutable TensorLists with conjugate inputs",
)  # fmt: skip


def refused_program(seed: int) -> Program | None:
    """A few steps and one that eager refuses; what that step is of, and gives, is returned."""
    program = random_program(seed, wide=True)
    if program is None:
        return None
    program = add_refused_step(replace(program, steps=program.steps[:3], after=()))
    if program is None:
        return None
    last = len(program.inputs) + len(program.steps) - 1
    return replace(program, outputs=(0, program.steps[-1].operands[0], last))


def check_refused(program: Program, backend: str = "dovetail") -> str:
    """What differs; "ok" if both raise errors of one type and leave the inputs the same."""
    fn = as_function(program)
    theirs, expected = _raised(program, fn)
    if expected is None or any(text in str(expected) for text in ELSEWHERE):
        return "not compared"
    torch.manual_seed(0)
    ours, found = _raised(program, dovetail.compile(fn, backend=backend))
    if type(found) is not type(expected):
        return f"DIFFERENT: {found!r}, not {expected!r}"
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or not torch.allclose(a, b, equal_nan=True):
            return f"DIFFERENT: an input is {a}, not {b}, after {expected!r}"
    return "ok"


def _raised(program: Program, fn: Callable[..., Any]) -> tuple[list[Tensor], Exception | None]:
    """What the inputs are after a call, without what is lazy, and what it raised."""
    inputs, _ = make_inputs(program)
    error: Exception | None = None
    with torch.set_grad_enabled(program.grad_mode):
        try:
            fn(*inputs)
        except Exception as raised:
            error = raised
    return [t.detach().resolve_conj().resolve_neg() for t in inputs], error


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="dovetail")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.last):
        program = refused_program(seed)
        result = "no program" if program is None else check_refused(program, options.backend)
        counts[result.split(":")[0]] += 1
        if result.startswith("DIFFERENT"):
            print(f"seed {seed}: {result}\n    {program}", flush=True)
    for text, count in counts.most_common():
        print(f"{count:7d}  {text}")


if __name__ == "__main__":
    main()
