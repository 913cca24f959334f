"""Constructs: tensors and arrays that no graph can have. What is done with them runs in Python, the
rest of the frame is captured.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from construct_cases import Case, CountingBackend, Table, run_case, same
from dovetail_capture import optimize

construct = Table()


def _with_sparse():
    return torch.arange(6.0).reshape(2, 3), torch.eye(2).to_sparse()


@construct(graphs=3, breaks=2, make=_with_sparse)
def products(x, s):
    y = s @ x.cos()
    y = torch.sparse.mm(s, y.sin() + 1)
    return y * 2


@construct(make=_with_sparse)
def what_is_known_without_the_data(x, s):
    if s.is_sparse and isinstance(s, torch.Tensor) and torch.is_tensor(s):
        x = x + 1
    match s:
        case torch.Tensor(requires_grad=False):
            x = x * s.shape[0]
    try:
        s.nothing
    except AttributeError as error:
        x = x * 3
    about = s.layout, s.dtype, s.device, s.is_leaf, s.grad, s.ndim, s is x, hasattr(s, "shape")
    return x, about, [t.layout for t in (s, x)], s.shape


@construct(graphs=None, breaks=None, make=_with_sparse)
def in_place_and_attributes(x, s):
    s.mul_(2)
    y = s @ x
    s.seen = s.dim()
    s.mul_(3)
    return y + s.seen, s, copy.deepcopy(s) @ x, s.coalesce().values() * 2


@construct(graphs=2, breaks=2, make=lambda: (torch.ones(2, 3), [torch.eye(2).to_sparse()] * 2))
def in_a_loop(x, tables):
    for table in tables:
        x = (table @ x).relu() + 1
    return x


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        return x * (3 if ctx.needs_input_grad[1] else 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3, None


@construct(
    graphs=None,
    breaks=None,
    make=lambda: (torch.ones(2, 3), torch.eye(2).to_sparse().requires_grad_()),
)
def given_to_a_function_of_autograd(x, s):
    return Scaled.apply(x.cos(), s).detach()


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("adjacency", torch.eye(2).to_sparse_coo())

    def forward(self, x):
        return torch.sparse.mm(self.adjacency, self.linear(x).relu()) + 1


def _read_only():
    array = np.arange(3.0)
    array.flags.writeable = False
    return torch.ones(2, 3), array


@construct(graphs=None, breaks=None, make=_read_only)
def read_only_arrays(x, array):
    y = x.cos() + torch.as_tensor(array * 2)
    try:
        array[0] = 5
    except ValueError as error:
        y = y + len(str(error))
    first, *rest = array
    return y.sin(), array[1:].flags.writeable, np.ones(3) + array, rest, array.sum(), len(array)


@construct(graphs=None, breaks=None, make=lambda: (torch.ones(2, 3), np.arange(3.0)[::-1]))
def reversed_arrays(x, array):
    y = x.cos() + torch.from_numpy(array.copy())
    array[0] = 7
    return y.sin(), array, np.concatenate([array, array]), np.ones(3) @ array, array.strides


@construct(graphs=None, breaks=None, make=lambda: (torch.ones(2), np.array([1, "a"], object)))
def arrays_of_objects(x, array):
    return x.cos() * array[0], array[1], array.shape, array.dtype


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_a_module_with_a_sparse_buffer_trains() -> None:
    torch.manual_seed(0)
    model = Convolution()
    expected, backend = copy.deepcopy(model), CountingBackend()
    compiled = optimize(model, backend)
    x = torch.ones(2, 3)
    for module in (expected, compiled):
        for _ in range(2):
            module(x).sum().backward()
    assert len(backend.graphs) == 2
    assert same(expected.linear.weight.grad, model.linear.weight.grad)


def test_layouts_and_flags_are_guarded() -> None:
    def product(x, s):
        return s @ x.cos()

    def plus(x, array):
        return x.cos() + torch.as_tensor(array + 1)

    tables = [torch.eye(2), torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.eye(2)]
    arrays = [np.ones(3), _read_only()[1], np.ones(3)[::-1], np.ones(3, np.int16), np.ones(3)]
    for program, others, breaks in ((product, tables, 2), (plus, arrays, 2)):
        backend = CountingBackend()
        compiled = optimize(program, backend)
        for other in (*others, *reversed(others)):
            x = torch.arange(6.0).reshape(2, 3)
            assert same(compiled(x, other), program(x, other))
        assert len(compiled.capture_context.log.breaks) == breaks


def test_nested_tensors_break_with_a_reason() -> None:
    rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    run = optimize(lambda x: x * 2, lambda gm, inputs: gm.forward)
    assert torch.equal(run(rows).values(), rows.values() * 2)
    (found,) = {break_.reason for break_ in run.capture_context.log.breaks}
    assert found.startswith("a nested tensor as an input")
