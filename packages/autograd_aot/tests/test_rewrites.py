"""Writes by mask and fills whose eager derivative has a shape that depends on data; results that
require grad though nothing gets a gradient; resize_; conjugate views."""

from __future__ import annotations

import pytest
import torch
from aot_testing import check

MASK = torch.tensor([[True, False, True], [False, False, True]])


def set_item(x, v):
    y = x.clone()
    y[MASK] = v
    return (y,)


def put_in_place(x, v):
    y = x.clone()
    y.index_put_((MASK,), v)
    return (y,)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(
    "fn", [set_item, put_in_place, lambda x, v: (torch.index_put(x, (MASK,), v),)]
)
def test_one_value_written_by_mask(fn, shape):
    torch.manual_seed(0)
    check(fn, [torch.randn(2, 3, requires_grad=True), torch.randn(shape, requires_grad=True)])


def test_a_row_written_by_mask():
    torch.manual_seed(0)
    check(set_item, [torch.randn(2, 3, 4, requires_grad=True), torch.randn(4, requires_grad=True)])


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("in_place", [False, True])
def test_filled_with_a_tensor(dim, in_place):
    torch.manual_seed(0)
    index = torch.tensor([1, 0, 1])

    def fn(x, v):
        filled = x.clone().index_fill_ if in_place else x.index_fill
        return (filled(dim, index, v) * 2,)

    check(fn, [torch.randn(3, 4, requires_grad=True), torch.randn((), requires_grad=True)])


def test_a_result_requires_grad_though_no_input_gets_a_gradient():
    from aot_testing import as_graph, run_fx
    from dovetail_autograd_aot import aot_compile

    x = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
    gm = as_graph(lambda x: (torch.linalg.vector_norm(x, 0), x.detach() + 1), 1)
    norm, plain = aot_compile(gm, [x], forward_compiler=run_fx)(x)
    assert norm.item() == 2 and norm.requires_grad and not plain.requires_grad
    assert torch.autograd.grad(norm, x, allow_unused=True) == (None,)


def test_resize_to_as_many_elements():
    def fn(x):
        y = x.clone()
        z = y.view(-1)
        y.resize_(3, 2)
        z.add_(1)
        return (y * 2,)

    check(fn, [torch.randn(2, 3)])


def test_write_through_a_conjugate():
    def fn(x):
        y = x.clone()
        y.conj().mul_(2j)
        return (y + 1,)

    check(fn, [torch.randn(4, dtype=torch.complex64)], table="core")


def test_a_mask_on_the_cpu_for_a_tensor_elsewhere():
    from aot_testing import as_graph
    from dovetail_autograd_aot import trace_joint
    from dovetail_prims.fake_tensor import FakeTensor

    inputs = [
        FakeTensor.make(shape, stride, torch.float32, torch.device("meta")).requires_grad_()
        for shape, stride in (((2, 3, 4), (12, 4, 1)), ((4,), (1,)))
    ]
    joint = trace_joint(as_graph(set_item, 2), inputs)
    ops = [str(n.target) for n in joint.gm.graph.nodes if n.op == "call_function"]
    assert "aten.where.self" in ops
    moved = next(n for n in joint.gm.graph.nodes if "_to_copy" in str(n.target))
    assert moved.meta["val"].device.type == "meta"


@pytest.mark.parametrize("name", ["add", "sub", "addcmul", "addcdiv"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_factor_that_depends_on_data(name, in_place):
    torch.manual_seed(0)
    factor = "value" if name.startswith("addc") else "alpha"

    def fn(x, a, b, rate):
        called = getattr(x.clone(), name + "_") if in_place else getattr(x, name)
        given = (a, b) if factor == "value" else (a,)
        return (called(*given, **{factor: rate.item()}) * 2,)

    leaves = [torch.rand(3, requires_grad=True) for _ in range(3)]
    check(fn, [*leaves, torch.tensor(0.5)])
