"""`torch.while_loop` by a tensor through the whole pipeline: as the loop that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_runtime.plan import While
from dovetail_runtime.plan_text import as_python
from kept_plans import KeepingPlans
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

import dovetail

Loop = Callable[..., Any]
LINEAR = nn.Linear(4, 4).requires_grad_(False)


def plainly(condition: Any, body: Any, carried: Any) -> Any:
    values = tuple(value.clone() for value in carried)
    while condition(*values):
        values = body(*values)
    return values


def newton(loop: Loop, x: Tensor, y: Tensor) -> Any:
    """Square roots, by as many steps as all of them take."""

    def condition(i: Tensor, z: Tensor) -> Tensor:
        return (i < 20) & ((z * z - x).abs().max() > 1e-4)

    i, z = loop(condition, lambda i, z: (i + 1, (z + x / z) / 2), (torch.tensor(0), x + 1))
    return i, z * y


def power_iteration(loop: Loop, x: Tensor, y: Tensor) -> Any:
    matrix = x.t() @ x + torch.eye(4)

    def body(v: Tensor, old: Tensor) -> Any:
        return F.normalize(matrix @ v, dim=0), v

    v, _ = loop(lambda v, old: (v - old).norm() > 1e-3, body, (torch.ones(4) / 2, torch.zeros(4)))
    return v @ matrix @ v + y


def modules(loop: Loop, x: Tensor, y: Tensor) -> Any:
    def body(i: Tensor, z: Tensor) -> Any:
        return i - 1, F.layer_norm(F.gelu(LINEAR(z)) + y, (4,))

    return loop(lambda i, z: i > 0, body, ((x.sum() > 0).long() * 3, x))


def sizes(loop: Loop, x: Tensor, y: Tensor) -> Any:
    n = x.shape[0]
    return loop(lambda a: a.sum() < 20 * n, lambda a: (a.cumsum(0) / n + y + n,), (x,))


def constants(loop: Loop, x: Tensor, y: Tensor) -> Any:
    limits = torch.tensor([9.0, 8.0, 7.0, 6.0])
    return loop(
        lambda a: (a[0] < limits).any(), lambda a: (a + torch.tensor([1.0, 2.0, 3.0, 4.0]),), (x,)
    )


def nested(loop: Loop, x: Tensor, y: Tensor) -> Any:
    def body(a: Tensor) -> Any:
        (b,) = loop(lambda b: b.sum() < a.sum() + 5, lambda b: (b + y + 1,), (a,))
        return (b.abs() + 1,)

    return loop(lambda a: a.sum() < 60, body, (x,))


def transposed(loop: Loop, x: Tensor, y: Tensor) -> Any:
    return loop(lambda a, b: a.sum() < 50, lambda a, b: (a + b.t().abs() + 1, b), (x.t(), y))


def after_a_write(loop: Loop, x: Tensor, y: Tensor) -> Any:
    x = x.clone()
    x[0] = 3
    (z,) = loop(lambda a: a.sum() < 50, lambda a: (a + x + 3,), (y,))
    x.mul_(2)
    return z + x


PROGRAMS = [
    newton, power_iteration, modules, sizes, constants, nested, transposed, after_a_write,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_a_loop(program: Callable[..., Any], dynamic: bool) -> None:
    torch.manual_seed(0)
    compiled = dovetail.compile(
        lambda x, y: program(while_loop, x, y), fullgraph=True, dynamic=dynamic
    )
    for rows in (4, 6) if dynamic else (4,):
        for shift in (0, 1, -0.9, 100):
            x, y = torch.rand(rows, 4) + shift, torch.rand(rows, 4)
            if program is newton:
                x = x.abs()
            found, wanted = compiled(x, y), program(plainly, x, y)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_random_numbers() -> None:
    """Drawn as often as the body runs."""

    def program(loop: Loop, x: Tensor) -> Any:
        (found,) = loop(lambda a: a.sum() < 20, lambda a: (a + torch.rand(3, 4),), (x,))
        return found, torch.rand(3)

    for backend in ("eager", "aot_eager", "dovetail"):
        compiled = dovetail.compile(lambda x: program(while_loop, x), backend=backend)
        for start in (0.0, 10.0):
            x = torch.full((3, 4), start)
            torch.manual_seed(5)
            wanted = program(plainly, x)
            torch.manual_seed(5)
            torch.testing.assert_close(compiled(x), wanted)


def test_inside_of_a_training_step() -> None:
    """No gradient goes through the loop: one graph, with a backward."""

    def program(loop: Loop, x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            (scale,) = loop(lambda a: a.sum() > 1, lambda a: (a / 2,), (x.abs(),))
        return (x * scale * y).sin().sum()

    compiled = dovetail.compile(lambda x, y: program(while_loop, x, y), fullgraph=True)
    x, y = torch.rand(3, 4, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    found = torch.autograd.grad(compiled(x, y), (x, y))
    torch.testing.assert_close(found, torch.autograd.grad(program(plainly, x, y), (x, y)))


def test_it_is_a_step_of_the_plan() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return newton(while_loop, x, y)

    backend = KeepingPlans()
    compiled = dovetail.compile(program, backend=backend, fullgraph=True)
    compiled(torch.rand(4, 4), torch.rand(4, 4))
    (plan,) = backend.plans
    (step,) = (step for step in plan.steps if isinstance(step, While))
    assert len(step.outputs) == 2
    assert "while " in as_python(plan)
