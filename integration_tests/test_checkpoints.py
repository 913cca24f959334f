"""What eager's checkpoints compute again: random numbers, and forms of the call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as torch_checkpoint
from dovetail_capture.errors import CaptureError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import dovetail

Call = Callable[[Tensor], Tensor]


def block(x: Tensor) -> Tensor:
    return F.dropout(x * 2, 0.5).sin() * x


def quiet(x: Tensor) -> Tensor:
    q = x.view(1, 1, 3, 4)
    y = F.scaled_dot_product_attention(q, q, q).view(3, 4)
    return F.dropout(y * 2, 0.5, training=False).sin() * x


def drawn(call: Call) -> list[Tensor]:
    """The result and the gradient, and what the generator gives next after each of both."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    y = call(x)
    between = torch.rand(1)
    y.sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, between, torch.rand(1)]


def called(function: Call, **kwargs: Any) -> Call:
    return lambda x: checkpoint(function, x.cos(), **kwargs).exp()


def nested(function: Call, **kwargs: Any) -> Call:
    inner = called(function, use_reentrant=False)
    return lambda x: checkpoint(inner, x.cos(), **kwargs).exp()


def decorated(function: Call, **kwargs: Any) -> Call:
    made: Call = checkpoint(**kwargs)(function)
    return lambda x: made(x.cos()).exp()


def in_a_row(function: Call, **kwargs: Any) -> Call:
    return lambda x: checkpoint_sequential([function, function], 2, x.cos(), **kwargs).exp()


DECORATES = pytest.mark.skipif(
    not hasattr(torch_checkpoint, "_checkpoint_impl"), reason="this torch's is no decorator"
)
FORMS = [called, nested, in_a_row, pytest.param(decorated, marks=DECORATES)]


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_a_backward_draws_anew(form: Any, reentrant: bool, backend: str) -> None:
    method = form(block, use_reentrant=reentrant, preserve_rng_state=False)
    call = dovetail.compile(method, backend=backend)
    torch.testing.assert_close(drawn(call), drawn(method))
    assert any("its backward draws others" in b.reason for b in dovetail.report(call).breaks)


@pytest.mark.parametrize("function, preserve", [(block, True), (quiet, False)])
@pytest.mark.parametrize("form", FORMS)
def test_one_graph_where_a_backward_draws_nothing(
    form: Any, function: Call, preserve: bool
) -> None:
    method = form(function, use_reentrant=False, preserve_rng_state=preserve)
    call = dovetail.compile(method, fullgraph=True)
    torch.testing.assert_close(drawn(call), drawn(method))
    assert any("operators run again" in line for line in dovetail.report(call).autograd)


def test_without_gradients_nothing_is_computed_again() -> None:
    method = called(block, use_reentrant=False, preserve_rng_state=False)
    call = dovetail.compile(method, fullgraph=True)
    found = []
    for each in (call, method):
        torch.manual_seed(0)
        with torch.no_grad():
            found.append(each(torch.ones(3, 4)))
    torch.testing.assert_close(found[0], found[1])


def breaks(x: Tensor) -> Tensor:
    dovetail.graph_break()
    return (x * 2).sin() * x


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_that_eager_runs(form: Any) -> None:
    """Its function is computed again where nothing is compiled, and so has to save what it saves
    there."""
    method = form(breaks, use_reentrant=False)
    torch.testing.assert_close(drawn(dovetail.compile(method, backend="aot_eager")), drawn(method))


class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).sin() * x


@pytest.mark.filterwarnings("ignore:module forward hook with")
def test_a_module_that_its_hooks_checkpoint_is_refused() -> None:
    composable = pytest.importorskip("torch.distributed._composable")
    net = nn.Sequential(Layer())
    composable.checkpoint(net[0])
    with pytest.raises(CaptureError, match="a module whose hooks checkpoint it"):
        dovetail.compile(net, backend="aot_eager")(torch.ones(3, requires_grad=True))


LAYER = torch.nn.Linear(3, 3)


def default_way(x: Tensor) -> Tensor:
    return checkpoint(LAYER, x)  # type: ignore[no-any-return]


def reentrant(x: Tensor) -> Tensor:
    return checkpoint(LAYER, x, use_reentrant=True)  # type: ignore[no-any-return]


def not_reentrant(x: Tensor) -> Tensor:
    return checkpoint(LAYER, x, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("program", [default_way, reentrant, not_reentrant])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_reentrant_region_of_constants_gives_no_gradient(
    program: Any, requires_grad: bool
) -> None:
    """Whatever it closes over; and what eager warns of is warned of, in each call."""
    x = torch.ones(2, 3, requires_grad=requires_grad)
    outcomes = []
    for function in (program, dovetail.compile(program, fullgraph=True)):
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                y = function(x)
            outcomes.append((y.requires_grad, [str(warning.message)[:40] for warning in caught]))
    assert outcomes == outcomes[:1] * 4
