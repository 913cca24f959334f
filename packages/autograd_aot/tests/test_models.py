"""Whole small models against eager, with the sizes of their graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, check, lift
from dovetail_autograd_aot import min_cut_partition, trace_joint
from dovetail_prims.dialects.dialect import Dialect, verify
from torch import nn
from trace_costs import Block, LanguageModel


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x)), inplace=True), 3, 2, 1)
        x = x + F.hardswish(self.norm2(self.depthwise(x)))
        return self.head(x.mean((2, 3)))


class MaskedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        scores = scores.masked_fill(~keep[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(2, 6, 16)), weights


MODELS = {
    "block": (Block(16, 2), [torch.randn(2, 6, 16)]),
    "language_model": (LanguageModel(2, 16, 32), [torch.randint(0, 32, (2, 6))] * 2),
    "conv_net": (ConvNet(), [torch.randn(2, 3, 16, 16)]),
    "masked_attention": (MaskedAttention(), [torch.randn(2, 6, 16), torch.rand(2, 6) > 0.3]),
    "lstm_cell": (nn.LSTMCell(4, 5), [torch.randn(3, 4)]),
    "group_norm": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.LeakyReLU(), nn.Upsample(scale_factor=2)
        ),
        [torch.randn(2, 3, 6, 6)],
    ),
}


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_model(name, mode, table):
    module, inputs = MODELS[name]
    fn, values = lift(module.train(mode == "train"))
    with torch.set_grad_enabled(mode == "train"):
        check(fn, [*values, *inputs], table=table, grad=mode == "train")


def test_statistics_move_as_in_eager():
    module, inputs = MODELS["conv_net"]
    fn, values = lift(module.train())
    # running_mean, running_var, num_batches_tracked of two norms are written back.
    joint = trace_joint(as_graph(fn, len(values) + 1), [*values, *inputs])
    assert len(joint.signature.changes.mutated) == 6
    assert all(m.data_only for m in joint.signature.changes.mutated)


def test_graph_sizes():
    """Guards against a simplification getting lost."""
    fn, values = lift(Block(16, 2).eval())
    gm = as_graph(fn, len(values) + 1)
    x = torch.randn(2, 6, 16)

    def count(table, grad):
        with torch.set_grad_enabled(grad):
            joint = trace_joint(gm, [*values, x], decompositions=TABLES[table])
        return sum(n.op == "call_function" for n in joint.gm.graph.nodes)

    assert count("aten", False) <= 48
    assert count("aten", True) <= 115


def test_views_of_views_are_one_view():
    def fn(a):
        b = a.view(2, 12).view(4, 6).view(-1, 3).view(24).sin()
        c = a.permute(2, 0, 1).permute(1, 2, 0).cos()
        d = a.view(6, 4).t().t().exp()
        return b, c, d

    for table in TABLES.values():
        joint = trace_joint(as_graph(fn, 1), [torch.randn(2, 3, 4)], decompositions=table)
        names = [n.target.__name__ for n in joint.gm.graph.nodes if n.op == "call_function"]
        assert sorted(names) == [
            "cos.default", "exp.default", "sin.default", "view.default", "view.default",
        ]  # fmt: skip


def test_every_node_has_a_value_and_its_stack_trace():
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    b = graph.call_function(torch.sin, (a,))
    b.meta["stack_trace"] = 'File "model.py", line 3, in forward'
    graph.output((b,))
    gm = torch.fx.GraphModule(nn.Module(), graph)
    joint = trace_joint(gm, [torch.randn(3, requires_grad=True)])
    for node in joint.gm.graph.nodes:
        assert "val" in node.meta
    (sin,) = [n for n in joint.gm.graph.nodes if n.target is torch.ops.aten.sin.default]
    assert sin.meta["stack_trace"] == 'File "model.py", line 3, in forward'


@pytest.mark.parametrize("name", sorted(MODELS))
def test_parts_are_core_aten(name):
    module, inputs = MODELS[name]
    fn, values = lift(module.train())
    joint = trace_joint(
        as_graph(fn, len(values) + len(inputs)), [*values, *inputs], decompositions=TABLES["core"]
    )
    parts = min_cut_partition(joint)
    verify(parts.forward, Dialect.CORE_ATEN)
    verify(parts.backward, Dialect.CORE_ATEN)


def test_readme():
    text = (Path(__file__).parent.parent / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
