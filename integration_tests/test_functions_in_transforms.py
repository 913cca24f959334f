"""`torch.autograd.Function`s inside of `torch.func`'s transforms, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, grad_and_value, jacrev, jvp, vjp, vmap

import dovetail


class Cube(torch.autograd.Function):
    """Of an input, and a number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x**3 * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.factor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * 5 * x * x * ctx.factor, None


class Exp(torch.autograd.Function):
    """Saves its result."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradient * result * 2


class Rounded(torch.autograd.Function):
    """Saves nothing; its gradient is not that of what it computes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Both(torch.autograd.Function):
    """Two results, one without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x > y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        x, y = ctx.saved_tensors
        first = gradient * y * 5 if ctx.needs_input_grad[0] else None
        return first, gradient * x * 5 if ctx.needs_input_grad[1] else None


class OwnRule(torch.autograd.Function):
    """A rule of its own for `vmap`."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 2

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return OwnRule.apply(x), in_dims[0]


Program = Callable[[Tensor, Tensor], Any]
IN_ONE_GRAPH: dict[str, Program] = {
    "grad": lambda x, y: grad(lambda t: Cube.apply(t, 2.0).sum())(x),
    "grad twice": lambda x, y: grad(
        lambda t: grad(lambda u: Cube.apply(u, 2.0).sum())(t).sin().sum()
    )(x),
    "vmap": lambda x, y: vmap(lambda t: Cube.apply(t, 2.0).sin())(x),
    "vmap of grad": lambda x, y: vmap(grad(lambda t, u: (Exp.apply(t) * u).sum()))(x, y),
    "grad of vmap": lambda x, y: grad(lambda t: vmap(lambda a: Exp.apply(a).sum())(t).sum())(x),
    "vjp": lambda x, y: vjp(lambda t: Exp.apply(t) * y, x)[1](y)[0],
    "jacrev": lambda x, y: jacrev(lambda t: Cube.apply(t, 3.0))(x[0]),
    "grad_and_value": lambda x, y: grad_and_value(lambda t: Exp.apply(t).sum())(x),
    "straight through": lambda x, y: vmap(grad(lambda t: (Rounded.apply(t * 3) ** 2).sum()))(x),
    "two results": lambda x, y: vmap(
        grad(lambda t, u: (Both.apply(t, u)[0] * Both.apply(t, u)[1]).sum(), argnums=(0, 1))
    )(x, y),
    "of what is around": lambda x, y: grad(
        lambda t: (Exp.apply(t * y) + Cube.apply(y, 2.0)).sum()
    )(x),
    "per example": lambda x, y: vmap(
        grad(lambda w, t: Exp.apply(t @ w).sum()), in_dims=(None, 0)
    )(y[0], x),
    "its own rule, not needed": lambda x, y: grad(lambda t: OwnRule.apply(t).sum())(x),
}  # fmt: skip


def found(call: Program) -> list[Any]:
    """Results, and their gradients."""
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    y = torch.linspace(0.5, 2, 6).view(2, 3).requires_grad_()
    results = call(x, y)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum(r.square().sum() for r in results)
    if loss.requires_grad:
        loss.backward()
    return [*(r.detach() for r in results), x.grad, y.grad]


@pytest.mark.parametrize("name", IN_ONE_GRAPH)
def test_functions_in_transforms(name: str) -> None:
    program = IN_ONE_GRAPH[name]
    call = dovetail.compile(program, fullgraph=True, backend="aot_eager")
    for a, b in zip(found(call), found(program), strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b)


BREAKS: dict[str, tuple[Program, str]] = {
    "its own rule": (lambda x, y: vmap(OwnRule.apply)(x), "vmap of its own"),
    "forward": (
        lambda x, y: jvp(lambda t: vmap(Rounded.apply)(t), (x,), (y,))[0], "taken forward"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_the_graph(name: str) -> None:
    program, reason = BREAKS[name]
    call = dovetail.compile(program, backend="aot_eager")
    outcomes = []
    for each in (call, program):
        try:
            outcomes.append(str(found(each)))
        except NotImplementedError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert any(reason in b.reason for b in dovetail.report(call).breaks)
