"""Operators of symbolic sizes: one graph for all sizes, with eager's results and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from sweep_sizes import run
from torch import Tensor, nn

import dovetail

SIZES = [(3, 4, 6), (5, 6, 8), (2, 7, 5)]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "resized, nearest": lambda x: F.interpolate(x[None], size=(8, 9), mode="nearest"),
    "resized, linear": lambda x: F.interpolate(x, size=7, mode="linear"),
    "resized, bilinear": lambda x: F.interpolate(x[None], size=(8, 9), mode="bilinear"),
    "resized, bicubic": lambda x: F.interpolate(x[None], size=11, mode="bicubic"),
    "resized, trilinear": lambda x: F.interpolate(x[None, None], size=(8, 9, 4), mode="trilinear"),
    "resized, antialiased": lambda x: F.interpolate(
        x[None], size=(8, 9), mode="bilinear", antialias=True
    ),
    "taken along": lambda x: x.take_along_dim(x.argsort(-1), -1),
    "a part taken along": lambda x: torch.take_along_dim(x, x.argsort(1)[:, :2], dim=1),
    "taken around": lambda x: torch.take_along_dim(x, x.argsort(-1) - 5, -1),
    "polar": lambda x: torch.polar(x, x).real,
    "complex": lambda x: torch.complex(x, x * 2).imag,
    "gated": lambda x: F.glu(torch.cat([x, x * 2], 1), 1),
    "gated, transposed": lambda x: F.glu(torch.cat([x, x * 2], 1).mT),
    "in as many pieces": lambda x: torch.cat([x, x, x * 2], 1).split(x.shape[1], 1)[2] * 1,
    "in three": lambda x: torch.cat([x, x, x * 2], 1).chunk(3, 1)[2] * 1,
    "diagonals": lambda x: torch.diag_embed(x, 1, 0),
    "a distance": lambda x: torch.dist(x, x.mean(), 3)[None],
    "norms bounded": lambda x: torch.renorm(x, 2, 1, 0.7),
    "as many as there are": lambda x: x * x.shape.numel() / x[0].size().numel(),
    "if all are": lambda x: torch.where(torch._is_all_true(x >= 0), x, x * 2),
    "if any is": lambda x: torch.where(torch._is_any_true(x >= 1), x, x * 2),
    "distances": lambda x: torch.cdist(x.repeat(1, 9, 1), x.repeat(1, 9, 1) + 1),
    "made as large": lambda x: torch.empty(0).resize_as_(x).copy_(x.detach()) * x,
    "made larger": lambda x: x.new_empty(0).resize_(x.shape[1] * 2, 3).zero_() + x.sum(),
    "a pseudo-inverse": lambda x: torch.linalg.pinv(x[:, :3], rtol=1e-3),
    "filled like a part": lambda x: torch.full_like(x[..., :1], 0.5) + x,
    "like what is transposed": lambda x: torch.zeros_like(x.mT) + x.mT,
    "like every second": lambda x: torch.ones_like(x[:, ::2]) + x[:, ::2],
}
BY_NAME: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(input=x.mT @ x, weight=(x.mT @ x)[0]),
    "resized": lambda x: F.interpolate(input=x[None], size=(8, 9), mode="bilinear"),
    "batch norm": lambda x: F.batch_norm(
        input=x, running_mean=None, running_var=None, training=True
    ),
    "pooled": lambda x: F.max_pool1d(input=x, kernel_size=2),
    "taken along": lambda x: torch.take_along_dim(input=x, indices=x.argsort(-1), dim=-1),
    "a product of all": lambda x: torch.kron(input=x[0], other=x[1]),
    "between": lambda x: torch.lerp(end=x * 2, input=x, weight=0.3),
    "of classes": lambda x: F.one_hot(input=(x > 0.5).long(), num_classes=2) * x[..., None],
    "variance": lambda x: torch.var(input=x, dim=1),
    "running product": lambda x: torch.cumprod(input=x, dim=1),
    "some filled": lambda x: torch.index_fill(
        input=x, dim=1, index=torch.tensor([0]), value=x[0, 0, 0]
    ),
    "numbers": lambda x: torch.asarray(obj=[1.0, 2.0]).sum() * x,
}
FUNCTIONS |= {f"{name}, by name": fn for name, fn in BY_NAME.items()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_for_all_sizes(name: str) -> None:
    fn = FUNCTIONS[name]
    compiled = dovetail.compile(fn, dynamic=True, fullgraph=True)
    for size in SIZES:
        torch.manual_seed(0)
        results = []
        x = torch.rand(size, dtype=torch.float64, requires_grad=True)
        for call in (compiled, fn):
            y = call(x)
            results.append((y, *torch.autograd.grad(y.square().sum(), x)))
        torch.testing.assert_close(results[0], results[1])
        assert [t.stride() for t in results[0]] == [t.stride() for t in results[1]]
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("function", [torch.lerp, torch.take_along_dim, torch.kron])
def test_results_that_are_given(function: Callable[..., Tensor]) -> None:
    """`out=` of functions that have other forms for symbolic sizes."""

    def program(x: Tensor) -> Tensor:
        rest: dict[Callable[..., Tensor], tuple[Tensor | float, ...]] = {
            torch.lerp: (x * 2, 0.3), torch.take_along_dim: (x.argsort(-1), -1), torch.kron: (x,),
        }  # fmt: skip
        out = torch.empty(16, 36) if function is torch.kron else torch.empty(4, 6)
        return function(x, *rest[function], out=out)

    x = torch.rand(4, 6)
    torch.testing.assert_close(dovetail.compile(program, fullgraph=True)(x), program(x))


@pytest.mark.parametrize(
    "cell",
    [
        nn.GRUCell(4, 5), nn.GRUCell(4, 5, bias=False), nn.LSTMCell(4, 5), nn.RNNCell(4, 5),
        nn.RNNCell(4, 5, nonlinearity="relu"),
    ],
    ids=str,
)  # fmt: skip
def test_cells_take_one_graph_for_all_batches(cell: nn.Module) -> None:
    cell = cell.double()

    def two_steps(x: Tensor) -> Tensor:
        state = cell(x)
        state = cell(x * 2, state)
        return torch.cat(state, 1) if isinstance(state, tuple) else state

    compiled = dovetail.compile(two_steps, dynamic=True, fullgraph=True)
    for batch in (3, 5, 2):
        x = torch.randn(batch, 4, dtype=torch.float64, requires_grad=True)
        results = []
        for call in (compiled, two_steps):
            y = call(x)
            gradients = torch.autograd.grad(y.square().sum(), [x, *cell.parameters()])
            results.append((y, *gradients))
        torch.testing.assert_close(results[0], results[1])
    assert dovetail.report(compiled).graphs == 1


def test_a_cell_refuses_a_state_of_another_batch() -> None:
    cell = nn.GRUCell(4, 4)
    for call in (cell, dovetail.compile(cell, dynamic=True)):
        with pytest.raises(RuntimeError, match="hidden0 batch size"):
            call(torch.randn(3, 4), torch.randn(2, 4))


@pytest.mark.parametrize(
    "fn", [lambda x, p: x.renorm(p, 0, 1.0), lambda x, p: torch.dist(x, x * 2, p)]
)
def test_norms_by_a_number_of_the_call(fn: Callable[[Tensor, float], Tensor]) -> None:
    compiled = dovetail.compile(fn, dynamic=True, fullgraph=True)
    for p in (2, 3, 1.5):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x, p), fn(x, p))


def test_kronecker_products() -> None:
    def fn(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.kron(a, b), b.kron(a[0])

    compiled = dovetail.compile(fn, dynamic=True, fullgraph=True)
    for m, n in ((2, 3), (4, 5), (3, 7)):
        a = torch.randn(m, 2, n, requires_grad=True)
        b = torch.randn(n, m, requires_grad=True)
        results = []
        for call in (compiled, fn):
            found = call(a, b)
            gradients = torch.autograd.grad(sum(x.square().sum() for x in found), [a, b])
            results.append((*found, *gradients))
            assert not found[0]._is_view()
        torch.testing.assert_close(results[0], results[1])
        assert [x.stride() for x in results[0]] == [x.stride() for x in results[1]]
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("convolve", [nn.functional.conv1d, nn.functional.conv_transpose2d])
def test_convolutions_by_numbers_of_the_call(convolve: Callable[..., Tensor]) -> None:
    def fn(x: Tensor, weight: Tensor, options: dict[str, int]) -> Tensor:
        return convolve(x, weight, **options).sin()

    compiled = dovetail.compile(fn, dynamic=True, fullgraph=True)
    spatial = [5] if convolve is nn.functional.conv1d else [5, 5]
    for groups, stride, dilation in ((2, 2, 3), (3, 3, 2), (4, 2, 2), (1, 1, 1)):
        options = {"groups": groups, "stride": stride, "padding": 2 * dilation}
        options["dilation"] = dilation
        weight = torch.randn(2 * groups, 2, *[3] * len(spatial), requires_grad=True)
        x = torch.randn(3, 2 * groups, *spatial, requires_grad=True)
        results = []
        for call in (compiled, fn):
            y = call(x, weight, options)
            results.append((y, *torch.autograd.grad(y.square().sum(), (x, weight))))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["take_along_dim", "nn.functional.conv2d", "cat", "expand_as"])
def test_all_samples_of_the_database_by_one_function(name: str) -> None:
    """One or two operators of each kind; `sweep_sizes.py` has them all."""
    assert run([name], "float32", "graphs", 3)["right"] == 1
