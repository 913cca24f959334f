"""Reductions and vector products against eager's ops."""

import pytest
import torch
from decomposition_checks import check
from dovetail_prims.decompositions import core_aten_table
from eager_oracle import assert_matches_eager, name_of

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
INTEGERS = (torch.int64, torch.bool, torch.uint8)


def draw(*shape, dtype):
    if dtype in INTEGERS:
        return torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)
    return torch.randn(shape, dtype=torch.float64).to(dtype)


SHAPES = ((3, 5), (2, 3, 4), (), (0, 4))


@pytest.mark.parametrize("dtype", DTYPES + INTEGERS, ids=str)
def test_sums_products_truth(dtype):
    torch.manual_seed(0)
    for shape in SHAPES:
        x = draw(*shape, dtype=dtype)
        for name in ("sum", "prod", "any", "all", "count_nonzero"):
            check(getattr(aten, name).default, [x])
        for dim in (0, -1):
            check(aten.any.dim, [x, dim])
            check(aten.all.dim, [x, dim, True])
            check(aten.count_nonzero.dim_IntList, [x, [dim]])
        check(aten.nansum.default, [x])
    for dtype_out in (torch.float32, torch.int64):
        check(aten.sum.default, [draw(3, 5, dtype=dtype)], {"dtype": dtype_out})
        check(aten.prod.default, [draw(3, dtype=dtype)], {"dtype": dtype_out})


@pytest.mark.parametrize("dtype", DTYPES + (torch.int64,), ids=str)
def test_extremes(dtype):
    torch.manual_seed(0)
    for shape in ((3, 5), (2, 3, 4), ()):
        x = draw(*shape, dtype=dtype)
        if shape:
            x[0, 0] = x.max()  # a tie: the first place counts
        check(aten.max.default, [x])
        check(aten.min.default, [x])
        check(aten.aminmax.default, [x])
        for dim in (0, -1):
            for keepdim in (False, True):
                check(aten.max.dim, [x, dim, keepdim])
                check(aten.min.dim, [x, dim, keepdim])
                check(aten.aminmax.default, [x], {"dim": dim, "keepdim": keepdim})


def test_extremes_of_ties_and_nan():
    nan = float("nan")
    x = torch.tensor([[1.0, 3.0, 3.0], [nan, 2.0, nan], [0.0, nan, 9.0], [-1.0, -1.0, 5.0]])
    for dim in (0, 1):
        check(aten.max.dim, [x, dim])
        check(aten.min.dim, [x, dim])
    for op in (aten.max.default, aten.min.default, aten.aminmax.default):
        check(op, [x])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_means_variances_norms(dtype):
    torch.manual_seed(0)
    for shape in ((3, 5), (2, 3, 4), (1, 1), ()):
        x = draw(*shape, dtype=dtype)
        check(aten.mean.default, [x])
        check(aten.mean.default, [x], {"dtype": torch.float64})
        for dim in ([0], [-1], [], None):
            check(aten.mean.dim, [x, dim, True])
            for correction in (None, 0, 1, 0.5):
                kwargs = {"correction": correction, "keepdim": True}
                check(aten.var.correction, [x, dim], kwargs)
                check(aten.std.correction, [x, dim], kwargs)
                check(aten.std_mean.correction, [x, dim], kwargs)
            for order in (2, 1, 0, 3, 0.5, float("inf"), float("-inf"), -1):
                check(aten.linalg_vector_norm.default, [x, order, dim, True])
        for p in (2, 1, 3.0):
            check(aten.norm.Scalar, [x, p])
            check(aten.norm.ScalarOpt_dim, [x, p, [-1]])
            check(aten.dist.default, [x, x * 2, p])
        check(aten.norm.ScalarOpt_dtype, [x, None], {"dtype": torch.float64})
        check(aten.norm.ScalarOpt_dim_dtype, [x, None, [0], True], {"dtype": torch.float64})
    for shape, dim in (((0, 4), [0]), ((0, 4), [1])):
        check(aten.mean.dim, [draw(*shape, dtype=dtype), dim])
    if dtype != torch.bfloat16:  # torch 2.11 has no kernel for it
        check(aten.trace.default, [draw(3, 5, dtype=dtype)])


@pytest.mark.parametrize("dtype", (*DTYPES, torch.float16, torch.int64, torch.uint8), ids=str)
def test_inner_products_are_sums(dtype):
    """Library calls for products of matrices take several times as long for them."""
    torch.manual_seed(0)
    table = core_aten_table()
    for length in (0, 1, 5, 300):
        v, w = draw(length, dtype=dtype), draw(length, dtype=dtype)
        for op in (aten.dot.default, aten.vdot.default):
            assert "mm.default" not in map(name_of, assert_matches_eager(table, op, [v, w], {}))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_vector_products(dtype):
    torch.manual_seed(0)
    m, v, w = draw(3, 5, dtype=dtype), draw(5, dtype=dtype), draw(3, dtype=dtype)
    check(aten.mv.default, [m, v])
    check(aten.dot.default, [v, v])
    check(aten.vdot.default, [v, v])
    batch1, batch2 = draw(2, 3, 4, dtype=dtype), draw(2, 4, 5, dtype=dtype)
    for kwargs in ({}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0}):
        for base in (w, draw(dtype=dtype), draw(1, dtype=dtype)):
            check(aten.addmv.default, [base, m, v], kwargs)
        for base in (m, m.mT.contiguous().mT, draw(5, dtype=dtype), draw(dtype=dtype)):
            check(aten.addr.default, [base, w, v], kwargs)
            low = [base.bfloat16(), w, v]
            check(aten.addr.default, low, kwargs, tolerance=0.1)  # (the result is not bfloat16)
        check(aten.addbmm.default, [m, batch1, batch2], kwargs)
