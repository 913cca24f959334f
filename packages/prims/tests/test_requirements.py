"""What operators insist on of the sizes of their arguments: static, symbolic and of data alone."""

from __future__ import annotations

import math

import pytest
import torch
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_prims import FakeMode, FakeTensor, from_real
from dovetail_prims.sizes.batched_matmul import batched_matmul

F = torch.nn.functional


def ones(*sizes):
    return torch.ones(sizes)


def index(*sizes):
    return torch.zeros(sizes, dtype=torch.int64)


def batched_matmul_or_own(a, b):
    """As programs are traced whose sizes are symbolic."""
    found = batched_matmul(a, b) if isinstance(a, FakeTensor) else NotImplemented
    return a @ b if found is NotImplemented else found


REFUSED = {
    "scatter, index wider than self": lambda f: f(ones(6, 4)).scatter(0, f(index(2, 5)), 7.0),
    "scatter, index taller than src": lambda f: f(ones(6, 4)).scatter(
        0, f(index(3, 4)), f(ones(2, 4))
    ),
    "scatter_": lambda f: f(ones(3, 4)).scatter_(1, f(index(6, 1)), 1.0),
    "scatter reduce": lambda f: f(ones(3, 4)).scatter(1, f(index(6, 1)), 1.0, reduce="add"),
    "scatter_add": lambda f: f(ones(6, 4)).scatter_add(0, f(index(3, 4)), f(ones(2, 4))),
    "scatter_add_": lambda f: f(ones(6, 4)).scatter_add_(1, f(index(7, 2)), f(ones(7, 2))),
    "scatter_reduce": lambda f: f(ones(6, 4)).scatter_reduce(
        0, f(index(2, 5)), f(ones(2, 5)), "amax"
    ),
    "scatter_reduce_": lambda f: f(ones(6, 4)).scatter_reduce_(
        0, f(index(3, 4)), f(ones(2, 4)), "sum"
    ),
    "scatter, a number for src": lambda f: f(ones(6)).scatter(0, f(index(2)), f(ones())),
    "gather": lambda f: f(ones(6, 4)).gather(0, f(index(2, 5))),
    "gather, other ranks": lambda f: f(ones(6, 4)).gather(0, f(index(2))),
    "statistics": lambda f: torch.native_batch_norm(
        f(ones(2, 3)), None, None, f(ones(3)), f(ones(1, 3)), True, 0.1, 1e-5
    ),
    "index_add, wider": lambda f: f(ones(6, 4)).index_add(0, f(index(2)), f(ones(2, 5))),
    "index_add, too many": lambda f: f(ones(6, 4)).index_add_(0, f(index(3)), f(ones(2, 4))),
    "index_reduce, wider": lambda f: f(ones(6, 4)).index_reduce(
        0, f(index(2)), f(ones(2, 5)), "amax"
    ),
    "index_reduce, too many": lambda f: f(ones(6, 4)).index_reduce_(
        0, f(index(3)), f(ones(2, 4)), "prod"
    ),
    "index_reduce, a matrix of indices": lambda f: f(ones(6, 4)).index_reduce(
        0, f(index(2, 1)), f(ones(2, 4)), "prod"
    ),
    "layer_norm, weight": lambda f: F.layer_norm(f(ones(3, 4)), (4,), f(ones(1))),
    "layer_norm, bias": lambda f: F.layer_norm(f(ones(3, 4)), (4,), None, f(ones(1))),
    "index, no common shape": lambda f: f(ones(3, 2))[f(index(2)), f(index(3))],
    "index_fill, a matrix": lambda f: f(ones(3, 2)).index_fill(0, f(index(1, 1)), 1.0),
    "index_fill, no such dimension": lambda f: f(ones(3, 2)).index_fill(2, f(index(1)), 1.0),
    "index_fill, a vector of values": lambda f: f(ones(3, 2)).index_fill(
        0, f(index(1)), f(ones(1))
    ),
    "fill_": lambda f: f(ones(3)).fill_(f(ones(3))),
    "put": lambda f: f(ones(3, 2)).put(f(index(2)), f(ones(3))),
    "masked_scatter_": lambda f: f(ones(2, 3)).masked_scatter_(f(ones(4, 3) > 0), f(ones(12))),
    "rms_norm": lambda f: torch.ops.aten._fused_rms_norm(f(ones(3, 4)), (4,), f(ones(3)), 1e-5),
    "convolution, bias": lambda f: F.conv2d(f(ones(2, 3, 4, 4)), f(ones(5, 3, 2, 2)), f(ones(4))),
    "transposed convolution, bias": lambda f: F.conv_transpose2d(
        f(ones(2, 3, 4, 4)), f(ones(3, 5, 2, 2)), f(ones(1))
    ),
    "nll_loss of images": lambda f: F.nll_loss(f(ones(3, 4, 5, 5)), f(index(3, 5, 4))),
    "multi_margin_loss, weight": lambda f: F.multi_margin_loss(
        f(ones(3, 4)), f(index(3)), weight=f(ones(5))
    ),
    "multi_margin_loss, target": lambda f: F.multi_margin_loss(f(ones(3, 4)), f(index(2))),
    "multilabel_margin_loss": lambda f: F.multilabel_margin_loss(f(ones(3, 4)), f(index(3, 5))),
    "max_unpool2d": lambda f: F.max_unpool2d(f(ones(1, 1, 2, 2)), f(index(1, 1, 2, 3)), 2),
    "max_unpool2d, rank": lambda f: F.max_unpool2d(f(ones(2, 2)), f(index(2, 2)), 2),
    "max_unpool3d": lambda f: F.max_unpool3d(f(ones(1, 1, 2, 2, 2)), f(index(1, 1, 2, 2, 1)), 2),
    "grid_sample, places": lambda f: F.grid_sample(
        f(ones(2, 1, 3, 3)), f(ones(2, 4, 4, 3)), align_corners=False
    ),
    "grid_sample, batch": lambda f: F.grid_sample(
        f(ones(2, 1, 3, 3, 3)), f(ones(3, 4, 4, 4, 3)), align_corners=False
    ),
    "interpolate": lambda f: torch.ops.aten._upsample_bilinear2d_aa(
        f(ones(2, 3, 3)), (2, 2), False
    ),
    "histogram, weight": lambda f: torch.histogram(f(ones(3)), 4, weight=f(ones(4))),
    "bucketize": lambda f: torch.bucketize(f(ones(2, 3)), f(ones(3, 3))),
    "segment_reduce": lambda f: torch.segment_reduce(f(ones(5)), "sum", lengths=f(index(2, 1))),
    "trace": lambda f: torch.trace(f(ones(2, 3, 3))),
    "cross, length": lambda f: torch.linalg.cross(f(ones(2, 4)), f(ones(2, 4))),
    "cross, rank": lambda f: torch.linalg.cross(f(ones(2, 3)), f(ones(3))),
    "lstsq": lambda f: torch.linalg.lstsq(f(ones(3, 2)), f(ones(2, 2))),
    "addr": lambda f: torch.addr(f(ones(3, 2)), f(ones(2)), f(ones(3))),
    "addmv": lambda f: torch.addmv(f(ones(4)), f(ones(2, 3)), f(ones(3))),
    "addbmm": lambda f: torch.addbmm(f(ones(3, 5)), f(ones(2, 3, 4)), f(ones(2, 5, 5))),
    "softmax backward": lambda f: torch.ops.aten._softmax_backward_data(
        f(ones(3, 1)), f(ones(3, 4)), 1, torch.float32
    ),
    "group_norm, elements": lambda f: torch.ops.aten.native_group_norm(
        f(ones(2, 6, 3)), None, None, 2, 6, 2, 2, 1e-5
    ),
    "group_norm, groups": lambda f: torch.ops.aten.native_group_norm(
        f(ones(2, 6, 3)), None, None, 2, 6, 3, 4, 1e-5
    ),
    "norm of nothing": lambda f: torch.linalg.vector_norm(f(ones(0, 3)), -2),
    "norms of nothing": lambda f: torch.linalg.vector_norm(f(ones(3, 0)), math.inf, 1),
    "mvlgamma": lambda f: torch.mvlgamma(f(ones(2) + 9), 0),
    "soft_margin_loss": lambda f: F.soft_margin_loss(f(ones(1)), f(ones(5))),
    "matmul of batches": lambda f: batched_matmul_or_own(f(ones(2, 3, 4)), f(ones(2, 1, 5))),
    "reflection_pad1d": lambda f: F.pad(f(ones(1, 1, 3)), (3, 1), mode="reflect"),
}

WORDED_OTHERWISE = {
    "index_reduce, a matrix of indices", "reflection_pad1d", "index_fill, a matrix",
    "masked_scatter_", "rms_norm",
    "index_fill, a vector of values", "convolution, bias", "transposed convolution, bias",
    "histogram, weight", "segment_reduce", "cross, length", "cross, rank", "lstsq", "addr", "addmv",
    "addbmm", "grid_sample, places", "grid_sample, batch", "interpolate", "max_unpool2d",
    "max_unpool3d", "multi_margin_loss, weight", "multi_margin_loss, target", "put",
    "norm of nothing", "norms of nothing", "multilabel_margin_loss", "group_norm, elements",
    "group_norm, groups", "mvlgamma",
    "soft_margin_loss", "matmul of batches", "index_fill, no such dimension",
}  # fmt: skip


def raised(call, made):
    with pytest.raises((RuntimeError, IndexError)) as error:
        call(made)
    return error.value


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_that_do_not_fit(name):
    eager = raised(REFUSED[name], lambda x: x)
    with FakeMode():
        ours = raised(REFUSED[name], from_real)
    assert type(ours) is type(eager)
    if name not in WORDED_OTHERWISE:
        assert str(eager).startswith(str(ours).rstrip("."))


@pytest.mark.parametrize("name", REFUSED)
def test_symbolic_sizes_that_do_not_fit(name):
    env = ShapeEnv(specialize_zero_one=False)
    made = []

    def fake(x):
        made.append(x)
        source = LocalSource(f"x{len(made)}")
        sizes = (
            env.create_size(n, SizeSource(source, d), Dim.DYNAMIC) for d, n in enumerate(x.shape)
        )
        return from_real(x, sizes=[env.symint(size) for size in sizes])

    eager = raised(REFUSED[name], lambda x: x)
    with FakeMode():
        ours = raised(REFUSED[name], fake)
    assert type(ours) is type(eager)


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_of_data_that_do_not_fit(name):
    """The compiled program checks them: no guard could."""
    env = ShapeEnv()
    values = {}

    def fake(x):
        sizes = []
        for n in x.shape:
            size = env.create_unbacked()
            values[str(size)] = n
            sizes.append(env.symint(size))
        return from_real(x, sizes=sizes)

    eager = raised(REFUSED[name], lambda x: x)
    with FakeMode():
        try:
            REFUSED[name](fake)
        except (RuntimeError, IndexError) as error:  # (ranks are known)
            assert type(error) is type(eager)
            return
    failing = [check for check in env.checks if not check.relation.evaluate(values)]
    assert failing and failing[0].error is type(eager)
