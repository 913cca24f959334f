"""`export`: whole graphs that equal the model, or errors that help."""

from __future__ import annotations

import dovetail_capture as dc
import pytest
import torch
from torch import nn

X = torch.randn(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.head_alias = self.head

    def forward(self, batch, *, scale=1.0, tail=None):
        y = self.inner(batch["x"]) * scale
        out = {"y": self.head(y), "rest": [batch["x"], self.head.weight, scale, None]}
        if tail is not None:
            out["tail"] = self.head_alias(tail)
        return out


def test_equals_the_model_with_its_parameters():
    net = Net().eval()
    exported = dc.export(net, ({"x": X},), {"scale": 2.0, "tail": X})
    assert {n for n, _ in exported.gm.named_parameters()} >= {
        "inner.0.weight", "inner.0.bias", "head.weight", "head.bias",
    }  # fmt: skip
    assert exported.gm.get_parameter("head.weight") is net.head.weight
    for value in (X, X * 3):
        got = exported({"x": value}, scale=2.0, tail=value)
        torch.testing.assert_close(got, net({"x": value}, scale=2.0, tail=value), rtol=0, atol=0)
    assert "head" in exported.as_text()
    torch.testing.assert_close(exported.gm(X, 2.0, X)[0], net({"x": X}, scale=2.0)["y"])


def test_inputs_of_another_kind_are_refused():
    exported = dc.export(Net().eval(), ({"x": X},))
    with pytest.raises(ValueError, match="structure"):
        exported({"z": X})
    with pytest.raises(ValueError, match="input leaf 0"):
        exported({"x": X.double()})
    with pytest.raises(ValueError, match="must be a tensor"):
        exported({"x": 3})
    scaled = dc.export(lambda x, k: x * k, (X, 2))
    assert torch.equal(scaled(X, 2), X * 2)
    with pytest.raises(ValueError, match="constant 2"):
        scaled(X, 3)


def test_functions_and_methods():
    weight = torch.randn(4)

    def function(x, *rest, k=2):
        return (x + weight, *rest), x

    exported = dc.export(function, (X, 5), {"k": 3})
    (y, five), same = exported(X, 5, k=3)
    assert torch.equal(y, X + weight) and five == 5 and same is X
    assert any(t is weight for t in exported.gm.state_dict(keep_vars=True).values())
    exported = dc.export(Net().eval().forward, ({"x": X},))
    assert exported({"x": X})["y"].shape == (3, 2)


def test_a_break_names_the_place_and_the_way_round():
    def function(x):
        y = x + 1
        print("in the way")
        return y

    with pytest.raises(dc.GraphBreakError) as info:
        dc.export(function, (X,))
    message = str(info.value)
    assert "test_export.py" in message and 'print("in the way")' in message and "hint" in message


def test_side_effects_are_refused():
    class Counter(nn.Module):
        def forward(self, x):
            self.count = getattr(self, "count", 0) + 1
            return x * 2

    counter = Counter()
    with pytest.raises(dc.CaptureError, match="outlives the call"):
        dc.export(counter, (X,))
    assert not hasattr(counter, "count")
    hooked = Net()
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(dc.CaptureError, match="hooks"):
        dc.export(hooked, ({"x": X},))
    with pytest.raises(dc.CaptureError, match="not a Python function"):
        dc.export("not a function", ([],))


def test_results_that_cannot_be_taken_apart_are_refused():
    class Opaque:
        def __init__(self, x):
            self.x = x

    with pytest.raises(dc.CaptureError, match=r"holds a .*Opaque"):
        dc.export(lambda x: Opaque(x + 1), (X,))
