"""Derivatives in captured code: a node of the graph, `.grad` as an effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dovetail_capture import explain, graph_break, optimize
from torch import Tensor


def graphs_of(function: Any, *args: Any) -> tuple[int, list[str]]:
    found = explain(function)(*args)
    return len(found.graphs), [b.reason for b in found.breaks]


def test_grad_is_a_node() -> None:
    def slope(x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad((x**3).sum(), x)
        return g * 2

    x = torch.arange(3.0, requires_grad=True)
    found = explain(slope)(x)
    assert not found.breaks and len(found.graphs) == 1
    names = [getattr(n.target, "__name__", "") for n in found.graphs[0].graph.nodes]
    assert names.count("gradients_of") == 1
    torch.testing.assert_close(found.result, 6 * x.detach() ** 2)
    assert not found.result.requires_grad and x.grad is None


def test_backward_accumulates() -> None:
    def step(x: Tensor) -> None:
        (x * x).sum().backward()

    call = optimize(step, lambda gm, inputs: gm.forward, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    call(x)
    first = x.grad
    assert first is not None and first.tolist() == [2, 2, 2]
    call(x)
    assert x.grad is first and first.tolist() == [4, 4, 4]


def test_the_gradient_that_was_set_is_read_again() -> None:
    def step(x: Tensor) -> Any:
        x.grad = None
        (x * x).sum().backward()
        first = x.grad
        x.grad = torch.zeros_like(x)
        return first, x.grad

    x = torch.ones(3, requires_grad=True)
    first, second = optimize(step, lambda gm, inputs: gm.forward, fullgraph=True)(x)
    assert first.tolist() == [2, 2, 2] and x.grad is second and second.tolist() == [0, 0, 0]


def test_a_gradient_after_a_break() -> None:
    def step(x: Tensor) -> Any:
        (x * x).sum().backward()
        graph_break()
        assert x.grad is not None
        return x.grad * 3

    x = torch.ones(3, requires_grad=True)
    found = optimize(step, lambda gm, inputs: gm.forward)(x)
    assert found.tolist() == [6, 6, 6] and x.grad is not None and x.grad.tolist() == [2, 2, 2]


def test_a_hook_is_captured_and_called_once() -> None:
    def step(x: Tensor) -> None:
        (x * x).sum().backward()

    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda g: g * 5)
    optimize(step, lambda gm, inputs: gm.forward, fullgraph=True)(x)
    assert x.grad is not None and x.grad.tolist() == [10, 10, 10]
    x.grad = None
    step(x)  # and is still there
    assert x.grad is not None and x.grad.tolist() == [10, 10, 10]


@pytest.mark.parametrize("given", [torch.zeros(2), torch.zeros(3, dtype=torch.float64)])
def test_a_gradient_that_does_not_fit_is_refused_by_torch(given: Tensor) -> None:
    def step(x: Tensor) -> None:
        x.grad = given

    with pytest.raises(RuntimeError):
        optimize(step, lambda gm, inputs: gm.forward)(torch.ones(3, requires_grad=True))


def test_what_is_past_the_inputs_breaks() -> None:
    def past(h: Tensor) -> None:
        (h * h).sum().backward()

    def to_the_input(h: Tensor) -> Tensor:
        return torch.autograd.grad((h * h).sum(), h)[0]

    _, reasons = graphs_of(past, torch.ones(2, requires_grad=True) * 1)
    assert any("past the inputs" in reason for reason in reasons)
    count, reasons = graphs_of(to_the_input, torch.ones(2, requires_grad=True) * 1)
    assert count == 1 and not reasons


def test_whether_a_transform_is_active() -> None:
    """The flag is told inside of captured transforms, and guarded for those around the call."""

    def scaled(x: Tensor) -> Tensor:
        return x * 2 if torch._C._are_functorch_transforms_active() else x * 3

    def within(x: Tensor) -> tuple[Tensor, ...]:
        slope = torch.func.grad(lambda row: scaled(row).sum())
        return scaled(x), torch.vmap(scaled)(x), torch.vmap(slope)(x), scaled(x + 1)

    x, other = torch.randn(3, 4), torch.randn(2)
    found = explain(within)(x)
    assert len(found.graphs) == 1 and not found.breaks
    torch.testing.assert_close(found.result, within(x), rtol=0, atol=0)

    call = optimize(scaled, lambda gm, inputs: gm.forward)
    for _ in range(2):
        assert torch.equal(call(other), other * 3)
        assert torch.equal(torch.vmap(lambda row: row + call(other)[0])(x), x + other[0] * 2)


def test_a_causal_mask_that_is_trained_has_the_gradient_of_eager() -> None:
    """None: PyTorch's encoder sees that the mask is causal, and does without it."""
    causal = torch.nn.Transformer.generate_square_subsequent_mask(4)
    for mask in (causal, torch.randn(4, 4)):
        layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
        encoder = torch.nn.TransformerEncoder(layer, 1)
        trained = torch.nn.Parameter(mask.clone())
        x, found = torch.randn(2, 4, 4), []
        for run in (encoder, optimize(encoder, lambda gm, _: gm.forward)):
            out = run(x, mask=trained)
            trained.grad = None
            out.sin().sum().backward()
            found.append((out, trained.grad))
        (wanted, gradient), (got, own) = found
        torch.testing.assert_close(got, wanted)
        assert (own is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(own, gradient)


def test_hooks_of_the_node_that_accumulates_are_the_engines() -> None:
    def step(x: Tensor) -> None:
        (x * x).sum().backward()

    def outcome(function: Any) -> tuple[list[str], list[float]]:
        x, events = torch.ones(3, requires_grad=True), []
        node = torch.autograd.graph.get_gradient_edge(x).node

        def before(gradients: Any) -> Any:
            events.append("before")
            return (gradients[0] * 5,)

        handles = [node.register_hook(lambda *grads: events.append("after"))]
        function(x)
        handles.append(node.register_prehook(before))
        function(x)
        assert x.grad is not None
        return events, x.grad.tolist()

    call = optimize(step, lambda gm, inputs: gm.forward)
    assert outcome(call) == outcome(step) == (["after", "before", "after"], [12.0] * 3)


@pytest.mark.parametrize("register", ["register_hook", "register_prehook"])
def test_hooks_of_the_node_that_accumulates_registered_between_calls(register: str) -> None:
    def step(x: Tensor) -> None:
        (x * x).sum().backward()

    def outcome(function: Any) -> list[str]:
        x, events = torch.ones(3, requires_grad=True), []
        function(x)
        node = torch.autograd.graph.get_gradient_edge(x).node
        for event in ("first", "second"):
            handle = getattr(node, register)(lambda *_, event=event: events.append(event))
            function(x)
            handle.remove()
            function(x)
        return events

    call = optimize(step, lambda gm, inputs: gm.forward)
    assert outcome(call) == outcome(step) == ["first", "second"]


def test_zeros_that_stand_for_no_gradient() -> None:
    def slopes(x: Tensor, a: Tensor) -> Any:
        first = torch.autograd.grad(x * a, x, create_graph=True)
        second = torch.autograd.grad(first, x, create_graph=True, materialize_grads=True)
        third = torch.autograd.grad(second, x, materialize_grads=True)
        return third[0] + second[0].detach(), second[0].requires_grad, third[0].requires_grad

    x, a = (torch.tensor(value, requires_grad=True) for value in (0.5, 2.0))
    found = explain(slopes)(x, a)
    assert not found.breaks and repr(found.result) == repr(slopes(x, a))

    def refused(x: Tensor, a: Tensor) -> Any:
        return torch.autograd.grad(x * a, x, allow_unused=False, materialize_grads=True)

    with pytest.raises(ValueError, match="allow_unused"):
        optimize(refused, lambda gm, inputs: gm.forward)(x, a)


def test_what_is_saved_is_unpacked_as_often_as_it_is_read() -> None:
    unpacked = []

    def unpack(saved: Tensor) -> Tensor:
        unpacked.append(1)
        return saved

    def read(x: Tensor) -> Any:
        node: Any = x.grad_fn
        return node._saved_result + node._saved_result

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = x.exp()
    optimize(read, lambda gm, inputs: gm.forward)(y)
    assert len(unpacked) == 2
