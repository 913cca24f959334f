"""Windows, columns added up into images, sampled images, distances, searches and margin losses
against eager."""

import math

import pytest
import torch
from decomposition_checks import check

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32)


def test_im2col():
    x = torch.randn(2, 3, 7, 8)
    for geometry in (
        ([2, 3], [1, 1], [0, 0], [1, 1]), ([3, 2], [2, 1], [2, 1], [2, 3]),
        ([1, 1], [1, 1], [0, 0], [1, 1]),
    ):  # fmt: skip
        for own in (x, x[0], x.contiguous(memory_format=torch.channels_last)):
            check(aten.im2col.default, [own, *geometry])


def test_unpooling():
    x = torch.randn(2, 3, 8, 8)
    value, indices = aten.max_pool2d_with_indices(x, [2, 2])
    check(aten.max_unpool2d.default, [value, indices, [8, 9]])
    check(aten.max_unpool2d.default, [value[0], indices[0], [8, 8]])
    value, indices = aten.max_pool3d_with_indices(x, [2, 2, 2])
    check(aten.max_unpool3d.default, [value, indices, [3, 8, 8], [2, 2, 2], [0, 0, 0]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("align", (False, True))
def test_grid_sampler(dtype, align):
    torch.manual_seed(0)
    for shape, places in (
        ((2, 3, 5, 4), (3, 6)),
        ((1, 2, 3, 4, 5), (2, 3, 4)),
        ((1, 1, 1, 1), (4, 4)),
    ):
        x = torch.randn(shape, dtype=dtype)
        grid = torch.randn(shape[0], *places, len(places), dtype=dtype) * 1.5
        for mode in (0, 1, 2) if len(places) == 2 else (0, 1):
            for padding in (0, 1, 2):
                op = getattr(aten, f"grid_sampler_{len(places)}d").default
                check(op, [x, grid, mode, padding, align])
                backward = getattr(aten, f"grid_sampler_{len(places)}d_backward").default
                grad = torch.randn(*x.shape[:2], *places, dtype=dtype)
                for mask in ([True, True], [False, True]):
                    check(backward, [grad, x, grid, mode, padding, align, mask])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf))
def test_distances(dtype, p):
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 3, dtype=dtype), torch.randn(5, 3, dtype=dtype)
    a[0, 1] = b[2]
    a[1, 0, 1] = b[1, 1]
    for mode in (None, 2):
        check(aten._cdist_forward.default, [a, b[None], p, mode])
    distance = aten._cdist_forward.default(a, b[None], p, 2)
    back = [torch.randn_like(distance), a, b.expand(2, 5, 3), p, distance]
    check(aten._cdist_backward.default, back)
    check(aten._cdist_forward.default, [torch.randn(30, 3, dtype=dtype), b, p, None])


@pytest.mark.parametrize("right", (False, True))
def test_searches(right):
    torch.manual_seed(0)
    for length in (0, 1, 2, 3, 8, 21):
        line = torch.randn(length).sort().values
        rows = torch.randint(0, 5, (2, length)).sort().values
        values = torch.cat([torch.randn(2, 7), torch.tensor([[math.nan], [math.inf]])], 1)
        if length:
            values[0, 0] = line[0]
        for kwargs in ({}, {"out_int32": True}):
            check(aten.bucketize.Tensor, [values, line], {"right": right, **kwargs})
        picks = torch.randint(-1, 7, (2, 3))
        check(aten.searchsorted.Tensor, [rows, picks], {"side": "right" if right else "left"})
        check(aten.searchsorted.Tensor, [line, torch.tensor(0.3)], {"right": right})
        back = torch.arange(length).flip(0)
        check(aten.searchsorted.Tensor, [line.flip(0), values], {"right": right, "sorter": back})


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bfloat16), ids=str)
@pytest.mark.parametrize("reduction", (0, 1, 2))
def test_margin_losses(dtype, reduction):
    torch.manual_seed(0)
    x, target = torch.randn(4, 5).to(dtype), torch.tensor([0, 3, 4, 2])
    weight = torch.rand(5).to(dtype)
    wide = dtype is not torch.bfloat16
    for own, labels in ((x, target), (x[0], target[:1])) if wide else ():
        for p, w in ((1, None), (2, weight), (1, weight)):
            check(aten.multi_margin_loss.default, [own, labels, p, 0.7, w, reduction])
            loss = aten.multi_margin_loss.default(own, labels, p, 0.7, w, reduction)
            grad = torch.randn_like(loss)
            args = [grad, own, labels, p, 0.7, w, reduction]
            check(aten.multi_margin_loss_backward.default, args)
