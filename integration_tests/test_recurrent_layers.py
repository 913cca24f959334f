"""Recurrent layers of changing batches and lengths: one graph for all, with eager's gradients."""

from __future__ import annotations

from typing import Any

import dovetail_capture as capture
import pytest
import torch
from torch import Tensor, nn

import dovetail

SIZES = [(2, 3), (4, 5), (3, 8), (7, 4), (5, 6)]  # batches and lengths


def _gradients(run: Any, net: nn.Module, x: Tensor, *state: Any) -> list[Tensor]:
    x = x.clone().requires_grad_()
    results, last = run(x, *state)
    parts = [results, *(last if isinstance(last, tuple) else (last,))]
    weights = [torch.linspace(-1, 1, p.numel(), dtype=p.dtype).view(p.shape) for p in parts]
    total = sum(((p * w).sum() for p, w in zip(parts, weights, strict=True)), torch.zeros(()))
    return [*parts, *torch.autograd.grad(total, [x, *net.parameters()])]


@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (lambda: nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), "aot_eager"),
        (lambda: nn.LSTM(4, 5, proj_size=3), "dovetail"),
        (lambda: nn.GRU(4, 5, 2, bidirectional=True), "aot_eager"),
        (lambda: nn.GRU(4, 5, bias=False, batch_first=True), "dovetail"),
        (lambda: nn.RNN(4, 5, nonlinearity="relu", batch_first=True), "aot_eager"),
    ],
)
def test_layers_take_one_graph_for_all_sizes(make: Any, backend: str) -> None:
    torch.manual_seed(0)
    net = make().double()
    compiled = dovetail.compile(net, backend=backend, fullgraph=True)
    for batch, length in SIZES:
        sizes = (batch, length) if net.batch_first else (length, batch)
        x = torch.randn(*sizes, 4, dtype=torch.float64)
        expected = _gradients(net, net, x)
        torch.testing.assert_close(_gradients(compiled, net, x), expected)
    assert len(capture.recompiles(compiled)) == 1
    assert not dovetail.report(compiled).per_size_compiles


def test_float32_layers_of_onednn_without_gradients() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(4, 5, 2, batch_first=True)
    compiled = dovetail.compile(net, fullgraph=True)
    with torch.no_grad():
        for batch, length in SIZES[:3]:
            x = torch.randn(batch, length, 4)
            torch.testing.assert_close(compiled(x), net(x))
    assert len(capture.recompiles(compiled)) == 1


def test_state_and_dropout_between_layers() -> None:
    torch.manual_seed(0)
    net = nn.GRU(4, 5, 3, dropout=0.5)
    compiled = dovetail.compile(net, backend="aot_eager", fullgraph=True)
    for batch, length in SIZES:
        x, state = torch.randn(length, batch, 4), torch.randn(3, batch, 5)
        torch.manual_seed(1)
        expected = _gradients(net, net, x, state)
        torch.manual_seed(1)
        torch.testing.assert_close(_gradients(compiled, net, x, state), expected)
    assert len(capture.recompiles(compiled)) == 1


def test_packed_sequences_take_one_version_a_part() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(4, 5, batch_first=True, bidirectional=True)

    def last(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        rnn = nn.utils.rnn
        packed = rnn.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        results, (hidden, _) = net(packed)
        padded, _ = rnn.pad_packed_sequence(results, batch_first=True)
        return padded.tanh(), hidden.sin()

    compiled = dovetail.compile(last, backend="aot_eager")
    for batch, length in SIZES:
        x = torch.randn(batch, length, 4)
        lengths = torch.randint(1, length + 1, (batch,))
        lengths[0] = length
        expected = _gradients(last, net, x, lengths)
        torch.testing.assert_close(_gradients(compiled, net, x, lengths), expected)
    reasons = capture.recompiles(compiled)
    assert len(reasons) <= 3, reasons  # what stands before, between and behind what reads lengths


def test_the_gradient_of_a_gradient() -> None:
    torch.manual_seed(0)
    net = nn.GRU(4, 5)
    compiled = dovetail.compile(net, backend="aot_eager", dynamic=True)
    x = torch.randn(3, 2, 4, requires_grad=True)

    def slope(run: Any) -> Tensor:
        (first,) = torch.autograd.grad(run(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(slope(compiled), slope(net))


def test_whether_layers_may_be_cudnns_is_guarded() -> None:
    net = nn.GRU(4, 5)
    compiled = dovetail.compile(net, backend="eager", fullgraph=True)
    compiled(torch.randn(3, 2, 4))
    assert "torch's cudnn is" in capture.explain_guards(compiled)
