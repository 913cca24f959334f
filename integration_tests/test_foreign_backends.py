"""PyTorch's own backends, and the custom ones of its documentation, behind our front end: what is
traced at the example inputs is right for each size and number."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import dovetail

Backend = Callable[[GraphModule, list[Any]], Callable[..., Any]]


def registered(name: str) -> Backend:
    """A backend by the name that torch.compile's users pass."""
    # (What is loaded is what such a program loads, not what this package stands on.)
    found: Backend = importlib.import_module("torch._dynamo.backends.registry").lookup_backend(name)
    return found


def documented() -> Backend:
    """The custom backend of PyTorch's documentation: AOT autograd around a compiler that runs what
    it is given."""
    common = importlib.import_module("torch._dynamo.backends.common")
    boxed = importlib.import_module("functorch.compile").make_boxed_func
    made: Backend = common.aot_autograd(fw_compiler=lambda gm, inputs: boxed(gm.forward))
    return made


def traced() -> Backend:
    make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graph: Callable[..., Any] = make_fx(gm)(*example_inputs)
        return graph

    return backend


BACKENDS: dict[str, Callable[[], Backend]] = {
    "make_fx": traced,
    "aot_autograd": documented,
    **{
        name: lambda name=name: registered(name)  # type: ignore[misc]
        for name in ("eager", "aot_eager", "aot_eager_decomp_partition", "ts", "cudagraphs")
    },
}
SLOW = [pytest.param(lambda: registered("inductor"), marks=pytest.mark.slow, id="inductor")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor, temperature: float) -> Tensor:
        hidden = self.linear(x)
        folded = hidden.reshape(x.shape[0] * 2, -1) / temperature / x.shape[0]
        result: Tensor = self.norm(folded) + folded
        return result


def of_numbers(v: Tensor, number: float, count: int) -> Tensor:
    grid = torch.arange(v.size(0) * count, dtype=v.dtype).reshape(v.size(0), count)
    return (grid * v[:, None]).sum(1) * number + len(v)


@pytest.mark.parametrize("make", [pytest.param(m, id=n) for n, m in BACKENDS.items()] + SLOW)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.filterwarnings("ignore")
def test_sizes_and_numbers_change(make: Callable[[], Backend], dynamic: bool | None) -> None:
    torch.manual_seed(0)
    function = dovetail.compile(of_numbers, backend=make(), dynamic=dynamic)
    for size in (3, 4, 5, 1, 6, 0):
        args = torch.randn(size), size / 2, 8 - size
        got, expected = function(*args), of_numbers(*args)
        assert got.shape == expected.shape and got.dtype == expected.dtype
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("make", [pytest.param(m, id=n) for n, m in BACKENDS.items()])
@pytest.mark.filterwarnings("ignore")
def test_a_model_is_trained(make: Callable[[], Backend]) -> None:
    if make is traced:
        pytest.skip("make_fx records no operation that autograd sees")
    net = Net()
    twin = copy.deepcopy(net)
    compiled = dovetail.compile(net, backend=make())
    for size, temperature in ((3, 1.0), (4, 0.5), (5, 0.25), (6, 0.125), (1, 2.0)):
        x = torch.randn(size, 4)
        results: Sequence[Tensor] = compiled(x, temperature), twin(x, temperature)
        torch.testing.assert_close(results[0], results[1])
        for result in results:
            result.square().sum().backward()
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_report_counts_what_is_compiled_for_one_size() -> None:
    compiled = dovetail.compile(of_numbers, backend=documented())
    for size in (3, 4, 5):
        compiled(torch.randn(size), 0.5, 2)
    report = dovetail.report(compiled)
    assert report.graphs == 3 and len(report.per_size_compiles) == 2
    assert "one compilation a size: of_numbers" in report.as_text()
    for own in ("dovetail", "aot_eager", "eager"):
        compiled = dovetail.compile(of_numbers, backend=own, dynamic=True)
        for size in (3, 4, 5):
            compiled(torch.randn(size), 0.5, 2)
        assert dovetail.report(compiled).graphs == 1
