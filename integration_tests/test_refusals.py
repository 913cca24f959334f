"""What eager refuses, a compiled call refuses, too: a sample of the sweep of errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sweep_errors import all_operators, difference, wrong_calls
from torch import Tensor

import dovetail

# What was computed, or raised otherwise.
SAMPLE = [
    "_foreach_addcdiv", "_foreach_addcmul", "_foreach_frac", "_foreach_lerp", "_foreach_norm",
    "abs", "bucketize", "clamp", "cumsum", "isin", "ldexp", "mvlgamma.mvlgamma_p_1",
    "nn.functional.celu", "nn.functional.hardshrink", "nn.functional.hardtanh",
    "nn.functional.interpolate.nearest", "nn.functional.max_unpool2d",
    "nn.functional.multi_margin_loss", "nn.functional.nll_loss", "nn.functional.pad.reflect",
    "nn.functional.smooth_l1_loss", "nn.functional.threshold", "nn.functional.unfold", "renorm",
    "round.decimals_3", "scatter", "scatter_add", "special.airy_ai", "square", "trace", "maximum",
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_what_the_database_lists_as_wrong(name: str) -> None:
    calls = wrong_calls(all_operators()[name], 1)
    found = [(what, difference(function, sample, "graphs")) for what, function, sample in calls]
    assert not [(what, text) for what, text in found if text]
    assert any(text == "" for _, text in found)


def test_the_sweep_sees_what_is_computed_nevertheless() -> None:
    def refusing(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            raise ValueError("no")
        return x + 1

    class Sample:
        input, args, kwargs = torch.ones(3), (), {}

    assert "ValueError" in (difference(refusing, Sample(), "capture") or "")


WRITTEN: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.clamp_(0.5), lambda x: x.clamp_(max=1.5), lambda x: torch.clamp_min_(x, 0.5),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_whole_numbers_between_those_that_are_not(number: int) -> None:
    fn = WRITTEN[number]
    for function in (fn, dovetail.compile(fn)):
        with pytest.raises(RuntimeError, match="can't be cast"):
            function(torch.arange(3))
    assert torch.equal(dovetail.compile(fn)(torch.ones(2)), fn(torch.ones(2)))
