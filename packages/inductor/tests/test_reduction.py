"""The value type `Reduction`: what its properties promise, against arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from dovetail_inductor.loop_ir.reduction import REDUCTIONS, SCANS, Reduction
from torch import Tensor

COMBINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "logaddexp": torch.logaddexp,
    "bitwise_or": torch.bitwise_or,
    "bitwise_and": torch.bitwise_and,
    "bitwise_xor": torch.bitwise_xor,
}


def elements(reduction: Reduction, dtype: torch.dtype) -> Tensor | None:
    if reduction.adds_logarithms and not dtype.is_floating_point:
        return None
    if reduction.combine.startswith("bitwise"):
        held = torch.int64 if reduction.combine == "bitwise_xor" else torch.bool
        if dtype is not held:
            return None
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if dtype.is_floating_point:
        return torch.tensor([-torch.inf, -2.5, 0.0, 1.0, torch.inf, torch.nan], dtype=dtype)
    limits = torch.iinfo(dtype)
    return torch.tensor([limits.min, 0, 1, limits.max], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("reduction", dict.fromkeys([*REDUCTIONS.values(), *SCANS]), ids=str)
def test_the_identity_changes_nothing(reduction: Reduction, dtype: torch.dtype) -> None:
    values = elements(reduction, dtype)
    if values is None:
        return
    nothing = torch.full_like(values, reduction.identity(dtype))
    for a, b in ((values, nothing), (nothing, values)):
        got = COMBINED[reduction.combine](a, b)
        torch.testing.assert_close(got, values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=str)
def test_on_truth_values_another_one_means_the_same(reduction: Reduction) -> None:
    on_bool = reduction.on(torch.bool)
    assert reduction.on(torch.float32) is reduction
    if on_bool is reduction:
        return
    for a in (False, True):
        for b in (False, True):
            x, y = torch.tensor(a), torch.tensor(b)
            own = COMBINED[reduction.combine](x.long(), y.long()).bool()
            assert COMBINED[on_bool.combine](x, y) == own
