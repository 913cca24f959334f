"""Indexing, concatenation, padding, factories and matrix products against eager."""

from __future__ import annotations

import itertools

import pytest
import torch
from dovetail_prims import DataDependentError, from_real
from rule_checks import aten, check, layouts
from torch import Tensor

LONG = torch.int64


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def test_embedding() -> None:
    for weight, shape in itertools.product(layouts((7, 5)), [(3,), (2, 4), (), (0,), (2, 1, 3)]):
        for ids in layouts(shape, LONG):
            check(aten.embedding.default, weight, ids)
            check(aten.embedding_dense_backward.default, zeros(*shape, 5), ids, 7, -1, False)
    check(aten.embedding.default, zeros(7, 5), zeros(3))


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 1, 6), (2, 3, 4, 5), (1, 3, 1, 2)])
def test_index(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    for x in layouts(shape):
        for ids_shape in [(3,), (2, 2), (), (2, 1), (1, 3)]:
            for i in layouts(ids_shape, LONG)[:4]:
                for lead in range(rank):
                    check(aten.index.Tensor, x, [None] * lead + [i])
                if rank > 1:
                    check(aten.index.Tensor, x, [i, zeros(1, dtype=LONG)])
                if rank > 2:
                    check(aten.index.Tensor, x, [i, None, i])
                    check(aten.index.Tensor, x, [None, i, zeros(1, 3, dtype=LONG)])
                check(aten.index_put.default, x, [i], zeros())
                check(aten.index_put_.default, x.clone(), [i], zeros())
                if i.dim() < 2:
                    check(aten.index_select.default, x, -1, i)
    mask = from_real(zeros(*shape, dtype=torch.bool))
    with pytest.raises(DataDependentError):
        aten.index.Tensor(from_real(zeros(*shape)), [mask])


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 1, 6), (2, 3, 4, 5), (1, 3, 1, 2)])
def test_along_a_dimension(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    for x, d in itertools.product(layouts(shape), range(-1, rank)):
        for i in layouts(shape, LONG)[:3]:
            check(aten.gather.default, x, d, i)
            check(aten.scatter.value, x, d, i, 1.0)
            check(aten.scatter.src, x, d, i, x)
            check(aten.scatter_add.default, x, d, i, x)
        for y in layouts(shape)[::2]:
            check(aten.cat.default, [x, y], d)
            check(aten.stack.default, [x, y], d)
        check(aten.cat.default, [x, zeros(0), x, x.double()], d)
        check(aten.stack.default, [x, x], rank)
        check(aten.flip.default, x, [d])
        check(aten.slice_scatter.default, x, x, d)
        check(aten.select_scatter.default, x, x.select(d, 0), d, 0)
        check(aten.slice_backward.default, x, list(shape), d, 0, 2**63 - 1, 1)
        check(aten.select_backward.default, x.select(d, 0), list(shape), d, 0)


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 1, 6), (2, 3, 4, 5), (1, 3, 1, 2)])
def test_padding_and_like(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    for x in layouts(shape):
        for pad in ([1, 2], [-1, 0], [1, 2, 3, 4, 5, 6, 7, 8], [0, 0], [1, 1, 1, 1]):
            check(aten.constant_pad_nd.default, x, pad)
        check(aten.repeat.default, x, [2] * rank)
        check(aten.repeat.default, x, [1, 3] + [1] * rank)
        check(aten.tril.default, x)
        check(aten.triu.default, x, 1)
        if rank > 1:
            check(aten.diagonal_scatter.default, x, x.diagonal())
        for name in ("empty", "zeros", "ones", "rand", "randn"):
            op = getattr(aten, f"{name}_like").default
            check(op, x)
            check(op, x, dtype=torch.float64)
            check(op, x, memory_format=torch.contiguous_format)
        check(aten.full_like.default, x, 3)
        check(aten.new_zeros.default, x, [2, 3])
        check(aten.new_full.default, x, [2, 3], 1)
        check(aten.new_ones.default, x, [2], dtype=LONG)
        check(aten.new_empty_strided.default, x, [2, 3], [1, 2])
        check(aten.bernoulli.p, x, 0.5)
        check(aten.bernoulli.default, x)


def test_factories() -> None:
    for op in (aten.zeros, aten.ones, aten.rand, aten.randn):
        for size in ([], [3], [2, 0, 3], [-1]):
            check(op.default, size)
            check(op.default, size, dtype=torch.float64, device=torch.device("cpu"))
    check(aten.empty.memory_format, [2, 3, 4, 5], memory_format=torch.channels_last)
    for value in (1, 1.0, True, 1j):
        check(aten.full.default, [2], value)
    for end in (5, 0, 5.5, -1):
        for options in ({}, {"dtype": torch.float32}, {"dtype": LONG}):
            rounded = isinstance(end, float) and options.get("dtype") is LONG
            check(aten.arange.default, end, expect_rule=not rounded, **options)
    for start, stop in ((1, 5), (5, 1), (0, 1.5)):
        check(aten.arange.start, start, stop)
    for args in ((0, 10, 3), (10, 0, -3), (0, 1, 0.1), (0, 10, 0), (0, -5, -1), (1, 2.5, 0.5)):
        check(aten.arange.start_step, *args)
        check(aten.arange.start_step, *args, dtype=torch.float32)
    check(aten.randint.low, 1, 5, [2, 3])
    check(aten.randperm.default, 5)
    check(aten.empty_strided.default, [2, 3], [1, 2])


def test_matrix_products() -> None:
    for a, b in itertools.product(layouts((3, 4)), layouts((4, 5))):
        check(aten.mm.default, a, b)
        for shape in [(5,), (3, 5), (3, 1), (), (4,), (2, 3, 5)]:
            check(aten.addmm.default, zeros(*shape), a, b)
    check(aten.mm.default, zeros(3, 4), zeros(3, 4))
    check(aten.mm.default, zeros(3, 4), zeros(4, 2, dtype=torch.float64))
    check(aten.mv.default, zeros(3, 4), zeros(4))
    check(aten.dot.default, zeros(3), zeros(3))
    for shape in [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 4), (3, 5)]:
        for x, w in itertools.product(layouts(shape), layouts((6, 4))):
            check(aten.linear.default, x, w, zeros(6))
    for a, b in itertools.product(layouts((2, 3, 4)), layouts((2, 4, 5))):
        check(aten.bmm.default, a, b)
        for shape in [(5,), (2, 3, 5), (3, 1), ()]:
            check(aten.baddbmm.default, zeros(*shape), a, b)


def test_identity_matrices() -> None:
    for n, dtype in itertools.product((0, 1, 5), (None, torch.float64, torch.bool)):
        check(aten.eye.default, n, dtype=dtype)
        check(aten.eye.m, n, 3, dtype=dtype)
    check(aten.eye.default, -1, expect_rule=False)


@pytest.mark.parametrize("left", [True, False])
def test_solve_triangular(left: bool) -> None:
    """The solution lies as LAPACK lays it out, however the matrices do; batches are broadcast."""
    for batch_a, batch_b in [((), ()), ((2,), (2,)), ((3, 1), (2,)), ((0,), ()), ((), (1, 2))]:
        for columns in (4, 1, 0):
            a = torch.eye(3).expand(*batch_a, 3, 3) + torch.rand(*batch_a, 3, 3).tril()
            shape = (*batch_b, 3, columns) if left else (*batch_b, columns, 3)
            for x, b in itertools.product((a, a.mT.contiguous().mT), layouts(shape)):
                check(aten.linalg_solve_triangular.default, x, b, upper=False, left=left)
    square = torch.eye(3)
    check(aten.linalg_solve_triangular.default, square, zeros(4, 2), upper=True, expect_rule=False)
    check(aten.linalg_solve_triangular.default, square, zeros(3), upper=True, expect_rule=False)
