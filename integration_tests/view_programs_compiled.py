"""Random sequences of views and in-place writes through capture, autograd and kernels.

`python integration_tests/view_programs_compiled.py FIRST LAST [--backend aot_eager] [--dynamic]
[--breaks] [--zeros] [--resized] [--varied] [--wide] [--module]` runs seeds against eager and prints
what differs, cut down. (`packages/autograd_aot/tests/view_programs.py` makes the programs, and runs
them through autograd_aot alone.)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from dovetail_autograd_aot import TraceError
from dovetail_capture.errors import BackendError

import dovetail

sys.path.append(str(Path(__file__).parents[1] / "packages" / "autograd_aot" / "tests"))

from view_programs import (
    Difference,
    Input,
    Program,
    Step,
    apply,
    as_function,
    compare_call,
    eager_refuses,
    from_zeros,
    random_program,
    resized,
    run_seeds,
    varied,
)

__all__ = ["Input", "Program", "Step", "check_compiled", "random_program"]


CALLS = 4  # of one program with other inputs than those that it was made for
Variation = Callable[[Program, int], Program | None]


def with_break(program: Program) -> Callable[..., tuple[Any, ...]]:
    """The program as a function of its inputs, in two graphs."""

    def run(*inputs: Any) -> tuple[Any, ...]:
        values = list(inputs)
        for number, step in enumerate(program.steps):
            if number == len(program.steps) // 2:
                dovetail.graph_break()
            apply(step, values)
        return tuple(values[i] for i in program.outputs)

    return run


class _Holder(torch.nn.Module):
    """A function of its parameters and buffers, and of lists of them."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def hold(self, inputs: Sequence[Any]) -> None:
        """Let these be what the function is called with: views are held in a list."""
        self.names: list[str] = []
        self.views: list[Any] = []
        for number, value in enumerate(inputs):
            name = f"tensor{number}"
            if value._is_view():
                name = ""
                self.views.append(value)
            elif value.is_leaf and value.requires_grad:
                value.__class__ = torch.nn.Parameter
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)
            self.names.append(name)

    def forward(self) -> Any:
        views = iter(self.views)
        return self.fn(*(getattr(self, name) if name else next(views) for name in self.names))


def _of_module(fn: Callable[..., Any], backend: str, dynamic: bool | None) -> Callable[..., Any]:
    """The function, compiled as a module's that holds its inputs."""
    holder = _Holder(fn)
    compiled = dovetail.compile(holder, backend=backend, dynamic=dynamic)

    def run(*inputs: Any) -> Any:
        holder.hold(inputs)
        return compiled()

    return run


def check_compiled(
    program: Program,
    backend: str = "dovetail",
    dynamic: bool | None = None,
    breaks: bool = False,
    module: bool = False,
    others: Sequence[Variation] = (),
) -> str:
    """Compare with eager; "ok", "eager refuses" or "refused: why". What is compiled is
    called with `others` of its inputs, too. Raises `Difference`."""
    refusal = eager_refuses(program)
    if refusal:
        return f"eager refuses: {refusal}"
    fn = with_break(program) if breaks else as_function(program)
    torch.manual_seed(0)
    if module:
        compiled = _of_module(fn, backend, dynamic)
    else:
        compiled = dovetail.compile(fn, backend=backend, dynamic=dynamic)
    try:
        compare_call(program, fn, compiled)
        for variation in others:
            _compare_others(program, variation, fn, compiled)
    except BackendError as error:
        if not isinstance(error.__cause__, TraceError):
            raise
        return f"refused: {str(error.__cause__)[:90]}"
    return "ok"


def _compare_others(
    program: Program, variation: Variation, fn: Callable[..., Any], compiled: Callable[..., Any]
) -> None:
    for number in range(CALLS):
        other = variation(program, CALLS * program.seed + number)
        if other is not None:
            try:
                compare_call(other, fn, compiled)
            except Difference as error:
                raise Difference(f"then of {other.inputs}: {error}") from error


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="dovetail")
    parser.add_argument("--dynamic", action="store_true", default=None, help="sizes are symbolic")
    parser.add_argument("--resized", action="store_true", help="and with other sizes, too")
    parser.add_argument("--varied", action="store_true", help="and with other inputs altogether")
    parser.add_argument("--breaks", action="store_true", help="end the graph in the middle")
    parser.add_argument("--zeros", action="store_true", help="inputs are written into zeros first")
    parser.add_argument("--wide", action="store_true", help="of more functions")
    parser.add_argument("--module", action="store_true", help="inputs are a module's tensors")
    options = parser.parse_args()

    others = [resized] * options.resized + [varied] * options.varied

    def check(program: Program) -> str:
        return check_compiled(
            program, options.backend, options.dynamic, options.breaks, options.module, others
        )

    def make(seed: int) -> Program | None:
        program = random_program(seed, options.wide)
        return program and from_zeros(program) if options.zeros else program

    run_seeds(options.first, options.last, check, make)


if __name__ == "__main__":
    main()
