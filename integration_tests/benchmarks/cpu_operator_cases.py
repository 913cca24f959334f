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


def rows_of(n: int) -> tuple[int, int]:
    """A matrix of about n elements whose sides are no powers of two."""
    side = isqrt(n)
    return max(1, n // (side + 9)), side + 9


def images_of(n: int) -> Tensor:
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
    m = torch.randn(rows_of(n))
    yield Case("add transposed", torch.add, (m, torch.randn(rows_of(n)[::-1]).t()))
    yield Case("copy transposed", lambda x: x.t().contiguous(), (m,))
    yield Case("add row", torch.add, (m, torch.randn(m.shape[1])))
    yield Case("add column", torch.add, (m, torch.randn(m.shape[0], 1)))
    yield Case("every other", lambda x: x[:, ::2] + 1, (m,))
    yield Case("outer", torch.outer, (m[0].clone(), m[:, 0].clone()))


def dtypes(n: int) -> Iterator[Case]:
    """Other types than float32."""
    for dtype in (*HALVES, torch.float64):
        x = (torch.rand(n) + 0.5).to(dtype)
        m = torch.randn(rows_of(n)).to(dtype)
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
        m = torch.randint(0, high, rows_of(n)).to(dtype)
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
    for fn in (
        torch.abs,
        torch.angle,
        torch.exp,
        torch.conj_physical,
        torch.sum,
        torch.view_as_real,
    ):
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
        "transposed": torch.randn(rows_of(n)).t(),
        "part": torch.randn(rows_of(n))[:, 1:],
    }
    for fn in whole:
        for layout, x in layouts.items():
            dims: tuple[Any, ...] = (tuple(range(x.dim())),) if fn is torch.logsumexp else ()
            if x.dim() > 1 and fn is torch.median:
                continue
            yield Case(f"{fn.__name__} {layout}".strip(), lambda x, fn=fn, d=dims: fn(x, *d), (x,))
    m = torch.randn(rows_of(n))
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
    m = torch.randn(rows_of(n))
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
    images = images_of(n)
    wide = images.to(memory_format=torch.channels_last)
    for label, x in (("", images), ("channels last", wide)):
        yield Case(
            f"batch_norm {label}", lambda x: F.batch_norm(x, None, None, training=True), (x,)
        )
        yield Case(f"group_norm {label}", lambda x: F.group_norm(x, 4), (x,))
        yield Case(f"instance_norm {label}", F.instance_norm, (x,))
        leaf = x.clone().requires_grad_()
        fn = lambda x: F.batch_norm(x, None, None, training=True)  # noqa: E731
        yield Case(f"batch_norm gradient {label}", fn, (leaf,), True)
        yield Case(f"group_norm gradient {label}", lambda x: F.group_norm(x, 4), (leaf,), True)


FAMILIES: dict[str, Callable[[int], Iterator[Case]]] = {
    "pointwise": pointwise,
    "dtypes": dtypes,
    "reductions": reductions,
    "losses": losses,
}
