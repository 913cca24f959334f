"""Attention by its kernels' operators, against PyTorch's choice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dovetail_prims.attention import attention
from torch import Tensor

MASKS = {
    "none": None,
    "boolean": torch.ones(8, 8, dtype=torch.bool).tril(),
    "boolean of every batch": torch.ones(1, 1, 8, 8, dtype=torch.bool).tril().expand(2, 1, 8, 8),
    "added": torch.randn(2, 1, 8, 8),
    "added, turned": torch.randn(1, 8, 8, 4).permute(0, 3, 1, 2),
}


CASES = [(mask, False) for mask in MASKS] + [("none", True)]  # a mask, or causal: not both


@pytest.mark.parametrize(("mask", "causal"), CASES)
@pytest.mark.parametrize("heads", [4, 1])
def test_as_pytorch_computes_it(mask: str, heads: int, causal: bool) -> None:
    """`heads` of keys and values: one serves all queries, which only the plain formula takes."""
    chosen: Tensor | None = MASKS[mask]
    q, k, v = torch.randn(2, 4, 8, 16), torch.randn(2, heads, 8, 16), torch.randn(2, heads, 8, 16)
    with pytest.MonkeyPatch.context() as patch:
        # The plain formula, as on a GPU for what no fused kernel takes.
        patch.setattr("dovetail_prims.attention.choose_backend", lambda *args: "math")
        got = attention(q, k, v, chosen, is_causal=causal)
    torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v, chosen, 0.0, causal))
