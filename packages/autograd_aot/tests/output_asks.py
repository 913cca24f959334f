"""Random questions to autograd about the outputs of random programs, compiled and eager.

Gradients of outputs by way of others, hooks and `retain_grad()` on them, gradients of gradients:
whatever the programs of `view_programs.py` give; and the same at inputs and what they are views of.

`python output_asks.py FIRST LAST` runs seeds and prints what differs. (Through capture and kernels,
`integration_tests/output_asks_compiled.py` does.)
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from aot_testing import as_graph
from dovetail_autograd_aot import TraceError, aot_compile
from torch import Tensor
from view_functions import ALL_WRITES, Rng
from view_programs import Input, Program, apply, as_function, make_inputs, random_program

ASKS_AT_OUTPUTS = ("gradients", "retained", "hooks", "changing hooks", "penalty", "visits")
ASKS_AT_INPUTS = ("at inputs", "at inputs alone", "retained before", "hooks before")
ASKS = (*ASKS_AT_OUTPUTS, *ASKS_AT_INPUTS)
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
    if question in ASKS_AT_INPUTS:
        return _asked_at_inputs(inputs, leaves, run, question, rng)
    outputs = [o for o in run(*inputs) if isinstance(o, Tensor)]
    tracked = _tracked(outputs)
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


def _tracked(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those that were computed from something, each once."""
    return list({id(o): o for o in tensors if o.requires_grad and not o.is_leaf}.values())


def _asked_at_inputs(
    inputs: Sequence[Tensor], leaves: Sequence[Tensor], run: Run, question: str, rng: Rng
) -> list[Any]:
    """What autograd answers at inputs, at what they are views of, and at other views of that."""
    bases = [value._base for value in inputs if value._base is not None]
    older = [base.view_as(base) for base in bases]
    seen: list[list[Tensor]] = []
    before = _tracked([*inputs, *bases])
    for value in before:
        if question == "hooks before":
            seen.append([])
            value.register_hook(lambda g, seen=seen[-1]: seen.append(g.detach().clone()))
        elif question == "retained before" and value.grad_fn is not None:
            value.retain_grad()
    outputs = [o for o in run(*inputs) if isinstance(o, Tensor)]
    tracked = _tracked(outputs)
    if not tracked:
        return []
    newer = [base.view_as(base) for base in bases]
    wanted = [*inputs, *bases, *older, *newer]
    answers: list[Any] = [torch.tensor([t.requires_grad, t.is_leaf]) for t in wanted]
    answers += [torch.tensor(t._version - bases[0]._version) for t in inputs if bases]
    loss = _value([o for o in tracked if rng.random() < 0.6] or [tracked[-1]], rng)
    if question.startswith("at inputs"):
        wanted = _tracked(wanted)
        chosen = [w for w in wanted if rng.random() < 0.4] if "alone" in question else wanted
        chosen = chosen if "alone" in question else [*chosen, *leaves]
        if chosen:
            answers += torch.autograd.grad(loss, chosen, allow_unused=True)
        return answers
    if rng.random() < 0.5:
        loss = loss + _value(_tracked([*inputs, *newer]), rng)
    loss.backward()
    for gradients in seen:
        answers += [torch.tensor(len(gradients)), *gradients]
    answers += [leaf.grad for leaf in leaves]
    if question == "retained before":
        answers += [value.grad for value in before if not value.is_leaf]
    return answers


def with_views(program: Program) -> Program:
    """The program of inputs some of which are views, of what has a history or has none."""
    rng = Rng(program.seed + 11)

    def changed(spec: Input) -> Input:
        dense = spec.of is None and spec.layout == "dense"
        if not dense or not (spec.dtype.is_floating_point or spec.dtype.is_complex):
            return spec
        kinds = {
            "none": ["none", "row of plain", "view of plain"],
            "leaf": ["leaf", "row of leaf", "row of nonleaf"],
            "nonleaf": ["row of nonleaf", "view of nonleaf", "one of several", "under no_grad"],
        }
        return replace(spec, grad=rng.choice(kinds[spec.grad]))

    return replace(program, inputs=tuple(map(changed, program.inputs)))


def is_asked(program: Program) -> bool:
    """Whether autograd is to be asked about a program: not if it cannot differentiate it, nor where
    something is written to by its `.data`: what eager kept of it then changes unseen."""
    names = [step.name for step in program.steps]
    if "copy_data" in names and not ALL_WRITES.keys().isdisjoint(names):
        return False
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


def compiled_alone(program: Program, first: Program) -> Run:
    """The program by `aot_compile`, with no capture: one node of a graph. Compiled for the inputs
    of `first`."""
    inputs, _ = make_inputs(first)
    gm = as_graph(as_function(program), len(inputs))
    return aot_compile(gm, inputs, forward_compiler=lambda graph, _: graph)


def run_seeds(
    first: int, last: int, compile_program: Callable[[Program, Program], Run]
) -> Counter[str]:
    """All questions of all programs of the seeds, as they are and with views for inputs; prints
    what differs. What has views for inputs is compiled for these, or for inputs that are none."""
    counts: Counter[str] = Counter()
    for seed in range(first, last):
        program = random_program(seed)
        if program is None or not program.grad_mode:
            continue
        _compare_seed(program, program, compile_program, counts)
        viewed = with_views(program)
        if viewed != program:
            compiled_for = program if seed % 2 else viewed
            _compare_seed(viewed, compiled_for, compile_program, counts)
    return counts


def _compare_seed(
    program: Program,
    compiled_for: Program,
    compile_program: Callable[[Program, Program], Run],
    counts: Counter[str],
) -> None:
    if not is_asked(program):
        return
    try:
        counts += compare(program, compile_program(program, compiled_for), program.seed)
    except TraceError:
        counts["not compiled"] += 1
    except Exception as error:
        if type(error).__name__ == "BackendError":
            counts["not compiled"] += 1
            return
        counts["different"] += 1
        print(f"seed {program.seed}: {program}")
        traceback.print_exc(limit=-3, file=sys.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(dict(run_seeds(int(sys.argv[1]), int(sys.argv[2]), compiled_alone)))
