"""Padding, resizing and the foreach ops against eager's."""

import pytest
import torch
from decomposition_checks import check
from dovetail_prims.ops.catalog import POINTWISE

aten = torch.ops.aten
LISTED = [c for c in POINTWISE if hasattr(aten, f"_foreach_{c.name}")]
DTYPES = (torch.float64, torch.float32)


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


PADS = {1: ([2, 1], [0, 3]), 2: ([1, 2, 3, 0], [0, 0, 1, 1]), 3: ([1, 0, 2, 1, 0, 1],)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rank", (1, 2, 3))
@pytest.mark.parametrize("kind", ("reflection", "replication"))
def test_padding(kind, rank, dtype):
    torch.manual_seed(0)
    name = f"{kind}_pad{rank}d"
    forward, backward = getattr(aten, name).default, getattr(aten, name + "_backward").default
    for batch in ((2, 3), (3,)):
        x = draw(*batch, *(4, 5, 4)[:rank], dtype=dtype)
        for padding in PADS[rank]:
            check(forward, [x, padding])
            g = torch.randn_like(forward(x, padding))
            check(backward, [g, x, padding])


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bfloat16), ids=str)
@pytest.mark.parametrize("rank", (1, 2, 3))
@pytest.mark.parametrize("name", ("upsample_nearest{}d", "_upsample_nearest_exact{}d"))
def test_nearest(name, rank, dtype):
    torch.manual_seed(0)
    op = getattr(aten, name.format(rank)).default
    backward = getattr(aten, name.format(rank) + "_backward").default
    x = draw(2, 3, *(4, 5, 3)[:rank], dtype=dtype)
    for size, scales in (((8, 10, 6), (2.0, 2.0, 2.0)), ((7, 3, 4), (None,) * 3)):
        args = [list(size[:rank]), *scales[:rank]]
        check(op, [x, *args])
        g = torch.randn_like(op(x, *args))
        check(backward, [g, args[0], list(x.shape), *args[1:]])


LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LINEAR)
def test_linear_and_cubic(name, dtype):
    torch.manual_seed(0)
    rank = int(name[-2])
    op, backward = getattr(aten, name).default, getattr(aten, name + "_backward").default
    x = draw(2, 3, *(4, 5, 3)[:rank], dtype=dtype)
    for size, scales in (
        ((8, 10, 6), (2.0, 2.0, 2.0)),
        ((7, 3, 4), (None,) * 3),
        ((4, 5, 3), (None,) * 3),
        ((1, 1, 1), (None,) * 3),
        ((9, 11, 7), (2.3, 2.3, 2.4)),
    ):
        for align in (False, True):
            args = [list(size[:rank]), align, *scales[:rank]]
            check(op, [x, *args], tolerance=1e-9 if dtype == torch.float64 else 2e-5)
            g = torch.randn_like(op(x, *args))
            tolerance = 1e-9 if dtype == torch.float64 else 2e-5
            args = [args[0], list(x.shape), *args[1:]]
            check(backward, [g, *args], tolerance=tolerance)


def test_resizing_keeps_channels_last():
    x = draw(2, 3, 4, 4).to(memory_format=torch.channels_last)
    check(aten.upsample_nearest2d.default, [x, [8, 8], 2.0, 2.0])
    check(aten.upsample_nearest2d.default, [x, [4, 8], 1.2, 2.2])  # as many, and twice as many
    check(aten.upsample_bilinear2d.default, [x, [8, 8], False, 2.0, 2.0])


def test_padding_keeps_channels_last_and_no_other_layout():
    x = draw(2, 3, 4, 5)
    for laid in (x.to(memory_format=torch.channels_last), x.permute(1, 0, 2, 3), x.mT):
        check(aten.reflection_pad2d.default, [laid, [1, 2, 1, 0]])
        check(aten.replication_pad2d.default, [laid, [1, 2, 1, 0]])


def lists():
    torch.manual_seed(0)
    xs = [torch.rand(3, 4) * 0.8 + 0.1, torch.rand(5) * 0.8 + 0.1]
    ys = [torch.rand_like(x) + 0.5 for x in xs]
    return xs, ys


@pytest.mark.parametrize("name", [c.name for c in LISTED if c.arity == 1])
def test_foreach_unary(name):
    check(getattr(aten, f"_foreach_{name}").default, [lists()[0]])


@pytest.mark.parametrize("name", [c.name for c in LISTED if c.arity == 2])
def test_foreach_binary(name):
    xs, ys = lists()
    packet = getattr(aten, f"_foreach_{name}")
    check(packet.Scalar, [xs, 2.5])
    check(packet.ScalarList, [xs, [2.5, 0.5]])
    check(packet.List, [xs, ys])
    if "Tensor" in packet.overloads():
        check(packet.Tensor, [xs, torch.tensor(1.5)])
    if name in ("add", "sub"):
        check(packet.List, [xs, ys], {"alpha": 2})


def test_foreach_rest():
    xs, ys = lists()
    for packet in (aten._foreach_addcmul, aten._foreach_addcdiv):
        check(packet.Scalar, [xs, ys, ys, 0.5])
        check(packet.ScalarList, [xs, ys, ys, [0.5, 2.0]])
    check(aten._foreach_lerp.Scalar, [xs, ys, 0.3])
    check(aten._foreach_lerp.List, [xs, ys, xs])
    if "ScalarList" in aten._foreach_lerp.overloads():
        check(aten._foreach_lerp.ScalarList, [xs, ys, [0.3, 0.9]])
    check(aten._foreach_norm.Scalar, [xs])
    check(aten._foreach_norm.Scalar, [xs, 1])
    check(aten._foreach_zero.default, [xs])
    check(aten._foreach_pow.ScalarAndTensor, [2.0, xs])
