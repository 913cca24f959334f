"""Constructs: torch's own functions, and the standard library as models use it.

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
from dovetail_capture import optimize
from torch import nn
from torch.utils import checkpoint

construct = Table()


# --- torch.func ----------------------------------------------------------------------------------


@construct()
def numbers_classes_for_dtypes(x):
    return torch.zeros(2, dtype=bool), torch.ones(3, dtype=int).sum() + x, x.to(float)


@construct()
def sequences_of_numbers_in_tensors_as_indices(x):
    rows, columns = zip(*(x[:2, :2] > 0).long())
    y = x.clone()
    y[rows, columns] = 0.5
    return y, x[rows, columns], x[:, [rows[0], columns[1]]]


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


_per_row = torch.vmap(lambda row, k: row.sin() * k.sum(), in_dims=(1, None), out_dims=1)
_slope = torch.func.grad(lambda v: (v**3).sum())
_slope_and_value = torch.func.grad_and_value(lambda v, k: ((v * k).sum(), v), has_aux=True)
_curvature = torch.func.hessian(lambda v: v.sin().sum() ** 2)
_rows_of_slopes = torch.func.jacrev(_slope, chunk_size=2)


@construct()
def what_transforms_gave_before_the_frame(x):
    row = x[0]
    return (
        _per_row(x, row),
        _slope(x * 2),
        _slope_and_value(row, k=row),
        _curvature(row),
        _rows_of_slopes(row),
        torch.vmap(_curvature)(x),
    )


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
def where_an_input_begins(x):
    return x[1].storage_offset(), x.storage_offset(), x + 1


@construct()
def how_large_the_storage_of_an_input_is(x):
    return x[1].untyped_storage().nbytes(), x.untyped_storage().nbytes() // x.itemsize, x + 1


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
        (x * 2)[1].storage_offset(),
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
        (x < 0).type(torch.Tensor),
        x.type(dtype=torch.DoubleTensor, non_blocking=True),
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

    sig = inspect.signature(run_case)
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


@construct()
def inference_block(x):
    with torch.inference_mode():
        y = x + 1
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        with torch.inference_mode(False):
            normal = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y * 2, inside, normal, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@torch.inference_mode()
def _inferred(x):
    return x * 3, torch.is_grad_enabled()


@construct()
def inference_decorator(x):
    return _inferred(x), torch.is_grad_enabled()


@construct()
def inference_block_left_by_an_exception(x):
    try:
        with torch.inference_mode():
            y = x + 1
            raise ValueError
    except ValueError:
        return y, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@construct(graphs=None, breaks=None)
def break_in_an_inference_block(x):
    with torch.inference_mode():
        y = x + 1
        print("in the block")
        y = y * 2
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y + 1, inside, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


_weight = torch.ones(3, requires_grad=True)


@construct()
def inference_and_gradients(x):
    with torch.inference_mode():
        y = x * _weight
    return y.requires_grad, x * _weight


@construct()
def a_leaf_made_inside(x):
    z = torch.zeros_like(x).requires_grad_()
    return (z * _weight).relu() + x


@construct()
def a_leaf_made_by_assignment(x):
    z = torch.zeros_like(x)
    z.requires_grad = False
    before = z.requires_grad
    z.requires_grad = True
    return (z * _weight).relu() + x, before, z.requires_grad


@construct(graphs=None, breaks=1)
def an_input_that_is_made_to_require_a_gradient(x):
    x.requires_grad = True
    return (x * 2).sum(), x.requires_grad


@construct(graphs=None, breaks=1)
def a_leaf_made_inside_is_returned(x):
    z = torch.zeros_like(x).requires_grad_(True)
    y = z + 1
    return y, z, z.is_leaf


@construct(graphs=None, breaks=1)
def nothing_but_a_leaf_made_inside_requires_a_gradient(x):
    y = (x.detach().requires_grad_() * 2).sum()
    return y


@construct()
def dropout_in_place(x):
    y, z = x + 1, x.reshape(1, 2, 3) + 1
    dropped = F.dropout(y, 1.0, inplace=True), F.dropout2d(z, 1.0, True, True)
    nothing = F.dropout(x, 0.5, False) is x, F.dropout(x, 0.5, False, True) is x
    return dropped, y, z, nothing


@construct()
def new_tensors_of_sizes(x):
    given = x.new(x.shape), x.new(torch.Size((2, *x.size()))), x.new(torch.Size()), x.new(3, 4)
    return [t.zero_() for t in given], x.new([2.0, 5.0]), x.new((3, 4))


@construct()
def a_function_class_of_torchs_own(x):
    return nn.CrossMapLRN2d(2)(x.reshape(1, 2, -1, 1))


@torch.jit.script
def _scripted(x, n: int):
    return x * n + 1


_scripted_module = torch.jit.script(nn.Linear(3, 3))


def _asked(function, *args):
    try:
        return function(*args)
    except (AssertionError, RuntimeError) as error:
        return type(error).__name__


@construct()
def what_a_gpu_can_do(x):
    facts = torch.cuda.is_bf16_supported(), torch.cuda.is_bf16_supported(including_emulation=False)
    return x + 1, facts, _asked(torch.cuda.get_device_capability, torch.device("cuda", 0))


class _Even(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, int) and instance % 2 == 0


class _EvenNumber(metaclass=_Even):
    pass


@construct()
def classes_that_tell_what_is_an_instance(x):
    Variable = torch.autograd.Variable
    tensors = isinstance(x, Variable), isinstance(x + 1, (int, Variable)), isinstance(3, Variable)
    return tensors, isinstance(4, _EvenNumber), isinstance(x.dim(), _EvenNumber), x + 1


@construct(graphs=None, breaks=None)
def typed_storages_tell_their_dtype(x):
    bools = torch.BoolStorage.from_buffer(bytearray([0, 1]), "big")
    assert isinstance(bools, torch.BoolStorage)
    return isinstance(bools, torch.FloatStorage), x + 1


@construct()
def a_script_is_captured_as_the_function_it_was_made_from(x):
    return _scripted(x, 3) - _scripted(n=2, x=x)


@construct(graphs=None, breaks=1)
def a_module_in_torchscript(x):
    y = _scripted_module(x.new_ones(2, 3)) * 2
    return y.shape, x + 1


def test_what_a_transform_gives_is_captured_by_itself() -> None:
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    x = torch.randn(3, 4)
    for transformed in (_slope, _curvature, torch.func.jacfwd(torch.sin), torch.vmap(_slope)):
        of = x if transformed is not _curvature else x[0]
        compiled = optimize(transformed, backend, fullgraph=True)
        torch.testing.assert_close(compiled(of), transformed(of))
    assert len(graphs) == 4


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
