"""What no graph can hold: whole, an error that names the user's line and the way round; in parts,
eager's results."""

from __future__ import annotations

import pytest
import torch
from dovetail_capture.errors import BackendError
from torch import Tensor, nn

import dovetail


class _Tally(torch.autograd.Function):
    """The identity, whose backward adds its gradient to another tensor."""

    @staticmethod
    def forward(ctx, x: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(total)
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):
        (total,) = ctx.saved_tensors
        with torch.no_grad():
            total.add_(grad)
        return grad, None


def _picked(x: Tensor, y: Tensor) -> Tensor:
    return torch.gather(x, 0, torch.zeros(1, 3, dtype=torch.int64), sparse_grad=True) * 2


def _embedded(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.embedding(torch.tensor([1, 0, 1]), x, sparse=True) * 2


def _tallied(x: Tensor, y: Tensor) -> Tensor:
    return _Tally.apply(x, y) * 2


CASES = {
    "gather": (_picked, "sparse_grad=True"),
    "embedding": (_embedded, "sparse=True"),
    "a function's backward that writes": (_tallied, "outside of the compiled one"),
}


def _asked(run, x: Tensor, y: Tensor) -> list[Tensor]:
    x, y = x.clone().requires_grad_(), y.clone()
    out = run(x, y)
    out.sum().backward()
    assert x.grad is not None
    return [out, x.grad.to_dense(), torch.tensor(x.grad.is_sparse), y]


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("name", CASES)
def test_named_when_whole_and_eager_in_parts(name: str, backend: str) -> None:
    function, way_round = CASES[name]
    x, y = torch.randn(3, 3), torch.zeros(3, 3)
    whole = dovetail.compile(
        function, backend=backend, fullgraph=True, options={"on_error": "raise"}
    )
    with pytest.raises(BackendError, match=way_round) as raised:
        whole(x.clone().requires_grad_(), y.clone())
    line = function.__code__.co_firstlineno
    assert f"{__file__}:{line}" in str(raised.value)
    parts = dovetail.compile(function, backend=backend)
    for ours, eager in zip(_asked(parts, x, y), _asked(function, x, y), strict=True):
        assert torch.equal(ours, eager)


def _window(x: Tensor) -> Tensor:
    y = x * 1
    y.as_strided((x.shape[0] - 1, 2), (x.shape[1], 1), 1).add_(1)
    return y


def _strided_rows(x: Tensor) -> Tensor:
    rows = x[1:]
    return rows.as_strided((rows.shape[0], 2), (rows.shape[1], 1)) + 1


@pytest.mark.parametrize("function", [_window, _strided_rows])
@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_as_strided_of_symbolic_sizes_is_one_graph(function, backend: str) -> None:
    compiled = dovetail.compile(
        function, backend=backend, fullgraph=True, dynamic=True, options={"on_error": "raise"}
    )
    for n in (4, 5, 6):
        x = torch.randn(n, n + 1, requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        out, expected = compiled(twin), function(x)
        assert torch.equal(out, expected)
        (out * out).sum().backward()
        (expected * expected).sum().backward()
        torch.testing.assert_close(twin.grad, x.grad)
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("value", [1, 2.7, True, -3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_numbers_are_copied(value, dtype: torch.dtype, backend: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[1:].copy_(value), x

    compiled = dovetail.compile(fn, backend=backend, fullgraph=True, options={"on_error": "raise"})
    ours, eager = torch.zeros(3, dtype=dtype), torch.zeros(3, dtype=dtype)
    for result, expected in zip(compiled(ours), fn(eager), strict=True):
        assert torch.equal(result, expected)
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_rrelu_in_place_draws_as_eager(backend: str) -> None:
    def fn(x: Tensor) -> Tensor:
        return nn.functional.rrelu(x * 1.0, 0.2, 0.8, training=True, inplace=True)

    compiled = dovetail.compile(fn, backend=backend, fullgraph=True, options={"on_error": "raise"})
    results = []
    for run in (compiled, fn):
        x = torch.linspace(-2, 1, 12).requires_grad_()
        torch.manual_seed(5)
        out = run(x)
        out.square().sum().backward()
        results.append((out, x.grad, torch.rand(2)))
    for ours, eager in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)
