"""A function that is one call of a library, or only takes views, goes on with its own code: the
guards are all that a call costs beside eager. Anything else is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_capture.frames.context import CaptureContext
from torch import Tensor, nn

import dovetail

Function = Callable[..., Any]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each frame that is compiled: whether it goes on with its own code."""
    found: list[bool] = []
    decide = CaptureContext.keeps_code

    def noted(context: CaptureContext, frame: Any, compiled: Any) -> bool:
        found.append(decide(context, frame, compiled))
        return found[-1]

    monkeypatch.setattr(CaptureContext, "keeps_code", noted)
    return found


def tensors(*shapes: tuple[int, ...], requires_grad: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    return [tensor.requires_grad_(requires_grad) for tensor in made]


AS_WRITTEN: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "a function of torch's": (torch.mm, ((4, 5), (5, 6))),
    "a product": (lambda x, y: x @ y, ((4, 5), (5, 6))),
    "bmm": (lambda x, y: torch.bmm(x, y), ((2, 4, 5), (2, 5, 6))),
    "attention": (F.scaled_dot_product_attention, ((1, 2, 4, 8),) * 3),
    "convolution": (lambda x, w: F.conv2d(x, w), ((1, 4, 8, 8), (3, 4, 3, 3))),
    "a bias": (lambda x, w, b: F.linear(x, w, b), ((4, 5), (6, 5), (6,))),
    "sort": (lambda x: x.sort(descending=True)[0], ((4, 5),)),
    "a view": (lambda x: x.view(-1), ((4, 5),)),
    "a slice": (lambda x: x[1:, 0], ((4, 5),)),
    "views": (lambda x: {"t": x.t(), "halves": x.chunk(2)}, ((4, 5),)),
}
# Functions of few elements whose calls, with those of their backwards, cost eager less than an
# autograd function costs; and others.
CHEAP: dict[str, Function] = {
    "a function": lambda x: x.exp(),
    "several calls in the backward": lambda x: x.cos(),
    "a reduction": lambda x: x.sum(),
    "a loop of eager's own": lambda x: x.softmax(-1),
    "a sum": lambda x: x + 1,
}
DEAR: dict[str, Function] = {
    "numbers in the backward": lambda x: x.square(),
    "many calls in the backward": lambda x: x.amax(-1),
    "what eager is slow to begin": lambda x: F.gelu(x),
    "two functions": lambda x: x.sin().cos(),
}
REPLACED: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "a kernel": (lambda x: x.exp(), ((4, 5),)),
    "a product and more": (lambda x, y: (x @ y).relu(), ((4, 5), (5, 6))),
    "two products": (lambda x, y: x @ y @ x, ((4, 5), (5, 4))),
    "a view and a value": (lambda x: (x.t(), x + 1), ((4, 5),)),
    "a function that calls another": (lambda x: product(x, x), ((4, 4),)),
    "what tells whether it is compiled": (
        lambda x: x @ x if torch.compiler.is_compiling() else x.exp(),
        ((4, 4),),
    ),
}


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def results_and_gradients(function: Function, given: list[Tensor]) -> list[Tensor | None]:
    results = torch.utils._pytree.tree_leaves(function(*given))
    grads: list[Tensor | None] = []
    if given[0].requires_grad:
        grads = list(torch.autograd.grad([r.square().sum() for r in results], given))
    return [*results, *grads]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", AS_WRITTEN)
def test_it_keeps_its_code(name: str, training: bool, kept: list[bool]) -> None:
    function, shapes = AS_WRITTEN[name]
    compiled = dovetail.compile(function, fullgraph=True)
    for given in (tensors(*shapes, requires_grad=training),) * 2:
        got, wanted = results_and_gradients(compiled, given), results_and_gradients(function, given)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
        assert [t.stride() for t in got] == [t.stride() for t in wanted]  # type: ignore[union-attr]
    assert kept == [True] and dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("name", [*CHEAP, *DEAR])
def test_a_small_function_keeps_its_code_where_its_backward_is_cheap(
    name: str, kept: list[bool]
) -> None:
    function = (CHEAP | DEAR)[name]
    for columns, cheap in ((4, name in CHEAP), (4096, False)):
        compiled = dovetail.compile(function, fullgraph=True, dynamic=False)
        for training in (True, False):
            given = tensors((4, columns), requires_grad=training)
            got = results_and_gradients(compiled, given)
            torch.testing.assert_close(got, results_and_gradients(function, given))
        assert kept == [cheap, False]
        kept.clear()


@pytest.mark.parametrize("name", REPLACED)
def test_another_is_replaced(name: str, kept: list[bool]) -> None:
    function, shapes = REPLACED[name]
    given = tensors(*shapes, requires_grad=False)
    got = dovetail.compile(function, fullgraph=True)(*given)
    if "whether" not in name:
        torch.testing.assert_close(got, function(*given))
    assert kept == [False]


def test_a_large_sum_of_a_bias_gradient_is_replaced(kept: list[bool]) -> None:
    given = tensors((256, 8), (128, 8), (128,), requires_grad=True)
    got = results_and_gradients(dovetail.compile(F.linear), given)
    torch.testing.assert_close(got, results_and_gradients(F.linear, given), rtol=1e-4, atol=1e-4)
    assert kept == [False]


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 4), (3, 4)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3), (1, 2, 5, 5)),
    "a layer in another": (lambda: nn.Sequential(nn.Linear(4, 4)), (3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_its_code_where_gradients_are_wanted(name: str, kept: list[bool]) -> None:
    """Without, the compiled call saves the time that reading the module takes."""
    make, shape = LAYERS[name]
    module, x = make(), torch.randn(shape)
    compiled, grads = dovetail.compile(module, fullgraph=True), []
    for run in (compiled, module):
        grads.append(torch.autograd.grad(run(x).square().sum(), list(module.parameters())))
    torch.testing.assert_close(*grads, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert kept == [True, False]
    module.weight = nn.Parameter(torch.zeros_like(next(module.parameters())))
    torch.testing.assert_close(compiled(x), module(x))


class Helped(nn.Module):
    """A layer with a method of its own, which may take any time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.of(x)

    def of(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_layer_that_inlines_other_code_is_replaced(kept: list[bool]) -> None:
    module, x = Helped(), torch.randn(3, 4)
    torch.testing.assert_close(dovetail.compile(module)(x), module(x))
    assert kept == [False]


def test_the_report_tells_whose_code_runs() -> None:
    compiled, x = dovetail.compile(product), torch.randn(4, 4)
    compiled(x, x)
    told = dovetail.report(compiled)
    (line,) = told.own_code
    assert line.startswith("product (") and told.graphs == 1 and not told.plain_frames
    assert f"runs the program's own code, which costs no more: {line}" in told.as_text()
    replaced = dovetail.compile(lambda x: x.exp())
    replaced(x)
    assert not dovetail.report(replaced).own_code


def test_its_guards_hold(kept: list[bool]) -> None:
    """What it was compiled for is told from anything else, and the rest is compiled for itself."""

    def either(x: Tensor, square: bool) -> Tensor:
        return x @ x if square else x * 2

    compiled, x = dovetail.compile(either, dynamic=False), torch.randn(4, 4)
    for square in (True, False, True, False):
        torch.testing.assert_close(compiled(x, square), either(x, square))
    assert kept == [True, False]
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4, 5), True)


def test_weights_computed_ahead_and_recorded_graphs_stay(kept: list[bool]) -> None:
    for options in ({"constant_weights": True}, {"cudagraphs": True}):
        x = torch.randn(4, 4)
        torch.testing.assert_close(dovetail.compile(product, options=options)(x, x), x @ x)
    assert kept == [False, False]
