"""Histograms and reductions of segments against eager's."""

import itertools
import math

import pytest
import torch
from decomposition_checks import check
from dovetail_prims.decompositions import core_aten_table

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32)
KINDS = ("sum", "mean", "prod", "max", "min")


def refused(op, args, kwargs):
    """Whether the decomposition leaves it to the library."""
    return core_aten_table()[op](*args, **kwargs) is NotImplemented


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_histc(dtype):
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, :4] = torch.tensor([1.0, -1.0, math.nan, math.inf])
    for bins, low, high in (
        (10, -1, 1),
        (100, -1.3, 2.7),
        (7, -0.1, 0.3),
        (1, 0, 3),
        (9, -3, 1e-3),
    ):
        check(aten.histc.default, [x, bins, low, high])
        check(aten.histc.default, [x[:, ::3].t(), bins, low, high])
    check(aten.histc.default, [x[:0], 3, 0, 1])
    check(aten.histc.default, [x[:0], 3])
    check(aten.histc.default, [x[1:], 30])  # as far as the numbers reach
    check(aten.histc.default, [x[1:2, :1], 4, 2, 2])
    for far in (2.0**23, 1e8, -1e10):
        check(aten.histc.default, [torch.tensor([far, far], dtype=dtype), 5])
    with pytest.raises(RuntimeError, match="not finite"):
        core_aten_table()[aten.histc.default](x, 7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_histogram(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 300, generator=generator).to(dtype)
    x[0, :3] = torch.tensor([1.0, -1.0, 0.0])
    for numbers in (x, x[:, ::3].t(), x[:1, :1], x[:0]):
        weight = torch.rand(numbers.shape, generator=generator).to(dtype)
        for extra in ({}, {"weight": weight}, {"density": True, "weight": weight}):
            for reach, bins in itertools.product(
                (None, [-1, 1], [0.3, 0.3], [-0.1, 2.7]), (1, 100)
            ):
                check(aten.histogram.bin_ct, [numbers, bins], {**extra, "range": reach})
            for edges in ([-1, 1], [-1, 0, 0, 2], [0, 0.3, 0.31, 5, 9]):
                check(
                    aten.histogram.bins_tensor, [numbers, torch.tensor(edges, dtype=dtype)], extra
                )
    odd = torch.tensor([math.nan, 1, 2, math.inf, -math.inf], dtype=dtype)
    check(aten.histogram.bin_ct, [odd, 3], {"range": [0, 2]})
    with pytest.raises(RuntimeError, match="not finite"):
        core_aten_table()[aten.histogram.bin_ct](odd, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_histogramdd(dtype):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 5, 3, generator=generator).to(dtype)
    weight = torch.rand(40, 5, generator=generator).to(dtype)
    edges = [torch.tensor([-1.0, 0, 1]), torch.linspace(-2, 2, 9), torch.tensor([0.0, 1])]
    for extra in ({}, {"weight": weight}, {"density": True}):
        for reach in (None, [-1, 1, 0, 0, -0.5, 9]):
            wanted = {**extra, "range": reach}
            check(aten._histogramdd_bin_edges.default, [points, [2, 3, 7]], wanted)
            check(aten._histogramdd_from_bin_cts.default, [points, [2, 3, 7]], wanted)
        own = [e.to(dtype) for e in edges]
        check(aten._histogramdd_from_bin_tensors.default, [points, own], extra)


def test_histograms_that_eager_refuses():
    x, edges = torch.randn(6), torch.tensor([0.0, 1.0])
    for args, kwargs in (
        ([x, 0], {}),
        ([x, 3], {"range": [2.0, 1.0]}),
        ([x, 3], {"range": [0.0, math.inf]}),
        ([x, 3], {"weight": torch.ones(5)}),
        ([x, 3], {"weight": torch.ones(6).double()}),
        ([x.half(), 3], {}),
        ([x.long(), 3], {}),
    ):
        assert refused(aten.histogram.bin_ct, args, kwargs)
    for bins in (edges[:1], edges[:0], edges.double()):
        assert refused(aten.histogram.bins_tensor, [x, bins], {})


def segment_cases(dtype, ties):
    """Data, where its segments are, and along which dimension."""
    generator = torch.Generator().manual_seed(int(ties))
    wide = torch.randn(2, 9, 16, generator=generator)
    row = torch.randn(9, generator=generator)
    if ties:
        wide, row = ((x * 1.5).round() for x in (wide, row))
        wide[0, 1, 1] = wide[1, 4, 2] = wide[1, 5, 2] = row[4] = math.nan
    wide, row = wide.to(dtype), row.to(dtype)
    two = torch.tensor([[2, 3, 0, 4], [0, 1, 0, 8]])
    yield row, {"lengths": torch.tensor([2, 0, 4, 3, 0])}
    yield row, {"offsets": torch.tensor([0, 2, 2, 6, 9])}
    yield row, {"offsets": torch.tensor([1, 3, 3, 8], dtype=torch.int32)}
    yield row, {"lengths": torch.tensor([1, 3, 2]), "unsafe": True}
    yield wide, {"lengths": two, "axis": 1}
    yield wide.transpose(1, 2).contiguous().transpose(1, 2), {"lengths": two.int(), "axis": -2}
    yield wide[0], {"lengths": torch.tensor([9])}


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bfloat16), ids=str)
@pytest.mark.parametrize("reduce", KINDS)
def test_segments(reduce, dtype):
    for ties, initial in itertools.product((False, True), (None, 2.0)):
        for data, where in segment_cases(dtype, ties):
            wanted = {**where, "initial": initial}
            check(aten.segment_reduce.default, [data, reduce], wanted)
            out = aten.segment_reduce.default(data, reduce, **{**wanted, "unsafe": True})
            wanted.pop("unsafe", None)
            wanted["axis"] = where.get("axis", 0) % data.dim()
            for sign in (1, -1):  # eager shares positive gradients out only
                grad = (torch.rand(out.shape, generator=torch.Generator()) * sign).to(dtype)
                check(aten._segment_reduce_backward.default, [grad, out, data, reduce], wanted)


def test_segments_that_eager_refuses():
    op, x = aten.segment_reduce.default, torch.randn(6, 16)
    entry = core_aten_table()[op]
    for args, kwargs in (
        ([x, "sum"], {}),
        ([x, "sum"], {"indices": torch.tensor([0, 1])}),
        ([x, "sum"], {"lengths": torch.tensor([6]), "offsets": torch.tensor([0, 6])}),
        ([x, "sum"], {"lengths": torch.tensor([6]), "axis": 1}),
        ([x.long(), "sum"], {"lengths": torch.tensor([6])}),
        ([x, "median"], {"lengths": torch.tensor([6])}),
        ([x, "sum"], {"lengths": torch.tensor([6.0])}),
    ):
        assert entry(*args, **kwargs) is NotImplemented
    with pytest.raises(RuntimeError, match="Expected all rows of lengths"):
        entry(x, "sum", lengths=torch.tensor([2, 3]))
    with pytest.raises(RuntimeError, match="negative"):
        entry(x, "sum", lengths=torch.tensor([7, -1]))
    with pytest.raises(RuntimeError, match="negative"):
        entry(x, "sum", offsets=torch.tensor([0, 4, 2, 6]))


def test_long_segments_on_a_cpu_are_the_librarys():
    x = torch.randn(100)
    assert refused(aten.segment_reduce.default, [x, "sum"], {"lengths": torch.tensor([100])})
    assert not refused(
        aten.segment_reduce.default, [x[:8], "sum"], {"lengths": torch.tensor([4, 4])}
    )
