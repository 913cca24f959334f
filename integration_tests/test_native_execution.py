"""No Python runs between kernels, and the work is in our kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from kept_plans import KeepingPlans
from torch import Tensor, nn

import dovetail
from dovetail.bench.models import architectures, cases

# Library calls that a compiled model may make: matrix products, convolutions, attention, pooling,
# embedding lookups, and their backwards.
LIBRARY = {
    "mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
    "avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    "embedding", "embedding_dense_backward",
}  # fmt: skip


def python_calls(call: Callable[..., object], *args: object) -> list[str]:
    """The Python functions entered while `call(*args)` runs, in order."""
    entered: list[str] = []

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            entered.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")

    sys.setprofile(profile)
    try:
        call(*args)
    finally:
        sys.setprofile(None)
    return entered


class Deep(nn.Module):
    """`depth` layers: the number of kernels grows with it."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + x
        return x


def test_a_training_step_enters_no_python_of_ours() -> None:
    model = Deep(2)
    compiled = dovetail.compile(lambda x: model(x).square().mean())
    x = torch.randn(4, 16)
    losses: list[Tensor] = []
    for _ in range(3):
        compiled(x).backward()
    forward = python_calls(lambda: losses.append(compiled(x)))
    backward = python_calls(losses[0].backward)
    assert not [name for name in (*forward, *backward) if "/dovetail_" in name]
    assert len(forward) <= 2, forward  # (this call, and the function that was compiled)


def test_python_calls_do_not_grow_with_the_number_of_kernels() -> None:
    counts = []
    for depth in (2, 12):
        model = Deep(depth).eval()
        compiled = dovetail.compile(model)
        x = torch.randn(4, 16)
        with torch.no_grad():
            compiled(x)
            counts.append(len(python_calls(compiled, x)))
        assert dovetail.report(compiled).kernels >= depth
    assert counts[0] == counts[1] <= 12, counts


@pytest.mark.parametrize("name", architectures())
def test_only_library_calls_that_are_worth_it(name: str) -> None:
    case = cases()[name](True)
    case.model.train()
    compiled = dovetail.compile(case.model, fullgraph=True)
    case.loss(compiled(**case.inputs)).backward()
    report = dovetail.report(compiled)
    called = {op.split("::")[1].split(".")[0] for op, _ in report.extern_ops}
    assert called <= LIBRARY, called - LIBRARY
    assert report.kernels > 0


def test_kernels_of_a_bert_layer() -> None:
    from transformers import BertConfig, BertModel

    kernels = []
    for layers in (1, 3):
        config = BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=64,
        )
        model = BertModel(config).eval()
        compiled = dovetail.compile(model, fullgraph=True)
        with torch.no_grad():
            compiled(input_ids=torch.randint(0, 64, (2, 8)))
        kernels.append(dovetail.report(compiled).kernels)
    assert kernels[1] - kernels[0] <= 2 * 4, kernels


def test_equal_layers_share_their_kernels() -> None:
    model = Deep(6).eval()
    backend = KeepingPlans()
    compiled = dovetail.compile(model, backend=backend)
    with torch.no_grad():
        compiled(torch.randn(4, 16))
    (graph,), (plan,) = backend.records.graphs, backend.plans
    assert len(plan.kernels) < graph.kernels
