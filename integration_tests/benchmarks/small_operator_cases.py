"""Programs of one to three operators that fewer models have, for `small_programs.py`: data moved by
numbers, order, losses, products in other forms, layers in other layouts, and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from small_program_cases import Make, Program, of_module, of_shapes
from torch import Tensor, nn

MIDDLE = (32, 2048, 1023)
ALIGNED = (32, 2048, 1024)
IMAGES = (16, 64, 64, 64)


def of_numbers(call: Callable[..., Any], most: int, picks: Sequence[int], *shapes: Any) -> Make:
    """A function of tensors and of whole numbers below `most`, which come last."""
    return lambda: (
        call,
        [*(torch.randn(tuple(shape)) for shape in shapes), torch.randint(0, most, tuple(picks))],
    )


def _reductions() -> Iterator[Program]:
    table: Mapping[str, Callable[[Tensor, int], Any]] = {
        "min": lambda x, d: x.min(d),
        "prod": lambda x, d: x.prod(d),
        "std": lambda x, d: x.std(d),
        "l1 norm": lambda x, d: x.abs().sum(d),
        "largest norm": lambda x, d: torch.linalg.vector_norm(x, float("inf"), dim=d),
        "all": lambda x, d: (x > -3).all(d),
        "count": lambda x, d: torch.count_nonzero(x > 0, d),
        "aminmax": lambda x, d: torch.aminmax(x, dim=d),
        "log_softmax": lambda x, d: x.log_softmax(d),
        "cummax": lambda x, d: x.cummax(d),
        "cumprod": lambda x, d: x.cumprod(d),
        "logcumsumexp": lambda x, d: x.logcumsumexp(d),
    }
    for name, call in table.items():
        yield Program(f"{name} middle", of_shapes(lambda x, c=call: c(x, 1), MIDDLE))
    yield Program("min rows", of_shapes(lambda x: x.min(-1), (8192, 4096)))
    yield Program("max aligned middle", of_shapes(lambda x: x.max(1), ALIGNED))
    yield Program("sum aligned middle", of_shapes(lambda x: x.sum(1), ALIGNED))
    yield Program("norm aligned middle", of_shapes(lambda x: x.norm(dim=1), ALIGNED))
    yield Program("softmax aligned middle", of_shapes(lambda x: x.softmax(1), ALIGNED))
    yield Program("max of whole numbers", of_numbers(lambda i: i.int().max(1), 1 << 20, MIDDLE))
    yield Program("sum short rows", of_shapes(lambda x: x.sum(-1), (1 << 20, 64)))
    yield Program("softmax short rows", of_shapes(lambda x: x.softmax(-1), (1 << 20, 16)))
    yield Program("max odd rows", of_shapes(lambda x: x.max(-1), (16384, 1999)))
    yield Program("sum two dims", of_shapes(lambda x: x.sum((0, 2)), (64, 256, 2048)))
    yield Program("argmax all", of_shapes(torch.argmax, (4096, 4096)))
    yield Program("norm all", of_shapes(torch.linalg.vector_norm, (8192, 4096)))
    yield Program("var_mean", of_shapes(lambda x: torch.var_mean(x, (2, 3)), (64, 256, 32, 32)))


def _order() -> Iterator[Program]:
    yield Program("topk middle", of_shapes(lambda x: x.topk(4, 1), (16, 512, 1000)))
    yield Program("topk many", of_shapes(lambda x: x.topk(256, -1), (1024, 8192)))
    yield Program("sort middle", of_shapes(lambda x: x.sort(1), (8, 1024, 512)))
    yield Program("argsort", of_shapes(lambda x: x.argsort(-1), (4096, 1024)))
    yield Program("median", of_shapes(lambda x: x.median(-1), (2048, 2048)))
    yield Program("kthvalue", of_shapes(lambda x: x.kthvalue(5, -1), (2048, 2048)))
    yield Program(
        "searchsorted",
        of_shapes(lambda x, y: torch.searchsorted(x.sort().values, y), (4096,), (2048, 2048)),
    )
    yield Program(
        "bucketize",
        of_shapes(lambda x, y: torch.bucketize(x, y.cumsum(0)), (4096, 2048), (64,)),
    )


def _moved() -> Iterator[Program]:
    large, few = (4096, 4096), (4096, 1024)
    yield Program("scatter", of_numbers(lambda x, s, i: x.scatter(1, i, s), 4096, few, large, few))
    yield Program(
        "scatter_add", of_numbers(lambda x, s, i: x.scatter_add(1, i, s), 4096, few, large, few)
    )
    yield Program(
        "scatter_reduce",
        of_numbers(lambda x, s, i: x.scatter_reduce(1, i, s, "amax"), 4096, few, large, few),
    )
    yield Program(
        "index_select", of_numbers(lambda x, i: x.index_select(0, i), 8192, (16384,), (8192, 512))
    )
    yield Program(
        "index_select columns", of_numbers(lambda x, i: x[:, i], 2048, (1024,), (8192, 2048))
    )
    yield Program(
        "index_put",
        of_numbers(
            lambda x, s, i: x.index_put((i,), s, True), 8192, (32768,), (8192, 256), (32768, 256)
        ),
    )
    yield Program(
        "take_along",
        of_numbers(lambda x, i: torch.take_along_dim(x, i, 0), 4096, (1024, 4096), large),
    )
    yield Program("one_hot", of_numbers(lambda i: F.one_hot(i, 1000), 1000, (16384,)))
    yield Program("masked_fill", of_shapes(lambda x, y: x.masked_fill(y > 0, -1e4), large, large))
    yield Program("repeat_interleave", of_shapes(lambda x: x.repeat_interleave(4, 1), (2048, 2048)))
    yield Program("tile", of_shapes(lambda x: x.tile(2, 3), (2048, 2048)))
    yield Program("strided copy", of_shapes(lambda x: x[::2, ::2].contiguous(), (8192, 8192)))
    yield Program("transpose copy", of_shapes(lambda x: x.transpose(1, 2).contiguous(), ALIGNED))
    yield Program(
        "unbind stack", of_shapes(lambda x: torch.stack(x.unbind(1), 2), (64, 8, 512, 256))
    )
    yield Program("split mul", of_shapes(lambda x: torch.mul(*x.chunk(2, 1)), (4096, 8192)))
    for mode in ("reflect", "replicate", "circular"):
        yield Program(f"pad {mode}", of_shapes(lambda x, m=mode: F.pad(x, (3,) * 4, m), IMAGES))
    yield Program("pad sequence", of_shapes(lambda x: F.pad(x, (0, 0, 1, 0)), (32, 2048, 512)))


def _norms() -> Iterator[Program]:
    for last in (False, True):
        kind = " channels-last" if last else ""
        yield Program(
            "group_norm silu" + kind,
            of_module(lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU()), IMAGES, last=last),
        )
        yield Program(
            "instance_norm affine" + kind,
            of_module(lambda: nn.InstanceNorm2d(64, affine=True), IMAGES, last=last),
        )
        yield Program(
            "batch_norm training" + kind,
            of_shapes_last(
                lambda x: F.batch_norm(x, None, None, training=True), last, (32, 64, 56, 56)
            ),
        )
        yield Program(
            "max_pool places" + kind,
            of_shapes_last(
                lambda x: F.max_pool2d(x, 2, return_indices=True), last, (32, 64, 112, 112)
            ),
        )
        yield Program(
            "avg_pool 3x3" + kind,
            of_module(lambda: nn.AvgPool2d(3, 2, 1), (32, 64, 112, 112), last=last),
        )
        yield Program(
            "adaptive_max_pool" + kind,
            of_module(lambda: nn.AdaptiveMaxPool2d(7), (64, 256, 28, 28), last=last),
        )
        yield Program(
            "adaptive_avg_pool 7" + kind,
            of_module(lambda: nn.AdaptiveAvgPool2d(7), (64, 256, 28, 28), last=last),
        )
        yield Program(
            "upsample bicubic" + kind,
            of_module(lambda: nn.Upsample(scale_factor=2, mode="bicubic"), IMAGES, last=last),
        )
        yield Program(
            "downsample" + kind,
            of_shapes_last(lambda x: F.interpolate(x, scale_factor=0.5), last, IMAGES),
        )
    yield Program(
        "interpolate area", of_shapes(lambda x: F.interpolate(x, (32, 32), mode="area"), IMAGES)
    )
    yield Program(
        "interpolate linear",
        of_shapes(lambda x: F.interpolate(x, 4096, mode="linear"), (16, 64, 1024)),
    )
    yield Program("layer_norm two dims", of_module(lambda: nn.LayerNorm((64, 64)), IMAGES))
    yield Program("local_response_norm", of_module(lambda: nn.LocalResponseNorm(5), IMAGES))
    yield Program(
        "grid_sample",
        of_shapes(lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGES, (16, 64, 64, 2)),
    )
    yield Program(
        "grid_sample affine",
        of_shapes(
            lambda x, t: F.grid_sample(x, F.affine_grid(t, x.shape, False), align_corners=False),
            IMAGES,
            (16, 2, 3),
        ),
    )
    yield Program("fold", of_shapes(lambda x: F.fold(x, 64, 2, stride=2), (16, 256, 1024)))
    yield Program(
        "pixel_unshuffle", of_shapes(lambda x: F.pixel_unshuffle(x, 2), (16, 64, 128, 128))
    )
    yield Program(
        "channel_shuffle", of_shapes(lambda x: F.channel_shuffle(x, 8), (16, 64, 128, 128))
    )


def of_shapes_last(function: Callable[..., Any], last: bool, *shapes: Sequence[int]) -> Make:
    """`of_shapes`, with `last` in channels-last."""

    def made() -> tuple[Callable[..., Any], list[Tensor]]:
        function_, inputs = of_shapes(function, *shapes)()
        form = torch.channels_last if last else torch.contiguous_format
        return function_, [x.contiguous(memory_format=form) for x in inputs]

    return made


def _convolutions() -> Iterator[Program]:
    table: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "conv1d 1": (lambda: nn.Conv1d(256, 256, 1), (16, 256, 2048)),
        "conv1d stride": (lambda: nn.Conv1d(80, 384, 3, 2, 1), (8, 80, 3000)),
        "conv1d depthwise": (lambda: nn.Conv1d(768, 768, 4, padding=3, groups=768), (8, 768, 2048)),
        "conv1d transposed": (lambda: nn.ConvTranspose1d(128, 64, 4, 2, 1), (16, 128, 2048)),
        "conv1d no bias": (lambda: nn.Conv1d(128, 128, 5, bias=False), (16, 128, 4096)),
        "conv3d depthwise": (
            lambda: nn.Conv3d(64, 64, 3, padding=1, groups=64),
            (4, 64, 16, 32, 32),
        ),
        "conv3d transposed": (lambda: nn.ConvTranspose3d(32, 16, 2, 2), (4, 32, 16, 32, 32)),
        "depthwise no bias": (
            lambda: nn.Conv2d(128, 128, 3, padding=1, groups=128, bias=False),
            (32, 128, 56, 56),
        ),
        "depthwise relu": (
            lambda: nn.Sequential(nn.Conv2d(128, 128, 3, padding=1, groups=128), nn.ReLU()),
            (32, 128, 56, 56),
        ),
        "depthwise 7x7": (lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (32, 96, 56, 56)),
        "depthwise stride": (lambda: nn.Conv2d(128, 128, 3, 2, 1, groups=128), (32, 128, 56, 56)),
        "separable": (
            lambda: nn.Sequential(
                nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 128, 1)
            ),
            (32, 64, 56, 56),
        ),
        "transposed 3x3": (lambda: nn.ConvTranspose2d(64, 64, 3, 2, 1, 1), (16, 64, 32, 32)),
        "patches": (lambda: nn.Conv2d(3, 768, 16, 16), (32, 3, 224, 224)),
    }
    for name, (make, shape) in table.items():
        yield Program(name, of_module(make, shape))


def _losses() -> Iterator[Program]:
    rows = (4096, 1000)
    pair = ((8192, 2048), (8192, 2048))
    yield Program(
        "nll", of_numbers(lambda x, t: F.nll_loss(x.log_softmax(-1), t), 1000, (4096,), rows)
    )
    yield Program(
        "cross_entropy smoothed",
        of_numbers(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), 1000, (4096,), rows),
    )
    yield Program(
        "cross_entropy pixels", of_numbers(F.cross_entropy, 21, (8, 128, 128), (8, 21, 128, 128))
    )
    yield Program("multi_margin", of_numbers(F.multi_margin_loss, 1000, (4096,), rows))
    yield Program(
        "kl log",
        of_shapes(lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), *pair),
    )
    yield Program(
        "cosine loss", of_shapes(lambda x, y: 1 - F.cosine_similarity(x, y, -1).mean(), *pair)
    )
    yield Program("triplet", of_shapes(F.triplet_margin_loss, *pair, (8192, 2048)))
    yield Program("hinge", of_shapes(lambda x, y: (1 - x * y).clamp(min=0).mean(), *pair))
    yield Program("poisson_nll", of_shapes(F.poisson_nll_loss, *pair))
    yield Program(
        "gaussian_nll",
        of_shapes(lambda x, y, v: F.gaussian_nll_loss(x, y, v.abs()), *pair, (8192, 2048)),
    )
    yield Program(
        "contrastive",
        of_shapes(
            lambda x, y: F.cross_entropy(x @ y.t(), torch.arange(2048, device=x.device)),
            (2048, 256),
            (2048, 256),
        ),
    )

    def ctc() -> tuple[Callable[..., Any], Sequence[Any]]:
        sizes = [torch.full((16,), 256), torch.full((16,), 64)]
        call = lambda x, t, n, m: F.ctc_loss(x.float().log_softmax(-1), t, n, m)  # noqa: E731
        return call, [torch.randn(256, 16, 64), torch.randint(1, 64, (16, 64)), *sizes]

    yield Program("ctc", ctc)


def _products() -> Iterator[Program]:
    table: Mapping[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
        "scores": ("bhqd,bhkd->bhqk", ((8, 16, 512, 64),) * 2),
        "heads": ("bsd,dhk->bhsk", ((16, 512, 512), (512, 8, 64))),
        "bilinear": ("bn,anm,bm->ba", ((1024, 64), (64, 64, 64), (1024, 64))),
        "outer": ("bi,bj->bij", ((256, 256),) * 2),
        "rows": ("bij,bij->bi", ((64, 512, 512),) * 2),
        "middle": ("bijl,lk->bijk", ((16, 64, 128, 256), (256, 512))),
    }
    for name, (text, shapes) in table.items():
        yield Program(f"einsum {name}", of_shapes(lambda *x, t=text: torch.einsum(t, *x), *shapes))
    yield Program("mm wide 32", of_shapes(torch.mm, (32768, 32), (32, 32768)))
    yield Program("mm wide 64", of_shapes(torch.mm, (32768, 64), (64, 32768)))
    yield Program("mm odd", of_shapes(torch.mm, (1023, 1021), (1021, 1019)))
    yield Program(
        "mm transposed", of_shapes(lambda x, y: x.t() @ y.t(), (1024, 2048), (2048, 1024))
    )
    yield Program("mm narrow", of_shapes(torch.mm, (8192, 8192), (8192, 16)))
    yield Program("matmul 3d 2d", of_shapes(torch.matmul, (16, 1024, 256), (256, 256)))
    yield Program("matmul 4d 2d", of_shapes(torch.matmul, (8, 64, 64, 256), (256, 256)))
    yield Program("matmul broadcast", of_shapes(torch.matmul, (16, 1, 256, 64), (8, 64, 256)))
    yield Program("matmul vector", of_shapes(torch.matmul, (64, 512, 512), (512,)))
    yield Program(
        "matmul triangular",
        of_shapes(lambda x, y: torch.tril(x) @ torch.tril(y), *[(2048, 2048)] * 2),
    )
    yield Program(
        "matmul diagonal", of_shapes(lambda x, y: torch.diag(x) @ y, (4096,), (4096, 4096))
    )
    yield Program("baddbmm", of_shapes(torch.baddbmm, (64, 256, 256), (64, 256, 64), (64, 64, 256)))
    yield Program("dot", of_shapes(torch.dot, (1 << 22,), (1 << 22,)))
    yield Program("addmv", of_shapes(torch.addmv, (4096,), (4096, 4096), (4096,)))
    yield Program("linear 3d", of_module(lambda: nn.Linear(256, 512), (16, 512, 256)))
    yield Program(
        "linear no bias", of_module(lambda: nn.Linear(256, 512, bias=False), (16, 512, 256))
    )
    yield Program("linear sum", of_module(lambda: nn.Linear(256, 512), (16, 512, 256)))
    for cell in (nn.GRU, nn.LSTM):
        yield Program(
            f"{cell.__name__} deep both ways",
            of_module(lambda c=cell: c(128, 256, 6, bidirectional=True), (512, 10, 128)),
        )
    yield Program("RNN", of_module(lambda: nn.RNN(256, 256), (128, 32, 256)))
    yield Program("GRUCell", of_module(lambda: nn.GRUCell(256, 256), (64, 256), (64, 256)))
    yield Program("LSTMCell", of_module(lambda: nn.LSTMCell(256, 256), (64, 256)))
    yield Program("rfft", of_shapes(lambda x: torch.fft.rfft(x.float()).abs(), (1024, 4096)))
    yield Program(
        "cdist 1", of_shapes(lambda x, y: torch.cdist(x.float(), y.float(), 1), *[(1024, 64)] * 2)
    )


def _gradients() -> Iterator[Program]:
    aten = torch.ops.aten
    rows = (8192, 1024)

    def layer_norm(g: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Any:
        _, mean, scale = aten.native_layer_norm(x, [1024], w, b, 1e-5)
        return aten.native_layer_norm_backward(g, x, [1024], mean, scale, w, b, [True] * 3)

    yield Program("layer_norm backward", of_shapes(layer_norm, rows, rows, (1024,), (1024,)))
    yield Program(
        "softmax backward",
        of_shapes(lambda g, x: aten._softmax_backward_data(g, x, -1, x.dtype), rows, rows),
    )
    yield Program(
        "softmax backward middle",
        of_shapes(lambda g, x: aten._softmax_backward_data(g, x, 1, x.dtype), MIDDLE, MIDDLE),
    )
    yield Program("gelu backward", of_shapes(aten.gelu_backward, *[(8192, 3072)] * 2))
    yield Program("bias backward", of_shapes(lambda g: g.sum((0, 1)), (32, 512, 1024)))
    yield Program(
        "embedding backward",
        of_numbers(
            lambda g, i: aten.embedding_dense_backward(g, i, 8192, -1, False),
            8192,
            (16, 512),
            (16, 512, 512),
        ),
    )
    yield Program(
        "avg_pool backward",
        of_shapes(
            lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
            (32, 64, 56, 56),
            (32, 64, 112, 112),
        ),
    )
    yield Program(
        "upsample backward",
        of_shapes(
            lambda g: aten.upsample_bilinear2d_backward(g, [128, 128], [16, 64, 64, 64], False),
            (16, 64, 128, 128),
        ),
    )
    yield Program(
        "conv backward",
        of_shapes(
            lambda g, x, w: aten.convolution_backward(
                g, x, w, [64], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
            ),
            IMAGES,
            IMAGES,
            (64, 64, 3, 3),
        ),
    )


def programs() -> list[Program]:
    """All of them, in a fixed order."""
    kinds = (_reductions, _order, _moved, _norms, _convolutions, _losses, _products, _gradients)
    return [program for kind in kinds for program in kind()]
