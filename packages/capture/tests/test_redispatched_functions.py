"""`torch.overrides.redispatch_function` in a `__torch_function__`."""

from __future__ import annotations

import pytest
import torch
from dovetail_capture import optimize, run_graph
from torch import overrides

pytestmark = pytest.mark.skipif(
    not hasattr(overrides, "redispatch_function"), reason="since torch 2.13"
)


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args, kwargs=None):
        return overrides.redispatch_function(func, types, args, kwargs or {})


def scaled(a, b):
    if overrides.has_torch_function((a, b)):
        return overrides.handle_torch_function(scaled, (a, b), a, b)
    return a * b + a


def program(a, b):
    return scaled(a, b).sin()


def test_a_function_that_is_called_without_its_class():
    compiled = optimize(program, run_graph)
    for wraps in (True, False, True):
        tensors = torch.ones(2), torch.full((2,), 3.0)
        given = [t.as_subclass(Tagged) if wraps else t for t in tensors]
        expected, found = program(*given), compiled(*given)
        assert type(found) is type(expected)
        assert torch.equal(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert not torch._C._peek_should_skip_torch_function()
