"""trace_aten: the recorded graph computes what the function computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_prims import Dialect, FakeTensor, trace_aten, verify
from dovetail_prims.fake.fake_mode import FakeMode
from torch import Tensor, nn

aten = torch.ops.aten


def test_graph_computes_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(72, 5),
    ).eval()  # fmt: skip

    def fn(x: Tensor, others: list[Tensor]) -> dict[str, Any]:
        return {"y": model(x), "z": [o.split(1)[1] + torch.arange(4) for o in others], "n": 3}

    args = (torch.randn(2, 3, 8, 8), [torch.randn(2, 4)])
    gm = trace_aten(fn, *args)
    verify(gm, Dialect.ATEN)
    assert all("val" in n.meta for n in gm.graph.nodes)
    assert [n.op for n in gm.graph.nodes].count("placeholder") == 2
    got, expected = gm(args[0], args[1][0]), fn(*args)
    torch.testing.assert_close(got, expected)
    relu = next(n for n in gm.graph.nodes if n.target is aten.relu.default)
    assert isinstance(relu.meta["val"], FakeTensor)


def test_mutation_stays_and_dead_code_goes() -> None:
    def fn(x: Tensor) -> Tensor:
        torch.zeros(3)
        x.add_(1)
        return x * 2

    gm = trace_aten(fn, torch.zeros(3))
    assert [str(n.target) for n in gm.graph.nodes if n.op == "call_function"] == [
        "aten.add_.Tensor",
        "aten.mul.Tensor",
    ]


def test_decompositions_apply_inside_each_other() -> None:
    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    def sigmoid(x: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-x))

    table = {aten.silu.default: silu, aten.sigmoid.default: sigmoid}
    x = torch.randn(5)
    gm = trace_aten(nn.functional.silu, x, decompositions=table)
    names = {str(n.target) for n in gm.graph.nodes if n.op == "call_function"}
    assert "aten.exp.default" in names and not names & {"aten.silu.default", "aten.sigmoid.default"}
    torch.testing.assert_close(gm(x), nn.functional.silu(x))
    refused = trace_aten(
        nn.functional.silu, x, decompositions={aten.silu.default: lambda x: NotImplemented}
    )
    assert any(n.target is aten.silu.default for n in refused.graph.nodes)


def test_stack_trace_and_shared_inputs() -> None:
    base = torch.zeros(4)
    gm = trace_aten(lambda a, b: a + b, base, base[1:][:1], with_stack_trace=True)
    add = next(n for n in gm.graph.nodes if n.op == "call_function")
    assert "test_record" in add.meta["stack_trace"]
    a, b = (n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder")
    assert a._storage is b._storage


@pytest.mark.parametrize(
    "call, drew",
    [
        (lambda x: F.dropout(x, 0.5), True),
        (lambda x: F.dropout(x, 0.5, training=False), False),
        (lambda x: torch.rand_like(x), True),
        (lambda x: F.scaled_dot_product_attention(x, x, x), False),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), True),
        (lambda x: torch.ops.aten.native_dropout(x, 0.5, False), False),
        (lambda x: torch.ops.aten.native_dropout(x, 0.5, None), True),
        (lambda x: F.rrelu(x, training=True), True),
    ],
)
def test_a_mode_tells_whether_the_generator_moved(call: Any, drew: bool) -> None:
    before = torch.get_rng_state()
    call(-torch.ones(1, 2, 4, 8))
    assert drew != torch.equal(before, torch.get_rng_state())
    mode = FakeMode()
    with mode:
        call(-torch.ones(1, 2, 4, 8))
    assert mode.drew is drew
