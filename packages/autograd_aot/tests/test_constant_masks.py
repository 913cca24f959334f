"""A mask made of constants that hides nothing, or what comes later, is no argument of the attention
kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot import trace_joint
from torch import Tensor, fx

Q = torch.randn(2, 4, 8, 16)


def attend(x: Tensor, kind: str) -> Tensor:
    positions = torch.arange(8)
    if kind == "all true":
        mask = (positions[None, None, :, None] >= 0).expand(2, -1, 8, 8)
    elif kind == "all zero":
        mask = torch.zeros(8, 8) * 2
    elif kind == "causal":
        mask = positions[:, None] >= positions[None, :]
    elif kind == "causal, added":
        mask = torch.full((8, 8), float("-inf")).triu(1).expand(2, 1, 8, 8)
    elif kind == "causal, less":
        mask = torch.full((8, 8), -1e4).triu(1)
    elif kind == "a window":
        mask = (positions[:, None] - positions[None, :]).abs() < 3
    elif kind == "for one batch":
        mask = (positions[:, None] >= positions[None, :]) & (torch.arange(2) == 0).view(2, 1, 1, 1)
        mask = mask | (positions == 0)
    elif kind == "written":
        mask = torch.ones(8, 8, dtype=torch.bool)
        mask[0, 1:] = False
    else:
        mask = (x[0, 0, :, :8] > -1e9).expand(2, 1, 8, 8)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize(
    ("kind", "dropped", "causal"),
    [
        ("all true", True, False),
        ("all zero", True, False),
        ("causal", True, True),
        ("causal, added", True, True),
        ("causal, less", False, False),
        ("a window", False, False),
        ("for one batch", False, False),
        ("written", False, False),
        ("from an input", False, False),
    ],
)
def test_only_a_constant_that_hides_nothing_or_the_future_is_dropped(
    kind: str, dropped: bool, causal: bool
) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(attend, (x, kind)),))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        joint = trace_joint(gm, [Q])
        (got,) = joint.gm(Q)
        expected = attend(Q, kind)
    torch.testing.assert_close(got, expected)
    (node,) = [n for n in joint.gm.graph.nodes if "attention" in str(n.target)]
    assert (node.kwargs.get("attn_mask") is None and len(node.args) < 6) == dropped
    assert (len(node.args) > 4 and node.args[4] is True) == causal


def test_a_literal_number_is_no_constant_of_the_graph() -> None:
    """`torch.tensor(0.5)` is a number to kernels of any device; a vector is a tensor."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        least = torch.tensor(0.5)
        counter = torch.tensor(1).add_(2)
        return torch.minimum(x, least), x * torch.tensor([1.0, 2.0]), counter

    x = torch.randn(3, 2)
    graph = fx.Graph()
    graph.output(graph.call_function(fn, (graph.placeholder("x"),)))
    joint = trace_joint(fx.GraphModule(torch.nn.Module(), graph), [x])
    held = [n for n in joint.gm.graph.nodes if n.op == "get_attr"]
    assert len(held) == 1
    for got, wanted in zip(joint.gm(x), fn(x), strict=False):
        torch.testing.assert_close(got, wanted)
