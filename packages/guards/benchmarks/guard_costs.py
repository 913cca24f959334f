"""What guards cost: `python packages/guards/benchmarks/guard_costs.py`.

Measures one check of a small guard and of a module tree of about the size of a 12-layer BERT,
through the C entry that the frame hook calls, and what making and compiling the set costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards import source as s
from dovetail_guards.guard_set import GuardSet


def tensor_clause(source: s.Source, tensor: torch.Tensor) -> c.TensorIs:
    """All metadata of a tensor, static."""
    return c.TensorIs(
        source,
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tuple(tensor.size()),
        tuple(tensor.stride()),
    )


def module_clauses(source: s.Source, module: torch.nn.Module) -> list[c.Clause]:
    """What a compiled forward of a module tree typically relies on."""
    found: list[c.Clause] = [
        c.TypeIs(source, type(module)),
        c.HasInstanceAttr(source, "forward", False),
        c.ConstantIs(s.InstanceAttrSource(source, "training"), module.training),
    ]
    for hooks in ("_forward_hooks", "_forward_pre_hooks"):
        found.append(c.LengthIs(s.InstanceAttrSource(source, hooks), 0))
    parameters = s.InstanceAttrSource(source, "_parameters")
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found.append(tensor_clause(s.ItemSource(parameters, name), parameter))
    children = s.InstanceAttrSource(source, "_modules")
    for name, child in module._modules.items():
        if child is not None:
            found += module_clauses(s.ItemSource(children, name), child)
    return found


class Layer(torch.nn.Module):
    """The modules of a transformer encoder layer, nested as BERT nests them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))
        self.attention_out = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Dropout()
        )
        self.intermediate = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU())
        self.output = torch.nn.Sequential(
            torch.nn.Linear(32, 8), torch.nn.LayerNorm(8), torch.nn.Dropout()
        )


class Encoder(torch.nn.Module):
    """A stack of layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))


def small(x: torch.Tensor) -> torch.Tensor:
    """The function of the small guard."""
    return x + 1


def forward(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The function of the large guard."""
    return x


def nanoseconds(check: Callable[[int], int], count: int) -> float:
    """CPU time per call, best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        if check(count) != count:
            raise RuntimeError("the measured guard does not pass")
        best = min(best, time.thread_time() - start)
    return best / count * 1e9


def report(name: str, clauses: list[c.Clause], func: Any, args: tuple[Any, ...]) -> None:
    """Measure one guard and print a line."""
    start = time.thread_time()
    guards = GuardSet(clauses)
    made = time.thread_time()
    native = guards.compile(func.__code__)
    compiled = time.thread_time()
    native.repeat(args, func, 100)
    cost = nanoseconds(
        lambda count: native.repeat(args, func, count), max(200, 10**6 // len(clauses))
    )
    print(
        f"{name:<28}{len(guards):>6} clauses{cost:>11.0f} ns a check"
        f"{(made - start) * 1e3:>9.2f} ms to sort{(compiled - made) * 1e3:>9.2f} ms to compile"
    )


def main() -> None:
    """Print the table."""
    x = torch.ones(4, 8)
    arg = s.LocalSource("x")
    grad = c.TorchState("grad_mode", True)
    report("one tensor", [tensor_clause(arg, x)], small, (x,))
    known = [c.IdIs(s.GlobalSource(name), globals()[name]) for name in ("torch", "time")]
    report("x + 1", [tensor_clause(arg, x), grad, *known], small, (x,))
    encoder = Encoder(12)
    root = s.LocalSource("self")
    tree = [tensor_clause(arg, x), grad, *known, *module_clauses(root, encoder)]
    report("12-layer encoder", tree, forward, (encoder, x))


if __name__ == "__main__":
    main()
