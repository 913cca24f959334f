"""Factorisations, solvers and Fourier transforms, which lie as LAPACK and MKL lay them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import DataDependentError, FakeTensor, Size, Sizes, make
from dovetail_prims.ops.card import composed
from dovetail_prims.shape_rules.layout import broadcast, contiguous, fresh

# --- matrices -------------------------------------------------------------------------------------


def _column_major(sizes: Sizes) -> Sizes:
    """Strides of a batch of matrices as LAPACK lays them out."""
    *batch, rows, columns = sizes
    inner = contiguous((*batch, columns, rows))
    return (*inner[:-2], inner[-1], inner[-2])


def _real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a complex number's parts."""
    return dtype.to_real() if dtype.is_complex else dtype


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
    a: FakeTensor, b: FakeTensor, *, upper: bool, left: bool = True, unitriangular: bool = False
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


def pinv(
    x: FakeTensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> FakeTensor:
    """The pseudo-inverse: a product of matrices, row by row; one for each tolerance given."""
    if len(x._sizes) < 2 or not (x._dtype.is_floating_point or x._dtype.is_complex):
        return NotImplemented  # type: ignore[no-any-return]
    *batch, rows, columns = x._sizes
    if hermitian and rows != columns:
        return NotImplemented  # type: ignore[no-any-return]
    given = [limit._sizes for limit in (atol, rtol) if isinstance(limit, FakeTensor)]
    if any(type(size) is int and size == 0 for size in x._sizes):
        given = []  # nobody looks at them
    return fresh((*broadcast((tuple(batch), *given)), columns, rows), x._dtype, x._device)


def eig(x: FakeTensor) -> tuple[FakeTensor, FakeTensor]:
    """Eigenvalues and eigenvectors of a general matrix."""
    if x._device.type != "cpu":
        return NotImplemented  # type: ignore[no-any-return]
    dtype = x._dtype.to_complex()
    vectors = make(x._sizes, _column_major(x._sizes), dtype, x._device)
    return fresh(x._sizes[:-1], dtype, x._device), vectors


# --- Fourier transforms ---------------------------------------------------------------------------


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
    """The transform of complex numbers."""
    if not _by_mkl(x) or not dim or not x._dtype.is_complex:
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


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("geqrf", geqrf),
    composed("cholesky_solve", cholesky_solve),
    composed("linalg_lstsq", lstsq),
    composed("linalg_solve_triangular", solve_triangular),
    composed("_linalg_svd", svd),
    composed("linalg_eig", eig),
    composed("linalg_pinv", pinv, overload="atol_rtol_tensor"),
    composed("_fft_c2c", fft),
    composed("_fft_r2c", fft_from_real),
    composed("_fft_c2r", fft_to_real),
)
