"""On a GPU: attention kernels, cuDNN batch norm, random numbers, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, run_fx
from dovetail_autograd_aot import aot_compile, compiled_autograd, trace_joint

pytestmark = pytest.mark.gpu


def compare(fn, *inputs, table="core", tolerance=1e-3):
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    run = aot_compile(
        as_graph(fn, len(inputs)), copies, forward_compiler=run_fx, decompositions=TABLES[table]
    )
    torch.manual_seed(0)
    eager = fn(*inputs)
    torch.manual_seed(0)
    ours = run(*copies)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        assert a.stride() == b.stride()
    weights = [torch.randn_like(e) for e in eager]
    sum((a * w).sum() for a, w in zip(eager, weights, strict=True)).backward()
    sum((a * w).sum() for a, w in zip(ours, weights, strict=True)).backward()
    for a, b in zip(copies, inputs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        if b.requires_grad:
            torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(
    "dtype, width, masked, causal, op",
    [
        (torch.float16, 64, False, True, "flash_attention"),
        (torch.float16, 60, False, False, "flash_attention"),
        (torch.float32, 64, False, True, "efficient_attention"),
        (torch.float32, 64, True, False, "efficient_attention"),
        (torch.bfloat16, 64, True, False, None),
    ],
)
def test_attention(dtype, width, masked, causal, op):
    q, k, v = (leaf(2, 4, 33, width, dtype=dtype) for _ in range(3))
    mask = torch.rand(33, 33, device="cuda") > 0.2 if masked else None

    def fn(q, k, v):
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal),)

    with torch.nn.attention.sdpa_kernel(
        [
            torch.nn.attention.SDPBackend.FLASH_ATTENTION,
            torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
            torch.nn.attention.SDPBackend.MATH,
        ]
    ):
        joint = trace_joint(as_graph(fn, 3), [q, k, v], decompositions=TABLES["core"])
        names = " ".join(str(n.target) for n in joint.gm.graph.nodes)
        assert op is None or (f"{op}.default" in names and f"{op}_backward.default" in names)
        assert "softmax" not in names
        compare(fn, q, k, v, tolerance=1e-3 if dtype is torch.float32 else 3e-2)


@pytest.mark.parametrize("table", ["aten", "core"])
def test_batch_norm(table):
    mean, var = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")

    def fn(x, w, c, mean, var):
        y = F.conv2d(x, c, padding=1)
        return (F.relu(F.batch_norm(y, mean, var, w, w, training=True), inplace=True),)

    compare(fn, leaf(4, 3, 16, 16), leaf(8), leaf(8, 3, 3, 3), mean, var, table=table)


@pytest.mark.parametrize("table", ["aten", "core"])
def test_random_numbers(table):
    def fn(x):
        y = F.dropout(x, 0.3, True) * torch.rand_like(x)
        return (F.dropout(y, 0.5, True) + torch.randn(64, 8, device="cuda"),)

    compare(fn, leaf(64, 8), table=table)


def test_autocast():
    def fn(x, w):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return (F.layer_norm(F.linear(x, w), (16,)).float(),)

    compare(fn, leaf(4, 16), leaf(16, 16), tolerance=2e-2)


def test_compiled_autograd_trains_with_dropout():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(16, 4)
    ).cuda()
    context = compiled_autograd(lambda gm, _: gm.forward)
    for step in range(4):
        x = torch.randn(6, 8, device="cuda")
        grads = []
        for compiled in (False, True):
            model.zero_grad()
            torch.manual_seed(step)
            loss = model(x).square().mean()
            if compiled:
                with context:
                    loss.backward()
            else:
                loss.backward()
            grads.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*grads)
    assert context.report.compiled == 3 and not context.report.on_engine


def test_compiled_autograd_leaves_other_streams_to_the_engine():
    context = compiled_autograd(lambda gm, _: gm.forward)
    side = torch.cuda.Stream()
    for _ in range(3):
        x = leaf(64, 64)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.sin().sum()
        torch.cuda.current_stream().wait_stream(side)
        with context:
            y.backward()
        torch.cuda.synchronize()
        torch.testing.assert_close(x.grad, x.detach().cos())
    assert context.report.on_engine == {"the forward ran on another stream": 3}


def test_gradients_of_one_input_after_another():
    """The pass, and what it asks for, is that of the device's own thread."""

    def fn(x, z):
        return (x.sin() @ z.t().exp() + z.cos(),)

    inputs = [leaf(5, 5) for _ in range(2)]
    run = aot_compile(as_graph(fn, 2), inputs, forward_compiler=run_fx)
    apart = aot_compile(
        as_graph(lambda x, z: (x.sin() + z.cos(),), 2), inputs, forward_compiler=run_fx
    )
    for call, eager, closed in (
        (run, fn, True),
        (apart, lambda x, z: (x.sin() + z.cos(),), False),
    ):
        loss, expected = call(*inputs)[0].sum(), eager(*inputs)[0].sum()
        for one in (loss, expected):
            torch.autograd.grad(one, inputs[0])
            if closed:
                with pytest.raises(RuntimeError, match="a second time"):
                    torch.autograd.grad(one, inputs[1])
        if not closed:
            torch.testing.assert_close(
                torch.autograd.grad(loss, inputs[1]), torch.autograd.grad(expected, inputs[1])
            )
