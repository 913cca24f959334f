"""Recurrent layers in training on a GPU: one graph around cuDNN's own operator, with eager's
numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.gpu

LAYERS: dict[str, Any] = {
    "LSTM": lambda: nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True),
    "projected LSTM": lambda: nn.LSTM(16, 32, 2, proj_size=8),
    "GRU": lambda: nn.GRU(16, 32, 2, bias=False, bidirectional=True),
    "RNN": lambda: nn.RNN(16, 32, nonlinearity="relu", batch_first=True),
}


def results(run: Any, net: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Outputs, last states and all gradients."""
    given = [x.detach().requires_grad_() for x in inputs]
    y, last = run(*given)
    parts = [y, *(last if isinstance(last, tuple) else (last,))]
    total = sum((p.double().sin().sum() for p in parts), torch.zeros((), device="cuda"))
    return [*parts, *torch.autograd.grad(total, [*given, *net.parameters()])]


def check(net: nn.Module, *inputs: Tensor, mode: str = "default", calls: int = 1) -> Any:
    compiled = dovetail.compile(lambda x, *state: net(x * 2, *state), fullgraph=True, mode=mode)
    for _ in range(calls):
        expected = results(lambda x, *state: net(x * 2, *state), net, *inputs)
        got = [value.clone() for value in results(compiled, net, *inputs)]
        bound = 1e-4 if inputs[0].dtype.itemsize > 2 else 2e-2
        for ours, theirs in zip(got, expected, strict=True):
            assert ours.dtype is theirs.dtype and ours.shape == theirs.shape
            torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)
    assert dovetail.report(compiled).graphs == 1
    return compiled


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_as_one_graph(name: str, mode: str) -> None:
    torch.manual_seed(0)
    net = LAYERS[name]().cuda()
    check(net, torch.randn(5, 7, 16, device="cuda"), mode=mode, calls=8)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        pytest.param(torch.float16, marks=pytest.mark.library_products),
        pytest.param(torch.bfloat16, marks=pytest.mark.library_products),
    ],
)
def test_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check(nn.LSTM(16, 32).to("cuda", dtype), torch.randn(5, 7, 16, device="cuda", dtype=dtype))


def test_a_second_backward() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(16, 32).cuda()
    compiled = dovetail.compile(net, fullgraph=True)
    total = compiled(torch.randn(5, 7, 16, device="cuda"))[0].square().sum()
    weights = list(net.parameters())
    first = torch.autograd.grad(total, weights, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(total, weights), strict=True):
        assert torch.equal(one, other)


def test_a_state_takes_its_gradient() -> None:
    torch.manual_seed(0)
    check(
        nn.GRU(16, 32).cuda(), *(torch.randn(n, 7, w, device="cuda") for n, w in ((5, 16), (1, 32)))
    )


def test_weights_that_do_not_lie_in_one_buffer() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(16, 32, 2).cuda()
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()
    check(net, torch.randn(5, 7, 16, device="cuda"))


@pytest.mark.library_products
def test_autocast() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(16, 32, 2, bidirectional=True).cuda()

    def run(x: Tensor) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return net(x * 2)

    x = torch.randn(5, 7, 16, device="cuda")
    ours, theirs = (results(call, net, x) for call in (dovetail.compile(run, fullgraph=True), run))
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.library_products
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_inference_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    net = LAYERS[name]().cuda().eval()

    @torch.no_grad()
    def run(x: Tensor) -> Any:
        with torch.autocast("cuda", torch.float16):
            return net(x * 2)

    compiled = dovetail.compile(run, fullgraph=True)
    x = torch.randn(5, 7, 16, device="cuda")
    (ours, last), (theirs, their_last) = compiled(x), run(x)
    pairs = [(ours, theirs), *zip(last, their_last, strict=True)]
    for one, other in pairs:
        assert one.dtype is other.dtype and one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.library_products
def test_sequences_of_any_length_under_autocast() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(16, 32, 2, batch_first=True).cuda()

    def run(x: Tensor) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return net(x * 2)

    compiled = dovetail.compile(run, fullgraph=True, dynamic=True)
    for batch, length in ((5, 7), (4, 9), (6, 3)):
        x = torch.randn(batch, length, 16, device="cuda")
        for one, other in zip(results(compiled, net, x), results(run, net, x), strict=True):
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    assert dovetail.report(compiled).graphs == 1


def test_dropout_between_layers() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(16, 32, 3, dropout=0.5).cuda()
    compiled = dovetail.compile(net, fullgraph=True)
    x = torch.randn(5, 7, 16, device="cuda")
    one, other = results(compiled, net, x), results(compiled, net, x)
    assert all(bool(value.isfinite().all()) for value in one)
    assert not torch.equal(one[0], other[0])
    means = [torch.stack([run(x)[0] for _ in range(400)]).mean(0) for run in (compiled, net)]
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0.05)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], net(x)[0])


def test_steps_of_an_optimizer() -> None:
    losses = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.LSTM(16, 32, 2)).cuda()
        head = nn.Linear(32, 1).cuda()

        def loss(x: Tensor, net: nn.Module = net, head: nn.Module = head) -> Tensor:
            return (head(net(x)[0]) - x.sum(-1, keepdim=True)).square().mean()

        run = dovetail.compile(loss, fullgraph=True) if compile_it else loss
        optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-2)
        given, found = torch.Generator("cuda").manual_seed(1), []
        for _ in range(20):
            value = run(torch.randn(5, 7, 16, device="cuda", generator=given))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(float(value))
        losses.append(found)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-3)
    assert losses[1][-1] < losses[1][0]


def test_without_training_the_forward_is_there_and_the_backward_is_eagers_error() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(16, 32).cuda().eval()
    x = torch.randn(5, 7, 16, device="cuda", requires_grad=True)
    for run in (net, dovetail.compile(net, fullgraph=True)):
        y, _ = run(x)
        torch.testing.assert_close(y, net(x)[0])
        with pytest.raises(RuntimeError, match="training mode"):
            y.sum().backward()


def test_other_lengths_take_one_graph_more() -> None:
    torch.manual_seed(0)
    net = nn.GRU(16, 32).cuda()
    compiled = dovetail.compile(net, fullgraph=True)
    for length in (5, 7, 9, 4):
        x = torch.randn(length, 3, 16, device="cuda")
        for one, other in zip(results(compiled, net, x), results(net, net, x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert dovetail.report(compiled).graphs == 2
