"""Rules for the usual case of ops whose meta kernels PyTorch writes in Python.

Some of these import PyTorch's own compiler when they first run, which takes seconds, and some lay
their results out otherwise than eager's kernels. So where an op's operands fit one another - of one
floating dtype, on one device, of the sizes they should have - the answer is given here; every other
case is left to the meta kernel, and with it all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size, make
from dovetail_prims.shape_rules.layout import (
    broadcast,
    empty_like_strides,
    equal_sizes,
    fresh,
    has_zero,
    is_canonical,
    pointwise_out,
    wrap_dim,
)
from dovetail_prims.shape_rules.norms import group_norm
from dovetail_prims.shape_rules.promotion import FLOATING, as_float
from dovetail_prims.shape_rules.reductions import reduced_sizes

_NONE, _MEAN = 0, 1
_Results = tuple[FakeTensor | None, ...]


def _of_one_kind(*tensors: FakeTensor | None) -> bool:
    """Whether all are of one floating dtype and on one device."""
    given = [t for t in tensors if t is not None]
    dtype, device = given[0]._dtype, given[0]._device
    return dtype in FLOATING and all(t._dtype is dtype and t._device == device for t in given)


def _alike(*tensors: FakeTensor | None) -> bool:
    """Whether all are of one floating dtype, on one device and of the first one's sizes."""
    given = [t for t in tensors if t is not None]
    return _of_one_kind(*given) and all(equal_sizes(t._sizes, given[0]._sizes) for t in given)


def _empty_like(x: FakeTensor) -> FakeTensor:
    return make(x._sizes, empty_like_strides(x), x._dtype, x._device)


# --- element by element ---------------------------------------------------------------------------


def float_function(x: FakeTensor) -> FakeTensor:
    """A function of real numbers; whole numbers are promoted."""
    if x._dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((x,), as_float(x._dtype))


def _fits_prelu(x: FakeTensor, weight: FakeTensor) -> bool:
    return _of_one_kind(x, weight) and len(x._sizes) == len(weight._sizes)


def prelu(x: FakeTensor, weight: FakeTensor) -> FakeTensor:
    """`_prelu_kernel`, whose weight broadcasts."""
    if not _fits_prelu(x, weight):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((x, weight), x._dtype)


def prelu_backward(grad: FakeTensor, x: FakeTensor, weight: FakeTensor) -> _Results:
    """Both gradients are as large as the input."""
    if not _fits_prelu(x, weight) or not _alike(x, grad):
        return NotImplemented  # type: ignore[no-any-return]
    operands = (x, weight, grad)
    return pointwise_out(operands, x._dtype), pointwise_out(operands, x._dtype)


def log_sigmoid_backward(grad: FakeTensor, x: FakeTensor, buffer: FakeTensor) -> FakeTensor:
    """Laid out as what comes in. On a GPU the buffer is empty."""
    fits = _alike(grad, x) if x._device.type != "cpu" else _alike(grad, x, buffer)
    return _empty_like(grad) if fits else NotImplemented


def rrelu_backward(
    grad: FakeTensor,
    x: FakeTensor,
    noise: FakeTensor,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> FakeTensor:
    """In training a product with the slopes that were drawn."""
    if not training or upper - lower <= 1e-6 or not _alike(grad, x, noise):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((noise, grad), grad._dtype)


# --- losses ---------------------------------------------------------------------------------------


def cross_entropy(
    x: FakeTensor, target: FakeTensor, weight: FakeTensor | None = None, reduction: int = _MEAN
) -> FakeTensor:
    """`binary_cross_entropy`, laid out as the input."""
    if not _alike(x, target, weight):
        return NotImplemented  # type: ignore[no-any-return]
    return _empty_like(x) if reduction == _NONE else fresh((), x._dtype, x._device)


def cross_entropy_backward(
    grad: FakeTensor,
    x: FakeTensor,
    target: FakeTensor,
    weight: FakeTensor | None = None,
    reduction: int = _MEAN,
) -> FakeTensor:
    """Laid out as the input, too."""
    if not _alike(x, target, weight) or not _comes_from(grad, x):
        return NotImplemented  # type: ignore[no-any-return]
    return _empty_like(x)


def _comes_from(grad: FakeTensor, x: FakeTensor) -> bool:
    """Whether `grad` may be that of a loss of `x`: of all its elements, or of one number."""
    return _of_one_kind(grad, x) and (not grad._sizes or equal_sizes(grad._sizes, x._sizes))


def cross_entropy_of_logits(
    x: FakeTensor,
    target: FakeTensor,
    weight: FakeTensor | None = None,
    pos_weight: FakeTensor | None = None,
    reduction: int = _MEAN,
) -> FakeTensor:
    """`binary_cross_entropy_with_logits`, laid out as the target; what is given of weights
    broadcasts."""
    given = [t for t in (weight, pos_weight) if t is not None]
    if not _alike(x, target) or not _of_one_kind(x, *given):
        return NotImplemented  # type: ignore[no-any-return]
    if not equal_sizes(broadcast([t._sizes for t in (x, *given)]), x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    if reduction != _NONE:
        return fresh((), x._dtype, x._device)
    return pointwise_out((target,), x._dtype)


def soft_margin_loss(x: FakeTensor, target: FakeTensor, reduction: int = _MEAN) -> FakeTensor:
    """`soft_margin_loss`."""
    if not _alike(x, target):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((x,), x._dtype) if reduction == _NONE else fresh((), x._dtype, x._device)


def soft_margin_loss_backward(
    grad: FakeTensor, x: FakeTensor, target: FakeTensor, reduction: int
) -> FakeTensor:
    """Computed from the target and its product with the input."""
    if not _alike(x, target) or not _comes_from(grad, x):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((target, x), x._dtype)


def multi_margin_loss(
    x: FakeTensor,
    target: FakeTensor,
    p: Any = 1,
    margin: Any = 1,
    weight: FakeTensor | None = None,
    reduction: int = _MEAN,
) -> FakeTensor:
    """`multi_margin_loss` of a batch: one number for each row."""
    if len(x._sizes) != 2 or not equal_sizes(target._sizes, x._sizes[:1]) or has_zero(x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    if not _of_one_kind(x, weight) or target._dtype is not torch.int64:
        return NotImplemented  # type: ignore[no-any-return]
    if weight is not None and not equal_sizes(weight._sizes, x._sizes[1:]):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(x._sizes[:1] if reduction == _NONE else (), x._dtype, x._device)


def loss_backward(grad: FakeTensor, x: FakeTensor, target: FakeTensor, *rest: Any) -> FakeTensor:
    """The gradient of the squared, the smooth and Huber's loss: row-major."""
    if not _alike(x, target) or not _comes_from(grad, x):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(x._sizes, x._dtype, x._device)


# --- images ---------------------------------------------------------------------------------------


def group_norm_backward(
    grad: FakeTensor,
    x: FakeTensor,
    mean: FakeTensor,
    rstd: FakeTensor,
    weight: FakeTensor | None,
    n: Size,
    c: Size,
    hxw: Size,
    group: int,
    output_mask: Sequence[bool],
) -> _Results:
    """Gradients of input, laid out as the result, weight and bias."""
    if not _alike(grad, x) or not equal_sizes(mean._sizes, (n, group)):
        return NotImplemented  # type: ignore[no-any-return]
    dtype = x._dtype if weight is None else weight._dtype
    of_input = group_norm(x, weight, None, n, c, hxw, group, 0.0)[0]
    return (
        of_input if output_mask[0] else None,
        fresh((c,), dtype, x._device) if output_mask[1] else None,
        fresh((c,), dtype, x._device) if output_mask[2] else None,
    )


# --- weights -------------------------------------------------------------------------------------


def weight_norm(v: FakeTensor, g: FakeTensor, dim: int = 0) -> _Results:
    """`_weight_norm_interface`: weights, and their norms before."""
    if not _of_one_kind(v, g) or g._dtype not in (torch.float32, torch.float64):
        return NotImplemented  # type: ignore[no-any-return]
    if dim not in (0, len(v._sizes) - 1) or not is_canonical(g):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(v._sizes, v._dtype, v._device), fresh(g._sizes, g._dtype, g._device)


# --- places and counts ----------------------------------------------------------------------------


def index_add(
    x: FakeTensor, dim: int, index: FakeTensor, source: FakeTensor, *, alpha: Any = 1
) -> FakeTensor:
    """Rows added to those that an index names."""
    if not _of_one_kind(x, source) or not is_canonical(x) or len(index._sizes) != 1:
        return NotImplemented  # type: ignore[no-any-return]
    if (
        not x._sizes
        or len(x._sizes) != len(source._sizes)
        or index._dtype not in (torch.int32, torch.int64)
    ):
        return NotImplemented  # type: ignore[no-any-return]
    dim = wrap_dim(dim, len(x._sizes))
    wanted = (*x._sizes[:dim], index._sizes[0], *x._sizes[dim + 1 :])
    if not equal_sizes(source._sizes, wanted) or index._device != x._device:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(x._sizes, x._dtype, x._device)


def count_nonzero(x: FakeTensor, dim: int | Sequence[int] | None = None) -> FakeTensor:
    """`count_nonzero`, along some dimensions or of all elements."""
    dims = list(range(len(x._sizes))) if dim is None else dim
    return fresh(reduced_sizes(x._sizes, dims, False), torch.int64, x._device)


def triangle_places(
    rows: Size, columns: Size, offset: int, below: bool, options: dict[str, Any]
) -> FakeTensor:
    """Row and column of each element below a diagonal, or from it on."""
    if type(rows) is not int or type(columns) is not int or type(offset) is not int:
        return NotImplemented  # type: ignore[no-any-return]
    if rows < 0 or columns < 0 or options.get("layout") not in (None, torch.strided):
        return NotImplemented  # type: ignore[no-any-return]
    last = offset if below else offset - 1
    lower = sum(min(columns, max(0, row + last + 1)) for row in range(rows))
    count = lower if below else rows * columns - lower
    device = torch.device(options.get("device") or "cpu")
    return fresh((2, count), options.get("dtype") or torch.int64, device)


def lower_places(rows: Size, columns: Size, offset: int = 0, **options: Any) -> FakeTensor:
    """`tril_indices`."""
    return triangle_places(rows, columns, offset, True, options)


def upper_places(rows: Size, columns: Size, offset: int = 0, **options: Any) -> FakeTensor:
    """`triu_indices`."""
    return triangle_places(rows, columns, offset, False, options)


def inner_product(x: FakeTensor, y: FakeTensor) -> FakeTensor:
    """`vdot`."""
    if len(x._sizes) != 1 or not equal_sizes(x._sizes, y._sizes) or x._dtype is not y._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((), x._dtype, x._device) if x._device == y._device else NotImplemented


def matrix_times_vector_plus(
    x: FakeTensor, matrix: FakeTensor, vector: FakeTensor, **numbers: Any
) -> FakeTensor:
    """`addmv`."""
    if not _of_one_kind(x, matrix, vector) or (len(matrix._sizes), len(vector._sizes)) != (2, 1):
        return NotImplemented  # type: ignore[no-any-return]
    rows, columns = matrix._sizes
    if not equal_sizes((columns,), vector._sizes) or not equal_sizes((rows,), x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh((rows,), x._dtype, x._device)


def outer_product_plus(
    x: FakeTensor, column: FakeTensor, row: FakeTensor, **numbers: Any
) -> FakeTensor:
    """`addr`."""
    if not _of_one_kind(x, column, row) or not is_canonical(x):
        return NotImplemented  # type: ignore[no-any-return]
    if (len(column._sizes), len(row._sizes)) != (1, 1):
        return NotImplemented  # type: ignore[no-any-return]
    if not equal_sizes(x._sizes, (*column._sizes, *row._sizes)):
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(x._sizes, x._dtype, x._device)


def block_diagonal(tensors: Sequence[FakeTensor]) -> FakeTensor:
    """`block_diag` of matrices."""
    fits = tensors and all(len(t._sizes) == 2 for t in tensors) and _of_one_kind(*tensors)
    if not fits:
        return NotImplemented  # type: ignore[no-any-return]
    rows: Size = 0
    columns: Size = 0
    for t in tensors:
        rows, columns = rows + t._sizes[0], columns + t._sizes[1]
    return fresh((rows, columns), tensors[0]._dtype, tensors[0]._device)


def drawn_in_place(x: FakeTensor, *parameters: Any, **options: Any) -> FakeTensor:
    """A sampler that writes to what it is given."""
    return x if x._dtype in FLOATING and is_canonical(x) else NotImplemented


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        "rrelu_with_noise_backward.default": rrelu_backward,
        "binary_cross_entropy.default": cross_entropy,
        "binary_cross_entropy_backward.default": cross_entropy_backward,
        "binary_cross_entropy_with_logits.default": cross_entropy_of_logits,
        "soft_margin_loss.default": soft_margin_loss,
        "multi_margin_loss.default": multi_margin_loss,
        "soft_margin_loss_backward.default": soft_margin_loss_backward,
        "mse_loss_backward.default": loss_backward,
        "smooth_l1_loss_backward.default": loss_backward,
        "huber_loss_backward.default": loss_backward,
        "native_group_norm_backward.default": group_norm_backward,
        "tril_indices.default": lower_places,
        "triu_indices.default": upper_places,
        "vdot.default": inner_product,
        "addmv.default": matrix_times_vector_plus,
        "addr.default": outer_product_plus,
        "_weight_norm_interface.default": weight_norm,
        **{f"{name}.default": drawn_in_place for name in ("cauchy_", "geometric_", "log_normal_")},
    }
