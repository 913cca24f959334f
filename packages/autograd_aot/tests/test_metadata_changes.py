"""In-place views: as_strided_ as pooling of channels-last images makes it, t_ and what follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot import aot_compile
from torch import Tensor
from torch.fx import symbolic_trace

CASES: list[tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]] = [
    ("pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 8, 5, 7)),
    ("pool2d, flattened", lambda x: F.adaptive_avg_pool2d(x * 2, 1).flatten(1), (2, 8, 5, 7)),
    ("pool3d", lambda x: F.adaptive_avg_pool3d(x, 1) + 1, (2, 3, 4, 5, 7)),
    ("as_strided_", lambda x: (x * 2).as_strided_((2, 3), (3, 1)), (4, 6)),
    ("written to after t_", lambda x: (x * 2).t_().mul_(3), (4, 6)),
]


@pytest.mark.parametrize(("name", "function", "shape"), CASES, ids=[c[0] for c in CASES])
def test_equals_eager(
    name: str, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = torch.randn(shape)
    if len(shape) in formats:
        x = x.to(memory_format=formats[len(shape)])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    gm = symbolic_trace(lambda x: (function(x),))
    compiled = aot_compile(gm, [ours], forward_compiler=lambda graph, inputs: graph.forward)
    (got,), expected = compiled(ours), function(theirs)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    weight = torch.randn_like(expected)
    (got * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
