"""Kernels that a person can read: over a table of small graphs, the text of none defines what it
never reads, has a block without statements, or asks what is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],))


GRAPHS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "pointwise": (lambda x: torch.relu(x) * 2, (3, 32)),
    "softmax": (lambda x: torch.softmax(x, -1), (64, 1000)),
    "softmax of columns": (lambda x: torch.softmax(x, 0), (1000, 64)),
    "long log-softmax": (lambda x: torch.log_softmax(x, -1), (16, 30000)),
    "layer norm": (norm, (64, 768)),
    "long layer norm": (norm, (32, 20000)),
    "sum of columns": (lambda x: x.sum(0), (1000, 300)),
    "sum of all": (lambda x: x.sum(), (4096, 4096)),
    "variance": (lambda x: x.var(), (3000, 1000)),
    "scan": (lambda x: x.cumsum(1), (8, 500)),
    "scan of columns": (lambda x: x.cumsum(0), (500, 8)),
    "parts": (lambda x: torch.cat([x, x * 2], 1), (8, 33)),
    "transpose": (lambda x: x.t().contiguous() + 1, (300, 500)),
    "argmax": (lambda x: x.argmax(1), (50, 999)),
    "argmin of columns": (lambda x: x.argmin(0), (999, 50)),
    "masked": (lambda x: x.masked_fill(x > 0, 0).sum(1), (7, 77)),
    "padded": (lambda x: F.pad(x, (1, 2)) * 2, (9, 31)),
    "gather": (lambda x: x[torch.arange(5)] * 2, (9, 31)),
    "scatter": (lambda x: torch.zeros(9, 31).index_add(0, torch.tensor([1, 1, 2]), x[:3]), (9, 31)),
    "halves": (lambda x: (x.half() * 2).sum(1), (9, 310)),
    "softmax of halves": (lambda x: torch.softmax(x.bfloat16(), -1), (9, 310)),
    "truths": (lambda x: (x > 0).any(1), (9, 310)),
    "small integers": (lambda x: (x * 100).to(torch.int16).sum(1), (9, 310)),
    "gelu": (lambda x: F.gelu(x), (1000,)),
    "dropout": (lambda x: F.dropout(x, 0.5), (100,)),
    "product": (lambda x: torch.relu(x @ x.t()) + 1, (64, 64)),
    "average pooling": (lambda x: F.avg_pool2d(x, 3), (2, 3, 32, 32)),
    "maximum pooling": (lambda x: F.max_pool2d(x, 3, 2), (2, 3, 32, 32)),
    "pairs": (lambda x: torch.stack([x, x + 1], -1), (50, 64)),
    "product of rows": (lambda x: x.prod(1), (5, 9)),
    "float64": (lambda x: x.double().exp().sum(1), (9, 99)),
    "rms norm": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), (40, 5000)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (8, 16, 14, 14)),
    "group norm": (lambda x: F.group_norm(x, 4), (8, 16, 14, 14)),
    "embedding": (lambda x: F.embedding(torch.arange(12).reshape(3, 4), x), (20, 33)),
    "log-sum-exp": (lambda x: torch.logsumexp(x, 1), (9, 999)),
    "rolled": (lambda x: x.roll(3, 1) + x, (9, 99)),
    "triangle": (lambda x: x.tril() + 1, (40, 40)),
    "choice": (lambda x: torch.where(x > 0, x, x * 0.1), (999,)),
    "upsampled": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 8, 8)),
}
CPP_NAME = r"(?:const auto|auto|const int|(?:const )?int64_t|V<[^;=]*>) (\w+)(?= =|\[|;)"
TRITON_NAME = r"(?m)^ +(\w+) = "


def kernels(name: str, triton: bool) -> Iterator[str]:
    """The text of each kernel of a graph, without helpers."""
    fn, shape = GRAPHS[name]
    gm = trace_aten(fn, torch.randn(shape), decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=triton, simd_bytes=64))
    for kernel in plan.kernels:
        yield kernel.source[kernel.source.rindex("@triton.jit" if triton else 'extern "C"') :]


@pytest.mark.parametrize("triton", [False, True], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_can_be_read(name: str, triton: bool) -> None:
    for text in kernels(name, triton):
        words = re.findall(r"\w+", text)
        defined = re.findall(TRITON_NAME if triton else CPP_NAME, text)
        unread = {n for n in defined if words.count(n) == defined.count(n)}
        assert unread <= {"pid"}, text  # (of a kernel of one program)
        assert not re.search(r"(?m)(^ *|\) )\{\s*(constexpr int64_t u = 0;)?\s*\}", text), text
        assert not re.search(r"\bif \(?(true|false|True|False|\d+)\)?\W", text), text
        assert not re.search(r"(cast<\w+>)\(\1\(|(\.to\([\w.]+\))\2", text), text
