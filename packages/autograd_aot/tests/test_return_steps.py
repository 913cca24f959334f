"""What a call returns, as a program of steps, and how a person reads it."""

from __future__ import annotations

import pytest
import torch
from aot_testing import as_graph
from dovetail_autograd_aot import trace_joint
from dovetail_autograd_aot.boundary import (
    Comparison,
    Constant,
    Duplicate,
    InMemoryOf,
    InputItself,
    NewTensor,
    TensorRef,
    ViewOf,
)


def returned(x, y):
    made = x * 2
    y.add_(1)
    return made, made, made[0], x, x.t()[1], made.detach(), None


def steps_of(f, *inputs):
    return trace_joint(as_graph(f, len(inputs)), inputs).signature


def test_each_output_is_one_step():
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3)
    steps = [info.step for info in steps_of(returned, x, y).outputs]
    assert steps[0] == NewTensor(0)
    assert steps[1] == Duplicate(0)
    assert isinstance(steps[2], ViewOf) and steps[2].base == TensorRef(False, 0)
    assert steps[3] == InputItself(0)
    assert isinstance(steps[4], ViewOf) and steps[4].base == TensorRef(True, 0)
    assert len(steps[4].view) == 2
    assert isinstance(steps[5], ViewOf) and steps[5].detached == 0
    assert steps[6] == Constant(None)


def test_the_signature_is_readable():
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3)
    text = steps_of(returned, x, y).as_text()
    assert "input 0: requires grad" in text
    assert "input 1: gets forward output 1, unseen by autograd" in text
    assert "output 0: forward output 0, requires grad" in text
    assert "output 1: the same object as output 0" in text
    assert "output 3: input 0 itself" in text
    assert "output 4: view of input 0.aten.t.default().aten.select.int(0, 1), requires grad" in text
    assert "output 6: the constant None" in text
    assert all(line.startswith("# ") for line in text.splitlines())


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Comparison(1, int.__eq__, 1), "__eq__(forward output 1, 1)"),
        (InMemoryOf(0, TensorRef(True, 2), ()), "forward output 0, in the memory of input 2"),
        (ViewOf(TensorRef(False, 1), (), view_of=3, of_set=True), "by way of output 3, after set_"),
    ],
)
def test_texts_of_uncommon_steps(step, text):
    assert text in str(step)
