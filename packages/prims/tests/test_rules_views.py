"""Views, copies and reductions against eager."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from dovetail_prims.fake_tensor import FakeTensor
from rule_checks import aten, check, layouts

SHAPES = [
    (), (3,), (1,), (2, 3), (1, 3), (3, 0), (2, 1, 3), (2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1),
    (1, 2, 1, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_views_along_a_dimension(shape: tuple[int, ...]) -> None:
    slices = [
        (0, None, 1), (1, None, 1), (-2, None, 1), (0, -1, 1), (0, 2**63 - 1, 1), (5, 2, 1),
        (0, 10, 2), (1, 3, 2), (None, None, 3),
    ]  # fmt: skip
    rank = len(shape)
    for x in layouts(shape):
        for d in range(-1, rank):
            for size in (1, 2, 5):
                check(aten.split.Tensor, x, size, d)
            for start, end, step in slices:
                check(aten.slice.Tensor, x, d, start, end, step)
            for index in (0, -1, 1, 5):
                check(aten.select.int, x, d, index)
            check(aten.unsqueeze.default, x, d)
            check(aten.squeeze.dim, x, d)
            check(aten.squeeze.dims, x, [d])
            check(aten.unbind.int, x, d)
            check(aten.unfold.default, x, d, 2, 1) if rank else None
            check(aten.transpose.int, x, d, 0)
        check(aten.unsqueeze.default, x, rank)
        check(aten.split_with_sizes.default, x, [1, 1])
        check(aten.split_with_sizes.default, x, [1, 2], -1)


@pytest.mark.parametrize("shape", SHAPES)
def test_whole_views(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    for x in layouts(shape):
        n = x.numel()
        for op in (aten.squeeze, aten.t, aten.alias, aten.detach):
            check(op.default, x)
        for dims in itertools.islice(itertools.permutations(range(rank)), 8):
            check(aten.permute.default, x, list(dims))
        targets = {
            (n,), (-1,), (1, n), (2, -1), (-1, 2), (3, -1), shape, (*shape, 1), (1, *shape),
            (*shape[:1], -1), (-1, *shape[-1:]), (2, 3, 20), (6, 4, 5), (1, 2, 3, 4, 5, 1), (7, 7),
            (0, -1), (-1, -1), (n // 5, 5),
        }  # fmt: skip
        for target in targets:
            check(aten.view.default, x, list(target))
            check(aten._unsafe_view.default, x, list(target))
        for target in (shape, (5, *shape), (1, *shape), (4,) * rank, (1, 1, *shape), (-1, *shape)):
            check(aten.expand.default, x, list(target))
        if rank >= 2:
            for offset in (0, 1, -1, 5):
                check(aten.diagonal.default, x, offset)
                check(aten.diagonal.default, x, offset, -1, 0)
        for memory_format in (
            torch.contiguous_format, torch.channels_last, torch.preserve_format
        ):  # fmt: skip
            check(aten.clone.default, x, memory_format=memory_format)
            check(aten.contiguous.default, x, memory_format=memory_format)
            check(aten._to_copy.default, x, memory_format=memory_format, dtype=torch.float16)
        if x.untyped_storage().nbytes():
            check(aten.copy.default, x, torch.ones(x.shape))
    check(aten.as_strided.default, torch.zeros(12)[2:], [2, 2], [1, 3], 4)


@pytest.mark.parametrize("shape", SHAPES)
def test_reductions_and_scans(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # variances of single elements
        for x in layouts(shape):
            for d in range(-1, rank):
                for keep in (False, True):
                    for op in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default):
                        check(op, x, [d], keep)
                    for op in (aten.argmax.default, aten.max.dim, aten.prod.dim_int):
                        check(op, x, d, keep)
                    check(aten.any.dim, x > 0, d, keep)
                    check(aten.all.dims, x > 0, [d], keep)
                    check(aten.var.correction, x, [d], keepdim=keep)
                    check(aten.var_mean.correction, x, [d], correction=0, keepdim=keep)
                    check(aten.logsumexp.default, x, [d], keep)
                    check(aten.linalg_vector_norm.default, x, 2, [d], keep)
                check(aten._softmax.default, x, d, False)
                check(aten._log_softmax.default, x, d, False)
                check(aten._safe_softmax.default, x, d)
                check(aten.cumsum.default, x, d)
                check(aten.cumprod.default, x.to(torch.int32), d)
                check(aten.cummax.default, x, d)
                check(aten.sort.default, x, d)
                check(aten.sort.stable, x, stable=True, dim=d)
                check(aten.topk.default, x, 1, d)
                check(aten._softmax_backward_data.default, x, x, d, torch.float32)
            for op in (aten.sum, aten.mean, aten.max, aten.argmax):
                check(op.default, x)
            check(aten.sum.dim_IntList, x, [])
            check(aten.sum.dim_IntList, x > 0, None, True)
            check(aten.argmax.default, x, None, True)


@pytest.mark.parametrize("sizes", (0, -1, [2, -1, 2], [2, 2]), ids=str)
def test_pieces_of_impossible_sizes_are_refused_as_eager_does(sizes):
    for x in (torch.ones(3), FakeTensor.make((3,), (1,), torch.float32, torch.device("cpu"))):
        with pytest.raises(RuntimeError, match="split"):
            x.split(sizes)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (2, 3, 4, 5)])
def test_what_has_memory_of_its_own_is_row_major(shape: tuple[int, ...]) -> None:
    for x in layouts(shape):
        check(aten.view_copy.default, x, [-1])
        check(aten.view_copy.default, x, [x.numel(), 1])
        check(aten.view_copy.default, x, [x.numel() + 1])
        size = x.abs()
        check(aten.normal.Tensor_Tensor, x, size)
        check(aten.normal.Tensor_Tensor, x, size[:1] if shape else size)
        check(aten.normal.Tensor_float, x, 1.0)
        check(aten.normal.float_Tensor, 0.0, size)
