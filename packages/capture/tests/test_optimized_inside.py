"""Optimized functions, methods and modules called, and asked about, in captured code."""

from __future__ import annotations

import sys
import types

import dovetail_capture as dc
import pytest
import torch
from torch import nn

X = torch.randn(2, 2)


def optimize(target):
    return dc.optimize(target, lambda gm, inputs: gm.forward)


def check(function):
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    assert torch.equal(dc.optimize(function, backend, fullgraph=True)(X), function(X))
    assert len(graphs) == 1


class Layer:
    factor = 3

    @optimize
    def __call__(self, x):
        return x * self.factor

    @optimize
    def __getitem__(self, x):
        return x - self.factor

    @optimize
    def method(self, x, y=2):
        return x + self.factor + y

    @classmethod
    @optimize
    def of_class(cls, x):
        return x * cls.factor

    @staticmethod
    @optimize
    def static(x):
        return x - 1

    @property
    @optimize
    def value(self):
        return torch.ones(2) * self.factor


@optimize
class Decorated(nn.Module):
    def forward(self, x):
        return x * 3


LAYER, DECORATED, LINEAR = Layer(), Decorated(), optimize(nn.Linear(2, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: LAYER(x) + 1,
        lambda x: LAYER[x] + 1,
        lambda x: LAYER.method(x, y=3) + Layer.method(LAYER, x),
        lambda x: LAYER.of_class(x) + Layer.of_class(x),
        lambda x: LAYER.static(x) + Layer.static(x),
        lambda x: LAYER.value + x,
        lambda x: Layer().method(x),
        lambda x: DECORATED(x) + 1,
        lambda x: LINEAR(x) + LINEAR.forward(x),
        lambda x: x + len(LINEAR.state_dict()) + len(list(LINEAR.named_parameters())),
        lambda x: LINEAR.weight + x + isinstance(LINEAR, nn.Module) + LINEAR.training,
    ],
)
def test_methods_and_modules(function):
    check(function)


def test_class_that_an_object_says_it_has(monkeypatch):
    class Proxy:
        def __init__(self, value):
            self.value = value

        @property
        def __class__(self):
            return type(self.value)

    proxy = Proxy(3)
    check(lambda x: x + isinstance(proxy, int) + 2 * isinstance(proxy, (str, Proxy)))
    check(lambda x: x + isinstance(Proxy("a"), str) + 2 * isinstance(Proxy(1), str))
    theirs = type("OptimizedModule", (nn.Module,), {})
    module = types.SimpleNamespace(OptimizedModule=theirs)
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", module)
    assert isinstance(LINEAR, theirs)
    check(lambda x: x + isinstance(LINEAR, theirs) + 2 * isinstance(LINEAR, nn.Sequential))
    check(lambda x: x + (LINEAR.__class__ is theirs) + 2 * (type(LINEAR) is theirs))
