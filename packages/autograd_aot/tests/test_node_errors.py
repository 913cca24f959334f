"""An error in the trace tells the captured graph's node that it comes from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dovetail_autograd_aot.joint.joint_trace import trace_joint
from dovetail_prims.node_facts import blamed


@torch.library.custom_op("dovetail_test::reads_backward", mutates_args=())
def reads_backward(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x * n.tolist()[0]


@reads_backward.register_fake
def _(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    return grad * ctx.saved_tensors[0].tolist()[0], None


reads_backward.register_autograd(_backward, setup_context=_setup)


def _graph(*targets: Any) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    for target in targets:
        x = graph.call_function(target, (x, n) if target is reads else (x,))
    graph.output((x,))
    return torch.fx.GraphModule({}, graph)


reads = torch.ops.dovetail_test.reads_backward.default


def test_forward() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        return x * x.tolist()[0]

    gm = _graph(torch.sin, fails, torch.cos)
    with pytest.raises(Exception) as caught:
        trace_joint(gm, [torch.randn(3), torch.tensor([2])])
    assert blamed(caught.value) == "fails"


def test_backward() -> None:
    gm = _graph(torch.sin, reads, torch.cos)
    with pytest.raises(Exception) as caught:
        trace_joint(gm, [torch.randn(3, requires_grad=True), torch.tensor([2])])
    assert blamed(caught.value) == next(n.name for n in gm.graph.nodes if n.target is reads)
