"""What a fake op costs: `python packages/prims/benchmarks/fake_costs.py`.

Microseconds per op in steady state, through the dispatcher (as a model calls it) and directly
through `propagate` (as a tracer that stands below autograd may).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from dovetail_prims.fake.from_real import from_real
from dovetail_prims.fake_tensor import FakeTensor, propagate

aten = torch.ops.aten


def _cases() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Common ops of models: name -> (overload, arguments)."""
    x = from_real(torch.zeros(8, 128, 64))
    y = from_real(torch.zeros(8, 128, 64))
    row = from_real(torch.zeros(64))
    flat = from_real(torch.zeros(1024, 64))
    square = from_real(torch.zeros(64, 64))
    image = from_real(torch.zeros(2, 8, 32, 32))
    kernel = from_real(torch.zeros(16, 8, 3, 3))
    channel = from_real(torch.zeros(8))
    heads = from_real(torch.zeros(8, 4, 128, 16))
    table = from_real(torch.zeros(100, 64))
    ids = from_real(torch.zeros(8, 128, dtype=torch.int64))
    batch = from_real(torch.zeros(8, 64, 32))
    stat = from_real(torch.zeros(8, 128, 1))
    conv = (image, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return {
        "add": (aten.add.Tensor, (x, y)),
        "add broadcast": (aten.add.Tensor, (x, row)),
        "add number": (aten.add.Tensor, (x, 1.0)),
        "mul transposed": (aten.mul.Tensor, (batch, from_real(torch.zeros(8, 32, 64).mT))),
        "gelu": (aten.gelu.default, (x,)),
        "gelu_backward": (aten.gelu_backward.default, (x, y)),
        "threshold_backward": (aten.threshold_backward.default, (x, y, 0)),
        "relu_": (aten.relu_.default, (x,)),
        "gt": (aten.gt.Scalar, (x, 0)),
        "where": (aten.where.self, (from_real(torch.zeros(8, 128, 64).bool()), x, y)),
        "view": (aten.view.default, (x, [1024, 64])),
        "transpose": (aten.transpose.int, (x, 0, 1)),
        "permute": (aten.permute.default, (heads, [0, 2, 1, 3])),
        "expand": (aten.expand.default, (row, [8, 128, 64])),
        "slice": (aten.slice.Tensor, (x, 1, 0, 10)),
        "select": (aten.select.int, (x, 1, 0)),
        "unsqueeze": (aten.unsqueeze.default, (x, 1)),
        "split": (aten.split.Tensor, (x, 16, 2)),
        "clone": (aten.clone.default, (x,)),
        "_to_copy": (lambda t: aten._to_copy.default(t, dtype=torch.bfloat16), (x,)),
        "mm": (aten.mm.default, (flat, square)),
        "addmm": (aten.addmm.default, (row, flat, square)),
        "bmm": (aten.bmm.default, (x, batch)),
        "sum": (aten.sum.dim_IntList, (x, [0, 1], True)),
        "mean": (aten.mean.dim, (x, [-1], True)),
        "softmax": (aten._softmax.default, (heads, -1, False)),
        "softmax_backward": (aten._softmax_backward_data.default, (x, y, -1, torch.float32)),
        "layer_norm": (aten.native_layer_norm.default, (x, [64], row, row, 1e-5)),
        "layer_norm_backward": (
            aten.native_layer_norm_backward.default,
            (x, y, [64], stat, stat, row, row, [True, True, True]),
        ),
        "batch_norm": (
            aten.native_batch_norm.default,
            (image, channel, channel, channel, channel, True, 0.1, 1e-5),
        ),
        "convolution": (aten.convolution.default, conv),
        "convolution_backward": (
            aten.convolution_backward.default,
            (from_real(torch.zeros(2, 16, 32, 32)), image, kernel, [16], *conv[3:], [True] * 3),
        ),
        "max_pool2d": (aten.max_pool2d_with_indices.default, (image, [2, 2])),
        "adaptive_avg_pool2d": (aten._adaptive_avg_pool2d.default, (image, [2, 2])),
        "sdpa": (
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            (heads, heads, heads),
        ),
        "embedding": (aten.embedding.default, (table, ids)),
        "cat": (aten.cat.default, ([x, y], 1)),
        "index": (aten.index.Tensor, (table, [ids])),
        "gather": (aten.gather.default, (x, 1, from_real(torch.zeros(8, 4, 64).long()))),
        "zeros_like": (aten.zeros_like.default, (x,)),
        "no rule: nearest2d": (aten.upsample_nearest2d.default, (image, [64, 64])),
    }


def microseconds(call: Callable[[], Any], number: int = 300, repeats: int = 5) -> float:
    """Best mean time of `repeats` runs of `number` calls."""
    call()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - start) / number)
    return best * 1e6


def main() -> None:
    """Print the table and the medians."""
    rows = []
    with torch.no_grad():
        start = time.perf_counter()
        cases = _cases()
        for op, args in cases.values():
            op(*args)
        first = time.perf_counter() - start
        for name, (op, args) in cases.items():
            dispatched = microseconds(lambda op=op, args=args: op(*args))  # type: ignore[misc]
            direct = float("nan")
            if isinstance(op, torch._ops.OpOverload):
                direct = microseconds(
                    lambda op=op, args=args: propagate(op, args, {})  # type: ignore[misc]
                )
            rows.append((name, dispatched, direct))
    print(f"{'op':24}{'dispatched':>12}{'direct':>10}   (us)")
    for name, dispatched, direct in rows:
        print(f"{name:24}{dispatched:12.1f}{direct:10.1f}")
    ruled = [r for r in rows if not r[0].startswith("no rule")]
    print(f"{'median':24}{statistics.median(r[1] for r in ruled):12.1f}", end="")
    print(f"{statistics.median(r[2] for r in ruled if r[2] == r[2]):10.1f}")
    weight = FakeTensor.make((64, 64), (64, 1), torch.float32, torch.device("cpu"))
    x = FakeTensor.make((8, 64), (64, 1), torch.float32, torch.device("cpu"))
    print(f"{'F.linear, with autograd':24}{microseconds(lambda: F.linear(x, weight)):12.1f}")
    print(f"first call of all {len(rows)} ops: {first * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
