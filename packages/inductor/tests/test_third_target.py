"""A target that this package does not have: one class that writes loop nests as Python over NumPy
arrays. It shows what a target needs, and that no pass asks for more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.loop_ir.expr import Apply, Builder, Expr, Load, Scalar
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Indirect, Mod, Var
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.ops import SCALAR_OPS, scalar_name
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cpu import cpu_target as cpu
from dovetail_inductor.targets.target import (
    Costs,
    Emitted,
    GeneratedKernel,
    Library,
    Machine,
    Memory,
    Scans,
    Scatters,
    Scheduling,
    Target,
)
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import CallAten, Plan, Ref, load

SPELLED = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "maximum": "np.maximum({0}, {1})", "minimum": "np.minimum({0}, {1})",
    "bitwise_or": "{0} | {1}", "bitwise_and": "{0} & {1}", "bitwise_xor": "{0} ^ {1}",
    "exp": "np.exp({0})", "sqrt": "np.sqrt({0})", "rsqrt": "1 / np.sqrt({0})", "neg": "-{0}",
    "relu": "np.maximum({0}, 0)", "where": "({1} if {0} else {2})", "gt": "{0} > {1}",
    "lt": "{0} < {1}", "eq": "{0} == {1}", "cast": "np.{type}({0})",
}  # fmt: skip


def type_name(dtype: torch.dtype) -> str:
    return "bool_" if dtype is torch.bool else str(dtype).removeprefix("torch.")


def number(value: Scalar, dtype: torch.dtype) -> str:
    return f"np.{type_name(dtype)}({repr(str(value)) if isinstance(value, float) else value})"


def place(index: Index, read: Callable[[Expr], str]) -> str:
    terms = [str(index.const)]
    for atom, times in index.terms:
        match atom:
            case FloorDiv(inner, divisor):
                text = f"(({place(inner, read)}) // {divisor})"
            case Mod(inner, divisor):
                text = f"(({place(inner, read)}) % {divisor})"
            case Indirect(value):
                text = read(value)
            case _:
                text = str(atom)
        terms.append(f"{times} * {text}")
    return " + ".join(terms)


@dataclass
class Body:
    """The handler that writes a loop's body, one statement a value."""

    lines: list[str] = field(default_factory=list)

    def define(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def place(self, index: Index, read: Callable[[Expr], str]) -> str:
        return place(index, read)

    def constant(self, value: Scalar, dtype: torch.dtype) -> str:
        return number(value, dtype)

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], str]) -> str:
        return self.define(f"np.{type_name(dtype)}({self.place(index, read)})")

    def load(self, load: Load, mask: str | None, read: Callable[[Expr], str]) -> str:
        element = f"{load.buffer}[{self.place(load.index, read)}]"
        return self.define(element if mask is None else f"{element} if {mask} else 0")

    def apply(self, op: str, args: Sequence[str], expr: Apply) -> str:
        if expr.check is not None:  # which wraps around and raises as a sequence does
            return self.define(f"range({expr.check.size})[{args[0]}]")
        return self.define(SPELLED[op].format(*args, type=type_name(expr.dtype)))


def looped(variables: Sequence[Var], body: list[str]) -> list[str]:
    for var in reversed(variables):
        body = [f"for {var} in range({var.size}):", *("  " + line for line in body)]
    return body


def nest_text(nest: LoopNest) -> list[str]:
    body = Body()
    (value,) = interpret([nest.body], body)
    store = f"{nest.buffer}[{place(nest.index, str)}] = "
    reduction = nest.reduction
    if reduction is None:
        return looped(nest.vars, [*body.lines, store + value])
    start = f"acc = {number(reduction.identity(nest.body.dtype), nest.body.dtype)}"
    if nest.with_index:
        sign = ">" if reduction.finds_largest else "<"
        beats = f"if {value} {sign} acc: acc, best = {value}, at"
        inner = looped(nest.reduce_vars, [*body.lines, "at += 1", beats])
        return looped(nest.vars, [start, "at = best = -1", *inner, f"{store}best"])
    update = f"acc = {SPELLED[reduction.combine].format('acc', value)}"
    return looped(
        nest.vars, [start, *looped(nest.reduce_vars, [*body.lines, update]), store + "acc"]
    )


@dataclass(frozen=True)
class PythonTarget(Target):
    """Its answers are the CPU's; its kernels are calls of an operator that runs their text."""

    costs: Costs = cpu.COSTS
    memory: Memory = cpu.MEMORY
    scatters: Scatters = cpu.SCATTERS
    scans: Scans = cpu.SCANS
    library: Library = cpu.LIBRARY
    scheduling: Scheduling = cpu.SCHEDULING

    def has_operator(self, name: str, dtype: torch.dtype) -> bool:
        op = scalar_name(name.partition(".")[0])
        return op not in SCALAR_OPS or op in SPELLED

    def has_scalar(self, op: str, dtype: torch.dtype) -> bool:
        return op in SPELLED

    def emit(
        self,
        kernel: GeneratedKernel,
        builder: Builder,
        buffers: Mapping[str, Buffer],
        machine: Machine,
    ) -> Emitted:
        assert isinstance(kernel, FusedKernel)
        names = tuple(sorted(kernel.reads() | (kernel.writes() - kernel.internal)))
        lines = []
        for name in sorted(kernel.internal):
            held = buffers[name]
            lines.append(f"{name} = np.empty({held.extent}, np.{type_name(held.dtype)})")
        for nest in kernel.nests:
            lines += nest_text(nest)
        text = "\n".join([f"def kernel({', '.join(names)}):", *(f"  {line}" for line in lines)])
        return Emitted(
            None, names, lambda places, _: CallAten("third::run", (text, tuple(map(Ref, places))))
        )


def run(source: str, tensors: list[torch.Tensor]) -> None:
    scope: dict[str, Any] = {"np": np}
    exec(source, scope)
    flat = [t.as_strided((t.untyped_storage().size() // t.itemsize - t.storage_offset(),), (1,))
            for t in tensors]  # fmt: skip
    with np.errstate(all="ignore"):
        scope["kernel"](*(t.numpy() for t in flat))


@pytest.fixture
def operator() -> Iterator[None]:
    with torch.library._scoped_library("third", "DEF") as library:
        library.define("run(str source, Tensor(a!)[] tensors) -> ()")
        library.impl("run", run, "CPU")
        yield


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "pointwise": lambda x, w: (x * w + 1).relu(),
    "softmax": lambda x, w: torch.softmax(x, -1),
    "norm": norm,
    "view": lambda x, w: x.t().reshape(-1, 3).exp() + 1,
    "positions": lambda x, w: (x.argmax(-1), x.argmin(0), x.amax(0)),
    "truth": lambda x, w: ((x > 1).any(-1), (x > 1).any(0), (x > -1).all(0)),
    "product and what follows": lambda x, w: (x @ x.t()).relu().sum(-1),
    "not spelled": lambda x, w: torch.erfinv(x * 0.1) + w,
    "gather": lambda x, w: x[torch.arange(3) * 2] * w,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_target_is_one_class(name: str, operator: None) -> None:
    x, w = torch.randn(6, 9), torch.randn(9)
    gm = trace_aten(PROGRAMS[name], x, w, decompositions=core_aten_table())
    plan: Plan = compile_graph(gm, options=InductorOptions(target=PythonTarget()))
    assert not plan.kernels
    assert any(isinstance(s, CallAten) and s.op == "third::run" for s in plan.steps)
    want = PROGRAMS[name](x, w)
    got = load(plan)(x, w)
    for ours, eager in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
