"""Losses over many steps of training: compiled and eager go the same way.

The models have no dropout, or, in the last tests, dropout whose numbers are eager's.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.bench.models import Case, cases

MODELS = ["bert", "gpt2", "resnet18", "vit"]


def built(name: str, dropout: float) -> tuple[Case, Case, Case]:
    """A model, its copy, and its copy in float64."""
    torch.manual_seed(0)
    case = cases()[name](True)
    for module in case.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        if isinstance(getattr(module, "dropout_prob", None), float):
            module.dropout_prob = dropout
        if isinstance(getattr(module, "attn_dropout", None), float):
            module.attn_dropout = dropout
    case.model.train()
    wide = {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in case.inputs.items()
    }
    return (
        case,
        Case(copy.deepcopy(case.model), case.inputs, case.loss),
        Case(copy.deepcopy(case.model).double(), wide, case.loss),
    )


def curve(case: Case, call: Any, steps: int, rate: float) -> list[float]:
    """The losses of some steps on a few batches that come again and again."""
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=rate)
    torch.manual_seed(1)
    batches = [{k: _shuffled(v) for k, v in case.inputs.items()} for _ in range(4)]
    losses = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(step)
        loss = case.loss(call(**batches[step % 4]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss))
    return losses


def _shuffled(value: Any) -> Any:
    """Other numbers of the same kind (other rows of ids)."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value[torch.randperm(len(value))].roll(int(torch.randint(3, ())), -1).contiguous()


def assert_same_curve(name: str, steps: int, dropout: float = 0.0) -> None:
    """Every loss is eager's but for rounding: a thousandth of it (a hundredth, over many steps: a
    ReLU that rounding turns on or off is a step that AdamW makes larger), or three times what
    eager itself was off the curve of float64 by then, or, over many steps, off its own curve in
    channels-last memory, where it rounds otherwise in each step. (Dropout draws other numbers in
    float64, so there that does not count.)"""
    ours, theirs, wide = built(name, dropout)
    turned = built(name, dropout)[1] if steps > 20 else None
    got = curve(ours, dovetail.compile(ours.model, fullgraph=True), steps, 3e-4)
    expected = curve(theirs, theirs.model, steps, 3e-4)
    exact = expected if dropout else curve(wide, wide.model, steps, 3e-4)
    other = expected
    if turned is not None:
        turned.model.to(memory_format=torch.channels_last)
        other = curve(turned, turned.model, steps, 3e-4)
    assert expected[-1] < expected[0], "it does not learn"
    off = 0.0
    for step, mine in enumerate(got):
        eager = expected[step]
        off = max(off, abs(eager - exact[step]), abs(eager - other[step]))
        allowed = max((1e-3 if steps < 20 else 1e-2) * eager, 3 * off)
        assert abs(mine - eager) <= allowed, f"step {step}: {mine}, eager {eager}, {exact[step]}"


@pytest.mark.parametrize("name", MODELS)
def test_short(name: str) -> None:
    assert_same_curve(name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_long(name: str) -> None:
    assert_same_curve(name, 200)


def gradients(case: Case, call: Any, batch: dict[str, Any]) -> list[Tensor]:
    """In float64, those of one step."""
    for parameter in case.model.parameters():
        parameter.grad = None
    case.loss(call(**batch)).backward()
    return [p.grad.double() for p in case.model.parameters() if p.grad is not None]


def distance(found: list[Tensor], exact: list[Tensor]) -> float:
    return float(torch.stack([(a - b).norm() for a, b in zip(found, exact, strict=True)]).norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_gradients_along_the_way(name: str) -> None:
    """At the weights that eager reaches, until little of the loss is left: the gradients are as
    close to those of float64 as eager's."""
    ours, theirs, wide = built(name, 0.0)
    compiled = dovetail.compile(ours.model, fullgraph=True)
    optimizer = torch.optim.AdamW(theirs.model.parameters(), lr=3e-4)
    torch.manual_seed(1)
    batches = [{k: _shuffled(v) for k, v in theirs.inputs.items()} for _ in range(4)]
    for step in range(100):
        batch = batches[step % 4]
        if step % 11 == 0:
            state = copy.deepcopy(theirs.model.state_dict())  # statistics move with each forward
            ours.model.load_state_dict(state)
            wide.model.load_state_dict(state)
            exact_batch = {
                k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
                for k, v in batch.items()
            }
            exact = gradients(wide, wide.model, exact_batch)
            off = distance(gradients(theirs, theirs.model, batch), exact)
            theirs.model.load_state_dict(state)
            assert distance(gradients(ours, compiled, batch), exact) <= 1.5 * off, f"step {step}"
        optimizer.zero_grad(set_to_none=True)
        theirs.loss(theirs.model(**batch)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_short_with_dropout(name: str) -> None:
    assert_same_curve(name, 12, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_long_with_dropout(name: str) -> None:
    assert_same_curve(name, 200, 0.1)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_whole_steps(name: str) -> None:
    """Forward with dropout, loss, backward and AdamW's step in one graph."""
    losses = []
    ours, theirs, _ = built(name, 0.1)
    for case, compile_it in ((ours, True), (theirs, False)):
        optimizer = torch.optim.AdamW(case.model.parameters(), lr=3e-4)

        def step(batch: Any, case: Case = case, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = case.loss(case.model(**batch))
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = dovetail.compile(step, fullgraph=True) if compile_it else step
        torch.manual_seed(1)
        losses.append([float(call(case.inputs)) for _ in range(4)])
        if compile_it:
            assert dovetail.report(call).graphs <= 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
