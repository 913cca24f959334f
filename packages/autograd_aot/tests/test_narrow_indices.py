"""Indices of pools are saved in the narrowest type that tells the places apart."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, check
from dovetail_autograd_aot import min_cut_partition, narrow_saved_indices, trace_joint


def cut(joint):
    return min_cut_partition(narrow_saved_indices(joint, ("cpu",)))


def saved_types(fn, *inputs):
    joint = trace_joint(as_graph(fn, len(inputs)), inputs, decompositions=TABLES["core"])
    before = joint.gm.code
    parts = cut(joint)
    assert joint.gm.code == before  # which is another's, too
    nodes = {n.name: n for n in parts.forward.graph.nodes}
    types = [nodes[name].meta["val"].dtype for name in parts.saved if name in nodes]
    return [t for t in types if not t.is_floating_point]


def image(*shape):
    return torch.randn(*shape, requires_grad=True)


def pooled(x):
    return (F.max_pool2d(x.sin(), 3, 2, 1).cos(),)


@pytest.mark.parametrize(
    ("side", "dtype"),
    [(11, torch.int8), (12, torch.int16), (181, torch.int16), (182, torch.int32)],
)
def test_of_images(side, dtype):
    assert saved_types(pooled, image(1, 2, side, side)) == [dtype]
    check(pooled, [image(1, 2, side, side)], partition=cut, exact=True)


@pytest.mark.parametrize(
    "pool",
    [
        partial(F.max_pool3d, kernel_size=2),
        partial(F.adaptive_max_pool2d, output_size=3),
        partial(F.adaptive_max_pool3d, output_size=2),
        partial(F.max_pool1d, kernel_size=3, stride=1),
    ],
)
def test_of_other_pools(pool):
    def fn(x):
        return (pool(x.sin()).cos(),)

    x = image(2, 3, 8, 8, 8) if pool.func.__name__.endswith("3d") else image(2, 8, 9)
    assert saved_types(fn, x) in ([torch.int16], [torch.int8])
    check(fn, [x], partition=cut, exact=True)


def test_all_places_are_told_apart():
    """The largest element is the last of as many as the type can tell apart."""
    x = torch.zeros(1, 1, 8, 16)
    x[..., -1, -1] = 1
    assert saved_types(pooled, x.requires_grad_()) == [torch.int8]
    check(lambda x: (F.max_pool2d(x, (8, 16)) * 3,), [x], partition=cut, exact=True)


def test_indices_that_the_caller_gets_are_pytorchs():
    def fn(x):
        values, indices = F.max_pool2d(x.sin(), 2, return_indices=True)
        return values.cos(), indices

    check(fn, [image(2, 3, 8, 8)], partition=cut, exact=True)


def test_other_devices_and_what_a_checkpoint_computes_again_are_left_alone():
    x = image(1, 2, 8, 8)
    joint = trace_joint(as_graph(pooled, 1), (x,), decompositions=TABLES["core"])
    assert narrow_saved_indices(joint, ("cuda",)) is joint
    for node in joint.gm.graph.nodes:
        node.meta["checkpoint"] = 0
    assert narrow_saved_indices(joint, ("cpu",)) is joint
