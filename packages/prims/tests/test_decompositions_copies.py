"""Copies of views, evenly spaced numbers and rare arithmetic against eager's ops."""

import math

import pytest
import torch
from decomposition_checks import check
from dovetail_prims.decompositions import core_aten_table

aten = torch.ops.aten


X = torch.randn(2, 1, 3, 4)
COPIES = [
    ("alias_copy.default", []), ("as_strided_copy.default", [[2, 3], [4, 2], 1]),
    ("diagonal_copy.default", [1, 2, 3]), ("expand_copy.default", [[2, 5, 3, 4]]),
    ("permute_copy.default", [[3, 0, 2, 1]]), ("split_with_sizes_copy.default", [[1, 3], 3]),
    ("squeeze_copy.default", []), ("squeeze_copy.dim", [1]), ("squeeze_copy.dims", [[0, 1]]),
    ("transpose_copy.int", [0, -1]), ("unbind_copy.int", [2]), ("unfold_copy.default", [3, 2, 1]),
    ("unsqueeze_copy.default", [-1]), ("narrow_copy.default", [2, 1, 2]),
    ("narrow_copy.default", [3, -2, 2]), ("view_copy.default", [[6, -1]]),
    ("_reshape_copy.default", [[6, -1]]),
]  # fmt: skip


@pytest.mark.parametrize("name, args", COPIES, ids=[n for n, _ in COPIES])
def test_copies_of_views(name, args):
    op, overload = name.split(".")
    for x in (X, X.contiguous(memory_format=torch.channels_last), X > 0):
        if name == "view_copy.default" and not x.is_contiguous():
            continue
        check(getattr(getattr(aten, op), overload), [x, *args])
    check(aten.t_copy.default, [X[0, 0]])


def test_blocks_and_chunks():
    check(aten.block_diag.default, [[X[0, 0], X[0, 0, 0], X[0, 0, 0, 0], X[1, 0]]])
    for dim, chunks in ((0, 2), (1, 3)):
        parts = [torch.randn(3, 4) for _ in range(3)]
        check(aten._chunk_cat.default, [parts, dim, chunks])
    check(aten._chunk_cat.default, [[torch.randn(5, 2), torch.randn(2, 2)], 0, 2])


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_spaced(dtype):
    for start, end, steps in ((0.1, 9.7, 37), (-3, 50, 50), (5, 1, 4), (2, 2, 1), (0, 1, 0)):
        wanted = torch.linspace(start, end, steps, dtype=dtype)
        entry = core_aten_table()[aten.linspace.default]
        got = entry(start, end, steps, dtype=dtype)
        if dtype is torch.float64:
            torch.testing.assert_close(got, wanted, rtol=1e-15, atol=2e-15)
        elif dtype.itemsize > 2:  # to the last bit
            assert got.dtype is dtype and torch.equal(got, wanted)
        check(aten.linspace.default, [start, end, steps], {"dtype": dtype})
        check(aten.linspace.Tensor_Scalar, [torch.tensor(start), end, steps], {"dtype": dtype})
        check(aten.linspace.Scalar_Tensor, [start, torch.tensor(end), steps], {"dtype": dtype})
        both = [torch.tensor(start), torch.tensor(end), steps]
        check(aten.linspace.Tensor_Tensor, both, {"dtype": dtype})
        if -4 < start and end < 10:
            check(aten.logspace.default, [start, end, steps, 2.0], {"dtype": dtype})
            check(aten.logspace.Tensor_Tensor, [*both, 2.0], {"dtype": dtype})
    check(aten.logspace.default, [0, 3, 7], {"dtype": dtype})


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
def test_rare_arithmetic(dtype):
    torch.manual_seed(0)
    a, b = (torch.randn(2, 3, 4).to(dtype) for _ in range(2))
    check(aten.linalg_cross.default, [a, b], {"dim": 1})
    check(aten.linalg_cross.default, [a[:1].mT, b.mT], {"dim": 2})
    check(aten.ldexp.Tensor, [a, torch.randint(-5, 5, (4,))])
    check(aten.ldexp.Tensor, [a, torch.randn(4).to(dtype)])
    check(aten.ldexp.Tensor, [torch.full((2,), 1e-30).to(dtype), torch.tensor([150, 9])])
    check(aten.ldexp.Tensor, [torch.tensor([0, 1, -3]), torch.tensor([200, 200, -160])])
    check(aten.ldexp.Tensor, [torch.arange(4), torch.tensor([120, 9, -3, 0], dtype=torch.int8)])
    for p in (1.0, 2.0, 3.5, math.inf):
        check(aten.renorm.default, [a, p, 1, 1.5])
    args = [a, b, 0.1, 0.3]
    check(aten.rrelu_with_noise_functional.default, [*args, False])
    for training in (False, True):
        check(aten.rrelu_with_noise_backward.default, [b, *args, training, False])


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32), ids=str)
def test_antialiased_resizing(dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 7, dtype=dtype)
    for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        forward, back = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
        for size, align, scales in (
            ([4, 3], False, [None, None]), ([4, 3], True, [None, None]),
            ([12, 20], False, [None, None]), ([3, 10], False, [0.4, 1.5]),
        ):  # fmt: skip
            check(forward, [x, size, align, *scales])
            check(forward, [x.contiguous(memory_format=torch.channels_last), size, align, *scales])
            grad = torch.randn(2, 3, *size, dtype=dtype)
            check(back, [grad, size, list(x.shape), align, *scales])
