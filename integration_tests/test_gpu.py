"""The models on a GPU: equal to eager in float32 and under bfloat16 autocast; no Python between
kernels."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import test_dynamic
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import dovetail
from dovetail.bench.measure import largest_error, peak_bytes
from dovetail.bench.models import Case, architectures
from dovetail.bench.worker import Spec, build_case, step_of

pytestmark = pytest.mark.gpu

MODELS = architectures()


def spec(model: str, train: bool, dtype: str) -> Spec:
    return Spec(
        system="dovetail",
        model=model,
        train=train,
        device="cuda",
        mode=None,
        dtype=dtype,
        small=True,
        steady_s=0.0,
        overhead=False,
    )


def float64_step(case: Case, chosen: Spec) -> list[Tensor]:
    """The step on a float64 copy of the model, without autocast."""
    inputs = {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in case.inputs.items()
    }
    wide = Case(copy.deepcopy(case.model).double(), inputs, case.loss)
    plain = spec(chosen.model, chosen.train, "float32")
    return [t.clone() for t in step_of(wide, wide.model, plain)()]


@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
@pytest.mark.parametrize("dtype", ["float32", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_as_close_to_float64_as_eager(
    name: str, dtype: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients: low precision and library kernels differ from eager by rounding, so
    both are measured against float64, and ours may err at most twice as much, or as much as eager
    does somewhere in the step (which tensor the rounding hits is chance), or a floor."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # float32 is float32 here
    chosen = spec(name, train, dtype)
    case = build_case(chosen)
    reference = float64_step(case, chosen)
    twin = Case(copy.deepcopy(case.model), case.inputs, case.loss)
    expected = [t.clone() for t in step_of(twin, twin.model, chosen)()]
    compiled = dovetail.compile(case.model, fullgraph=True)
    for _ in range(2):
        got = step_of(case, compiled, chosen)()
    floor = 2e-3 if dtype == "float32" else 2e-2
    floor = max(floor, *(largest_error([e], [r]) for e, r in zip(expected, reference, strict=True)))
    for i, (g, e, r) in enumerate(zip(got, expected, reference, strict=True)):
        assert g.dtype == e.dtype and g.shape == e.shape and g.stride() == e.stride(), i
        allowed = max(floor, 2 * largest_error([e], [r]))
        assert largest_error([g], [r]) <= allowed, (i, g.shape)
    report = dovetail.report(compiled)
    assert report.graphs == 1 and not report.breaks and not report.recompiles, report.as_text()


@pytest.mark.observes
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
def test_no_python_runs_between_kernels(train: bool, tmp_path: Path) -> None:
    """In the profiler's trace of a forward call, no Python function starts between the first and
    the last kernel launch; of a training step, not more with more layers."""
    from transformers import BertConfig, BertModel

    entered = []
    for layers in (2, 8):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=64,
            hidden_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        model = BertModel(config).cuda().train(train)
        compiled = dovetail.compile(
            model, fullgraph=True, options={"launch_bound_cudagraphs": False}
        )
        ids = torch.randint(0, 64, (2, 16), device="cuda")

        def call() -> None:
            with torch.set_grad_enabled(train):
                out = compiled(input_ids=ids)  # noqa: B023
            if train:
                (out.last_hidden_state.sum() + out.pooler_output.sum()).backward()

        for _ in range(3):
            call()
        torch.cuda.synchronize()
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, with_stack=True) as trace:
            call()
            torch.cuda.synchronize()
        path = tmp_path / f"trace{layers}.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        launches = [
            e["ts"]
            for e in events
            if e.get("cat") in ("cuda_runtime", "cuda_driver") and "Launch" in e["name"]
        ]
        assert len(launches) >= 4 * layers
        between = [
            e["name"]
            for e in events
            if e.get("cat") == "python_function" and min(launches) < e["ts"] < max(launches)
        ]
        print(f"{layers} layers: {len(launches)} launches, Python functions between: {between}")
        entered.append(len(between))
    assert entered[0] == entered[1], entered
    assert train or entered == [0, 0], entered


@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_sizes_that_change_are_compiled_twice(name: str, train: bool) -> None:
    torch.manual_seed(0)
    model = {"bert": test_dynamic.bert, "llama": test_dynamic.llama}[name]().cuda().train(train)
    compiled = dovetail.compile(model, fullgraph=True)
    parameters = list(model.parameters())
    for batch, length in test_dynamic.SIZES:
        ids = torch.randint(0, 100, (batch, length), device="cuda")
        with torch.set_grad_enabled(train):
            wanted, got = model(input_ids=ids)[0], compiled(input_ids=ids)[0]
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
        assert got.stride() == wanted.stride()
        if train:
            pair = [
                torch.autograd.grad(out.square().mean(), parameters, allow_unused=True)
                for out in (got, wanted)
            ]
            for mine, eagers in zip(*pair, strict=True):
                if eagers is not None:
                    torch.testing.assert_close(mine, eagers, atol=1e-5, rtol=1e-3)
    report = dovetail.report(compiled)
    assert report.graphs == 2 and not report.per_size_compiles


def test_a_head_of_odd_width_under_autocast() -> None:
    """Its products run on padded memory; losses and gradients are as close as eager's."""

    def loss(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = torch.nn.functional.linear(x, weight)
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    torch.manual_seed(0)
    x = torch.randn(1024, 512, device="cuda", requires_grad=True)
    weight = (torch.randn(5003, 512, device="cuda") / 22).requires_grad_()
    labels = torch.randint(0, 5003, (1024,), device="cuda")
    wide = [x.double().detach().requires_grad_(), weight.double().detach().requires_grad_()]
    logits = wide[0] @ wide[1].t()
    exact_loss = torch.nn.functional.cross_entropy(logits, labels)
    exact = [exact_loss, *torch.autograd.grad(exact_loss, wide)]
    errors = []
    for call in (loss, dovetail.compile(loss, fullgraph=True)):
        value = call(x, weight, labels)
        found = [value, *torch.autograd.grad(value, [x, weight])]
        errors.append(largest_error(found, exact))
    assert errors[1] <= max(1.5 * errors[0], 1e-3), errors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell", "RNNCell"])
def test_recurrent_cells_are_part_of_the_graph(kind: str, dtype: str) -> None:
    own = torch.float32 if dtype == "autocast" else getattr(torch, dtype)
    torch.manual_seed(0)
    cell = getattr(torch.nn, kind)(16, 32, device="cuda", dtype=own)

    def steps(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "autocast"):
            state = cell(x)
            for _ in range(2):
                state = cell(x * 2, state)
        return state[0] if isinstance(state, tuple) else state

    x = torch.randn(8, 16, device="cuda", dtype=own)
    results = []
    for call in (steps, dovetail.compile(steps, fullgraph=True)):
        y = call(x)
        gradients = torch.autograd.grad(y.float().square().sum(), list(cell.parameters()))
        results.append((y, *gradients))
    bound = 1e-5 if dtype == "float32" else 2e-2
    for theirs, ours in zip(*results, strict=True):
        assert ours.dtype is theirs.dtype
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < bound


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.library_products)],
)
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_recurrent_layers_are_part_of_the_graph(kind: str, dtype: torch.dtype) -> None:
    """In inference; the library's call of known sizes looks at where the weights lie."""
    torch.manual_seed(0)
    layers = getattr(torch.nn, kind)(16, 32, 2, batch_first=True, bidirectional=True).eval()
    layers = layers.to("cuda", dtype)
    compiled = dovetail.compile(lambda x: layers(x * 2), fullgraph=True)
    with torch.no_grad():
        for length in (5, 7):
            x = torch.randn(3, length, 16, device="cuda", dtype=dtype)
            (y, state), (expected, last) = compiled(x), layers(x * 2)
            assert y.stride() == expected.stride()
            torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(state, last, rtol=1e-2, atol=1e-2)


def test_a_saved_tensor_makes_room_for_its_gradient() -> None:
    """Where a kernel reads it for the last time, that writes as much: both never lie in memory."""
    x = torch.randn(4096, 64, device="cuda", requires_grad=True)
    w = torch.randn(64, 4096, device="cuda")

    def loss(x: Tensor) -> Tensor:
        return torch.logsumexp(x @ w, -1).mean()

    compiled = dovetail.compile(loss, fullgraph=True, options={"launch_bound_cudagraphs": False})
    found = [torch.autograd.grad(call(x), x)[0] for call in (loss, compiled)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-7)
    scores = 4 * 4096 * 4096
    assert peak_bytes(lambda: torch.autograd.grad(compiled(x), x), "cuda") < 1.3 * scores


def test_whether_a_cuda_graph_is_recorded_is_guarded() -> None:
    def fn(x: Tensor) -> Tensor:
        return x + 1 if torch.cuda.is_current_stream_capturing() else x - 1

    compiled = dovetail.compile(fn, fullgraph=True)
    x = torch.ones(4, device="cuda")
    assert torch.equal(compiled(x), fn(x)) and torch.equal(compiled(x), fn(x))
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("mask", ["none", "boolean", "added"])
def test_one_head_of_keys_serves_all_queries(mask: str) -> None:
    """No fused kernel takes it: the plain formula does, with the mask added."""
    q = torch.randn(2, 4, 8, 16, device="cuda")
    k, v = torch.randn(2, 2, 1, 8, 16, device="cuda")
    masks = {
        "none": None,
        "boolean": torch.ones(8, 8, dtype=torch.bool, device="cuda").tril().expand(2, 1, 8, 8),
        "added": torch.randn(2, 1, 8, 8, device="cuda"),
    }
    attention = torch.nn.functional.scaled_dot_product_attention
    got = dovetail.compile(attention, fullgraph=True)(q, k, v, masks[mask])
    torch.testing.assert_close(got, attention(q, k, v, masks[mask]), atol=1e-5, rtol=1e-4)


@pytest.mark.observes
def test_a_launch_bound_model_is_recorded_by_itself() -> None:
    """New inputs, weights changed in place and weights replaced reach the replays; results of
    earlier calls stay."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(24))).cuda().eval()
    compiled = dovetail.compile(model, fullgraph=True)
    kept: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for call in range(16):
            x = torch.randn(8, 64, device="cuda")
            if call == 8:
                model[3].weight.mul_(2)
            if call == 12:
                model[5].weight.data = torch.randn(64, 64, device="cuda")
            kept.append((compiled(x), model(x)))
            torch.cuda.synchronize()
    for got, expected in kept:
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    report = dovetail.report(compiled)
    (skip,) = report.cudagraph_skips  # the call after the weight was replaced
    assert report.cudagraphs == 1 and "1 calls ran the plan: inputs were elsewhere" in skip
    plain = dovetail.compile(model, options={"launch_bound_cudagraphs": False})
    with torch.no_grad():
        for _ in range(6):
            plain(x)
            torch.cuda.synchronize()
    assert dovetail.report(plain).cudagraphs == 0


def test_large_results_of_recorded_calls_are_never_overwritten() -> None:
    """They lie in the graph's memory while each is dropped before the next call, and are copies
    once they were kept."""
    model = torch.nn.Linear(256, 50_000).cuda()
    compiled = dovetail.compile(model, fullgraph=True, mode="reduce-overhead")
    inputs = [torch.randn(128, 256, device="cuda") for _ in range(16)]
    with torch.no_grad():
        for x in inputs[:6]:
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        assert "in use" not in "".join(dovetail.report(compiled).cudagraph_skips)
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        compiled(inputs[0])
        assert torch.cuda.max_memory_allocated() < peak
        kept = [compiled(x) for x in inputs]
        views = [k[1:, ::2] for k in kept]
        del kept
        for x, view in zip(inputs, views, strict=True):
            torch.testing.assert_close(view, model(x)[1:, ::2], rtol=1e-4, atol=1e-4)
    report = dovetail.report(compiled)
    assert report.cudagraphs == 1 and "still in use" in "".join(report.cudagraph_skips)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3"])
def test_convolutions_are_laid_out_channels_last(name: str, dtype: str, train: bool) -> None:
    """No library converts layouts around a convolution, and strides are eager's."""
    chosen = spec(name, train, dtype)
    case = build_case(chosen)
    twin = Case(copy.deepcopy(case.model), case.inputs, case.loss)
    eager = step_of(twin, twin.model, chosen)
    step = step_of(case, dovetail.compile(case.model, fullgraph=True), chosen)
    assert [t.stride() for t in step()] == [t.stride() for t in eager()]
    if name == "resnet18":  # every convolution of it gains
        with profile(activities=[ProfilerActivity.CUDA]) as events:
            step()
            torch.cuda.synchronize()
        assert not [e.key for e in events.key_averages() if "nchwToNhwc" in e.key]


class Training:
    """A model trained in eager and its copy trained through CUDA graphs, side by side."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
        layers += [torch.nn.Flatten(), torch.nn.Linear(8 * 36, 16), torch.nn.LayerNorm(16)]
        model = torch.nn.Sequential(*layers, torch.nn.GELU(), torch.nn.Linear(16, 4)).cuda()
        self.models = (model, copy.deepcopy(model))
        self.compiled = dovetail.compile(self.models[1], fullgraph=True, mode="reduce-overhead")
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in self.models]
        self.outputs: list[tuple[Tensor, Tensor]] = []

    def forward(self, batch: int = 16) -> list[Tensor]:
        """The losses of both."""
        x = torch.randn(batch, 3, 8, 8, device="cuda")
        y = torch.randint(0, 4, (batch,), device="cuda")
        outputs = [m(x) for m in (self.models[0], self.compiled)]
        self.outputs.append((outputs[0].detach(), outputs[1].detach()))
        return [torch.nn.functional.cross_entropy(o, y) for o in outputs]

    def backward(self, *losses: list[Tensor]) -> None:
        for loss in zip(*losses, strict=True):
            sum(loss).backward()  # type: ignore[union-attr]

    def step(self, **how: bool) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(**how)

    def check(self) -> None:
        for got, expected in self.outputs:
            torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)
        pairs = zip(*(m.named_parameters() for m in self.models), strict=True)
        for (name, a), (_, b) in pairs:
            torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-3, msg=name)
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None and b.grad is not None:
                torch.testing.assert_close(b.grad, a.grad, rtol=5e-3, atol=2e-3, msg=name)
        for a, b in zip(*(m.buffers() for m in self.models), strict=True):
            torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-3)

    def skips(self) -> str:
        return "\n".join(dovetail.report(self.compiled).cudagraph_skips)

    @property
    def recorded(self) -> int:
        return dovetail.report(self.compiled).cudagraphs


@pytest.mark.observes
def test_training_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    training = Training()
    for _ in range(12):
        training.backward(training.forward())
        training.step()
        training.check()
    # The allocator decides where a batch lies: an input that seemed to stay may move after all.
    assert training.recorded == 2
    assert all("inputs were elsewhere" in line for line in training.skips().splitlines())


@pytest.mark.parametrize("pattern", ["accumulate", "zeroed", "two forwards", "no backward",
                                     "gradients kept", "twice", "sizes", "evaluation"])  # fmt: skip
def test_training_steps_of_other_orders(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in use is not overwritten: saved tensors of a forward whose backward is to come,
    gradients that are accumulated or kept."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    training = Training()
    kept: list[tuple[Tensor, Tensor]] = []
    for call in range(14):
        loss = training.forward(16 if pattern != "sizes" else 16 + 8 * (call % 2))
        if pattern == "two forwards":
            training.backward(loss, training.forward())
        elif pattern == "no backward" and call % 2:
            pass
        elif pattern == "twice":
            for one in loss:
                one.backward(retain_graph=True)
            training.backward(loss)
        elif pattern == "evaluation" and call % 3 == 0:
            training.backward(loss)
            with torch.no_grad():
                training.forward()
        else:
            training.backward(loss)
        if pattern == "gradients kept":
            gradients = [p.grad for p in training.models[1].parameters() if p.grad is not None]
            kept += [(g, g.clone()) for g in gradients]
        if pattern != "accumulate" or call % 3 == 2:
            training.step(set_to_none=pattern != "zeroed")
        del loss
        training.check()
    assert all(torch.equal(a, b) for a, b in kept)
    assert training.recorded >= 2, training.skips()


@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
def test_max_autotune_chooses_and_stays_close(train: bool) -> None:
    """Kernels that were measured stand in the place of library calls; `report` tells of them."""
    chosen = spec("bert", train, "bfloat16")
    case = build_case(chosen)
    reference = float64_step(case, chosen)
    twin = Case(copy.deepcopy(case.model), case.inputs, case.loss)
    expected = [t.clone() for t in step_of(twin, twin.model, chosen)()]
    compiled = dovetail.compile(case.model, mode="max-autotune")
    for _ in range(3):
        got = [t.clone() for t in step_of(case, compiled, chosen)()]
    assert largest_error(got, reference) <= max(2e-2, 2 * largest_error(expected, reference))
    found = dovetail.report(compiled)
    assert found.autotuned and "measured: " in found.as_text()
