"""Leaves that a compiled function makes: parameters, modules, perturbations that are learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import dovetail

Program = Callable[[Tensor], Any]

torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a class changes the class


def parameter(x: Tensor) -> Any:
    made = nn.Parameter(x.detach().clone())
    (made * x).sum().backward()
    told = isinstance(made, nn.Parameter), type(made).__name__, made.is_leaf, made.grad_fn is None
    return made.grad, told


def parameter_over_memory(x: Tensor) -> Any:
    data = x.detach() * 2
    made = nn.Parameter(data)
    with torch.no_grad():
        made.add_(1).mul_(2)
    return data, x * 3


def parameter_that_leaves(x: Tensor) -> Any:
    return nn.Parameter(x.detach() + 1), x * 2


def parameter_without_gradient(x: Tensor) -> Any:
    made = nn.Parameter(torch.arange(3), requires_grad=False)
    return made, made * x


def module(x: Tensor) -> Any:
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layers(x).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in layers.parameters()], torch.rand(2)


def module_of_the_moment(x: Tensor) -> Any:
    return nn.Linear(3, 4)(x)


def attack(x: Tensor) -> Any:
    """As projected gradient descent makes adversarial examples."""
    step = torch.zeros_like(x, requires_grad=True)
    same = step
    for _ in range(3):
        ((x + step) ** 3).sum().backward()
        step.data = (step + 0.1 * step.grad.sign()).clamp(-0.2, 0.2)  # type: ignore[union-attr]
        step.grad.zero_()  # type: ignore[union-attr]
    return step.detach(), same is step, step.is_leaf


def data_before_use(x: Tensor) -> Any:
    step = torch.zeros(3).requires_grad_()
    step.data.add_(2)
    step.data = step.data * 3
    (step * step * x).sum().backward()
    return step.grad


def without_its_gradient(x: Tensor) -> Any:
    (x * 2).sum().backward()
    del x.grad
    (x * 3).sum().backward()
    return x.grad


def parts_of_complex_numbers(x: Tensor) -> Any:
    made = torch.complex(x, x + 1).clone()
    made.imag = x * 3
    made.real = made.imag + 1
    return made.real, made.imag


def parameter_that_alone_needs_gradients(x: Tensor) -> Any:
    return nn.Parameter(torch.ones(3)) * x.detach()


def leaves_that_leave(x: Tensor) -> Any:
    loss = (x.detach() * 2).sum()
    loss.requires_grad_()
    filled = torch.empty(3, requires_grad=True)
    with torch.no_grad():
        filled.copy_(x).mul_(2)
    replaced = torch.zeros(3, requires_grad=True)
    replaced.data = x.detach() * 3
    row = x.detach()[1:].requires_grad_()
    return loss, [filled, filled], replaced, row, filled.detach(), x * 2, loss.is_leaf


ONE_GRAPH = [
    parameter, parameter_over_memory, parameter_that_leaves, parameter_without_gradient, module,
    module_of_the_moment, attack, data_before_use, without_its_gradient, parts_of_complex_numbers,
    parameter_that_alone_needs_gradients, leaves_that_leave,
]  # fmt: skip


def parameter_with_its_use(x: Tensor) -> Any:
    made = nn.Parameter(torch.ones(3))
    return made, made * x


def leaf_with_its_use(x: Tensor) -> Any:
    made = x.detach().requires_grad_()
    return made, (made * 2).sum()


def data_replaced_before_the_backward(x: Tensor) -> Any:
    step = torch.zeros(3, requires_grad=True)
    loss = (x * step).sum()
    step.data = torch.ones(3)
    loss.backward()
    return step.grad, x.grad


def data_replaced_before_a_derivative(x: Tensor) -> Any:
    step = torch.zeros(3, requires_grad=True)
    loss = (x * step).sum()
    step.data = torch.ones(3)
    return torch.autograd.grad(loss, step, allow_unused=True)


def hooks_of_a_tensor_with_a_hook(x: Tensor) -> Any:
    x.register_hook(lambda gradient: gradient * 2)
    return len(x._backward_hooks), x * 2  # type: ignore[arg-type]


BROKEN = [
    parameter_with_its_use, data_replaced_before_the_backward, data_replaced_before_a_derivative,
    hooks_of_a_tensor_with_a_hook, leaf_with_its_use,
]  # fmt: skip


def outcome(call: Program) -> list[Any]:
    torch.manual_seed(0)
    found: list[Any] = []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        result = call(x)
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        found += [type(t) for t in tensors] + [t.requires_grad for t in tensors] + [result]
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.sum().backward(retain_graph=True)
        found += [x.grad, *(t.grad for t in tensors if t.is_leaf)]
    return pytree.tree_leaves(found)


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("program", [*ONE_GRAPH, *BROKEN])
def test_as_eager(program: Program, backend: str) -> None:
    call = dovetail.compile(program, backend=backend)
    for ours, wanted in zip(outcome(call), outcome(program), strict=True):
        if isinstance(wanted, Tensor):
            torch.testing.assert_close(ours.detach(), wanted.detach(), rtol=1e-5, atol=1e-5)
        else:
            assert ours == wanted
    report = dovetail.report(call)
    assert bool(report.breaks or report.plain_frames) == (program in BROKEN), report.as_text()
