"""Modules of torch that take another path without gradients: one graph, and eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail

X = torch.randn(2, 10, 32, generator=torch.Generator().manual_seed(0))
PADDING = torch.arange(10)[None, :] >= torch.tensor([[7], [10]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(10)


def attention() -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(32, 4, batch_first=True).eval()


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, **options).eval()


Call = Callable[[Any, Tensor], Any]
CASES: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "attention": (attention, lambda m, x: m(x, x, x)),
    "weights of each head": (attention, lambda m, x: m(x, x, x, average_attn_weights=False)),
    "no weights": (attention, lambda m, x: m(x, x, x, need_weights=False)[0]),
    "padding": (attention, lambda m, x: m(x, x, x, key_padding_mask=PADDING)),
    "causal": (attention, lambda m, x: m(x, x, x, attn_mask=CAUSAL, need_weights=False)[0]),
    "layer": (layer, lambda m, x: m(x)),
    "norm first, GELU": (lambda: layer(norm_first=True, activation="gelu"), lambda m, x: m(x)),
    "layer, padding": (layer, lambda m, x: m(x, src_key_padding_mask=PADDING)),
    "layer, causal": (layer, lambda m, x: m(x, src_mask=CAUSAL)),
    "encoder": (lambda: nn.TransformerEncoder(layer(), 2).eval(), lambda m, x: m(x)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
def test_as_eager(name: str, gradients: bool) -> None:
    make, call = CASES[name]
    module = make().train(gradients)
    compiled = dovetail.compile(lambda x: call(module, x))
    with torch.set_grad_enabled(gradients):
        got, wanted = compiled(X), call(module, X)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    report = dovetail.report(compiled)
    assert (report.graphs, len(report.breaks)) == (1, 0)


class Counting(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_under_a_mode_that_looks_at_operators() -> None:
    module = attention()
    compiled = dovetail.compile(lambda x: module(x, x, x)[0])
    with torch.no_grad():
        wanted = compiled(X)
        with Counting() as mode:
            torch.testing.assert_close(compiled(X), wanted, rtol=1e-4, atol=1e-5)
        assert mode.count > 0
        torch.testing.assert_close(compiled(X), wanted)
