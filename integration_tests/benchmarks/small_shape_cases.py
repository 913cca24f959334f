"""Programs of one to five operators in other sizes, layouts and types than those most models have,
for `small_programs.py`: very long and very short rows, images resized and read at computed places,
elements moved by numbers, odd heads of attention, and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from small_operator_cases import IMAGES, of_numbers, of_shapes_last
from small_program_cases import Make, Program, of_module, of_shapes
from torch import Tensor, nn

aten = torch.ops.aten
LARGE = (4096, 4096)
HUGE_ROWS = (16, 1 << 20)
SHORT_ROWS = (1 << 20, 64)
TALL = (1 << 20, 64)


def _named(table: Mapping[str, Make]) -> Iterator[Program]:
    return (Program(name, make) for name, make in table.items())


def _resized(last: bool, **options: Any) -> Make:
    return of_shapes_last(lambda x: F.interpolate(x, **options), last, IMAGES)


def _images() -> Iterator[Program]:
    for last in (False, True):
        kind = " channels-last" if last else ""
        for mode in ("bilinear", "bicubic"):
            for way, size in (("up", 100), ("down", 40)):
                make = _resized(last, size=size, mode=mode, align_corners=True)
                yield Program(f"resize {mode} {way} corners{kind}", make)
        yield Program(f"resize nearest odd{kind}", _resized(last, size=(101, 37)))
        antialias = _resized(last, size=32, mode="bilinear", antialias=True)
        yield Program(f"resize antialias{kind}", antialias)
        grad = (16, 64, 128, 128)
        for mode, rest in (("nearest", ()), ("bicubic", (True,)), ("bilinear", (True,))):
            call = getattr(aten, f"upsample_{mode}2d_backward")
            yield Program(
                f"resize {mode} backward{kind}",
                of_shapes_last(
                    lambda g, c=call, r=rest: c(g, [128, 128], list(IMAGES), *r), last, grad
                ),
            )
        for name, module in {
            "max_pool 3x3 stride 1": lambda: nn.MaxPool2d(3, 1, 1),
            "max_pool 5x5": lambda: nn.MaxPool2d(5, 2),
            "lp_pool": lambda: nn.LPPool2d(2, 2),
            "adaptive_avg_pool odd": lambda: nn.AdaptiveAvgPool2d((5, 7)),
        }.items():
            yield Program(name + kind, of_module(module, (16, 64, 112, 112), last=last))
    volume = (4, 32, 16, 32, 32)
    sample, places = (16, 64, 64, 64), (16, 64, 64, 2)
    yield from _named(
        {
            "resize trilinear": of_shapes(
                lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), volume
            ),
            "max_pool1d": of_shapes(lambda x: F.max_pool1d(x, 3, 2), (32, 128, 4096)),
            "adaptive_avg_pool1d": of_shapes(
                lambda x: F.adaptive_avg_pool1d(x, 50), (32, 256, 2048)
            ),
            "grid_sample near": of_shapes(
                lambda x, g: F.grid_sample(x, g.tanh(), align_corners=True), sample, places
            ),
            "grid_sample nearest": of_shapes(
                lambda x, g: F.grid_sample(x, g, "nearest", align_corners=False), sample, places
            ),
            "grid_sample border": of_shapes(
                lambda x, g: F.grid_sample(x, g, "bilinear", "border", False), sample, places
            ),
            "grid_sample bicubic": of_shapes(
                lambda x, g: F.grid_sample(x, g, "bicubic", align_corners=False), sample, places
            ),
            "grid_sample few channels": of_shapes(
                lambda x, g: F.grid_sample(x, g, align_corners=False),
                (16, 3, 256, 256),
                (16, 256, 256, 2),
            ),
            "grid_sample 3d": of_shapes(
                lambda x, g: F.grid_sample(x, g, align_corners=False), volume, (4, 16, 32, 32, 3)
            ),
            "unfold 3x3": of_shapes(lambda x: F.unfold(x, 3, padding=1), (16, 64, 64, 64)),
            "fold 3x3": of_shapes(lambda x: F.fold(x, 64, 3, padding=1), (16, 64 * 9, 4096)),
            "windows": of_shapes(lambda x: x.unfold(-1, 16, 8).mean(-1), (64, 128, 4096)),
            "rot90": of_shapes(lambda x: x.rot90(1, (2, 3)).contiguous(), IMAGES),
            "roll two dims": of_shapes(lambda x: x.roll((3, 5), (2, 3)), IMAGES),
            "shifted windows": of_shapes(
                lambda x: (
                    x.roll((-4, -4), (1, 2))
                    .unflatten(1, (8, 8))
                    .unflatten(3, (8, 8))
                    .transpose(2, 3)
                    .contiguous()
                ),
                (16, 64, 64, 96),
            ),
            "flip two dims": of_shapes(lambda x: x.flip((2, 3)), IMAGES),
        }
    )


def _moved() -> Iterator[Program]:
    cube = (64, 1024, 256)
    yield from _named(
        {
            "index_select middle": of_numbers(
                lambda x, i: x.index_select(1, i), 1024, (2048,), cube
            ),
            "gather middle": of_numbers(lambda x, i: x.gather(1, i), 1024, (64, 512, 256), cube),
            "gather rows": of_numbers(lambda x, i: x.gather(0, i), 4096, LARGE, LARGE),
            "gather few": of_numbers(lambda x, i: x.gather(1, i), 32000, (4096, 1), (4096, 32000)),
            "pick pairs": of_numbers(lambda x, i: x[i[0], i[1]], 2048, (2, 1 << 20), (2048, 2048)),
            "index_put over": of_numbers(
                lambda x, s, i: x.index_put((i,), s), 8192, (4096,), (8192, 512), (4096, 512)
            ),
            "index_copy": of_numbers(
                lambda x, s, i: x.index_copy(0, i, s), 8192, (4096,), (8192, 512), (4096, 512)
            ),
            "index_fill": of_numbers(lambda x, i: x.index_fill(0, i, 0.0), 4096, (512,), LARGE),
            "index_add middle": of_numbers(
                lambda x, s, i: x.index_add(1, i, s), 1024, (512,), cube, (64, 512, 256)
            ),
            "scatter_add rows": of_numbers(
                lambda x, s, i: x.scatter_add(0, i, s), 1024, LARGE, (1024, 4096), LARGE
            ),
            "scatter_add wide": of_numbers(
                lambda x, s, i: x.scatter_add(1, i, s), 4096, (4096, 2048), LARGE, (4096, 2048)
            ),
            "scatter_mean": of_numbers(
                lambda x, s, i: x.scatter_reduce(0, i, s, "mean"), 1024, LARGE, (1024, 4096), LARGE
            ),
            "segments": of_numbers(
                lambda s, i: s.new_zeros(1024, 128).index_add(0, i, s), 1024, (65536,), (65536, 128)
            ),
            "embedding backward repeated": of_numbers(
                lambda g, i: aten.embedding_dense_backward(g, i, 32, -1, False),
                32,
                (16, 512),
                (16, 512, 512),
            ),
            "embedding backward wide": of_numbers(
                lambda g, i: aten.embedding_dense_backward(g, i, 50257, -1, False),
                50257,
                (4, 1024),
                (4, 1024, 768),
            ),
            "bincount": of_numbers(lambda i: i.bincount(minlength=1024), 1024, (1 << 22,)),
            "histc": of_shapes(lambda x: x.float().histc(256, -3, 3), (1 << 22,)),
            "unique": of_numbers(torch.unique, 4096, (1 << 20,)),
            "masked_select": of_shapes(lambda x: x[x > 0], LARGE),
            "nonzero": of_shapes(lambda x: (x > 1).nonzero(), LARGE),
            "masked rows": of_shapes(lambda x, m: x[m > 0] * 2, (65536, 256), (65536,)),
            "cat many": of_shapes(lambda x: torch.cat([x, x * 2] * 16, 1), (2048, 256)),
            "cat of 32": of_shapes(lambda *x: torch.cat(x, 1), *[(2048, 256)] * 32),
            "cat of 32 odd": of_shapes(
                lambda *x: torch.cat(x, 1), *[(2048, 200 + 7 * k) for k in range(32)]
            ),
            "cat of 32 below": of_shapes(lambda *x: torch.cat(x), *[(256, 2048)] * 32),
            "cat odd": of_shapes(lambda x, y: torch.cat([x, y], -1), (65536, 63), (65536, 66)),
            "stack many": of_shapes(lambda *x: torch.stack(x, -1), *[(512, 1024)] * 16),
            "permute odd": of_shapes(
                lambda x: x.permute(3, 1, 0, 2).contiguous(), (33, 65, 129, 31)
            ),
            "permute bytes": of_numbers(
                lambda i: i.to(torch.int8).permute(0, 3, 1, 2).contiguous(), 99, (32, 128, 128, 64)
            ),
            "transpose odd": of_shapes(lambda x: x.t().contiguous(), (4095, 4097)),
            "heads apart": of_shapes(
                lambda x: x.unflatten(-1, (3, 12, 64)).permute(2, 0, 3, 1, 4).contiguous(),
                (16, 1024, 2304),
            ),
            "to channels-last": of_shapes(
                lambda x: x.contiguous(memory_format=torch.channels_last), (32, 64, 112, 112)
            ),
            "triu": of_shapes(lambda x: torch.triu(x, 1), LARGE),
            "causal mask": of_shapes(
                lambda x: x.masked_fill(torch.ones_like(x[0, 0]).triu(1).bool(), float("-inf")),
                (8, 16, 512, 512),
            ),
            "diag_embed": of_shapes(torch.diag_embed, (64, 1024)),
            "from bytes": of_numbers(lambda i: i.to(torch.int8).float() * 0.1, 99, LARGE),
        }
    )


def _rows() -> Iterator[Program]:
    """Reductions, scans and order along very long, very short and outer dimensions."""
    for kind, shape, dim in (
        ("huge rows", HUGE_ROWS, -1),
        ("rows of 64", SHORT_ROWS, -1),
        ("dim 0", LARGE, 0),
        ("tall", TALL, 0),
    ):
        table: Mapping[str, Callable[[Tensor, int], Any]] = {
            "softmax": lambda x, d: x.softmax(d),
            "max": lambda x, d: x.max(d),
            "argmin": lambda x, d: x.argmin(d),
            "cumsum": lambda x, d: x.cumsum(d),
            "var_mean": lambda x, d: torch.var_mean(x, d),
            "logsumexp": lambda x, d: x.logsumexp(d),
            "any": lambda x, d: (x > 4).any(d),
        }
        for name, call in table.items():
            yield Program(f"{name} {kind}", of_shapes(lambda x, c=call, d=dim: c(x, d), shape))
    all_of: Mapping[str, Callable[[Tensor], Any]] = {
        "std": torch.std,
        "var": torch.var,
        "max": torch.max,
        "any": lambda x: (x > 9).any(),
        "count": lambda x: torch.count_nonzero(x > 0),
        "mean": torch.mean,
        "norm": torch.linalg.vector_norm,
        "median": torch.median,
    }
    for name, whole in all_of.items():
        yield Program(f"{name} of all", of_shapes(whole, (10_000, 10_000)))
    rows = (8192, 4096)
    yield from _named(
        {
            "layer_norm short rows": of_shapes(lambda x: F.layer_norm(x, (64,)), SHORT_ROWS),
            "layer_norm huge rows": of_shapes(lambda x: F.layer_norm(x, (1 << 20,)), HUGE_ROWS),
            "rms_norm short rows": of_module(lambda: nn.RMSNorm(128), (1 << 18, 128)),
            "layer_norm odd": of_module(lambda: nn.LayerNorm(1000), (16384, 1000)),
            "cumprod rows": of_shapes(lambda x: x.cumprod(-1), rows),
            "cummax rows": of_shapes(lambda x: x.cummax(-1), rows),
            "logcumsumexp rows": of_shapes(lambda x: x.logcumsumexp(-1), rows),
            "cumsum of numbers": of_numbers(lambda i: i.cumsum(-1), 9, rows),
            "amax odd rows": of_shapes(lambda x: x.amax(-1), (65536, 333)),
            "amax short odd rows": of_shapes(lambda x: x.amax(-1), (1 << 20, 27)),
            "mean odd rows": of_shapes(lambda x: x.mean(-1), (1 << 18, 99)),
            "softmax short odd rows": of_shapes(lambda x: x.softmax(-1), (1 << 18, 49)),
            "min short rows": of_shapes(lambda x: x.min(-1), (1 << 18, 256)),
            "argmax vocabulary": of_shapes(lambda x: x.argmax(-1), (512, 128256)),
            "topk vocabulary": of_shapes(lambda x: x.topk(50, -1), (64, 128256)),
            "topk experts": of_shapes(lambda x: x.softmax(-1).topk(2, -1), (65536, 64)),
            "sort long": of_shapes(lambda x: x.sort(), (1 << 22,)),
            "sampling": of_shapes(
                lambda x: x.sort(-1, descending=True).values.softmax(-1).cumsum(-1), (64, 32000)
            ),
            "sum of numbers": of_numbers(lambda i: i.sum(-1), 99, rows),
            "nansum": of_shapes(lambda x: x.nansum(-1), rows),
            "quantile": of_shapes(lambda x: x.float().quantile(0.9, -1), (256, 4096)),
            "searchsorted small": of_shapes(
                lambda x, y: torch.searchsorted(x.cumsum(0), y), (256,), LARGE
            ),
            "searchsorted rows": of_shapes(
                lambda x, y: torch.searchsorted(x.abs().cumsum(-1), y), (2048, 1024), (2048, 1024)
            ),
        }
    )


def _layers() -> Iterator[Program]:
    for last in (False, True):
        kind = " channels-last" if last else ""
        table: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
            "conv 5x5 few": (lambda: nn.Conv2d(8, 16, 5, padding=2), (16, 8, 128, 128)),
            "conv many groups": (
                lambda: nn.Conv2d(256, 256, 3, padding=1, groups=32),
                (16, 256, 56, 56),
            ),
            "conv batch 1": (lambda: nn.Conv2d(256, 256, 3, padding=1), (1, 256, 28, 28)),
            "depthwise dilated": (
                lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2, groups=64),
                (16, 64, 64, 64),
            ),
            "transposed 4x4": (lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), (16, 64, 64, 64)),
            "depthwise 5x5 silu": (
                lambda: nn.Sequential(
                    nn.Conv2d(96, 96, 5, padding=2, groups=96, bias=False),
                    nn.BatchNorm2d(96),
                    nn.SiLU(),
                ),
                (32, 96, 28, 28),
            ),
            "conv 1x1 strided": (lambda: nn.Conv2d(256, 512, 1, 2), (32, 256, 28, 28)),
            "group_norm small": (lambda: nn.GroupNorm(32, 512), (32, 512, 7, 7)),
            "prelu": (lambda: nn.PReLU(64), (32, 64, 56, 56)),
        }
        for name, (make, shape) in table.items():
            yield Program(name + kind, of_module(make, shape, last=last))
    gates = (8192, 4096)
    yield from _named(
        {
            "conv1d 31": of_module(lambda: nn.Conv1d(64, 64, 31, padding=15), (16, 64, 4096)),
            "conv1d depthwise 31": of_module(
                lambda: nn.Conv1d(256, 256, 31, padding=15, groups=256), (16, 256, 2048)
            ),
            "batch_norm 1d training": of_shapes(
                lambda x: F.batch_norm(x, None, None, training=True), (8192, 1024)
            ),
            "dropout": of_shapes(lambda x: F.dropout(x, 0.1, True), gates),
            "geglu": of_shapes(lambda x: F.gelu(x[:, :2048]) * x[:, 2048:], gates),
            "mish": of_shapes(F.mish, gates),
            "hardswish": of_shapes(F.hardswish, gates),
            "linear one": of_module(lambda: nn.Linear(1024, 1), (16384, 1024)),
            "linear shallow": of_module(lambda: nn.Linear(8, 1024), (16384, 8)),
            "linear norm": of_module(
                lambda: nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512)), (8192, 512)
            ),
            "bmm tiny": of_shapes(torch.bmm, (16384, 16, 16), (16384, 16, 16)),
            "bmm of rows": of_shapes(torch.bmm, (1024, 1, 64), (1024, 64, 256)),
            "kron": of_shapes(torch.kron, (64, 64), (32, 32)),
            "cov": of_shapes(torch.cov, (256, 8192)),
            "pairwise_distance": of_shapes(F.pairwise_distance, (65536, 256), (65536, 256)),
            "cosine middle": of_shapes(
                lambda x, y: F.cosine_similarity(x, y, 1), (16, 256, 4096), (16, 256, 4096)
            ),
            "normalize middle": of_shapes(lambda x: F.normalize(x, dim=1), (16, 256, 64, 64)),
            "cdist many": of_shapes(
                lambda x, y: torch.cdist(x.float(), y.float()), (16, 512, 3), (16, 512, 3)
            ),
            "cross": of_shapes(torch.linalg.cross, (1 << 20, 3), (1 << 20, 3)),
            "lerp": of_shapes(torch.lerp, gates, gates, gates),
        }
    )
    for size in (72, 80, 96, 128):
        yield Program(
            f"sdpa head {size}",
            of_shapes(F.scaled_dot_product_attention, *[(4, 16, 1024, size)] * 3),
        )
    yield Program(
        "sdpa masked",
        of_shapes(F.scaled_dot_product_attention, *[(4, 16, 512, 64)] * 3, (512, 512)),
    )
    yield Program(
        "multihead",
        of_module(lambda: nn.MultiheadAttention(512, 8, batch_first=True), *[(16, 256, 512)] * 3),
    )


def _losses_and_gradients() -> Iterator[Program]:
    pair = ((8192, 2048), (8192, 2048))
    pixels = (8, 21, 256, 256)
    rows = (4096, 32000)
    norm = (16, 64, 56, 56)

    def batch_norm(g: Tensor, x: Tensor, w: Tensor) -> Any:
        _, mean, scale = aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
        return aten.native_batch_norm_backward(
            g, x, w, None, None, mean, scale, True, 1e-5, [True] * 3
        )

    def group_norm(g: Tensor, x: Tensor, w: Tensor) -> Any:
        _, mean, scale = aten.native_group_norm(x, w, w, 16, 64, 3136, 8, 1e-5)
        return aten.native_group_norm_backward(g, x, mean, scale, w, 16, 64, 3136, 8, [True] * 3)

    def max_pool(g: Tensor, x: Tensor) -> Any:
        _, places = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        return aten.max_pool2d_with_indices_backward(
            g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places
        )

    yield from _named(
        {
            "cross_entropy vocabulary": of_numbers(
                F.cross_entropy, 128256, (1024,), (1024, 128256)
            ),
            "nll pixels": of_numbers(F.nll_loss, 21, (8, 256, 256), pixels),
            "cross_entropy pixels large": of_numbers(F.cross_entropy, 21, (8, 256, 256), pixels),
            "cross_entropy shares": of_shapes(
                lambda x, y: F.cross_entropy(x, y.softmax(-1)), (4096, 1000), (4096, 1000)
            ),
            "margin ranking": of_shapes(
                lambda x, y: F.margin_ranking_loss(x, y, y.sign(), 0.1), *pair
            ),
            "soft margin": of_shapes(lambda x, y: F.soft_margin_loss(x, y.sign()), *pair),
            "nll backward": of_numbers(
                lambda x, i: x.softmax(-1).sub(F.one_hot(i, 32000)).div(4096), 32000, (4096,), rows
            ),
            "log_softmax backward": of_shapes(
                lambda g, x: aten._log_softmax_backward_data(g, x, -1, x.dtype), rows, rows
            ),
            "max_pool backward": of_shapes(max_pool, (16, 64, 56, 56), (16, 64, 112, 112)),
            "batch_norm backward": of_shapes(batch_norm, norm, norm, (64,)),
            "group_norm backward": of_shapes(group_norm, norm, norm, (64,)),
            "silu backward": of_shapes(aten.silu_backward, *[(8192, 4096)] * 2),
            "bias channels backward": of_shapes(lambda g: g.sum((0, 2, 3)), (32, 128, 56, 56)),
            "cumsum backward": of_shapes(lambda g: g.flip(-1).cumsum(-1).flip(-1), (8192, 2048)),
            "scale backward": of_shapes(lambda g, x: (g * x).sum(0), *pair),
        }
    )


def programs() -> list[Program]:
    """All of them, in a fixed order."""
    kinds: Sequence[Callable[[], Iterator[Program]]]
    kinds = (_images, _moved, _rows, _layers, _losses_and_gradients)
    return [program for kind in kinds for program in kind()]
