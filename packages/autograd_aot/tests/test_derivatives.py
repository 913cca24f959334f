"""Gradients whose derivative goes another way while it is traced lie in memory as eager's do; so do
tensors that an `out=` operator gives other sizes."""

from __future__ import annotations

import pytest
import torch
from aot_testing import as_graph, check, run_fx, same
from dovetail_autograd_aot import aot_compile

REDUCTIONS = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
    "prod": lambda x: x.prod(),
    "prod of rows": lambda x: x.prod(1),
}
BOUNDS = {
    "clamp": lambda x, y: torch.clamp(x, y, y + 1),
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
}
LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "middle": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "gaps": lambda x: torch.cat([x, x], 2)[:, :, ::2],
}


def check_layouts(fn, inputs):
    """Values and strides of the gradients, first and second, of a function that is compiled."""
    compiled = aot_compile(as_graph(fn, len(inputs)), inputs, forward_compiler=run_fx)
    found = []
    for run in (fn, compiled):
        (result,) = run(*inputs)
        torch.manual_seed(1)
        tangent = torch.randn_like(result)
        first = torch.autograd.grad(result, inputs, tangent)
        (result,) = run(*inputs)
        again = torch.autograd.grad(result, inputs, tangent, create_graph=True)
        found.append([*first, *again])
    for ours, eager in zip(found[1], found[0], strict=True):
        same(ours, eager, "gradient", exact=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_of_reductions(name, layout):
    torch.manual_seed(0)
    x = LAYOUTS[layout](torch.randn(3, 4, 5)).detach().requires_grad_()
    check_layouts(lambda x: (REDUCTIONS[name](x),), [x])


@pytest.mark.parametrize("layouts", [("transposed", "transposed"), ("transposed", "dense"),
                                     ("middle", "gaps"), ("dense", "middle")])  # fmt: skip
@pytest.mark.parametrize("name", BOUNDS)
def test_gradients_of_bounds(name, layouts):
    torch.manual_seed(0)
    x, y = (LAYOUTS[each](torch.randn(3, 4, 5)).detach().requires_grad_() for each in layouts)
    check_layouts(lambda x, y: (BOUNDS[name](x, y),), [x, y])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
def test_the_gradient_of_a_product_of_one_number(dim, keep):
    check_layouts(lambda x: (x.prod(dim, keep),), [torch.tensor(2.0, requires_grad=True)])
    check_layouts(lambda x: (x.prod(dim, keep),), [torch.randn(2, 3, requires_grad=True)])


REFLECTIONS = {
    "product": lambda v, f, x: torch.linalg.householder_product(v, f) * x.sum(),
    "times": lambda v, f, x: torch.ormqr(v, f, x),
    "transposed": lambda v, f, x: torch.ormqr(v, f, x.mT, left=False, transpose=True),
}
REFLECTED = {
    "dense": lambda x: x,
    "transposed": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "repeated": lambda x: x[:1].expand(x.shape),
    "gaps": lambda x: torch.cat([x, x], -1)[..., ::2],
}


@pytest.mark.parametrize("layout", REFLECTED)
@pytest.mark.parametrize("name", REFLECTIONS)
def test_gradients_of_reflections(name, layout):
    torch.manual_seed(0)
    lay = REFLECTED[layout]
    inputs = lay(torch.randn(2, 5, 4)), lay(torch.randn(2, 1, 4))[:, 0], lay(torch.randn(2, 5, 3))
    check_layouts(
        lambda *given: (REFLECTIONS[name](*given),), [x.detach().requires_grad_() for x in inputs]
    )


def test_a_users_fill_in_a_backward_is_contiguous():
    """Only what autograd's own derivatives fill is filled in place."""

    class Filled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad.masked_fill(x > 0, 0)

    x = LAYOUTS["transposed"](torch.randn(3, 4, 5)).detach().requires_grad_()
    check_layouts(lambda x: (Filled.apply(x),), [x])


@pytest.mark.parametrize("shape", [(0,), (0, 2)])
def test_what_a_pointwise_operator_resizes_lies_as_its_operands_do(shape):
    def fn(x):
        sums, products = torch.empty(shape), torch.empty(shape)
        torch.add(x, x, out=sums)
        torch.mm(x, torch.ones(3, 3), out=products)
        return sums, products

    check(fn, [torch.randn(3, 2).t()])


def test_the_gradient_of_a_scaled_bessel_function_is_rounded_once():
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, 1e-30, -1e-45, 1e-8])])
    x = x.requires_grad_()
    compiled = aot_compile(
        as_graph(lambda x: (torch.special.i1e(x),), 1), [x], forward_compiler=run_fx
    )
    (ours,) = torch.autograd.grad(compiled(x)[0].sum(), x)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(torch.special.i1e(wide).sum(), wide)
    assert (ours - exact.float()).abs().max() <= 2**-25  # (half a last place of 1/2)
    check_layouts(lambda x: (torch.special.i1e(x),), [x])


PARTS = {
    "chunk": lambda x: x.chunk(2, 1),
    "one chunk": lambda x: x[:1].chunk(2),
    "two of three": lambda x: x.split([1, 2, 3], 1)[1:],
    "split": lambda x: x.split(2, 2),
    "unbind": lambda x: tuple(part.transpose(0, 1) for part in x.unbind(1)),
    "parts of a part": lambda x: (lambda a, b: (*a.chunk(3, 1), b))(*x.chunk(2, 1)),
    "parts of a value": lambda x: (x * 2).chunk(2, 1),
    "detached": lambda x: (*x.detach().chunk(2), *x.chunk(2)),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_are_returned_have_their_gradients_through_one_node(name):
    """Of autograd's, as in eager: their gradients are joined, not filled up with zeros."""
    function = PARTS[name]
    x = torch.randn(2, 6, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    found = []
    for run in (function, compiled):
        parts = run(x)
        learning = [p for p in parts if p.requires_grad]
        torch.manual_seed(1)
        tangents = [torch.randn_like(p) for p in learning]
        nodes = {id(p.grad_fn.next_functions[0][0]) for p in learning}
        gradient = torch.autograd.grad(learning, x, tangents)
        found.append((len(nodes), type(parts[-1].grad_fn).__name__, *gradient, *parts))
    for ours, eager in zip(found[1], found[0], strict=True):
        same(ours, eager, "part", exact=True)
