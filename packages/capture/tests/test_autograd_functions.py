"""Functions of autograd: forward and backward are captured with all that they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend, same
from dovetail_capture import CaptureError, export, optimize
from torch.autograd.function import once_differentiable

WORLD: dict[str, Any] = {}


class Scaled(torch.autograd.Function):
    """Reads a table of the module in forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.scale = WORLD["scale"]
        return x * ctx.scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale


class ScaledLate(Scaled):
    """Reads the table in both directions."""

    @staticmethod
    def backward(ctx, grad):
        return grad * WORLD["scale"]


class Given(torch.autograd.Function):
    """Is given a function, of which backward takes the derivative."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = ctx.function(x)
        return None, torch.autograd.grad(y, x, grad)[0]


class Several(torch.autograd.Function):
    """Results of which one is no number to differentiate, an intermediate value, an attribute."""

    @staticmethod
    def forward(ctx, x, y, power=2):
        z = x**power
        found = (z * y).sort(dim=0)
        ctx.mark_non_differentiable(found.indices)
        ctx.save_for_backward(z, found.indices)
        ctx.power, ctx.x = power, x
        return found.values, found.indices, z + 1

    @staticmethod
    def backward(ctx, by_values, by_indices, by_z):
        z, indices = ctx.saved_tensors
        back = torch.zeros_like(z).scatter(0, indices, by_values)
        by_y = (back * z) if ctx.needs_input_grad[1] else None
        return (back + by_z) * ctx.power * ctx.x, by_y, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


class Itself(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


class Apart(torch.autograd.Function):
    """With its context set up apart, and no second derivative."""

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, a, b):
        x, y, total = ctx.saved_tensors
        return a * y + b * total, a * x + b


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        WORLD["forwards"] += 1
        return Scaled.apply(x) * WORLD["forwards"]

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class CountingBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        WORLD["backwards"] += 1
        return grad * WORLD["backwards"]


class Mixed(torch.autograd.Function):
    """As `custom_fwd` and `custom_bwd` make them."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


def reads_a_table(x, y):
    return Scaled.apply(x + 1) * y


def reads_a_table_late(x, y):
    return ScaledLate.apply(x + 1) * y


def closes_over_a_tensor(x, y):
    factor, scale = y * 2, WORLD["scale"]
    return Given.apply(lambda v: v.sin() * factor + scale, x)


def closes_over_functions(x, y):
    def inner(v, power=WORLD["power"]):
        return v**power

    def outer(v):
        return inner(v) + inner(v, power=1) * y.detach()

    return Given.apply(outer, x * 1) + Given.apply(torch.exp, y)


def several_results(x, y):
    values, indices, z = Several.apply(x, y, WORLD["power"])
    assert not indices.requires_grad
    return values * 2 + z * indices


def several_for_one(x, y):
    return Several.apply(x, y.detach())[2]


def in_place(x, y):
    z = x * 1
    w = InPlace.apply(z)
    return w * y + (w is z)


def itself(x, y):
    z = Itself.apply(x)
    return z * y + (z is x)


def apart(x, y):
    a, b = Apart.apply(x, y)
    return a * b


def changes_in_forward(x, y):
    z = Counting.apply(x)
    return z + y * WORLD["forwards"]


def changes_in_backward(x, y):
    return CountingBackwards.apply(x) * y


def changes_before(x, y):
    WORLD["scale"] = WORLD["scale"] + 1
    return Scaled.apply(x) * y


def mixed(x, y):
    a, b = x.outer(y), y.outer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Mixed.apply(a, b).float() * (a @ b)


def made_here(x, y):
    class Here(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            return v * WORLD["scale"]

        @staticmethod
        def backward(ctx, grad):
            return grad * 7

    return Here.apply(x) * y


def undifferentiated(x, y):
    with torch.no_grad():
        z = Several.apply(x, y)[0] + Given.apply(lambda v: v * 2, x)
    return z * x


class WithConstants(torch.autograd.Function):
    """Gives more than tensors."""

    @staticmethod
    def forward(ctx, x, y):
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(x, y)
        return None, x * y, "text", order, x + y, 7

    @staticmethod
    def backward(ctx, none, product, text, order, total, number):
        assert none is None and text is None and number is None
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total


def with_constants(x, y):
    none, product, text, order, total, number = WithConstants.apply(x, y)
    assert none is None and text == "text"
    return product.sin() * number + total[order]


def with_constants_in_part(x, y):
    return WithConstants.apply(x, y)[1].sin()


class ByGradMode(torch.autograd.Function):
    """Sets the mode of gradients in backward, in two ways, and asks for it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.exp())
        return x**3

    @staticmethod
    def backward(ctx, grad):
        x, other = ctx.saved_tensors
        with torch.no_grad():
            constant = other.sum() * grad
        with torch.enable_grad():
            grad = grad * 2
        if torch.is_grad_enabled():
            grad = grad * torch.tanh(other)
        return grad * x**2 + constant * x


def by_grad_mode(x, y):
    z = ByGradMode.apply(x)

    def hook(grad):
        with torch.no_grad():
            constant = grad * 3
        return grad * y + constant if torch.is_grad_enabled() else constant

    z.register_hook(hook)
    return z * y


class Defaulted(torch.autograd.Function):
    @staticmethod
    def forward(v: Any, power: Any = 3) -> Any:
        return v**power

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        v, ctx.power = inputs
        ctx.save_for_backward(v)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (v,) = ctx.saved_tensors
        return grad * ctx.power * v ** (ctx.power - 1), None


HELD = Defaulted.apply


def defaults(x, y):
    return Defaulted.apply(x) + Defaulted.apply(y, 2)


def held_as_values(x, y, passed=Scaled.apply):
    return HELD(x, 2) * passed(y)


PROGRAMS: list[tuple[Callable[..., Any], int | None]] = [
    (reads_a_table, 2), (reads_a_table_late, None), (closes_over_a_tensor, 2),
    (closes_over_functions, 2), (several_results, 2), (several_for_one, 1),
    (in_place, 1), (itself, 1), (apart, 1),
    (changes_in_forward, None), (changes_in_backward, None), (changes_before, None), (mixed, None),
    (made_here, None), (undifferentiated, 1), (defaults, 1), (held_as_values, 2),
    (by_grad_mode, 1), (with_constants, 1), (with_constants_in_part, 1),
]  # fmt: skip


def _observe(function: Callable[..., Any], second: bool) -> list[Any]:
    """Results, gradients, and gradients of those, in a world that changes."""
    WORLD.clear()
    WORLD.update(scale=2.0, power=2, forwards=0, backwards=0)
    seen: list[Any] = []
    for call in range(4):
        if call == 2:
            WORLD.update(scale=5.0, power=3)
        x = (torch.arange(3.0) + 1).requires_grad_()
        y = (torch.arange(3.0).flip(0) * 0.5 + 1 + call).requires_grad_()
        result = function(x, y)
        seen.append(result.detach())
        first = torch.autograd.grad(
            (result**2).sum(), (x, y), create_graph=second, allow_unused=True
        )
        seen += [None if part is None else part.detach() for part in first]
        if second:
            total = sum((part**2).sum() for part in first if part is not None)
            seen += torch.autograd.grad(total, (x, y), allow_unused=True)
        seen.append(dict(WORLD))
    return seen


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    ("program", "graphs"), PROGRAMS, ids=[program.__name__ for program, _ in PROGRAMS]
)
def test_programs(program: Any, graphs: int | None, second: bool) -> None:
    if second and program in (closes_over_a_tensor, closes_over_functions):
        with pytest.raises(RuntimeError) as plain:
            _observe(program, second)
        with pytest.raises(RuntimeError) as error:
            _observe(optimize(program, CountingBackend()), second)
        assert str(error.value) == str(plain.value)
        return
    expected = _observe(program, second)
    backend = CountingBackend()
    compiled = optimize(program, backend)
    found = _observe(compiled, second)
    log = compiled.capture_context.log
    assert same(found, expected), f"{found}\n{expected}\n{log.as_text()}"
    assert graphs is None or len(backend.graphs) == graphs, log.as_text()
    assert graphs is None or not log.breaks, log.as_text()


class Branching(torch.autograd.Function):
    """Is not captured whole: Python decides by the data."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.set_materialize_grads(False)
        ctx.big = bool(x.sum() > 2)
        ctx.save_for_backward(y if ctx.big else x, x)
        return y * (2 if ctx.big else 3)

    @staticmethod
    def backward(ctx, grad):
        kept, x = ctx.saved_tensors
        return grad * kept * 2 + x


def test_a_forward_that_breaks_saves_for_its_backward() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return Branching.apply(x * 2).sum()

    compiled = optimize(program, CountingBackend())
    for data in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        x = data.requires_grad_()
        grads = [torch.autograd.grad(function(x), x)[0] for function in (program, compiled)]
        assert torch.equal(*grads)
    reasons = [one.reason for one in compiled.capture_context.log.breaks]
    assert not any("assignment" in reason for reason in reasons), reasons


def test_what_a_backward_changes_breaks_the_graph() -> None:
    compiled = optimize(changes_in_backward, CountingBackend())
    _observe(compiled, False)
    assert "a backward that reads a dict" in compiled.capture_context.log.breaks[0].reason


def _scaled(grad: torch.Tensor, *, by: float = 3.0, extra: torch.Tensor | None = None) -> Any:
    return grad * by if extra is None else grad * extra


class CallsWithDefaults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return _scaled(grad)  # type: ignore[no-any-return]


def test_a_backward_calls_a_function_with_keyword_only_defaults() -> None:
    compiled = optimize(
        lambda x: CallsWithDefaults.apply(x).sum(), CountingBackend(), fullgraph=True
    )
    x = torch.randn(3, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(x), x)
    assert torch.equal(grad, torch.full((3,), 3.0))


def test_parameters_that_are_closed_over_are_those_of_the_moment() -> None:
    layer = torch.nn.Linear(3, 3)
    backend = CountingBackend()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return Given.apply(lambda v: layer(v).relu(), x).sum()

    compiled = optimize(loss, backend)
    for _ in range(3):
        x = torch.randn(2, 3, requires_grad=True)
        found, expected = compiled(x), loss(x)
        assert torch.equal(found, expected)
        for wanted, got in zip(
            *(torch.autograd.grad(v, x) for v in (expected, found)), strict=True
        ):
            assert torch.equal(wanted, got)
        with torch.no_grad():
            layer.weight.mul_(1.5)
    (found,) = {one.reason for one in compiled.capture_context.log.breaks}
    assert "a backward that reads layer (a Linear) of a function around it" in found
    x = torch.randn(2, 3)
    assert not compiled(x).requires_grad and torch.equal(compiled(x), loss(x))


class Keeps(torch.autograd.Function):
    """Keeps what it computes in a list that is not its own."""

    @staticmethod
    def forward(ctx, x, layer, kept):
        y = layer(x).sin()
        kept.append(y)
        ctx.save_for_backward(y)
        return y * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None, None


def test_what_a_forward_that_nothing_differentiates_keeps_is_given_by_the_graph() -> None:
    layer = torch.nn.Linear(3, 3)

    def run(x):
        kept: list[torch.Tensor] = []
        return Keeps.apply(x, layer, kept) + x, kept

    backend = CountingBackend()
    compiled = optimize(run, backend, fullgraph=True)
    for grad_mode in (False, True):
        with torch.set_grad_enabled(grad_mode):
            for _ in range(2):
                x = torch.randn(2, 3)
                found, expected = compiled(x), run(x)
                assert torch.equal(found[0], expected[0]) and len(found[1]) == 1
                assert torch.equal(found[1][0], expected[1][0])
                assert not found[0].requires_grad and not found[1][0].requires_grad
    assert len(backend.graphs) == 2
    x = torch.randn(2, 3, requires_grad=True)  # a node of autograd again, and a break
    broken = optimize(run, CountingBackend())
    found, expected = broken(x), run(x)
    assert torch.equal(found[1][0], expected[1][0])
    wanted, got = (torch.autograd.grad(r[0].sum(), x)[0] for r in (expected, found))
    assert torch.equal(wanted, got)


def test_an_exported_graph_does_not_lose_the_gradient_of_what_it_keeps() -> None:
    """No guard keeps it to calls that nothing differentiates: it is refused, not inlined."""
    layer = torch.nn.Linear(3, 3)

    def run(x):
        kept: list[torch.Tensor] = []
        return Keeps.apply(x, layer, kept) + x, kept

    for grad_mode in (False, True):
        with torch.set_grad_enabled(grad_mode):
            with pytest.raises(CaptureError, match="inside of a transformed function"):
                export(run, (torch.randn(2, 3),))


def test_sizes_that_change() -> None:
    backend = CountingBackend()

    def program(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[0] // 2
        return Given.apply(lambda v: v.view(half, 2).sum(1).sin() * half, x)

    compiled = optimize(program, backend, dynamic=True)
    for size in (4, 6, 8, 10):
        x = torch.randn(size, requires_grad=True)
        found, expected = compiled(x), program(x)
        assert torch.equal(found, expected)
        grads = [torch.autograd.grad(v.sum(), x)[0] for v in (found, expected)]
        assert torch.equal(*grads)
    assert len(backend.graphs) == 1, compiled.capture_context.log.as_text()


class Both(torch.autograd.Function):
    """Autograd refuses its backward, which it finds twice."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

    @staticmethod
    def vjp(ctx, grad):
        return grad * 2


def test_two_backwards_are_refused_as_by_autograd() -> None:
    x = torch.ones(3, requires_grad=True)
    compiled = optimize(lambda x: Both.apply(x).sum(), CountingBackend())
    assert compiled(x).item() == 6
    with pytest.raises(RuntimeError, match="both 'backward' and 'vjp'"):
        compiled(x).backward()
    assert compiled(x.detach()).item() == 6
