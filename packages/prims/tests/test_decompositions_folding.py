"""Columns added up into images, against eager."""

import pytest
import torch
from dovetail_prims.decompositions import core_aten_table, folding

aten = torch.ops.aten
# kernel, dilation, padding, stride
WINDOWS = [
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 2), (1, 1), (0, 1), (1, 1)),
    ((2, 3), (2, 1), (1, 0), (1, 1)),
    ((3, 3), (2, 2), (2, 2), (1, 1)),
    ((3, 3), (1, 1), (1, 1), (2, 2)),
    ((4, 3), (1, 2), (2, 1), (3, 2)),
    ((2, 2), (1, 1), (0, 0), (3, 3)),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
def test_col2im(window, dtype):
    kernel, dilation, padding, stride = window
    given = (kernel, dilation, padding, stride)
    image = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(0)).to(dtype)
    columns = torch.nn.functional.unfold(image, *given)
    op, entry = aten.col2im.default, core_aten_table()[aten.col2im.default]
    assert entry(columns, (9, 11), *given) is NotImplemented  # on a CPU
    for own in (columns, columns[0], columns.transpose(1, 2).contiguous().transpose(1, 2)):
        got = folding.parts_added(own, (9, 11), *given)
        wanted = op(own.double(), (9, 11), *given).to(dtype)
        torch.testing.assert_close(got, wanted)


def test_a_gpu_reads_the_windows_of_each_place():
    """But of long windows, which are the library's."""
    entry = core_aten_table()[aten.col2im.default]
    with torch.device("meta"):
        columns, long = torch.randn(1, 9, 49), torch.randn(1, 49, 9)
    assert entry(columns, (9, 9), (3, 3), (1, 1), (0, 0), (1, 1)).shape == (1, 1, 9, 9)
    assert entry(long, (9, 9), (7, 7), (1, 1), (0, 0), (1, 1)) is NotImplemented
