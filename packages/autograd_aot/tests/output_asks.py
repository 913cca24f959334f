"""Random questions to autograd about the outputs of random programs, compiled and eager.

Gradients of outputs by way of others, hooks and `retain_grad()` on them, gradients of gradients:
whatever the programs of `view_programs.py` give.

`python output_asks.py FIRST LAST` runs seeds and prints what differs. (Through capture and kernels,
`integration_tests/output_asks_compiled.py` does.)
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from aot_testing import as_graph
from dovetail_autograd_aot import TraceError, aot_compile
from torch import Tensor
from view_functions import Rng
from view_programs import Program, apply, as_function, make_inputs, random_program

ASKS = ("gradients", "retained", "hooks", "changing hooks", "penalty", "visits")
# What is refused with an error that says so.
REFUSED = (
    "by way of",
    "create_graph=True through a compiled graph",
    "requires grad and is written",
)

Run = Callable[..., tuple[Any, ...]]


def _value(outputs: Sequence[Tensor], rng: Rng) -> Tensor:
    """A number that depends on some of the outputs."""
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        weights = torch.randn(output.shape, dtype=torch.float64)
        real = output.real + output.imag if output.is_complex() else output
        total = total + (real.double() * weights).sum() * rng.randint(1, 3)
    return total


def ask(program: Program, run: Run, question: str, seed: int) -> list[Any]:
    """What autograd answers: tensors and numbers, in order."""
    rng = Rng(seed)
    torch.manual_seed(seed)
    inputs, leaves = make_inputs(program)
    visits: dict[int, int] = {}
    if question == "visits":  # what inputs were computed from is come to, or is not
        for node in dict.fromkeys(i.grad_fn for i in inputs if i.grad_fn is not None):
            number = len(visits)
            visits[number] = 0
            node.register_prehook(lambda _, number=number: visits.update({number: 1}))
    outputs = [o for o in run(*inputs) if isinstance(o, Tensor)]
    tracked = list({id(o): o for o in outputs if o.requires_grad and not o.is_leaf}.values())
    if len(tracked) < 2:
        return []
    asked = [o for o in tracked if rng.random() < 0.5] or [tracked[0]]
    loss = _value([o for o in tracked if rng.random() < 0.6] or [tracked[-1]], rng)
    answers: list[Any] = []
    if question == "gradients":
        wanted = [*asked, *leaves]
        answers += torch.autograd.grad(loss, wanted, allow_unused=True, retain_graph=True)
        answers += torch.autograd.grad(loss, asked, allow_unused=True)
        return answers
    if question == "penalty":
        found = torch.autograd.grad(loss, asked, allow_unused=True, create_graph=True)
        answers += [None if g is None else g.detach().clone() for g in found]
        real = [g for g in found if g is not None and g.requires_grad]
        if not real:
            return answers
        loss = _value([g * g.conj() for g in real], rng)
    seen: list[list[Tensor]] = []
    for output in asked:
        if question == "retained":
            output.retain_grad()
        elif question == "hooks":
            seen.append([])
            output.register_hook(lambda g, seen=seen[-1]: seen.append(g.detach().clone()))
        elif question == "changing hooks":
            output.register_hook(lambda g: 2 * g)
    loss.backward()
    for gradients in seen:
        answers += [torch.tensor(len(gradients)), *gradients]
    answers += [leaf.grad for leaf in leaves]
    answers += [torch.tensor(count) for count in visits.values()]
    if question == "retained":
        answers += [output.grad for output in asked]
    return answers


def is_asked(program: Program) -> bool:
    """Whether autograd is to be asked about a program: not if it cannot differentiate it."""
    inputs, _ = make_inputs(program)
    values: list[Any] = list(inputs)
    try:
        for step in program.steps:
            apply(step, values)
        tracked = [values[i] for i in program.outputs if values[i].requires_grad]
        _value([o for o in tracked if not o.is_leaf], Rng(0)).backward()
    except RuntimeError as error:
        return "does not require grad" in str(error)
    return True


def _differ(ours: Sequence[Any], eager: Sequence[Any]) -> str:
    if len(ours) != len(eager):
        return f"{len(ours)} answers, not {len(eager)}"
    for number, (one, other) in enumerate(zip(ours, eager, strict=True)):
        if (one is None) != (other is None):
            return f"answer {number}: {one}, not {other}"
        if one is not None:
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"answer {number}: {one.shape} {one.dtype}, not {other.shape} {other.dtype}"
            rtol, atol = (1e-2, 1e-2) if one.dtype is torch.float16 else (1e-3, 1e-4)
            if not torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True):
                return f"answer {number}: {one}, not {other}"
    return ""


def compare(program: Program, compiled: Run, seed: int) -> Counter[str]:
    """Ask eager and `compiled` everything; how often what came of it. Raises AssertionError."""
    counts: Counter[str] = Counter()
    for number, question in enumerate(ASKS):
        try:
            eager = ask(program, as_function(program), question, seed + number)
        except RuntimeError:
            counts["eager refuses"] += 1
            break  # (also what it does answer then may miss an output)
        if not eager:
            continue
        try:
            ours = ask(program, compiled, question, seed + number)
        except RuntimeError as error:
            if not any(text in str(error) for text in REFUSED):
                raise
            counts["refused"] += 1
            continue
        difference = _differ(ours, eager)
        assert not difference, f"{question}, seed {seed}: {difference}"
        counts["equal"] += 1
    return counts


def compiled_alone(program: Program) -> Run:
    """The program by `aot_compile`, with no capture: one node of a graph."""
    inputs, _ = make_inputs(program)
    gm = as_graph(as_function(program), len(inputs))
    return aot_compile(gm, inputs, forward_compiler=lambda graph, _: graph)


def run_seeds(first: int, last: int, compile_program: Callable[[Program], Run]) -> Counter[str]:
    """All questions of all programs of the seeds; prints what differs."""
    counts: Counter[str] = Counter()
    for seed in range(first, last):
        program = random_program(seed)
        if program is None or not program.grad_mode:
            continue
        if not is_asked(program):
            continue
        try:
            counts += compare(program, compile_program(program), seed)
        except TraceError:
            counts["not compiled"] += 1
        except Exception as error:
            if type(error).__name__ == "BackendError":
                counts["not compiled"] += 1
                continue
            counts["different"] += 1
            print(f"seed {seed}: {program}")
            traceback.print_exc(limit=-3, file=sys.stdout)
    return counts


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(dict(run_seeds(int(sys.argv[1]), int(sys.argv[2]), compiled_alone)))
