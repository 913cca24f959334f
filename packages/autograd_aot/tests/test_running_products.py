"""`cumprod` and its derivatives, with zeros where they hurt: few operators, and eager's values."""

from __future__ import annotations

import pytest
import torch
from aot_testing import as_graph, run_fx
from dovetail_autograd_aot import aot_compile


def with_zeros(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows without a zero, with one first, last, between, two, and nothing else."""
    torch.manual_seed(0)
    x = (1 + torch.randn(rows, columns, dtype=torch.float64) / 4).to(dtype)
    x[1, 0] = x[2, -1] = x[3, columns // 2] = x[4, 1] = x[4, -2] = 0
    x[5] = 0
    return x


CALLS = {
    "rows": lambda x: x.cumprod(-1),
    "columns": lambda x: torch.cumprod(x, dim=0),
    "wider": lambda x: x.cumprod(1, dtype=torch.promote_types(x.dtype, torch.float64)),
    "in place": lambda x: (x * 1).cumprod_(1),
    "a number": lambda x: x[0, 0].cumprod(0),
    "none": lambda x: x[:, :0].cumprod(1),
    "seen through": lambda x: x.t().cumprod(0).t(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    fn, x = CALLS[name], with_zeros(7, 9, dtype)
    inputs = x.requires_grad_(), torch.randn_like(fn(x))
    compiled = aot_compile(as_graph(lambda x: (fn(x),), 1), [x], forward_compiler=run_fx)
    (got,), wanted = compiled(x), fn(x)
    assert got.dtype is wanted.dtype and got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted)
    (mine,) = torch.autograd.grad(got, x, inputs[1])
    try:
        (theirs,) = torch.autograd.grad(wanted, x, inputs[1])
    except RuntimeError as error:  # PyTorch 2.11 mixes up the types in its own derivative
        assert name == "wider" and "expected self and source to have same dtypes" in str(error)
        (theirs,) = torch.autograd.grad(x.to(wanted.dtype).cumprod(1), x, inputs[1])
    assert mine.stride() == theirs.stride()
    torch.testing.assert_close(mine, theirs)


def test_a_single_factor_passes_its_gradient_on_as_it_lies() -> None:
    x = torch.randn(1, 4, requires_grad=True)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor]:
        (found,) = torch.autograd.grad(x.cumprod(0).sum(), x)
        return (found,)

    compiled = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx)
    (ours,), (theirs,) = compiled(x), fn(x)
    assert ours.stride() == theirs.stride() and torch.equal(ours, theirs)


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_gradients(dim: int) -> None:
    x = with_zeros(7, 6, torch.float64).requires_grad_()
    compiled = aot_compile(as_graph(lambda x: (x.cumprod(dim),), 1), [x], forward_compiler=run_fx)
    tangent, second = torch.randn(2, 7, 6, dtype=torch.float64)
    found = []
    for run in (lambda x: compiled(x)[0], lambda x: x.cumprod(dim)):
        (first,) = torch.autograd.grad(run(x), x, tangent, create_graph=True)
        found += [first, *torch.autograd.grad(first, x, second)]
    torch.testing.assert_close(found[:2], found[2:])


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_in_place_in_another_type(dtype: torch.dtype | None) -> None:
    """Eager refuses to compute in another type than the tensor's."""
    x = torch.randn(3, requires_grad=True)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x * 1).cumprod_(0, dtype=dtype),)

    def run(call) -> str:
        try:
            call(x)
        except RuntimeError:
            return "refused"
        return "done"

    def compiled(x: torch.Tensor) -> None:
        aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx)(x)

    assert run(compiled) == run(fn)


def test_as_many_operators_however_long_the_rows() -> None:
    """(Later versions of PyTorch have such a derivative of their own.)"""

    def operators(columns: int) -> int:
        counts: list[int] = []

        def count(gm, inputs):
            counts.append(len(gm.graph.nodes))
            return gm

        x = torch.randn(2, columns, requires_grad=True)
        graph = as_graph(lambda x: (x.cumprod(-1),), 1)
        aot_compile(graph, [x], forward_compiler=count)(x)[0].sum().backward()
        return sum(counts)

    assert operators(200) == operators(8)
