"""Compiled functions of ours within those of torch.compile, and the other way round."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from dovetail_capture._frame_hook import installed
from torch import Tensor, nn
from torch.fx import GraphModule


class Counting:
    def __init__(self) -> None:
        self.graphs: list[GraphModule] = []

    def __call__(self, gm: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward


X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Pair:
    """A backend of ours and one of torch.compile's."""

    def __init__(self) -> None:
        self.ours, self.theirs = Counting(), Counting()

    def counts(self) -> tuple[int, int]:
        return len(self.ours.graphs), len(self.theirs.graphs)

    def compile(self, f: Any, **settings: Any) -> Any:
        return dc.optimize(f, self.ours, **settings)

    def torch_compile(self, f: Any, **settings: Any) -> Any:
        return torch.compile(f, backend=self.theirs, **settings)  # noqa: TID251


@pytest.fixture
def pair() -> Pair:
    torch.compiler.reset()
    return Pair()


def waves(x: Tensor) -> Tensor:
    return x.sin() * 2


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        dc.graph_break()
        return self.second(y).relu()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("inner", [waves, nn.Linear(3, 3), Broken()])
def test_ours_within(inner: Any, warm: bool, pair: Pair) -> None:
    compiled = pair.compile(inner)
    if warm:
        compiled(X)
    outer = pair.torch_compile(lambda x: compiled(x.cos()) + 1)
    for _ in range(3):
        torch.testing.assert_close(outer(X), inner(X.cos()) + 1)
    ours = 2 if isinstance(inner, Broken) else 1
    assert pair.counts() == (ours, 2)
    assert not installed()


def test_a_layer_compiled_in_place(pair: Pair) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), Broken()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x)) + 1

    model = Model()
    wanted = model(X)
    dc.optimize_in_place(model.second, pair.ours)
    outer = pair.torch_compile(model)
    for _ in range(2):
        torch.testing.assert_close(outer(X), wanted)
    assert pair.counts() == (2, 2)


def test_a_backward_within(pair: Pair) -> None:
    layer = nn.Linear(3, 3)
    compiled = pair.compile(lambda x: layer(x).tanh())

    def step(x: Tensor) -> Tensor:
        loss = compiled(x * 2).square().sum()
        loss.backward()
        return loss.detach()

    got = pair.torch_compile(step)(X)
    grads = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    wanted = layer(X * 2).tanh().square().sum()
    wanted.backward()
    torch.testing.assert_close(got, wanted.detach())
    torch.testing.assert_close(grads, [p.grad for p in layer.parameters()])
    assert pair.counts()[0] == 1


def test_a_whole_graph_of_theirs_is_refused(pair: Pair) -> None:
    compiled = pair.compile(waves)
    with pytest.raises(Exception, match=r"(?i)graph break|unsupported|could not trace|skip"):
        pair.torch_compile(lambda x: compiled(x) + 1, fullgraph=True)(X)


def test_theirs_within(pair: Pair) -> None:
    inner = pair.torch_compile(waves)
    outer = pair.compile(lambda x: inner(x.cos()) + 1)
    for _ in range(3):
        torch.testing.assert_close(outer(X), waves(X.cos()) + 1)
    assert pair.counts() == (1, 0)  # part of our graph, as within a function of theirs


def test_three_deep(pair: Pair) -> None:
    """Theirs within ours within theirs, and ours within it all."""
    innermost = pair.compile(waves)
    theirs = pair.torch_compile(lambda x: innermost(x + 1) * 3)
    ours = pair.compile(lambda x: theirs(x.cos()) - 1)
    outer = pair.torch_compile(lambda x: ours(x * 2) / 2)
    wanted = (waves((X * 2).cos() + 1) * 3 - 1) / 2
    for _ in range(3):
        torch.testing.assert_close(outer(X), wanted)
    assert pair.counts() == (1, 2)
    assert not installed()
    torch.testing.assert_close(ours(X), waves(X.cos() + 1) * 3 - 1)
    assert pair.counts() == (1, 2)


def test_an_error_from_within(pair: Pair) -> None:
    def check(x: Tensor) -> Tensor:
        if x.shape[0] == 2:
            raise ValueError("two rows")
        return x + 1

    compiled = pair.compile(check)
    outer = pair.torch_compile(lambda x: compiled(x.cos()) * 2)
    with pytest.raises(ValueError, match="two rows"):
        outer(X)
    torch.testing.assert_close(outer(X[:1]), (X[:1].cos() + 1) * 2)


def test_what_is_disabled(pair: Pair) -> None:
    plain = dc.disable(waves)
    outer = pair.torch_compile(lambda x: plain(x.cos()) + 1)
    torch.testing.assert_close(outer(X), waves(X.cos()) + 1)
    assert pair.counts() == (0, 2)


def test_keywords_and_many_arguments(pair: Pair) -> None:
    def weighted(x: Tensor, *more: Tensor, scale: float = 1.0, **named: Tensor) -> Tensor:
        return (x + sum(more)) * scale + sum(named.values())

    compiled = pair.compile(weighted)
    outer = pair.torch_compile(lambda x: compiled(x, x, x, scale=0.5, bias=x.cos()) + 1)
    torch.testing.assert_close(outer(X), weighted(X, X, X, scale=0.5, bias=X.cos()) + 1)


def test_threads(pair: Pair) -> None:
    """One runs ours, while another one's frames go through torch.compile's hook."""
    ours = pair.compile(waves)
    theirs = pair.torch_compile(lambda x: x.cos() + ours(x))
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(f: Any, wanted: Tensor) -> None:
        try:
            start.wait()
            for _ in range(30):
                torch.testing.assert_close(f(X), wanted)
        except BaseException as error:
            errors.append(error)

    jobs = [(ours, waves(X)), (theirs, X.cos() + waves(X))] * 2
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not installed()


ORDERS = """
import torch, torch.nn as nn
import dovetail_capture as dc
x = torch.ones(2, 3)
layer = nn.Linear(3, 3)
if {early}:
    compiled = dc.optimize(layer, dc.run_graph)
outer = torch.compile(lambda x: compiled(x.cos()) + 1, backend="eager")
if not {early}:
    compiled = dc.optimize(layer, dc.run_graph)
for _ in range(2):
    assert torch.allclose(outer(x), layer(x.cos()) + 1)
assert compiled.capture_context.log.graph_count == 1
"""


@pytest.mark.long
@pytest.mark.parametrize("early", [False, True])
def test_whichever_is_loaded_first(early: bool) -> None:
    program = textwrap.dedent(ORDERS).format(early=early)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
