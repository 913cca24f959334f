"""Attention with a function of its scores: kernels that are right in Triton's interpreter and
compile for an H100, and which tiles they leave out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.loop_ir.attention_loops import AttentionLoops, Bound, Seen
from dovetail_inductor.loop_ir.loops import ExternCall
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.products.choose_products import Choice, Problem
from dovetail_inductor.targets import CUDA
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.graph_text import text_of
from dovetail_prims.graphs.record import trace_aten
from dovetail_prims.graphs.scored_attention import attention_operators, scored_attention
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

Function = Callable[..., Tensor]


def places(scores: Tensor) -> tuple[Tensor, Tensor]:
    m, n = scores.shape[-2:]
    return (
        torch.arange(m, device=scores.device)[:, None],
        torch.arange(n, device=scores.device)[None, :],
    )


def capped(scores: Tensor) -> Tensor:
    return torch.tanh(scores / 7) * 7


def causal(scores: Tensor) -> Tensor:
    i, j = places(scores)
    return torch.where(i >= j, capped(scores), -math.inf)


def window(scores: Tensor) -> Tensor:
    """Some rows see nothing where there are fewer keys than queries."""
    i, j = places(scores)
    return (scores * 0.3).masked_fill(~((i >= j) & (i - j < 40)), -math.inf)


def around(scores: Tensor) -> Tensor:
    i, j = places(scores)
    return torch.where((i - j).abs() <= 30, scores.sin() * 3, -math.inf)


def hidden_by_numbers(scores: Tensor) -> Tensor:
    """As a mask that is added, of the least number."""
    i, j = places(scores)
    least = torch.full(scores.shape[-2:], torch.finfo(torch.float16).min)
    vanishing = torch.full(scores.shape[-2:], torch.finfo(torch.float32).min)
    return capped(scores) + torch.where(i + 3 < j, vanishing, 0.0) + least * 0.0


def documents(scores: Tensor, document: Tensor) -> Tensor:
    i, j = places(scores)
    same = document[:, None, : scores.shape[-2], None] == document[:, None, None, :]
    return torch.where(same & (i >= j), scores * 0.2, -math.inf)


def padded(scores: Tensor, real: Tensor) -> Tensor:
    """Keys that are none, by the batch."""
    return torch.where(real[:, None, None, :], scores * 0.2, -math.inf)


def sloped(scores: Tensor, slopes: Tensor) -> Tensor:
    i, j = places(scores)
    return scores * 0.25 + slopes[:, None, None] * (j - i)


def biased(scores: Tensor, bias: Tensor) -> Tensor:
    return torch.sigmoid(scores) * 4 + bias


def of_several(scores: Tensor) -> Tensor:
    return scores + scores.flip(-1)


@dataclass(frozen=True)
class Case:
    """A function, what it reads, and the sizes: batch, heads, key heads, m, n, d, e."""

    function: Function
    read: tuple[Tensor, ...] = ()
    sizes: tuple[int, ...] = (2, 2, 2, 80, 100, 16, 16)
    empty: float = 0.0

    @property
    def scores(self) -> tuple[int, ...]:
        batch, heads, _, m, n, _, _ = self.sizes
        return batch, heads, m, n

    def text(self, device: str = "cpu") -> str:
        """The function with its derivative."""

        def both(scores: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
            made = self.function(scores, *rest[:-1])
            return made, DERIVATIVES[self.function](scores, made, rest[-1])

        scores, slopes = (torch.empty(self.scores, device=device) for _ in range(2))
        read = (t.to(device) for t in self.read)
        gm = trace_aten(both, scores, *read, slopes, decompositions=core_aten_table())
        return text_of(gm.graph)


def slope_of_cap(scores: Tensor, made: Tensor, slopes: Tensor) -> Tensor:
    return torch.where(made.isneginf(), 0.0, slopes * (1 - torch.tanh(scores / 7) ** 2))


def times(factor: float) -> Function:
    return lambda scores, made, slopes: torch.where(made.isneginf(), 0.0, slopes * factor)


DERIVATIVES: dict[Function, Function] = {
    capped: slope_of_cap,
    causal: slope_of_cap,
    hidden_by_numbers: slope_of_cap,
    window: times(0.3),
    documents: times(0.2),
    padded: times(0.2),
    sloped: times(0.25),
    around: lambda scores, made, slopes: times(3)(scores, made, slopes * scores.cos()),
    biased: lambda scores, made, slopes: (
        slopes * 4 * torch.sigmoid(scores) * torch.sigmoid(-scores)
    ),
    of_several: lambda scores, made, slopes: slopes + slopes.flip(-1),
}

_DOCUMENT = (torch.arange(100) // 23).expand(2, 100).contiguous()
_REAL = torch.arange(200) < torch.tensor([[50], [128]])
CASES = {
    "capped": Case(capped),
    "causal": Case(causal),
    "window": Case(window),
    "window, few keys": Case(window, sizes=(1, 2, 2, 140, 70, 16, 16)),
    "window, nothing": Case(window, sizes=(1, 2, 2, 140, 70, 16, 16), empty=math.nan),
    "around": Case(around, sizes=(1, 2, 1, 130, 130, 16, 16)),
    "hidden by numbers": Case(hidden_by_numbers, sizes=(1, 1, 1, 150, 128, 16, 16), empty=math.nan),
    "documents, groups": Case(documents, (_DOCUMENT,), (2, 4, 2, 80, 100, 16, 16)),
    "documents, many tiles": Case(
        documents, (torch.arange(260)[None] // 70,), (1, 2, 2, 260, 260, 16, 16)
    ),
    "padded": Case(padded, (_REAL,), (2, 2, 1, 80, 200, 16, 16)),
    "sloped, whole tiles": Case(sloped, (torch.tensor([0.5, 0.1]),), (1, 2, 2, 128, 64, 32, 32)),
    "biased, other widths": Case(biased, (torch.randn(2, 1, 100),), (1, 2, 2, 70, 100, 24, 40)),
    "wide": Case(causal, sizes=(1, 1, 1, 70, 70, 130, 16)),
}  # fmt: skip


def operands(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """(Not bfloat16: Triton's interpreter truncates to it, where a GPU rounds.)"""
    torch.manual_seed(0)
    batch, heads, keys, m, n, d, e = case.sizes
    q = torch.randn(batch, m, heads, d).half().transpose(1, 2)  # heads after places in memory
    return q, torch.randn(batch, keys, n, d).half(), torch.randn(batch, keys, n, e).half()


def compiled(fn: Callable[..., Any], *inputs: Tensor, tuner: Any = None) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, options=InductorOptions(triton=True), tuner=tuner)


def run(plan: Plan, *inputs: Tensor) -> tuple[Any, ...]:
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    return ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)


def forward(case: Case, device: str = "cpu") -> Callable[..., Any]:
    text = case.text(device)
    return lambda q, k, v, *read: scored_attention(q, k, v, read, text, case.empty)


def backward(case: Case, device: str = "cpu") -> Callable[..., Any]:
    text = case.text(device)
    operator = attention_operators()[1]
    return lambda grad, q, k, v, sums, delta, *read: operator(
        grad, q, k, v, sums, delta, list(read), text, case.empty
    )


def close(mine: Tensor, eager: Tensor) -> None:
    assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
    torch.testing.assert_close(mine, eager, rtol=4e-3, atol=4e-3, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    case = CASES[name]
    inputs = (*operands(case), *case.read)
    fn = forward(case)
    rows, sums = fn(*inputs)
    for mine, eager in zip(run(compiled(fn, *inputs), *inputs), (rows, sums), strict=True):
        close(mine, eager)
    grad = torch.randn(rows.shape).half()
    delta = torch.nan_to_num((rows.float() * grad.float()).sum(-1))
    given = (grad, *inputs[:3], sums, delta, *case.read)
    fn = backward(case)
    dq, dk, dv = run(compiled(fn, *given), *given)
    eager_dq, eager_dk, eager_dv = fn(*given)
    close(dq, eager_dq)
    if not eager_dv.isnan().any():  # (where a row has no number, eager has none for any key)
        close(dk, eager_dk)
        close(dv, eager_dv)


def test_tiles_of_which_nothing_is_seen_are_not_computed() -> None:
    """What a mask that is read hides altogether may be no numbers."""
    case = CASES["padded"]
    q, k, v = operands(case)
    fn = forward(case)
    wanted = fn(q, k, v, *case.read)[0]
    v[:, :, 128:] = math.nan
    v[0, :, 64:] = math.nan
    assert fn(q, k, v, *case.read)[0].isnan().all()
    close(run(compiled(fn, q, k, v, *case.read), q, k, v, *case.read)[0], wanted)


def test_errors_beside_float64() -> None:
    """No more than those of the same in float16 with the scores in memory."""
    case = CASES["causal"]
    q, k, v = operands(case)
    (mine, _) = run(compiled(forward(case), q, k, v), q, k, v)
    exact = causal(q.double() @ k.double().mT).softmax(-1) @ v.double()
    plain = causal(q @ k.mT).softmax(-1) @ v
    assert (mine - exact).abs().mean() <= (plain - exact).abs().mean()


def test_results_that_nobody_reads() -> None:
    case = CASES["causal"]
    inputs = operands(case)
    fn = forward(case)
    (rows,) = run(compiled(lambda *a: fn(*a)[0], *inputs), *inputs)
    close(rows, fn(*inputs)[0])
    (sums,) = run(compiled(lambda *a: fn(*a)[1], *inputs), *inputs)
    close(sums, fn(*inputs)[1])


def test_operands_within_one_tensor() -> None:
    """As a product gives queries, keys and values side by side."""
    case = Case(causal, sizes=(2, 2, 2, 70, 70, 16, 16))
    fn = forward(case)

    def packed(x: Tensor) -> Any:
        return fn(*x.view(2, 70, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0))

    x = torch.randn(2, 70, 96).half()
    for mine, eager in zip(run(compiled(packed, x), x), packed(x), strict=True):
        close(mine, eager)


def test_what_is_no_function_of_one_score() -> None:
    """The operator itself is called."""
    case = Case(of_several)
    inputs = operands(case)
    plan = compiled(forward(case), *inputs)
    assert [s.op for s in plan.steps if isinstance(s, CallAten)] == ["dovetail_attention::forward"]


def test_on_a_cpu_and_in_wide_types() -> None:
    case = CASES["causal"]
    inputs = [t.float() for t in operands(case)]
    plan = compiled(forward(case), *inputs)
    assert any(isinstance(s, CallAten) for s in plan.steps)


# --- what is left out -----------------------------------------------------------------------------


def loops_of(function: Function, m: int = 90, n: int = 70) -> AttentionLoops:
    case = Case(function, sizes=(1, 1, 1, m, n, 16, 16))
    gm = trace_aten(forward(case), *operands(case), decompositions=core_aten_table())
    (call,) = (node for node in lower(gm, CUDA).nodes if isinstance(node, ExternCall))
    assert call.attention is not None
    return call.attention


def within(bounds: Sequence[Bound], place: int, other: int) -> bool:
    return all(
        place <= b.slope * other + b.offset if b.upper else place >= b.slope * other + b.offset
        for b in bounds
    )


@pytest.mark.parametrize("function", [causal, window, around, hidden_by_numbers])
def test_bounds_are_those_of_what_is_seen(function: Function) -> None:
    loops = loops_of(function)
    seen = function(torch.ones(1, 1, 90, 70))[0, 0] > -1e30
    assert loops.seen.of_keys and loops.inside != loops.body
    for i in range(90):
        for j in range(70):
            assert within(loops.seen.of_keys, j, i) == within(loops.seen.of_queries, i, j)
            assert within(loops.seen.of_keys, j, i) == bool(seen[i, j])


def test_numbers_hide_nothing_where_a_row_has_nothing_else() -> None:
    """Of a row of which all is hidden by numbers, all has the same share."""

    def later(scores: Tensor) -> Tensor:
        i, j = places(scores)
        return scores + torch.where(i >= j, 0.0, torch.finfo(torch.float32).min)

    def strictly(scores: Tensor) -> Tensor:
        i, j = places(scores)
        return scores + torch.where(i > j, 0.0, torch.finfo(torch.float32).min)

    DERIVATIVES.update({later: times(1.0), strictly: times(1.0)})
    assert loops_of(later).seen.of_keys
    assert loops_of(strictly).seen == Seen()


@dataclass
class Last:
    """Takes the last form of each kernel for the fastest."""

    choices: list[Choice] = field(default_factory=list)

    def measure(self, problems: Sequence[Problem]) -> list[tuple[float | None, ...]]:
        for problem in problems:
            assert len(problem.plans()) == len(problem.names)
        return [tuple(1.0 / (n + 1) for n in range(len(p.names))) for p in problems]

    def note(self, choice: Choice) -> None:
        self.choices.append(choice)


def test_tiles_are_measured() -> None:
    case = Case(causal, sizes=(1, 1, 1, 140, 140, 16, 16))
    inputs = operands(case)
    fn = forward(case)
    tuner = Last()
    plan = compiled(fn, *inputs, tuner=tuner)
    (choice,) = tuner.choices
    assert choice.chosen == len(choice.names) - 1 > 1
    other = compiled(fn, *inputs)
    kernels = [[s.kernel for s in p.steps if isinstance(s, LaunchTriton)] for p in (plan, other)]
    assert kernels[0] != kernels[1]
    for mine, eager in zip(run(plan, *inputs), fn(*inputs), strict=True):
        close(mine, eager)


@pytest.mark.parametrize("width", [64, 128, 256])
def test_kernels_compile_for_an_h100(width: int, build_for_h100: Any) -> None:
    document = torch.zeros(2, 1024, dtype=torch.int64)
    case = Case(documents, (document,), (2, 4, 2, 1024, 1024, width, width))
    like = {"dtype": torch.bfloat16, "device": "meta"}
    q, grad = (torch.empty(2, 4, 1024, width, **like) for _ in range(2))  # type: ignore[call-overload]
    k, v = (torch.empty(2, 2, 1024, width, **like) for _ in range(2))  # type: ignore[call-overload]
    sums, delta = (torch.empty(2, 4, 1024, device="meta") for _ in range(2))
    read = document.to("meta")
    plans = (
        compiled(forward(case, "meta"), q, k, v, read),
        compiled(backward(case, "meta"), grad, q, k, v, sums, delta, read),
    )
    # Three, and one before each for its tiles.
    assert sum(isinstance(step, LaunchTriton) for plan in plans for step in plan.steps) == 6
    kernels = {kernel.symbol: kernel for plan in plans for kernel in plan.kernels}
    binaries = build_for_h100(kernels.values())
    assert all(binary.shared_bytes <= 227 * 1024 for binary in binaries.values())
