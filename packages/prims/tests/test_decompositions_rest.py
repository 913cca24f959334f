"""The ops of no family against eager's."""

import math

import pytest
import torch
from decomposition_checks import check
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.ops.embeddings import MAX, MEAN, SUM, embedding_bag_of
from eager_oracle import run_expanded

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rest(dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=dtype)
    check(aten._stack.default, [[x, x], 1])
    for offset, dim1, dim2 in ((0, -2, -1), (1, 0, 2), (-2, 2, 0)):
        check(aten.diag_embed.default, [x, offset, dim1, dim2])
    index = torch.tensor([[0, 5], [11, 2]])
    source = torch.randn(2, 2, dtype=dtype)
    check(aten.put.default, [x, index, source])
    check(aten.put.default, [x, index % 3, source, True])
    mask = torch.tensor([[True, False, True, True]] * 3)
    check(aten.masked_scatter_backward.default, [x, mask, [3, 5]])
    rows = torch.tensor([[0, 1, 1, 2], [2, 2, 0, 0]])
    for reduce in ("add", "multiply"):
        check(aten.scatter.reduce, [x, 0, rows, torch.randn(2, 4, dtype=dtype)], {"reduce": reduce})
        check(aten.scatter.value_reduce, [x, 0, rows, 2.0], {"reduce": reduce})
    a, b, c = (torch.randn(2, 3, dtype=dtype) for _ in range(3))
    check(aten._trilinear.default, [a, b, c, [], [], [], [1]])
    check(aten._trilinear.default, [a, b, c, [1], [2], [1], [0]])
    check(aten.empty_permuted.default, [[2, 3, 4], [1, 2, 0]], values=False)
    check(aten.isin.Tensor_Tensor, [x, x[0]])
    check(aten.isin.Tensor_Tensor, [x, x[0]], {"invert": True})
    check(aten.isin.Tensor_Scalar, [x, 1.0])
    check(aten.isin.Tensor_Scalar, [x, 1.0], {"invert": True})
    check(aten._is_all_true.default, [mask])
    check(aten._is_any_true.default, [mask])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", (0, 1))
def test_weight_norm(dim, dtype):
    torch.manual_seed(0)
    v = torch.randn(3, 4, dtype=dtype)
    g = torch.rand((3, 1) if dim == 0 else (1, 4), dtype=dtype)
    check(aten._weight_norm_interface.default, [v, g, dim])
    w, norm = aten._weight_norm_interface.default(v, g, dim)
    args = [torch.randn_like(w), v, g, norm, dim]
    check(aten._weight_norm_interface_backward.default, args)


def test_bitwise_with_a_number_on_the_left():
    x = torch.randint(0, 9, (5,))
    for name in ("and", "or", "xor", "left_shift", "right_shift"):
        check(getattr(aten, f"bitwise_{name}").Scalar_Tensor, [13, x])


def test_randint_draws_the_same_numbers():
    entry = core_aten_table()[aten.randint.default]
    torch.manual_seed(3)
    ours = entry(10, [20], device=torch.device("cpu"))
    torch.manual_seed(3)
    assert torch.equal(ours, torch.randint(10, (20,)))


@pytest.mark.parametrize("size", (0, 1, 3, 20))
def test_places_that_are_not_zero(size):
    torch.manual_seed(0)
    for x in (
        torch.randn(3, 4, 2) > 0,
        torch.randint(0, 2, (7,)),
        torch.tensor([[0.0, -0.0, math.nan], [1.0, 0.0, math.inf]]).t(),
        torch.zeros(4),
        torch.zeros(0, 3),
    ):
        check(aten.nonzero_static.default, [x], {"size": size})
        check(aten.nonzero_static.default, [x], {"size": size, "fill_value": 5})


@pytest.mark.parametrize("mode", (SUM, MEAN, MAX))
@pytest.mark.parametrize("last", (False, True))
@pytest.mark.parametrize("padding", (-1, 3))
def test_bags(mode, last, padding):
    """As the library's, an empty bag, padding and NaN included; on a CPU half sums are its."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(10, 5, generator=generator)
    table[2, 1] = table[7, 0] = math.nan
    rows = torch.randint(0, 10, (20,), generator=generator)
    offsets = torch.tensor([0, 4, 4, 9, 20] if last else [0, 4, 4, 9])
    weights = torch.rand(20, generator=generator) if mode == SUM else None
    args = [table, rows, offsets, False, mode, False, weights, last, padding]
    wanted = aten._embedding_bag.default(*args)
    got = embedding_bag_of(table, rows, offsets, mode, weights, last, padding)
    for mine, theirs in zip(got, wanted, strict=True):
        if mine.shape == theirs.shape and (mode != SUM or mine.is_floating_point()):
            torch.testing.assert_close(mine, theirs, equal_nan=True)
    entry = core_aten_table()[aten._embedding_bag.default]
    assert (entry(table.half(), *args[1:6], None, *args[7:]) is NotImplemented) == (mode == SUM)
    check(aten._embedding_bag.default, args)
    check(aten._embedding_bag_forward_only.default, args)


def check_exactly(op, *args):
    if args[0].dtype in DTYPES:
        check(op, args)
    out, mask = run_expanded(core_aten_table(), op, args, {})[0]
    wanted, wanted_mask = op(*args)
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mask, wanted_mask) and out.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("bounds", ((0, 255), (-128, 127)))
def test_fake_quantization(dtype, bounds):
    torch.manual_seed(0)
    odd = [math.inf, -math.inf, math.nan, 1e20, -1e20, 0.05, 0.15, -0.05, 12.75, -0.0]
    x = torch.cat([torch.randn(390) * 20, torch.tensor(odd)]).to(dtype).view(5, 80)
    for scale, zero in ((0.1, 0), (0.37, 3), (1e-3, 100)):
        op = aten.fake_quantize_per_tensor_affine_cachemask.default
        for part in (x, x.t(), x[0, 0]):
            check_exactly(op, part, scale, zero, *bounds)
        op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
        numbers = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32)
        for on in (0, 1):
            check_exactly(op, x, *numbers, torch.tensor([on]), *bounds)
    op = aten.fake_quantize_per_channel_affine_cachemask.default
    for axis in (0, 1):
        scales, zeros = torch.rand(x.shape[axis]) + 0.01, torch.randint(0, 9, (x.shape[axis],))
        for kind in (torch.int32, torch.float32):
            check_exactly(op, x, scales, zeros.to(kind), axis, *bounds)
