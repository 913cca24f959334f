"""Hooks on tensors that a compiled function makes: in one graph, with eager's gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

import dovetail

Call = Callable[..., Any]
SCALE = 3.0  # (never bound again)
CHANGED = 3.0
SEEN: list[Tensor] = []


def scaled(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y.sin()


def after_other_uses(x: Tensor) -> Any:
    y = x * 2
    z = y.cos()
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return y.sin() + z


def several_in_order(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: None)
    y.register_hook(lambda g: g * 3)
    return y.sin(), x * 3


def with_a_mask(x: Tensor) -> Any:
    y = x * 2
    mask = (x > 0).float()
    y.register_hook(lambda g: g * mask * y)
    return y.exp()


def removed(x: Tensor) -> Any:
    y = x * 2
    handle = y.register_hook(lambda g: g * 100)
    z = y.sin()
    handle.remove()
    return z


class Hooks:
    """Hooks that are methods."""

    factor = 2.0

    def plain(self, gradient: Tensor) -> Tensor:
        return gradient * 10

    def scaled(self, gradient: Tensor) -> Tensor:
        return gradient * self.factor


HOOKS = Hooks()


def a_method(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(HOOKS.plain)
    return y.sin()


def bound_in_a_loop(x: Tensor) -> Any:
    y = x * 2
    for factor in (2.0, 3.0):
        y.register_hook(lambda g, factor=factor: g * factor)
    return y.sin()


def around_writes(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 7)
    y.add_(1).mul_(x)
    y.register_hook(lambda g: g + 1)
    return y.sin()


def made_by_a_function(x: Tensor) -> Any:
    def make(factor: float) -> Call:
        return lambda g: torch.nan_to_num(g) * factor

    y = x * 2
    y.register_hook(make(3.0))
    return y.tanh()


def no_plain_function(x: Tensor) -> Any:
    y, z, m = x * 2, x * 3, x.detach()
    y.register_hook(functools.partial(torch.mul, other=m))
    z.register_hook(m.mul)
    return y.tanh() + z


def of_views(x: Tensor) -> Any:
    y = (x * 2).view(2, -1)
    v, w = y[0], y[1]
    y.register_hook(lambda g: g * 2)
    w.register_hook(lambda g: g + 1)
    first, _ = (x * 3).chunk(2)
    first.register_hook(lambda g: g * 5)
    return v.sin(), w.cos() + first, y.sum(0)


def a_view_of_it_is_returned(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y.sin(), y.view(-1)


def in_a_checkpoint(x: Tensor) -> Any:
    def block(t: Tensor) -> Tensor:
        y = t * 2
        y.register_hook(lambda g: g * 10)
        return y.sin().exp()

    return checkpoint(block, x.cos(), use_reentrant=False)


def differentiated_inside(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 10 + y)
    z = y.sin().sum()
    slope, own = torch.autograd.grad(z, (x, y), create_graph=True)
    return slope * own + x


def removed_after_a_backward(x: Tensor) -> Any:
    y = x * 2
    with y.register_hook(lambda g: g.detach() * 10):
        (slope,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    return slope + y.cos() * x


def of_complex_numbers(x: Tensor) -> Any:
    y = torch.complex(x, x * 2)
    y.register_hook(lambda g: g * (2 + 1j))
    return (y * y).abs()


def reads_a_constant(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * SCALE)
    return y.sin()


def with_defaults() -> Call:
    width = 2.0

    def hook(g: Tensor, factor: float = 3.0, offset: int = 2) -> Tensor:
        return g * factor + offset * width

    def reads_defaults(x: Tensor) -> Any:
        y = x * 2
        y.register_hook(hook)
        y.register_hook(functools.partial(hook, factor=0.5))
        return y.sin()

    return reads_defaults


def retains_what_nobody_has(x: Tensor) -> Any:
    y = x * 2
    z = y.sin()
    y.retain_grad()
    return z + y


IN_ONE_GRAPH = [
    retains_what_nobody_has,
    reads_a_constant, with_defaults(),
    scaled, after_other_uses, a_method, several_in_order, with_a_mask, removed, bound_in_a_loop,
    around_writes, made_by_a_function, no_plain_function, of_views, a_view_of_it_is_returned,
    in_a_checkpoint, differentiated_inside, removed_after_a_backward, of_complex_numbers,
]  # fmt: skip


def gradients(call: Call) -> list[Any]:
    """Of each result by itself, and of all together."""
    found: list[Any] = []
    x = torch.linspace(-1, 1, 6).requires_grad_()
    results = call(x)
    results = results if isinstance(results, tuple) else (results,)
    for result in results:
        found += torch.autograd.grad(result.square().sum(), x, retain_graph=True)
    sum(r.sin().sum() for r in results).backward()
    return [*found, x.grad, *(r.detach() for r in results)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("method", IN_ONE_GRAPH)
def test_hooks_are_part_of_the_graph(method: Call, dynamic: bool | None) -> None:
    call = dovetail.compile(method, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for a, b in zip(gradients(call), gradients(method), strict=True):
        torch.testing.assert_close(a, b)


def test_hooks_reach_kernels() -> None:
    call = dovetail.compile(with_a_mask, fullgraph=True)
    for a, b in zip(gradients(call), gradients(with_a_mask), strict=True):
        torch.testing.assert_close(a, b)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.factor = nn.Linear(6, 8), nn.Linear(8, 2), 0.5

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        factor = self.factor
        if hidden.requires_grad:
            hidden.register_hook(lambda g: F.normalize(g, dim=0) * factor)
        return self.second(hidden)


def test_a_hook_in_a_module() -> None:
    torch.manual_seed(0)
    net = Net()
    call = dovetail.compile(net, fullgraph=True, backend="aot_eager")
    found = []
    for run in (call, net):
        net.zero_grad()
        run(torch.ones(3, 6)).square().sum().backward()
        found.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    torch.testing.assert_close(found[0], found[1])


# --- hooks on inputs: one graph, after which they are registered ----------------------------------

LAYER = nn.Linear(6, 6)


def of_an_input(x: Tensor) -> Any:
    x.register_hook(lambda g: g * 10)
    return x.sin()


def that_is_used_before(x: Tensor) -> Any:
    y = x.sin()
    x.register_hook(lambda g: g * 10 + y)
    x.register_hook(lambda g: SEEN.append(g))
    x.register_hook(lambda g: g * CHANGED)
    return y * x


def of_a_parameter(x: Tensor) -> Any:
    LAYER.weight.register_hook(lambda g: g.clamp_(-0.1, 0.1))
    LAYER.bias.register_post_accumulate_grad_hook(lambda p: SEEN.append(p.grad.clone()))
    return LAYER(x)


def bound_in_a_loop_late(x: Tensor) -> Any:
    for factor in (2.0, 3.0):
        x.register_hook(lambda g: g * factor)  # noqa: B023
    return x.cos()


def removed_from_an_input(x: Tensor) -> Any:
    kept = x.register_hook(lambda g: g * 3)
    handle = x.register_hook(lambda g: g * 100)
    y = x.exp()
    handle.remove()
    del kept
    return y


def in_a_function(x: Tensor) -> Any:
    def note(name: float) -> Call:
        return lambda g: SEEN.append((name, g))

    def block(t: Tensor, name: float) -> Tensor:
        if t.requires_grad:
            t.register_hook(note(name))
        return t.sin()

    return block(x, 1.0) + block(x, 2.0)


def keeps_its_handle(x: Tensor) -> Any:
    SEEN.append(x.register_hook(lambda g: g * 10))
    return x.sin()


def keeps_the_later_first(x: Tensor) -> Any:
    first = x.register_hook(lambda g: g * 10)
    SEEN.append([x.register_hook(lambda g: g + 1), first])
    return x.sin()


ON_INPUTS = [
    of_an_input, that_is_used_before, of_a_parameter, bound_in_a_loop_late, removed_from_an_input,
    in_a_function, keeps_its_handle, keeps_the_later_first,
]  # fmt: skip


def written_to_afterwards(x: Tensor) -> Any:
    x.register_hook(lambda g: g * 10)
    x.mul_(2)
    return x.sin()


def differentiated_behind_it(x: Tensor) -> Any:
    x.register_hook(lambda g: g * 10)
    (slope,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    return slope * x


def keeps_its_handle_itself(x: Tensor) -> Any:
    handles: list[Any] = []

    def once(g: Tensor) -> Tensor:
        handles[0].remove()
        return g * 10

    handles.append(x.register_hook(once))
    return x.sin()


def seen_by_hooks(call: Call, history: bool) -> list[Any]:
    LAYER.zero_grad()
    SEEN.clear()
    torch.manual_seed(0)
    nn.init.normal_(LAYER.weight)
    LAYER.weight._backward_hooks = LAYER.bias._post_accumulate_grad_hooks = None  # type: ignore[attr-defined]
    leaf = torch.linspace(-1, 1, 6).requires_grad_()
    found: list[Any] = []
    for _ in range(2):
        x = leaf * 2 if history else leaf
        result = call(x)
        change(4.0)
        result.square().sum().backward()
        change(3.0)
        found += [result.detach(), leaf.grad.clone()]  # type: ignore[union-attr]
    seen = [one for one in SEEN if not isinstance(one, (RemovableHandle, list))]
    return [*found, *seen, *(p.grad for p in LAYER.parameters())]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("method", ON_INPUTS)
def test_hooks_on_inputs(method: Call, dynamic: bool | None, history: bool) -> None:
    call = dovetail.compile(method, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    expected = seen_by_hooks(method, history)
    torch.testing.assert_close(seen_by_hooks(call, history), expected)


@pytest.mark.parametrize(
    ("method", "reason", "history"),
    [
        (written_to_afterwards, "a tensor of a hook that is written to", True),
        (differentiated_behind_it, "behind a hook on an input", True),
        (differentiated_behind_it, "behind a hook on an input", False),
        (keeps_its_handle_itself, "RemovableHandle", False),
    ],
)
def test_hooks_on_inputs_that_break_the_graph(method: Call, reason: str, history: bool) -> None:
    call = dovetail.compile(method, backend="aot_eager")
    expected = seen_by_hooks(method, history)
    torch.testing.assert_close(seen_by_hooks(call, history), expected)
    assert any(reason in b.reason for b in dovetail.report(call).breaks)


def test_a_handle_that_is_returned_removes_the_hook() -> None:
    def function(x: Tensor) -> Any:
        handle = x.register_hook(lambda g: g * 10)
        other = x.register_hook(lambda g: g + 1)
        return x.sin(), [other, handle], handle

    results = []
    for call in (function, dovetail.compile(function, fullgraph=True, backend="aot_eager")):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        result, handles, handle = call(x)
        assert type(handle) is RemovableHandle and handles[1] is handle
        result.sum().backward(retain_graph=True)
        for held in (handle, handles[0]):
            held.remove()
            result.sum().backward(retain_graph=True)
            results.append(x.grad.clone())  # type: ignore[union-attr]
    torch.testing.assert_close(results[:2], results[2:])


# --- what breaks the graph ------------------------------------------------------------------------


def reads_a_global(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * CHANGED)
    return y.sin()


def change(value: float) -> None:
    global CHANGED
    CHANGED = value


def a_method_that_reads(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(HOOKS.scaled)
    HOOKS.factor = float(x.dim() + 4)
    return y.sin()


def appends(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(SEEN.append)
    return y.sin()


def bound_late(x: Tensor) -> Any:
    y = x * 2
    for factor in (2.0, 3.0):
        y.register_hook(lambda g: g * factor)  # noqa: B023
    return y.sin()


def is_returned(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y, y.sin()


def is_returned_after_uses(x: Tensor) -> Any:
    y = x * 2
    z = y.sin()
    y.register_hook(lambda g: g * 10)
    return y, z


def gives_its_handle(x: Tensor) -> Any:
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    SEEN.append(handle)
    return y.sin()


def writes(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g.mul_(2))
    return y.sin()


def takes_what_is_returned(x: Tensor) -> Any:
    y, m = x * 2, x.detach() * 3
    y.register_hook(lambda g: g * m)
    return y.sin(), m.view(2, -1)


def keeps_its_gradient(x: Tensor) -> Any:
    y = x * 2
    z = y.sin()
    y.retain_grad()
    SEEN.append(y)
    return z + y


def retains_before_uses(x: Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    SEEN.append(y)
    return y.sin() + y


def retains_for_its_own(x: Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    y.sin().sum().backward()
    return x * y.grad


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (retains_before_uses, "a tensor with retain_grad() is alive"),
        (retains_for_its_own, "a backward behind retain_grad()"),
        (reads_a_global, "reads CHANGED (a float), which may change"),
        (a_method_that_reads, "a hook that reads an object"),
        (appends, "a hook"),
        (bound_late, "variable that a hook closes over"),
        (is_returned, "a tensor with a hook"),
        (is_returned_after_uses, "needed outside of the graph"),
        (gives_its_handle, "RemovableHandle"),
        (writes, "a hook that writes to tensors"),
        (takes_what_is_returned, "closes over, and which may be written to"),
        (keeps_its_gradient, "retain_grad() of a tensor that is no leaf"),
    ],
)
def test_other_hooks_break_the_graph(method: Call, reason: str) -> None:
    call = dovetail.compile(method, backend="aot_eager")
    found = []
    for run in (call, method):
        SEEN.clear()
        x = torch.linspace(-1, 1, 6).requires_grad_()
        results = run(x)
        results = results if isinstance(results, tuple) else (results,)
        if method is takes_what_is_returned:
            results[1].add_(1)
            results = results[:1]
        sum(r.square().sum() for r in results).backward()
        kept = [s.grad if s.requires_grad else s for s in SEEN if isinstance(s, Tensor)]
        found.append([x.grad, *kept])
    torch.testing.assert_close(found[0], found[1])
    report = dovetail.report(call)
    assert any(reason in b.reason for b in report.breaks), report.breaks


def test_a_second_backward_through_what_is_not_linear_is_refused() -> None:
    """Its two parts would come to the hook one by one."""
    x = torch.linspace(-1, 1, 6).requires_grad_()
    for method, refused in ((scaled, False), (after_other_uses, True)):
        call = dovetail.compile(method, backend="aot_eager")
        found = []
        for run in (method, call):
            result = run(x)
            (slope,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
            found.append([slope])
            if refused and run is call:
                with pytest.raises(RuntimeError, match="not linear in the gradient"):
                    slope.sum().backward()
            else:
                total = slope.square().sum() + result.sum()
                found[-1] += torch.autograd.grad(total, x)
        torch.testing.assert_close(found[1], found[0][: len(found[1])])
