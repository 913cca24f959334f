"""`scaled_dot_product_attention` with a bool mask, as encoders of sentences call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail

MODES: dict[str, Callable[[], Any]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [2, 3])
def test_any_sizes(mode: str, first: int) -> None:
    torch.manual_seed(first)
    projection = nn.Linear(32, 96)

    def attend(x: Tensor, kept: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, -1, 16).transpose(1, 2) for t in projection(x).chunk(3, -1))
        mask = kept[:, None, None, :].to(torch.bool).expand(b, 1, s, s)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.25)

    compiled = dovetail.compile(attend)
    for rows, length in ((first, 10), (2, 4), (4, 7), (5, 12)):
        x, kept = torch.randn(rows, length, 32), torch.ones(rows, length, dtype=torch.int64)
        kept[-1, length - 2 :] = 0
        with MODES[mode]():
            torch.testing.assert_close(compiled(x, kept), attend(x, kept), atol=1e-5, rtol=1e-5)
    report = dovetail.report(compiled)
    assert not report.breaks and report.graphs <= 3
