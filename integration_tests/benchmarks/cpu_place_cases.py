"""More of the operators that `cpu_operators.py` times: those of places, of shapes, of images, and
small products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import isqrt

import torch
import torch.nn.functional as F
from cpu_operator_cases import Call, Case, images_of, rows_of
from torch import Tensor


def indexing(n: int) -> Iterator[Case]:
    """Reads and writes at computed places."""
    m = torch.randn(rows_of(n))
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
    yield Case(
        "embedding_bag", lambda i, w: F.embedding_bag(i, w, mode="sum"), (some.view(1, -1), m)
    )
    bags = some[: rows // 4 * 4].view(-1, 4)
    for mode in ("sum", "mean", "max"):
        bag = partial(F.embedding_bag, mode=mode)
        yield Case(f"embedding_bag {mode}", bag, (bags, m))
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
            yield Case(
                f"index_put{end} {how}",
                lambda x, i, s, op="index_put" + end: getattr(x, op)((i,), s),
                (torch.randn(n), index, source),
            )
            yield Case(
                f"index_put{end} accumulate {how}",
                lambda x, i, s, op="index_put" + end: getattr(x, op)((i,), s, True),
                (torch.randn(n), index, source),
            )
        for dim, index in ((0, each), (1, across)):
            for op in ("scatter", "scatter_add"):
                yield Case(
                    f"{op}{end} dim {dim}",
                    lambda x, i, s, op=op + end, d=dim: getattr(x, op)(d, i, s),
                    (m.clone(), index, new),
                )
        for how, index in (("rows", some), ("few rows", few)):
            for op in ("index_add", "index_copy"):
                yield Case(
                    f"{op}{end} {how}",
                    lambda x, i, s, op=op + end: getattr(x, op)(0, i, s),
                    (m.clone(), index, new[: len(index)].clone()),
                )
            yield Case(
                f"index_fill{end} {how}",
                lambda x, i, op="index_fill" + end: getattr(x, op)(0, i, 0.5),
                (m.clone(), index),
            )
        yield Case(
            f"scatter_reduce{end} amax",
            lambda x, i, s, op="scatter_reduce" + end: getattr(x, op)(0, i, s, "amax"),
            (torch.randn(n), at, values),
        )
        yield Case(
            f"scatter{end} a number",
            lambda x, i, op="scatter" + end: getattr(x, op)(0, i, 2.0),
            (torch.randn(n), tenth),
        )
    yield Case("masked_scatter", torch.masked_scatter, (x, x > 0, values))
    yield Case("x[1:5] = s", _write_part, (m.clone(), new[:, 1:5].clone()))
    yield Case("x[mask] = 0", _write_where, (x.clone(), x > 0))
    yield Case("bincount", lambda i: torch.bincount(i, minlength=64), (at % 64,))
    yield Case("searchsorted", torch.searchsorted, (x.sort().values, values))
    yield Case("bucketize", torch.bucketize, (x, torch.linspace(-2, 2, 33)))
    yield Case(
        "gather gradient", lambda x, i: x.gather(1, i), (m.clone().requires_grad_(), across), True
    )
    yield Case("x[i] gradient", lambda x, i: x[i], (x.clone().requires_grad_(), at), True)
    yield Case("rows[i] gradient", lambda x, i: x[i], (m.clone().requires_grad_(), some), True)
    yield Case(
        "index_select gradient",
        lambda x, i: x.index_select(0, i),
        (m.clone().requires_grad_(), some),
        True,
    )
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
    m, row = torch.randn(rows_of(n)), torch.randn(n)
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
    yield Case(
        "permute",
        lambda x: x.permute(0, 2, 1).contiguous(),
        (torch.randn(4, max(1, n // 256), 64),),
    )
    yield Case(
        "permute 4",
        lambda x: x.permute(0, 2, 1, 3).contiguous(),
        (torch.randn(2, 8, max(1, n // 1024), 64),),
    )
    yield Case("unfold", lambda x: x.unfold(1, 8, 4).contiguous(), (m,))
    yield Case(
        "expand", lambda x: x[:, :1].expand(-1, 64).contiguous(), (torch.randn(n // 64 + 1, 2),)
    )
    yield Case("clone", torch.clone, (row,))
    yield Case("split", lambda x: [p.contiguous() for p in x.chunk(3, 1)], (m,))
    yield Case("arange", lambda x: torch.arange(x.shape[0]), (row,))
    yield Case("zeros_like", torch.zeros_like, (row,))
    yield Case("eye", lambda x: torch.eye(x.shape[0]), (m,))
    yield Case(
        "meshgrid",
        lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij")),
        (m[0].clone(), m[:, 0].clone()),
    )
    yield Case(
        "cat gradient", lambda x, y: torch.cat([x, y], 1), (m.clone().requires_grad_(), m), True
    )
    yield Case("flip gradient", lambda x: x.flip(1), (m.clone().requires_grad_(),), True)


def images(n: int) -> Iterator[Case]:
    """Pooling, resizing, padding, convolutions of few channels."""
    x = images_of(n)
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
    yield Case(
        "grid_sample gradient", lambda x, g: F.grid_sample(x, g, align_corners=False), given, True
    )
    three = x[:, :3].contiguous()
    yield Case(
        "conv2d few channels",
        lambda x, w: F.conv2d(x, w, padding=1),
        (three, torch.randn(4, 3, 3, 3)),
    )
    yield Case(
        "conv2d relu", lambda x, w: F.conv2d(x, w, padding=1).relu(), (x, torch.randn(16, 16, 3, 3))
    )
    yield Case(
        "conv2d depthwise",
        lambda x, w: F.conv2d(x, w, padding=1, groups=16),
        (x, torch.randn(16, 1, 3, 3)),
    )
    yield Case("conv2d 1x1", lambda x, w: F.conv2d(x, w), (x, torch.randn(8, 16, 1, 1)))
    yield Case(
        "conv1d",
        lambda x, w: F.conv1d(x, w),
        (torch.randn(2, 4, max(8, n // 8)), torch.randn(4, 4, 3)),
    )
    yield Case(
        "conv_transpose2d",
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        (three, torch.randn(3, 4, 2, 2)),
    )
    given = (three.clone().requires_grad_(), torch.randn(4, 3, 3, 3, requires_grad=True))
    yield Case("conv2d gradient", lambda x, w: F.conv2d(x, w, padding=1), given, True)
    yield Case("max_pool1d", lambda x: F.max_pool1d(x, 2), (torch.randn(2, 4, max(8, n // 8)),))
    yield Case("avg_pool1d", lambda x: F.avg_pool1d(x, 2), (torch.randn(2, 4, max(8, n // 8)),))
    volume = torch.randn(1, 4, *[max(4, round((n / 4) ** (1 / 3)))] * 3)
    yield Case("max_pool3d", lambda x: F.max_pool3d(x, 2), (volume,))
    yield Case("avg_pool3d", lambda x: F.avg_pool3d(x, 2), (volume,))
    yield Case(
        "interpolate trilinear",
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        (volume,),
    )
    yield Case(
        "interpolate linear",
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
        (torch.randn(2, 4, max(8, n // 8)),),
    )


def products(n: int) -> Iterator[Case]:
    """Small products of matrices."""
    side = max(4, round((n * 8) ** 0.4))
    a, b, v = torch.randn(side, side), torch.randn(side, side), torch.randn(side)
    batch = max(1, n // 256)
    yield Case("mm", torch.mm, (a, b))
    yield Case("mm transposed", lambda x, y: x @ y.t(), (a, b))
    yield Case("mv", torch.mv, (torch.randn(rows_of(n)), torch.randn(rows_of(n)[1])))
    yield Case(
        "mv transposed",
        lambda x, y: x.t() @ y,
        (torch.randn(rows_of(n)), torch.randn(rows_of(n)[0])),
    )
    yield Case("addmm", torch.addmm, (v, a, b))
    yield Case("linear", F.linear, (a, b, v))
    yield Case(
        "linear few rows", F.linear, (torch.randn(3, rows_of(n)[1]), torch.randn(rows_of(n)), None)
    )
    yield Case(
        "linear one row",
        F.linear,
        (torch.randn(1, rows_of(n)[1]), torch.randn(rows_of(n)), torch.randn(rows_of(n)[0])),
    )
    yield Case("linear gradient", F.linear, (a, b.clone().requires_grad_(), v), True)
    yield Case("bmm small", torch.bmm, (torch.randn(batch, 4, 4), torch.randn(batch, 4, 4)))
    yield Case(
        "bmm 16",
        torch.bmm,
        (torch.randn(max(1, batch // 4), 16, 16), torch.randn(max(1, batch // 4), 16, 16)),
    )
    yield Case("bmm vectors", torch.bmm, (torch.randn(batch, 1, 16), torch.randn(batch, 16, 16)))
    yield Case(
        "einsum ij,ij->i",
        lambda x, y: torch.einsum("ij,ij->i", x, y),
        (torch.randn(rows_of(n)), torch.randn(rows_of(n))),
    )
    yield Case(
        "einsum outer",
        lambda x, y: torch.einsum("bi,bj->bij", x, y),
        (torch.randn(batch, 16), torch.randn(batch, 16)),
    )
    yield Case(
        "einsum bij,bjk->bik",
        lambda x, y: torch.einsum("bij,bjk->bik", x, y),
        (torch.randn(batch, 8, 8), torch.randn(batch, 8, 8)),
    )
    yield Case("kron", torch.kron, (torch.randn(4, 4), torch.randn(rows_of(n // 16 + 1))))
    yield Case("cdist", torch.cdist, (torch.randn(isqrt(n), 3), torch.randn(isqrt(n), 3)))
    yield Case(
        "cross",
        lambda x, y: torch.linalg.cross(x, y),
        (torch.randn(n // 3, 3), torch.randn(n // 3, 3)),
    )
    yield Case("matrix int64", torch.mm, (torch.randint(0, 9, (side // 2, side // 2)),) * 2)
    q = torch.randn(1, 4, max(4, isqrt(n // 4) // 2), 32)
    yield Case("attention", F.scaled_dot_product_attention, (q, q, q))
    yield Case(
        "attention causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (q,)
    )
    yield Case("baddbmm", torch.baddbmm, (torch.randn(batch, 8, 8),) * 3)
    yield Case(
        "bilinear",
        F.bilinear,
        (torch.randn(batch // 4 + 1, 8), torch.randn(batch // 4 + 1, 8), torch.randn(8, 8, 8)),
    )


FAMILIES: dict[str, Callable[[int], Iterator[Case]]] = {
    "indexing": indexing,
    "shapes": shapes,
    "images": images,
    "products": products,
}
