"""Ops of no family: diagonals, membership, scatters that reduce, weight norm, bilinear sums, and
the arithmetic that few graphs hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.ops.common import (
    Family,
    Number,
    aten,
    cast,
    constant,
    contiguous,
    floating,
    promoted,
    reshape,
    where,
    wide,
    wrap,
    zeros,
)
from dovetail_prims.ops.reductions import linalg_vector_norm


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """stack, as ATen names it inside"""
    return aten.stack.default(tensors, dim)


def is_all_true(self: Tensor) -> Tensor:
    """All of it"""
    return aten.all.default(self)


def is_any_true(self: Tensor) -> Tensor:
    """Any of it"""
    return aten.any.default(self)


def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dimension laid on a diagonal of two"""
    rank = self.dim() + 1
    first, second = wrap(dim1, rank), wrap(dim2, rank)
    size = self.shape[-1] + abs(offset)
    shape = list(self.shape[:-1])
    for d in sorted((first, second)):
        shape.insert(d, size)
    nothing = zeros(shape, self)
    return aten.diagonal_scatter.default(nothing, self, offset, first, second)


def _bitwise_number(name: str) -> Callable[..., Any]:
    op: Callable[..., Tensor] = getattr(aten, f"bitwise_{name}").Tensor

    def entry(self: Number, other: Tensor) -> Tensor:
        """A number on the left"""
        return op(constant(self, other, promoted(other, self)), other)

    return entry


def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Elements written by their place in row-major order; memory keeps its own"""
    values = reshape(source, list(index.shape))
    if self.is_contiguous():
        out = aten.index_put.default(reshape(self, [-1]), [index], values, accumulate)
        return aten.view.default(out, self.shape)
    rest = aten.where.self(aten.lt.Scalar(index, 0), aten.add.Tensor(index, self.numel()), index)
    places: list[Tensor] = []
    for size in reversed(self.shape[1:]):
        places.insert(0, aten.remainder.Scalar(rest, size))
        rest = aten.div.Tensor_mode(rest, size, rounding_mode="floor")
    return aten.index_put.default(self, [rest, *places], values, accumulate)


def masked_scatter_backward(grad_output: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradients where the mask holds, in order, at the front of a tensor of `sizes`"""
    shape = list(grad_output.shape)
    chosen = reshape(aten.expand.default(mask, shape), [-1])
    place = aten.sub.Tensor(aten.cumsum.default(cast(chosen, torch.int64), 0), 1)
    length = 1
    for size in sizes:
        length = length * size
    # What the mask leaves out goes to one place past the end, which is cut off again.
    place = where(chosen, place, length)
    flat = zeros([length + 1], grad_output)
    put_there = aten.index_put.default(flat, [place], reshape(grad_output, [-1]))
    return aten.view.default(aten.slice.Tensor(put_there, 0, 0, length), sizes)


def scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    """The older spelling of scatter_reduce: add or multiply"""
    if reduce == "add":
        return aten.scatter_add.default(self, dim, index, src)
    return aten.scatter_reduce.two(self, dim, index, src, "prod")


def scatter_value_reduce(
    self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str
) -> Tensor:
    """The same with one number"""
    src = aten.expand.default(constant(value, self), index.shape)
    return scatter_reduce(self, dim, index, src, reduce=reduce)


def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors, each given extra dimensions, summed over some"""
    parts = []
    for x, extra in zip((i1, i2, i3), (expand1, expand2, expand3), strict=True):
        for dim in sorted(extra):
            x = aten.unsqueeze.default(x, dim)
        parts.append(x)
    product = aten.mul.Tensor(aten.mul.Tensor(parts[0], parts[1]), parts[2])
    return aten.sum.dim_IntList(product, sumdim)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """v g / |v|, the norm over all dimensions but one"""
    dims = [d for d in range(v.dim()) if d != wrap(dim, v.dim())]
    x = wide(v)
    norm = aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(x, x), dims, True))
    out = aten.mul.Tensor(x, aten.div.Tensor(wide(g), norm))
    return contiguous(cast(out, v.dtype)), cast(norm, g.dtype)


def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """g / |v| (w̄ - v (w̄·v) / |v|²), and (w̄·v) / |v|"""
    w, v, g, norm = (wide(x) for x in (grad_w, saved_v, saved_g, saved_norms))
    dims = [d for d in range(v.dim()) if d != wrap(dim, v.dim())]
    along_v = aten.sum.dim_IntList(aten.mul.Tensor(w, v), dims, True)
    to_g = aten.div.Tensor(along_v, norm)
    bent = aten.sub.Tensor(w, aten.mul.Tensor(v, aten.div.Tensor(to_g, norm)))
    to_v = aten.mul.Tensor(aten.div.Tensor(g, norm), bent)
    return contiguous(cast(to_v, saved_v.dtype)), cast(to_g, saved_g.dtype)


def randint(
    high: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = torch.int64,
    device: torch.device | None = None,
    **options: Any,
) -> Tensor:
    """From 0"""
    return aten.randint.low(0, high, size, dtype=dtype, device=device)


def empty_permuted(
    size: Sequence[int],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: Any,
) -> Tensor:
    """Dense in a given order of dimensions"""
    base = aten.empty.memory_format([size[d] for d in physical_layout], dtype=dtype, device=device)
    inverse = [list(physical_layout).index(d) for d in range(len(size))]
    return aten.permute.default(base, inverse)


def isin(
    elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element equals one of the others: compared with every one"""
    others = reshape(test_elements, [-1])
    each = aten.unsqueeze.default(contiguous(elements), -1)
    hit = aten.any.dims(aten.eq.Tensor(each, others), [-1])
    return aten.logical_not.default(hit) if invert else hit


def isin_number(
    elements: Tensor, test_element: Number, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element equals a number"""
    return (aten.ne if invert else aten.eq).Scalar(contiguous(elements), test_element)


def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector at right angles to both, of three components along `dim`"""

    def component(x: Tensor, i: int) -> Tensor:
        return aten.slice.Tensor(x, dim, i % 3, i % 3 + 1)

    def product(i: int, j: int) -> Tensor:
        return aten.mul.Tensor(component(self, i), component(other, j))

    parts = [aten.sub.Tensor(product(i + 1, i + 2), product(i + 2, i + 1)) for i in range(3)]
    return aten.cat.default(parts, dim)


def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """x 2^n; for floats and whole n in two steps, as 2^n alone may be too large a number"""
    if other.is_floating_point() or not self.is_floating_point():
        power = other.dtype if other.is_floating_point() else torch.get_default_dtype()
        if self.dtype is other.dtype and power is torch.float32:
            return aten.mul.Tensor(self, aten.pow.Scalar(2.0, other))
        return aten.mul.Tensor(self, aten.exp2.default(other))  # (which lies as the exponents do)
    x = floating(self)
    half = aten.bitwise_right_shift.Tensor_Scalar(cast(other, torch.int64), 1)
    out = cast(x, torch.float64)
    for n in (half, aten.sub.Tensor(cast(other, torch.int64), half)):
        out = aten.mul.Tensor(out, aten.exp2.default(cast(n, torch.float64)))
    return cast(out, x.dtype)


def renorm(self: Tensor, p: Number, dim: int, maxnorm: Number) -> Tensor:
    """Each slice across `dim` scaled down to the p-norm `maxnorm`, if it is longer"""
    dims = [d for d in range(self.dim()) if d != wrap(dim, self.dim())]
    length = linalg_vector_norm(wide(self), p, dims, True)
    scale = aten.div.Tensor(maxnorm, aten.add.Tensor(length, 1e-7))
    scale = where(aten.gt.Scalar(length, maxnorm), scale, 1.0)
    return contiguous(aten.mul.Tensor(self, cast(scale, self.dtype)))


def rrelu(
    self: Tensor,
    noise: Tensor,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Slopes drawn for what is not above 0; without training, the mean slope; row-major, as what
    `rrelu` calls is. (On a CPU eager draws for those elements alone: as many as the data say, one
    after the other. To draw them takes as long as the library's whole kernel.)"""
    if training:
        drawn_alone = self.device.type == "cpu"
        if (
            drawn_alone and not self.is_contiguous()
        ):  # (of which the library's function is row-major)
            own = aten.rrelu_with_noise_functional.default
            return own(contiguous(self), noise, lower, upper, training, generator)
        if drawn_alone or self.dtype not in (torch.float32, torch.float64):
            return NotImplemented
        drawn = cast(aten.uniform.default(noise, 0.0, 1.0, generator=generator), torch.float64)
        drawn = aten.add.Tensor(aten.mul.Tensor(drawn, upper - lower), lower)
        held = where(aten.le.Scalar(self, 0), cast(drawn, noise.dtype), 1.0)
        return aten.mul.Tensor(contiguous(self), held), held
    mean = aten.leaky_relu.default(contiguous(self), (lower + upper) / 2)
    return mean, aten.clone.default(noise)


def rrelu_backward(
    grad_output: Tensor,
    self: Tensor,
    noise: Tensor,
    lower: Number,
    upper: Number,
    training: bool,
    self_is_result: bool,
) -> Tensor:
    """The slopes that were drawn, or the mean one below 0"""
    if training and upper - lower > 1e-6:
        return aten.mul.Tensor(noise, grad_output)
    slope = (lower + upper) / 2
    return aten.leaky_relu_backward.default(grad_output, self, slope, self_is_result)


TABLE: Family = {
    "linalg_cross.default": linalg_cross,
    "ldexp.Tensor": ldexp,
    "renorm.default": renorm,
    "rrelu_with_noise_functional.default": rrelu,
    "rrelu_with_noise_backward.default": rrelu_backward,
    "_stack.default": stack,
    "_is_all_true.default": is_all_true,
    "_is_any_true.default": is_any_true,
    "diag_embed.default": diag_embed,
    "put.default": put,
    "masked_scatter_backward.default": masked_scatter_backward,
    "scatter.reduce": scatter_reduce,
    "scatter.value_reduce": scatter_value_reduce,
    "_trilinear.default": trilinear,
    "_weight_norm_interface.default": weight_norm,
    "_weight_norm_interface_backward.default": weight_norm_backward,
    "randint.default": randint,
    "empty_permuted.default": empty_permuted,
    "isin.Tensor_Tensor": isin,
    "isin.Tensor_Scalar": isin_number,
    **{
        f"bitwise_{name}.Scalar_Tensor": _bitwise_number(name)
        for name in ("and", "or", "xor", "left_shift", "right_shift")
    },
}
