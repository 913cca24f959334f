"""The operators that `cpu_operators.py` times, by family: each a function and inputs of some `n`
elements, laid out as they often are, and as they seldom are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[..., Any]
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """A function with its inputs; `trains` if the time of its gradients counts, too."""

    name: str
    fn: Call
    inputs: tuple[Any, ...]
    trains: bool = False


def _rows(n: int) -> tuple[int, int]:
    """A matrix of about n elements whose sides are no powers of two."""
    side = isqrt(n)
    return max(1, n // (side + 9)), side + 9


def _images(n: int) -> Tensor:
    side = max(8, isqrt(n // 32))
    return torch.randn(2, 16, side, side)


def pointwise(n: int) -> Iterator[Case]:
    """One result an element."""
    x, y = torch.randn(n), torch.rand(n) + 0.5
    unary: list[Call] = [
        torch.abs, torch.neg, torch.relu, torch.exp, torch.log, torch.sqrt, torch.rsqrt,
        torch.sin, torch.cos, torch.tan, torch.tanh, torch.sigmoid, torch.erf, torch.expm1,
        torch.log1p, torch.reciprocal, torch.floor, torch.round, torch.sign, torch.atan,
        torch.asin, torch.sinh, torch.lgamma, torch.digamma, torch.erfinv, torch.exp2, torch.log2,
        torch.isnan, torch.special.i0, torch.special.ndtri, torch.logit, torch.square, torch.trunc,
        torch.acosh, torch.asinh, torch.frac, torch.special.entr, torch.special.erfcx,
    ]  # fmt: skip
    for fn in unary:
        yield Case(f"{fn.__name__}", fn, (y,))
    activations: list[Call] = [
        F.gelu, F.silu, F.softplus, F.elu, F.mish, F.hardswish, F.leaky_relu, F.logsigmoid, F.selu,
        F.hardtanh, F.hardsigmoid, F.softsign, F.celu, F.relu6, F.tanhshrink,
    ]  # fmt: skip
    for fn in activations:
        yield Case(fn.__name__, fn, (x,))
        yield Case(f"{fn.__name__} gradient", fn, (x.clone().requires_grad_(),), True)
    yield Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (x,))
    binary: list[Call] = [
        torch.add, torch.mul, torch.div, torch.pow, torch.atan2, torch.maximum, torch.fmod,
        torch.remainder, torch.floor_divide, torch.hypot, torch.lt, torch.copysign,
        torch.xlogy, torch.nextafter, torch.logaddexp,
    ]  # fmt: skip
    for fn in binary:
        yield Case(fn.__name__, fn, (y, y.flip(0).contiguous()))
    yield Case("pow 3", lambda x: x**3, (x,))
    yield Case("pow 0.5", lambda x: x**0.5, (y,))
    yield Case("where", torch.where, (x > 0, x, y))
    yield Case("clamp", lambda x: x.clamp(-1, 1), (x,))
    yield Case("lerp", torch.lerp, (x, y, y))
    yield Case("addcmul", torch.addcmul, (x, y, y))
    yield Case("masked_fill", lambda x, m: x.masked_fill(m, 0.0), (x, x > 0))
    yield Case("nan_to_num", torch.nan_to_num, (x,))
    yield Case("add_ in place", lambda x, y: x.add_(y), (x.clone(), y))
    yield Case("relu_ in place", lambda x: x.relu_(), (x.clone(),))
    m = torch.randn(_rows(n))
    yield Case("add transposed", torch.add, (m, torch.randn(_rows(n)[::-1]).t()))
    yield Case("copy transposed", lambda x: x.t().contiguous(), (m,))
    yield Case("add row", torch.add, (m, torch.randn(m.shape[1])))
    yield Case("add column", torch.add, (m, torch.randn(m.shape[0], 1)))
    yield Case("every other", lambda x: x[:, ::2] + 1, (m,))
    yield Case("outer", torch.outer, (m[0].clone(), m[:, 0].clone()))


def dtypes(n: int) -> Iterator[Case]:
    """Other types than float32."""
    for dtype in (*HALVES, torch.float64):
        x = (torch.rand(n) + 0.5).to(dtype)
        m = torch.randn(_rows(n)).to(dtype)
        label = str(dtype).removeprefix("torch.")
        for fn in (torch.add, torch.mul, torch.div, torch.maximum):
            yield Case(f"{fn.__name__} {label}", fn, (x, x))
        for fn in (torch.exp, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.relu, torch.sqrt):
            yield Case(f"{fn.__name__} {label}", fn, (x,))
        for fn in (torch.sum, torch.mean, torch.amax, torch.argmax, torch.norm, torch.var):
            yield Case(f"{fn.__name__} {label}", fn, (x,))
        for dim in (0, 1):
            for fn in (torch.sum, torch.softmax, torch.cumsum, torch.argmax, torch.amax, torch.var):
                yield Case(f"{fn.__name__} dim {dim} {label}", _along(fn, dim), (m,))
        yield Case(f"layer_norm {label}", _layer_norm, (m,))
        yield Case(f"to float32 {label}", lambda x: x.float(), (x,))
        yield Case(f"from float32 {label}", _to(dtype), (x.float(),))
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        high = 2 if dtype is torch.bool else 100
        x = torch.randint(1, high, (n,)).to(dtype)
        m = torch.randint(0, high, _rows(n)).to(dtype)
        label = str(dtype).removeprefix("torch.")
        if dtype is not torch.bool:
            for fn in (torch.add, torch.mul, torch.div, torch.floor_divide, torch.remainder):
                yield Case(f"{fn.__name__} {label}", fn, (x, x))
            for fn in (torch.amax, torch.argmax, torch.prod, torch.cumsum):
                for dim in (0, 1):
                    yield Case(f"{fn.__name__} dim {dim} {label}", _along(fn, dim), (m,))
        for fn in (torch.eq, torch.lt, torch.bitwise_and):
            yield Case(f"{fn.__name__} {label}", fn, (x, x))
        for fn in (torch.sum, torch.any, torch.all, torch.count_nonzero):
            yield Case(f"{fn.__name__} {label}", fn, (x,))
            for dim in (0, 1):
                yield Case(f"{fn.__name__} dim {dim} {label}", _along(fn, dim), (m,))
        yield Case(f"to float32 {label}", lambda x: x.float(), (x,))
        yield Case(f"from float32 {label}", _to(dtype), (torch.rand(n) * 50,))
    z = torch.randn(n // 2, dtype=torch.complex64)
    for fn in (torch.add, torch.mul, torch.div):
        yield Case(f"{fn.__name__} complex64", fn, (z, z))
    for fn in (torch.abs, torch.angle, torch.exp, torch.conj_physical, torch.sum, torch.view_as_real):
        yield Case(f"{fn.__name__} complex64", fn, (z,))


def _along(fn: Call, dim: int, **others: Any) -> Call:
    return lambda x: fn(x, dim, **others)


def _to(dtype: torch.dtype) -> Call:
    return lambda x: x.to(dtype)


def _layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def reductions(n: int) -> Iterator[Case]:
    """Fewer results than elements: of all, along rows and along columns."""
    whole: list[Call] = [
        torch.sum, torch.mean, torch.prod, torch.amax, torch.amin, torch.argmax, torch.argmin,
        torch.var, torch.std, torch.norm, torch.logsumexp, torch.any, torch.count_nonzero,
        torch.max, torch.aminmax, torch.nansum, torch.median, torch.std_mean,
    ]  # fmt: skip
    layouts = {
        "": torch.randn(n // 64 * 64),
        "odd": torch.randn(n + 69),
        "every other": torch.randn(n * 2)[::2],
        "transposed": torch.randn(_rows(n)).t(),
        "part": torch.randn(_rows(n))[:, 1:],
    }
    for fn in whole:
        for layout, x in layouts.items():
            dims: tuple[Any, ...] = (tuple(range(x.dim())),) if fn is torch.logsumexp else ()
            if x.dim() > 1 and fn is torch.median:
                continue
            yield Case(f"{fn.__name__} {layout}".strip(), lambda x, fn=fn, d=dims: fn(x, *d), (x,))
    m = torch.randn(_rows(n))
    cube = torch.randn(max(2, n // 4096), 64, 64)
    along: list[Call] = [
        torch.sum, torch.mean, torch.prod, torch.amax, torch.argmax, torch.var, torch.logsumexp,
        torch.any, torch.max, torch.norm, torch.cumsum, torch.cumprod, torch.cummax,
        torch.logcumsumexp, torch.softmax, torch.log_softmax, torch.sort, torch.argsort,
        torch.median,
    ]  # fmt: skip
    for fn in along:
        for dim in (0, 1):
            call = _along(lambda x, d, fn=fn: fn(x, dim=d), dim)
            yield Case(f"{fn.__name__} dim {dim}", call, (m,))
            yield Case(f"{fn.__name__} dim {dim} transposed", call, (m.t(),))
        yield Case(f"{fn.__name__} middle", _along(lambda x, d, fn=fn: fn(x, dim=d), 1), (cube,))
    for fn in (torch.sum, torch.var, torch.amax):
        yield Case(f"{fn.__name__} dims 0 2", lambda x, fn=fn: fn(x, (0, 2)), (cube,))
        long, wide = torch.randn(max(1, n // 3), 3), torch.randn(3, max(1, n // 3))
        for name, x in (("long", long), ("wide", wide)):
            for dim in (0, 1):
                yield Case(f"{fn.__name__} dim {dim} {name}", _along(fn, dim), (x,))
    row = torch.randn(n)
    for fn in (torch.cumsum, torch.cumprod, torch.cummax, torch.logcumsumexp, torch.softmax):
        yield Case(f"{fn.__name__} of a row", _along(fn, 0), (row,))
    yield Case("topk", lambda x: x.topk(4), (m,))
    yield Case("diff", torch.diff, (m,))
    yield Case("softmax gradient", _along(torch.softmax, 1), (m.clone().requires_grad_(),), True)
    yield Case("sum gradient", torch.sum, (row.clone().requires_grad_(),), True)
    yield Case("norm gradient", torch.norm, (row.clone().requires_grad_(),), True)
    yield Case("var gradient", torch.var, (row.clone().requires_grad_(),), True)
    yield Case("cumsum gradient", _along(torch.cumsum, 1), (m.clone().requires_grad_(),), True)


def losses(n: int) -> Iterator[Case]:
    """Norms and losses, at sizes with and without divisors."""
    for label, size in (("", n // 64 * 64), ("odd", n + 69)):
        x, y = torch.randn(size), torch.rand(size)
        pairs: list[Call] = [
            F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits, torch.dot,
            F.huber_loss, F.kl_div, F.soft_margin_loss, torch.dist, F.poisson_nll_loss,
        ]  # fmt: skip
        for fn in pairs:
            yield Case(f"{fn.__name__} {label}".strip(), fn, (x, y))
        for fn in pairs[:4]:
            given = (x.clone().requires_grad_(), y)
            yield Case(f"{fn.__name__} gradient {label}".strip(), fn, given, True)
        yield Case(f"cosine_similarity {label}", lambda x, y: F.cosine_similarity(x, y, 0), (x, y))
    m = torch.randn(_rows(n))
    target = torch.randint(0, m.shape[1], m.shape[:1])
    leaf = m.clone().requires_grad_()
    yield Case("cross_entropy", F.cross_entropy, (m, target))
    yield Case("cross_entropy gradient", F.cross_entropy, (leaf, target), True)
    yield Case("nll_loss", F.nll_loss, (m, target))
    yield Case("layer_norm", _layer_norm, (m,))
    yield Case("layer_norm gradient", _layer_norm, (leaf,), True)
    yield Case("rms_norm", lambda x: F.rms_norm(x, x.shape[-1:]), (m,))
    yield Case("normalize", F.normalize, (m,))
    yield Case("normalize dim 0", lambda x: F.normalize(x, dim=0), (m,))
    images = _images(n)
    wide = images.to(memory_format=torch.channels_last)
    for label, x in (("", images), ("channels last", wide)):
        yield Case(f"batch_norm {label}", lambda x: F.batch_norm(x, None, None, training=True), (x,))
        yield Case(f"group_norm {label}", lambda x: F.group_norm(x, 4), (x,))
        yield Case(f"instance_norm {label}", F.instance_norm, (x,))
        leaf = x.clone().requires_grad_()
        fn = lambda x: F.batch_norm(x, None, None, training=True)  # noqa: E731
        yield Case(f"batch_norm gradient {label}", fn, (leaf,), True)
        yield Case(f"group_norm gradient {label}", lambda x: F.group_norm(x, 4), (leaf,), True)


def indexing(n: int) -> Iterator[Case]:
    """Reads and writes at computed places."""
    m = torch.randn(_rows(n))
    rows, columns = m.shape
    some = torch.randint(0, rows, (rows,))
    few = torch.randint(0, rows, (max(1, rows // 16),))
    each = torch.randint(0, rows, m.shape)
    across = torch.randint(0, columns, m.shape)
    x, at = torch.randn(n), torch.randint(0, n, (n,))
    tenth = torch.randint(0, n, (max(1, n // 10),))
    new = torch.randn(m.shape)
    yield Case("gather dim 0", lambda x, i: x.gather(0, i), (m, each))
    yield Case("gather dim 1", lambda x, i: x.gather(1, i), (m, across))
    yield Case("gather of a row", lambda x, i: x.gather(0, i), (x, at))
    yield Case("take", torch.take, (x, at))
    yield Case("x[i]", lambda x, i: x[i], (x, at))
    yield Case("rows[i]", lambda x, i: x[i], (m, some))
    yield Case("columns[i]", lambda x, i: x[:, i], (m, across[0]))
    yield Case("x[i, j]", lambda x, i, j: x[i, j], (m, each, across))
    yield Case("x[mask]", lambda x, m: x[m], (x, x > 0))
    yield Case("index_select 0", lambda x, i: x.index_select(0, i), (m, some))
    yield Case("index_select 1", lambda x, i: x.index_select(1, i), (m, across[0]))
    yield Case("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), (m, across))
    yield Case("embedding", lambda i, w: F.embedding(i, w), (some, m))
    yield Case("embedding gradient", F.embedding, (some, m.clone().requires_grad_()), True)
    yield Case("embedding_bag", lambda i, w: F.embedding_bag(i, w, mode="sum"), (some.view(1, -1), m))
    bags = some[: rows // 4 * 4].view(-1, 4)
    for mode in ("sum", "mean", "max"):
        yield Case(f"embedding_bag {mode}", lambda i, w, mode=mode: F.embedding_bag(i, w, mode=mode),
                   (bags, m))  # fmt: skip
    yield Case("one_hot", lambda i: F.one_hot(i, 16), (torch.randint(0, 16, (n // 16 + 1,)),))
    values, many = torch.randn(n), torch.randn(len(tenth))
    targets = {"": lambda: torch.randn(n), "in place": lambda: torch.randn(n)}
    for label in targets:
        end = "_" if label else ""
        for how, index, source in (("all", at, values), ("a tenth", tenth, many)):
            for op in ("scatter", "scatter_add", "index_add", "index_copy"):
                def call(x: Tensor, i: Tensor, s: Tensor, op: str = op + end) -> Tensor:
                    return getattr(x, op)(0, i, s)  # type: ignore[no-any-return]

                yield Case(f"{op}{end} {how}", call, (torch.randn(n), index, source))
            yield Case(f"index_put{end} {how}", lambda x, i, s, op="index_put" + end: getattr(x, op)((i,), s), (torch.randn(n), index, source))
            yield Case(f"index_put{end} accumulate {how}", lambda x, i, s, op="index_put" + end: getattr(x, op)((i,), s, True), (torch.randn(n), index, source))
        for dim, index in ((0, each), (1, across)):
            for op in ("scatter", "scatter_add"):
                yield Case(f"{op}{end} dim {dim}", lambda x, i, s, op=op + end, d=dim: getattr(x, op)(d, i, s), (m.clone(), index, new))
        for how, index in (("rows", some), ("few rows", few)):
            for op in ("index_add", "index_copy"):
                yield Case(f"{op}{end} {how}", lambda x, i, s, op=op + end: getattr(x, op)(0, i, s), (m.clone(), index, new[: len(index)].clone()))
            yield Case(f"index_fill{end} {how}", lambda x, i, op="index_fill" + end: getattr(x, op)(0, i, 0.5), (m.clone(), index))
        yield Case(f"scatter_reduce{end} amax", lambda x, i, s, op="scatter_reduce" + end: getattr(x, op)(0, i, s, "amax"), (torch.randn(n), at, values))
        yield Case(f"scatter{end} a number", lambda x, i, op="scatter" + end: getattr(x, op)(0, i, 2.0), (torch.randn(n), tenth))
    yield Case("masked_scatter", torch.masked_scatter, (x, x > 0, values))
    yield Case("x[1:5] = s", _write_part, (m.clone(), new[:, 1:5].clone()))
    yield Case("x[mask] = 0", _write_where, (x.clone(), x > 0))
    yield Case("bincount", lambda i: torch.bincount(i, minlength=64), (at % 64,))
    yield Case("searchsorted", torch.searchsorted, (x.sort().values, values))
    yield Case("bucketize", torch.bucketize, (x, torch.linspace(-2, 2, 33)))
    yield Case("gather gradient", lambda x, i: x.gather(1, i), (m.clone().requires_grad_(), across), True)
    yield Case("x[i] gradient", lambda x, i: x[i], (x.clone().requires_grad_(), at), True)
    yield Case("rows[i] gradient", lambda x, i: x[i], (m.clone().requires_grad_(), some), True)
    yield Case("index_select gradient", lambda x, i: x.index_select(0, i), (m.clone().requires_grad_(), some), True)
    yield Case("unique", torch.unique, (at % 64,))
    yield Case("nonzero", torch.nonzero, (x > 0,))


def _write_part(x: Tensor, s: Tensor) -> Tensor:
    x[:, 1:5] = s
    return x


def _write_where(x: Tensor, mask: Tensor) -> Tensor:
    x[mask] = 0.0
    return x


def shapes(n: int) -> Iterator[Case]:
    """Elements in other places."""
    m, row = torch.randn(_rows(n)), torch.randn(n)
    yield Case("cat 0", lambda x, y: torch.cat([x, y]), (m, m))
    yield Case("cat 1", lambda x, y: torch.cat([x, y], 1), (m, m))
    yield Case("cat of eight", lambda x: torch.cat([x] * 8), (row[: n // 8].clone(),))
    yield Case("cat of parts", lambda x: torch.cat([x[:, 5:], x[:, :5]], 1), (m,))
    yield Case("stack 0", lambda x, y: torch.stack([x, y]), (m, m))
    yield Case("stack -1", lambda x, y: torch.stack([x, y], -1), (m, m))
    yield Case("roll 0", lambda x: x.roll(3, 0), (m,))
    yield Case("roll 1", lambda x: x.roll(3, 1), (m,))
    yield Case("flip 0", lambda x: x.flip(0), (m,))
    yield Case("flip 1", lambda x: x.flip(1), (m,))
    yield Case("rot90", torch.rot90, (m,))
    yield Case("repeat", lambda x: x.repeat(2, 3), (m,))
    yield Case("repeat_interleave", lambda x: x.repeat_interleave(3, 1), (m,))
    yield Case("repeat_interleave 0", lambda x: x.repeat_interleave(3, 0), (m,))
    yield Case("tile", lambda x: x.tile(4), (row,))
    yield Case("tril", torch.tril, (m,))
    yield Case("triu", torch.triu, (m,))
    yield Case("diag_embed", torch.diag_embed, (row[: isqrt(n)].clone(),))
    yield Case("permute", lambda x: x.permute(0, 2, 1).contiguous(), (torch.randn(4, max(1, n // 256), 64),))
    yield Case("permute 4", lambda x: x.permute(0, 2, 1, 3).contiguous(), (torch.randn(2, 8, max(1, n // 1024), 64),))
    yield Case("unfold", lambda x: x.unfold(1, 8, 4).contiguous(), (m,))
    yield Case("expand", lambda x: x[:, :1].expand(-1, 64).contiguous(), (torch.randn(n // 64 + 1, 2),))
    yield Case("clone", torch.clone, (row,))
    yield Case("split", lambda x: [p.contiguous() for p in x.chunk(3, 1)], (m,))
    yield Case("arange", lambda x: torch.arange(x.shape[0]), (row,))
    yield Case("zeros_like", torch.zeros_like, (row,))
    yield Case("eye", lambda x: torch.eye(x.shape[0]), (m,))
    yield Case("meshgrid", lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij")), (m[0].clone(), m[:, 0].clone()))
    yield Case("cat gradient", lambda x, y: torch.cat([x, y], 1), (m.clone().requires_grad_(), m), True)
    yield Case("flip gradient", lambda x: x.flip(1), (m.clone().requires_grad_(),), True)


def images(n: int) -> Iterator[Case]:
    """Pooling, resizing, padding, convolutions of few channels."""
    x = _images(n)
    wide = x.to(memory_format=torch.channels_last)
    calls: dict[str, Call] = {
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "max_pool2d 3": lambda x: F.max_pool2d(x, 3, 2, 1),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "avg_pool2d 3": lambda x: F.avg_pool2d(x, 3, 1, 1),
        "adaptive_avg_pool2d 1": lambda x: F.adaptive_avg_pool2d(x, 1),
        "adaptive_avg_pool2d 7": lambda x: F.adaptive_avg_pool2d(x, 7),
        "adaptive_max_pool2d 7": lambda x: F.adaptive_max_pool2d(x, 7),
        "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
        "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "interpolate bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "interpolate half": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
        "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
        "pad reflect": lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"),
        "pad replicate": lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate"),
        "pad circular": lambda x: F.pad(x, (2, 2, 2, 2), mode="circular"),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :8, :8], 2),
        "unfold 3": lambda x: F.unfold(x, 3),
        "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
        "local_response_norm": lambda x: F.local_response_norm(x, 3),
        "channel_shuffle": lambda x: F.channel_shuffle(x, 4),
    }
    for name, fn in calls.items():
        yield Case(name, fn, (x,))
        yield Case(f"{name} channels last", fn, (wide,))
    for name in list(calls)[:9] + ["interpolate half", "pad reflect", "pad", "unfold 3"]:
        yield Case(f"{name} gradient", calls[name], (x.clone().requires_grad_(),), True)
    grid = torch.rand(2, x.shape[2], x.shape[3], 2) * 2 - 1
    yield Case("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), (x, grid))
    given = (x.clone().requires_grad_(), grid)
    yield Case("grid_sample gradient", lambda x, g: F.grid_sample(x, g, align_corners=False), given, True)
    three = x[:, :3].contiguous()
    yield Case("conv2d few channels", lambda x, w: F.conv2d(x, w, padding=1), (three, torch.randn(4, 3, 3, 3)))
    yield Case("conv2d relu", lambda x, w: F.conv2d(x, w, padding=1).relu(), (x, torch.randn(16, 16, 3, 3)))
    yield Case("conv2d depthwise", lambda x, w: F.conv2d(x, w, padding=1, groups=16), (x, torch.randn(16, 1, 3, 3)))
    yield Case("conv2d 1x1", lambda x, w: F.conv2d(x, w), (x, torch.randn(8, 16, 1, 1)))
    yield Case("conv1d", lambda x, w: F.conv1d(x, w), (torch.randn(2, 4, max(8, n // 8)), torch.randn(4, 4, 3)))
    yield Case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2), (three, torch.randn(3, 4, 2, 2)))
    given = (three.clone().requires_grad_(), torch.randn(4, 3, 3, 3, requires_grad=True))
    yield Case("conv2d gradient", lambda x, w: F.conv2d(x, w, padding=1), given, True)
    yield Case("max_pool1d", lambda x: F.max_pool1d(x, 2), (torch.randn(2, 4, max(8, n // 8)),))
    yield Case("avg_pool1d", lambda x: F.avg_pool1d(x, 2), (torch.randn(2, 4, max(8, n // 8)),))
    volume = torch.randn(1, 4, *[max(4, round((n / 4) ** (1 / 3)))] * 3)
    yield Case("max_pool3d", lambda x: F.max_pool3d(x, 2), (volume,))
    yield Case("avg_pool3d", lambda x: F.avg_pool3d(x, 2), (volume,))
    yield Case("interpolate trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (volume,))
    yield Case("interpolate linear", lambda x: F.interpolate(x, scale_factor=2, mode="linear"), (torch.randn(2, 4, max(8, n // 8)),))


def products(n: int) -> Iterator[Case]:
    """Small products of matrices."""
    side = max(4, round((n * 8) ** 0.4))
    a, b, v = torch.randn(side, side), torch.randn(side, side), torch.randn(side)
    batch = max(1, n // 256)
    yield Case("mm", torch.mm, (a, b))
    yield Case("mm transposed", lambda x, y: x @ y.t(), (a, b))
    yield Case("mv", torch.mv, (torch.randn(_rows(n)), torch.randn(_rows(n)[1])))
    yield Case("mv transposed", lambda x, y: x.t() @ y, (torch.randn(_rows(n)), torch.randn(_rows(n)[0])))
    yield Case("addmm", torch.addmm, (v, a, b))
    yield Case("linear", F.linear, (a, b, v))
    yield Case("linear few rows", F.linear, (torch.randn(3, _rows(n)[1]), torch.randn(_rows(n)), None))
    yield Case("linear one row", F.linear, (torch.randn(1, _rows(n)[1]), torch.randn(_rows(n)), torch.randn(_rows(n)[0])))
    yield Case("linear gradient", F.linear, (a, b.clone().requires_grad_(), v), True)
    yield Case("bmm small", torch.bmm, (torch.randn(batch, 4, 4), torch.randn(batch, 4, 4)))
    yield Case("bmm 16", torch.bmm, (torch.randn(max(1, batch // 4), 16, 16), torch.randn(max(1, batch // 4), 16, 16)))
    yield Case("bmm vectors", torch.bmm, (torch.randn(batch, 1, 16), torch.randn(batch, 16, 16)))
    yield Case("einsum ij,ij->i", lambda x, y: torch.einsum("ij,ij->i", x, y), (torch.randn(_rows(n)), torch.randn(_rows(n))))
    yield Case("einsum outer", lambda x, y: torch.einsum("bi,bj->bij", x, y), (torch.randn(batch, 16), torch.randn(batch, 16)))
    yield Case("einsum bij,bjk->bik", lambda x, y: torch.einsum("bij,bjk->bik", x, y), (torch.randn(batch, 8, 8), torch.randn(batch, 8, 8)))
    yield Case("kron", torch.kron, (torch.randn(4, 4), torch.randn(_rows(n // 16 + 1))))
    yield Case("cdist", torch.cdist, (torch.randn(isqrt(n), 3), torch.randn(isqrt(n), 3)))
    yield Case("cross", lambda x, y: torch.linalg.cross(x, y), (torch.randn(n // 3, 3), torch.randn(n // 3, 3)))
    yield Case("matrix int64", torch.mm, (torch.randint(0, 9, (side // 2, side // 2)),) * 2)
    q = torch.randn(1, 4, max(4, isqrt(n // 4) // 2), 32)
    yield Case("attention", F.scaled_dot_product_attention, (q, q, q))
    yield Case("attention causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (q,))
    yield Case("baddbmm", torch.baddbmm, (torch.randn(batch, 8, 8),) * 3)
    yield Case("bilinear", F.bilinear, (torch.randn(batch // 4 + 1, 8), torch.randn(batch // 4 + 1, 8), torch.randn(8, 8, 8)))


FAMILIES: dict[str, Callable[[int], Iterator[Case]]] = {
    "pointwise": pointwise,
    "dtypes": dtypes,
    "reductions": reductions,
    "losses": losses,
    "indexing": indexing,
    "shapes": shapes,
    "images": images,
    "products": products,
}
