"""Constructs: nn.Module's features, torch's own, and the standard library as models use it.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import sys
from pathlib import Path
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

sys.path.insert(0, str(Path(__file__).parent))
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


# --- torch.func ----------------------------------------------------------------------------------


@construct()
def vmap(x):
    return torch.vmap(lambda row: row.sum() * row)(x)


@construct()
def vmap_with_dims(x):
    return torch.func.vmap(torch.dot, in_dims=(0, 1))(x, x.T), torch.vmap(
        lambda a, b: a * b, in_dims=(0, None)
    )(x, x[0])


@construct(graphs=None, breaks=None)
def vmap_nested(x):
    return torch.vmap(torch.vmap(lambda v: v * 2 + 1))(x)


@construct()
def grad_transform(x):
    return torch.func.grad(lambda t: (t**2).sum())(x)


@construct()
def grad_and_value(x):
    return torch.func.grad_and_value(lambda t, k: (t**2 * k).sum())(x, 3.0)


@construct()
def vmap_of_grad(x):
    return torch.vmap(torch.func.grad(lambda row: (row**3).sum()))(x)


@construct(graphs=None, breaks=None)
def vjp_and_jvp(x):
    out, pull = torch.func.vjp(torch.sin, x)
    return out, pull(x)[0], torch.func.jvp(torch.sin, (x,), (x,))


@construct()
def jacobians(x):
    f = lambda v: v**2  # noqa: E731
    return (
        torch.func.jacrev(f)(x[0]),
        torch.func.jacfwd(f)(x[0]),
        torch.func.hessian(lambda v: (v**3).sum())(x[0]),
    )


@construct()
def vmap_over_closure(x):
    k = x.sum()
    return torch.vmap(lambda row: row * k)(x)


# --- numpy ---------------------------------------------------------------------------------------


@construct(graphs=None, breaks=None)
def numpy_round_trip(x):
    a = (x + 1).numpy()
    b = np.sqrt(a) * 2
    return torch.from_numpy(b) + 1


@construct(graphs=None, breaks=None, make=lambda: (torch.ones(3), np.arange(3.0, dtype=np.float32)))
def numpy_argument(x, a):
    return x + torch.from_numpy(a) * 2


@construct(graphs=None, breaks=None, make=lambda: (np.arange(6.0).reshape(2, 3),))
def numpy_in_and_out(a):
    return np.sum(a * 2, axis=0) + a.mean()


@construct()
def numpy_scalars(x):
    return x * np.float32(2.0) + np.pi, np.prod([2, 3]), int(np.ceil(2.5)), np.log(10.0)


@construct()
def numpy_of_shapes(x):
    return x.reshape(int(np.prod(x.shape))), np.sqrt(x.shape[0])


# --- torch ---------------------------------------------------------------------------------------


@construct()
def views_and_indexing(x):
    return (
        x[0],
        x[:, 1:],
        x[..., -1],
        x[None],
        x[x.shape[0] - 1, 0],
        x[[0, 1], [1, 2]],
        x.T,
        x.unbind(0)[1],
        x[torch.tensor([1, 0])],
    )


@construct()
def item_assignment(x):
    y = x.clone()
    y[0] = 5
    y[:, 1] += 2
    y[y.shape[0] - 1, 0] = y.sum()
    y[..., -1].zero_()
    return y


@construct(make=lambda: (torch.arange(6.0).reshape(2, 3),))
def input_mutation(x):
    x.add_(1)
    x[0] *= 2
    return x, x.sum()


@construct()
def in_place_and_out(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    y.mul_(2).relu_()
    y.data.add_(1)
    return y


@construct()
def creation(x):
    return (
        torch.zeros(2),
        torch.ones_like(x),
        torch.arange(x.shape[0]),
        torch.full((2,), 3.0),
        torch.tensor([1, 2]),
        x.new_zeros(2),
        torch.eye(2, dtype=x.dtype, device=x.device),
        torch.tensor(3.5),
        torch.as_tensor([1.0]),
    )


@construct()
def tensor_of_tensors(x):
    return (
        torch.stack([x, x]),
        torch.cat((x, x), dim=1),
        torch.tensor([x.shape[0], 2.0]),
        torch.stack(list(x)),
        torch.cat([x[i : i + 1] for i in range(2)]),
    )


@construct()
def metadata(x):
    return (
        x.dtype == torch.float32,
        x.device.type,
        x.is_floating_point(),
        x.requires_grad,
        x.is_contiguous(),
        x.stride(),
        x.element_size(),
        x.layout,
        x.is_cuda,
        x.storage_offset(),
        torch.finfo(x.dtype).max,
        x.dim(),
        x.nelement(),
        x.itemsize,
        x + 1,
        torch.is_tensor(x),
        torch.is_floating_point(x),
        x.T.is_contiguous(),
        x.ndim,
    )


@construct()
def casts(x):
    return (
        x.long(),
        x.to(torch.float64),
        x.half().float(),
        x.to(x.device),
        x.type(torch.int32),
        x.bool(),
        x.to("cpu", torch.float16),
        x.type_as(x),
        x.double(),
    )


@construct()
def reductions_return_types(x):
    m = x.max(dim=1)
    values, indices = torch.topk(x, 2)
    return (
        m.values,
        m.indices,
        m[0],
        values,
        indices,
        x.sort().values,
        torch.var_mean(x),
        x.aminmax().min,
        tuple(m),
    )


@construct()
def operators_of_tensors(x):
    return (
        x + 1,
        1 - x,
        x // 2,
        x % 2,
        x**2,
        2**x,
        -x,
        abs(x),
        x @ x.T,
        x == 1,
        x < 2,
        ~(x > 1),
        (x > 1) & (x < 3),
        x != x,
        x.int() << 1,
        +x,
    )


@construct()
def comparisons_with_none(x):
    return x is None, x is not None, x == None, x != None, x + 1  # noqa: E711


@construct()
def scalar_tensor_arithmetic(x):
    s = x.sum()
    return s * 2, x * s, x + s.mean(), torch.where(x > s, x, 0.0), torch.clamp(x, min=s)


@construct()
def functional_calls(x):
    return (
        F.relu(x),
        F.softmax(x, dim=-1),
        F.layer_norm(x, (3,)),
        F.pad(x, (1, 1)),
        F.linear(x, x),
        F.gelu(x, approximate="tanh"),
        F.one_hot(x.long() % 3, 3),
        F.normalize(x),
        F.mse_loss(x, x + 1),
        F.cross_entropy(x, torch.tensor([0, 1])),
    )


@construct()
def einsum_and_friends(x):
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.matmul(x, x.mT),
        torch.outer(x[0], x[1]),
        torch.tensordot(x, x, dims=([1], [1])),
        torch.linalg.norm(x),
        torch.fft.rfft(x).abs(),
        torch.special.expit(x),
    )


@construct()
def random_numbers(x):
    a = torch.rand(2)
    b = F.dropout(x, 0.5, training=True)
    return a, b, torch.randn_like(x), torch.randperm(3), torch.bernoulli(torch.full((3,), 0.5))


@construct(graphs=None, breaks=None)
def manual_seed(x):
    torch.manual_seed(5)
    return torch.rand(3) + x


@construct(graphs=None, breaks=None)
def generator_argument(x):
    g = torch.Generator().manual_seed(1)
    return torch.rand(3, generator=g) + x


@construct()
def tensor_attributes(x):
    y = x + 1
    y.tag = "seen"
    y.scale = 2
    return y * y.scale, y.tag, hasattr(y, "zz")


@construct()
def tensor_methods_as_values(x):
    f = x.add
    g = torch.Tensor.mul
    h = getattr(torch, "sin")  # noqa: B009
    return f(1), g(x, 2), h(x), getattr(x, "sum")(0)  # noqa: B009


@construct()
def detach_and_requires_grad(x):
    y = x.detach()
    z = x.clone().requires_grad_(False)
    return y + 1, z, y.requires_grad


@construct(graphs=None, breaks=None)
def requires_grad_inside(x):
    w = torch.ones(3, requires_grad=True)
    y = (x * w).sum()
    (g,) = torch.autograd.grad(y, w)
    return g


@construct(graphs=None, breaks=None)
def backward_inside(x):
    w = torch.ones(3, requires_grad=True)
    ((x * w) ** 2).sum().backward()
    return w.grad


@construct(graphs=None, breaks=None)
def tensor_hook(x):
    w = torch.ones(3, requires_grad=True)
    y = x * w
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    return w.grad


@construct(graphs=None, breaks=None)
def nonzero_and_masks(x):
    return x[x > 2], x.nonzero(), torch.unique(x.long()), torch.masked_select(x, x > 1)


@construct()
def custom_op_overload(x):
    return torch.ops.aten.add.Tensor(x, x), torch.ops.aten.relu(x)


@construct()
def is_compiling_branches(x):
    a = 1 if torch.jit.is_scripting() else 2
    return x * a, torch.jit.is_tracing()


@construct()
def dtype_and_device_arguments(x):
    kw = dict(dtype=x.dtype, device=x.device)
    return (
        torch.zeros(2, **kw),
        torch.empty(0, **kw).shape,
        str(x.dtype),
        torch.float32.is_floating_point,
        torch.device("cpu") == x.device,
    )


@construct(graphs=None, breaks=None)
def default_dtype_change(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(2) + x[0, :2]
    finally:
        torch.set_default_dtype(before)


@construct()
def parameters_made_inside(x):
    p = nn.Parameter(torch.ones(3))
    return x * p, isinstance(p, nn.Parameter)


construct.cases[-1] = Case(parameters_made_inside, None, None, construct.cases[-1].make, (3, 11))


@construct(graphs=None, breaks=None)
def modules_made_inside(x):
    torch.manual_seed(0)
    return nn.Linear(3, 2)(x)


@construct()
def pytree_functions(x):
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten({"a": x, "b": [x + 1, 2]})
    return pytree.tree_unflatten([leaf * 2 for leaf in leaves], spec), pytree.tree_map(
        lambda v: v * 3, [x, (1, 2)]
    )


@construct()
def flatten_lists_of_tensors(x):
    outs = {}
    for i, name in enumerate(["a", "b"]):
        outs.setdefault(name, []).append(x * i)
    return {k: torch.cat(v) for k, v in outs.items()}


# --- standard library ----------------------------------------------------------------------------


@construct()
def math_functions(x):
    return (
        x * math.sqrt(x.shape[0]),
        math.pi,
        math.floor(2.5),
        math.log2(8),
        math.inf,
        math.isclose(1, 1),
        math.prod([1, 2]),
        math.gcd(4, 6),
        math.ceil(x.shape[1] / 2),
    )


@construct(graphs=None, breaks=None)
def random_module(x):
    random.seed(3)
    return x * random.random(), random.randint(0, 5), random.choice([1, 2, 3])


@construct()
def copies(x):
    a = {"k": [1, x]}
    b, c = copy.copy(a), copy.deepcopy({"k": [1, {2}]})
    b["k"].append(3)
    c["k"].append(4)
    return a, b, c, x + 1


@construct()
def deep_copy_of_tensor(x):
    y = copy.deepcopy(x)
    return y + 1, y is x


construct.cases[-1] = Case(deep_copy_of_tensor, None, None, construct.cases[-1].make, (3, 11))


@construct()
def inspections(x):
    def f(a, b=2, *args, c, **kw):
        return a

    sig = inspect.signature(module)
    return (
        list(sig.parameters),
        inspect.isfunction(f),
        callable(f),
        f.__code__.co_argcount,
        f.__defaults__,
        x + 1,
    )


@construct()
def logging_and_warnings(x):
    logging.getLogger("quiet").debug("value %s", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("nothing", stacklevel=1)
    return x + 1


construct.cases[-1] = Case(logging_and_warnings, None, None, construct.cases[-1].make, (3, 11))


@construct(graphs=None, breaks=None)
def types_module(x):
    n = types.SimpleNamespace(a=1)
    return (
        n.a,
        types.MappingProxyType({"a": 2})["a"],
        isinstance(len, types.BuiltinFunctionType),
        x + 1,
    )


construct.cases[-1] = Case(types_module, None, None, construct.cases[-1].make, (3, 11))


@construct()
def functools_wraps_inside(x):
    def deco(f):
        @functools.wraps(f)
        def g(*a):
            return f(*a) + 1

        return g

    return deco(torch.sin)(x)


@construct(graphs=None, breaks=None)
def json_and_re(x):
    import json
    import re

    d = json.loads('{"a": [1, 2]}')
    return (
        d,
        re.match(r"layer\.(\d+)", "layer.12").group(1),
        re.sub("a", "b", "aa"),
        x * d["a"][1],
        json.dumps({"k": 1}),
    )


@construct(graphs=None, breaks=None)
def decimal_fraction_datetime(x):
    from datetime import timedelta
    from fractions import Fraction

    return x * float(Fraction(1, 4)), timedelta(seconds=90).total_seconds()


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
