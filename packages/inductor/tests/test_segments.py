"""Loops in segments within which no comparison of their index changes: values, and that nothing is
asked inside."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.targets.cpu.segments import MOST_SEGMENTS
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table


def sources(fn, *inputs):
    plan = compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()))
    return [kernel.source for kernel in plan.kernels]


X, IMAGE = torch.randn(7, 90), torch.randn(2, 3, 21, 37)
CASES = {
    "parts change places": (lambda x: torch.cat([x[:, 33:], x[:, :33]], 1), X),
    "concatenation": (lambda x: torch.cat([x, x * 2, x[:, :5], x[:, ::3]], 1), X),
    "of one row": (lambda x: torch.cat([x, x.exp(), x[:7], x]), torch.randn(5000)),
    "rotation": (lambda x: x.roll(17, 1), X),
    "rotation of halves": (lambda x: x * 2 + torch.cat([-x[:, 45:], x[:, :45]], 1), X),
    "padding": (lambda x: F.pad(x, (3, 2, 1, 1), value=2.5), IMAGE),
    "reflected": (lambda x: F.pad(x, (5, 3, 2, 2), mode="reflect"), IMAGE),
    "replicated": (lambda x: F.pad(x, (5, 3, 2, 2), mode="replicate"), IMAGE),
    "written part": (lambda x: torch.slice_scatter(x, x[:, :20] * 2, 1, 31, 51), X),
    "every other": (lambda x: torch.slice_scatter(x, x[:, :20] * 2, 1, 31, 71, 2), X),
    "each twice": (lambda x: torch.cat([x.repeat_interleave(2, 1), x[:, ::5]], 1), X),
    "two results": (lambda x: (torch.cat([x, x + 1], 1), torch.cat([x, x + 1], 1) * 3), X),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_nothing_is_asked_inside(check, name, dtype):
    fn, x = CASES[name]
    x = x.to(dtype)
    check(fn, x)
    if dtype is torch.float32:
        for source in sources(fn, x):
            assert "ldm<" not in source and (name == "every other" or "ldim<" not in source)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat([x % 7, x + 1, x], 1),
        lambda x: torch.where((torch.arange(90) - 33).abs() < 21, x // 3, x * 2),
        lambda x: F.pad(torch.fmod(x, 5), (7, 70)),
    ],
    ids=["concatenation", "a part", "padding"],
)
def test_quotients_of_integers_have_no_vectors(check, fn, dtype):
    check(fn, torch.arange(-45, 45).repeat(7, 1).to(dtype))


@pytest.mark.parametrize("simd_bytes", [16, 64])
@pytest.mark.parametrize("name", CASES)
def test_vectors_of_other_widths(check, name, simd_bytes):
    fn, x = CASES[name]
    check(fn, x, options=InductorOptions(simd_bytes=simd_bytes))


def test_reductions_and_rows_that_are_read_again(check):
    def fn(x, y):
        both = torch.cat([x, y, x[:, :3]], 1)
        return (
            both.softmax(1), both.sum(1), both.amax(1), F.layer_norm(both, both.shape[1:]),
            both.argmax(1), both.cumsum(1), both.sum(0), (both > 0).any(1),
        )  # fmt: skip

    check(fn, X, torch.randn(7, 40), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("simd_bytes", [16, 64])
@pytest.mark.parametrize("sizes", [(1, 40), (40, 1), (20, 1, 19), (1, 200, 1, 1)])
def test_rows_with_a_part_of_one_element_are_read_again(check, sizes, simd_bytes):
    def fn(*parts):
        both = torch.cat(parts, -1)
        shifted = both - both.amax(-1, keepdim=True)
        return (
            both.softmax(-1), both.cos(), both.logsumexp(-1), F.layer_norm(both, both.shape[-1:]),
            shifted.softmax(-1)[..., :-1], both.log_softmax(-1), both - both.mean(-1, keepdim=True),
        )  # fmt: skip

    options = InductorOptions(simd_bytes=simd_bytes)
    row, halves = ([torch.randn(*rows, n) for n in sizes] for rows in ((), (3,)))
    check(fn, *row, options=options, rtol=1e-4, atol=1e-4)
    check(fn, *(p.half() for p in halves), options=options, rtol=1e-2, atol=1e-2)


def test_one_part_may_be_nan_and_another_out_of_reach(check):
    def fn(x, y):
        return torch.cat([x.log(), y], 1).sum(1), torch.cat([y, x.log()], 1)

    check(fn, -X.abs(), torch.randn(7, 33))


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_any_size(check, seed):
    draw = random.Random(seed)
    x = torch.randn(draw.choice([1, 3, 64]), 100)
    bounds = [0, *sorted(draw.sample(range(1, 100), 4)), 100]
    order = draw.sample(range(5), 5)

    def fn(x):
        parts = [x[:, a:b] * (a + 1) for a, b in pairwise(bounds)]
        whole = torch.cat([parts[k] for k in order], 1)
        return whole, whole.roll(bounds[1], 1).flip(1), F.pad(whole, (-bounds[1], bounds[2]))

    check(fn, x)


def test_so_many_parts_are_not_computed_one_by_one(check):
    def fn(x):
        return torch.cat([x[:, k : k + 9] for k in range(MOST_SEGMENTS + 3)], 1)

    check(fn, X)
    (source,) = sources(fn, X)
    assert source.count("st(") <= 2
