"""Nets over images on a CPU: convolutions of one channel a group, excitation, shortcuts, in
whichever layout they are given and for any number of images."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import dovetail

F = nn.functional


class Excitation(nn.Module):
    """A gate for every channel, made of the mean over the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 5, 1), nn.Conv2d(5, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.up(self.down(means).relu()))


class Net(nn.Module):
    """What the blocks of small networks for images are made of, with an odd number of channels."""

    def __init__(self) -> None:
        super().__init__()

        def normed(conv: nn.Conv2d) -> nn.Sequential:
            return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.Hardswish())

        self.stem = normed(nn.Conv2d(3, 21, 3, 2, 1, bias=False))
        self.wide = normed(nn.Conv2d(21, 33, 1, bias=False))
        self.deep = normed(nn.Conv2d(33, 33, 5, 1, 4, dilation=2, groups=33, bias=False))
        self.gate = Excitation(33)
        self.narrow = nn.Sequential(nn.Conv2d(33, 21, 1), nn.BatchNorm2d(21))
        self.last = nn.Linear(21, 7)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        block = self.narrow(self.gate(self.deep(self.wide(stem))))
        return self.last(F.max_pool2d(block + stem, 3, 2, 1).mean((2, 3)))


def images(number: int, layout: torch.memory_format) -> Tensor:
    drawn = torch.randn(number, 3, 47, 50, generator=torch.Generator().manual_seed(number))
    return drawn.to(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_inference(layout: torch.memory_format) -> None:
    """The second call's size makes a version for any number of images."""
    torch.manual_seed(0)
    net = Net().eval()
    compiled = dovetail.compile(net)
    with torch.no_grad():
        for number in (4, 6, 5, 1):
            x = images(number, layout)
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def test_inference_with_constant_weights() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    compiled = dovetail.compile(net, options={"constant_weights": True})
    with torch.no_grad():
        x = images(4, torch.contiguous_format)
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_training(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    compiled = dovetail.compile(other)
    for number in (4, 6):
        x = images(number, layout)
        wanted, got = net(x), compiled(x)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
        wanted.square().sum().backward()
        got.square().sum().backward()
        for a, b in zip(other.parameters(), net.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
            assert a.grad.stride() == b.grad.stride()
