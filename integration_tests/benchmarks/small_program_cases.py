"""Programs of one to five operators over the common layers, for `small_programs.py`.

Each is a function and its tensors, made on a device in a dtype. Sizes are those that users have:
some are bound by launches, most by memory or arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Make = Callable[[], tuple[Callable[..., Any], Sequence[Any]]]


@dataclass(frozen=True)
class Program:
    """One program; `make` gives the function and its arguments, on the device that is current."""

    name: str
    make: Make


def of_shapes(function: Callable[..., Any], *shapes: Sequence[int]) -> Make:
    """A function of random tensors."""
    return lambda: (function, [torch.randn(tuple(shape)) for shape in shapes])


def of_module(make: Callable[[], nn.Module], *shapes: Sequence[int], last: bool = False) -> Make:
    """A module and random tensors, with `last` all in channels-last."""

    def made() -> tuple[Callable[..., Any], list[Tensor]]:
        module, inputs = make().eval(), [torch.randn(tuple(shape)) for shape in shapes]
        if last:
            module = module.to(memory_format=torch.channels_last)
            inputs = [x.to(memory_format=torch.channels_last) for x in inputs]
        return module, inputs

    return made


_POINTWISE: Mapping[str, Callable[..., Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "exp_add": lambda x: x.exp() + 1,
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "clamp_mul": lambda x: x.clamp(-1, 1) * 2,
    "swiglu": lambda x: F.silu(x[..., ::2]) * x[..., 1::2],
    "glu": lambda x: F.glu(x, -1),
}
_REDUCED: Mapping[str, Callable[..., Any]] = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d),
    "amax": lambda x, d: x.amax(d),
    "argmax": lambda x, d: x.argmax(d),
    "argmin": lambda x, d: x.argmin(d),
    "var": lambda x, d: x.var(d),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "norm": lambda x, d: torch.linalg.vector_norm(x, dim=d),
    "max": lambda x, d: x.max(d),
    "softmax": lambda x, d: x.softmax(d),
    "cumsum": lambda x, d: x.cumsum(d),
}


def _along(name: str, dim: int) -> Callable[[Tensor], Any]:
    function = _REDUCED[name]
    return lambda x: function(x, dim)


def _pointwise() -> Iterator[Program]:
    for name, function in _POINTWISE.items():
        for shape in ((64, 256), (4096, 8192)):
            yield Program(f"{name} {shape}", of_shapes(function, shape))
    yield Program(
        "bias_gelu_residual",
        of_shapes(lambda x, b, r: F.gelu(x + b) + r, (8192, 3072), (3072,), (8192, 3072)),
    )
    yield Program("transpose_add", of_shapes(lambda x, y: x.t() + y, (4096, 4096), (4096, 4096)))
    yield Program("cat", of_shapes(lambda x, y: torch.cat([x, y], 1), (4096, 2048), (4096, 2048)))
    yield Program(
        "stack_sum", of_shapes(lambda x, y: torch.stack([x, y]).sum(0), *[(2048, 2048)] * 2)
    )
    yield Program("roll", of_shapes(lambda x: x.roll(3, 1), (4096, 4096)))
    yield Program("flip", of_shapes(lambda x: x.flip(-1), (4096, 4096)))
    yield Program(
        "permute_copy", of_shapes(lambda x: x.permute(0, 2, 3, 1).contiguous(), (32, 64, 128, 128))
    )
    yield Program("pad", of_shapes(lambda x: F.pad(x, (1, 1, 1, 1)), (32, 64, 112, 112)))
    yield Program("pixel_shuffle", of_shapes(lambda x: F.pixel_shuffle(x, 2), (16, 64, 128, 128)))
    yield Program("tril_mul", of_shapes(lambda x: torch.tril(x) * 2, (4096, 4096)))
    yield Program("outer", of_shapes(lambda x, y: x[:, None] * y, (8192,), (8192,)))


def _reductions() -> Iterator[Program]:
    shapes: Mapping[str, tuple[tuple[int, ...], int]] = {
        "rows": ((8192, 4096), -1),
        "outer": ((8192, 4096), 0),
        "middle": ((32, 2048, 1023), 1),
        "few rows": ((4, 1 << 20), -1),
    }
    for name in _REDUCED:
        for kind, (shape, dim) in shapes.items():
            yield Program(f"{name} {kind}", of_shapes(_along(name, dim), shape))
    yield Program("sum all", of_shapes(torch.sum, (8192, 8192)))
    yield Program("mean square", of_shapes(lambda x: (x * x).mean(), (8192, 8192)))
    yield Program("topk", of_shapes(lambda x: x.topk(8, -1), (4096, 4096)))
    yield Program("sort", of_shapes(lambda x: x.sort(-1), (1024, 4096)))
    yield Program("any", of_shapes(lambda x: (x > 3).any(-1), (8192, 4096)))


def _norms() -> Iterator[Program]:
    yield Program("layer_norm", of_module(lambda: nn.LayerNorm(1024), (16384, 1024)))
    yield Program("layer_norm wide", of_module(lambda: nn.LayerNorm(8192), (2048, 8192)))
    yield Program("rms_norm", of_module(lambda: nn.RMSNorm(4096), (4096, 4096)))
    for last in (False, True):
        kind = " channels-last" if last else ""
        yield Program(
            "group_norm" + kind,
            of_module(lambda: nn.GroupNorm(32, 256), (16, 256, 64, 64), last=last),
        )
        yield Program(
            "batch_norm" + kind,
            of_module(lambda: nn.BatchNorm2d(256), (32, 256, 56, 56), last=last),
        )
        yield Program(
            "batch_norm relu" + kind,
            of_module(
                lambda: nn.Sequential(nn.BatchNorm2d(64), nn.ReLU()), (32, 64, 112, 112), last=last
            ),
        )
    yield Program("instance_norm", of_module(lambda: nn.InstanceNorm2d(64), (16, 64, 128, 128)))
    yield Program("normalize", of_shapes(lambda x: F.normalize(x, dim=-1), (65536, 256)))


def _losses() -> Iterator[Program]:
    def cross_entropy() -> tuple[Callable[..., Any], Sequence[Any]]:
        return F.cross_entropy, [torch.randn(4096, 32000), torch.randint(0, 32000, (4096,))]

    yield Program("cross_entropy", cross_entropy)
    pair = ((8192, 2048), (8192, 2048))
    yield Program("mse", of_shapes(F.mse_loss, *pair))
    yield Program("smooth_l1", of_shapes(F.smooth_l1_loss, *pair))
    yield Program(
        "bce", of_shapes(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), *pair)
    )
    yield Program("kl", of_shapes(lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1)), *pair))
    yield Program("cosine", of_shapes(lambda x, y: F.cosine_similarity(x, y), *pair))
    yield Program("huber", of_shapes(F.huber_loss, *pair))


def _convolutions() -> Iterator[Program]:
    table: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "conv 3x3": (lambda: nn.Conv2d(64, 64, 3, padding=1), (32, 64, 56, 56)),
        "conv 1x1": (lambda: nn.Conv2d(256, 64, 1), (32, 256, 56, 56)),
        "conv 7x7 stem": (lambda: nn.Conv2d(3, 64, 7, 2, 3), (32, 3, 224, 224)),
        "conv wide": (lambda: nn.Conv2d(16, 128, 3), (4, 16, 512, 512)),
        "conv 5x7": (lambda: nn.Conv2d(64, 64, (5, 7)), (4, 64, 256, 128)),
        "depthwise": (lambda: nn.Conv2d(128, 128, 3, padding=1, groups=128), (32, 128, 56, 56)),
        "grouped": (lambda: nn.Conv2d(128, 128, 3, padding=1, groups=4), (32, 128, 56, 56)),
        "dilated": (lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2), (16, 64, 64, 64)),
        "transposed": (lambda: nn.ConvTranspose2d(64, 32, 2, 2), (16, 64, 64, 64)),
        "conv bn relu": (
            lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
            (32, 64, 56, 56),
        ),
        "conv gelu": (lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.GELU()), (16, 32, 128, 128)),
        "max_pool2d": (lambda: nn.MaxPool2d(3, 2, 1), (32, 64, 112, 112)),
        "avg_pool2d": (lambda: nn.AvgPool2d(2), (32, 64, 112, 112)),
        "adaptive_avg_pool": (lambda: nn.AdaptiveAvgPool2d(1), (64, 512, 14, 14)),
        "upsample nearest": (lambda: nn.Upsample(scale_factor=2), (16, 64, 64, 64)),
        "upsample bilinear": (
            lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
            (16, 64, 64, 64),
        ),
    }
    for name, (make, shape) in table.items():
        yield Program(name, of_module(make, shape))
        yield Program(f"{name} channels-last", of_module(make, shape, last=True))
    yield Program("conv1d", of_module(lambda: nn.Conv1d(128, 128, 5, padding=2), (16, 128, 4096)))
    yield Program("conv3d", of_module(lambda: nn.Conv3d(16, 32, 3, padding=1), (4, 16, 16, 64, 64)))
    yield Program("avg_pool3d", of_module(lambda: nn.AvgPool3d(3, 2), (8, 32, 32, 64, 64)))
    yield Program("max_pool3d", of_module(lambda: nn.MaxPool3d(2), (8, 32, 32, 64, 64)))
    yield Program("avg_pool1d", of_module(lambda: nn.AvgPool1d(4), (64, 128, 8192)))
    yield Program("unfold", of_shapes(lambda x: F.unfold(x, 3), (8, 16, 128, 128)))


def _products() -> Iterator[Program]:
    yield Program("mm square", of_shapes(torch.mm, (2048, 2048), (2048, 2048)))
    yield Program("mm thin", of_shapes(torch.mm, (16384, 32), (32, 16384)))
    yield Program("mm thin 64", of_shapes(torch.mm, (16384, 64), (64, 16384)))
    yield Program("mm deep", of_shapes(torch.mm, (64, 65536), (65536, 64)))
    yield Program("mv", of_shapes(torch.mv, (8192, 8192), (8192,)))
    yield Program("bmm", of_shapes(torch.bmm, (64, 256, 64), (64, 64, 256)))
    yield Program(
        "einsum",
        of_shapes(lambda x, y: torch.einsum("bijl,lk->bijk", x, y), (8, 64, 64, 128), (128, 128)),
    )
    yield Program("linear", of_module(lambda: nn.Linear(1024, 4096), (4096, 1024)))
    yield Program("linear small", of_module(lambda: nn.Linear(128, 128), (32, 128)))
    yield Program(
        "linear gelu",
        of_module(lambda: nn.Sequential(nn.Linear(1024, 4096), nn.GELU()), (4096, 1024)),
    )
    yield Program(
        "mlp",
        of_module(
            lambda: nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)),
            (2048, 512),
        ),
    )
    yield Program("addmm", of_shapes(torch.addmm, (2048, 1024), (2048, 512), (512, 1024)))
    yield Program("bilinear", of_module(lambda: nn.Bilinear(64, 64, 64), (4096, 64), (4096, 64)))


def _attention() -> Iterator[Program]:
    heads = ((8, 16, 1024, 64),) * 3
    yield Program("sdpa", of_shapes(F.scaled_dot_product_attention, *heads))
    yield Program(
        "sdpa causal",
        of_shapes(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *heads),
    )
    yield Program(
        "attention written",
        of_shapes(lambda q, k, v: (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v, *heads),
    )
    yield Program(
        "rotary",
        of_shapes(
            lambda x, c, s: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * s,
            (8, 16, 1024, 64),
            (1024, 64),
            (1024, 64),
        ),
    )
    yield Program(
        "encoder layer",
        of_module(
            lambda: nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), (16, 256, 512)
        ),
    )


def _others() -> Iterator[Program]:
    def embedding() -> tuple[Callable[..., Any], Sequence[Any]]:
        return nn.Embedding(32000, 1024), [torch.randint(0, 32000, (64, 512))]

    def embedding_bag() -> tuple[Callable[..., Any], Sequence[Any]]:
        return nn.EmbeddingBag(100000, 128), [torch.randint(0, 100000, (8192, 16))]

    def gather() -> tuple[Callable[..., Any], Sequence[Any]]:
        picks = torch.randint(0, 4096, (4096, 1024))
        return (lambda x, i: x.gather(1, i)), [torch.randn(4096, 4096), picks]

    def index_add() -> tuple[Callable[..., Any], Sequence[Any]]:
        picks = torch.randint(0, 8192, (65536,))
        call = lambda x, i, s: x.index_add(0, i, s)  # noqa: E731
        return call, [torch.zeros(8192, 128), picks, torch.randn(65536, 128)]

    yield Program("embedding", embedding)
    yield Program("embedding_bag", embedding_bag)
    yield Program("gather", gather)
    yield Program("index_add", index_add)
    for cell in (nn.LSTM, nn.GRU):
        for both in (False, True):
            yield Program(
                f"{cell.__name__}{' both ways' if both else ''}",
                of_module(
                    lambda cell=cell, both=both: cell(  # type: ignore[misc]
                        256, 256, 2, batch_first=True, bidirectional=both
                    ),
                    (32, 128, 256),
                ),
            )
    yield Program(
        "squeeze_excite",
        of_shapes(
            lambda x, w, v: x * torch.sigmoid(F.relu(x.mean((2, 3)) @ w) @ v)[:, :, None, None],
            (32, 128, 56, 56),
            (128, 32),
            (32, 128),
        ),
    )
    yield Program("cdist", of_shapes(torch.cdist, (2048, 64), (2048, 64)))


def programs() -> list[Program]:
    """All of them, in a fixed order."""
    kinds = (
        _pointwise,
        _reductions,
        _norms,
        _losses,
        _convolutions,
        _products,
        _attention,
        _others,
    )
    return [program for kind in kinds for program in kind()]
