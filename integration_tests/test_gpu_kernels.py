"""Every kind of generated kernel on a GPU, small, without a library call: values and gradients
against eager's on a CPU in float64.

Under `compute-sanitizer --tool racecheck` (or memcheck) all that it checks here is ours:
`compute-sanitizer --tool racecheck python -m pytest -m gpu integration_tests/test_gpu_kernels.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
import micro

pytestmark = pytest.mark.gpu

Fn = Callable[..., Tensor]


def new(*shape: int) -> Tensor:
    return torch.randn(*shape)


def ids(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape)


def tied_rows(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, index, x)


def clipped_steps(x: Tensor, y: Tensor) -> Tensor:
    """Statistics of a tensor, then what uses them, as gradient clipping does."""
    norm = (x.pow(2).sum() + y.pow(2).sum()).sqrt()
    return torch.cat([x * (1 / norm).clamp(max=1), y / (norm + 1)])


CASES: dict[str, tuple[Fn, Callable[[], tuple[Tensor, ...]]]] = {
    "chain": (micro.chain12, lambda: (new(67, 130), new(67, 130))),
    "softmax": (micro.softmax, lambda: (new(33, 300),)),
    "softmax of long rows": (micro.softmax, lambda: (new(3, 20_000),)),
    "softmax of columns": (lambda x: x.softmax(0), lambda: (new(200, 60),)),
    "log softmax": (lambda x: x.log_softmax(-1), lambda: (new(20, 5000),)),
    "layer norm": (micro.layer_norm_gelu, lambda: (new(70, 96), new(96), new(96))),
    "layer norm of long rows": (
        micro.layer_norm_gelu, lambda: (new(5, 9001), new(9001), new(9001))
    ),
    "rms norm, rotary": (
        micro.rms_norm_rotary,
        lambda: (new(40, 8, 64), new(64), new(40, 1, 64).cos(), new(40, 1, 64).sin()),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda: (new(8, 12, 17, 9), new(12), new(12)),
    ),
    "batch norm of what is dear": (
        lambda x: F.batch_norm(x.exp().log1p().tanh() * x.sin(), None, None, training=True),
        lambda: (new(20_000, 64),),
    ),
    "group norm in channels-last": (
        lambda x: F.group_norm(x.to(memory_format=torch.channels_last), 4),
        lambda: (new(3, 16, 11, 11),),
    ),
    "group norm": (lambda x: F.group_norm(x, 4), lambda: (new(3, 16, 11, 11),)),
    "squared differences": (micro.squared_differences, lambda: (new(700, 300), new(700, 300))),
    "cross entropy": (micro.cross_entropy, lambda: (new(30, 7001), ids(7001, 30))),
    "transpose": (micro.transpose_add, lambda: (new(90, 70), new(70, 90))),
    "permute": (lambda x: x.permute(2, 0, 3, 1).contiguous() * 2, lambda: (new(6, 33, 20, 18),)),
    "sums of columns": (lambda x: x.sum(0), lambda: (new(3000, 40),)),
    "sums of the middle": (lambda x: (x * x).sum(1), lambda: (new(9, 500, 33),)),
    "sums of few": (lambda x: (x * x).sum(1), lambda: (new(60, 8, 64),)),
    "sums of few in many": (lambda x: (x * x).sum(1), lambda: (new(600, 7, 100),)),
    "sums of some": (lambda x: (x * x).sum(1), lambda: (new(100, 33, 64),)),
    "variance": (lambda x: x.var(-1), lambda: (new(20, 3000),)),
    "variance of all": (lambda x: x.var(), lambda: (new(300, 1000),)),
    "largest": (lambda x: x.amax(-1), lambda: (new(50, 900),)),
    "place of the largest": (lambda x: x.argmax(-1).float(), lambda: (new(50, 3000),)),
    "logsumexp": (lambda x: x.logsumexp(0), lambda: (new(500, 70),)),
    "product": (lambda x: (1 + 0.01 * x).prod(-1), lambda: (new(30, 700),)),
    "cumulated sums": (lambda x: x.cumsum(-1), lambda: (new(20, 3000),)),
    "cumulated sums of columns": (lambda x: x.cumsum(0), lambda: (new(900, 30),)),
    "cumulated sums of long rows": (lambda x: x.cumsum(-1), lambda: (new(70, 20_001),)),
    "cumulated sums of few long rows": (lambda x: x.cumsum(-1), lambda: (new(2, 100_000),)),
    "cumulated sums in uneven pieces": (lambda x: x.cumsum(-1), lambda: (new(2, 10_007),)),
    "cumulated sums of many columns": (lambda x: x.cumsum(1), lambda: (new(3, 300, 200),)),
    "cumulated shares": (
        lambda x: (x.exp() / x.exp().sum(-1, keepdim=True)).cumsum(-1).sqrt(),
        lambda: (new(70, 17_000),),
    ),
    "cumulated products": (lambda x: (1 + x / 100).cumprod(-1), lambda: (new(20, 3000),)),
    "cumulated maxima": (lambda x: x.cummax(-1).values, lambda: (new(20, 3000),)),
    "cumulated logarithms": (lambda x: x.logcumsumexp(-1), lambda: (new(20, 3000),)),
    "rows read again, few at a time": (
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt(), lambda: (new(600, 40_000),)
    ),
    "a loss of two softmaxes": (
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        lambda: (new(200, 9000), new(200, 9000)),
    ),
    "a loss of elements": (F.smooth_l1_loss, lambda: (new(700, 900), new(700, 900))),
    "embedding": (lambda t, i: F.embedding(i, t) * 2, lambda: (new(50, 33), ids(50, 40, 9))),
    "added rows": (tied_rows, lambda: (new(64, 40), ids(64, 64))),
    "scattered": (
        lambda x, i, v: x.scatter_add(1, i, v), lambda: (new(20, 50), ids(50, 20, 90), new(20, 90))
    ),
    "gathered": (lambda x, i: x.gather(1, i), lambda: (new(20, 50), ids(50, 20, 90))),
    "max pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (new(4, 6, 21, 21),)),
    "average pooling": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: (new(4, 6, 21, 21),)),
    "resized": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: (new(2, 5, 13, 13),)
    ),
    "padded": (lambda x: F.pad(x, (2, 1, 3, 0), mode="reflect"), lambda: (new(2, 5, 13, 13),)),
    "joined": (lambda x, y: torch.cat([x, y * 2, x[:, :3]], 1), lambda: (new(50, 20), new(50, 7))),
    "statistics and their use": (clipped_steps, lambda: (new(400, 30), new(200, 30))),
}  # fmt: skip


def moved(inputs: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> list[Tensor]:
    return [
        t.to(device, dtype).requires_grad_() if t.is_floating_point() else t.to(device)
        for t in inputs
    ]


def largest_difference(a: Tensor, reference: Tensor) -> float:
    return float((a.detach().cpu().double() - reference.detach()).abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fn, make = CASES[name]
    inputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in make())
    exact_in, gpu_in = moved(inputs, "cpu", torch.float64), moved(inputs, "cuda", dtype)
    compiled = dovetail.compile(fn, fullgraph=True)
    eager_in = moved(inputs, "cuda", dtype)
    exact, got, eager = fn(*exact_in), compiled(*gpu_in), fn(*eager_in)
    weights = torch.randn(exact.shape).to(dtype)
    triples = [(got, exact, eager)]
    if exact.requires_grad:
        for result in triples[0]:
            torch.autograd.backward(result, weights.to(result))
        found = zip(gpu_in, exact_in, eager_in, strict=True)
        grads = [tuple(t.grad for t in tensors) for tensors in found]
        triples += [g for g in grads if all(t is not None for t in g)]
    tolerance = 2e-5 if dtype is torch.float32 else 3e-2
    for ours, reference, theirs in triples:
        allowed = tolerance * max(1.0, float(reference.detach().abs().max()))
        # (What a comparison of rounded numbers decides is decided as eager does.)
        error, of_eager = (largest_difference(t, reference) for t in (ours, theirs))
        assert error <= allowed + of_eager
    assert dovetail.report(compiled).extern_calls == 0


def test_rows_that_begin_between_16_bytes() -> None:
    """The first call's began at a multiple of 16 bytes, which its kernel was compiled for."""
    compiled = dovetail.compile(lambda row: row.sin() * 2, fullgraph=True)
    for row in torch.randn(5, 33, device="cuda"):
        torch.testing.assert_close(compiled(row), row.sin() * 2)
    assert dovetail.report(compiled).graphs == 1


def test_what_is_written_to_may_begin_between_16_bytes() -> None:
    """What lies beside it stays as it was; two of one memory see each other's writes."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        y.mul_(x)
        return x * 2

    compiled = dovetail.compile(fn, fullgraph=True)
    ours, theirs = (torch.arange(1000.0, device="cuda") for _ in range(2))
    for first, second in ((0, 512), (5, 601), (4, 603), (3, 600)):
        results = [
            f(m[first : first + 256], m[second : second + 256])
            for f, m in ((compiled, ours), (fn, theirs))
        ]
        torch.testing.assert_close(results[0], results[1])
        torch.testing.assert_close(ours, theirs)
        ours.sin_(), theirs.sin_()
    assert dovetail.report(compiled).graphs == 1
