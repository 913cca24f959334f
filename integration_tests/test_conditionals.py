"""`torch.cond` by a tensor through the whole pipeline: as the `if` that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_runtime.plan import Choose
from kept_plans import KeepingPlans
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dovetail

Cond = Callable[..., Any]
LINEAR = nn.Linear(4, 4)


def plainly(predicate: Tensor, true: Any, false: Any, operands: Any = ()) -> Any:
    return true(*operands) if predicate else false(*operands)


def modules(cond: Cond, x: Tensor, y: Tensor) -> Any:
    def long(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(2):
            a = F.layer_norm(F.gelu(LINEAR(a)), (4,)) + b
        return a

    return cond(x.mean() > 0, long, lambda a, b: torch.softmax(a @ b.t(), -1) @ b, (x, y)).tanh()


def nested(cond: Cond, x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor, b: Tensor) -> Any:
        return cond(b.sum() > 3, lambda a: (a * 2,), lambda a: (a.cos(),), (a,))

    return cond(x.sum() > 0, true, lambda a, b: (a - b,), (x, y))[0]


def in_a_row(cond: Cond, x: Tensor, y: Tensor) -> Any:
    for i in range(3):
        x = cond(x.sum() > i, lambda a: a * 0.5 - 0.1, lambda a: a + y, (x,))
    return x


def saved_values_differ(cond: Cond, x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.t()).softmax(-1) @ b

    return cond(x.sum() > 0, true, lambda a, b: (a * b).exp().sin() * b.sum(), (x, y)) * x


def no_gradient_in_one(cond: Cond, x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            return a * b

    return cond(x.sum() > 0, true, lambda a, b: a + b, (x, y)) + x


def one_operand_each(cond: Cond, x: Tensor, y: Tensor) -> Any:
    return cond(x.sum() > 0, lambda: x * x, lambda: y.sin())


def whole_numbers(cond: Cond, x: Tensor, y: Tensor) -> Any:
    places, values = cond(
        x.sum() > 0,
        lambda a, b: (a.argmax(1), a * 2),
        lambda a, b: (b.argmin(1), b * 3),
        (x, y),
    )
    return values + places[:, None]


def transposed(cond: Cond, x: Tensor, y: Tensor) -> Any:
    return cond(x.sum() > 0, lambda a, b: (a @ b).relu(), lambda a, b: a @ b - 1, (x, y.t()))


def sizes(cond: Cond, x: Tensor, y: Tensor) -> Any:
    n = x.shape[0]
    q, k = x.view(1, 1, -1, 2), y.reshape(1, 1, -1, 2)
    return cond(
        x.sum() > 0,
        lambda q, k: F.scaled_dot_product_attention(q, k, k) * n,
        lambda q, k: (q + k).cumsum(2) / n,
        (q, k),
    ).view_as(x)


def constants(cond: Cond, x: Tensor, y: Tensor) -> Any:
    return cond(
        x.sum() > 0,
        lambda a: a * torch.tensor([1.0, 2.0, 3.0, 4.0]),
        lambda a: a + torch.tensor([4.0, 2.0, 3.0, 4.0]),
        (x,),
    ) + y * torch.tensor([1.0, 2.0, 3.0, 4.0])


def computed_again(cond: Cond, x: Tensor, y: Tensor) -> Any:
    def inner(x: Tensor, y: Tensor) -> Any:
        true, false = (lambda a, b: (a * b).sin().exp()), (lambda a, b: (a + b).cos())
        return cond(x.sum() > 0, true, false, (x, y)) * x

    return checkpoint(inner, x, y, use_reentrant=False)


def lower_precision(cond: Cond, x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return cond(x.sum() > 0, LINEAR, lambda a: a @ LINEAR.weight, (x,)).float() * y


PROGRAMS = [
    modules, nested, in_a_row, saved_values_differ, no_gradient_in_one, one_operand_each,
    whole_numbers, transposed, sizes, constants, computed_again, lower_precision,
]  # fmt: skip


def observed(function: Callable[..., Any], x: Tensor, y: Tensor) -> tuple[Any, ...]:
    """Without gradients; with them, their values."""
    with torch.no_grad():
        first = function(x, y)
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    result = function(x, y)
    found = torch.autograd.grad(result.sum(), [x, y, LINEAR.weight], materialize_grads=True)
    return first, result.detach(), found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_an_if(program: Callable[..., Any], dynamic: bool) -> None:
    torch.manual_seed(0)
    compiled = dovetail.compile(
        lambda x, y: program(torch.cond, x, y), fullgraph=True, dynamic=dynamic
    )
    for rows in (4, 6) if dynamic else (4,):
        for sign in (1, -1):
            x, y = torch.rand(rows, 4) * sign, torch.rand(rows, 4)
            wanted = observed(lambda x, y: program(plainly, x, y), x, y)
            found = observed(compiled, x, y)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            assert [t.stride() for t in found[:2]] == [t.stride() for t in wanted[:2]]


def random(cond: Cond, x: Tensor) -> Any:
    def true(a: Tensor) -> Tensor:
        return F.dropout(a, 0.5) + torch.rand_like(a)

    return cond(x.sum() > 0, true, lambda a: a * torch.randn(3, 4), (x,)) * torch.rand(3, 4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
def test_random_numbers(backend: str) -> None:
    """The forward's are the backward's; and a branch that does not run draws none."""
    compiled = dovetail.compile(lambda x: random(torch.cond, x), backend=backend, fullgraph=True)
    for sign in (1, -1):
        x = (torch.rand(3, 4) * sign).requires_grad_()
        found = []
        for function in (lambda x: random(plainly, x), compiled):
            torch.manual_seed(5)
            result = function(x)
            found.append((result, torch.rand(1), *torch.autograd.grad(result.sum(), x)))
        torch.testing.assert_close(found[1], found[0])


def test_second_derivatives() -> None:
    compiled = dovetail.compile(lambda x, y: saved_values_differ(torch.cond, x, y), fullgraph=True)
    for sign in (1, -1):
        x, y = (torch.rand(3, 4) * sign).requires_grad_(), torch.rand(3, 4).requires_grad_()
        found = []
        for function in (lambda x, y: saved_values_differ(plainly, x, y), compiled):
            (g,) = torch.autograd.grad(function(x, y).sum(), x, create_graph=True)
            found.append(torch.autograd.grad((g**2).sum(), (x, y)))
        torch.testing.assert_close(found[1], found[0])


def test_a_plan_chooses_between_plans() -> None:
    backend = KeepingPlans()
    compiled = dovetail.compile(
        lambda x, y: constants(torch.cond, x, y), backend=backend, fullgraph=True
    )
    compiled(torch.rand(3, 4), torch.rand(3, 4))
    (graph,), (plan,) = backend.records.graphs, backend.plans
    (step,) = (step for step in plan.steps if isinstance(step, Choose))
    assert all(not branch.constants and not branch.kernels for branch in step.branches)
    assert graph.kernels == 4  # the predicate, one in each branch, the rest
    assert len(graph.launches) == 4


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [modules, nested, in_a_row, saved_values_differ, transposed])
def test_on_a_gpu(program: Callable[..., Any], dynamic: bool) -> None:
    """Predicates on the GPU, and no recording: the CPU has to wait for them."""
    torch.manual_seed(0)
    compiled = dovetail.compile(
        lambda x, y: program(torch.cond, x, y),
        fullgraph=True,
        dynamic=dynamic,
        mode="reduce-overhead",
    )
    LINEAR.cuda()
    try:
        for rows in (4, 64) if dynamic else (64,):
            for sign in (1, -1, 1):
                x, y = torch.rand(rows, 4).cuda() * sign, torch.rand(rows, 4).cuda()
                wanted = observed(lambda x, y: program(plainly, x, y), x, y)
                found = observed(compiled, x, y)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        summary = dovetail.report(compiled)
        assert summary.cudagraphs == 0
        assert any("torch.cond" in reason for reason in summary.cudagraph_skips)
    finally:
        LINEAR.cpu()
