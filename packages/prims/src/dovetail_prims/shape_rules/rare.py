"""Shape rules of library ops whose meta kernel PyTorch lacks, or which gives up too early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_fallback import run_on_meta
from dovetail_prims.fake_tensor import (
    DataDependentError,
    FakeTensor,
    FakeTensorError,
    Size,
    Sizes,
    make,
)
from dovetail_prims.shape_rules.layout import (
    broadcast,
    channels_last,
    contiguous,
    empty_like_strides,
    equal_sizes,
    fresh,
    suggests_channels_last,
)


def _column_major(sizes: Sizes) -> Sizes:
    """Strides of a batch of matrices as LAPACK lays them out."""
    *batch, rows, columns = sizes
    inner = contiguous((*batch, columns, rows))
    return (*inner[:-2], inner[-1], inner[-2])


def geqrf(x: FakeTensor) -> tuple[FakeTensor, FakeTensor]:
    """The reflectors of a QR decomposition, and their factors."""
    *batch, rows, columns = x._sizes
    factors = (*batch, columns if columns < rows else rows)
    packed = make(x._sizes, _column_major(x._sizes), x._dtype, x._device)
    return packed, fresh(factors, x._dtype, x._device)


def lstsq(
    a: FakeTensor, b: FakeTensor, rcond: Any = None, *, driver: str | None = None
) -> tuple[FakeTensor, FakeTensor, FakeTensor, FakeTensor]:
    """Least squares: solution, residuals, rank, singular values.

    The drivers by singular values give residuals only where every matrix is of full rank."""
    device = a._device
    driver = driver or ("gelsy" if device.type == "cpu" else "gels")
    *batch, rows, columns = a._sizes
    vector = len(b._sizes) == 1 or (
        len(a._sizes) - 1 == len(b._sizes) and tuple(b._sizes) == tuple(a._sizes[:-1])
    )
    if batch and tuple(b._sizes[: len(batch)]) != tuple(batch):
        return NotImplemented  # type: ignore[no-any-return]  # broadcast batches
    if driver in ("gelsd", "gelss") and rows > columns:
        raise DataDependentError(f"aten.linalg_lstsq.default with driver {driver}")
    right: tuple[Size, ...] = () if vector else (b._sizes[-1],)
    # The solution is a part of a matrix of LAPACK's, as high as the larger side.
    height = rows if columns < rows else columns
    solution = (*batch, columns, *right)
    whole = _column_major((*batch, height, *(right or (1,))))
    strides = whole[:-1] if vector else whole
    out = make(solution, strides, a._dtype, device)
    real = _real(a._dtype)
    has_residuals = driver == "gels" and columns < rows
    residuals = fresh((*batch, *(right or (1,))) if has_residuals else (0,), real, device)
    rank = fresh((0,) if driver == "gels" else tuple(batch), torch.int64, device)
    values = fresh((0,), real, device)
    if driver in ("gelsd", "gelss"):
        values = fresh((*batch, rows if rows < columns else columns), real, device)
    return out, residuals, rank, values


def solve_triangular(
    a: FakeTensor,
    b: FakeTensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> FakeTensor:
    """The solution for a triangular matrix, as LAPACK lays it out."""
    if min(len(a._sizes), len(b._sizes)) < 2 or a._dtype.is_complex or a._dtype != b._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    if a._sizes[-1] != a._sizes[-2] or a._sizes[-1] != b._sizes[-2 if left else -1]:
        return NotImplemented  # type: ignore[no-any-return]
    sizes = (*broadcast((a._sizes[:-2], b._sizes[:-2])), *b._sizes[-2:])
    return make(sizes, _column_major(sizes), b._dtype, b._device)


def cholesky_solve(b: FakeTensor, a: FakeTensor, upper: bool = False) -> FakeTensor:
    """The solution for a matrix of which a Cholesky factor is given, as LAPACK lays it out."""
    if min(len(a._sizes), len(b._sizes)) < 2 or a._dtype != b._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    if a._sizes[-1] != a._sizes[-2] or a._sizes[-1] != b._sizes[-2]:
        return NotImplemented  # type: ignore[no-any-return]
    sizes = (*broadcast((a._sizes[:-2], b._sizes[:-2])), *b._sizes[-2:])
    return make(sizes, _column_major(sizes), b._dtype, b._device)


def svd(
    x: FakeTensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """Singular values and both bases, as LAPACK lays them out (PyTorch's meta kernel tells of
    another library's layout where it was built with one)."""
    if x._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    *batch, rows, columns = x._sizes
    small = rows if rows < columns else columns
    values = fresh((*batch, small), _real(x._dtype), x._device)
    if not compute_uv:
        return fresh((0,), x._dtype, x._device), values, fresh((0,), x._dtype, x._device)
    left = (*batch, rows, rows if full_matrices else small)
    right = (*batch, columns if full_matrices else small, columns)
    return (
        make(left, _column_major(left), x._dtype, x._device),
        values,
        make(right, _column_major(right), x._dtype, x._device),
    )


def eig(x: FakeTensor) -> tuple[FakeTensor, FakeTensor]:
    """Eigenvalues and eigenvectors of a general matrix."""
    if x._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    dtype = x._dtype.to_complex()
    vectors = make(x._sizes, _column_major(x._sizes), dtype, x._device)
    return fresh(x._sizes[:-1], dtype, x._device), vectors


def fft_from_real(x: FakeTensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    """The transform of real numbers; by symmetry half of it may be left out."""
    if not _by_mkl(x) or not dim:
        return NotImplemented
    dims = [d % len(x._sizes) for d in dim]
    sizes = list(x._sizes)
    if onesided:
        sizes[dims[-1]] = sizes[dims[-1]] // 2 + 1
    strides = _mkl_strides(sizes, x._strides, [*_by_stride(dims[:-1], x._strides), dims[-1]])
    return make(tuple(sizes), strides, x._dtype.to_complex(), x._device)


def fft_to_real(x: FakeTensor, dim: Sequence[int], normalization: int, last: Size) -> Any:
    """Back to real numbers: a complex transform along all dimensions but the last comes first."""
    if not _by_mkl(x) or not dim:
        return NotImplemented
    dims = [d % len(x._sizes) for d in dim]
    strides = x._strides
    if len(dims) > 1:
        strides = _mkl_strides(x._sizes, strides, _by_stride(dims[:-1], strides))
    sizes = list(x._sizes)
    sizes[dims[-1]] = last
    strides = _mkl_strides(sizes, strides, dims[-1:])
    return make(tuple(sizes), strides, x._dtype.to_real(), x._device)


def fft(x: FakeTensor, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    """The transform of complex numbers, where sizes are symbolic (the meta kernel fixes them)."""
    if not _by_mkl(x) or not dim or not x._dtype.is_complex:
        return NotImplemented
    if all(type(n) is int for n in (*x._sizes, *x._strides)):
        return NotImplemented
    dims = [d % len(x._sizes) for d in dim]
    strides = _mkl_strides(x._sizes, x._strides, _by_stride(dims, x._strides))
    return make(x._sizes, strides, x._dtype, x._device)


def _by_mkl(x: FakeTensor) -> bool:
    available: Callable[[], bool] = torch.backends.mkl.is_available
    return x._device.type == "cpu" and available()


def _by_stride(dims: Sequence[int], strides: Sizes) -> list[int]:
    """Dimensions with large strides first."""
    return sorted(dims, key=lambda d: -strides[d])


def _mkl_strides(sizes: Sequence[Size], source: Sizes, dims: list[int]) -> Sizes:
    """MKL's result is dense, the transformed dimensions innermost, the others by their strides."""
    order = _by_stride([d for d in range(len(sizes)) if d not in dims], source) + dims
    strides: list[Size] = [0] * len(sizes)
    for d, stride in zip(order, contiguous(tuple(sizes[d] for d in order)), strict=True):
        strides[d] = stride
    return tuple(strides)


_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: FakeTensor,
    indices: FakeTensor,
    offsets: FakeTensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: FakeTensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[FakeTensor, FakeTensor, FakeTensor, FakeTensor]:
    """Bags of rows, each summed up; then which bag an index is in, the bags' sizes, and where
    their maxima stand. On the CPU some are left out where its fast sum does without."""
    if weight._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    device, integer = weight._device, indices._dtype
    bags = offsets._sizes[0]
    if include_last_offset:
        bags = bags - 1
    fast = (
        mode == _SUM
        and weight._strides[1] == 1
        and padding_idx < 0
        and weight._dtype in (torch.float32, torch.float16, torch.bfloat16)
        and (per_sample_weights is None or per_sample_weights._strides[0] == 1)
    )
    where: Sizes = (0,) if fast else indices._sizes
    width = weight._sizes[1]
    return (
        fresh((bags, width), weight._dtype, device),
        fresh(where, integer, device),
        fresh((bags,), integer, device),
        fresh((bags, width) if mode == _MAX else (bags,), integer, device),
    )


def embedding_bag_forward_only(
    weight: FakeTensor,
    indices: FakeTensor,
    offsets: FakeTensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    *rest: Any,
) -> Any:
    """The same without a gradient: a sum's last two results are as long as the offsets."""
    results = embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, *rest)
    if results is NotImplemented or mode != _SUM:
        return results
    sizes, device = offsets._sizes, weight._device
    return (
        *results[:2],
        fresh(sizes, indices._dtype, device),
        fresh(sizes, indices._dtype, device),
    )


def _real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a complex number's parts."""
    return dtype.to_real() if dtype.is_complex else dtype


def histogram(x: FakeTensor, bins: Any = 100, **options: Any) -> tuple[FakeTensor, FakeTensor]:
    """Counts and bin edges, for a number of bins or for given edges."""
    if isinstance(bins, FakeTensor):
        return (
            fresh((bins._sizes[0] - 1,), x._dtype, x._device),
            fresh(bins._sizes, x._dtype, x._device),
        )
    return fresh((bins,), x._dtype, x._device), fresh((bins + 1,), x._dtype, x._device)


def margin_backward(grad: FakeTensor, x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """Backward of the multi-class margin losses: the input's shape, contiguous."""
    return fresh(x._sizes, x._dtype, x._device)


def fractional_pool_backward(grad: FakeTensor, x: FakeTensor, *rest: Any) -> FakeTensor:
    """Backward of the fractional poolings."""
    return fresh(x._sizes, grad._dtype, grad._device)


def ctc_loss(
    log_probs: FakeTensor,
    targets: FakeTensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[FakeTensor, FakeTensor]:
    """The loss of each sequence, and the log probabilities of its prefixes."""
    if log_probs._device.type != "cpu" or len(log_probs._sizes) != 3:
        return NotImplemented  # type: ignore[no-any-return]
    steps, batch, _ = log_probs._sizes
    width = 2 * max(target_lengths, default=0) + 1
    dtype, device = log_probs._dtype, log_probs._device
    return fresh((batch,), dtype, device), fresh((batch, steps, width), dtype, device)


def ctc_loss_backward(grad: FakeTensor, log_probs: FakeTensor, *rest: Any) -> FakeTensor:
    """Its gradient has the shape of the log probabilities."""
    if log_probs._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    return fresh(log_probs._sizes, log_probs._dtype, log_probs._device)


def max_unpool2d(x: FakeTensor, indices: FakeTensor, output_size: Sequence[Size]) -> FakeTensor:
    """The maxima put back where they stood, in the input's memory format."""
    sizes = (*x._sizes[:-2], *output_size)
    if len(sizes) == 4 and suggests_channels_last(x):
        return make(sizes, channels_last(sizes), x._dtype, x._device)
    return fresh(sizes, x._dtype, x._device)


def _in_format(name: str) -> dict[str, Callable[..., Any]]:
    """The rule of an op whose kernel for the CPU keeps channels-last, of which its meta kernel does
    not know."""

    def rule(x: FakeTensor, *args: Any) -> Any:
        found = run_on_meta(getattr(torch.ops.aten, name).default, (x, *args), {})
        if x._device.type != "cpu" or len(x._sizes) < 4 or not suggests_channels_last(x):
            return found
        return make(found._sizes, channels_last(found._sizes), x._dtype, x._device)

    return {f"{name}.default": rule}


_KEEPING_FORMAT = (
    "pixel_shuffle", "channel_shuffle", "replication_pad2d", "replication_pad3d",
    "reflection_pad2d", "reflection_pad3d",
)  # fmt: skip


def nonzero_static(x: FakeTensor, *, size: Size, fill_value: int = -1) -> FakeTensor:
    """Positions of what is not zero, as many as asked for."""
    return fresh((size, len(x._sizes)), torch.int64, x._device)


def drawn(*parameters: Any, **options: Any) -> FakeTensor:
    """Random numbers for a distribution's parameters, or their derivatives: contiguous ones."""
    tensors = [p for p in parameters if isinstance(p, FakeTensor)]
    sizes = broadcast([t._sizes for t in tensors])
    return fresh(sizes, tensors[0]._dtype, tensors[0]._device)


_DRAWN = (
    "_sample_dirichlet", "_dirichlet_grad", "_standard_gamma", "_standard_gamma_grad", "binomial",
    "poisson",
)  # fmt: skip


_FAKE_QUANTIZED = (
    "fake_quantize_per_tensor_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "fake_quantize_per_channel_affine_cachemask",
)
_OBSERVING = (
    "fused_moving_avg_obs_fake_quant",
    "_fused_moving_avg_obs_fq_helper",
    "_fused_moving_avg_obs_fq_helper_functional",
)
_SCALES = (torch.float32, torch.bfloat16)


def fake_quantized(x: FakeTensor, scale: Any, zero_point: Any, *rest: Any) -> Any:
    """Numbers rounded to steps, and a mask, both laid out as x."""
    low, high = rest[-2:]
    if low > high or not x._dtype.is_floating_point:
        return NotImplemented  # the kernel names the argument
    if not isinstance(zero_point, FakeTensor) and not low <= zero_point <= high:
        return NotImplemented
    if isinstance(scale, FakeTensor):
        wanted: Sizes = (1,)
        if type(rest[0]) is int:  # a scale for each index of this dimension
            if not 0 <= rest[0] < len(x._sizes) or scale._dtype not in _SCALES:
                return NotImplemented
            if zero_point._dtype not in (torch.int32, torch.float32, torch.float16):
                return NotImplemented
            wanted = (x._sizes[rest[0]],)
        if not all(equal_sizes(n._sizes or (1,), wanted) for n in (scale, zero_point)):
            return NotImplemented
    strides = empty_like_strides(x)
    out = make(x._sizes, strides, x._dtype, x._device)
    return out, make(x._sizes, strides, torch.bool, x._device)


def observed_and_fake_quantized(
    x: FakeTensor,
    observer_on: FakeTensor,
    fake_quant_on: FakeTensor,
    running_min: FakeTensor,
    running_max: FakeTensor,
    scale: FakeTensor,
    zero_point: FakeTensor,
    averaging: float,
    low: int,
    high: int,
    axis: int,
    by_row: bool = False,
    *rest: Any,
) -> Any:
    """Numbers rounded to steps that follow a moving range: what observes by rows for the first time
    is given its size, as many as there are rows, which is no part of a graph."""
    if by_row and 0 <= axis < len(x._sizes):
        observed = (running_min, running_max, scale, zero_point)
        if not all(equal_sizes(n._sizes, (x._sizes[axis],)) for n in observed):
            raise FakeTensorError("the first call gives the observer its size, a number a row")
    return NotImplemented


def isin(elements: FakeTensor, others: FakeTensor, **options: Any) -> FakeTensor:
    """Whether each element is one of the others: row-major."""
    return fresh(elements._sizes, torch.bool, elements._device)


def only_written(*args: Any, **kwargs: Any) -> None:
    """Steps of optimizers, which give nothing and change the shape of nothing."""


# (Adam's have meta kernels where the learning rate is a number only.)
_STEPS = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        **{f"{name}.{way}": only_written for name in _STEPS for way in ("default", "tensor_lr")},
        **{f"{name}.default": drawn for name in _DRAWN},
        **{op: rule for name in _KEEPING_FORMAT for op, rule in _in_format(name).items()},
        "geqrf.default": geqrf,
        "cholesky_solve.default": cholesky_solve,
        **{f"{name}.default": fake_quantized for name in _FAKE_QUANTIZED},
        **{f"{name}.default": observed_and_fake_quantized for name in _OBSERVING},
        "isin.Tensor_Tensor": isin,
        "nonzero_static.default": nonzero_static,
        "max_unpool2d.default": max_unpool2d,
        "linalg_lstsq.default": lstsq,
        "linalg_solve_triangular.default": solve_triangular,
        "_linalg_svd.default": svd,
        "linalg_eig.default": eig,
        "_fft_c2c.default": fft,
        "_fft_r2c.default": fft_from_real,
        "_fft_c2r.default": fft_to_real,
        "_embedding_bag.default": embedding_bag,
        "_embedding_bag_forward_only.default": embedding_bag_forward_only,
        "histogram.bin_ct": histogram,
        "histogram.bins_tensor": histogram,
        "multi_margin_loss_backward.default": margin_backward,
        "multilabel_margin_loss_backward.default": margin_backward,
        "fractional_max_pool2d_backward.default": fractional_pool_backward,
        "fractional_max_pool3d_backward.default": fractional_pool_backward,
        "_ctc_loss.default": ctc_loss,
        "_ctc_loss_backward.default": ctc_loss_backward,
        "_ctc_loss_backward.Tensor": ctc_loss_backward,
    }
