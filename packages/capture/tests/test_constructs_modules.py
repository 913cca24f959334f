"""Constructs: nn.Module and its features.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import random
import types
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from construct_cases import Case, Table, run_case
from torch import nn
from torch.utils import checkpoint

construct = Table()


def module(cls, *args):
    """Arguments: a module made from a fixed seed, and a tensor."""

    def make():
        torch.manual_seed(3)
        return cls(*args), torch.arange(6.0).reshape(2, 3)

    return make


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.table = nn.ModuleDict({"act": nn.ReLU(), "out": nn.Linear(3, 2)})
        self.seq = nn.Sequential(OrderedDict(a=nn.LayerNorm(3), b=nn.GELU()))
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros(()))
        self.extras = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
        self.named = nn.ParameterDict({"g": nn.Parameter(torch.full((3,), 2.0))})
        self.calls = 0

    def forward(self, x):
        for layer in self.layers:
            x = self.table["act"](layer(x))
        x = self.seq(x) * self.weight + self.extras[1] * self.named["g"]
        return self.table["out"](x)


@construct(make=module(Net))
def containers_of_modules(m, x):
    return m(x)


@construct(make=module(Net))
def module_introspection(m, x):
    names = [n for n, _ in m.named_parameters()]
    kinds = [type(c).__name__ for c in m.modules()]
    children = [n for n, _ in m.named_children()]
    total = sum(p.numel() for p in m.parameters())
    p = next(m.parameters())
    return (
        x + total,
        names,
        kinds,
        children,
        p.dtype,
        len(m.layers),
        "act" in m.table,
        list(m.table.keys()),
        p.device,
        len(list(m.buffers())),
    )


@construct(make=module(Net))
def state_dict_of_a_module(m, x):
    return list(m.state_dict()), x + 1


construct.cases[-1] = Case(state_dict_of_a_module, 1, None, construct.cases[-1].make, (3, 11))


@construct(make=module(Net))
def buffer_written(m, x):
    m.steps += 1
    return x * m.steps


@construct(graphs=None, make=module(Net))
def buffer_replaced(m, x):
    m.steps = m.steps + 2
    return x * m.steps, m._buffers["steps"]


@construct(graphs=2, make=module(Net))
def attribute_counter(m, x):
    m.calls += 1
    return x * 2, m.calls


construct.cases[-1] = Case(attribute_counter, None, None, construct.cases[-1].make, (3, 11))


@construct(make=module(Net))
def slices_of_containers(m, x):
    for layer in m.layers[:1]:
        x = layer(x)
    for i, layer in enumerate(m.layers):
        x = layer(x) + i
    return m.seq[0](x), m.layers[-1](x), m.seq.b(x)


@construct(make=module(Net))
def train_and_eval_flags(m, x):
    return (x * 2 if m.training else x * 3), m.layers[0].training


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.seen = []
        self.inner.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
        self.inner.register_forward_hook(self.note)

    def note(self, mod, args, out):
        return out + 1

    def forward(self, x):
        return self.inner(x)


@construct(make=module(Hooked))
def forward_hooks(m, x):
    return m(x)


class Lazily(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.arange(3.0)
        return x + self.cache


@construct(graphs=2, make=module(Lazily))
def lazily_made_tensor(m, x):
    return m(x)


@construct(make=lambda: (nn.LazyLinear(4), torch.ones(2, 3)))
def lazy_linear(m, x):
    torch.manual_seed(0)
    return m(x).shape


construct.cases[-1] = Case(lazy_linear, None, None, construct.cases[-1].make, (3, 11))


@construct(make=module(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))))
def weight_norm(m, x):
    return m(x)


@construct(make=module(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)).eval()))
def spectral_norm(m, x):
    return m(x)


class Doubled(nn.Module):
    def forward(self, w):
        return w * 2


def _parametrised():
    m = nn.Linear(3, 2)
    nn.utils.parametrize.register_parametrization(m, "weight", Doubled())
    return m


@construct(make=module(_parametrised))
def parametrised(m, x):
    return m(x), m.weight.shape


@construct(make=module(lambda: nn.BatchNorm1d(3)))
def batch_norm_in_training(m, x):
    return m(x)


@construct(make=module(lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Softmax(dim=-1))))
def dropout_and_softmax(m, x):
    return m(x)


@construct(make=module(lambda: nn.MultiheadAttention(3, 1, batch_first=True)))
def attention_module(m, x):
    return m(x[None], x[None], x[None], need_weights=False)[0]


@construct(make=module(lambda: nn.TransformerEncoderLayer(3, 1, 4, batch_first=True)))
def transformer_layer(m, x):
    return m(x[None])


@construct(make=module(lambda: nn.LSTM(3, 2, batch_first=True)))
def lstm(m, x):
    out, (h, c) = m(x[None])
    return out, h, c


@construct(make=module(lambda: nn.Embedding(10, 3)))
def embedding(m, x):
    return m(x.long())


@construct(make=module(lambda: nn.Conv1d(3, 2, 1)))
def convolution(m, x):
    return m(x.T[None])


class SharedChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a

    def forward(self, x, *, twice=True, **kwargs):
        return self.b(self.a(x)) if twice else self.a(x)


@construct(make=module(SharedChild))
def shared_module(m, x):
    return m(x), m(x, twice=False, other=1), m.a is m.b


@construct(make=module(Net))
def functional_call(m, x):
    params = {k: v * 2 for k, v in m.named_parameters()}
    return torch.func.functional_call(m, params, (x,))


construct.cases[-1] = Case(functional_call, None, None, construct.cases[-1].make, (3, 11))


@construct(make=module(lambda: nn.Linear(3, 3)))
def checkpointed(m, x):
    return checkpoint.checkpoint(m, x, use_reentrant=False) + 1


@construct(make=module(lambda: nn.Linear(3, 3)))
def checkpointed_function(m, x):
    def block(y, k, flag=True):
        return torch.sin(m(y)) * k if flag else y

    return checkpoint.checkpoint(block, x, 3, use_reentrant=False, flag=True)


@construct(make=module(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))))
def checkpoint_sequential(m, x):
    return checkpoint.checkpoint_sequential(m, 2, x, use_reentrant=False)


construct.cases[-1] = Case(checkpoint_sequential, None, None, construct.cases[-1].make, (3, 11))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, k):
        ctx.save_for_backward(t)
        ctx.k = k
        return t * t * k

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return g * 2 * t * ctx.k, None


@construct()
def autograd_function(x):
    return Square.apply(x + 1, 3)


@construct()
def tensors_that_say_what_they_are(x):
    made, flagged, m = nn.Buffer(x + 1), x + 2, nn.Linear(2, 2)
    flagged._is_buffer, flagged.persistent = True, False
    m.made, m.flagged = made, flagged
    kinds = [isinstance(t, kind) for t in (made, flagged, x) for kind in (nn.Buffer, nn.Parameter)]
    return m.made * 2, kinds, [name for name, _ in m.named_buffers()], sorted(m.state_dict())


construct.cases[-1] = Case(
    tensors_that_say_what_they_are, None, None, construct.cases[-1].make, (3, 11)
)


@construct(make=lambda: (nn.Parameter(torch.ones(2)),))
def classes_below_parameter(p):
    return p * 2, isinstance(p, OwnParameter), isinstance(p, nn.UninitializedParameter)


class OwnParameter(nn.Parameter):
    pass


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
