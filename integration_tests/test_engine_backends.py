"""Backends around other engines, wherever their packages are installed: ONNX Runtime, OpenVINO and
TVM run what they are given, and the rest is counted and runs as it is.

    uv run --extra onnxrt --extra openvino --extra tvm pytest -k engine_backends integration_tests
"""

from __future__ import annotations

import copy
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_capture.reporting.failures import UncompiledWarning
from torch import Tensor, nn

import dovetail
from dovetail.backends import registry

ENGINES = ("onnxrt", "openvino", "tvm")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    needed = registry._NAMED[name].packages
    missing = [p for p in needed if importlib.util.find_spec(p) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (the extra {name!r})")
    return name


def counts(compiled: Any) -> list[Any]:
    found: list[Any] = compiled.capture_context.backend.counts
    return found


def bert() -> tuple[nn.Module, Tensor]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=200,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    return BertModel(config), torch.randint(0, 200, (2, 16))


def resnet() -> tuple[nn.Module, Tensor]:
    import timm

    return timm.create_model("resnet18", num_classes=10), torch.randn(1, 3, 64, 64)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("make", "least"), [(bert, 50), (resnet, 60)])
def test_models_are_equal_to_eager(
    engine: str, make: Callable[[], tuple[nn.Module, Tensor]], least: int, constant: bool
) -> None:
    torch.manual_seed(0)
    model, x = make()
    model.eval()
    options = {"constant_weights": True} if constant else None
    compiled = dovetail.compile(model, backend=engine, options=options)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
        (count,) = counts(compiled)
        assert count.regions == 1 and count.operators >= least
        for parameter in list(model.parameters())[:8]:
            parameter.mul_(1.5)
        torch.testing.assert_close(compiled(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
    text = dovetail.report(compiled).as_text()
    assert f"{engine}: {count.operators} operators in 1 regions" in text
    assert "embedding" in text or make is resnet


# Each on two tensors of 20 x 20.
OPERATORS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda a, b: (a + b, a - b, a * b, a / b, 1 - a, a + 2, a * 0.5, torch.add(a, b, alpha=2)),
    lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), a.clamp(-1, 2), a.clamp(min=0.5)),
    lambda a, b: (a == b, a != b, a < b, a > b, a <= b, a >= b, a == 0.1, a > 1),
    lambda a, b: (torch.where(a > b, a, b), (a > 0) & (b > 0), (a > 0) | (b > 0), ~(a > 0)),
    lambda a, b: (-a, a.abs(), a.exp(), a.log(), a.sqrt(), a.rsqrt(), a.sin(), a.cos()),
    lambda a, b: (a.tanh(), a.sigmoid(), a.erf(), a.relu(), a.reciprocal(), a.floor(), a.ceil()),
    lambda a, b: (a.round(), a**2, a**3, a**-1, a.abs() ** 0.5, torch.pow(a.abs(), b)),
    lambda a, b: (F.gelu(a, approximate="tanh"), F.silu(a), F.elu(a), F.leaky_relu(a, 0.1)),
    lambda a, b: (a.sum(1), b.sum(0, keepdim=True), a.mean((0, 1)), a.sum(), b.mean(-1)),
    lambda a, b: (b.amax(0), a.amin(), (a > b).all(), (a > b).any(0), (a > b).all(1, True)),
    lambda a, b: (F.layer_norm(b, (20,)), F.softplus(a), torch.where(a > b, a > 0, b > 0)),
    lambda a, b: ((a > b) * b, (a > 0).float(), a.bool(), a.masked_fill(b > 0, -1e9)),
    lambda a, b: (F.pad(a, (1, 2, 0, 1), value=3.0), torch.full((2, 3), 0.5) + a[0, 0]),
    lambda a, b: (a[1], a[:, -2] + 1, a[3:11:2].exp(), torch.stack([a, b]) * 2),
    lambda a, b: (torch.cat([a, b], 1).abs(), (a.t() * 2).reshape(-1), (a.split(7)[2] + 1).t()),
    lambda a, b: ((a * 2)[None].expand(3, 20, 20), (a + 1).reshape(4, 5, 20).permute(2, 0, 1)),
)
# These on numbers, where NaN and infinities would make whole rows of them.
OPERATORS_OF_NUMBERS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda a, b: (a @ b, torch.addmm(b[0], a, b, beta=0.5, alpha=2), a[None] @ b[None], a @ b[0]),
    lambda a, b: (torch.var_mean(a, 1), a.std(0), torch.var(b, correction=0)),
    lambda a, b: (torch.softmax(b, -1), torch.softmax(b, 0), torch.log_softmax(a, 0), F.gelu(a)),
    lambda a, b: (torch.logsumexp(a, 0), F.scaled_dot_product_attention(*[a[None, None] * 1] * 3)),
    lambda a, b: F.scaled_dot_product_attention(*[b[None, None]] * 3, is_causal=True),
    lambda a, b: F.scaled_dot_product_attention(
        a.reshape(1, 4, 10, 10), *[b.reshape(1, 4, 10, 10)[:, :2]] * 2, enable_gqa=True
    ),
    lambda a, b: F.scaled_dot_product_attention(*[b[None, None]] * 3, attn_mask=a),
    lambda a, b: F.conv2d(a[None, None], b[None, None, :4, :3], stride=2, padding=(1, 2)),
    lambda a, b: F.conv2d(a.reshape(1, 4, 10, 10), b.reshape(-1)[:72].view(4, 2, 3, 3), groups=2),
    lambda a, b: F.conv1d(a[None], b[:8, :, None].expand(8, 20, 3), b[0, :8], dilation=2),
    lambda a, b: F.conv_transpose2d(a[None, None], b[None, None, :3, :3], stride=2, padding=1),
    lambda a, b: (F.max_pool2d(a[None, None], 3, 2, 1), F.max_pool2d(a[None, None], 2, dilation=2)),
    lambda a, b: F.max_pool2d(a[None, None], 3, ceil_mode=True, return_indices=True),
    lambda a, b: (F.avg_pool2d(a[None, None], 3, 2, 1), F.adaptive_avg_pool2d(a[None, None], 1)),
    lambda a, b: F.avg_pool2d(a[None, None], 3, 2, 1, count_include_pad=False),
    lambda a, b: F.batch_norm(a[None].abs().contiguous(), b[0], b[1].abs(), b[2], b[3]),
    lambda a, b: F.batch_norm(a.contiguous(), b[0], b[1].abs()),
    lambda a, b: F.group_norm(a[None], 4, b[0], b[1]),
)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.5, 0.5, 1.5, -2.5, float("inf"), -float("inf"), float("nan"))
SPECIAL += (3e38, -3e38, 1e-3, 88.8, -104.0, 7.0, 20.0, 0.1, 1e-30)


def pairs() -> dict[str, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    strided = torch.randn(20, 40)[:, ::2].t()
    return {
        "numbers": (torch.randn(20, 20), torch.randn(20, 20)),
        "strided": (strided, strided.t()),
    }


@pytest.mark.parametrize("function", [*OPERATORS, *OPERATORS_OF_NUMBERS])
@torch.no_grad()
def test_operators_are_equal_to_eager(engine: str, function: Callable[..., Any]) -> None:
    compiled = dovetail.compile(function, backend=engine)
    for inputs in pairs().values():
        found, expected = compiled(*inputs), function(*inputs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        for ours, eager in zip(_tensors(found), _tensors(expected), strict=True):
            assert ours.dtype == eager.dtype and ours.is_contiguous() == eager.is_contiguous()


@pytest.mark.parametrize("function", OPERATORS)
@torch.no_grad()
def test_nan_and_infinities_are_eager_s(engine: str, function: Callable[..., Any]) -> None:
    x = torch.tensor(SPECIAL)[:, None].expand(20, 20).contiguous()
    inputs = x, x.t().contiguous()
    found, expected = dovetail.compile(function, backend=engine)(*inputs), function(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def _tensors(found: Any) -> list[Tensor]:
    return [v for v in torch.utils._pytree.tree_leaves(found) if isinstance(v, Tensor)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4 * 64, 5)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(torch.relu(self.norm(self.convolution(x))))
        noisy = hidden.flatten(1).sigmoid() + torch.rand_like(x).mean()
        result: Tensor = self.drop(self.linear(noisy))
        return result


def test_training_and_draws_are_eager_s(engine: str) -> None:
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    compiled = dovetail.compile(net, backend=engine)
    for size in (2, 3):
        x = torch.randn(size, 3, 8, 8)
        results = []
        for module in (compiled, twin):
            torch.manual_seed(size)
            result = module(x)
            F.cross_entropy(result, torch.arange(size)).backward()
            results.append(result)
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(dict(net.named_buffers()), dict(twin.named_buffers()))
    assert len(counts(compiled)) == 4 and all(c.regions for c in counts(compiled))


@torch.no_grad()
def test_each_size_is_a_graph(engine: str) -> None:
    compiled = dovetail.compile(lambda x: (x * x.shape[0]).relu(), backend=engine)
    for size in (3, 4, 5):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x), (x * size).relu())
    assert [c.regions for c in counts(compiled)] == [1, 1, 1]


@torch.no_grad()
def test_results_are_the_caller_s(engine: str) -> None:
    compiled = dovetail.compile(lambda x: (x + 1, x * 2), backend=engine)
    first = compiled(torch.ones(4))
    second = compiled(torch.zeros(4))
    assert first[0].tolist() == [2.0] * 4 and second[0].tolist() == [1.0] * 4
    first[0].add_(1)
    assert first[1].tolist() == [2.0] * 4


@torch.no_grad()
def test_threads_call_one_region(engine: str) -> None:
    compiled = dovetail.compile(lambda x: (x @ x).relu(), backend=engine)
    compiled(torch.ones(32, 32))
    wrong: list[float] = []

    def calls(value: float) -> None:
        with torch.no_grad():
            for _ in range(50):
                if compiled(torch.full((32, 32), value))[0, 0] != 32 * value * value:
                    wrong.append(value)

    threads = [threading.Thread(target=calls, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(counts(compiled)) == 1


def test_a_graph_of_which_nothing_runs_there_is_warned_of(engine: str) -> None:
    compiled = dovetail.compile(lambda x: x.cumsum(0) + 1, backend=engine)
    with pytest.warns(UncompiledWarning, match=f"{engine} computes nothing of a graph.*float64"):
        compiled(torch.ones(3, dtype=torch.float64))


@torch.no_grad()
def test_what_the_engine_fails_for_runs_as_it_is_and_is_told_of(engine: str) -> None:
    def fails(*arguments: Any) -> Any:
        raise RuntimeError("the engine is out of order")

    for on_error in ("run_uncompiled", "raise"):
        compiled = dovetail.compile(
            lambda x: x.sin() + 1, backend=engine, options={"on_error": on_error}
        )
        compiled.capture_context.backend.engine.load = fails  # type: ignore[attr-defined]
        x = torch.ones(3)
        if on_error == "raise":
            with pytest.raises(dovetail.CaptureError, match=f"backend {engine} failed .*order"):
                compiled(x)
            continue
        with pytest.warns(match="out of order"):
            torch.testing.assert_close(compiled(x), x.sin() + 1)
        assert len(dovetail.report(compiled).failures) == 1 and not counts(compiled)


def test_options_are_checked(engine: str) -> None:
    with pytest.raises(ValueError, match="did you mean 'constant_weights'"):
        dovetail.compile(Net(), backend=engine, options={"constant_weight": True})
    with pytest.raises(TypeError, match=f"backend {engine} takes no mode="):
        dovetail.compile(Net(), backend=engine, mode="reduce-overhead")


@pytest.mark.parametrize("name", ENGINES)
def test_a_package_that_is_absent_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: None)
    assert name not in dovetail.list_backends(None)
    with pytest.raises(ImportError, match=rf'pip install "dovetail\[{name}\]"'):
        dovetail.compile(Net(), backend=name)
