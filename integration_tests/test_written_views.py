"""Compiled functions that write to an input that is a view: gradients at it and at its base, and
hooks on both from before, are eager's, in whatever order such inputs come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def seen_by_autograd(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    before = x * 3
    x.mul_(w.sum())
    return before, x + 2


def under_no_grad(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    before = x * 3
    with torch.no_grad():
        x.add_(2)
    return before, x * 2 + w.sum()


def of_an_activation(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.nn.functional.relu(x, inplace=True) + w.sum(), w * 2


def _asked(run: Function, is_view: bool) -> list[Any]:
    leaf = torch.linspace(-1, 2, 12).view(3, 4).clone().requires_grad_()
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    base = leaf * 1.5 if is_view else leaf[0] * 1.5
    x = base[0] if is_view else base
    hooked: list[Tensor] = []
    for place in dict.fromkeys((x, base)):
        place.register_hook(lambda g: hooked.append(g.clone()))
    outputs = run(x, w)
    loss = sum((k + 1) * o.sum() for k, o in enumerate(outputs))
    asked = [x, base, leaf, w] if is_view else [leaf, w]
    found = torch.autograd.grad(loss, asked, allow_unused=True)  # type: ignore[arg-type]
    return [*outputs, *found, *hooked, x._version, base.detach()]


@pytest.mark.parametrize("function", [seen_by_autograd, under_no_grad, of_an_activation])
@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)])
def test_asks_at_views_are_eagers(function: Function, order: tuple[bool, ...]) -> None:
    compiled = dovetail.compile(function)
    for is_view in order:
        ours, eager = _asked(compiled, is_view), _asked(function, is_view)
        torch.testing.assert_close(ours, eager)
    told = dovetail.report(compiled).as_text()
    assert "a view that autograd takes anew of its base" in told


def test_a_part_of_a_cache_stays_in_the_graph() -> None:
    def attend(keys: Tensor, key: Tensor, at: Tensor) -> Tensor:
        with torch.no_grad():
            keys.index_copy_(0, at, key.detach()[None])
        return (keys * key).sum(-1).softmax(-1)

    compiled = dovetail.compile(attend, fullgraph=True)
    found = []
    for call in (attend, compiled):
        cache = torch.zeros(2, 5, 4)
        key = torch.linspace(1, 2, 4, requires_grad=True)
        for layer in range(2):
            for place in range(3):
                out = call(cache[layer], key * (place + 1), torch.tensor([place]))
        out.square().sum().backward()
        found.append([cache, out, key.grad])
    torch.testing.assert_close(found[1], found[0])
    report = dovetail.report(compiled)
    assert "uncompiled" not in report.as_text().replace("0 frames left uncompiled", "")


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("change", ["t_", "unsqueeze_", "squeeze_", "mul_"])
@pytest.mark.parametrize("graded", [True, False])
def test_a_detached_tensor_that_changes_beside_a_view(
    change: str, graded: bool, backend: str
) -> None:
    """It shares the input's version counter, by which autograd takes such an input anew."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.detach()
        arguments = {"unsqueeze_": (0,), "mul_": (2,)}
        getattr(y, change)(*arguments.get(change, ()))
        return y, x.view(x.shape)

    results = []
    for run in (dovetail.compile(fn, backend=backend), fn):
        leaf = torch.arange(12.0).reshape(3, 4).requires_grad_(graded)
        x = (leaf * 1)[1:]
        y, view = run(x)
        assert view._base is x._base
        if graded:
            view.square().sum().backward()
        results.append((y, view, leaf.grad, torch.tensor(x._version)))
    for ours, eager in zip(*results, strict=True):
        assert (ours is None and eager is None) or torch.equal(ours, eager)
        assert ours is None or ours.stride() == eager.stride()
